//! The map from the interfaces of open ports to their slots, which the programs read.
//!
//! The map can be pinned. Entries of the previous process stay until an attachment adopts the slot or the data path closes it.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::io::FlowSlot;
use crate::io::xsk::flow_layout::cells;
use crate::io::xsk::map::{MAP_HASH, Map, MapKind};
use crate::io::xsk::small_size;

/// The slots of open ports.
#[derive(Debug)]
pub(super) struct PortSlots {
    /// From interface index (4 bytes) to slot (4 bytes), both in host order.
    pub(super) map: Map,
    /// Slots of the interfaces that a previous process left open and no attachment has adopted yet, by interface index.
    left: Mutex<HashMap<u32, FlowSlot>>,
}

impl PortSlots {
    /// Opens the map pinned in this folder, or creates it. Without a folder, creates a map that is not pinned.
    ///
    /// # Errors
    /// If the kernel refuses the map, or if the map cannot be read.
    pub(super) fn new(folder: Option<&Path>) -> io::Result<Self> {
        let kind = MapKind {
            kind: MAP_HASH,
            name: "bulkhead_ports",
            key_size: small_size::<u32>(),
            value_size: small_size::<u32>(),
            entries: cells::SLOTS.cast_unsigned(),
            flags: 0,
        };
        let map = Map::at(&kind, folder)?;
        let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        let mut left = HashMap::new();
        map.for_each(|key, value| {
            let slot = number(value).and_then(|slot| u16::try_from(slot).ok()).map(FlowSlot);
            left.extend(number(key).zip(slot));
        })?;
        Ok(Self { map, left: Mutex::new(left) })
    }

    /// Returns the slots that a previous process left open and no attachment has adopted yet, by interface index.
    pub(super) fn left(&self) -> MutexGuard<'_, HashMap<u32, FlowSlot>> {
        // Every change is atomic with respect to panics.
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns packets of an interface of the data path's network namespace to a slot.
    ///
    /// # Errors
    /// If the map is full.
    pub(super) fn open(&self, interface: u32, slot: FlowSlot) -> io::Result<()> {
        self.map.insert(&interface.to_ne_bytes(), &u32::from(slot.0).to_ne_bytes())
    }

    /// Makes the programs drop the packets of an interface.
    ///
    /// # Errors
    /// If the interface is not open.
    pub(super) fn close(&self, interface: u32) -> io::Result<()> {
        self.map.remove(&interface.to_ne_bytes())
    }
}
