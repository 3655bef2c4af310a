//! Intersection, disjointness and containment of rule terms, decided by the terms alone: true answers hold for any pods, labels and
//! addresses.

use std::sync::Arc;

use bulkhead_control::object::filter::Filter;
use bulkhead_control::object::{NAMESPACE_NAME_LABEL, NamespaceScope, Peer, PodPeer, PolicyPort, Region};
use bulkhead_control::selector::{Condition, Requirement, Selector};
use ipnet::IpNet;

/// An inclusive range of protocols and one of ports.
type Numbers = ((u8, u8), (u16, u16));

/// Returns the protocols and ports that the entry names by number. `None` for a port's name.
pub(super) fn numbers(port: &PolicyPort) -> Option<Numbers> {
    match *port {
        PolicyPort::All(of) => Some(((of.number(), of.number()), (0, u16::MAX))),
        PolicyPort::Range { transport: of, first, last } => Some(((of.number(), of.number()), (first, last))),
        PolicyPort::Numbers { protocols, first, last } => Some((protocols, (first, last))),
        PolicyPort::Named { .. } => None,
    }
}

/// Whether no pod can be in both.
pub(super) fn are_disjoint_pods(one: &PodPeer, other: &PodPeer) -> bool {
    are_disjoint_namespaces(&one.namespaces, &other.namespaces) || are_disjoint_selectors(&one.pods, &other.pods)
}

fn named(name: &Arc<str>) -> Requirement {
    Requirement { key: NAMESPACE_NAME_LABEL.into(), condition: Condition::In(vec![name.clone()]) }
}

/// Returns the scope as a selector of namespaces.
pub(super) fn selector_of(scope: &NamespaceScope) -> Selector {
    match scope {
        NamespaceScope::Own(name) => Selector::new([named(name)]),
        NamespaceScope::Selected(selector) => selector.clone(),
    }
}

fn are_disjoint_namespaces(one: &NamespaceScope, other: &NamespaceScope) -> bool {
    match (one, other) {
        (NamespaceScope::Own(one), NamespaceScope::Own(other)) => one != other,
        _ => are_disjoint_selectors(&selector_of(one), &selector_of(other)),
    }
}

fn are_disjoint_selectors(one: &Selector, other: &Selector) -> bool {
    let contradict =
        |one: &Requirement, other: &Requirement| one.key == other.key && contradict(&one.condition, &other.condition);
    one.requirements().iter().any(|one| other.requirements().iter().any(|other| contradict(one, other)))
}

fn contradict(one: &Condition, other: &Condition) -> bool {
    let holds = |condition: &Condition, value: &Arc<str>| {
        let requirement = Requirement { key: "k".into(), condition: condition.clone() };
        requirement.holds(&[("k".into(), value.clone())].into())
    };
    match (one, other) {
        (Condition::In(values), condition) | (condition, Condition::In(values)) => {
            !values.iter().any(|value| holds(condition, value))
        }
        (Condition::DoesNotExist, Condition::DoesNotExist | Condition::NotIn(_)) => false,
        (Condition::NotIn(_), Condition::DoesNotExist) => false,
        (Condition::DoesNotExist, _) | (_, Condition::DoesNotExist) => true,
        _ => false,
    }
}

/// Whether every pod of `one` is in `other`.
pub(super) fn is_within_pods(one: &PodPeer, other: &PodPeer) -> bool {
    let of = |one: &Selector, other: &Selector| other.requirements().iter().all(|of| one.requirements().contains(of));
    let namespaces = of(&selector_of(&one.namespaces), &selector_of(&other.namespaces));
    namespaces && of(&one.pods, &other.pods) && (other.filter.is_none() || one.filter == other.filter)
}

/// Returns the pods that are in both. `None` if none can be.
pub(super) fn meet_pods(one: &PodPeer, other: &PodPeer) -> Option<PodPeer> {
    if are_disjoint_pods(one, other) {
        return None;
    }
    let both = |one: &Selector, other: &Selector| {
        Selector::new(one.requirements().iter().chain(other.requirements()).cloned())
    };
    let namespaces = match (&one.namespaces, &other.namespaces) {
        (NamespaceScope::Own(name), NamespaceScope::Own(_)) => NamespaceScope::Own(name.clone()),
        (NamespaceScope::Own(name), NamespaceScope::Selected(all))
        | (NamespaceScope::Selected(all), NamespaceScope::Own(name))
            if all.requirements().iter().all(|of| &*of.key == NAMESPACE_NAME_LABEL) =>
        {
            NamespaceScope::Own(name.clone())
        }
        (one, other) => NamespaceScope::Selected(both(&selector_of(one), &selector_of(other))),
    };
    let filters: Vec<Filter> = [&one.filter, &other.filter].into_iter().flatten().map(|of| Filter::clone(of)).collect();
    let filter = (!filters.is_empty()).then(|| Arc::new(Filter::All(filters)));
    Some(PodPeer { namespaces, pods: both(&one.pods, &other.pods), filter })
}

fn are_disjoint_blocks(one: &IpNet, other: &IpNet) -> bool {
    !one.contains(other) && !other.contains(one)
}

/// Whether the region lacks all pods and all nodes.
pub(super) fn is_outside(region: &Region) -> bool {
    let has = |is: fn(&Peer) -> bool| region.none.iter().any(|peer| is_everyone(peer) && is(peer));
    has(|peer| matches!(peer, Peer::Pods(_))) && has(|peer| matches!(peer, Peer::Nodes(_)))
}

/// Whether the peer is all pods or all nodes.
pub(super) fn is_everyone(peer: &Peer) -> bool {
    match peer {
        Peer::Pods(pods) => {
            let namespaces = selector_of(&pods.namespaces);
            pods.filter.is_none() && pods.pods.requirements().is_empty() && namespaces.requirements().is_empty()
        }
        Peer::Nodes(selector) => selector.requirements().is_empty(),
        _ => false,
    }
}

