//! Rules of a ClusterNetworkPolicy, with no more peers and protocols than a rule may have.

use bulkhead_classifier::AddressSet;
use bulkhead_control::object::{Direction, IpBlock, NamespaceScope, Peer, PodPeer, PolicyPort};
use bulkhead_control::selector::Selector;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::say::Traffic;
use super::terms::Step;

/// Maximum number of rules per direction, of peers and protocols of a rule, and of networks and names of a peer of a ClusterNetworkPolicy.
/// Source: the API of v1alpha2.
pub(super) const MAX_LISTED: usize = 25;

/// A rule of the target.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// The step that the rule comes from.
    pub(super) step: Step,
    pub(super) traffic: Traffic,
}

/// Returns the rules that say a step, without more peers and protocols than a rule may have.
pub(super) fn rules(step: &Step) -> Vec<Rule> {
    let everybody = || match step.direction {
        Direction::Ingress => {
            let namespaces = NamespaceScope::Selected(Selector::everything());
            vec![Peer::Pods(PodPeer { namespaces, pods: Selector::everything(), filter: None })]
        }
        Direction::Egress => {
            let all = [Ipv4Net::default().into(), Ipv6Net::default().into()];
            all.map(|cidr| Peer::Block(IpBlock { cidr, except: Vec::new() })).to_vec()
        }
    };
    let peers: Vec<Peer> = step.peers.clone().unwrap_or_else(everybody);
    let (pods, others): (Vec<Peer>, Vec<Peer>) = peers.into_iter().partition(|peer| matches!(peer, Peer::Pods(_)));
    let others = match step.direction {
        Direction::Ingress => Vec::new(),
        Direction::Egress => without_except(others),
    };
    let is_named = |port: &PolicyPort| matches!(port, PolicyPort::Named { .. });
    let named: Vec<PolicyPort> = step.ports.iter().flatten().filter(|port| is_named(port)).cloned().collect();
    let numbered: Option<Vec<PolicyPort>> =
        step.ports.as_ref().map(|ports| ports.iter().filter(|port| !is_named(port)).cloned().collect());
    let mut all = Vec::new();
    let mut add = |peers: &[Peer], ports: Option<Vec<PolicyPort>>| {
        if peers.is_empty() || ports.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        let parts: Vec<Option<Vec<PolicyPort>>> = match ports {
            None => vec![None],
            Some(ports) => ports.chunks(MAX_LISTED).map(|ports| Some(ports.to_vec())).collect(),
        };
        for peers in grouped(peers) {
            for ports in &parts {
                let traffic = Traffic { peers: Some(peers.clone()), ports: ports.clone() };
                all.push(Rule { step: step.clone(), traffic });
            }
        }
    };
    if named.is_empty() {
        add(&[pods, others].concat(), numbered);
    } else {
        // Only pods have names of ports.
        let of_pods = match &step.peers {
            None if step.direction == Direction::Egress => {
                let namespaces = NamespaceScope::Selected(Selector::everything());
                vec![Peer::Pods(PodPeer { namespaces, pods: Selector::everything(), filter: None })]
            }
            _ => pods.clone(),
        };
        add(&of_pods, Some(named));
        add(&[pods, others].concat(), numbered);
    }
    all
}

/// Returns the peers in groups that fit into a rule.
fn grouped(peers: &[Peer]) -> Vec<Vec<Peer>> {
    let (listed, others): (Vec<&Peer>, Vec<&Peer>) =
        peers.iter().partition(|peer| matches!(peer, Peer::Block(_) | Peer::Names(_)));
    let mut groups: Vec<Vec<Peer>> = Vec::new();
    let mut add = |part: Vec<Peer>, size: usize, left: &mut usize| {
        if *left < size || groups.is_empty() {
            groups.push(Vec::new());
            *left = MAX_LISTED;
        }
        if let Some(group) = groups.last_mut() {
            group.extend(part);
        }
        *left -= size;
    };
    let mut left = 0;
    for peer in others {
        add(vec![peer.clone()], 1, &mut left);
    }
    for part in listed.chunks(MAX_LISTED) {
        // Blocks share a peer, names another.
        let has = |is: fn(&Peer) -> bool| part.iter().any(|peer| is(peer));
        let size = usize::from(has(|peer| matches!(peer, Peer::Block(_))))
            + part.iter().filter(|peer| matches!(peer, Peer::Names(_))).count();
        add(part.iter().map(|peer| (*peer).clone()).collect(), size.min(MAX_LISTED), &mut left);
    }
    groups
}

/// Replaces blocks with exceptions by blocks without.
fn without_except(peers: Vec<Peer>) -> Vec<Peer> {
    let plain = |cidr: IpNet| Peer::Block(IpBlock { cidr, except: Vec::new() });
    let each = |peer: Peer| match peer {
        Peer::Block(IpBlock { cidr, except }) if !except.is_empty() => {
            let rest = AddressSet::from_iter([cidr]).subtract(&except.iter().copied().collect());
            rest.prefixes().map(plain).collect()
        }
        Peer::Names(names) => names.chunks(MAX_LISTED).map(|names| Peer::Names(names.into())).collect::<Vec<_>>(),
        peer => vec![peer],
    };
    let mut all = Vec::new();
    for peer in peers.into_iter().flat_map(each) {
        if !all.contains(&peer) {
            all.push(peer);
        }
    }
    all
}
