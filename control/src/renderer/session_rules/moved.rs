//! Compares the node's pods with an earlier version, in enough detail to find what must be computed again.
//!
//! A pod that appears on another node changes the lists of the local pods whose rules name it. Results for other addresses in these lists
//! stay valid.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{AddressSet, Addresses};
use ipnet::IpNet;

use crate::object::PodName;
use crate::renderer::plain::{PlainList, PlainPod};

/// The differences between two versions of the node's pods.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// Whether the node's addresses changed.
    pub(super) is_renumbered: bool,
    /// The pods that changed, were added or removed.
    pub(super) pods: BTreeMap<PodName, PodChange>,
}

/// The changes of one pod: its addresses, and the rules of both directions.
#[derive(Debug)]
pub(super) struct PodChange {
    /// Whether the pod's addresses changed, or the pod was added or removed.
    pub(super) is_elsewhere: bool,
    /// The pod's present and previous addresses.
    pub(super) addresses: BTreeSet<IpAddr>,
    pub(super) ingress: ListChange,
    pub(super) egress: ListChange,
}

/// The change of a pod's rules for one direction.
#[derive(Debug)]
pub(super) enum ListChange {
    /// No rule changed.
    None,
    /// Only the rules for these addresses changed.
    Peers(AddressSet),
    /// Any rule may have changed.
    Whole,
}

impl Moved {
    /// Compares two versions of the pods.
    pub(super) fn between(
        old: &BTreeMap<PodName, Arc<PlainPod>>,
        new: &BTreeMap<PodName, Arc<PlainPod>>,
        is_renumbered: bool,
    ) -> Self {
        let come = new.iter().filter_map(|(name, pod)| {
            let before = old.get(name);
            let is_same = before.is_some_and(|before| Arc::ptr_eq(before, pod));
            (!is_same).then(|| (name.clone(), PodChange::between(before.map(|before| &**before), Some(pod))))
        });
        let gone = old.iter().filter(|(name, _)| !new.contains_key(*name));
        let gone = gone.map(|(name, pod)| (name.clone(), PodChange::between(Some(pod), None)));
        Self { is_renumbered, pods: come.chain(gone).collect() }
    }

    /// Whether nothing changed.
    pub(super) fn is_nothing(&self) -> bool {
        !self.is_renumbered && self.pods.is_empty()
    }
}

impl PodChange {
    fn between(old: Option<&PlainPod>, new: Option<&PlainPod>) -> Self {
        let both = [old, new];
        let of = |list: fn(&PlainPod) -> Option<&PlainList>| {
            let [old, new] = both.map(|pod| pod.and_then(list));
            ListChange::between(old, new)
        };
        Self {
            is_elsewhere: old.map(|pod| &pod.addresses) != new.map(|pod| &pod.addresses),
            addresses: both.into_iter().flatten().flat_map(|pod| pod.addresses.iter().copied()).collect(),
            ingress: of(|pod| pod.ingress.as_deref()),
            egress: of(|pod| pod.egress.as_deref()),
        }
    }
}

impl ListChange {
    fn between(old: Option<&PlainList>, new: Option<&PlainList>) -> Self {
        let (old, new) = match (old, new) {
            (None, None) => return Self::None,
            (Some(old), Some(new)) if old.revision == new.revision => return Self::None,
            (Some(old), Some(new)) if old.rules.len() == new.rules.len() && old.own_node == new.own_node => (old, new),
            _ => return Self::Whole,
        };
        let mut peers = AddressSet::default();
        for (old, new) in old.rules.iter().zip(&new.rules) {
            if (&old.services, old.action, old.origin) != (&new.services, new.action, new.origin) {
                return Self::Whole;
            }
            match (&old.peers, &new.peers) {
                (Addresses::Any, Addresses::Any) => {}
                (old, new) => match (old.members(), new.members()) {
                    (Some(old), Some(new)) if std::ptr::eq(old, new) => {}
                    (Some(old), Some(new)) => peers = peers.union(&old.difference(new)),
                    _ => return Self::Whole,
                },
            }
        }
        if peers.is_empty() { Self::None } else { Self::Peers(peers) }
    }

    /// Whether the list's rules for these networks may have changed. Without networks, any address counts.
    pub(super) fn concerns(&self, networks: &[IpNet]) -> bool {
        match self {
            Self::None => false,
            Self::Peers(peers) => do_meet(networks, peers),
            Self::Whole => true,
        }
    }
}

/// Whether the set overlaps one of the networks. They are sorted and disjoint; without networks, any address matches.
fn do_meet(networks: &[IpNet], set: &AddressSet) -> bool {
    if networks.is_empty() {
        return !set.is_empty();
    }
    let meets = |first: IpAddr, last: IpAddr| {
        let end = networks.partition_point(|network| network.network() <= last);
        end > 0 && networks[end - 1].broadcast() >= first
    };
    let mut v4 = set.v4_intervals().iter().map(|&(first, last)| (IpAddr::V4(first.into()), IpAddr::V4(last.into())));
    let mut v6 = set.v6_intervals().iter().map(|&(first, last)| (IpAddr::V6(first.into()), IpAddr::V6(last.into())));
    v4.any(|(first, last)| meets(first, last)) || v6.any(|(first, last)| meets(first, last))
}
