//! The server that Hubble's clients read: `hubble observe`, its relay and its user interface.
//!
//! ```text
//!   client --HTTP/2, gRPC--> [ connection: service ] --Observe--> stream thread ([`super::stream`])
//!                                      ^                             |  selects by the filters
//!                                      `------- bounded queue -------'  full: counted, and told as lost
//! ```
//!
//! What a client is told is what `bulkhead monitor` prints: both come of one message. With a server the stream thread watches from the
//! start, as `hubble observe` asks for the past first; so the server is off unless the configuration names its address.
//!
//! Requests are read strictly ([`crate::hubble::fields`]), their filters are about the message that would be sent ([`filter`]).
//!
//! tonic speaks gRPC here and hyper HTTP/2, without tonic's own server: connections are accepted, bounded and ended as those of the admin
//! socket are, by the thread that has these. The messages are written by hand, because a compiler for them is a program that not everybody
//! who builds this has.
//!
//! **Invariant.** No client keeps anybody waiting: neither the stream thread, nor the workers, nor another client.

mod filter;
mod labels;
mod observe;
mod service;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method as Verb, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService};

use super::admin::connections::{Connections, Limits, Place, Stage};
use super::admin::{probes, socket};
use super::config::HubbleConfig;
use super::observer::Observer;
use super::stream::Hub;
use crate::hubble::codec::Raw;
pub(super) use observe::{Observe, Observed};
use service::{Answers, Method, Service};

/// Connections at a time: a few people's and a relay's. Those that watch stay, and the oldest of the others makes room for a new one.
const CONNECTIONS: Limits = Limits { new: 32, asking: 1, changing: 1, watching: 32, answered: 1 };

/// Calls of one connection at a time. A relay has one for each of its clients.
const CALLS: u32 = 32;

/// Bytes of a request: a thousand values of filters.
const LONGEST: usize = 1 << 18;

/// Bytes of the head of a request.
const LONGEST_HEAD: u32 = 1 << 14;

/// Bytes that wait for a call's reader besides what is in its queue: some hundred flows.
const BUFFER: usize = 1 << 16;

/// How often a client that says nothing is asked whether it is there, and how long it has for its answer. A client that is dead and has
/// not said so is noticed after both.
const ASKED_EVERY: Duration = Duration::from_secs(20);

/// Where clients connect.
pub(super) enum Endpoint {
    Unix(socket::Listener),
    Tcp(TcpListener),
}

impl Endpoint {
    /// Takes the place that the configuration names; none where it names none. A socket that cannot be had is said only, as with the
    /// admin socket.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub(super) fn bind(config: &HubbleConfig) -> anyhow::Result<Option<Self>> {
        match config {
            HubbleConfig::Off => Ok(None),
            HubbleConfig::Unix(path) => {
                let listener = socket::Listener::bind_as(path, "Hubble socket", "hubble: {listen: 'unix://PATH'}");
                Ok(listener.map(Self::Unix))
            }
            HubbleConfig::Tcp(address) => {
                let listener = probes::bind(*address);
                listener.with_context(|| format!("hubble.listen: cannot listen at {address}")).map(Self::Tcp).map(Some)
            }
        }
    }
}

/// Where clients are told that the server is, so that a relay finds it.
enum Address {
    Unix(String),
    Tcp(SocketAddr),
}

impl Address {
    /// `own` are the node's addresses.
    fn told(&self, own: &[IpAddr]) -> String {
        match self {
            Self::Unix(path) => path.clone(),
            Self::Tcp(listen) => reachable(*listen, own).to_string(),
        }
    }
}

/// Where others reach an address: one that stands for all of them is told as one of the node's own.
fn reachable(listen: SocketAddr, own: &[IpAddr]) -> SocketAddr {
    let address = own.iter().find(|own| listen.ip().is_unspecified() && (listen.is_ipv6() || own.is_ipv4()));
    SocketAddr::new(address.copied().unwrap_or(listen.ip()), listen.port())
}

/// Answers until it is dropped.
pub(super) async fn serve(endpoint: Endpoint, observer: Observer, hub: Hub) {
    let connections = Connections::new(CONNECTIONS);
    match endpoint {
        Endpoint::Unix(listener) => {
            let service =
                Arc::new(Service::new(observer, hub, Address::Unix(format!("unix://{}", listener.path().display()))));
            let Some(accepting) = listener.accepting("the Hubble socket") else { return };
            loop {
                match accepting.accept().await {
                    Ok((stream, _)) => take(&connections, stream, &service),
                    Err(_) => pause().await,
                }
            }
        }
        Endpoint::Tcp(listener) => {
            let Ok(address) = listener.local_addr() else { return };
            let service = Arc::new(Service::new(observer, hub, Address::Tcp(address)));
            let accepting = match tokio::net::TcpListener::from_std(listener) {
                Ok(accepting) => accepting,
                Err(error) => return super::log::error(&format!("Hubble's clients cannot be served: {error}")),
            };
            loop {
                match accepting.accept().await {
                    Ok((stream, _)) => take(&connections, stream, &service),
                    Err(_) => pause().await,
                }
            }
        }
    }
}

/// Out of descriptors, for one: no reason to burn a core.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

fn take(
    connections: &Connections,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    service: &Arc<Service>,
) {
    let service = Arc::clone(service);
    connections.serve(|place| async move {
        let place = Arc::new(place);
        let answer = move |request| {
            let (service, place) = (Arc::clone(&service), Arc::clone(&place));
            async move { Ok::<_, Infallible>(answer(request, service, &place).await) }
        };
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .keep_alive_interval(ASKED_EVERY)
            .keep_alive_timeout(ASKED_EVERY)
            .max_concurrent_streams(CALLS)
            .max_header_list_size(LONGEST_HEAD)
            .max_send_buf_size(BUFFER);
        // What goes wrong with a client is the client's.
        let _ = http.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
    });
}

async fn answer(request: Request<Incoming>, service: Arc<Service>, place: &Place) -> Response<Body> {
    // "application/grpc", with "+proto" or without; others are no gRPC.
    let kind = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if request.method() != Verb::POST || !kind.starts_with(b"application/grpc") {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    }
    let Some(method) = Method::of(request.uri().path()) else {
        return Status::unimplemented("no such method").into_http();
    };
    if method.lasts() && !place.enter(Stage::Watching) {
        return Status::resource_exhausted("too many clients watch; end one of them").into_http();
    }
    // A single answer is a stream of one: on the wire there is no difference.
    Grpc::new(Raw).max_decoding_message_size(LONGEST).server_streaming(Call { service, method }, request).await
}

/// One request, as tonic wants it.
struct Call {
    service: Arc<Service>,
    method: Method,
}

impl ServerStreamingService<Bytes> for Call {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<Answers>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let (service, method) = (Arc::clone(&self.service), self.method);
        Box::pin(async move { service.answer(method, request.get_ref()).await.map(tonic::Response::new) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_is_told_is_one_that_others_reach() {
        let own = ["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        let told = |listen: &str, own: &[IpAddr]| reachable(listen.parse().unwrap(), own).to_string();
        assert_eq!(told("0.0.0.0:4244", &own), "192.0.2.1:4244");
        assert_eq!(told("[::]:4244", &own), "192.0.2.1:4244");
        assert_eq!(told("[::]:4244", &own[1..]), "[2001:db8::1]:4244");
        assert_eq!(told("127.0.0.1:4244", &own), "127.0.0.1:4244");
        assert_eq!(told("0.0.0.0:4244", &[]), "0.0.0.0:4244");
    }
}
