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
//! Requests are read strictly ([`bulkhead_observe::hubble::fields`]), their filters are about the message that would be sent ([`filter`]).
//!
//! Over TCP clients are served with TLS, unless the configuration says plaintext ([`tls`]); a relay is told of all nodes ([`peers`]).
//!
//! hyper speaks HTTP/2, and [`grpc`] has what gRPC adds. A library's server lost: here connections are accepted, bounded and ended as those
//! of the admin socket are, by the thread that has these. The messages are written by hand, because a compiler for them is a program that not
//! everybody who builds this has.
//!
//! **Invariant.** No client keeps anybody waiting: neither the stream thread, nor the workers, nor another client.

mod filter;
mod grpc;
mod labels;
mod observe;
mod peers;
mod service;
pub(super) mod tls;

use std::convert::Infallible;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
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

/// Connections at a time: a few people's and a relay's. Those that watch stay, and the oldest of the others makes room for a new one. With
/// TLS a connection is new until its handshake is over, and answered then: whoever opens many and says nothing ends none but those.
const CONNECTIONS: Limits = Limits { new: 32, asking: 1, changing: 1, watching: 32, answered: 32 };

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
pub(super) struct Endpoint {
    place: Taken,
    nodes: watch::Receiver<Arc<Nodes>>,
}

enum Taken {
    Unix(Listener),
    Tcp(TcpListener, Option<Tls>),
}

impl Endpoint {
    /// Takes the place that the configuration names; none where it names none. A socket that cannot be had is said only, as with the
    /// admin socket. A relay is told of the nodes of this state.
    ///
    /// # Errors
    /// When the address cannot be had, or something is wrong with the files of TLS.
    pub(super) fn bind(config: &HubbleConfig, state: &LiveState) -> anyhow::Result<Option<Self>> {
        let place = match config {
            HubbleConfig::Off => None,
            HubbleConfig::Unix(path) => {
                let listener = Listener::bind_as(path, "Hubble socket", "hubble: {listen: 'unix://PATH'}");
                listener.map(Taken::Unix)
            }
            HubbleConfig::Tcp(address, files) => {
                let tls = files.as_ref().map(Tls::new).transpose()?;
                let listener = listener::bind(*address);
                let listener = listener.with_context(|| format!("hubble.listen: cannot listen at {address}"))?;
                Some(Taken::Tcp(listener, tls))
            }
        };
        Ok(place.map(|place| Self { place, nodes: state.nodes() }))
    }
}

/// Answers until it is dropped.
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
            let service = service(Address::Tcp(address), tls.as_ref().map(Tls::cluster));
            let accepting = match tokio::net::TcpListener::from_std(listener) {
                Ok(accepting) => accepting,
                Err(error) => return super::log::error(&format!("cannot serve Hubble clients: {error}")),
            };
            let acceptor = tls.as_ref().map(Tls::acceptor);
            if let Some(tls) = tls {
                tokio::spawn(tls.follow());
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

/// Out of descriptors, for one: no reason to burn a core.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn converse_over_tcp(stream: TcpStream, service: Arc<Service>, place: Place, acceptor: Option<Acceptor>) {
    // An error: the client has gone already.
    let (Ok(called), Ok(client)) = (stream.local_addr(), stream.peer_addr()) else { return };
    let called = Some(called.ip());
    let Some(acceptor) = acceptor else { return converse(stream, service, place, called).await };
    if let Some(stream) = acceptor.accept(stream, client).await {
        place.enter(Stage::Answered);
        converse(stream, service, place, called).await;
    }
}

/// Answers a client until it goes. `called` is the address that it has called.
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
    // What goes wrong with a client is the client's.
    let _ = http.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
}

async fn answer(
    request: Request<Incoming>,
    service: Arc<Service>,
    place: &Place,
    called: Option<IpAddr>,
) -> Response<Messages> {
    // "application/grpc", with "+proto" or without; others are no gRPC.
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
        // A single answer is a stream of one: on the wire there is no difference.
        let message = grpc::message(request, LONGEST).await?;
        service.answer(method, &message, called).await
    };
    grpc::respond(answers.await)
}
