//! A client of a Neutron server: authenticated requests with retries, and paged lists.

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

/// Timeout of an answer. Neutron gives its backends 30 s; a page of ports takes a few seconds.
const ANSWER: Duration = Duration::from_secs(60);

/// Pause before the first retry. Doubles with each retry, up to [`LONGEST`].
const FIRST_WAIT: Duration = Duration::from_millis(200);

/// Longest pause before a retry, even if the server asks for more.
const LONGEST: Duration = Duration::from_secs(20);

/// Elements per page: 500 ports are about 1 MB of JSON. The server may return fewer.
const PAGE: usize = 500;

/// Maximum size of an answer, in bytes: ten times a page of ports.
const MAX_ANSWER: usize = 10 << 20;

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// No answer, so the request may have been carried out.
    Lost(String),
    /// The server answered with an error.
    Refused {
        status: StatusCode,
        /// The error's type. Empty if the server names none.
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
    /// Whether the same request may succeed later: no answer, or an error of an overloaded server.
    fn may_pass(&self) -> bool {
        match self {
            Self::Lost(_) => true,
            Self::Refused { status, .. } => *status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error(),
        }
    }

    /// Whether the server may have carried out the request.
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

/// A client of one Neutron server.
pub struct Client {
    http: legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: String,
    token: HeaderValue,
    retries: u32,
    is_overheard: bool,
}

impl Client {
    /// Creates a client of the server at `endpoint`, with or without `/v2.0`. It retries a request up to `retries` times.
    ///
    /// # Errors
    /// If the endpoint is not a URL, the token contains invalid characters, or the system's trusted certificates cannot be read.
    pub fn new(endpoint: &str, token: &str, retries: u32) -> anyhow::Result<Self> {
        let help = "give a URL such as --endpoint https://neutron.example:9696";
        let uri: Uri =
            endpoint.parse().with_context(|| format!("--endpoint {endpoint:?} is not a URL\n  help: {help}"))?;
        let (Some(scheme @ ("http" | "https")), Some(host)) = (uri.scheme_str(), uri.host()) else {
            bail!("--endpoint {endpoint:?} is not an http or https URL\n  help: {help}");
        };
        let is_here = host == "localhost"
            || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let is_overheard = scheme == "http" && !is_here;
        let base = endpoint.trim_end_matches('/').trim_end_matches("/v2.0").trim_end_matches('/').to_owned();
        let mut token = HeaderValue::from_str(token)
            .ok()
            .context("the token in OS_TOKEN contains characters that tokens cannot have")?;
        token.set_sensitive(true);
        let tls = HttpsConnectorBuilder::new()
            .with_native_roots()
            .context("the system's trusted certificates cannot be read")?;
        let connector = tls.https_or_http().enable_http1().build();
        Ok(Self {
            http: legacy::Client::builder(TokioExecutor::new()).build(connector),
            base,
            token,
            retries,
            is_overheard,
        })
    }

    /// Whether the token travels unencrypted: the endpoint is http and not on this machine.
    pub const fn is_overheard(&self) -> bool {
        self.is_overheard
    }

    /// Sends a request without retries.
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

    /// Pauses before retry number `tried`, counted from 0. Returns false if a retry is useless or the limit is reached.
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

    /// Sends an idempotent request, with retries.
    pub(super) async fn send(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Value, Fault> {
        let mut tried = 0;
        loop {
            match self.once(method, path, body).await {
                Err(fault) if self.wait(&fault, tried).await => tried += 1,
                outcome => return outcome,
            }
        }
    }

    /// Returns all elements of a list. Pages continue after the last element's ID. The server's link to the next page may name another
    /// host, which must not get the token.
    async fn list(&self, resource: &str, filter: &str) -> anyhow::Result<Vec<Value>> {
        let key = resource.replace('-', "_");
        let (mut all, mut marker) = (Vec::new(), String::new());
        loop {
            let path = format!("/v2.0/{resource}?limit={PAGE}{filter}{marker}");
            let mut answer =
                self.send(&Method::GET, &path, None).await.map_err(|fault| told(&format!("GET {path}"), fault))?;
            let Some(Value::Array(page)) = answer.get_mut(&key).map(Value::take) else {
                bail!("GET {path}: the answer has no {key}\n  help: give the endpoint of the `network` service");
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

    /// Returns this owner's security groups: tagged ones, and untagged ones of an interrupted run.
    async fn groups(&self, owner: &str) -> anyhow::Result<Vec<Value>> {
        let mut groups = self.list("security-groups", &format!("&tags={owner}")).await?;
        groups.extend(self.untagged(owner).await?);
        Ok(groups)
    }

    /// Returns groups that were created but not tagged, because the run was interrupted or an answer was lost. The name is checked too,
    /// since a user may have copied the description.
    async fn untagged(&self, owner: &str) -> anyhow::Result<Vec<Value>> {
        let mut described = self.list("security-groups", &format!("&description={owner}")).await?;
        described.retain(|group| {
            let is_bare = group["tags"].as_array().is_none_or(Vec::is_empty);
            is_bare && group["name"].as_str().is_some_and(|name| name.starts_with(NAME_PREFIX))
        });
        Ok(described)
    }

    /// Returns this owner's groups and the server's ports, of one network or of all.
    ///
    /// # Errors
    /// If the server refuses a request, or all retries failed.
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

    /// Returns the IDs of this owner's groups by tag. If two groups share a tag, the lower ID counts, as in the plan.
    ///
    /// # Errors
    /// If the server refuses a request, or all retries failed.
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

    /// Returns this owner's first untagged group of this name. `None` if it does not exist.
    pub(super) async fn left_over(&self, owner: &str, name: &str) -> anyhow::Result<Option<Value>> {
        Ok(self.untagged(owner).await?.into_iter().find(|group| group["name"] == name))
    }
}

/// Returns the error for the user, with a remedy if one is known.
pub(super) fn told(what: &str, fault: Fault) -> anyhow::Error {
    let help = if fault.is(StatusCode::UNAUTHORIZED, "") {
        "the token has expired; get a new one: OS_TOKEN=$(openstack token issue -f value -c id)"
    } else if fault.is(StatusCode::FORBIDDEN, "") {
        "give the token's user a role that may change ports and security groups of the project"
    } else if fault.is(StatusCode::CONFLICT, "OverQuota") {
        "raise the quota (openstack quota set --secgroups N --secgroup-rules N PROJECT), or write the policies with fewer rules; \
         `--dry-run` shows how many are missing. Ports keep their present groups"
    } else if matches!(fault, Fault::Lost(_)) {
        "check that the endpoint is right and the server is running"
    } else {
        return anyhow::Error::new(fault).context(what.to_owned());
    };
    anyhow::anyhow!("{what}: {fault}\n  help: {help}")
}
