//! The holdings of one address, or of one address and 64 holders: which holders have learned the address under which names, until when.
//!
//! ```text
//!   uniform: 20 bytes per (name, chunk of 64 holders, end)   { bitmap of the holders, end }
//!   sliced:  52 bytes per (name, chunk of 64 holders)        { an end of its own for each holder }
//! ```
//!
//! A name and chunk starts with uniform records. If a third end is needed, one sliced record replaces them, so that memory does not depend
//! on the number of different ends. Both lists are sorted by [`Key`]. A holder is in at most one record of a key.

use std::ops::Range;

use ahash::AHashMap;

use super::NameId;
use super::memory;
use super::sliced::{Key, Lanes, Sliced};
use super::validity::Window;

/// Uniform records of one key that are kept before a sliced one replaces them. Three would need more memory than the sliced one.
const UNIFORM: usize = 2;

/// The holders of a chunk that have learned an address under a name until the same second.
#[derive(Clone, Copy, Debug)]
struct Uniform {
    holders: Lanes,
    id: NameId,
    /// Seconds since 1970.
    end: u32,
    chunk: u16,
}

const _: () = assert!(size_of::<Uniform>() == 20);

trait Keyed {
    fn key(&self) -> Key;
}

impl Keyed for Uniform {
    fn key(&self) -> Key {
        Key { id: self.id, chunk: self.chunk }
    }
}

impl Keyed for Sliced {
    fn key(&self) -> Key {
        Self::key(self)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    uniform: Vec<Uniform>,
    sliced: Vec<Sliced>,
}

/// The effect of a new answer on the number of holdings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Holders of the chunk whose expired holding was removed.
    pub(super) expired: u64,
    /// Whether the holder did not hold the address under this name, or no longer.
    pub(super) is_new: bool,
}

impl Table {
    /// Number of records.
    pub(super) fn len(&self) -> usize {
        self.uniform.len() + self.sliced.len()
    }

    /// Returns whether any holder of the chunk holds the address under the name, expired or not.
    pub(super) fn contains(&self, key: Key) -> bool {
        !span(&self.sliced, key).is_empty() || !span(&self.uniform, key).is_empty()
    }

    /// Returns the end of a holding in seconds, expired or not. `None` if the holder does not hold the address under the name.
    pub(super) fn end(&self, key: Key, lane: u32) -> Option<u32> {
        let uniform = self.uniform[span(&self.uniform, key)].iter().find(|record| has(record.holders.bits(), lane));
        let sliced = || self.sliced[span(&self.sliced, key)].iter().find_map(|record| record.end(lane));
        uniform.map(|record| record.end).or_else(sliced)
    }

    /// Calls `each` with every name under which the holder has learned the address and that is valid at `now`, in seconds.
    pub(super) fn names_of(&self, chunk: u16, lane: u32, now: u32, mut each: impl FnMut(NameId)) {
        for record in &self.uniform {
            if record.chunk == chunk && has(record.holders.bits(), lane) && record.end > now {
                each(record.id);
            }
        }
        for record in &self.sliced {
            let Key { id, chunk: own } = record.key();
            if own == chunk && record.end(lane).is_some_and(|end| end > now) {
                each(id);
            }
        }
    }

    /// Calls `each` with every key, end in seconds and bitmap of holders.
    pub(super) fn for_each(&self, mut each: impl FnMut(Key, u32, u64)) {
        self.uniform.iter().for_each(|record| each(record.key(), record.end, record.holders.bits()));
        for record in &self.sliced {
            record.for_each(|end, holders| each(record.key(), end, holders));
        }
    }

    /// Stores that a holder has learned the address under a name, valid until some second of the window. Never shortens a validity.
    pub(super) fn learn(&mut self, key: Key, lane: u32, now: u32, window: Window) -> Change {
        let mut expired = self.expire(key, now);
        let is_new = match self.end(key, lane) {
            Some(end) if end >= window.first => return Change { expired, is_new: false },
            Some(_) => {
                self.clear(key, lane);
                false
            }
            None => true,
        };
        if !self.join(key, lane, window) {
            self.add(key, lane, window.roundest());
        }
        self.compact(key);
        // A holding that expired and is learned again stays one holding.
        let again = expired & (1 << lane);
        expired &= !again;
        Change { expired, is_new: is_new && again == 0 }
    }

    /// Removes a holding.
    pub(super) fn remove(&mut self, key: Key, lane: u32) {
        self.clear(key, lane);
        self.compact(key);
    }

