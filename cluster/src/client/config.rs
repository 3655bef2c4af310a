//! What a client has to know: which server, whom it trusts, and who asks.

use std::time::{Duration, SystemTime};

use hyper::Uri;
use hyper::header::HeaderMap;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::credential::Authorization;
use super::unusable::Unusable;

/// How long before its end an identity is renewed: longer than a request and clocks that differ take.
const BEFORE_END: Duration = Duration::from_secs(60);

/// See the module. It has secrets, and so no `Debug`.
pub(crate) struct Config {
    /// The server's URL, without a slash at its end.
    pub(super) server: String,
    /// The name that the server's certificate has to be for; `None` for the host of the URL.
    pub(super) server_name: Option<ServerName<'static>>,
    /// Whom the server's certificate has to be of, and the client's own.
    pub(super) tls: ClientConfig,
    pub(super) authorization: Authorization,
    /// Whom the requests are made for, where that is somebody else.
    pub(super) impersonation: HeaderMap,
    /// When what says who asks is out of date; `None` if that is not known.
    pub(super) end: Option<SystemTime>,
}

impl Config {
    /// Whether it is to be read again, since what says who asks is out of date, or soon is.
    pub(super) fn is_ending(end: Option<SystemTime>) -> bool {
        end.is_some_and(|end| SystemTime::now() + BEFORE_END >= end)
    }
}

/// A server's URL as a client needs it.
pub(super) fn server(text: &str) -> Result<String, Unusable> {
    // As `kubectl` reads `localhost:8080`.
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let wrong = || {
        let help = "write for example `server: https://192.0.2.1:6443`";
        Unusable::with_help(format!("{text:?} is no http or https URL"), help)
    };
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let is_known =
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty());
    if !is_known || uri.query().is_some() {
        return Err(wrong());
    }
    Ok(url.trim_end_matches('/').to_owned())
}
