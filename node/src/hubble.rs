//! A gRPC server for Hubble's clients: `hubble observe`, Hubble Relay and Hubble UI.
//!
//! ```text
//!   client --HTTP/2, gRPC--> [ connection: service ] --Observe--> stream thread ([`super::stream`])
//!                                      ^                             |  selects by the filters
//!                                      `------- bounded queue -------'  full: counted, and reported to the client as lost
//! ```
//!
//! A client receives the flows that `bulkhead monitor` prints: one message serves both. If the server is on, the stream thread records
//! flows from the start, because `hubble observe` first requests past flows. The server is off unless the configuration sets its address.
//!
//! A request with an unknown field is refused ([`bulkhead_observe::hubble::fields`]). [`filter`] matches the message that would be sent.
//! Over TCP the server requires TLS unless the configuration selects plaintext ([`tls`]). A relay learns all nodes from [`peers`].
//!
//! hyper implements HTTP/2 and [`grpc`] the rest of gRPC. A gRPC library's server was rejected: the admin thread accepts, limits and ends
//! these connections like those of the admin socket. Message types are written by hand, so that a build needs no `protoc`.
//!
//! **Invariant.** No client blocks the stream thread, the workers or another client.

mod filter;
mod grpc;
mod labels;
mod observe;
mod peers;
mod service;
pub(super) mod tls;
mod validity;

use std::convert::Infallible;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method as Verb, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::admin::connections::{Connections, Limits, Place, Stage};
use super::config::HubbleConfig;
use super::listener::{self, Listener};
use super::observer::Observer;
use super::state::{LiveState, Nodes};
use super::stream::Hub;
use grpc::{Code, Messages, Status};
pub(super) use observe::{Observe, Observed};
use peers::{Address, Peers};
use service::{Method, Service};
use tls::{Acceptor, Tls};

/// Maximum number of connections, by stage: enough for a few people and a relay. Watching connections stay; a new connection evicts the
/// oldest of its own stage. A TLS connection is `new` until its handshake ends, then `answered`, so idle clients evict only each other.
const CONNECTIONS: Limits = Limits { new: 32, asking: 1, changing: 1, watching: 32, answered: 32 };

/// Maximum number of concurrent calls per connection. A relay makes one for each of its clients.
const CALLS: u32 = 32;

/// Maximum size of a request message, in bytes: enough for 1,024 filter values.
const LONGEST: usize = 1 << 18;

/// Maximum size of a request's headers, in bytes.
const LONGEST_HEAD: u32 = 1 << 14;

/// Maximum number of bytes that hyper buffers for a slow client, per call and in addition to its queue: a few hundred flows.
const BUFFER: usize = 1 << 16;

/// Interval of keep-alive pings on an idle connection, and the timeout for each answer. A dead client is detected after both.
const ASKED_EVERY: Duration = Duration::from_secs(20);

/// The server's listening socket, before [`serve`] accepts connections on it.
pub(super) struct Endpoint {
    place: Taken,
    nodes: watch::Receiver<Arc<Nodes>>,
}

enum Taken {
    Unix(Listener),
    Tcp(TcpListener, Option<Box<Tls>>),
}

impl Endpoint {
    /// Binds the configured address. Relays receive the nodes of `state`. `None` if the server is off, or if its Unix socket cannot be
    /// created, which only logs a warning.
    ///
    /// # Errors
    /// If the TCP address cannot be bound, or a TLS file is invalid.
    pub(super) fn bind(config: &HubbleConfig, state: &LiveState) -> anyhow::Result<Option<Self>> {
        let place = match config {
            HubbleConfig::Off => None,
            HubbleConfig::Unix(path) => {
                let listener = Listener::bind_as(path, "Hubble socket", "hubble: {listen: 'unix://PATH'}");
                listener.map(Taken::Unix)
            }
            HubbleConfig::Tcp(address, files) => {
                let tls = files.as_ref().map(Tls::new).transpose()?.map(Box::new);
                let listener = listener::bind(*address);
                let listener = listener.with_context(|| format!("hubble.listen: cannot listen at {address}"))?;
                Some(Taken::Tcp(listener, tls))
            }
        };
        Ok(place.map(|place| Self { place, nodes: state.nodes() }))
    }

