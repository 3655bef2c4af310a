//! The configuration of a client: server, trusted authorities and credentials.

use std::time::{Duration, SystemTime};

use hyper::Uri;
use hyper::header::HeaderMap;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::credential::Authorization;
use super::unusable::Unusable;

/// How long before a credential expires it is renewed. Covers the time of a request and clock skew.
const BEFORE_END: Duration = Duration::from_secs(60);

/// A client's configuration. It contains secrets and so has no `Debug`.
pub(crate) struct Config {
    /// The server's URL, without a trailing slash.
    pub(super) server: String,
    /// The name to verify in the server's certificate. `None` for the URL's host.
    pub(super) server_name: Option<ServerName<'static>>,
    /// Trusted authorities, and the client's certificate.
    pub(super) tls: ClientConfig,
    pub(super) authorization: Authorization,
    /// Headers for user impersonation, sent with each request. Empty if the kubeconfig names no user to impersonate.
    pub(super) impersonation: HeaderMap,
    /// When the client's credential expires. `None` if unknown.
    pub(super) end: Option<SystemTime>,
}

impl Config {
    /// Whether a credential has expired or expires within [`BEFORE_END`]. False if its expiry is unknown.
    pub(super) fn is_ending(end: Option<SystemTime>) -> bool {
        end.is_some_and(|end| SystemTime::now() + BEFORE_END >= end)
    }
}

/// Checks a server's URL. Returns it with a scheme and without a trailing slash.
pub(super) fn server(text: &str) -> Result<String, Unusable> {
    // Without a scheme it is http, as in `kubectl`.
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let wrong = || {
        let help = "write a URL such as `server: https://192.0.2.1:6443`";
        Unusable::with_help(format!("{text:?} is not an http or https URL"), help)
    };
    let uri: Uri = url.parse().map_err(|_| wrong())?;
    let is_known =
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty());
    if !is_known || uri.query().is_some() {
        return Err(wrong());
    }
    Ok(url.trim_end_matches('/').to_owned())
}
