//! The node of all rows but `memory`: pods with a rule that names domains, a pod without rules, and a DNS server behind the uplink.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use bulkhead_classifier::{
    Action, AddressSet, OriginId, PortRange, Rule, Service, ServiceSet, Services, Tables, protocol,
};
use bulkhead_dataplane::{Holder, Names, PortId, PortKind, Routes, Snapshot, TableId};
use ipnet::{IpNet, Ipv4Net};

use super::GRACE;
use super::packets::{Name, Record};
use crate::memory_ports::port;
use crate::random::Random;

/// Number of pods with a rule that names domains.
pub(super) const PODS: u16 = 50;
/// Number of names in the rule.
pub(super) const NAMES: u16 = 1_000;
/// Number of addresses of a name. Each answer has [`ANSWERED`] consecutive ones.
pub(super) const ADDRESSES: u32 = 500;
/// Number of addresses in an answer.
pub(super) const ANSWERED: u32 = 8;
/// The longest TTL of an answer in seconds. The shortest is 1.
const TTL: u32 = 5;
/// Number of different addresses of [`forged_address`].
const FORGED: u32 = 1 << 21;

/// The trusted DNS server.
pub(super) const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 168, 0, 53), 53);
/// A host outside that answers instead of the server.
pub(super) const OFF_PATH: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 99), 53);
/// A pod without rules that answers instead of the server.
pub(super) const FORGER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 1, 1, 1), 53);

pub(super) const UPLINK: PortId = PortId(0);
pub(super) const FORGER_PORT: PortId = PortId(2);
/// The port of the first pod with a rule.
const FIRST: u16 = 3;

/// The table that allows all packets, and the egress table of pods with a rule that names domains.
const OPEN: TableId = TableId(0);
const NAMED: TableId = TableId(1);

/// The node's snapshots with and without the rule, and the names in the rule.
pub(super) struct Node {
    /// Pods with a rule that names [`Node::names`].
    pub(super) named: Snapshot,
    /// The same pods without rules.
    pub(super) plain: Snapshot,
    pub(super) names: Vec<Name>,
}

/// A pod with a rule that names domains, by its number below [`PODS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pod(pub(super) u16);

impl Pod {
    pub(super) const fn port(self) -> PortId {
        PortId(FIRST + self.0)
    }

    pub(super) fn address(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 1, 0, 1)) + u32::from(self.0))
    }

    pub(super) const fn holder(self) -> Holder {
        Holder(self.0 as u32)
    }

    /// Returns all pods.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..PODS).map(Self)
    }
}

/// Returns the address of a name at a position, modulo [`ADDRESSES`].
pub(super) fn address_of(name: u16, position: u32) -> Ipv4Addr {
    // The lower half of 100.64.0.0/10.
    Ipv4Addr::from(0x6440_0000 + u32::from(name) * ADDRESSES + position % ADDRESSES)
}

/// Returns the records of an answer: [`ANSWERED`] addresses of a name from position `first` on, with one random TTL.
pub(super) fn turned(name: u16, first: u32, random: &mut Random) -> Vec<Record<'static>> {
    let ttl = 1 + random.below(TTL);
    (0..ANSWERED).map(|at| Record { owner: None, ttl, address: address_of(name, first + at) }).collect()
}

/// Returns an address that belongs to no name. The address is the same for numbers that differ by a multiple of [`FORGED`].
pub(super) fn forged_address(number: u32) -> Ipv4Addr {
    // The upper half of 100.64.0.0/10.
    Ipv4Addr::from(0x6460_0000 + number % FORGED)
}

impl Node {
    pub(super) fn new() -> anyhow::Result<Self> {
        let names: Vec<Name> = (0..NAMES).map(|at| Name::new(&format!("service-{at}.example.com"))).collect();
        let host = Ipv4Addr::new(192, 168, 0, 1);
        let mut ports = vec![
            port(UPLINK, "uplink", PortKind::Uplink, None, OPEN),
            port(PortId(1), "host", PortKind::Host, Some(host), OPEN),
            port(FORGER_PORT, "bench/forger", PortKind::Pod, Some(*FORGER.ip()), OPEN),
        ];
        // All packets to the pods are allowed, also forged answers.
        let of_pod = |pod: Pod| port(pod.port(), &name_of(pod), PortKind::Pod, Some(pod.address()), OPEN);
        ports.extend(Pod::all().map(of_pod));
        let tables =
            vec![Arc::new(Tables::build(vec![Rule::any(Action::Allow, OriginId(0))])?), Arc::new(table(&names)?)];
        let of_ports = (0..)
            .zip(&ports)
            .flat_map(|(id, port)| port.addresses.iter().map(move |&address| (IpNet::from(address), PortId(id))));
        let routes = Routes::new(of_ports.chain([(IpNet::from(Ipv4Net::default()), UPLINK)]))?;
        let plain = Snapshot::new(1, ports.clone(), tables.clone(), routes.clone())?;
        let mut holders = vec![None; ports.len()];
        for pod in Pod::all() {
            ports[pod.port().index()].named_table = Some(NAMED);
            holders[pod.port().index()] = Some(pod.holder());
        }
        let servers: AddressSet = [IpAddr::from(*SERVER.ip())].into_iter().collect();
        let learning = Names::new(servers, GRACE, holders);
        let named = Snapshot::new(1, ports, tables, routes)?.with_names(Some(Arc::new(learning)));
        Ok(Self { named, plain, names })
    }

    pub(super) fn name(&self, number: u16) -> &Name {
        &self.names[usize::from(number)]
    }
}

fn name_of(pod: Pod) -> String {
    format!("bench/pod-{}", pod.0)
}

/// Returns the pods' egress table, which allows DNS and all packets to addresses of these names, and nothing else.
fn table(names: &[Name]) -> anyhow::Result<Tables> {
    let service = |number| Service { protocols: (number, number), ports: PortRange::one(SERVER.port()) };
    let dns: ServiceSet = [protocol::TCP, protocol::UDP].map(service).into_iter().collect();
    let patterns = names.iter().map(|name| name.text.parse()).collect::<Result<Vec<_>, _>>()?;
    let rules = vec![
        Rule { services: Services::from(dns), ..Rule::any(Action::Allow, OriginId(1)) },
        Rule { names: Some(patterns.into_iter().collect()), ..Rule::any(Action::Allow, OriginId(2)) },
        Rule::any(Action::Deny, OriginId(3)),
    ];
    Ok(Tables::build(rules)?)
}
