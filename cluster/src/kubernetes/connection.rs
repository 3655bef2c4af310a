//! The connection to the API server, and the meaning of its errors.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::kinds::{Kind, Purpose};
use super::settings::Timing;
use crate::client::{self, Access, Client, Error, Lines};
use crate::errors::bounded;

/// Why a request failed. No fault is final: a later request may succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// 410: the server no longer has the history after the requested version.
    Expired,
    /// 404: the resource does not exist.
    Absent,
    /// 401: the server rejects the credential, such as an expired token.
    Unauthorized,
    /// 403: the user has no right to the resource.
    Forbidden,
    /// Anything else: no connection, no answer, another error, or a malformed answer.
    Other(String),
}

impl Fault {
    pub(super) fn other(error: &impl fmt::Display) -> Self {
        Self::Other(bounded(&error.to_string()))
    }

    /// Returns an error message for a fault while following the objects of `kind`: the consequence, and the remedy.
    pub(super) fn told(&self, kind: Kind) -> String {
        let resource = kind.resource();
        let groups: Vec<String> = kind.groups().into_iter().map(|group| format!("\"{group}\"")).collect();
        let rule = format!("apiGroups: [{}], resources: [{resource}], verbs: [list, watch]", groups.join(", "));
        match self {
            Self::Expired => {
                format!("the server no longer has the recent changes of {resource}; bulkhead lists them again")
            }
            Self::Absent if kind.purpose() == Purpose::Services => format!(
                "the server has no {resource} of {}\n  \
                 help: Services need Kubernetes 1.17 or later; `services: off` leaves Services to the node's kernel",
                kind.api_versions().join(" or ")
            ),
            Self::Absent => format!("the server has no {resource} of {}", kind.api_version()),
            Self::Unauthorized => UNAUTHORIZED.to_owned(),
            Self::Forbidden if kind.is_foreign() => format!(
                "bulkhead has no right to read the {resource} that policies of other products depend on\n  \
                 help: add the rule {{{rule}}} to the ClusterRole, or set state.foreign_policies: off"
            ),
            Self::Forbidden if kind.is_optional() => format!(
                "the server has {resource} but bulkhead has no right to read them, so traffic that they deny would pass\n  \
                 help: add the rule {{{rule}}} to the ClusterRole, or name {kind} in state.ignore"
            ),
            Self::Forbidden if kind.purpose() == Purpose::Services => format!(
                "bulkhead has no right to read {resource}\n  \
                 help: add the rule {{{rule}}} to the ClusterRole; or `services: off` leaves Services to the node's kernel"
            ),
            Self::Forbidden => {
                format!("bulkhead has no right to read {resource}\n  help: add the rule {{{rule}}} to the ClusterRole")
            }
            Self::Other(text) => text.clone(),
        }
    }
}

/// The error message for a request that the server does not authenticate, with the remedy.
pub(super) const UNAUTHORIZED: &str = "the server rejects the credential (401)\n  \
                                       help: check whether the token has expired or belongs to another cluster";

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Status { code: 401, .. } => Self::Unauthorized,
            Error::Status { code: 403, .. } => Self::Forbidden,
            Error::Status { code: 404, .. } => Self::Absent,
            Error::Status { code: 410, .. } => Self::Expired,
            Error::Status { code, message } => Self::other(&format_args!("the server answered {code}: {message}")),
            Error::Lost(text) => Self::other(&text),
        }
    }
}

/// The connection to the API server. Creates the client on demand and renews it when its credential expires.
pub(super) struct Connection {
    access: Access,
    timing: Timing,
    client: Mutex<Option<Client>>,
    /// The last failure and its time, for tasks that waited. Locked while the configuration is read, which may run an exec plugin.
    failed: tokio::sync::Mutex<Option<(Instant, Fault)>>,
}

impl Connection {
    pub(super) fn new(access: Access, timing: Timing) -> Self {
        Self { access, timing, client: Mutex::default(), failed: tokio::sync::Mutex::default() }
    }

    /// Drops the client. The next request reads the configuration, token and certificates again.
    pub(super) fn renew(&self) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the body of a short answer.
    pub(super) async fn answer(&self, path: &str) -> Result<String, Fault> {
        self.text(path, self.timing.answer).await
    }

    /// Returns the body of a page of a list.
    pub(super) async fn page(&self, path: &str) -> Result<String, Fault> {
        self.text(path, self.timing.page).await
    }

    async fn text(&self, path: &str, limit: Duration) -> Result<String, Fault> {
        let client = self.client().await?;
        self.judged(tokio::time::timeout(limit, client.text(path)).await, limit)
    }

    /// Returns the answer of a watch as a stream of lines.
    pub(super) async fn lines(&self, path: &str) -> Result<Lines, Fault> {
        let (client, limit) = (self.client().await?, self.timing.answer);
        self.judged(tokio::time::timeout(limit, client.lines(path)).await, limit)
    }

