//! Derives masquerading from the state: the node's source addresses, and the destinations inside the cluster.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::object::Node;
use bulkhead_control::service::Settings;
use bulkhead_dataplane::Masquerade;
use ipnet::IpNet;

use super::LiveState;
use crate::config::MasqueradeConfig;

pub(super) struct Masquerading {
    config: MasqueradeConfig,
    /// Pod and Service CIDRs from the settings of Services. Connections to them are not masqueraded.
    settings: Vec<IpNet>,
    /// The source addresses and excluded destinations of `value`, to detect changes.
    known: (Vec<IpAddr>, Vec<IpNet>),
    value: Arc<Masquerade>,
}

impl Masquerading {
    fn new(config: MasqueradeConfig, settings: Option<&Settings>) -> Self {
        let blocks = settings.map_or(Vec::new(), |all| [&all.cluster_cidrs[..], &all.service_cidrs[..]].concat());
        let value = Arc::new(Masquerade::new([], [], config.ports.clone()));
        Self { config, settings: blocks, known: (Vec::new(), Vec::new()), value }
    }

    pub(super) fn value(&self) -> Arc<Masquerade> {
        Arc::clone(&self.value)
    }

    /// Updates the source addresses and the excluded destinations from this node's object, the addresses of its interfaces that are up, and all nodes.
    /// Returns whether they changed.
    fn follow<'a>(
        &mut self,
        own: &Node,
        addresses: &BTreeSet<IpAddr>,
        nodes: impl Iterator<Item = &'a Arc<Node>>,
    ) -> bool {
        // A pod bridge's address is no source.
        let is_pods = |address: &IpAddr| own.pod_cidrs.iter().any(|block| block.contains(address));
        let of_interfaces = addresses.iter().filter(|address| is_routable(**address) && !is_pods(address));
        // The Node object may list an address that the node no longer has, does not have yet, or has on a card that is down.
        let (present, absent): (Vec<_>, Vec<_>) = own.addresses.iter().partition(|address| addresses.contains(address));
        let sources = self.config.addresses.iter().chain(present).chain(of_interfaces).chain(absent).copied().collect();
        let mut kept = [&self.config.except[..], &self.settings[..]].concat();
        for node in nodes {
            kept.extend(&node.pod_cidrs);
            // Nodes can reply to pods' own addresses.
            kept.extend(node.addresses.iter().copied().map(IpNet::from));
        }
        let known = (sources, kept);
        if self.known == known {
            return false;
        }
        let (sources, kept) = (known.0.iter().copied(), known.1.iter().copied());
        self.value = Arc::new(Masquerade::new(sources, kept, self.config.ports.clone()));
        self.known = known;
        true
    }
}

/// Whether other hosts can reply to an address: neither loopback nor link-local.
fn is_routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
    }
}

impl LiveState {
    /// Configures how pods' connections to outside the cluster are masqueraded. `None` turns it off. `settings` are those of Services.
    pub(crate) fn masquerade(&mut self, config: Option<MasqueradeConfig>, settings: Option<&Settings>) {
        self.masquerading = config.map(|config| Masquerading::new(config, settings));
        self.follow_masquerade();
    }

    /// Updates source addresses and excluded destinations from the state's nodes. Returns whether masquerading changed.
    pub(super) fn follow_masquerade(&mut self) -> bool {
        let nodes = self.pipeline.cache().nodes().values();
        let addresses = &self.addresses - &self.down_addresses;
        self.masquerading.as_mut().is_some_and(|known| known.follow(&self.own, &addresses, nodes))
    }

    /// Replaces the node's addresses that other hosts cannot reach ([`read_down`](crate::own_addresses::read_down)), which masqueraded packets do not get.
    /// Returns whether masquerading changed.
    pub(crate) fn set_down_addresses(&mut self, down: BTreeSet<IpAddr>) -> bool {
        if self.down_addresses == down {
            return false;
        }
        self.down_addresses = down;
        self.follow_masquerade()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_control::object::Labels;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn node(name: &str, address: &str, block: &str) -> Arc<Node> {
        Arc::new(Node {
            name: name.into(),
            labels: Labels::new(),
            addresses: vec![ip(address)],
            pod_cidrs: vec![block.parse().unwrap()],
            terminating: false,
        })
    }

    #[test]
    fn the_world_is_what_no_node_pod_or_setting_has_and_the_nodes_first_address_is_given() {
        let config =
            MasqueradeConfig { except: vec!["192.168.0.0/16".parse().unwrap()], ..MasqueradeConfig::default() };
        let settings = Settings { service_cidrs: vec!["10.96.0.0/12".parse().unwrap()], ..Settings::default() };
        let mut known = Masquerading::new(config, Some(&settings));
        let nodes = [node("n1", "172.18.0.1", "10.1.0.0/16"), node("n2", "172.18.0.2", "10.2.0.0/16")];
        let addresses = ["127.0.0.1", "169.254.1.1", "10.1.0.1", "172.18.0.1", "172.19.0.9", "fe80::1", "fd00::9"];
        let addresses = addresses.map(ip).into();
        assert!(known.follow(&nodes[0], &addresses, nodes.iter()));
        assert!(!known.follow(&nodes[0], &addresses, nodes.iter()), "the same");
        let value = known.value();
        assert_eq!(value.sources(), [ip("172.18.0.1"), ip("fd00::9")]);
        for kept in ["10.1.0.5", "10.2.0.5", "172.18.0.2", "10.100.0.1", "192.168.7.7"] {
            assert!(!value.is_for(ip(kept)), "{kept}");
        }
        assert!(value.is_for(ip("172.18.0.3")) && value.is_for(ip("8.8.8.8")) && value.is_for(ip("2001:db8::1")));
        assert!(known.follow(&nodes[0], &addresses, nodes[..1].iter()));
        assert!(known.value().is_for(ip("10.2.0.5")));
        // The node's address changes before its object does, or after it.
        let without = ["172.19.0.9", "fd00::9"].map(ip).into();
        assert!(known.follow(&nodes[0], &without, nodes.iter()));
        assert_eq!(known.value().sources(), [ip("172.19.0.9"), ip("fd00::9")]);
        assert!(known.follow(&nodes[0], &BTreeSet::new(), nodes.iter()));
        assert_eq!(known.value().sources(), [ip("172.18.0.1")], "none is known");
        // Configured addresses come first.
        let config = MasqueradeConfig { addresses: vec![ip("172.19.0.9")], ..MasqueradeConfig::default() };
        let mut said = Masquerading::new(config, None);
        assert!(said.follow(&nodes[0], &addresses, nodes.iter()));
        assert_eq!(said.value().sources(), [ip("172.19.0.9"), ip("fd00::9")]);
    }
}
