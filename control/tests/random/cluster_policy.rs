//! Random cluster policies.

use bulkhead_control::object::{
    ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, ClusterRule, IpBlock, Isolation, NamespaceScope, Order, Peer,
    PodPeer, PolicyPort, PolicyRule, Rank, RuleAction, Tier, Transport,
};
use bulkhead_control::origin::Direction;

use super::objects::{NODE_LABELS, POD_LABELS, SCOPE_LABELS, block, port, port_name, selector};
use super::{Rng, text};

const KINDS: [ClusterPolicyKind; 5] = [
    ClusterPolicyKind::ClusterNetworkPolicy,
    ClusterPolicyKind::ClusterNetworkPolicy,
    ClusterPolicyKind::ClusterNetworkPolicy,
    ClusterPolicyKind::AdminNetworkPolicy,
    ClusterPolicyKind::BaselineAdminNetworkPolicy,
];

/// A random name out of few, so that objects replace each other.
pub(crate) fn cluster_policy_name(rng: &mut Rng) -> ClusterPolicyName {
    let kind = rng.pick(&KINDS);
    let name = match kind {
        ClusterPolicyKind::BaselineAdminNetworkPolicy => "default",
        _ => rng.pick(&["s", "t", "u"]),
    };
    ClusterPolicyName { kind, name: text(name) }
}

pub(crate) fn cluster_policy(rng: &mut Rng) -> ClusterPolicy {
    let name = cluster_policy_name(rng);
    // Few priorities, so that some policies are tied.
    let (tier, priority) = match name.kind {
        ClusterPolicyKind::ClusterNetworkPolicy => {
            (if rng.chance(50) { Tier::Admin } else { Tier::Baseline }, rng.pick(&[0, 5, 5, 1000]))
        }
        ClusterPolicyKind::AdminNetworkPolicy => (Tier::Admin, rng.pick(&[0, 5, 5, 1000])),
        _ => (Tier::Baseline, u16::MAX),
    };
    ClusterPolicy {
        rank: Rank { tier, order: Order::of(f64::from(priority)), tie: text(""), name },
        subject: pods(rng),
        ingress: rules(rng, Direction::Ingress),
        egress: rules(rng, Direction::Egress),
        isolates: Isolation::default(),
        is_union: false,
        fault: None,
        position: None,
        enforcement: None,
    }
}

fn pods(rng: &mut Rng) -> PodPeer {
    let namespaces = NamespaceScope::Selected(selector(rng, SCOPE_LABELS, 35));
    PodPeer { namespaces, pods: selector(rng, POD_LABELS, 50), filter: None }
}

fn rules(rng: &mut Rng, direction: Direction) -> Vec<ClusterRule> {
    let count = rng.pick(&[0, 1, 2, 2, 3, 4]);
    let rule = |rng: &mut Rng| {
        let action = rng.pick(&[RuleAction::Accept, RuleAction::Deny, RuleAction::Pass]);
        let name = rng.chance(20).then(|| text("rule"));
        // The replacement of a faulty rule.
        if rng.chance(4) {
            let peers = (action == RuleAction::Accept).then(Vec::new);
            let action = if action == RuleAction::Pass { RuleAction::Deny } else { action };
            return ClusterRule { name, action, traffic: PolicyRule { peers, ports: None }, then: None, at: None };
        }
        let count = rng.pick(&[1, 1, 2, 3]);
        let peers: Vec<Peer> = (0..count).map(|_| peer(rng, direction, action)).collect();
        let of_pods = peers.iter().all(|peer| matches!(peer, Peer::Pods(_)));
        let ports = (!rng.chance(40)).then(|| {
            let count = rng.pick(&[1, 1, 2, 3]);
            (0..count).flat_map(|_| ports(rng, of_pods)).collect()
        });
        ClusterRule { name, action, traffic: PolicyRule { peers: Some(peers), ports }, then: None, at: None }
    };
    (0..count).map(|_| rule(rng)).collect()
}

fn peer(rng: &mut Rng, direction: Direction, action: RuleAction) -> Peer {
    match rng.below(10) {
        5 | 6 if direction == Direction::Egress && action == RuleAction::Accept => {
            let names = ["www.example.com", "*.example.org", "*.example.com", "example.org"];
            Peer::Names((0..rng.pick(&[1, 2])).map(|_| rng.pick(&names).into()).collect())
        }
        0..3 if direction == Direction::Egress => Peer::Block(IpBlock { except: Vec::new(), ..block(rng) }),
        3 | 4 if direction == Direction::Egress => Peer::Nodes(selector(rng, NODE_LABELS, 30)),
        _ => Peer::Pods(pods(rng)),
    }
}

/// A random entry of a list of ports. If all peers are pods, a port name becomes one entry per protocol.
fn ports(rng: &mut Rng, of_pods: bool) -> Vec<PolicyPort> {
    match port(rng) {
        port @ (PolicyPort::Range { .. } | PolicyPort::Numbers { .. }) => vec![port],
        _ if of_pods => {
            let name = port_name(rng);
            Transport::ALL.map(|transport| PolicyPort::Named { transport, name: name.clone() }).into()
        }
        PolicyPort::All(transport) | PolicyPort::Named { transport, .. } => {
            vec![PolicyPort::Range { transport, first: 1, last: u16::MAX }]
        }
    }
}
