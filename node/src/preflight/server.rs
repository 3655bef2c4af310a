//! Checks the vswitch's access to the API server. Does not connect, as the server may be behind this vswitch.

use std::path::Path;

use bulkhead_cluster::kubernetes::Access;
use serde_json::Value;

use super::{Facts, Finding, Severity};
use crate::config::Config;

/// The variables that the kubelet sets in each container.
const VARIABLES: [&str; 2] = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];

/// Where the kubelet mounts the pod's service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The files in [`ACCOUNT`] that the vswitch needs.
const FILES: [&str; 2] = ["token", "ca.crt"];

/// Returns a warning if variables or files for the API server are missing.
pub(crate) fn check(config: &Config) -> Option<Finding> {
    let access = &config.state.kubernetes.as_ref()?.access;
    let is_set = |name: &str| std::env::var_os(name).is_some();
    judge(access, is_set, Path::new(ACCOUNT)).map(|(what, remedy)| Finding {
        // A warning only, as the vswitch waits for the missing files.
        severity: Severity::Warning,
        what,
        why: "without the API server no state is loaded, and pod traffic is denied".to_owned(),
        remedy: remedy.to_owned(),
        comes_again: true,
    })
}

/// Returns a warning if the API server is known only by a cluster address, which only this vswitch would translate.
pub(crate) fn bootstrap(config: &Config, facts: &Facts) -> Option<Finding> {
    let server = config.state.kubernetes.as_ref().filter(|_| config.services.is_some())?;
    let is_alone = matches!(server.access, Access::InCluster) && facts.kube_proxy.is_absent();
    let address = cluster_address(|name| std::env::var(name).ok()).filter(|_| is_alone)?;
    Some(Finding {
        severity: Severity::Warning,
        what: format!("the API server is configured only by its cluster address {address}, and no kube-proxy is seen on this node"),
        why: "the vswitch can translate that address only after it has read the Services from the API server: the first start on a node \
              waits forever, and later starts use the last good state (when_unreachable: last_good)"
            .to_owned(),
        remedy: "write an address of the API server itself into the ConfigMap (api-server-host and api-server-port of deploy/config.yaml), \
                 which become KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT of the container; or set state.kubernetes.kubeconfig"
            .to_owned(),
        comes_again: false,
    })
}

/// Returns the API server's address if it is that of its Service, else `None`. The kubelet sets both variables to the Service's address; an
/// operator who names a server sets only the first.
fn cluster_address(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let address = variable("KUBERNETES_SERVICE_HOST")?;
    let port = variable("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
    (variable(&format!("KUBERNETES_PORT_{port}_TCP_ADDR")).as_ref() == Some(&address)).then_some(address)
}

/// Returns the first problem, with its remedy. `None` if nothing is missing.
fn judge(access: &Access, is_set: impl Fn(&str) -> bool, account: &Path) -> Option<(String, &'static str)> {
    match access {
        Access::InCluster => {
            let variable = VARIABLES.into_iter().find(|name| !is_set(name));
            let what = match variable {
                Some(name) => format!("state.kubernetes: {name} is not set, so this is not a pod of a cluster"),
                None => FILES.into_iter().find_map(|name| unreadable(&account.join(name)))?,
            };
            Some((what, "run it as a pod with a service account, or set state.kubernetes.kubeconfig to a file"))
        }
        Access::Kubeconfig { path, .. } => {
            let remedy = "name a file that `kubectl --kubeconfig` can use";
            unreadable(path).or_else(|| unusable(path)).map(|what| (what, remedy))
        }
    }
}

fn unreadable(path: &Path) -> Option<String> {
    std::fs::read(path).err().map(|error| format!("state.kubernetes: {} cannot be read: {error}", path.display()))
}

/// Returns why the kubeconfig cannot be used. `None` if it lists clusters; connecting reports further errors.
fn unusable(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let read: Result<Value, _> = serde_saphyr::from_str(&text);
    let why = match read {
        Ok(value) if value["clusters"].is_array() => return None,
        Ok(_) => "it lists no clusters".to_owned(),
        Err(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
    };
    Some(format!("state.kubernetes: {} is not a kubeconfig: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_kubeconfig_that_cannot_be_used_is_told_with_its_path_and_the_remedy() {
        let scratch = Scratch::new("preflight-kubeconfig");
        let told = |path: &Path| {
            let access = Access::Kubeconfig { path: path.to_owned(), context: None };
            judge(&access, |_| true, Path::new("/nowhere")).map(|(what, remedy)| {
                assert!(remedy.contains("kubectl") && what.contains(path.to_str().unwrap()), "{what}");
                what
            })
        };
        let file = scratch.path().join("kubeconfig");
        assert!(told(&file).unwrap().contains("cannot be read: No such file"));
        assert!(told(scratch.path()).unwrap().contains("cannot be read: Is a directory"));
        for (text, says) in [("", "no clusters"), ("foo", "no clusters"), ("{", "is not a kubeconfig: ")] {
            std::fs::write(&file, text).unwrap();
            let what = told(&file).unwrap();
            assert!(what.contains(says), "{what}");
        }
        std::fs::write(&file, "{apiVersion: v1, kind: Config, clusters: []}").unwrap();
        assert_eq!(told(&file), None);
    }

    #[test]
    fn the_servers_cluster_address_is_told_from_one_that_somebody_has_named() {
        let told = |host: &str, service: &str| {
            cluster_address(|name| match name {
                "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()),
                "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
                "KUBERNETES_PORT_443_TCP_ADDR" => Some(service.to_owned()),
                _ => None,
            })
        };
        assert_eq!(told("10.96.0.1", "10.96.0.1").as_deref(), Some("10.96.0.1"));
        assert_eq!(told("172.18.0.2", "10.96.0.1"), None);
        assert_eq!(cluster_address(|_| None), None);
    }

    #[test]
    fn what_a_pod_is_told_has_to_be_there() {
        let scratch = Scratch::new("preflight-account");
        let told = |is_set: &dyn Fn(&str) -> bool| judge(&Access::InCluster, is_set, scratch.path());
        let (what, remedy) = told(&|name| name != "KUBERNETES_SERVICE_PORT").unwrap();
        assert!(what.contains("KUBERNETES_SERVICE_PORT is not set") && remedy.contains("service account"), "{what}");
        for name in FILES {
            assert!(told(&|_| true).unwrap().0.contains(name), "{name}");
            std::fs::write(scratch.path().join(name), "x").unwrap();
        }
        assert_eq!(told(&|_| true), None);
    }
}
