//! Whose DNS answers teach the addresses of the names that rules name.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_classifier::AddressSet;
use bulkhead_control::dns;
use bulkhead_control::pipeline::{AuditTables, Pipeline};
use bulkhead_control::renderer::acl::NodeTables;
use bulkhead_control::service::Resolver;
use bulkhead_dataplane::{Holder, Names, PortConfig};
use ipnet::IpNet;

/// The conventional address of a DNS cache on the node. Source: Kubernetes, "Using NodeLocal DNSCache in Kubernetes Clusters".
const NODE_CACHE: Ipv4Addr = Ipv4Addr::new(169, 254, 20, 10);

/// How pods' DNS answers are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameSettings {
    /// Trusted DNS servers besides the cluster's own.
    pub servers: Vec<IpNet>,
    /// Time for which an address is valid after its TTL. Clients such as JVMs cache addresses longer.
    pub grace: Duration,
}

impl Default for NameSettings {
    fn default() -> Self {
        Self { servers: Vec::new(), grace: Duration::from_secs(30) }
    }
}

/// Whether rules of any of the node's pods name domains.
pub fn has_names(tables: &NodeTables, audit: Option<&AuditTables>) -> bool {
    let audited = audit.into_iter().flat_map(|audit| audit.tables.interfaces.iter());
    tables.interfaces.iter().chain(audited).any(|interface| interface.egress_table.is_some())
}

/// Returns the DNS servers whose answers are believed: the cluster's, the node's cache and own addresses, and the configured ones. `resolver`
/// is `None` if another proxy translates Services.
pub fn dns_servers(
    pipeline: &Pipeline,
    resolver: Option<&Resolver>,
    node: &str,
    settings: &NameSettings,
) -> AddressSet {
    let of_service = resolver.map(dns::of_service).unwrap_or_default();
    let cache = pipeline.cache();
    let own: BTreeSet<IpAddr> = cache.nodes().get(node).into_iter().flat_map(|node| node.addresses.clone()).collect();
    let hosts = dns::pods(cache).into_iter().chain(of_service).chain(own).chain([NODE_CACHE.into()]);
    hosts.map(IpNet::from).chain(settings.servers.iter().copied()).collect()
}

/// Returns the part of a snapshot that tells from which DNS answers its ports learn. `holder` numbers the pods. `None` if no port's rules name
/// domains.
pub fn names(
    servers: AddressSet,
    settings: &NameSettings,
    ports: &[PortConfig],
    mut holder: impl FnMut(usize, &PortConfig) -> Holder,
) -> Option<Arc<Names>> {
    let is_named = |port: &PortConfig| port.named_table.is_some() || port.named_audit.is_some();
    let holders: Vec<Option<Holder>> =
        ports.iter().enumerate().map(|(at, port)| is_named(port).then(|| holder(at, port))).collect();
    let grace = u64::try_from(settings.grace.as_nanos()).unwrap_or(u64::MAX);
    holders.iter().any(Option::is_some).then(|| Arc::new(Names::new(servers, grace, holders)))
}
