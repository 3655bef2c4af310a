//! Answers to health checks, in the format of kube-proxy (kubernetes/kubernetes `pkg/proxy/healthcheck`).

use std::sync::PoisonError;
use std::time::SystemTime;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use serde::Serialize;

use super::super::http::Answer;
use super::Health;
use crate::observer::Observer;

/// The number of ready endpoints on this node. Balancers divide traffic by it.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The JSON body of `/healthz` and `/livez`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProxyBody {
    /// Time as text: now if the node is healthy, else when it last was.
    last_updated: String,
    current_time: String,
    /// Whether the node stays in the cluster. `None` (omitted) for `/livez`.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
}

/// Answers a request at this port. Ignores the method, as balancers use different ones, and at a Service's port also the path.
pub(super) fn answer(path: &str, port: u16, health: &Health, observer: &Observer) -> Answer {
    let is_healthy = health.is_healthy(observer);
    if port == health.address.port() {
        return of_proxy(path, is_healthy, health);
    }
    let Some(check) = health.known.borrow().checks.get(&port).cloned() else {
        return text(StatusCode::NOT_FOUND, "no Service uses this port any more\n");
    };
    let answer = check.answer(is_healthy);
    let mut response = json(answer.status == 200, &answer.body);
    response.headers_mut().insert(WEIGHT, HeaderValue::from(answer.weight));
    response
}

fn of_proxy(path: &str, is_healthy: bool, health: &Health) -> Answer {
    let is_eligible = !health.known.borrow().is_leaving;
    let (is_good, node_eligible) = match path {
        "/healthz" => (is_healthy && is_eligible, Some(is_eligible)),
        "/livez" => (is_healthy, None),
        _ => return text(StatusCode::NOT_FOUND, "this port serves /healthz and /livez\n"),
    };
    let now = SystemTime::now();
    let last = {
        let mut last = health.healthy_at.lock().unwrap_or_else(PoisonError::into_inner);
        if is_healthy {
            *last = now;
        }
        *last
    };
    let [last_updated, current_time] = [last, now].map(|time| humantime::format_rfc3339_millis(time).to_string());
    json(is_good, &ProxyBody { last_updated, current_time, node_eligible })
}

fn json(is_good: bool, body: &impl Serialize) -> Answer {
    let status = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // These types always serialize.
    let body = serde_json::to_vec(body).unwrap_or_default();
    let mut response = plain(status, Bytes::from(body), "application/json");
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn text(status: StatusCode, text: &'static str) -> Answer {
    plain(status, Bytes::from_static(text.as_bytes()), "text/plain")
}

fn plain(status: StatusCode, body: Bytes, kind: &'static str) -> Answer {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
