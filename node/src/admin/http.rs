//! Serves HTTP/1 over TCP: limits the connections' number and time, and answers each request with one function.

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

/// How long a client may take to send its request head.
const HEAD: Duration = Duration::from_secs(5);

/// A complete HTTP response.
pub(crate) type Answer = Response<Full<Bytes>>;

/// Limits of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conversation {
    /// Maximum duration of the connection.
    pub lasting: Duration,
    /// Whether the connection closes after one request.
    pub is_single: bool,
}

/// Serves requests until the future is dropped. Listeners that share `connections` share their limit.
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
            // For example, the process has no descriptors left. Avoids a busy loop.
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
            // A client's errors concern only that client.
            let _ = timeout(conversation.lasting, served).await;
        });
    }
}
