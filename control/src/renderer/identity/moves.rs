//! The effect of a transaction on addresses: changes of their sets and of their endpoint.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;

use super::maps::Listed;
use super::parties::{Change, OWN_NODE, Parties, REMOTE_NODE, Tag, tag};
use super::{IdentityRenderer, Local};
use crate::contract::{Endpoint, ListId, SetDelta, TieredList, Transaction};
use crate::object::PodName;
use crate::origin::Direction;

/// Groups of addresses, each with the change to apply to its addresses.
#[derive(Default)]
pub(super) struct Moves(pub(super) Vec<(Arc<AddressSet>, Change)>);

impl Moves {
    fn push(&mut self, addresses: impl IntoIterator<Item = IpAddr>, change: Change) {
        let addresses: AddressSet = addresses.into_iter().collect();
        if !addresses.is_empty() {
            self.0.push((Arc::new(addresses), change));
        }
    }
}

impl IdentityRenderer {
    pub(super) fn take_endpoints(&mut self, transaction: &Transaction, moves: &mut Moves) -> (bool, BTreeSet<ListId>) {
        let (mut has_changed, mut dirty, mut bound) = (transaction.resync, BTreeSet::new(), Vec::new());
        let mut changes: Vec<(&PodName, Option<&Arc<Endpoint>>)> =
            transaction.endpoints.iter().map(|(name, endpoint)| (name, endpoint.as_ref())).collect();
        let gone: Vec<PodName>;
        if transaction.resync {
            let there: HashSet<&PodName> = transaction.endpoints.iter().map(|(name, _)| name).collect();
            gone = self.locals.keys().filter(|name| !there.contains(name)).cloned().collect();
            changes.extend(gone.iter().map(|name| (name, None)));
        }
        for (name, new) in changes {
            // Pods of other nodes are remote, even if their endpoint is known.
            let new = new.filter(|endpoint| endpoint.node == self.node);
            let old = self.locals.remove(name);
            if old.is_none() && new.is_none() {
                continue;
            }
            has_changed = true;
            let number = old.as_ref().map(|old| old.number).unwrap_or_else(|| {
                self.free.pop().unwrap_or_else(|| {
                    self.given += 1;
                    self.given - 1
                })
            });
            if let Some(new) = new {
                let rules = &new.rules;
                // Egress rules in `apart` need their sets here too: they decide about the pod's connections to itself.
                for (list, direction) in
                    [(rules.ingress.as_ref(), Direction::Ingress), (rules.whole_egress(), Direction::Egress)]
                {
                    let Some(list) = list else { continue };
                    self.acquire(list, direction, &mut dirty);
                }
                bound.push((number, new.addresses.clone()));
            }
            if let Some(old) = &old {
                old.endpoint.rules.lists().for_each(|list| self.release(list));
                moves.push(old.endpoint.addresses.iter().copied(), Change::Unbind(number));
            }
            match new {
                Some(endpoint) => drop(self.locals.insert(name.clone(), Local { number, endpoint: endpoint.clone() })),
                None => self.free.push(number),
            }
        }
        // After all removals, because an address may pass from one pod to another.
        for (number, addresses) in bound {
            moves.push(addresses, Change::Bind(number));
        }
        (has_changed, dirty)
    }

    fn acquire(&mut self, list: &Arc<TieredList>, direction: Direction, dirty: &mut BTreeSet<ListId>) {
        let by_tag = &mut self.by_tag;
        let listed = self.lists.entry(list.id).or_insert_with(|| {
            let listed = Listed::new(list.clone(), direction);
            for tag in listed.tags() {
                by_tag.entry(tag).or_default().insert(list.id);
            }
            dirty.insert(list.id);
            listed
        });
        listed.users += 1;
    }

