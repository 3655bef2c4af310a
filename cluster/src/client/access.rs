//! Access to an API server: as a pod of its cluster, or by a kubeconfig.

use std::path::{Path, PathBuf};

use hyper::header::HeaderMap;

use super::config::{Config, server};
use super::credential::{Authorization, TokenFile};
use super::kubeconfig;
use super::tls::{self, Roots};
use super::unusable::{Unusable, contents};

/// How the client reaches the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// By the service account of the pod: environment variables, token and CA certificate.
    #[default]
    InCluster,
    /// By a kubeconfig file, as `kubectl` reads it.
    Kubeconfig {
        /// Path of the file.
        path: PathBuf,
        /// The context's name. `None` for the file's `current-context`.
        context: Option<String>,
    },
}

/// Folder in which the kubelet mounts a pod's service account. Source: Kubernetes, "Accessing the Kubernetes API from a Pod".
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Reads the configuration. Runs the user's exec plugin if the kubeconfig names one, which may take a minute.
///
/// # Errors
/// The problem and its remedy, as text for the user.
pub(crate) fn read(access: &Access) -> Result<Config, String> {
    let (read, prefix, general) = match access {
        Access::InCluster => (
            in_cluster(|name| std::env::var(name).ok(), Path::new(ACCOUNT)),
            "no service account of a pod was found".to_owned(),
            "run bulkhead as a pod with a service account, or name a kubeconfig file in state.kubernetes.kubeconfig",
        ),
        Access::Kubeconfig { path, context } => (
            kubeconfig::read(path, context.as_deref()),
            format!("{} cannot be used", path.display()),
            "name a kubeconfig file that works with `kubectl --kubeconfig`",
        ),
    };
    read.map_err(|Unusable { problem, help }| {
        format!("{prefix}: {problem}\n  help: {}", help.as_deref().unwrap_or(general))
    })
}

/// Returns a pod's configuration. `variable` looks up the environment; `account` is the service account's folder.
pub(super) fn in_cluster(variable: impl Fn(&str) -> Option<String>, account: &Path) -> Result<Config, Unusable> {
    let set = |name: &str| variable(name).ok_or_else(|| Unusable::new(format!("{name} is not set")));
    let (host, port) = (set("KUBERNETES_SERVICE_HOST")?, set("KUBERNETES_SERVICE_PORT")?);
    let port: u16 =
        port.parse().map_err(|_| Unusable::new(format!("KUBERNETES_SERVICE_PORT is {port:?}, not a port number")))?;
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
