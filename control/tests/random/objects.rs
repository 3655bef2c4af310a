//! Single random objects.

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::object::{
    ContainerPort, IngressIsolation, IpBlock, Labels, Lifetime, Namespace, NamespaceScope, Node, Object, Peer, Pod,
    PodName, PodPeer, Policy, PolicyName, PolicyPort, PolicyRule, PolicyVersion, Timestamp, Transport,
};
use bulkhead_control::selector::{Condition, Requirement, Selector};
use ipnet::IpNet;

use super::{Rng, text};
use crate::oracle::State;

pub(crate) const NAMESPACES: [&str; 4] = ["x", "y", "z", "w"];
/// A namespace with pods and policies, but without an object.
pub(crate) const UNKNOWN_NAMESPACE: &str = "w";
pub(super) const SERVICE_ACCOUNTS: [&str; 3] = ["default", "front", "back"];
pub(crate) const NODES: [&str; 3] = ["n1", "n2", "n3"];
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

pub(super) type Vocabulary = &'static [(&'static str, &'static [&'static str])];
pub(super) const POD_LABELS: Vocabulary = &[("app", &["web", "db", ""]), ("tier", &["1", "2"])];
pub(super) const NODE_LABELS: Vocabulary = &[("role", &["edge", "core"])];
const NAMESPACE_LABELS: Vocabulary = &[("team", &["red", "blue", ""]), ("env", &["prod", "dev"])];
pub(super) const SCOPE_LABELS: Vocabulary =
    &[("team", &["red", "blue", ""]), ("env", &["prod", "dev"]), (NAME_LABEL, &["x", "y", "z", "w"])];

const PORT_NAMES: [&str; 3] = ["web", "dns", "metrics"];
const NUMBERS: [u16; 5] = [53, 80, 81, 8080, 9090];
/// The ports of flows: those of pods and policies, adjacent ports, and the ends of the range.
pub(crate) const PORTS: [u16; 14] = [0, 1, 52, 53, 54, 79, 80, 81, 82, 443, 8080, 8081, 9090, 65_535];

/// Addresses that no object of the generator has.
pub(crate) fn externals() -> impl Iterator<Item = IpAddr> {
    let all = ["8.8.8.8", "172.16.0.1", "10.1.0.200", "10.2.0.1", "2001:db8::1", "fd01::ff", "fd02::1", "fd00:100::99"];
    all.into_iter().map(|address| address.parse().unwrap())
}

fn pod_address(v6: bool, host: usize) -> IpAddr {
    let text = if v6 { format!("fd01::{host:x}") } else { format!("10.1.0.{host}") };
    text.parse().unwrap()
}

fn node_address(v6: bool, host: usize) -> IpAddr {
    let text = if v6 { format!("fd00:100::{host:x}") } else { format!("192.168.0.{host}") };
    text.parse().unwrap()
}

fn labels(rng: &mut Rng, vocabulary: Vocabulary) -> Labels {
    let mut labels = Labels::new();
    for (key, values) in vocabulary {
        if rng.chance(70) {
            labels.insert(text(key), text(rng.pick(values)));
        }
    }
    labels
}

pub(super) fn selector(rng: &mut Rng, vocabulary: Vocabulary, empty: usize) -> Selector {
    if rng.chance(empty) {
        return Selector::everything();
    }
    let requirement = |rng: &mut Rng| {
        let (key, values) = rng.pick(vocabulary);
        let values = |rng: &mut Rng| (0..1 + rng.below(2)).map(|_| text(rng.pick(values))).collect();
        let condition = match rng.below(8) {
            0..4 => Condition::In(values(rng)),
            4..6 => Condition::NotIn(values(rng)),
            6 => Condition::Exists,
            _ => Condition::DoesNotExist,
        };
        Requirement { key: text(key), condition }
    };
    let count = 1 + rng.below(2);
    Selector::new((0..count).map(|_| requirement(rng)).collect::<Vec<_>>())
}

pub(crate) fn namespace(rng: &mut Rng, name: &str) -> Object {
    let mut labels = labels(rng, NAMESPACE_LABELS);
    labels.insert(text(NAME_LABEL), text(name));
    Object::Namespace(Namespace {
        name: text(name),
        labels,
        terminating: rng.chance(8),
        isolation: if rng.chance(20) { IngressIsolation::DefaultDeny } else { IngressIsolation::ClusterDefault },
        denied: None,
        enforcement: None,
    })
}

pub(crate) fn node(rng: &mut Rng, at: usize) -> Object {
    let mut addresses = vec![node_address(false, at + 1)];
    if rng.chance(70) {
        addresses.push(node_address(true, at + 1));
    }
    if rng.chance(20) {
        addresses.push(node_address(false, at + 21));
    }
    let labels = labels(rng, NODE_LABELS);
    Object::Node(Node { name: text(NODES[at]), labels, addresses, pod_cidrs: vec![], terminating: false })
}

