//! The connection to a Neutron server: requests with a token, repeated where that may help, and lists page by page.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context, bail};
use bulkhead_control::renderer::neutron::NAME_PREFIX;
use bulkhead_control::renderer::neutron::plan::{Listed, ListedGroup, ListedPort};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::errors::{bounded, chain};

/// How long an answer may take: Neutron itself gives its backends 30 s, and a page of ports takes some seconds.
const ANSWER: Duration = Duration::from_secs(60);

/// Before the first repetition; each further one waits twice as long, up to [`LONGEST`].
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// The longest wait, also where the server asks for more.
const LONGEST: Duration = Duration::from_secs(20);

/// Elements of a page: 500 ports are some 1 MB of JSON. The server may give fewer.
const PAGE: usize = 500;

/// The longest answer, ten times a page of ports.
const MAX_ANSWER: usize = 10 << 20;

/// What a request came to that did not succeed.
#[derive(Debug)]
pub(super) enum Fault {
    /// No answer: it is not known whether it was done.
    Lost(String),
    /// The server's answer.
    Refused {
        status: StatusCode,
        /// The error's name, empty where there is none.
        kind: String,
        message: String,
        retry_after: Option<Duration>,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(why) => write!(f, "no answer: {why}"),
            Self::Refused { status, kind, message, .. } => write!(f, "{} {kind}: {message}", status.as_u16()),
        }
    }
}

impl std::error::Error for Fault {}

impl Fault {
    /// Whether the same request may succeed later.
    fn may_pass(&self) -> bool {
        match self {
            Self::Lost(_) => true,
            Self::Refused { status, .. } => *status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error(),
        }
    }

    /// Whether the server may have done what it was asked for.
    pub(super) fn is_uncertain(&self) -> bool {
        match self {
            Self::Lost(_) => true,
            Self::Refused { status, .. } => status.is_server_error(),
        }
    }

    pub(super) fn is(&self, wanted: StatusCode, name: &str) -> bool {
        matches!(self, Self::Refused { status, kind, .. } if *status == wanted && (name.is_empty() || kind == name))
    }
}

/// See the module.
pub struct Client {
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: String,
    token: HeaderValue,
    retries: u32,
    is_overheard: bool,
}

impl Client {
    /// A client of the server at `endpoint`, with or without the version at its end. It repeats a request up to `retries` times.
    ///
    /// # Errors
    /// When the endpoint is no URL, the token has characters that no token has, or this machine's certificates cannot be read.
    pub fn new(endpoint: &str, token: &str, retries: u32) -> anyhow::Result<Self> {
        let help = "write for example --endpoint https://neutron.example:9696";
        let uri: Uri =
            endpoint.parse().with_context(|| format!("--endpoint {endpoint:?} is no URL\n  help: {help}"))?;
        let (Some(scheme @ ("http" | "https")), Some(host)) = (uri.scheme_str(), uri.host()) else {
            bail!("--endpoint {endpoint:?} is no http or https URL\n  help: {help}");
        };
        let is_here = host == "localhost"
            || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let is_overheard = scheme == "http" && !is_here;
        let base = endpoint.trim_end_matches('/').trim_end_matches("/v2.0").trim_end_matches('/').to_owned();
        let mut token =
            HeaderValue::from_str(token).ok().context("the token in OS_TOKEN has characters that no token has")?;
        token.set_sensitive(true);
        let tls =
            HttpsConnectorBuilder::new().with_native_roots().context("this machine's certificates cannot be read")?;
        let connector = tls.https_or_http().enable_http1().build();
        Ok(Self {
            http: legacy::Client::builder(TokioExecutor::new()).build(connector),
            base,
            token,
            retries,
            is_overheard,
        })
    }

    /// Whether the token is readable on the way: it is sent without TLS, and leaves this machine.
    pub const fn is_overheard(&self) -> bool {
        self.is_overheard
    }