/// Whether no address can be in both peers.
fn are_disjoint_peer(one: &Peer, other: &Peer) -> bool {
    match (one, other) {
        (Peer::Pods(one), Peer::Pods(other)) => are_disjoint_pods(one, other),
        (Peer::Block(one), Peer::Block(other)) => {
            are_disjoint_blocks(&one.cidr, &other.cidr)
                || one.except.iter().any(|except| except.contains(&other.cidr))
                || other.except.iter().any(|except| except.contains(&one.cidr))
        }
        (Peer::Pods(_), Peer::Nodes(_) | Peer::OwnNode) | (Peer::Nodes(_) | Peer::OwnNode, Peer::Pods(_)) => true,
        (Peer::Region(region), other) | (other, Peer::Region(region)) => {
            let is_inside = matches!(other, Peer::Pods(_) | Peer::Nodes(_) | Peer::OwnNode);
            (is_inside && is_outside(region))
                || region.all.iter().any(|union| union.iter().all(|part| are_disjoint_peer(part, other)))
        }
        _ => false,
    }
}

/// Whether no address can be in both lists. `None` is every address.
pub(super) fn are_disjoint_peers(one: &Option<Vec<Peer>>, other: &Option<Vec<Peer>>) -> bool {
    let is_empty = |peers: &Option<Vec<Peer>>| peers.as_ref().is_some_and(Vec::is_empty);
    match (one, other) {
        (Some(one), Some(other)) => one.iter().all(|one| other.iter().all(|other| are_disjoint_peer(one, other))),
        _ => is_empty(one) || is_empty(other),
    }
}

/// Returns the addresses that are in both lists. `None` is every address.
pub(super) fn meet_peers(one: &Option<Vec<Peer>>, other: &Option<Vec<Peer>>) -> Option<Vec<Peer>> {
    let (Some(ones), Some(others)) = (one, other) else { return one.clone().or_else(|| other.clone()) };
    let mut all = Vec::new();
    for one in ones {
        for other in others.iter().filter(|other| !are_disjoint_peer(one, other)) {
            let both = match (one, other) {
                (Peer::Pods(one), Peer::Pods(other)) => meet_pods(one, other).map(Peer::Pods),
                (one, other) if one == other => Some(one.clone()),
                (Peer::Block(one), Peer::Block(other)) if one.except.is_empty() && other.except.is_empty() => {
                    let inner = if one.cidr.contains(&other.cidr) { other } else { one };
                    Some(Peer::Block(inner.clone()))
                }
                (one, other) => {
                    let all = vec![vec![one.clone()], vec![other.clone()]];
                    Some(Peer::Region(Arc::new(Region { all, none: Vec::new() })))
                }
            };
            all.extend(both);
        }
    }
    Some(all)
}

fn are_disjoint_numbers(one: Numbers, other: Numbers) -> bool {
    let apart = |a: (u16, u16), b: (u16, u16)| a.1 < b.0 || b.1 < a.0;
    let wide = |of: (u8, u8)| (u16::from(of.0), u16::from(of.1));
    apart(wide(one.0), wide(other.0)) || apart(one.1, other.1)
}

/// Whether no packet can have protocol and port in both lists. `None` is everything.
pub(super) fn are_disjoint_ports(one: &Option<Vec<PolicyPort>>, other: &Option<Vec<PolicyPort>>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return false };
    let transport = |port: &PolicyPort| match port {
        PolicyPort::Named { transport, .. } => ((transport.number(), transport.number()), (0, u16::MAX)),
        other => numbers(other).unwrap_or(((0, u8::MAX), (0, u16::MAX))),
    };
    one.iter().all(|one| other.iter().all(|other| are_disjoint_numbers(transport(one), transport(other))))
}

/// Whether every packet of `one` is in `other`.
pub(super) fn is_within_ports(one: &Option<Vec<PolicyPort>>, other: &Option<Vec<PolicyPort>>) -> bool {
    let Some(other) = other else { return true };
    let Some(one) = one else { return false };
    let within = |one: &PolicyPort| {
        other.contains(one)
            || numbers(one).is_some_and(|(protocols, ports)| {
                other.iter().filter_map(numbers).any(|(wide, of)| {
                    wide.0 <= protocols.0 && protocols.1 <= wide.1 && of.0 <= ports.0 && ports.1 <= of.1
                })
            })
    };
    one.iter().all(within)
}

/// Returns what is in both lists. `None` is everything. The error says why no list of ports is.
pub(super) fn meet_ports(
    one: &Option<Vec<PolicyPort>>,
    other: &Option<Vec<PolicyPort>>,
) -> Result<Option<Vec<PolicyPort>>, String> {
    let (Some(ones), Some(others)) = (one, other) else { return Ok(one.clone().or_else(|| other.clone())) };
    let mut all = Vec::new();
    for one in ones {
        for other in others {
            if are_disjoint_ports(&Some(vec![one.clone()]), &Some(vec![other.clone()])) {
                continue;
            }
            match (numbers(one), numbers(other)) {
                (Some((a, x)), Some((b, y))) => all.push(PolicyPort::Numbers {
                    protocols: (a.0.max(b.0), a.1.min(b.1)),
                    first: x.0.max(y.0),
                    last: x.1.min(y.1),
                }),
                _ if one == other => all.push(one.clone()),
                (None, Some((_, (0, u16::MAX)))) => all.push(one.clone()),
                (Some((_, (0, u16::MAX))), None) => all.push(other.clone()),
                _ => return Err("the name of a port and a number may mean the same port of some pods".into()),
            }
        }
    }
    Ok(Some(all))
}
