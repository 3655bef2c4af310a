//! How a server is reached: as a pod of its cluster, or by a kubeconfig.

use std::path::{Path, PathBuf};

use hyper::header::HeaderMap;

use super::config::{Config, server};
use super::credential::{Authorization, TokenFile};
use super::kubeconfig;
use super::tls::{self, Roots};
use super::unusable::{Unusable, contents};

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

/// Reads the configuration, and runs the user's exec plugin if it has one: up to a minute.
///
/// # Errors
/// What is wrong, with the remedy.
pub(crate) fn read(access: &Access) -> Result<Config, String> {
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