    /// Sends a request once.
    pub(super) async fn once(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Value, Fault> {
        let lost = |error: &dyn std::error::Error| Fault::Lost(chain(error));
        let request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        let request = request.header("X-Auth-Token", self.token.clone()).header(ACCEPT, "application/json");
        let text = body.map(Value::to_string).unwrap_or_default();
        let request = request.header(CONTENT_TYPE, "application/json").body(Full::new(Bytes::from(text)));
        let request = request.map_err(|error| lost(&error))?;
        let exchange = async {
            let answer = self.http.request(request).await.map_err(|error| lost(&error))?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            Ok((head, body.map_err(|error| lost(&*error))?.to_bytes()))
        };
        let answer = tokio::time::timeout(ANSWER, exchange).await;
        let (head, body) = answer.map_err(|_| Fault::Lost(format!("none within {ANSWER:?}")))??;
        if head.status.is_success() {
            if body.is_empty() {
                return Ok(Value::Null);
            }
            return serde_json::from_slice(&body).map_err(|error| lost(&error));
        }
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        let error = value.as_object().and_then(|map| map.values().next()).unwrap_or(&Value::Null);
        let text = |key: &str| error.get(key).and_then(Value::as_str).unwrap_or_default();
        let message = bounded(text("message"));
        let retry_after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Err(Fault::Refused {
            status: head.status,
            kind: bounded(text("type")),
            message,
            retry_after: retry_after.map(Duration::from_secs),
        })
    }

    /// Waits before the repetition number `tried`, from 0, after this fault; false where it is of no use.
    pub(super) async fn wait(&self, fault: &Fault, tried: u32) -> bool {
        if !fault.may_pass() || tried >= self.retries {
            return false;
        }
        let asked = match fault {
            Fault::Refused { retry_after, .. } => *retry_after,
            Fault::Lost(_) => None,
        };
        let wait = asked.unwrap_or_else(|| FIRST_WAIT.saturating_mul(1 << tried.min(16)));
        tokio::time::sleep(wait.min(LONGEST)).await;
        true
    }

    /// Sends a request that may be sent twice.
    pub(super) async fn send(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Value, Fault> {
        let mut tried = 0;
        loop {
            match self.once(method, path, body).await {
                Err(fault) if self.wait(&fault, tried).await => tried += 1,
                outcome => return outcome,
            }
        }
    }

    /// All elements of a list. Pages are asked for by the last element's ID and not by the link to the next page, which may name a host
    /// that only the server knows, and that is not to have the token.
    async fn list(&self, resource: &str, filter: &str) -> anyhow::Result<Vec<Value>> {
        let key = resource.replace('-', "_");
        let (mut all, mut marker) = (Vec::new(), String::new());
        loop {
            let path = format!("/v2.0/{resource}?limit={PAGE}{filter}{marker}");
            let mut answer =
                self.send(&Method::GET, &path, None).await.map_err(|fault| told(&format!("GET {path}"), fault))?;
            let Some(Value::Array(page)) = answer.get_mut(&key).map(Value::take) else {
                bail!("GET {path}: the answer has no {key}\n  help: is this the endpoint of `network`?");
            };
            let links = answer.get(format!("{key}_links")).and_then(Value::as_array).into_iter().flatten();
            let is_last = !links.into_iter().any(|link| link["rel"] == "next");
            let last = page.last().and_then(|last| last["id"].as_str()).map(str::to_owned);
            all.extend(page);
            match last.filter(|_| !is_last) {
                Some(last) => marker = format!("&marker={last}"),
                None => return Ok(all),
            }
        }
    }

    /// The groups that are ours: those with our tag, and those that were left without any.
    async fn groups(&self, owner: &str) -> anyhow::Result<Vec<Value>> {
        let mut groups = self.list("security-groups", &format!("&tags={owner}")).await?;
        groups.extend(self.untagged(owner).await?);
        Ok(groups)
    }

    /// Groups that were created and not tagged, because the run ended or an answer was lost. Whoever copies one of our descriptions has
    /// not copied the name as well.
    async fn untagged(&self, owner: &str) -> anyhow::Result<Vec<Value>> {
        let mut described = self.list("security-groups", &format!("&description={owner}")).await?;
        described.retain(|group| {
            let is_bare = group["tags"].as_array().is_none_or(Vec::is_empty);
            is_bare && group["name"].as_str().is_some_and(|name| name.starts_with(NAME_PREFIX))
        });
        Ok(described)
    }

    /// The groups and ports of the server that concern us: of one network's ports, or of all.
    ///
    /// # Errors
    /// When the server refuses a request, or does not answer as often as it is repeated.
    pub async fn listed(&self, owner: &str, network: Option<&str>) -> anyhow::Result<Listed> {
        let groups = self.groups(owner).await?;
        let network = network.map(|id| format!("&network_id={id}")).unwrap_or_default();
        let fields = ["id", "fixed_ips", "security_groups", "allowed_address_pairs", "port_security_enabled"];
        let fields: String = fields.iter().map(|field| format!("&fields={field}")).collect();
        let ports = self.list("ports", &format!("{network}{fields}")).await?;
        Ok(Listed {
            groups: groups.iter().filter_map(ListedGroup::of).collect(),
            ports: ports.iter().filter_map(ListedPort::of).collect(),
        })
    }

    /// The IDs of our groups by their tags; of two with one tag the first, as the plan has it.
    ///
    /// # Errors
    /// As [`Self::listed`].
    pub async fn listed_ids(&self, owner: &str) -> anyhow::Result<BTreeMap<String, String>> {
        let mut groups: Vec<ListedGroup> = self.groups(owner).await?.iter().filter_map(ListedGroup::of).collect();
        groups.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let mut ids = BTreeMap::new();
        for ListedGroup { id, tags, .. } in groups {
            if tags.iter().any(|tag| tag == owner) {
                for tag in tags {
                    ids.entry(tag).or_insert_with(|| id.clone());
                }
            }
        }
        Ok(ids)
    }

    /// The first of our groups of this name that has no tags yet.
    pub(super) async fn left_over(&self, owner: &str, name: &str) -> anyhow::Result<Option<Value>> {
        Ok(self.untagged(owner).await?.into_iter().find(|group| group["name"] == name))
    }
}

/// The error for the user.
pub(super) fn told(what: &str, fault: Fault) -> anyhow::Error {
    let help = if fault.is(StatusCode::UNAUTHORIZED, "") {
        "the token is not valid any more: OS_TOKEN=$(openstack token issue -f value -c id)"
    } else if fault.is(StatusCode::FORBIDDEN, "") {
        "the token's user needs a role that may change ports and security groups of the project"
    } else if fault.is(StatusCode::CONFLICT, "OverQuota") {
        "raise the quota (openstack quota set --secgroups N --secgroup-rules N PROJECT), or write the policies with fewer rules; \
         `--dry-run` shows how many are missing. Ports keep the groups that they have"
    } else if matches!(fault, Fault::Lost(_)) {
        "is the endpoint right, and does the server run?"
    } else {
        return anyhow::Error::new(fault).context(what.to_owned());
    };
    anyhow::anyhow!("{what}: {fault}\n  help: {help}")
}
