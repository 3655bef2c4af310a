//! The benchmark's node: an uplink, a host, and a pod with a table.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bulkhead_classifier::{
    Action, Addresses, OriginId, PortRange, Rule, Service, ServiceSet, Services, Tables, protocol,
};
use bulkhead_dataplane::forward::rewrite;
use bulkhead_dataplane::{
    Backend, BackendList, Backends, PortId, PortKind, Routes, ServicePort, Snapshot, TableId, Vip, VipEntry,
};
use ipnet::{IpNet, Ipv4Net};

use super::traffic::{BACKEND, DESTINATION, DPORT};
use crate::memory_ports::{own_mac, peer_mac, port};
use crate::random::Random;

/// The snapshot, and each port's MAC addresses for sent packets.
pub(super) struct Node {
    pub(super) snapshot: Snapshot,
    pub(super) addresses: Vec<[u8; 12]>,
    /// Whether packets are sent to a Service's address.
    pub(super) is_translated: bool,
}

impl Node {
    pub(super) const UPLINK: PortId = PortId(0);
    pub(super) const POD: PortId = PortId(2);

    /// Creates a node whose pod has this number of rules. Only the last one matches the benchmark's packets.
    pub(super) fn new(rules: u32, is_translated: bool) -> anyhow::Result<Self> {
        let open = Tables::build(vec![Rule::any(Action::Allow, OriginId(0))])?;
        let server = if is_translated { BACKEND } else { (DESTINATION, DPORT) };
        let policy = Tables::build(mixed_rules(rules, server.1))?;
        let host = Ipv4Addr::new(192, 168, 0, 1);
        let ports = vec![
            port(Self::UPLINK, "uplink", PortKind::Uplink, None, TableId(0)),
            port(PortId(1), "host", PortKind::Host, Some(host), TableId(0)),
            port(Self::POD, "bench/server", PortKind::Pod, Some(server.0), TableId(1)),
        ];
        let routes = [
            (IpNet::from(Ipv4Net::default()), Self::UPLINK),
            (IpNet::from(IpAddr::from(host)), PortId(1)),
            (IpNet::from(IpAddr::from(server.0)), Self::POD),
        ];
        let addresses = (0..3).map(PortId).map(|id| rewrite::addresses(peer_mac(id), own_mac(id))).collect();
        let snapshot = Snapshot::new(1, ports, vec![Arc::new(open), Arc::new(policy)], Routes::new(routes)?)?;
        let snapshot = snapshot.with_services(is_translated.then(|| Arc::new(services_of(server))));
        Ok(Self { snapshot, addresses, is_translated })
    }
}

/// Returns Services with one at the packets' destination, whose only backend has this address.
fn services_of((address, port): (Ipv4Addr, u16)) -> bulkhead_dataplane::Services {
    let backend = Backend { socket: SocketAddr::from((address, port)), is_local: true };
    let list = Backends::new([backend]);
    let serving = [backend.socket].into();
    let mut services = bulkhead_dataplane::Services::new(1);
    services.set_epoch(1);
    services.set_port(0, Some(ServicePort { cluster: list.clone(), local: list, serving, ..ServicePort::default() }));
    let (inside, outside) = (BackendList::Cluster, BackendList::Cluster);
    let entry = VipEntry { port: 0, inside, outside, is_ranged: false, rewrites_all: false };
    services.set_vip(Vip { address: DESTINATION.into(), protocol: protocol::UDP, port: DPORT }, Some(entry));
    services
}

/// Returns rules of about thirty shapes that match no packet of the benchmark, then one that matches. Sources lie in 172.16/12, with a
/// prefix of at least 16 bits; destinations have 8 to 32 bits. Rules are for TCP or UDP; for one port, a range or all; allow or deny.
fn mixed_rules(count: u32, server_port: u16) -> Vec<Rule> {
    let mut random = Random(7);
    let mut rules: Vec<Rule> = (1..count).map(|_| random_rule(&mut random)).collect();
    let prefix = |text: &str| Addresses::prefix(text.parse().expect("a literal prefix"));
    rules.push(Rule {
        src: prefix("100.64.0.0/10"),
        dst: prefix("10.0.0.0/8"),
        services: services(protocol::UDP, PortRange::one(server_port)),
        ..Rule::any(Action::Allow, OriginId(1))
    });
    rules
}

fn random_rule(random: &mut Random) -> Rule {
    let prefix = |network: u32, len: u8| {
        let net = Ipv4Net::new(network.into(), len).expect("the length is at most 32").trunc();
        Addresses::prefix(net.into())
    };
    let src = prefix(0xac10_0000 | random.below(1 << 20), 16 + random.below_u8(17));
    let dst = prefix(random.below(u32::MAX), 8 + random.below_u8(25));
    let protocol = if random.below(2) == 0 { protocol::TCP } else { protocol::UDP };
    let first = u16::try_from(random.below(60_000)).expect("below 60,000");
    let ports = match random.below(3) {
        0 => PortRange::one(first),
        1 => PortRange { first, last: first + 5_000 },
        _ => PortRange::ALL,
    };
    let action = if random.below(2) == 0 { Action::Allow } else { Action::Deny };
    Rule { src, dst, services: services(protocol, ports), ..Rule::any(action, OriginId(2)) }
}

fn services(protocol: u8, ports: PortRange) -> Services {
    let set: ServiceSet = [Service { protocols: (protocol, protocol), ports }].into_iter().collect();
    Services::from(set)
}
