//! Nodes by label, with the addresses that they say are theirs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{AddressBook, SetKey, fresh};
use crate::cache::Cache;
use crate::contract::SetId;
use crate::object::PolicyName;
use crate::selector::Selector;

/// The nodes of one selector.
#[derive(Debug)]
pub(super) struct Nodes {
    pub(super) set: SetId,
    pub(super) users: BTreeSet<PolicyName>,
    /// Kept, because a node that is gone no longer says what it had.
    pub(super) addresses: BTreeSet<IpAddr>,
}

impl AddressBook {
    /// The set of the nodes of a selector in use.
    pub(crate) fn nodes(&self, selector: &Selector) -> SetId {
        self.nodes.get(selector).expect("a policy's nodes are made before it is compiled").set
    }

    /// Lets `user` use the nodes of a selector.
    pub(crate) fn acquire_nodes(&mut self, cache: &Cache, selector: &Selector, user: &PolicyName) {
        let (identities, pending) = (&mut self.identities, &mut self.pending);
        let nodes = self.nodes.entry(selector.clone()).or_insert_with(|| Nodes {
            set: fresh(identities, pending, &SetKey::Nodes(selector.clone())),
            users: BTreeSet::new(),
            addresses: addresses_of(cache, selector),
        });
        nodes.users.insert(user.clone());
    }

    /// Follows a changed node. Reads all nodes for each selector in use: clusters have few of both, and nodes seldom change.
    pub(crate) fn node_changed(&mut self, cache: &Cache) {
        for (selector, nodes) in &mut self.nodes {
            let before = std::mem::replace(&mut nodes.addresses, addresses_of(cache, selector));
            nodes.addresses.difference(&before).for_each(|&address| self.pending.add(nodes.set, address));
            before.difference(&nodes.addresses).for_each(|&address| self.pending.remove(nodes.set, address));
        }
    }
}

fn addresses_of(cache: &Cache, selector: &Selector) -> BTreeSet<IpAddr> {
    let selected = cache.nodes().values().filter(|node| selector.matches(&node.labels));
    selected.flat_map(|node| node.addresses.iter().copied()).collect()
}
