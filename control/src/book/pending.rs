//! What a batch did to the sets, netted: what comes and goes within it was never there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;

use super::port_name::{Anywhere, PortName};
use crate::contract::SetId;
use crate::object::{PodPeer, PolicyName};
use crate::selector::Selector;

/// What makes two sets the same one over a fresh start.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SetKey {
    Group(PodPeer),
    NamedIn(PodPeer, PortName, u16),
    NamedAnywhere(Anywhere, PortName, u16),
    Block(Arc<AddressSet>),
    Nodes(Selector),
    Quarantine,
}

/// Gives the identities of sets.
#[derive(Debug, Default)]
pub(super) struct Identities {
    pub(super) given: u64,
    /// The sets of before a fresh start.
    pub(super) before: AHashMap<SetKey, SetId>,
}

impl Identities {
    /// The identity of a set of this meaning: that of before a fresh start, or a new one.
    pub(super) fn of(&mut self, key: &SetKey) -> SetId {
        self.before.get(key).copied().unwrap_or_else(|| {
            self.given += 1;
            SetId(self.given)
        })
    }
}

/// What happened since the last commit.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// Sets that were not there. They are read whole at the end.
    pub(super) fresh: BTreeSet<SetId>,
    pub(super) moves: BTreeMap<SetId, Moves>,
    /// Policies whose port names stand for other numbers.
    pub(super) renumbered: BTreeSet<PolicyName>,
    /// Whether something may have lost its last user or its last pod.
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

    /// Replaces what a pod contributes to a set. `others` says whether another pod contributes an address.
    pub(super) fn shift(&mut self, set: SetId, old: &[IpAddr], new: &[IpAddr], others: impl Fn(IpAddr) -> bool) {
        for &address in new.iter().filter(|address| !old.contains(address) && !others(**address)) {
            self.add(set, address);
        }
        for &address in old.iter().filter(|address| !new.contains(address) && !others(**address)) {
            self.remove(set, address);
        }
    }
}

/// The removal of what nobody uses.
pub(super) struct Sweep<'a> {
    pub(super) pending: &'a mut Pending,
    /// Sets that are gone and that somebody was told of.
    pub(super) dropped: &'a mut BTreeSet<SetId>,
}

impl Sweep<'_> {
    /// Gives up a set. One that is as young as the batch was never told of.
    pub(super) fn drop_set(&mut self, set: SetId) {
        self.pending.moves.remove(&set);
        if !self.pending.fresh.remove(&set) {
            self.dropped.insert(set);
        }
    }
}

/// The identity of a set that was not there, as far as this batch is concerned.
pub(super) fn fresh(identities: &mut Identities, pending: &mut Pending, key: &SetKey) -> SetId {
    let set = identities.of(key);
    pending.fresh.insert(set);
    set
}