    /// Removes the holdings that have ended at `now`, in seconds, and those of holders in `gone` of their chunk. Appends the chunks and holders
    /// of removed holdings to `removed`. Adds to `emptied`, which must be empty, the keys without holdings left.
    pub(super) fn sweep(
        &mut self,
        now: u32,
        gone: impl Fn(u16) -> u64,
        removed: &mut Vec<(u16, u64)>,
        emptied: &mut Vec<Key>,
    ) {
        let mut note = |key: Key, lost: u64, left: u64| {
            if lost != 0 {
                removed.push((key.chunk, lost));
            }
            if left == 0 && emptied.last() != Some(&key) {
                emptied.push(key);
            }
            left != 0
        };
        self.uniform.retain_mut(|record| {
            let holders = record.holders.bits();
            let lost = if record.end <= now { holders } else { holders & gone(record.chunk) };
            record.holders = Lanes::new(holders & !lost);
            note(record.key(), lost, holders & !lost)
        });
        self.sliced.retain_mut(|record| {
            let lost = (record.ended(now) | gone(record.key().chunk)) & record.holders();
            record.remove(lost);
            note(record.key(), lost, record.holders())
        });
        // A key may have lost records of both kinds, or have others left.
        emptied.sort_unstable();
        emptied.dedup();
        emptied.retain(|&key| !self.contains(key));
        memory::trim(&mut self.uniform);
        memory::trim(&mut self.sliced);
    }

    /// Returns a table for each chunk.
    pub(super) fn split(self) -> AHashMap<u16, Self> {
        let mut tables = AHashMap::<u16, Self>::new();
        self.uniform.into_iter().for_each(|record| tables.entry(record.chunk).or_default().uniform.push(record));
        self.sliced.into_iter().for_each(|record| tables.entry(record.key().chunk).or_default().sliced.push(record));
        tables
    }

    /// Estimated heap use in bytes.
    pub(super) fn bytes(&self) -> usize {
        memory::vec(&self.uniform) + memory::vec(&self.sliced)
    }

    /// Removes the key's holdings that have ended at `now`. Returns their holders. The records may be empty afterwards.
    fn expire(&mut self, key: Key, now: u32) -> u64 {
        let mut expired = 0;
        let (uniform, sliced) = (span(&self.uniform, key), span(&self.sliced, key));
        for record in self.uniform[uniform].iter_mut().filter(|record| record.end <= now) {
            expired |= record.holders.bits();
            record.holders = Lanes::default();
        }
        for record in &mut self.sliced[sliced] {
            let ended = record.ended(now);
            record.remove(ended);
            expired |= ended;
        }
        expired
    }

    /// Removes a holder from the key's records, which may be empty afterwards.
    fn clear(&mut self, key: Key, lane: u32) {
        let (uniform, sliced) = (span(&self.uniform, key), span(&self.sliced, key));
        for record in &mut self.uniform[uniform] {
            record.holders = Lanes::new(record.holders.bits() & !(1 << lane));
        }
        self.sliced[sliced].iter_mut().for_each(|record| record.remove(1 << lane));
    }

    /// Adds a holder to one of the key's records. Returns false if none can represent an end in the window.
    fn join(&mut self, key: Key, lane: u32, window: Window) -> bool {
        let (uniform, sliced) = (span(&self.uniform, key), span(&self.sliced, key));
        let uniform = &mut self.uniform[uniform];
        let is_suitable = |record: &&mut Uniform| record.holders.bits() != 0 && window.contains(record.end);
        if let Some(record) = uniform.iter_mut().find(is_suitable) {
            record.holders = Lanes::new(record.holders.bits() | 1 << lane);
            return true;
        }
        let sliced = &mut self.sliced[sliced];
        if sliced.iter_mut().any(|record| record.put(lane, window)) {
            return true;
        }
        if let Some(record) = uniform.iter_mut().find(|record| record.holders.bits() == 0) {
            (record.holders, record.end) = (Lanes::new(1 << lane), window.roundest());
            return true;
        }
        sliced.iter_mut().any(|record| record.respace(lane, window))
    }

    /// Adds a holder in a new record of the key, or replaces the uniform records by a sliced one.
    fn add(&mut self, key: Key, lane: u32, end: u32) {
        let uniform = span(&self.uniform, key);
        if uniform.len() >= UNIFORM {
            let mut ends: Vec<_> =
                self.uniform[uniform.clone()].iter().map(|old| (old.end, old.holders.bits())).collect();
            ends.push((end, 1 << lane));
            if let Some(record) = Sliced::new(key, &ends) {
                self.uniform.drain(uniform);
                memory::trim(&mut self.uniform);
                let at = span(&self.sliced, key).end;
                memory::insert(&mut self.sliced, at, record);
                return;
            }
        }
        let record = Uniform { holders: Lanes::new(1 << lane), id: key.id, end, chunk: key.chunk };
        memory::insert(&mut self.uniform, uniform.end, record);
    }

    /// Removes the key's records without holders.
    fn compact(&mut self, key: Key) {
        for at in span(&self.uniform, key).rev() {
            if self.uniform[at].holders.bits() == 0 {
                self.uniform.remove(at);
            }
        }
        for at in span(&self.sliced, key).rev() {
            if self.sliced[at].holders() == 0 {
                self.sliced.remove(at);
            }
        }
    }
}

/// Returns the places of a key's records, which are empty at its place in the order if it has none.
fn span<T: Keyed>(records: &[T], key: Key) -> Range<usize> {
    let start = records.partition_point(|record| record.key() < key);
    let len = records[start..].iter().take_while(|record| record.key() == key).count();
    start..start + len
}

const fn has(holders: u64, lane: u32) -> bool {
    holders >> lane & 1 == 1
}
