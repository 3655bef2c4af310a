//! The queueing disciplines that the vswitch has created to attach filters. They outlive the process with its pins, so that `bulkhead cleanup`
//! removes these and no others: an interface may have had one before, with filters or without.
//!
//! The discipline of a link stays while the vswitch runs, also without a filter; that of a port goes with its last filter. To remove one, the kernel
//! stops the interface's transmit queues, and drops what is sent meanwhile.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::filter::{self, Filter};
use crate::io::xsk::links;
use crate::io::xsk::map::{MAP_HASH, Map, MapKind, NO_PREALLOC};

/// The map's keys are interface indexes. Its values mean nothing.
const KIND: MapKind<'_> = MapKind {
    kind: MAP_HASH,
    name: "bulkhead_qdiscs",
    key_size: 4,
    value_size: 4,
    entries: 1 << 13,
    flags: NO_PREALLOC,
};

/// The record of interfaces whose queueing discipline the vswitch has created.
#[derive(Debug)]
pub(super) struct Qdiscs {
    map: Map,
    /// The map's keys.
    known: Mutex<BTreeSet<u32>>,
}

impl Qdiscs {
    /// Opens the record that is pinned in a folder, or creates an empty one. Without a folder, it is not pinned.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn new(folder: Option<&Path>) -> io::Result<Self> {
        let map = Map::at(&KIND, folder)?;
        let known = keys(&map)?;
        Ok(Self { map, known: Mutex::new(known) })
    }

    /// Makes this filter the owner of its interface's queueing discipline if the record has that, from an earlier process. Records the discipline if the
    /// filter owns it already: attaching has created it.
    pub(super) fn claim(&self, filter: &mut Filter) {
        let (mut known, interface) = (self.lock(), filter.was_at());
        if !filter.owns_qdisc() {
            if known.contains(&interface) {
                filter.own_qdisc();
            }
            return;
        }
        if known.insert(interface) && self.map.insert(&interface.to_ne_bytes(), &[0; 4]).is_err() {
            // The map is full of interfaces that are gone. If this fails, `cleanup` leaves an empty queueing discipline.
            self.forget_gone(&mut known);
            let _ = self.map.insert(&interface.to_ne_bytes(), &[0; 4]);
        }
    }

    /// Removes the recorded queueing disciplines that have no filters. Their records stay.
    pub(super) fn remove(&self) {
        remove(&self.lock());
    }

    /// Removes the records of interfaces that no longer exist, `known` included. Changes nothing if the interfaces cannot be read.
    fn forget_gone(&self, known: &mut BTreeSet<u32>) {
        let Ok(present) = links() else { return };
        let present: BTreeSet<u32> = present.iter().map(|link| link.index).collect();
        known.retain(|interface| {
            let is_present = present.contains(interface);
            is_present || self.map.remove(&interface.to_ne_bytes()).is_err()
        });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        // Every change is atomic with respect to panics.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the interface indexes of the record that is pinned in this folder. `None` if there is none: the process had no pins, or was an older version.
pub(super) fn recorded(folder: &Path) -> Option<BTreeSet<u32>> {
    keys(&Map::pinned(&KIND, &folder.join(KIND.name)).ok()?).ok()
}

/// Removes the `clsact` queueing disciplines that have no filters from the interfaces with these indexes.
pub(super) fn remove(interfaces: &BTreeSet<u32>) {
    interfaces.iter().copied().for_each(filter::remove_empty_qdisc);
}

/// Returns the map's keys, interface indexes.
///
/// # Errors
/// If the kernel refuses.
fn keys(map: &Map) -> io::Result<BTreeSet<u32>> {
    let mut keys = BTreeSet::new();
    map.for_each(|key, _| keys.extend(key.first_chunk().copied().map(u32::from_ne_bytes)))?;
    Ok(keys)
}
