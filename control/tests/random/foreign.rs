//! Random policies of other products, in their resolved form.

use std::sync::Arc;

use bulkhead_control::filter::Filter;
use bulkhead_control::object::{
    ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, ClusterRule, IpBlock, Isolation, NamespaceScope, Order,
    OtherTier, Peer, PodPeer, PolicyPort, PolicyRule, Rank, Region, RuleAction, Tier,
};
use bulkhead_control::origin::Direction;
use bulkhead_control::selector::{Condition, Requirement};

use super::objects::{NAMESPACES, NODE_LABELS, POD_LABELS, SCOPE_LABELS, SERVICE_ACCOUNTS, block, port, selector};
use super::{Rng, text};

const KINDS: [ClusterPolicyKind; 4] = [
    ClusterPolicyKind::CalicoNetworkPolicy,
    ClusterPolicyKind::CalicoGlobalNetworkPolicy,
    ClusterPolicyKind::CiliumNetworkPolicy,
    ClusterPolicyKind::CiliumClusterwideNetworkPolicy,
];

/// The tiers besides those of Kubernetes: name, order, and whether their end passes.
pub(crate) const OTHER_TIERS: [(&str, f64, bool); 5] = [
    ("early", -3.5, false),
    ("security", 1_000.0, true),
    ("b-mid", 2_000_000.0, false),
    ("a-mid", 2_000_000.0, true),
    ("late", f64::INFINITY, false),
];

fn other_tier(rng: &mut Rng) -> Tier {
    let (name, order, passes) = rng.pick(&OTHER_TIERS);
    let end = if passes { RuleAction::Pass } else { RuleAction::Deny };
    Tier::Other(Arc::new(OtherTier { name: text(name), order: Order::of(order), end }))
}

/// A random name out of few, so that objects replace each other.
pub(crate) fn foreign_policy_name(rng: &mut Rng) -> ClusterPolicyName {
    let kind = rng.pick(&KINDS);
    let name = rng.pick(&["f", "knp.default.q", "z"]);
    let is_global = matches!(
        kind,
        ClusterPolicyKind::CalicoGlobalNetworkPolicy | ClusterPolicyKind::CiliumClusterwideNetworkPolicy
    );
    let name = if is_global { name.to_owned() } else { format!("{}/{name}", rng.pick(&NAMESPACES)) };
    ClusterPolicyName { kind, name: name.into() }
}

pub(crate) fn foreign_policy(rng: &mut Rng) -> ClusterPolicy {
    let name = foreign_policy_name(rng);
    let is_union =
        matches!(name.kind, ClusterPolicyKind::CiliumNetworkPolicy | ClusterPolicyKind::CiliumClusterwideNetworkPolicy);
    let tier = match rng.below(10) {
        _ if is_union => Tier::NetworkPolicy,
        0..4 => Tier::NetworkPolicy,
        4 => Tier::Admin,
        5 => Tier::Baseline,
        _ => other_tier(rng),
    };
    let order = match rng.below(6) {
        0 => Order::LAST,
        1 => Order::of(-1.5),
        2 => Order::of(10.0),
        3 => Order::of(1_000.5),
        _ => Order::NETWORK_POLICY,
    };
    let own = name.name.split_once('/').map(|(namespace, _)| text(namespace));
    let tie = match &own {
        Some(namespace) => format!("{}/{namespace}/NetworkPolicy", name.name.rsplit('/').next().unwrap_or_default()),
        None => format!("{}//GlobalNetworkPolicy", name.name),
    };
    let isolates = Isolation { ingress: rng.chance(60), egress: rng.chance(50) };
    ClusterPolicy {
        rank: Rank { tier, order, tie: tie.into(), name },
        subject: match own {
            Some(own) if rng.chance(80) => PodPeer {
                namespaces: NamespaceScope::Own(own),
                pods: selector(rng, POD_LABELS, 50),
                filter: rng.chance(40).then(|| Arc::new(filter(rng, 2))),
            },
            _ => pods(rng),
        },
        ingress: rules(rng, Direction::Ingress, is_union),
        egress: rules(rng, Direction::Egress, is_union),
        isolates,
        is_union,
        fault: None,
        position: None,
        enforcement: None,
    }
}

fn pods(rng: &mut Rng) -> PodPeer {
    let namespaces = if rng.chance(30) {
        NamespaceScope::Own(text(rng.pick(&NAMESPACES)))
    } else {
        NamespaceScope::Selected(selector(rng, SCOPE_LABELS, 45))
    };
    let filter = rng.chance(50).then(|| Arc::new(filter(rng, 2)));
    PodPeer { namespaces, pods: selector(rng, POD_LABELS, 60), filter }
}

