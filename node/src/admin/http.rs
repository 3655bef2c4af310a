//! HTTP over TCP: connections that are bounded in number and time, each of whose requests one function answers.

use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::Connections;

/// How long a client may take for the head of its request.
const HEAD: Duration = Duration::from_secs(5);

/// An answer.
pub(crate) type Answer = Response<Full<Bytes>>;

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conversation {
    /// How long it may last, whoever is slow.
    pub lasting: Duration,
    /// Whether it has one request only.
    pub is_single: bool,
}

/// Answers until it is dropped. Listeners may share their connections' number.
pub(crate) async fn serve<A>(
    listener: TcpListener,
    connections: Connections,
    conversation: Conversation,
    answer: impl Fn(Request<Incoming>) -> A + Clone + Send + 'static,
) where
    A: Future<Output = Answer> + Send + 'static,
{
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, for one: no reason to burn a core.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let answer = answer.clone();
        connections.serve(|_| async move {
            let answer = move |request| {
                let answer = answer(request);
                async { Ok::<_, std::convert::Infallible>(answer.await) }
            };
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD).keep_alive(!conversation.is_single);
            let served = server.serve_connection(TokioIo::new(stream), service_fn(answer));
            // What goes wrong with a client is the client's.
            let _ = timeout(conversation.lasting, served).await;
        });
    }
}
