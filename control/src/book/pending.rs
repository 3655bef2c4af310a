//! The net changes of a batch: a change that the same batch reverts does not appear.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;

use super::port_name::{Anywhere, PortName};
use crate::contract::SetId;
use crate::object::{PodPeer, PolicyName, Region};
use crate::selector::Selector;

/// A set's meaning. Sets with equal keys keep their identity when the book starts over.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SetKey {
    Group(PodPeer),
    NamedIn(PodPeer, PortName, u16),
    NamedAnywhere(Anywhere, PortName, u16),
    Block(Arc<AddressSet>),
    Nodes(Selector),
    Quarantine,
    Region(Arc<Region>),
    NamedInRegion(Arc<Region>, PortName, u16),
}

/// Assigns identities to sets.
#[derive(Debug, Default)]
pub(super) struct Identities {
    pub(super) given: u64,
    /// The sets from before the book started over, until the first commit.
    pub(super) before: AHashMap<SetKey, SetId>,
}

impl Identities {
    /// Returns the set's identity from before the book started over, or a new one.
    pub(super) fn of(&mut self, key: &SetKey) -> SetId {
        self.before.get(key).copied().unwrap_or_else(|| {
            self.given += 1;
            SetId(self.given)
        })
    }
}

/// The changes since the last commit.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// New sets. The commit reads their members from the cache.
    pub(super) fresh: BTreeSet<SetId>,
    pub(super) moves: BTreeMap<SetId, Moves>,
    /// Policies with a port name whose numbers changed.
    pub(super) renumbered: BTreeSet<PolicyName>,
    /// Whether any part may have lost its last user or its last pod.
    pub(super) idle: bool,
}

/// Addresses that entered and left a set.
#[derive(Debug, Default)]
pub(super) struct Moves {
    pub(super) added: BTreeSet<IpAddr>,
    pub(super) removed: BTreeSet<IpAddr>,
}

impl Pending {
    pub(super) fn add(&mut self, set: SetId, address: IpAddr) {
        if !self.fresh.contains(&set) {
            let moves = self.moves.entry(set).or_default();
            if !moves.removed.remove(&address) {
                moves.added.insert(address);
            }
        }
    }

    pub(super) fn remove(&mut self, set: SetId, address: IpAddr) {
        if !self.fresh.contains(&set) {
            let moves = self.moves.entry(set).or_default();
            if !moves.added.remove(&address) {
                moves.removed.insert(address);
            }
        }
    }

    /// Replaces a pod's contribution to a set. `others` returns whether another pod contributes an address.
    pub(super) fn shift(&mut self, set: SetId, old: &[IpAddr], new: &[IpAddr], others: impl Fn(IpAddr) -> bool) {
        for &address in new.iter().filter(|address| !old.contains(address) && !others(**address)) {
            self.add(set, address);
        }
        for &address in old.iter().filter(|address| !new.contains(address) && !others(**address)) {
            self.remove(set, address);
        }
    }
}

/// The state that a removal of unused sets changes.
pub(super) struct Sweep<'a> {
    pub(super) pending: &'a mut Pending,
    /// Removed sets that an earlier commit reported.
    pub(super) dropped: &'a mut BTreeSet<SetId>,
}

impl Sweep<'_> {
    /// Drops a set. A set that is new in this batch was never reported, and neither is its removal.
    pub(super) fn drop_set(&mut self, set: SetId) {
        self.pending.moves.remove(&set);
        if !self.pending.fresh.remove(&set) {
            self.dropped.insert(set);
        }
    }
}

/// Returns the set's identity and marks the set as new in this batch.
pub(super) fn fresh(identities: &mut Identities, pending: &mut Pending, key: &SetKey) -> SetId {
    let set = identities.of(key);
    pending.fresh.insert(set);
    set
}