/// A condition of at most this depth.
fn filter(rng: &mut Rng, depth: usize) -> Filter {
    let label = |rng: &mut Rng, vocabulary: super::objects::Vocabulary| {
        if rng.chance(30) {
            let (key, values) = rng.pick(vocabulary);
            let value = rng.pick(values);
            let part = text(&value[..value.len().min(1)]);
            let condition = match rng.below(3) {
                0 => Condition::Contains(part),
                1 => Condition::StartsWith(part),
                _ => Condition::EndsWith(part),
            };
            return Requirement { key: text(key), condition };
        }
        selector(rng, vocabulary, 0).requirements()[0].clone()
    };
    let several = |rng: &mut Rng| (0..1 + rng.below(3)).map(|_| filter(rng, depth - 1)).collect();
    match rng.below(if depth == 0 { 5 } else { 9 }) {
        0 | 1 => Filter::Label(label(rng, POD_LABELS)),
        2 => Filter::NamespaceLabel(label(rng, SCOPE_LABELS)),
        3 => Filter::Namespaces((0..1 + rng.below(2)).map(|_| text(rng.pick(&NAMESPACES))).collect()),
        4 => Filter::ServiceAccount(Condition::In(
            (0..1 + rng.below(2)).map(|_| text(rng.pick(&SERVICE_ACCOUNTS))).collect(),
        )),
        5 => Filter::All(several(rng)),
        6 => Filter::Any(several(rng)),
        _ => Filter::Not(Box::new(filter(rng, depth - 1))),
    }
}

fn rules(rng: &mut Rng, direction: Direction, is_union: bool) -> Vec<ClusterRule> {
    let count = rng.pick(&[0, 0, 1, 1, 2, 3]);
    let rule = |rng: &mut Rng| {
        let action = match rng.below(10) {
            0..5 => RuleAction::Accept,
            5..8 => RuleAction::Deny,
            _ if is_union => RuleAction::Deny,
            _ => RuleAction::Pass,
        };
        let peers = (!rng.chance(15)).then(|| {
            let count = rng.pick(&[1, 1, 2, 3]);
            (0..count).map(|_| peer(rng, direction, action)).collect()
        });
        // At least one port has a number, so that the rule may match something.
        let ports = (!rng.chance(35)).then(|| {
            let numbers = numbers(rng);
            let others = rng.pick(&[0, 1, 1, 2]);
            std::iter::once(numbers).chain((0..others).map(|_| port(rng))).collect()
        });
        let then = (action == RuleAction::Accept && rng.chance(10)).then(|| text("HTTP rules"));
        ClusterRule { name: None, action, traffic: PolicyRule { peers, ports }, then, at: None }
    };
    (0..count).map(|_| rule(rng)).collect()
}

fn peer(rng: &mut Rng, direction: Direction, action: RuleAction) -> Peer {
    match rng.below(12) {
        0 | 1 => Peer::Block(block(rng)),
        2 => Peer::Nodes(selector(rng, NODE_LABELS, 30)),
        3 if action != RuleAction::Pass => Peer::OwnNode,
        4 if direction == Direction::Egress && action == RuleAction::Accept => {
            Peer::Names([text("*.example.org")].into())
        }
        5..9 => Peer::Region(Arc::new(region(rng))),
        _ => Peer::Pods(pods(rng)),
    }
}

fn region(rng: &mut Rng) -> Region {
    let part = |rng: &mut Rng| match rng.below(5) {
        0 | 1 => Peer::Block(block(rng)),
        2 => Peer::Nodes(selector(rng, NODE_LABELS, 50)),
        _ => Peer::Pods(pods(rng)),
    };
    let union = |rng: &mut Rng| (0..1 + rng.below(2)).map(|_| part(rng)).collect();
    Region {
        all: (0..rng.pick(&[0, 1, 1, 1, 2])).map(|_| union(rng)).collect(),
        none: (0..rng.pick(&[0, 1, 1, 2])).map(|_| part(rng)).collect(),
    }
}

/// Protocols and ports by number, as readers compute them: ICMP types, other protocols, and complements of ports and protocols.
fn numbers(rng: &mut Rng) -> PolicyPort {
    let (protocols, first, last) = rng.pick(&[
        ((1, 1), 0, u16::MAX),
        ((1, 1), 0x0800, 0x08ff),
        ((58, 58), 0x8000, 0x80ff),
        ((47, 47), 0, u16::MAX),
        ((0, 5), 0, u16::MAX),
        ((7, 255), 0, u16::MAX),
        ((6, 6), 0, 79),
        ((6, 6), 81, u16::MAX),
        ((17, 17), 53, 53),
        ((6, 6), 80, 80),
        ((6, 6), 8_080, 9_090),
        ((132, 132), 0, u16::MAX),
    ]);
    PolicyPort::Numbers { protocols, first, last }
}

/// Reduces the port ranges of a cluster policy to at most three ports, and regions to the addresses of pods.
pub(crate) fn narrow(policy: &mut ClusterPolicy) {
    for rule in policy.ingress.iter_mut().chain(&mut policy.egress) {
        for port in rule.traffic.ports.iter_mut().flatten() {
            match port {
                PolicyPort::Numbers { protocols: (6 | 17 | 132, 6 | 17 | 132), first, last }
                | PolicyPort::Range { first, last, .. } => *last = (*last).min(first.saturating_add(2)),
                _ => {}
            }
        }
        for peer in rule.traffic.peers.iter_mut().flatten() {
            let Peer::Region(region) = peer else { continue };
            let blocks = ["10.1.0.0/24", "fd01::/120"]
                .map(|cidr| Peer::Block(IpBlock { cidr: cidr.parse().unwrap(), except: Vec::new() }));
            Arc::make_mut(region).all.push(blocks.into());
        }
    }
}
