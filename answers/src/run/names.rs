//! The DNS servers and the pods for rules that name domains: pods learn addresses only from answers of these servers.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_classifier::AddressSet;
use bulkhead_control::dns;
use bulkhead_control::pipeline::{AuditTables, Pipeline};
use bulkhead_control::renderer::acl::NodeTables;
use bulkhead_control::service::Resolver;
use bulkhead_dataplane::{Holder, Names, PortConfig, ServerNameCheck};
use ipnet::{AddrParseError, IpNet};

/// The conventional address of a DNS cache on the node. Source: Kubernetes, "Using NodeLocal DNSCache in Kubernetes Clusters".
const NODE_CACHE: Ipv4Addr = Ipv4Addr::new(169, 254, 20, 10);

/// The settings of rules that name domains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameSettings {
    /// Trusted DNS servers besides the cluster's own.
    pub servers: Vec<IpNet>,
    /// Time for which a learned address is valid after its TTL. Clients such as JVMs cache addresses longer than the TTL.
    pub grace: Duration,
    /// Whether the server names of TLS and QUIC clients are compared with the names of the rules.
    pub server_names: ServerNameCheck,
}

impl NameSettings {
    /// The longest grace. Clients that cache addresses for more than a day ignore TTLs altogether.
    const MAX_GRACE: Duration = Duration::from_hours(24);

    /// Parses an address or block of DNS servers.
    ///
    /// # Errors
    /// If the text is neither.
    pub fn server(text: &str) -> Result<IpNet, AddrParseError> {
        text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse::<IpNet>().map(|block| block.trunc()))
    }

    /// Parses a grace such as `30s`.
    ///
    /// # Errors
    /// If the text is no duration with a unit, or longer than 24 hours. The text is a remedy.
    pub fn grace(text: &str) -> Result<Duration, &'static str> {
        let grace = humantime::parse_duration(text).ok().filter(|grace| *grace <= Self::MAX_GRACE);
        grace.ok_or("write a number with its unit, up to 24h: 30s")
    }

    /// Returns a snapshot's part about names with these trusted servers and these holders of its ports.
    pub fn of_ports(&self, servers: AddressSet, holders: Vec<Option<Holder>>) -> Names {
        let grace = u64::try_from(self.grace.as_nanos()).unwrap_or(u64::MAX);
        Names::new(servers, grace, holders).checking_server_names(self.server_names)
    }

    /// Parses what happens to connections whose client names another server.
    ///
    /// # Errors
    /// If the text is not one of the three words. The error is a remedy.
    pub fn server_name_check(text: &str) -> Result<ServerNameCheck, &'static str> {
        match text {
            "off" => Ok(ServerNameCheck::Off),
            "audit" => Ok(ServerNameCheck::Audit),
            "drop" => Ok(ServerNameCheck::Drop),
            _ => Err("write off, audit or drop"),
        }
    }
}

impl Default for NameSettings {
    fn default() -> Self {
        Self { servers: Vec::new(), grace: Duration::from_secs(30), server_names: ServerNameCheck::Off }
    }
}

/// Whether rules of any of the node's pods name domains. `audit` are the tables of all policies, `None` if no policy is audited.
pub fn has_names(tables: &NodeTables, audit: Option<&AuditTables>) -> bool {
    let audited = audit.into_iter().flat_map(|audit| audit.tables.interfaces.iter());
    tables.interfaces.iter().chain(audited).any(|interface| interface.egress_table.is_some())
}

/// Returns the addresses of the trusted DNS servers: the cluster's, the cache on the node, the node's own addresses, and the configured
/// servers. `resolver` is `None` if another proxy translates Services: the DNS Service's addresses are then missing.
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

/// Returns a snapshot's part about names: the trusted servers, the grace, and the holder of each port whose rules name domains. Calls
/// `holder` with such a port and its index in `ports`. `None` if no port's rules name domains.
pub fn names(
    servers: AddressSet,
    settings: &NameSettings,
    ports: &[PortConfig],
    mut holder: impl FnMut(usize, &PortConfig) -> Holder,
) -> Option<Arc<Names>> {
    let is_named = |port: &PortConfig| port.named_table.is_some() || port.named_audit.is_some();
    let holders: Vec<Option<Holder>> =
        ports.iter().enumerate().map(|(at, port)| is_named(port).then(|| holder(at, port))).collect();
    let is_any = holders.iter().any(Option::is_some);
    is_any.then(|| Arc::new(settings.of_ports(servers, holders)))
}