pub(crate) fn pod_name(rng: &mut Rng) -> PodName {
    PodName::new(rng.pick(&NAMESPACES), rng.pick(&["a", "b", "c", "d"]))
}

pub(crate) fn pod(rng: &mut Rng, name: &PodName) -> Pod {
    let at = rng.below(NODES.len());
    let host_network = rng.chance(10);
    let mut pod = Pod {
        host_ports: [].into(),
        owner: None,
        planned: false,
        name: name.clone(),
        labels: labels(rng, POD_LABELS),
        node: rng.chance(96).then(|| text(NODES[at])),
        addresses: addresses(rng, name),
        mac: None,
        host_network,
        uid: None,
        finished: rng.chance(7),
        service_account: service_account(rng),
        lifetime: lifetime(rng),
        ports: container_ports(rng),
    };
    if host_network {
        // The first address of the pod's node, or one that the node's object lacks.
        let host = if rng.chance(60) { at + 1 } else { at + 11 };
        pod.addresses = vec![node_address(rng.chance(30), host)];
    }
    pod
}

fn service_account(rng: &mut Rng) -> Option<Arc<str>> {
    Some(rng.pick(&SERVICE_ACCOUNTS)).filter(|name| *name != "default").map(text)
}

/// Few different times, so that some pods are of the same age.
fn lifetime(rng: &mut Rng) -> Lifetime {
    let time = |rng: &mut Rng| Timestamp::parse(&format!("2026-01-01T00:00:0{}Z", rng.below(4)));
    let (terminating, running) = (rng.chance(10), rng.chance(80));
    let started = if rng.chance(60) { time(rng) } else { None };
    let created = if rng.chance(60) { time(rng) } else { None };
    Lifetime { terminating, running, started, created, attached: None }
}

fn addresses(rng: &mut Rng, name: &PodName) -> Vec<IpAddr> {
    let own = NAMESPACES.iter().position(|one| **one == *name.namespace).unwrap_or(0) * 4
        + usize::from(name.name.as_bytes()[0] - b'a')
        + 1;
    // Mostly the pod's own number, so that most addresses have one owner.
    let host = if rng.chance(85) { own } else { 1 + rng.below(20) };
    match rng.below(10) {
        0..5 => vec![pod_address(false, host), pod_address(true, host)],
        5 => vec![pod_address(true, host), pod_address(false, host)],
        6 | 7 => vec![pod_address(false, host)],
        8 => vec![pod_address(true, host)],
        _ => vec![],
    }
}

fn container_ports(rng: &mut Rng) -> Vec<ContainerPort> {
    let count = rng.below(5);
    let port = |rng: &mut Rng| ContainerPort {
        name: text(rng.pick(&PORT_NAMES)),
        transport: rng.pick(&Transport::ALL),
        port: rng.pick(&NUMBERS),
    };
    (0..count).map(|_| port(rng)).collect()
}

/// The pod with one thing changed.
pub(crate) fn changed_pod(rng: &mut Rng, pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    match rng.below(12) {
        11 => pod.service_account = service_account(rng),
        10 => pod.lifetime = lifetime(rng),
        0..4 => pod.labels = labels(rng, POD_LABELS),
        4 | 5 => pod.ports = container_ports(rng),
        6 if !pod.host_network => pod.addresses = addresses(rng, &pod.name),
        7 => pod.finished = !pod.finished,
        8 => pod.node = Some(text(rng.pick(&NODES))),
        _ => pod = self::pod(rng, &pod.name),
    }
    pod
}

pub(crate) fn policy_name(rng: &mut Rng) -> PolicyName {
    PolicyName::new(rng.pick(&NAMESPACES), rng.pick(&["p", "q", "r"]))
}

pub(crate) fn policy(rng: &mut Rng) -> Policy {
    let name = policy_name(rng);
    let (ingress, egress) = match rng.below(10) {
        0..4 => (true, false),
        4..7 => (false, true),
        7 | 8 => (true, true),
        _ => (false, false),
    };
    // `extensions/v1beta1` has ingress only.
    let beta = rng.chance(20);
    Policy {
        subject: selector(rng, POD_LABELS, 40),
        ingress: (ingress || beta).then(|| rules(rng, &name.namespace)),
        egress: (egress && !beta).then(|| rules(rng, &name.namespace)),
        version: if beta { PolicyVersion::V1beta1 } else { PolicyVersion::V1 },
        fault: None,
        position: None,
        identity: None,
        enforcement: None,
        name,
    }
}