    fn release(&mut self, list: &Arc<TieredList>) {
        let Some(listed) = self.lists.get_mut(&list.id) else { return };
        listed.users -= 1;
        if listed.users > 0 {
            return;
        }
        for tag in self.lists.remove(&list.id).iter().flat_map(Listed::tags) {
            if let Some(lists) = self.by_tag.get_mut(&tag) {
                lists.remove(&list.id);
                if lists.is_empty() {
                    self.by_tag.remove(&tag);
                }
            }
        }
    }

    /// Applies the transaction's changes of nodes. Returns whether the addresses of the renderer's node changed.
    pub(super) fn take_nodes(&mut self, transaction: &Transaction, moves: &mut Moves) -> bool {
        if transaction.nodes.is_empty() && !transaction.resync {
            return false;
        }
        let own_before = self.nodes.get(&self.node).cloned();
        let before = if transaction.resync { std::mem::take(&mut self.nodes) } else { self.nodes.clone() };
        for (name, node) in &transaction.nodes {
            match node {
                Some(node) => self.nodes.insert(name.clone(), node.addresses.clone()),
                None => self.nodes.remove(name),
            };
        }
        // Several nodes may claim an address, so all addresses are compared.
        let of = |nodes: &BTreeMap<Arc<str>, Vec<IpAddr>>, own: bool| -> AddressSet {
            let nodes = nodes.iter().filter(|(name, _)| (**name == self.node) == own);
            nodes.flat_map(|(_, addresses)| addresses.iter().copied()).collect()
        };
        for (own, tag) in [(true, OWN_NODE), (false, REMOTE_NODE)] {
            let (old, new) = (of(&before, own), of(&self.nodes, own));
            // After a resync the ipcache is empty.
            let old = if transaction.resync { AddressSet::default() } else { old };
            moves.0.push((Arc::new(old.subtract(&new)), Change::Leave(tag)));
            moves.0.push((Arc::new(new.subtract(&old)), Change::Enter(tag)));
        }
        own_before.as_ref() != self.nodes.get(&self.node)
    }

    pub(super) fn take_sets(transaction: &Transaction, moves: &mut Moves) {
        let change =
            |set: &SetDelta, entered| if entered { Change::Enter(tag(set.set)) } else { Change::Leave(tag(set.set)) };
        for entered in [false, true] {
            for delta in &transaction.sets {
                let addresses = if entered { &delta.added } else { &delta.removed };
                if !addresses.is_empty() {
                    moves.0.push((addresses.clone(), change(delta, entered)));
                }
            }
        }
    }

    /// Applies the moves to the ipcache. Returns the lists that name a new identity.
    pub(super) fn move_addresses(&mut self, transaction: &Transaction, moves: &Moves) -> BTreeSet<ListId> {
        let sets: Vec<&AddressSet> = moves.0.iter().map(|(addresses, _)| &**addresses).collect();
        if transaction.resync {
            self.cache = Arc::default();
        }
        if sets.iter().any(|set| !set.is_empty()) {
            let parties = &mut self.parties;
            // Many addresses undergo the same changes.
            let mut known = AHashMap::<(u32, Vec<usize>), u32>::new();
            let next = |number: u32, changes: &[usize]| {
                let after = |parties: &mut Parties| parties.after(number, changes.iter().map(|&at| &moves.0[at].1));
                *known.entry((number, changes.to_vec())).or_insert_with(|| after(parties))
            };
            self.cache = Arc::new(self.cache.changed(&sets, next));
        }
        if !transaction.dropped.is_empty() {
            let tags: Vec<Tag> = transaction.dropped.iter().map(|&set| tag(set)).collect();
            let instead = self.parties.retire(&tags);
            if !instead.is_empty() {
                self.cache = Arc::new(self.cache.renumbered(|number| *instead.get(&number).unwrap_or(&number)));
            }
        }
        let fresh = self.parties.take_fresh();
        let tags = fresh.iter().flat_map(|&identity| self.parties.sets_of(identity).iter());
        tags.filter_map(|tag| self.by_tag.get(tag)).flatten().copied().collect()
    }
}
