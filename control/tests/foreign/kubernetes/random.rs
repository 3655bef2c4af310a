//! Random policies of Kubernetes' own kinds.

use ipnet::IpNet;

use super::{Action, ClusterNetworkPolicy, ClusterPeer, ClusterRule, Kubernetes, NetworkPolicy, Peer, Port, Rule};
use crate::foreign::labels::LabelSelector;
use crate::foreign::world::{NAMESPACE_LABELS, NAMESPACES, POD_LABELS, PORT_NAMES, PORTS, SCTP, TCP, UDP};
use crate::random::Rng;

/// Blocks of addresses. They cover pods, nodes and addresses outside the cluster.
const NETS: [&str; 14] = [
    "0.0.0.0/0",
    "10.244.0.0/16",
    "10.244.1.0/24",
    "10.244.2.2/32",
    "192.168.0.0/24",
    "203.0.113.0/24",
    "203.0.113.128/25",
    "8.0.0.0/5",
    "::/0",
    "fd00::/16",
    "fd00:1::/64",
    "fd01::2/128",
    "2001:db8::/32",
    "2001:db8:ffff::/48",
];

pub(crate) fn net(rng: &mut Rng) -> IpNet {
    rng.pick(&NETS).parse().unwrap()
}

pub(crate) fn pods(rng: &mut Rng) -> LabelSelector {
    LabelSelector::random(rng, &POD_LABELS)
}

pub(crate) fn namespaces(rng: &mut Rng) -> LabelSelector {
    LabelSelector::random(rng, &NAMESPACE_LABELS)
}

pub(crate) fn protocol(rng: &mut Rng) -> u8 {
    rng.pick(&[TCP, TCP, TCP, UDP, SCTP])
}

/// A range of ports, of one port in most cases.
pub(crate) fn range(rng: &mut Rng) -> (u16, u16) {
    let first = rng.pick(&PORTS);
    match rng.below(5) {
        0 => (first, first + 30),
        1 => (1, first),
        _ => (first, first),
    }
}

/// Makes a list with fewer than `limit` elements.
pub(crate) fn list<T>(rng: &mut Rng, limit: usize, mut one: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    (0..rng.below(limit)).map(|_| one(rng)).collect()
}

impl Kubernetes {
    /// Makes fewer than `limit` policies of each kind.
    pub(crate) fn random(rng: &mut Rng, limit: usize) -> Self {
        let policies = list(rng, limit, network_policy);
        let cluster = list(rng, limit, cluster_policy);
        let named = |(at, mut policy): (usize, NetworkPolicy)| {
            policy.name = format!("{}{at}", policy.name);
            policy
        };
        let ranked = |(at, mut policy): (usize, ClusterNetworkPolicy)| {
            policy.name = format!("cluster-{at}");
            policy.priority = policy.priority / 10 * 10 + u16::try_from(at).unwrap();
            policy
        };
        Self {
            policies: policies.into_iter().enumerate().map(named).collect(),
            cluster: cluster.into_iter().enumerate().map(ranked).collect(),
        }
    }
}

fn network_policy(rng: &mut Rng) -> NetworkPolicy {
    let types = rng.below(4);
    NetworkPolicy {
        namespace: rng.pick(&NAMESPACES),
        name: rng.pick(&["a", "b", "k", "s"]).to_owned(),
        subject: pods(rng),
        ingress: (types != 3).then(|| list(rng, 4, rule)),
        egress: (types > 1).then(|| list(rng, 4, rule)),
    }
}

fn rule(rng: &mut Rng) -> Rule {
    Rule { peers: list(rng, 3, peer), ports: list(rng, 3, port) }
}

fn peer(rng: &mut Rng) -> Peer {
    match rng.below(4) {
        0 => {
            let cidr = net(rng);
            let except = list(rng, 3, net);
            let inside = |net: &IpNet| cidr.contains(net) && cidr != *net;
            Peer::Block { cidr, except: except.into_iter().filter(inside).collect() }
        }
        1 => Peer::Pods { namespaces: None, pods: Some(pods(rng)) },
        2 => Peer::Pods { namespaces: Some(namespaces(rng)), pods: None },
        _ => Peer::Pods { namespaces: Some(namespaces(rng)), pods: Some(pods(rng)) },
    }
}

fn port(rng: &mut Rng) -> Port {
    let protocol = protocol(rng);
    match rng.below(5) {
        0 => Port::All(protocol),
        1 => Port::Named(protocol, rng.pick(&PORT_NAMES)),
        _ => {
            let (first, last) = range(rng);
            Port::Range(protocol, first, last)
        }
    }
}

fn cluster_policy(rng: &mut Rng) -> ClusterNetworkPolicy {
    ClusterNetworkPolicy {
        name: String::new(),
        is_admin: rng.chance(50),
        priority: u16::try_from(rng.below(90)).unwrap() * 10,
        subject: cluster_pods(rng),
        ingress: list(rng, 3, |rng| cluster_rule(rng, false)),
        egress: list(rng, 3, |rng| cluster_rule(rng, true)),
    }
}

fn cluster_pods(rng: &mut Rng) -> ClusterPeer {
    match rng.chance(50) {
        true => ClusterPeer::Namespaces(namespaces(rng)),
        false => ClusterPeer::Pods { namespaces: namespaces(rng), pods: pods(rng) },
    }
}

fn cluster_rule(rng: &mut Rng, is_egress: bool) -> ClusterRule {
    let peer = |rng: &mut Rng| match is_egress && rng.chance(30) {
        true => ClusterPeer::Networks(vec![net(rng)]),
        false => cluster_pods(rng),
    };
    let mut peers = vec![peer(rng)];
    if rng.chance(30) {
        peers.push(peer(rng));
    }
    let port = |rng: &mut Rng| {
        let (protocol, (first, last)) = (protocol(rng), range(rng));
        (protocol, first, last)
    };
    ClusterRule { action: rng.pick(&[Action::Accept, Action::Deny, Action::Pass]), peers, ports: list(rng, 2, port) }
}
