//! What a client has to know: which server, whom it trusts, and who asks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hyper::Uri;
use hyper::header::{HeaderMap, HeaderValue};
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::kubeconfig;
use super::tls::{self, Identity, Roots};

/// How the server is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// The access that Kubernetes gives each pod: environment, token and certificate of its service account.
    #[default]
    InCluster,
    /// By a file as `kubectl` has it.
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The context; `None` for the file's own choice.
        context: Option<String>,
    },
}

/// Where a kubelet mounts a pod's service account. Source: Kubernetes, "Accessing the Kubernetes API from a Pod".
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// After how long a file with a token is read again. Kubelets renew it at four fifths of its life, which is ten minutes or more: to read it
/// within a minute is what Kubernetes asks of clients.
const REREAD: Duration = Duration::from_secs(50);

/// How long before its end an identity is renewed: longer than a request and clocks that differ take.
const BEFORE_END: Duration = Duration::from_secs(60);

/// What is wrong with a configuration, and the remedy unless it is the general one.
#[derive(Debug)]
pub(super) struct Unusable {
    pub(super) problem: String,
    pub(super) help: Option<String>,
}

impl Unusable {
    pub(super) fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), help: None }
    }

    pub(super) fn with_help(problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self { problem: problem.into(), help: Some(help.into()) }
    }

    /// The same, of a part of the configuration.
    pub(super) fn of(self, part: &str) -> Self {
        Self { problem: format!("{part}: {}", self.problem), ..self }
    }
}

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

/// What says who asks.
pub(super) struct Credential {
    pub(super) authorization: Authorization,
    /// The client's certificate.
    pub(super) identity: Option<Identity>,
    /// When it is out of date; `None` if that is not known.
    pub(super) end: Option<SystemTime>,
}

/// What the header of this name is.
pub(super) enum Authorization {
    /// There is none: a certificate says who asks, or nothing does.
    None,
    Fixed(HeaderValue),
    File(TokenFile),
}

impl Config {
    /// Reads the configuration, and runs the user's exec plugin if it has one: up to a minute.
    ///
    /// # Errors
    /// What is wrong, with the remedy.
    pub(crate) fn read(access: &Access) -> Result<Self, String> {
        let (read, prefix, general) = match access {
            Access::InCluster => (
                in_cluster(|name| std::env::var(name).ok(), Path::new(ACCOUNT)),
                "this is not a pod of a cluster".to_owned(),
                "run it as a pod with a service account, or name a file in state.kubernetes.kubeconfig",
            ),
            Access::Kubeconfig { path, context } => (
                kubeconfig::read(path, context.as_deref()),
                format!("{} cannot be used", path.display()),
                "name a file that `kubectl --kubeconfig` can use",
            ),
        };
        read.map_err(|Unusable { problem, help }| {
            format!("{prefix}: {problem}\n  help: {}", help.as_deref().unwrap_or(general))
        })
    }

    /// Whether it is to be read again, since what says who asks is out of date, or soon is.
    pub(super) fn is_ending(end: Option<SystemTime>) -> bool {
        end.is_some_and(|end| SystemTime::now() + BEFORE_END >= end)
    }
}

/// The access of a pod. `variable` looks up the environment, `account` is the folder of the service account.
pub(super) fn in_cluster(variable: impl Fn(&str) -> Option<String>, account: &Path) -> Result<Config, Unusable> {
    let set = |name: &str| variable(name).ok_or_else(|| Unusable::new(format!("{name} is not set")));
    let (host, port) = (set("KUBERNETES_SERVICE_HOST")?, set("KUBERNETES_SERVICE_PORT")?);
    let port: u16 =
        port.parse().map_err(|_| Unusable::new(format!("KUBERNETES_SERVICE_PORT is {port:?}, which is no port")))?;
    let host = match host.parse() {
        Ok(std::net::IpAddr::V6(address)) => format!("[{address}]"),
        _ => host,
    };
    let authority = account.join("ca.crt");
    let roots = Roots::from_pem(&contents(&authority)?).map_err(|error| error.of(&authority.display().to_string()))?;
    Ok(Config {
        server: server(&format!("https://{host}:{port}"))?,
        server_name: None,
        tls: tls::config(roots, None)?,
        authorization: Authorization::File(TokenFile::read(account.join("token"))?),
        impersonation: HeaderMap::new(),
        end: None,
    })
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

/// What is in a file.
pub(super) fn contents(path: &Path) -> Result<Vec<u8>, Unusable> {
    fs::read(path).map_err(|error| Unusable::new(format!("{} cannot be read: {error}", path.display())))
}

/// `Authorization: Bearer TOKEN`.
pub(super) fn bearer(token: &str) -> Result<HeaderValue, Unusable> {
    sensitive(&format!("Bearer {}", token.trim()))
        .ok_or_else(|| Unusable::new("it has characters that no token has, such as a line's end"))
}

/// A header that no log shows; `None` if it has characters that no header has.
pub(super) fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A file with a token that is renewed from time to time.
pub(super) struct TokenFile {
    path: PathBuf,
    last: Mutex<(HeaderValue, Instant)>,
}

impl TokenFile {
    pub(super) fn read(path: PathBuf) -> Result<Self, Unusable> {
        let last = Mutex::new((header(&path)?, Instant::now()));
        Ok(Self { path, last })
    }

    /// The header with the token. A token that cannot be read any more is used on: a server says when it is out of date.
    pub(super) fn header(&self) -> HeaderValue {
        self.header_after(REREAD)
    }

    /// The same, read again if it was read this long ago.
    pub(super) fn header_after(&self, reread: Duration) -> HeaderValue {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.1.elapsed() >= reread {
            let header = header(&self.path).unwrap_or_else(|_| last.0.clone());
            *last = (header, Instant::now());
        }
        last.0.clone()
    }
}

fn header(path: &Path) -> Result<HeaderValue, Unusable> {
    let part = path.display().to_string();
    let text = String::from_utf8(contents(path)?).map_err(|_| Unusable::new("it is no text").of(&part))?;
    if text.trim().is_empty() {
        return Err(Unusable::new("it is empty").of(&part));
    }
    bearer(&text).map_err(|error| error.of(&part))
}
