//! The enforced state of a node as a value. Comparing two states yields a change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{AddressSet, OriginId};

use super::rules;
use crate::contract::{Endpoint, ListId, SetId, TieredList};
use crate::object::{PodName, RuleAction};
use crate::origin::{Direction, Origins};

/// The pod behind an interface and its rules, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    /// The uplink, or another interface without policy.
    NoPod,
    /// A pod without state. Its traffic is dropped.
    Closed(PodName),
    Pod(Arc<Endpoint>),
}

impl Workload {
    pub(super) const fn is_pod(&self) -> bool {
        !matches!(self, Self::NoPod)
    }

    /// Returns the addresses that the workload may send from.
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

/// The enforced state of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Workloads by interface.
    pub(super) workloads: BTreeMap<Arc<str>, Workload>,
    pub(super) sets: BTreeMap<SetId, Arc<AddressSet>>,
    /// The node's own addresses.
    pub(super) own: Arc<AddressSet>,
    /// Addresses of the node's pods whose interface is unknown.
    pub(super) unplaced: BTreeSet<IpAddr>,
    /// Addresses of all pods of the node.
    pub(super) local: BTreeSet<IpAddr>,
}

impl State {
    /// Whether the states differ only in sets and in the node's own addresses.
    pub(super) fn has_the_workloads_of(&self, other: &Self) -> bool {
        self.workloads == other.workloads && self.unplaced == other.unplaced && self.local == other.local
    }

    /// Returns the rule lists that pods of the node have, each with its direction.
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

    /// Returns the counters of rules by name, each with its origin.
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

    /// Returns the elements of the set of allowed pairs of interface and source address, for one address family.
    pub(super) fn sources(&self, v4: bool) -> BTreeSet<String> {
        let pairs = self.workloads.iter().flat_map(|(name, workload)| {
            workload.addresses().iter().filter(move |address| address.is_ipv4() == v4).map(move |a| (name, a))
        });
        pairs.map(|(name, address)| format!("\"{name}\" . {address}")).collect()
    }

    /// Returns the quoted names of all known interfaces, or only of pods' interfaces.
    pub(super) fn names(&self, pods: bool) -> BTreeSet<String> {
        let named = self.workloads.iter().filter(|(_, workload)| !pods || workload.is_pod());
        named.map(|(name, _)| format!("\"{name}\"")).collect()
    }

    /// Returns the elements of a direction's verdict map: for each pod's interface, the chain with the pod's rules.
    pub(super) fn dispatch(&self, direction: Direction) -> BTreeSet<String> {
        let pods = self.workloads.iter().filter(|(_, workload)| workload.is_pod());
        pods.map(|(name, _)| format!("\"{name}\" : goto {}", rules::workload_chain(name, direction))).collect()
    }
}
