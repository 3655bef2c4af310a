//! Nodes by label, with the addresses that they say are theirs and those of their host-network pods.
//!
//! A host-network pod is its node, so that its address is the node's also where the node's object does not name it. Source:
//! sigs.k8s.io/network-policy-api, NPEP-126 (a `nodes` peer reaches the host-network pods of the node). A node without an object has
//! no labels that are known: only a selector without requirements matches it.
//!
//! Beside them the addresses of which it cannot be told whose they are ([`crate::claims`]).

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::pending::Pending;
use super::{AddressBook, SetKey, fresh};
use crate::cache::Cache;
use crate::contract::SetId;
use crate::object::PolicyName;
use crate::selector::Selector;

/// Addresses that the cache says at once: those of the nodes of a selector, or those that are quarantined.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) set: SetId,
    pub(super) users: BTreeSet<PolicyName>,
    /// Kept, because a node that is gone no longer says what it had.
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
    /// The set of the nodes of a selector in use.
    pub(crate) fn nodes(&self, selector: &Selector) -> SetId {
        self.nodes.get(selector).expect("a policy's nodes are made before it is compiled").set
    }

    /// Lets `user` use the nodes of a selector.
    pub(crate) fn acquire_nodes(&mut self, cache: &Cache, selector: &Selector, user: &PolicyName) {
        let (identities, pending) = (&mut self.identities, &mut self.pending);
        let nodes = self.nodes.entry(selector.clone()).or_insert_with(|| Told {
            set: fresh(identities, pending, &SetKey::Nodes(selector.clone())),
            users: BTreeSet::new(),
            addresses: addresses_of(cache, selector),
        });
        nodes.users.insert(user.clone());
    }

    /// Follows a changed node, or a host-network pod. Reads all nodes for each selector in use: clusters have few of both, and both seldom change.
    pub(crate) fn node_changed(&mut self, cache: &Cache) {
        for (selector, nodes) in &mut self.nodes {
            nodes.follow(addresses_of(cache, selector), &mut self.pending);
        }
    }

    /// The set of the quarantined addresses, in use.
    pub(crate) fn quarantine(&self) -> SetId {
        self.quarantine.as_ref().expect("a policy's quarantine is made before it is compiled").set
    }

    /// Lets `user` use the quarantined addresses.
    pub(crate) fn acquire_quarantine(&mut self, cache: &Cache, user: &PolicyName) {
        let (identities, pending) = (&mut self.identities, &mut self.pending);
        let quarantine = self.quarantine.get_or_insert_with(|| Told {
            set: fresh(identities, pending, &SetKey::Quarantine),
            users: BTreeSet::new(),
            addresses: cache.quarantined().clone(),
        });
        quarantine.users.insert(user.clone());
    }

    /// Follows the quarantined addresses.
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
