//! The client, and what its failures mean.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use bulkhead_control::source::escaped;
use futures_util::AsyncBufRead;
use hyper::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::kinds::{Kind, Purpose};
use super::settings::{Access, Timing};

/// What has gone wrong. None of it is final: the server may be mended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The server does not know any more what has changed since (410).
    Expired,
    /// There is no such thing (404).
    Absent,
    /// The server does not know who asks (401): a token is out of date.
    Unauthorized,
    /// The asker may not (403).
    Forbidden,
    /// Anything else: no connection, no answer, an error, nonsense.
    Other(String),
}

impl Fault {
    pub(super) fn other(error: &impl fmt::Display) -> Self {
        let text = escaped(&error.to_string()).into_owned();
        // An error page of a proxy is no message.
        Self::Other(text.chars().take(MAX_TEXT).collect())
    }

    /// What this means for the objects of a kind, with the remedy.
    pub(super) fn told(&self, kind: Kind) -> String {
        let (resource, group) = (kind.resource(), kind.group());
        let rule = format!("apiGroups: [\"{group}\"], resources: [{resource}], verbs: [list, watch]");
        match self {
            Self::Expired => format!("{resource}: the server has forgotten what has changed; they are listed anew"),
            Self::Absent if kind.purpose() == Purpose::Services => format!(
                "the server has no {resource} of {}\n  \
                 help: Services are followed from Kubernetes 1.21 on; `services: off` leaves them to the node's kernel",
                kind.api_version()
            ),
            Self::Absent => format!("the server has no {resource} of {}", kind.api_version()),
            Self::Unauthorized => UNAUTHORIZED.to_owned(),
            Self::Forbidden if kind.is_optional() => format!(
                "the server has {resource} and does not let them be read: what they deny would pass\n  \
                 help: add the rule {{{rule}}} to the ClusterRole, or name {kind} in state.ignore"
            ),
            Self::Forbidden if kind.purpose() == Purpose::Services => format!(
                "the server does not let {resource} be read\n  \
                 help: add the rule {{{rule}}} to the ClusterRole; or `services: off` leaves Services to the node's kernel"
            ),
            Self::Forbidden => format!(
                "the server does not let {resource} be read\n  help: add the rule {{{rule}}} to the ClusterRole"
            ),
            Self::Other(text) => text.clone(),
        }
    }
}

/// What a request without a valid identity means.
pub(super) const UNAUTHORIZED: &str = "the server does not know who asks (401)\n  \
                                       help: is the token out of date, or that of another cluster?";

/// How much of an error's text is kept, in characters.
const MAX_TEXT: usize = 300;

impl From<kube::Error> for Fault {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => match status.code {
                401 => Self::Unauthorized,
                403 => Self::Forbidden,
                404 => Self::Absent,
                410 => Self::Expired,
                code => Self::other(&format_args!("the server answers {code}: {}", status.message)),
            },
            error => Self::other(&Chain(&error)),
        }
    }
}

/// An error with what it comes from.
struct Chain<'a>(&'a dyn std::error::Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut said = self.0.to_string();
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = error.to_string();
            // Many wrap the text of what they come from.
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said = text;
            }
            source = error.source();
        }
        Ok(())
    }
}

/// See the module.
pub(super) struct Connection {
    access: Access,
    timing: Timing,
    client: Mutex<Option<Client>>,
}

impl Connection {
    pub(super) fn new(access: Access, timing: Timing) -> Self {
        Self { access, timing, client: Mutex::new(None) }
    }

    /// Forgets the client: the next request reads configuration, token and certificates again, and connects anew.
    pub(super) fn renew(&self) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The body of a short answer.
    pub(super) async fn answer(&self, path: &str) -> Result<String, Fault> {
        self.text(path, self.timing.answer).await
    }

    /// The body of a page.
    pub(super) async fn page(&self, path: &str) -> Result<String, Fault> {
        self.text(path, self.timing.page).await
    }

    async fn text(&self, path: &str, limit: std::time::Duration) -> Result<String, Fault> {
        let client = self.client().await?;
        let answer = tokio::time::timeout(limit, client.request_text(request(path)?)).await;
        let answer = answer.map_err(|_| Fault::Other(format!("the server does not answer within {limit:?}")))?;
        self.judged(answer.map_err(Fault::from))
    }

    /// The body of an answer that goes on.
    pub(super) async fn stream(&self, path: &str) -> Result<impl AsyncBufRead + Unpin + use<>, Fault> {
        let client = self.client().await?;
        let limit = self.timing.answer;
        let answer = tokio::time::timeout(limit, client.request_stream(request(path)?)).await;
        let answer = answer.map_err(|_| Fault::Other(format!("the server does not answer within {limit:?}")))?;
        self.judged(answer.map_err(Fault::from))
    }

    /// Has who asks read anew where the server does not know them.
    fn judged<T>(&self, answer: Result<T, Fault>) -> Result<T, Fault> {
        if let Err(Fault::Unauthorized) = answer {
            self.renew();
        }
        answer
    }

    async fn client(&self) -> Result<Client, Fault> {
        if let Some(client) = &*self.client.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(client.clone());
        }
        let mut config = self.config().await?;
        config.connect_timeout = Some(self.timing.answer);
        let client = Client::try_from(config)?;
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
        Ok(client)
    }

    async fn config(&self) -> Result<Config, Fault> {
        match &self.access {
            Access::InCluster => Config::incluster().map_err(|error| {
                let help = "run it as a pod with a service account, or name a file in state.kubernetes.kubeconfig";
                Fault::Other(format!("this is not a pod of a cluster: {}\n  help: {help}", Chain(&error)))
            }),
            Access::Kubeconfig { path, context } => {
                let unusable = |error: &dyn std::error::Error| {
                    let help = "name a file that `kubectl --kubeconfig` can use";
                    Fault::Other(format!("{} cannot be used: {}\n  help: {help}", path.display(), Chain(error)))
                };
                let file = Kubeconfig::read_from(path).map_err(|error| unusable(&error))?;
                let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
                Config::from_custom_kubeconfig(file, &options).await.map_err(|error| unusable(&error))
            }
        }
    }
}

fn request(path: &str) -> Result<Request<Vec<u8>>, Fault> {
    // Whole bodies as they are: of compressed watches the client would read the first event only.
    let request = Request::get(path).header(hyper::header::ACCEPT, "application/json");
    let request = request.header(hyper::header::ACCEPT_ENCODING, "identity");
    request.body(Vec::new()).map_err(|error| Fault::other(&error))
}
