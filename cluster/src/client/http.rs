//! Requests and their answers.

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

/// The longest line of a watch: several times what etcd keeps of one object (1.5 MiB).
const MAX_LINE: usize = 16 << 20;

/// How much of an answer that is an error is read: a `Status` has less, and an error page is no message.
const MAX_ERROR: usize = 64 << 10;

/// How often a request is sent again to a server that is busy or has just started, before that is an error.
const TRIES: u32 = 3;

/// How long after its first answer such a server is asked again unless it says itself; doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest such pause. Servers ask for one second.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What a request came to that did not succeed.
#[derive(Debug)]
pub(crate) enum Error {
    /// The server's answer.
    Status {
        /// As HTTP has it.
        code: u16,
        /// What the server says.
        message: String,
    },
    /// No answer, or half of one.
    Lost(String),
}

/// See the module. Copies share their connections.
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
    /// A client that waits this long for a connection.
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

    /// Whether another one is to be made, since what says who asks is out of date, or soon is.
    pub(crate) fn is_ending(&self) -> bool {
        Config::is_ending(self.inner.end)
    }

    /// The whole answer.
    pub(crate) async fn text(&self, path: &str) -> Result<String, Error> {
        let body = self.send(path).await?.into_body().collect().await.map_err(|error| broken(&error))?;
        let text = String::from_utf8(body.to_bytes().into());
        text.map_err(|_| Error::Lost("the server's answer is no text".to_owned()))
    }

    /// An answer that goes on, line by line.
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
        *request.uri_mut() = uri.map_err(|error| Error::Lost(format!("{server}{path} is no URL: {error}")))?;
        let headers = request.headers_mut();
        *headers = impersonation.clone();
        headers.insert(ACCEPT, "application/json".parse().expect("it is a value"));
        // As it is: of a compressed watch an event comes when a block is full.
        headers.insert(ACCEPT_ENCODING, "identity".parse().expect("it is a value"));
        match authorization {
            Authorization::None => None,
            Authorization::Fixed(value) => headers.insert(AUTHORIZATION, value.clone()),
            Authorization::File(file) => headers.insert(AUTHORIZATION, file.header()),
        };
        http.request(request).await.map_err(|error| Error::Lost(format!("{server}: {}", chain(&error))))
    }
}

/// How long to wait before the request is sent again; `None` if the answer counts.
fn pause<B>(answer: &Response<B>, tried: u32) -> Option<Duration> {
    let is_busy = matches!(
        answer.status(),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    );
    let asked = answer.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let pause = asked.map_or(FIRST_PAUSE * 2_u32.pow(tried), Duration::from_secs);
    (is_busy && tried < TRIES).then(|| pause.min(LONGEST_PAUSE))
}

/// The parts of a Kubernetes `Status` that error messages show.
#[derive(Deserialize)]
struct Status {
    message: String,
}

async fn successful(answer: Response<Incoming>) -> Result<Response<Incoming>, Error> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    // An error whose text does not come is an error all the same.
    let body =
        Limited::new(answer.into_body(), MAX_ERROR).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let message = match serde_json::from_slice(&body) {
        Ok(Status { message }) => message,
        Err(_) => String::from_utf8_lossy(&body).trim().to_owned(),
    };
    Err(Error::Status { code: status.as_u16(), message: bounded(&message) })
}

fn broken(error: &hyper::Error) -> Error {
    Error::Lost(format!("the connection has broken: {}", chain(error)))
}

/// An answer that goes on.
pub(crate) struct Lines {
    body: Incoming,
    /// What has come of later lines.
    rest: Bytes,
}

impl Lines {
    /// Reads a line, without its end, into `line`. Returns whether there was one: what an answer ends with is no line, but the half of one.
    ///
    /// # Errors
    /// When the connection breaks, or the line has no end.
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
                return Err(Error::Lost("the connection has broken: a line without an end".to_owned()));
            }
            match self.body.frame().await {
                None => return Ok(false),
                Some(Err(error)) => return Err(broken(&error)),
                Some(Ok(frame)) => self.rest = frame.into_data().unwrap_or_default(),
            }
        }
    }
}
