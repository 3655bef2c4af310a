//! The maps of a flow cache in the kernel, and the process's access to them.
//!
//! Two kinds of programs use the maps: XDP programs on ports' interfaces ([`super::flow_cache`]) and tc programs ([`super::tc`]). Workers
//! add and renew the flows, see [`FlowCache`](crate::io::FlowCache).

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bulkhead_classifier::OriginId;

use super::flow_encoding::{encode, origin_number};
use super::flow_layout::{FlowKey, FlowValue, cells, decisions, handshake, place, traffic};
use super::map::{MAP_ARRAY, MAP_LRU_HASH, MAP_PERCPU_ARRAY, MAPPABLE, Map, MapKind};
use super::mapping::Mapping;
use super::{flow_renewal, small_size};
use crate::io::{CachedFlow, CachedTraffic, FirstNumbers, FlowHandshake, FlowLatch, FlowSlot, FlowStart, FlowSteps};

/// Maximum flows in the kernel, 30 MB of its memory: two for each of 65,000 connections, 600 per pod on a node of 110. Packets of evicted
/// flows go to the workers.
pub(super) const FLOWS: u32 = 1 << 17;

/// The page size in bytes, to which a mapped map's size is rounded.
const PAGE: usize = 4096;

/// The bit of a latch's cell that is set while the latch is open.
const OPEN: u64 = 1 << cells::OPEN_BIT;

/// The maps of a flow cache, and the process's access to them.
#[derive(Debug)]
pub(super) struct FlowTable {
    pub(super) flows: Map,
    pub(super) cells: Map,
    pub(super) traffic: Map,
    pub(super) decisions: Map,
    mapped: Mapping,
    slots: Mutex<Slots>,
    /// Number of possible cores. A per-core map has a value for each.
    cores: usize,
    added: AtomicU64,
    failed: AtomicU64,
    /// How often an epoch cell was written.
    pub(super) endings: AtomicU64,
    /// The epoch of each port in the latest snapshot, by port number.
    pub(super) expected: Box<[AtomicU64]>,
}

/// The slots in use. A returned slot is reused last, so that packets in flight for the old port do not reach a new one. No port gets slot
/// 0.
#[derive(Debug)]
struct Slots {
    used: Vec<bool>,
    next: usize,
}

impl Slots {
    fn new(count: usize) -> Self {
        let mut used = vec![false; count];
        used[0] = true;
        Self { used, next: 1 }
    }

    fn take(&mut self) -> Option<FlowSlot> {
        let count = self.used.len();
        let at = (0..count).map(|ahead| (self.next + ahead) % count).find(|&at| !self.used[at])?;
        self.used[at] = true;
        self.next = at + 1;
        u16::try_from(at).ok().map(FlowSlot)
    }
}

impl FlowTable {
    /// Opens the maps that are pinned in a folder with their contents. Creates missing maps empty, with all ports closed. Without a folder,
    /// the maps are not pinned.
    ///
    /// # Errors
    /// If the kernel is older than 5.12, or the process lacks `CAP_BPF` or `CAP_PERFMON`.
    pub(super) fn new(pins: Option<&Path>) -> io::Result<Self> {
        let make = |kind: &MapKind<'_>| Map::at(kind, pins);
        let is_new = pins.is_none_or(|pins| !pins.join("bulkhead_cells").exists());
        let flows = make(&MapKind {
            kind: MAP_LRU_HASH,
            name: "bulkhead_flows",
            key_size: small_size::<FlowKey>(),
            value_size: small_size::<FlowValue>(),
            entries: FLOWS,
            flags: 0,
        })?;
        let cells = make(&MapKind {
            kind: MAP_ARRAY,
            name: "bulkhead_cells",
            key_size: small_size::<u32>(),
            value_size: cells::LEN.cast_unsigned(),
            entries: 1,
            flags: MAPPABLE,
        })?;
        let slots = cells::SLOTS.cast_unsigned();
        let counters = |name, value_size: u32, entries| {
            let key_size = small_size::<u32>();
            make(&MapKind { kind: MAP_PERCPU_ARRAY, name, key_size, value_size, entries, flags: 0 })
        };
        let traffic = counters("bulkhead_bytes", u32::from(traffic::LEN.cast_unsigned()), slots)?;
        let (values, size) = (decisions::ORIGINS / decisions::PER_VALUE, decisions::PER_VALUE * 8);
        let decisions = counters("bulkhead_rules", size.cast_unsigned(), values.cast_unsigned())?;
        let mapped = Mapping::of(cells.as_fd(), 0, place(cells::LEN).next_multiple_of(PAGE))?;
        let table = Self {
            flows,
            cells,
            traffic,
            decisions,
            mapped,
            slots: Mutex::new(Slots::new(slots as usize)),
            cores: possible_cores()?,
            added: AtomicU64::new(0),
            endings: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            expected: (0..cells::EPOCH_COUNT).map(|_| AtomicU64::new(0)).collect(),
        };
        if is_new {
            table.leave_all();
        }
        Ok(table)
    }

