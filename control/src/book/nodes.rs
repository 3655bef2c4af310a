//! Sets of node addresses by label selector, and the set of quarantined addresses ([`crate::claims`]).
//!
//! A node's addresses are those of its object and of its host-network pods, even if the object does not list them. Source:
//! sigs.k8s.io/network-policy-api, NPEP-126 (a `nodes` peer reaches the node's host-network pods). A node without an object has no labels,
//! so only a selector without requirements matches it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::pending::Pending;
use super::{AddressBook, SetKey, fresh};
use crate::cache::Cache;
use crate::contract::SetId;
use crate::object::PolicyName;
use crate::selector::Selector;

/// A set whose addresses the cache computes as a whole: nodes of a selector, or quarantined addresses.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) set: SetId,
    pub(super) users: BTreeSet<PolicyName>,
    /// The current addresses. A deleted node no longer lists the addresses to remove.
    pub(super) addresses: BTreeSet<IpAddr>,
}

impl Told {
    fn follow(&mut self, addresses: BTreeSet<IpAddr>, pending: &mut Pending) {
        let before = std::mem::replace(&mut self.addresses, addresses);
        self.addresses.difference(&before).for_each(|&address| pending.add(self.set, address));
        before.difference(&self.addresses).for_each(|&address| pending.remove(self.set, address));
    }
}

impl AddressBook {
    /// Returns the set of a selector's nodes. Panics if no policy uses the selector.
    pub(crate) fn nodes(&self, selector: &Selector) -> SetId {
        self.nodes.get(selector).expect("a policy's nodes are made before it is compiled").set
    }

    /// Registers `user` as a user of a selector's nodes.
    pub(crate) fn acquire_nodes(&mut self, cache: &Cache, selector: &Selector, user: &PolicyName) {
        let (identities, pending) = (&mut self.identities, &mut self.pending);
        let nodes = self.nodes.entry(selector.clone()).or_insert_with(|| Told {
            set: fresh(identities, pending, &SetKey::Nodes(selector.clone())),
            users: BTreeSet::new(),
            addresses: addresses_of(cache, selector),
        });
        nodes.users.insert(user.clone());
    }

    /// Updates the sets after a change of a node or host-network pod. Reads all nodes per selector: both are few and seldom change.
    pub(crate) fn node_changed(&mut self, cache: &Cache) {
        for (selector, nodes) in &mut self.nodes {
            nodes.follow(addresses_of(cache, selector), &mut self.pending);
        }
    }

    /// Returns the set of quarantined addresses. Panics if no policy uses the set.
    pub(crate) fn quarantine(&self) -> SetId {
        self.quarantine.as_ref().expect("a policy's quarantine is made before it is compiled").set
    }

    /// Registers `user` as a user of the quarantined addresses.
    pub(crate) fn acquire_quarantine(&mut self, cache: &Cache, user: &PolicyName) {
        let (identities, pending) = (&mut self.identities, &mut self.pending);
        let quarantine = self.quarantine.get_or_insert_with(|| Told {
            set: fresh(identities, pending, &SetKey::Quarantine),
            users: BTreeSet::new(),
            addresses: cache.quarantined().clone(),
        });
        quarantine.users.insert(user.clone());
    }

    /// Updates the set after a change of the quarantined addresses.
    pub(crate) fn quarantine_changed(&mut self, cache: &Cache) {
        if let Some(quarantine) = &mut self.quarantine {
            quarantine.follow(cache.quarantined().clone(), &mut self.pending);
        }
    }
}

fn addresses_of(cache: &Cache, selector: &Selector) -> BTreeSet<IpAddr> {
    let selected = cache.nodes().values().filter(|node| selector.matches(&node.labels));
    let mut addresses: BTreeSet<IpAddr> = selected.flat_map(|node| node.addresses.iter().copied()).collect();
    for name in cache.host_networks() {
        let is_selected = match cache.nodes().get(name) {
            Some(node) => selector.matches(&node.labels),
            None => selector.requirements().is_empty(),
        };
        if is_selected {
            addresses.extend(cache.host_network_pods(name).flat_map(|pod| pod.addresses.iter().copied()));
        }
    }
    addresses
}
