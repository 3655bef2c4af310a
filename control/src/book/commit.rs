//! The end of a batch: removes unused parts of the book and reports the changes.

#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;

#[cfg(test)]
use super::Named;
use super::pending::{Moves, Pending, Sweep};
use super::{AddressBook, Anywhere, GroupId, PortName};
use crate::cache::Cache;
use crate::contract::{SetDelta, SetId};
use crate::object::PolicyName;

/// The changes of one batch.
#[derive(Debug, Default)]
pub(crate) struct CommittedSets {
    /// New and changed sets, by identity.
    pub(crate) sets: Vec<SetDelta>,
    /// Sets that no policy uses any more, by identity.
    pub(crate) dropped: Vec<SetId>,
    /// Policies with a port name whose numbers changed.
    pub(crate) renumbered: BTreeSet<PolicyName>,
}

impl AddressBook {
    /// Ends the batch: removes unused parts and returns the changes.
    pub(crate) fn commit(&mut self, cache: &Cache) -> CommittedSets {
        let mut dropped = BTreeSet::new();
        if std::mem::take(&mut self.pending.idle) {
            self.sweep(&mut dropped);
        }
        let mut sets = self.follow_regions(cache);
        let Pending { fresh, moves, renumbered, .. } = std::mem::take(&mut self.pending);
        let moves = moves.into_iter().filter(|(_, moves)| !(moves.added.is_empty() && moves.removed.is_empty()));
        let delta = |(set, Moves { added, removed })| SetDelta {
            set,
            added: Arc::new(added.into_iter().collect()),
            removed: Arc::new(removed.into_iter().collect()),
        };
        sets.extend(moves.map(delta));
        if !fresh.is_empty() {
            let whole = |(set, added)| SetDelta { set, added, removed: Arc::default() };
            sets.extend(self.members(cache, &fresh).into_iter().map(whole));
        }
        sets.sort_by_key(|delta| delta.set);
        self.identities.before = AHashMap::new();
        CommittedSets { sets, dropped: dropped.into_iter().collect(), renumbered }
    }

    /// Removes parts without users, and numbers of port names that no pod has.
    fn sweep(&mut self, dropped: &mut BTreeSet<SetId>) {
        let mut sweep = Sweep { pending: &mut self.pending, dropped };
        for (at, slot) in self.groups.iter_mut().enumerate() {
            let Some(group) = slot else { continue };
            let in_use = !group.users.is_empty();
            group.named.retain(|_, named| named.sweep(in_use, &mut sweep));
            if in_use {
                continue;
            }
            sweep.drop_set(group.set);
            self.by_peer.remove(&group.peer);
            self.candidates.remove(&group.peer, GroupId(at));
            *slot = None;
            self.free.push(GroupId(at));
        }
        self.anywhere.retain(|_, places| {
            places.retain(|_, named| named.sweep(true, &mut sweep));
            !places.is_empty()
        });
        let anywhere = &self.anywhere;
        self.regions.retain(|_, region| {
            let has = |name: &PortName, number| {
                let everybody = anywhere.get(name).and_then(|places| places.get(&Anywhere::Everybody));
                everybody.is_some_and(|named| named.numbers().any(|(of, _)| of == number))
            };
            region.sweep(has, &mut sweep)
        });
        self.nodes.retain(|_, nodes| {
            let in_use = !nodes.users.is_empty();
            if !in_use {
                sweep.drop_set(nodes.set);
            }
            in_use
        });
        if let Some(idle) = self.quarantine.take_if(|quarantine| quarantine.users.is_empty()) {
            sweep.drop_set(idle.set);
        }
        self.blocks.retain(|_, block| {
            let in_use = !block.users.is_empty();
            if !in_use {
                sweep.drop_set(block.set);
            }
            in_use
        });
    }

    /// Returns the members of these sets according to the cache.
    fn members(&self, cache: &Cache, of: &BTreeSet<SetId>) -> Vec<(SetId, Arc<AddressSet>)> {
        let mut all = Vec::with_capacity(of.len());
        for group in self.groups.iter().flatten() {
            let pods = || group.members.iter().filter_map(|&key| cache.pod(key)).map(|pod| &**pod);
            if of.contains(&group.set) {
                all.push((group.set, Arc::new(pods().flat_map(|pod| pod.addresses.iter().copied()).collect())));
            }
            for (name, named) in &group.named {
                all.extend(named.members(name, of, pods));
            }
        }
        let pods = || cache.pods().map(|(_, pod)| &**pod).filter(|pod| pod.is_endpoint());
        for (name, places) in &self.anywhere {
            for named in places.values() {
                all.extend(named.members(name, of, pods));
            }
        }
        let told = self.nodes.values().chain(&self.quarantine).filter(|told| of.contains(&told.set));
        all.extend(told.map(|told| (told.set, Arc::new(told.addresses.iter().copied().collect()))));
        let blocks = self.blocks.iter().map(|(addresses, block)| (block.set, addresses.clone()));
        all.extend(blocks.filter(|(set, _)| of.contains(set)));
        let regions = self.region_sets().filter(|(set, _)| of.contains(set));
        all.extend(regions.map(|(set, members)| (set, members.clone())));
        all
    }

    /// Returns all sets with their members: the slow reference for the deltas.
    #[cfg(test)]
    pub(crate) fn all(&self, cache: &Cache) -> BTreeMap<SetId, AddressSet> {
        let named = |named: &Named| named.numbers().map(|(_, set)| set).collect::<Vec<_>>();
        let groups = self.groups.iter().flatten();
        let of_groups = groups.flat_map(|group| group.named.values().flat_map(named).chain([group.set]));
        let anywhere = self.anywhere.values().flat_map(|places| places.values()).flat_map(named);
        let told = self.nodes.values().chain(&self.quarantine).map(|told| told.set);
        let ids = of_groups.chain(anywhere).chain(told).chain(self.blocks.values().map(|block| block.set)).collect();
        let members = self.members(cache, &ids).into_iter();
        let all = members.map(|(set, members)| (set, AddressSet::clone(&members)));
        all.chain(self.regions_again(cache)).collect()
    }
}