    /// Marks a slot of the previous process as in use.
    pub(super) fn keep_slot(&self, slot: FlowSlot) {
        if let Some(used) = self.slots().used.get_mut(usize::from(slot.0)) {
            *used = true;
        }
    }

    pub(super) fn add(&self, flow: &CachedFlow) {
        let Some((key, value)) = encode(flow, coarse_time()) else { return };
        // Must precede the insertion, after which programs find the flow.
        if let FlowStart::Latch(latch) = flow.start {
            self.latch(latch).store(0, Ordering::SeqCst);
        }
        match self.flows.insert(&key, &value) {
            Ok(()) => self.added.fetch_add(1, Ordering::Relaxed),
            Err(_) => self.failed.fetch_add(1, Ordering::Relaxed),
        };
    }

    /// Renews the lease of a valid flow. Returns false, and changes nothing, if there is no such flow or it differs.
    pub(super) fn renew(&self, flow: &CachedFlow) -> bool {
        let now = coarse_time();
        let Some((key, value)) = encode(flow, now) else { return false };
        let mut current = [0; size_of::<FlowValue>()];
        if self.flows.look_up(&key, &mut current).is_err() {
            return false;
        }
        let renewed = flow_renewal::renewed(&current, &value, now, |handshake| self.steps(handshake).has_ended);
        let is_renewed = renewed.is_some_and(|value| self.flows.insert(&key, &value).is_ok());
        self.added.fetch_add(is_renewed.into(), Ordering::Relaxed);
        is_renewed
    }

    /// Makes a flow that an older snapshot allowed valid for a later one.
    pub(super) fn confirm(&self, flow: &CachedFlow) {
        let mut current = [0; size_of::<FlowValue>()];
        if let Some((key, value)) = encode(flow, 0)
            && self.flows.look_up(&key, &mut current).is_ok()
            && let Some(confirmed) = flow_renewal::confirmed(&current, &value)
        {
            // If the kernel refuses, the flow ends with its epoch.
            let _ = self.flows.insert(&key, &confirmed);
        }
    }

    pub(super) fn await_handshake(
        &self,
        handshake: FlowHandshake,
        FirstNumbers { initiator, responder }: FirstNumbers,
    ) {
        let join = |number: u32, flag: u32| {
            let ([a, b, c, d], [e, f, g, h]) = (number.to_ne_bytes(), flag.to_ne_bytes());
            u64::from_ne_bytes([a, b, c, d, e, f, g, h])
        };
        let [first, second] = self.handshake(handshake);
        first.store(join(initiator, 0), Ordering::SeqCst);
        second.store(responder.map_or(0, |number| join(number, 1)), Ordering::SeqCst);
    }

    pub(super) fn steps(&self, handshake: FlowHandshake) -> FlowSteps {
        let [first, second] = self.handshake(handshake).map(|half| half.load(Ordering::SeqCst).to_ne_bytes());
        let is_set = |at: i16| first[place(at.into())] != 0;
        let [a, b, c, d, is_answered @ ..] = second;
        FlowSteps {
            answered: (is_answered != [0; 4]).then_some(u32::from_ne_bytes([a, b, c, d])),
            has_ended: is_set(handshake::HAS_ENDED),
            fins: [handshake::INITIATOR_FIN, handshake::RESPONDER_FIN].map(is_set),
        }
    }

    pub(super) fn passed(&self, latch: FlowLatch) -> u64 {
        self.latch(latch).load(Ordering::SeqCst) & !OPEN
    }

    pub(super) fn open(&self, latch: FlowLatch, passed: Option<u64>) -> bool {
        let latch = self.latch(latch);
        match passed {
            Some(passed) => {
                let opened = latch.compare_exchange(passed, passed | OPEN, Ordering::SeqCst, Ordering::SeqCst);
                opened.is_ok() || latch.load(Ordering::SeqCst) & OPEN != 0
            }
            None => {
                latch.fetch_or(OPEN, Ordering::SeqCst);
                true
            }
        }
    }

    /// Returns a slot's counter at one of [`traffic`]'s offsets, summed over all cores, since the slot was taken.
    pub(super) fn counted(&self, slot: FlowSlot, offset: i16) -> u64 {
        let values = self.traffic.of_each_core(&u32::from(slot.0).to_ne_bytes(), self.cores).unwrap_or_default();
        sum(&values, place(traffic::LEN.into()), place(offset.into()))
    }