    /// Translates a failed request. Drops the client after 401 and lost connections: the server may have a new authority, address or token.
    fn judged<T>(
        &self,
        answer: Result<Result<T, Error>, tokio::time::error::Elapsed>,
        limit: Duration,
    ) -> Result<T, Fault> {
        let late = |_| Err(Error::Lost(format!("the server did not answer within {limit:?}")));
        let answer = answer.unwrap_or_else(late);
        if let Err(Error::Status { code: 401, .. } | Error::Lost(_)) = answer {
            self.renew();
        }
        answer.map_err(Fault::from)
    }

    async fn client(&self) -> Result<Client, Fault> {
        let known = || {
            let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
            client.filter(|client| !client.is_ending())
        };
        if let Some(client) = known() {
            return Ok(client);
        }
        let asked = Instant::now();
        let mut failed = self.failed.lock().await;
        if let Some(client) = known() {
            return Ok(client);
        }
        if let Some((_, fault)) = failed.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(fault.clone());
        }
        let read = self.read().await;
        match &read {
            Ok(client) => *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.clone()),
            Err(fault) => *failed = Some((Instant::now(), fault.clone())),
        }
        read
    }

    async fn read(&self) -> Result<Client, Fault> {
        let (access, patience) = (self.access.clone(), self.timing.answer);
        // On a thread for blocking work: reading files and running a plugin takes time, and the other kinds' tasks continue.
        let read = move || client::read(&access).map(|config| Client::new(config, patience));
        let read = tokio::task::spawn_blocking(read).await;
        read.unwrap_or_else(|error| Err(error.to_string())).map_err(Fault::Other)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::client::tests::{Scratch, Server, answer, kubeconfig};

    /// Returns a connection as a user with this plugin, which appends a line to the file `runs` each time it runs.
    fn with_plugin(scratch: &Scratch, server: &Server, script: &str) -> Arc<Connection> {
        let runs = scratch.path("runs");
        let plugin = scratch.program("plugin", &format!("echo run >> {}\n{script}", runs.display()));
        let exec = format!(
            "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: '{}', interactiveMode: Never}}}}",
            plugin.display()
        );
        let text = kubeconfig(&format!("{{server: 'http://{}'}}", server.address), &exec);
        let path = scratch.write("kubeconfig", &text);
        Arc::new(Connection::new(Access::Kubeconfig { path, context: None }, Timing::default()))
    }

    fn runs(scratch: &Scratch) -> usize {
        std::fs::read_to_string(scratch.path("runs")).unwrap_or_default().lines().count()
    }

    /// Sends ten requests concurrently and returns their answers.
    async fn ten(connection: &Arc<Connection>) -> Vec<Result<String, Fault>> {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let connection = Arc::clone(connection);
            tasks.spawn(async move { connection.answer("/").await });
        }
        tasks.join_all().await
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn those_who_ask_at_once_have_the_configuration_read_once() {
        let server = Server::start(None, |_| answer("200 OK", "{}"));
        let scratch = Scratch::new();
        let connection = with_plugin(&scratch, &server, "sleep 0.2; echo '{\"status\": {\"token\": \"t\"}}'");
        let answers = block_on(ten(&connection));
        assert!(answers.iter().all(Result::is_ok) && runs(&scratch) == 1, "{answers:?}, {}", runs(&scratch));
        let scratch = Scratch::new();
        let connection = with_plugin(&scratch, &server, "sleep 0.2; echo 'not logged in' >&2; exit 1");
        let answers = block_on(ten(&connection));
        let told = |answer: &Result<String, Fault>| matches!(answer, Err(Fault::Other(text)) if text.contains("not logged in"));
        assert!(answers.iter().all(told) && runs(&scratch) == 1, "{answers:?}, {}", runs(&scratch));
        block_on(ten(&connection));
        assert_eq!(runs(&scratch), 2, "who asks later has it read again");
    }

    #[test]
    fn a_token_that_ends_or_that_the_server_does_not_take_is_asked_for_again() {
        for (end, status, expected) in [("2100", "200 OK", 1), ("1970", "200 OK", 3), ("2100", "401 X", 3)] {
            let server = Server::start(None, move |_| answer(status, "{}"));
            let scratch = Scratch::new();
            let said = format!("{{\"token\": \"t\", \"expirationTimestamp\": \"{end}-01-01T00:00:00Z\"}}");
            let connection = with_plugin(&scratch, &server, &format!("echo '{{\"status\": {said}}}'"));
            block_on(async {
                for _ in 0..3 {
                    let answer = connection.answer("/").await;
                    assert!(answer.is_ok() || answer == Err(Fault::Unauthorized), "{answer:?}");
                }
            });
            assert_eq!(runs(&scratch), expected, "{end} {status}");
        }
    }
}
