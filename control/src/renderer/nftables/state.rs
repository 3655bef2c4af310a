//! What there is to enforce on a node, as a value: two of them say what a change is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{AddressSet, OriginId};

use super::rules;
use crate::contract::{Endpoint, ListId, SetId, TieredList};
use crate::object::{PodName, RuleAction};
use crate::origin::{Direction, Origins};

/// What is behind an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    /// The uplink, or whatever else policy says nothing of.
    NoPod,
    /// A pod that nothing is known of: nothing passes.
    Closed(PodName),
    /// A pod.
    Pod(Arc<Endpoint>),
}

impl Workload {
    pub(super) const fn is_pod(&self) -> bool {
        !matches!(self, Self::NoPod)
    }

    /// The addresses that it may speak for.
    pub(super) fn addresses(&self) -> &[IpAddr] {
        match self {
            Self::Pod(endpoint) => &endpoint.addresses,
            Self::NoPod | Self::Closed(_) => &[],
        }
    }

    pub(super) fn list(&self, direction: Direction) -> Option<&Arc<TieredList>> {
        let Self::Pod(endpoint) = self else { return None };
        match direction {
            Direction::Ingress => endpoint.rules.ingress.as_ref(),
            Direction::Egress => endpoint.rules.egress.as_ref(),
        }
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// By interface.
    pub(super) workloads: BTreeMap<Arc<str>, Workload>,
    pub(super) sets: BTreeMap<SetId, Arc<AddressSet>>,
    /// The node's own addresses.
    pub(super) own: Arc<AddressSet>,
    /// Addresses of the node's pods whose interface nobody knows.
    pub(super) unplaced: BTreeSet<IpAddr>,
    /// Addresses of all of the node's pods.
    pub(super) local: BTreeSet<IpAddr>,
}

impl State {
    /// Whether nothing but sets, and the node's own addresses, differs.
    pub(super) fn has_the_workloads_of(&self, other: &Self) -> bool {
        self.workloads == other.workloads && self.unplaced == other.unplaced && self.local == other.local
    }

    /// The lists in use.
    pub(super) fn lists(&self) -> BTreeMap<ListId, (Direction, Arc<TieredList>)> {
        let mut lists = BTreeMap::new();
        for workload in self.workloads.values() {
            for direction in [Direction::Ingress, Direction::Egress] {
                if let Some(list) = workload.list(direction) {
                    lists.insert(list.id, (direction, list.clone()));
                }
            }
        }
        lists
    }

    /// The counters of rules, by name, each with what it counts for.
    pub(super) fn counters(&self) -> BTreeMap<String, OriginId> {
        let mut counters = BTreeMap::new();
        let mut add = |action, origin| counters.insert(rules::counter(action, origin), origin);
        for (_, list) in self.lists().values() {
            for rule in &list.rules {
                add(rule.action, rule.origin);
            }
        }
        add(RuleAction::Accept, Origins::OWN_POD);
        for direction in [Direction::Ingress, Direction::Egress] {
            add(RuleAction::Accept, Origins::not_isolated(direction));
        }
        counters
    }

    /// The elements of a set of pairs of interface and address that pods may speak for, of this family.
    pub(super) fn sources(&self, v4: bool) -> BTreeSet<String> {
        let pairs = self.workloads.iter().flat_map(|(name, workload)| {
            workload.addresses().iter().filter(move |address| address.is_ipv4() == v4).map(move |a| (name, a))
        });
        pairs.map(|(name, address)| format!("\"{name}\" . {address}")).collect()
    }

    /// The interfaces that are known, or only those of pods.
    pub(super) fn names(&self, pods: bool) -> BTreeSet<String> {
        let named = self.workloads.iter().filter(|(_, workload)| !pods || workload.is_pod());
        named.map(|(name, _)| format!("\"{name}\"")).collect()
    }

    /// The elements of the map of a direction.
    pub(super) fn dispatch(&self, direction: Direction) -> BTreeSet<String> {
        let pods = self.workloads.iter().filter(|(_, workload)| workload.is_pod());
        pods.map(|(name, _)| format!("\"{name}\" : goto {}", rules::workload_chain(name, direction))).collect()
    }
}