    /// Returns the end of the certificate's validity, as [`Tls::end`]. `None` without TLS.
    pub(super) fn certificate_end(&self) -> Option<Arc<AtomicU64>> {
        match &self.place {
            Taken::Tcp(_, tls) => tls.as_ref().map(|tls| tls.end()),
            Taken::Unix(_) => None,
        }
    }
}

/// Serves clients until the future is dropped.
pub(super) async fn serve(endpoint: Endpoint, observer: Observer, hub: Hub) {
    let Endpoint { place, nodes } = endpoint;
    let connections = Connections::new(CONNECTIONS);
    let service = |address, cluster| {
        let peers = Peers::new(observer.node(), address, cluster, nodes);
        Arc::new(Service::new(observer.clone(), hub, peers))
    };
    match place {
        Taken::Unix(listener) => {
            let service = service(Address::Unix(format!("unix://{}", listener.path().display())), None);
            let Some(accepting) = listener.accepting("the Hubble socket") else { return };
            loop {
                match accepting.accept().await {
                    Ok((stream, _)) => {
                        let service = Arc::clone(&service);
                        connections.serve(|place| converse(stream, service, place, None));
                    }
                    Err(_) => pause().await,
                }
            }
        }
        Taken::Tcp(listener, tls) => {
            let Ok(address) = listener.local_addr() else { return };
            let service = service(Address::Tcp(address), tls.as_ref().map(|tls| tls.cluster()));
            let accepting = match tokio::net::TcpListener::from_std(listener) {
                Ok(accepting) => accepting,
                Err(error) => return super::log::error(&format!("cannot serve Hubble clients: {error}")),
            };
            let acceptor = tls.as_ref().map(|tls| tls.acceptor());
            if let Some(Err(error)) = tls.map(|tls| tls.follow()) {
                super::log::error(&format!("hubble.tls: renewed files take effect only after a restart: {error}"));
            }
            loop {
                match accepting.accept().await {
                    Ok((stream, _)) => {
                        let (service, acceptor) = (Arc::clone(&service), acceptor.clone());
                        connections.serve(|place| converse_over_tcp(stream, service, place, acceptor));
                    }
                    Err(_) => pause().await,
                }
            }
        }
    }
}

/// Waits after a failed accept, for example without free file descriptors, to avoid a busy loop.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn converse_over_tcp(stream: TcpStream, service: Arc<Service>, place: Place, acceptor: Option<Acceptor>) {
    // Fails if the client has already disconnected.
    let (Ok(called), Ok(client)) = (stream.local_addr(), stream.peer_addr()) else { return };
    let called = Some(called.ip());
    let Some(acceptor) = acceptor else { return converse(stream, service, place, called).await };
    if let Some(stream) = acceptor.accept(stream, client).await {
        place.enter(Stage::Answered);
        converse(stream, service, place, called).await;
    }
}

/// Serves a client until it disconnects. `called` is this server's address to which it connected.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    service: Arc<Service>,
    place: Place,
    called: Option<IpAddr>,
) {
    let place = Arc::new(place);
    let answer = move |request| {
        let (service, place) = (Arc::clone(&service), Arc::clone(&place));
        async move { Ok::<_, Infallible>(answer(request, service, &place, called).await) }
    };
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .keep_alive_interval(ASKED_EVERY)
        .keep_alive_timeout(ASKED_EVERY)
        .max_concurrent_streams(CALLS)
        .max_header_list_size(LONGEST_HEAD)
        .max_send_buf_size(BUFFER);
    // A connection's error matters only to its client.
    let _ = http.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
}

async fn answer(
    request: Request<Incoming>,
    service: Arc<Service>,
    place: &Place,
    called: Option<IpAddr>,
) -> Response<Messages> {
    // gRPC's content types are `application/grpc` and `application/grpc+proto`.
    let kind = request.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    if request.method() != Verb::POST || !kind.starts_with(b"application/grpc") {
        let mut response = Response::new(Messages::Ended(None));
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    }
    let answers = async {
        let method = Method::of(request.uri().path());
        let method = method.ok_or_else(|| Status::new(Code::Unimplemented, "no such method"))?;
        if method.lasts() && !place.enter(Stage::Watching) {
            return Err(Status::new(Code::ResourceExhausted, "too many clients watch; end one of them"));
        }
        // On the wire, a unary answer equals a stream of one message.
        let message = grpc::message(request, LONGEST).await?;
        service.answer(method, &message, called).await
    };
    grpc::respond(answers.await)
}
