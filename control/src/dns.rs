//! Finds the cluster's DNS servers. Pods learn the addresses of domain names only from answers of trusted servers such as these.
//!
//! Source: Kubernetes, "DNS for Services and Pods": the Service `kube-dns` in `kube-system`, whose pods have the label `k8s-app: kube-dns`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::cache::Cache;
use crate::service::{Owner, Resolver, VipKind};

const NAMESPACE: &str = "kube-system";
const SERVICE: &str = "kube-dns";
const LABEL: &str = "k8s-app";

/// Returns the addresses of the cluster's DNS pods: those in `kube-system` with the label, which have not finished. Pods of other
/// namespaces do not count, because any user may set labels.
pub fn pods(cache: &Cache) -> BTreeSet<IpAddr> {
    let is_server = |name: &str, label: Option<&str>| name == NAMESPACE && label == Some(SERVICE);
    let pods = cache.pods().map(|(_, pod)| pod);
    let servers = pods.filter(|pod| {
        let label = pod.labels.get(LABEL).map(|label| &**label);
        !pod.finished && is_server(&pod.name.namespace, label)
    });
    servers.flat_map(|pod| pod.addresses.iter().copied()).collect()
}

/// Returns the cluster addresses of the cluster's DNS Service and the addresses of its backends. Empty without the Service. The cluster
/// addresses count for packets that the vswitch does not translate.
pub fn of_service(resolver: &Resolver) -> BTreeSet<IpAddr> {
    let is_dns = |owner: &Owner| match owner {
        Owner::Service(service) => &*service.namespace == NAMESPACE && &*service.name == SERVICE,
        Owner::Pod(_) => false,
    };
    let ports = resolver.ports().map(|(_, port)| port).filter(|port| is_dns(&port.name.owner));
    ports
        .flat_map(|port| {
            let backends = port.backends().iter().map(|&id| resolver.backend(id).address);
            let cluster = port.vips().iter().filter(|(_, kind)| *kind == VipKind::ClusterIp);
            backends.chain(cluster.map(|(vip, _)| vip.address))
        })
        .collect()
}
