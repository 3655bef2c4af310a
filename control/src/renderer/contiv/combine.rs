//! Contiv's `CombineRules` for one pair of pods, and the table that results from all pairs.
//!
//! The *owner* is the pod of the table; the *other* is the pod at the far end. Both lists cover the table's traffic, but no table of the
//! other pod sees it:
//!
//! ```text
//!  orientation   owner is   own list        other is     other's list
//!  Egress        receiver   its ingress     sender       its egress
//!  Ingress       sender     its egress      receiver     its ingress
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{Action, Service};
use ipnet::IpNet;

use super::Orientation;
use super::allowed_ports::AllowedPorts;
use super::list::{PeerList, PeerRule};
use super::rules::Rules;
use crate::renderer::contiv::tuple::SixTuple;

/// The rules that replace the owner's rules for single addresses of others: the allowed ports, then a deny.
pub(super) type Overlay = BTreeMap<IpAddr, Arc<[PeerRule]>>;

/// Returns the rules for one address of another pod. `own` is what the owner's list allows with that address. `None` if the owner's rules
/// apply unchanged: the other's list allows everything, or the owner's is at least as strict.
pub(super) fn pair(
    own: &AllowedPorts,
    address: IpAddr,
    other: &PeerList,
    owner: &BTreeSet<IpAddr>,
) -> Option<Arc<[PeerRule]>> {
    if own.is_nothing() {
        return None;
    }
    // Usually one address at most is of the family. If more are, a rule without the owner's address must hold for all.
    let of_family = owner.iter().filter(|own| own.is_ipv4() == address.is_ipv4());
    let theirs = of_family.map(|&own| other.allowed(own)).reduce(|a, b| a.intersect(&b))?;
    if own.is_subset(&theirs) {
        return None;
    }
    let peer = Some(IpNet::from(address));
    let both = own.intersect(&theirs);
    let allow = |service: Service| PeerRule { peer, service: Some(service), action: Action::Allow };
    Some(both.services().map(allow).chain([PeerRule { peer, ..PeerRule::DENY_THE_REST }]).collect())
}

/// Combines one owner with all others.
///
/// Only others that the owner's list allows can need a rule. A range lookup finds them.
pub(super) fn overlay(own: &PeerList, owner: &BTreeSet<IpAddr>, others: &BTreeMap<IpAddr, Arc<PeerList>>) -> Overlay {
    let combine = |(&address, other): (&IpAddr, &Arc<PeerList>)| {
        other.is_closed().then(|| Some((address, pair(&own.allowed(address), address, other, owner)?)))?
    };
    let mut blocks = Vec::new();
    if own.is_closed() {
        for network in own.networks() {
            blocks.extend(network);
            if network.is_none() || blocks.len() >= others.len() {
                return others.iter().filter_map(combine).collect();
            }
        }
        return blocks
            .iter()
            .flat_map(|block| others.range(block.network()..=block.broadcast()))
            .filter_map(combine)
            .collect();
    }
    others.iter().filter_map(combine).collect()
}

/// Returns an upper bound of the number of rules that [`local_rules`] produces.
pub(super) fn size(own: &PeerList, overlay: &Overlay) -> usize {
    own.rules().len() + overlay.values().map(|rules| rules.len()).sum::<usize>() + 1
}

/// Returns the owner's table: its own rules, with the overlay's rules instead of those for the same single addresses. An allow of the rest
/// follows if no rule decides it. Rules for wider networks stay, because host rules sort before them.
pub(super) fn local_rules(orientation: Orientation, own: &PeerList, overlay: &Overlay) -> Rules {
    let replaced = |rule: &&PeerRule| {
        let host = rule.peer.filter(|net| net.prefix_len() == net.max_prefix_len());
        host.is_none_or(|net| !overlay.contains_key(&net.addr()))
    };
    let rules = own.rules().iter().filter(replaced).chain(overlay.values().flat_map(|rules| rules.iter()));
    let mut rules: Vec<_> = rules.map(|rule| own_side(orientation, rule)).collect();
    // The stable sort merges two sorted runs.
    rules.sort();
    if rules.last().is_some_and(|last| *last != SixTuple::any(last.action)) {
        rules.push(SixTuple::any(Action::Allow));
    }
    Rules::of_sorted(&rules)
}

/// Returns the tuple of a rule in the pod's own table, with the pod's side left out.
fn own_side(orientation: Orientation, rule: &PeerRule) -> SixTuple {
    let PeerRule { peer, service, action } = *rule;
    match orientation {
        Orientation::Egress => SixTuple { src: peer, dst: None, service, action },
        Orientation::Ingress => SixTuple { src: None, dst: peer, service, action },
    }
}

/// Returns the rules of one address in the global table. Rules for the other address family are left out, as they would match nothing.
pub(super) fn global_rules(
    orientation: Orientation,
    address: IpAddr,
    rules: impl IntoIterator<Item = PeerRule>,
) -> impl Iterator<Item = SixTuple> {
    let pod = Some(IpNet::from(address));
    rules.into_iter().filter(move |rule| is_of_family(address, rule)).map(move |PeerRule { peer, service, action }| {
        match orientation {
            Orientation::Egress => SixTuple { src: pod, dst: peer, service, action },
            Orientation::Ingress => SixTuple { src: peer, dst: pod, service, action },
        }
    })
}

/// Returns the number of rules that [`global_rules`] produces from a list.
pub(super) fn global_size(address: IpAddr, list: &PeerList) -> usize {
    list.rules().iter().filter(|rule| is_of_family(address, rule)).count()
}

fn is_of_family(address: IpAddr, rule: &PeerRule) -> bool {
    rule.peer.is_none_or(|net| net.addr().is_ipv4() == address.is_ipv4())
}
