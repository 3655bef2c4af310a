//! HTTP requests and answers.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;

use super::config::Config;
use super::credential::Authorization;
use crate::errors::{bounded, chain};

/// Longest line of a watch, in bytes: several times etcd's limit of an object (1.5 MiB).
const MAX_LINE: usize = 16 << 20;

/// Bytes read of an error's body. A `Status` is shorter; a proxy's error page is not useful.
const MAX_ERROR: usize = 64 << 10;

/// Repetitions of a request to a server that is busy or starting.
const TRIES: u32 = 3;

/// Pause before the first repetition unless the server sends `Retry-After`. Doubles with each repetition.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Longest pause before a repetition. Servers ask for one second.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Error {
    /// The server answered with an error.
    Status {
        /// HTTP status code.
        code: u16,
        /// The server's message, truncated.
        message: String,
    },
    /// No complete answer arrived. The text says why.
    Lost(String),
}

/// A client of one server. Clones share their connections.
#[derive(Clone)]
pub(crate) struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    http: legacy::Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    server: String,
    authorization: Authorization,
    impersonation: HeaderMap,
    end: Option<SystemTime>,
}

impl Client {
    /// Creates a client. `patience` is the timeout of a TCP connection.
    pub(crate) fn new(config: Config, patience: Duration) -> Self {
        let Config { server, server_name, tls, authorization, impersonation, end } = config;
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(patience));
        tcp.set_nodelay(true);
        let tls = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let tls = match server_name {
            Some(name) => tls.with_server_name_resolver(FixedServerNameResolver::new(name)),
            None => tls,
        };
        let http = legacy::Client::builder(TokioExecutor::new()).build(tls.enable_http1().wrap_connector(tcp));
        Self { inner: Arc::new(Inner { http, server, authorization, impersonation, end }) }
    }

    /// Whether the credential has expired or expires soon, so that a new client is needed.
    pub(crate) fn is_ending(&self) -> bool {
        Config::is_ending(self.inner.end)
    }

    /// Sends a GET request and returns the whole body of the answer.
    pub(crate) async fn text(&self, path: &str) -> Result<String, Error> {
        let body = self.send(path).await?.into_body().collect().await.map_err(|error| broken(&error))?;
        let text = String::from_utf8(body.to_bytes().into());
        text.map_err(|_| Error::Lost("the server's answer is not UTF-8 text".to_owned()))
    }

    /// Sends a GET request and returns the answer as a stream of lines, for a watch.
    pub(crate) async fn lines(&self, path: &str) -> Result<Lines, Error> {
        Ok(Lines { body: self.send(path).await?.into_body(), rest: Bytes::new() })
    }

    async fn send(&self, path: &str) -> Result<Response<Incoming>, Error> {
        let mut tried = 0;
        loop {
            let answer = self.once(path).await?;
            let Some(pause) = pause(&answer, tried) else { return successful(answer).await };
            tokio::time::sleep(pause).await;
            tried += 1;
        }
    }

    async fn once(&self, path: &str) -> Result<Response<Incoming>, Error> {
        let Inner { http, server, authorization, impersonation, .. } = &*self.inner;
        let mut request = Request::new(Empty::new());
        let uri = format!("{server}{path}").parse();
        *request.uri_mut() = uri.map_err(|error| Error::Lost(format!("{server}{path} is not a valid URL: {error}")))?;
        let headers = request.headers_mut();
        *headers = impersonation.clone();
        headers.insert(ACCEPT, "application/json".parse().expect("it is a value"));
        // Without compression: it would delay events until a block is full.
        headers.insert(ACCEPT_ENCODING, "identity".parse().expect("it is a value"));
        match authorization {
            Authorization::None => None,
            Authorization::Fixed(value) => headers.insert(AUTHORIZATION, value.clone()),
            Authorization::File(file) => headers.insert(AUTHORIZATION, file.header()),
        };
        http.request(request).await.map_err(|error| Error::Lost(format!("{server}: {}", chain(&error))))
    }
}

/// Returns how long to wait before the request is repeated. `None` if the answer is final.
fn pause<B>(answer: &Response<B>, tried: u32) -> Option<Duration> {
    let is_busy = matches!(
        answer.status(),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    );
    let asked = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let pause = asked.map_or(FIRST_PAUSE * 2_u32.pow(tried), Duration::from_secs);
    (is_busy && tried < TRIES).then(|| pause.min(LONGEST_PAUSE))
}

/// The field of a Kubernetes `Status` that error messages show.
#[derive(Deserialize)]
struct Status {
    message: String,
}

async fn successful(answer: Response<Incoming>) -> Result<Response<Incoming>, Error> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    // If the body cannot be read, the status code alone is the error.
    let body =
        Limited::new(answer.into_body(), MAX_ERROR).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let message = match serde_json::from_slice(&body) {
        Ok(Status { message }) => message,
        Err(_) => String::from_utf8_lossy(&body).trim().to_owned(),
    };
    Err(Error::Status { code: status.as_u16(), message: bounded(&message) })
}

fn broken(error: &hyper::Error) -> Error {
    Error::Lost(format!("the connection broke: {}", chain(error)))
}

/// A streaming answer, read line by line.
pub(crate) struct Lines {
    body: Incoming,
    /// Received bytes of later lines.
    rest: Bytes,
}

impl Lines {
    /// Reads a line, without its line break, into `line`. Returns false at the end of the answer; an incomplete last line is discarded.
    ///
    /// # Errors
    /// [`Error::Lost`] if the connection breaks or the line exceeds [`MAX_LINE`].
    pub(crate) async fn next(&mut self, line: &mut Vec<u8>) -> Result<bool, Error> {
        line.clear();
        loop {
            if let Some(at) = self.rest.iter().position(|&byte| byte == b'\n') {
                line.extend_from_slice(&self.rest.split_to(at));
                drop(self.rest.split_to(1));
                return Ok(true);
            }
            line.extend_from_slice(&std::mem::take(&mut self.rest));
            if line.len() > MAX_LINE {
                return Err(Error::Lost(
                    "the connection was closed: the server sent a line of more than 16 MiB".to_owned(),
                ));
            }
            match self.body.frame().await {
                None => return Ok(false),
                Some(Err(error)) => return Err(broken(&error)),
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
            }
        }
    }
}
