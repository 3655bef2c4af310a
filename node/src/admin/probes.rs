//! Serves `/metrics`, `/livez` and `/readyz` over HTTP.
//!
//! `/livez` reports whether the forwarding threads run, `/readyz` whether the ports were opened and a policy is in force. Both only read
//! shared state, so a long compilation does not delay them.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Response, StatusCode};

use super::connections::Limits;
use super::http::{self, Answer, Conversation};
use super::{Connections, Shared, metrics};
use crate::listener::bind;
use crate::log;

/// Limits of concurrent connections. Each scraper and each kubelet probe has one.
pub(crate) const CONNECTIONS: Limits = Limits { new: 32, asking: 1, changing: 1, watching: 1, answered: 1 };

/// Limits of a connection: many requests, for five minutes; then a scraper must reconnect.
pub(crate) const CONVERSATION: Conversation = Conversation { lasting: Duration::from_secs(300), is_single: false };

/// The content type of OpenMetrics 1.0.
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Binds `admin.listen`.
///
/// # Errors
/// If the address cannot be bound.
pub(crate) fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    bind(address).with_context(|| format!("admin.listen: cannot listen at {address}"))
}

/// Serves requests until the future is dropped.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return log::error(&format!("cannot serve metrics: {error}")),
    };
    let answer = move |request| answer(request, Arc::clone(&shared));
    http::serve(listener, Connections::new(CONNECTIONS), CONVERSATION, answer).await;
}

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> Answer {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let (status, kind, body) = match request.uri().path() {
        _ if !is_read => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET\n".to_owned()),
        "/metrics" => match metrics::render(&*shared.observe().await) {
            Ok(text) => (StatusCode::OK, OPEN_METRICS, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n")),
        },
        "/livez" => probe(shared.observer.is_alive(), "a worker has ended"),
        "/readyz" => probe(
            shared.observer.is_ready(),
            "ports are being opened, there is no policy to judge by, or it is too old",
        ),
        _ => (StatusCode::NOT_FOUND, "text/plain", "this port serves /metrics, /livez and /readyz\n".to_owned()),
    };
    let response = Response::builder().status(status).header(CONTENT_TYPE, kind).body(Full::new(Bytes::from(body)));
    response.expect("a known status and a valid header")
}

pub(crate) fn probe(holds: bool, else_why: &str) -> (StatusCode, &'static str, String) {
    match holds {
        true => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
        false => (StatusCode::SERVICE_UNAVAILABLE, "text/plain", format!("{else_why}\n")),
    }
}