fn rules(rng: &mut Rng, own: &Arc<str>) -> Vec<PolicyRule> {
    let count = rng.pick(&[0, 1, 1, 2, 2, 3, 4]);
    let rule = |rng: &mut Rng| {
        let peers = (!rng.chance(20)).then(|| {
            let count = rng.pick(&[0, 1, 1, 1, 1, 2, 2, 3]);
            (0..count).map(|_| peer(rng, own)).collect()
        });
        let ports = (!rng.chance(25)).then(|| {
            let count = rng.pick(&[0, 1, 1, 1, 1, 2, 2, 3]);
            (0..count).map(|_| port(rng)).collect()
        });
        PolicyRule { peers, ports }
    };
    (0..count).map(|_| rule(rng)).collect()
}

fn peer(rng: &mut Rng, own: &Arc<str>) -> Peer {
    match rng.below(10) {
        0..4 => Peer::Block(block(rng)),
        4..6 => {
            let pods = selector(rng, POD_LABELS, 25);
            Peer::Pods(PodPeer { namespaces: NamespaceScope::Own(own.clone()), pods, filter: None })
        }
        _ => {
            let namespaces = NamespaceScope::Selected(selector(rng, SCOPE_LABELS, 25));
            Peer::Pods(PodPeer { namespaces, pods: selector(rng, POD_LABELS, 40), filter: None })
        }
    }
}

pub(super) fn port_name(rng: &mut Rng) -> Arc<str> {
    text(rng.pick(&PORT_NAMES))
}

pub(super) fn port(rng: &mut Rng) -> PolicyPort {
    let transport = rng.pick(&Transport::ALL);
    match rng.below(10) {
        0 | 1 => PolicyPort::All(transport),
        2..6 => PolicyPort::Named { transport, name: text(rng.pick(&PORT_NAMES)) },
        6..8 => {
            let first = rng.pick(&NUMBERS);
            PolicyPort::Range { transport, first, last: first }
        }
        _ => {
            let (one, other) = (rng.pick(&PORTS), rng.pick(&PORTS));
            PolicyPort::Range { transport, first: one.min(other).max(1), last: one.max(other).max(1) }
        }
    }
}

/// A block around an address in use, with exceptions inside it that may nest.
pub(super) fn block(rng: &mut Rng) -> IpBlock {
    let v6 = rng.chance(40);
    let around = |rng: &mut Rng| match rng.below(5) {
        0..3 => pod_address(v6, 1 + rng.below(16)),
        3 => node_address(v6, 1 + rng.below(3)),
        _ => rng.pick(&externals().filter(|address| address.is_ipv6() == v6).collect::<Vec<_>>()),
    };
    let lengths: &[u8] = if v6 { &[0, 8, 16, 64, 120, 124, 126, 128] } else { &[0, 8, 16, 24, 27, 29, 30, 32] };
    let cidr = IpNet::new(around(rng), rng.pick(lengths)).unwrap().trunc();
    let mut except = Vec::new();
    for _ in 0..rng.pick(&[0, 0, 1, 2, 3]) {
        let inner = (0..4).map(|_| around(rng)).find(|address| cidr.contains(address)).unwrap_or(cidr.addr());
        let longer: Vec<u8> = (cidr.prefix_len() + 1..=cidr.max_prefix_len()).collect();
        if !longer.is_empty() {
            except.push(IpNet::new(inner, rng.pick(&longer)).unwrap().trunc());
        }
    }
    IpBlock { cidr, except }
}

/// The first and last addresses of the policies' blocks and exceptions, and the addresses next to them.
pub(crate) fn borders(state: &State) -> impl Iterator<Item = IpAddr> {
    let policies = state.policies.values();
    let rules = policies.flat_map(|policy| policy.ingress.iter().chain(&policy.egress)).flatten();
    let cluster = state.cluster_policies.values().flat_map(|policy| policy.ingress.iter().chain(&policy.egress));
    let peers = rules.chain(cluster.map(|rule| &rule.traffic)).flat_map(|rule| rule.peers.iter().flatten());
    let peers = peers.flat_map(|peer| match peer {
        Peer::Region(region) => region.peers().collect(),
        peer => vec![peer],
    });
    let blocks = peers.filter_map(|peer| match peer {
        Peer::Block(block) => Some(block),
        Peer::Pods(_) | Peer::Nodes(_) | Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => None,
    });
    let nets = blocks.flat_map(|block| std::iter::once(&block.cidr).chain(&block.except));
    nets.flat_map(|net| {
        let (first, last) = (net.network(), net.broadcast());
        [Some(first), Some(last), step(first, false), step(last, true)].into_iter().flatten()
    })
}

fn step(address: IpAddr, up: bool) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => {
            let bits = if up { v4.to_bits().checked_add(1) } else { v4.to_bits().checked_sub(1) };
            bits.map(|bits| IpAddr::V4(bits.into()))
        }
        IpAddr::V6(v6) => {
            let bits = if up { v6.to_bits().checked_add(1) } else { v6.to_bits().checked_sub(1) };
            bits.map(|bits| IpAddr::V6(bits.into()))
        }
    }
}
