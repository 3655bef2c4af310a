//! Serves the admin socket, metrics and probes with `dataplane: nftables`.
//!
//! Requests for data that only the vswitch has (sessions, tables, added ports) fail with an explanation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use crossbeam_channel::Sender;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request as HttpRequest, Response, StatusCode};
use serde_json::Value;

use super::kernel::{self, Counter};
use super::status::Told;
use crate::admin::connections::Connections;
use crate::admin::http::{self, Answer};
use crate::admin::thread::Handle;
use crate::admin::{probes, socket};
use crate::config::AdminConfig;
use crate::listener::Listener;
use crate::names::Names;
use bulkhead_observe::admin::{Enforcement, Failure, PolicyQuestion, Request};

/// How long shutdown waits for running requests.
const ENDING: Duration = Duration::from_secs(2);

/// How long to wait for the enforcement thread, which may be compiling a large state.
const PATIENCE: Duration = Duration::from_secs(3);

/// The data from which requests are answered.
#[derive(Clone)]
struct Answers {
    told: Arc<Mutex<Told>>,
    look: Sender<()>,
    names: Names,
}

impl Answers {
    fn lock(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(self, request: Request) -> Result<Value, Failure> {
        let value = match request {
            Request::Status => {
                let counters = counters().await?;
                serde_json::to_value(self.lock().status(&counters))
            }
            Request::Ports => serde_json::to_value(self.lock().ports()),
            Request::Policies => {
                let counters = counters().await?;
                serde_json::to_value(self.lock().policies(&counters))
            }
            Request::Enforcement(asked) => serde_json::to_value(self.enforcement(asked).await?),
            Request::Reload => {
                // If the queue is full, a reload is already pending.
                let _ = self.look.try_send(());
                Ok(Value::Object(serde_json::Map::new()))
            }
            _ => {
                let help = "list connections with `conntrack -L` and rules with `nft list table inet bulkhead`; pods are found by routes \
                            and by the configuration's ports";
                return Err(Failure::new("other_dataplane", "not available with dataplane: nftables", help));
            }
        };
        value.map_err(|error| Failure::new("internal", error.to_string(), "report it"))
    }

    /// Reports how far a policy is in force.
    async fn enforcement(&self, asked: PolicyQuestion) -> Result<Enforcement, Failure> {
        let (names, busy) =
            (self.names.clone(), || Failure::new("no_answer", "cannot look up the policy", "ask again"));
        // The enforcement thread answers between two changes.
        let told = tokio::task::spawn_blocking(move || names.enforcement(asked, PATIENCE)).await.map_err(|_| busy())?;
        let mut told = told.map_err(|_| busy())?;
        let now = self.lock();
        told.tables_generation = now.changes;
        if now.is_refused || !now.is_settled {
            told.pending.push("the kernel has not loaded the newest ruleset yet; bulkhead retries".into());
        }
        told.stale = now.source().is_some_and(|source| !source.is_connected);
        told.enforced = told.pending.is_empty();
        Ok(told)
    }

    async fn answer_http(self, request: HttpRequest<Incoming>) -> Answer {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let (status, kind, body) = match request.uri().path() {
            _ if !is_read => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET\n".to_owned()),
            "/metrics" => match counters().await {
                Ok(counters) => match super::metrics::render(&self.lock(), &counters) {
                    Ok(text) => (StatusCode::OK, probes::OPEN_METRICS, text),
                    Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n")),
                },
                Err(failure) => (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{}\n", failure.message)),
            },
            // Always live: the kernel keeps enforcing without this process.
            "/livez" => probes::probe(true, ""),
            "/readyz" => probes::probe(self.lock().is_ready(), "no policy is in force, or it is too old"),
            _ => (StatusCode::NOT_FOUND, "text/plain", "not found: use /metrics, /livez or /readyz\n".to_owned()),
        };
        let response = Response::builder().status(status).header(CONTENT_TYPE, kind).body(Full::new(Bytes::from(body)));
        response.expect("a known status and a valid header")
    }
}

/// Reads the table's counters. Empty if the table does not exist.
async fn counters() -> Result<Vec<Counter>, Failure> {
    let read = tokio::task::spawn_blocking(kernel::counters).await;
    match read.context("the task that runs nft panicked").and_then(|read| read) {
        Ok(counters) => Ok(counters.unwrap_or_default()),
        Err(error) => Err(Failure::new("no_answer", format!("{error:#}"), "ask again")),
    }
}

/// Starts to serve the admin socket and the metrics.
///
/// # Errors
/// If the metrics address cannot be bound, or the thread cannot be started.
pub(super) fn start(
    config: &AdminConfig,
    told: Arc<Mutex<Told>>,
    look: Sender<()>,
    names: Names,
) -> anyhow::Result<Handle> {
    let socket = config.socket.as_deref().and_then(Listener::bind);
    let listener = config.listen.map(probes::listen).transpose()?;
    let answers = Answers { told, look, names };
    let begin = move || {
        if let Some(socket) = socket {
            let answers = answers.clone();
            tokio::spawn(socket::serve(socket, move |request| {
                let answers = answers.clone();
                async move { answers.answer(request).await.map(socket::Reply::Value) }
            }));
        }
        if let Some(listener) = listener.and_then(|listener| tokio::net::TcpListener::from_std(listener).ok()) {
            let connections = Connections::new(probes::CONNECTIONS);
            let answer = move |request| answers.clone().answer_http(request);
            tokio::spawn(http::serve(listener, connections, probes::CONVERSATION, answer));
        }
    };
    // One thread runs nft; concurrent requests wait.
    Ok(Handle::start(1, ENDING, begin)?)
}