    /// Returns the traffic of the slot's port since the slot was taken.
    pub(super) fn traffic_of(&self, slot: FlowSlot) -> CachedTraffic {
        let values = self.traffic.of_each_core(&u32::from(slot.0).to_ne_bytes(), self.cores).unwrap_or_default();
        let count = |offset: i16| sum(&values, place(traffic::LEN.into()), place(offset.into()));
        CachedTraffic {
            received: count(traffic::RECEIVED),
            received_bytes: count(traffic::RECEIVED_BYTES),
            sent: count(traffic::SENT),
            sent_bytes: count(traffic::SENT_BYTES),
            limited: count(traffic::LIMITED),
            bypassed: count(traffic::BYPASSED),
        }
    }

    /// Forwarded packets of sessions allowed by this origin's rule. Always 0 for origins after a process's first 65,534.
    pub(super) fn allowed_by(&self, origin: OriginId) -> u64 {
        let number = origin_number(Some(origin));
        if number == decisions::ORIGINS - 1 {
            return 0;
        }
        let (value, at) = (number / decisions::PER_VALUE, number % decisions::PER_VALUE);
        let values = self.decisions.of_each_core(&value.to_ne_bytes(), self.cores).unwrap_or_default();
        sum(&values, place(decisions::PER_VALUE * 8), place(at * 8))
    }

    /// Returns the number of flows added or renewed.
    pub(super) fn added(&self) -> u64 {
        self.added.load(Ordering::Relaxed)
    }

    /// Returns the number of flows that the kernel refused.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Takes a free slot and clears its counters. `None` if all are in use.
    pub(super) fn take_slot(&self) -> Option<FlowSlot> {
        let slot = self.slots().take()?;
        let zeros = vec![0; place(traffic::LEN.into()) * self.cores];
        // Does not fail for a valid key.
        let _ = self.traffic.set_each_core(&u32::from(slot.0).to_ne_bytes(), &zeros);
        Some(slot)
    }

    /// Returns a slot, so that another port can take it.
    pub(super) fn give_slot(&self, slot: FlowSlot) {
        self.slots().used[usize::from(slot.0)] = false;
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // Every change is atomic with respect to panics.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn latch(&self, latch: FlowLatch) -> &AtomicU64 {
        self.cell(cells::LATCHES + i32::from(latch.0) * 8)
    }

    /// Returns both halves of a handshake's record.
    fn handshake(&self, number: FlowHandshake) -> [&AtomicU64; 2] {
        let at = cells::HANDSHAKES + i32::from(number.0) * i32::from(handshake::LEN);
        [self.cell(at), self.cell(at + 8)]
    }

    /// Returns the eight bytes at an offset of the cells, for atomic access.
    ///
    /// # Panics
    /// If the offset is unaligned or outside of the map.
    pub(super) fn cell(&self, offset: i32) -> &AtomicU64 {
        let offset = place(offset);
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.mapped.len(), "a cell is in the map");
        // SAFETY: within the mapping, which lives as long as self, and aligned: it begins with a page. The kernel's programs
        // and other threads access it by atomic operations or by whole words only.
        unsafe { self.mapped.start().add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// Returns the four bytes at an offset of the cells, for atomic access.
    ///
    /// # Panics
    /// If the offset is unaligned or outside of the map.
    pub(super) fn half_cell(&self, offset: i32) -> &AtomicU32 {
        let offset = place(offset);
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.mapped.len(), "a cell is in the map");
        // SAFETY: as in `cell`.
        unsafe { self.mapped.start().add(offset).cast::<AtomicU32>().as_ref() }
    }
}

/// Sums the number at `offset` of all cores' values, each of `size` bytes.
fn sum(values: &[u8], size: usize, offset: usize) -> u64 {
    let count = |value: &[u8]| value.get(offset..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    values.chunks_exact(size).filter_map(count).sum()
}

/// Reads the number of possible cores from `/sys/devices/system/cpu/possible`, such as `0-63`.
pub(super) fn possible_cores() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// `CLOCK_MONOTONIC_COARSE` in nanoseconds, which the programs use too.
pub(super) fn coarse_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the time and touches no other memory.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    let [seconds, nanoseconds] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * 1_000_000_000 + nanoseconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_was_given_back_is_given_out_last() {
        let mut slots = Slots::new(4);
        assert_eq!(slots.take(), Some(FlowSlot(1)));
        slots.used[1] = false;
        assert_eq!(
            [slots.take(), slots.take(), slots.take(), slots.take()],
            [Some(FlowSlot(2)), Some(FlowSlot(3)), Some(FlowSlot(1)), None]
        );
    }
}
