//! The holdings of one address, or of one address and 64 holders: which holders have learned the address under which names, until when.
//!
//! ```text
//!   uniform: 20 bytes   { name, chunk of 64 holders, bitmap of the holders, end of them all }
//!   sliced:  52 bytes   { name, chunk of 64 holders, an end of its own for each holder }
//! ```
//!
//! A name's first record for a chunk is uniform. Once two holders of a chunk need different ends, the name gets sliced records, whose size
//! does not depend on the number of different ends: uniform records alone would need 200 MB for 50 million holdings with random TTLs.
//! Both lists are sorted by [`Key`]. A holder is in at most one record of a key.

use std::ops::Range;

use ahash::AHashMap;
use thin_vec::ThinVec;

use super::NameId;
use super::memory;
use super::sliced::{Key, Lanes, Sliced};
use super::validity::Window;

/// The holders of a chunk that have learned an address under a name until the same second.
#[derive(Clone, Copy, Debug)]
struct Uniform {
    holders: Lanes,
    id: NameId,
    /// Seconds since 1970.
    end: u32,
    chunk: u16,
}

// The memory goal depends on it.
const _: () = assert!(size_of::<Uniform>() == 20);

/// A record with a place in the order of a table.
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

/// Records of holdings, each list in the order of their keys. The lists are thin, because the tables of most addresses lie in maps, of whose
/// places a quarter is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    uniform: ThinVec<Uniform>,
    sliced: ThinVec<Sliced>,
}

/// The effect of [`Table::learn`] on the number of holdings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Bitmap of the other holders of the chunk whose expired holdings under the key were removed.
    pub(super) expired: u64,
    /// Whether the number of the holder's holdings grew by one. False if the answer renews a holding, even an expired one.
    pub(super) is_new: bool,
}

impl Table {
    /// Number of records.
    pub(super) fn len(&self) -> usize {
        self.uniform.len() + self.sliced.len()
    }

    /// Whether any holder of the key's chunk holds the address under the key's name, expired or not.
    pub(super) fn contains(&self, key: Key) -> bool {
        !span(&self.sliced, key).is_empty() || !span(&self.uniform, key).is_empty()
    }

    /// Returns the end of a holding in seconds since 1970, expired or not. `None` if the holder does not hold the address under the name.
    pub(super) fn end(&self, key: Key, lane: u32) -> Option<u32> {
        end(&self.uniform[span(&self.uniform, key)], &self.sliced[span(&self.sliced, key)], lane)
    }

    /// Returns the ids of the names under which the holder has learned the address, each with its end, if that is after `now`. Times are in
    /// seconds since 1970.
    pub(super) fn names_of(&self, chunk: u16, lane: u32, now: u32) -> impl Iterator<Item = (NameId, u32)> + '_ {
        let is_valid =
            move |record: &&Uniform| record.chunk == chunk && has(record.holders.bits(), lane) && record.end > now;
        let uniform = self.uniform.iter().filter(is_valid).map(|record| (record.id, record.end));
        let sliced = self.sliced.iter().filter(move |record| record.key().chunk == chunk);
        let sliced = sliced.filter_map(move |record| Some((record.key().id, record.end(lane)?)));
        uniform.chain(sliced.filter(move |(_, end)| *end > now))
    }

    /// Calls `each` with every key, each end in seconds since 1970, and the bitmap of the holders that have both, which may be 0.
    pub(super) fn for_each(&self, mut each: impl FnMut(Key, u32, u64)) {
        self.uniform.iter().for_each(|record| each(record.key(), record.end, record.holders.bits()));
        for record in &self.sliced {
            record.for_each(|end, holders| each(record.key(), end, holders));
        }
    }

    /// Stores that a holder has learned the address under a name until a second in the window. Never shortens a validity. Removes the
    /// holdings of the key that have ended at `now`, in seconds since 1970.
    pub(super) fn learn(&mut self, key: Key, lane: u32, now: u32, window: Window) -> Change {
        let places = (span(&self.uniform, key), span(&self.sliced, key));
        let (uniform, sliced) = (&mut self.uniform[places.0.clone()], &mut self.sliced[places.1.clone()]);
        let expired = expire(uniform, sliced, now);
        let end = end(uniform, sliced, lane);
        if end.is_none_or(|end| end < window.first) {
            if end.is_some() {
                clear(uniform, sliced, lane);
            }
            if !join(uniform, sliced, lane, window) {
                self.add(key, places, lane, window.roundest());
            }
        }
        if expired != 0 || end.is_some() {
            self.compact(key);
        }
        // A holding that expired and is learned again stays one holding.
        let is_new = end.is_none() && !has(expired, lane);
        Change { expired: expired & !(1 << lane), is_new }
    }

    /// Removes the holding of a holder under a name, if it exists.
    pub(super) fn remove(&mut self, key: Key, lane: u32) {
        let (uniform, sliced) = (span(&self.uniform, key), span(&self.sliced, key));
        clear(&mut self.uniform[uniform], &mut self.sliced[sliced], lane);
        self.compact(key);
    }

    /// Removes the holdings that have ended at `now`, in seconds since 1970, and those of holders that have left: `gone` returns their
    /// bitmap for a chunk. Appends to `removed` the chunk and the bitmap of holders of each record that lost holdings. Fills `emptied`,
    /// which must be empty, with the keys that have no holdings left.
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

    /// Returns the holdings of each chunk as a table of its own.
    pub(super) fn split(self) -> AHashMap<u16, Self> {
        let mut tables = AHashMap::<u16, Self>::new();
        self.uniform.into_iter().for_each(|record| tables.entry(record.chunk).or_default().uniform.push(record));
        self.sliced.into_iter().for_each(|record| tables.entry(record.key().chunk).or_default().sliced.push(record));
        tables
    }

    /// Returns the estimated heap use in bytes.
    pub(super) fn bytes(&self) -> usize {
        memory::thin(&self.uniform) + memory::thin(&self.sliced)
    }

    /// Adds a holder with this end, in seconds since 1970, to a key. `uniform` and `sliced` are the places of the key's records, of which
    /// none can represent the end.
    fn add(&mut self, key: Key, (uniform, sliced): (Range<usize>, Range<usize>), lane: u32, end: u32) {
        let is_second = !uniform.is_empty();
        if is_second {
            self.slice(key.id);
        }
        // After a name's first sliced record, its other chunks will need one soon. Moving them later would leave the heap full of holes.
        if is_second || sliced.is_empty() && self.has_sliced(key.id) {
            let places = span(&self.sliced, key);
            if self.sliced[places.clone()].iter_mut().any(|record| record.respace(lane, end)) {
                return;
            }
            if let Some(record) = Sliced::new(key, &[(end, 1 << lane)]) {
                memory::insert(&mut self.sliced, places.end, record);
                return;
            }
        }
        let record = Uniform { holders: Lanes::new(1 << lane), id: key.id, end, chunk: key.chunk };
        let at = span(&self.uniform, key).end;
        memory::insert(&mut self.uniform, at, record);
    }

    fn has_sliced(&self, id: NameId) -> bool {
        let first = self.sliced.partition_point(|record| record.key().id < id);
        self.sliced.get(first).is_some_and(|record| record.key().id == id)
    }

    /// Replaces the uniform records of a name, in all chunks, by sliced ones.
    fn slice(&mut self, id: NameId) {
        let start = self.uniform.partition_point(|record| record.id < id);
        let end = self.uniform.partition_point(|record| record.id <= id);
        for record in self.uniform.drain(start..end) {
            if let Some(sliced) = Sliced::new(record.key(), &[(record.end, record.holders.bits())]) {
                let at = span(&self.sliced, record.key()).end;
                memory::insert(&mut self.sliced, at, sliced);
            }
        }
        memory::trim(&mut self.uniform);
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

/// Returns the places of a key's records in a sorted list. For a key without records, the empty range at its place in the order.
fn span<T: Keyed>(records: &[T], key: Key) -> Range<usize> {
    let start = records.partition_point(|record| record.key() < key);
    let len = records[start..].iter().take_while(|record| record.key() == key).count();
    start..start + len
}

const fn has(holders: u64, lane: u32) -> bool {
    holders >> lane & 1 == 1
}

/// Returns a holder's end in the records of one key, in seconds since 1970. `None` if the holder is in none of them.
fn end(uniform: &[Uniform], sliced: &[Sliced], lane: u32) -> Option<u32> {
    let record = uniform.iter().find(|record| has(record.holders.bits(), lane));
    record.map(|record| record.end).or_else(|| sliced.iter().find_map(|record| record.end(lane)))
}

/// Removes the holdings that have ended at `now`, in seconds since 1970, from the records of one key. Records may be empty afterwards.
/// Returns the bitmap of the removed holders.
fn expire(uniform: &mut [Uniform], sliced: &mut [Sliced], now: u32) -> u64 {
    let mut expired = 0;
    for record in uniform.iter_mut().filter(|record| record.end <= now) {
        expired |= record.holders.bits();
        record.holders = Lanes::default();
    }
    for record in sliced {
        let ended = record.ended(now);
        record.remove(ended);
        expired |= ended;
    }
    expired
}

/// Removes a holder from the records of one key. Records may be empty afterwards.
fn clear(uniform: &mut [Uniform], sliced: &mut [Sliced], lane: u32) {
    for record in uniform {
        record.holders = Lanes::new(record.holders.bits() & !(1 << lane));
    }
    for record in sliced {
        record.remove(1 << lane);
    }
}

/// Adds a holder to one of the records of one key. Returns false if none can represent an end in the window.
fn join(uniform: &mut [Uniform], sliced: &mut [Sliced], lane: u32, window: Window) -> bool {
    let is_suitable = |record: &&mut Uniform| record.holders.bits() != 0 && window.contains(record.end);
    if let Some(record) = uniform.iter_mut().find(is_suitable) {
        record.holders = Lanes::new(record.holders.bits() | 1 << lane);
        return true;
    }
    if sliced.iter_mut().any(|record| record.put(lane, window)) {
        return true;
    }
    if let Some(record) = uniform.iter_mut().find(|record| record.holders.bits() == 0) {
        (record.holders, record.end) = (Lanes::new(1 << lane), window.roundest());
        return true;
    }
    sliced.iter_mut().any(|record| record.respace(lane, window.roundest()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { id: NameId(7), chunk: 3 };

    /// Returns a table in which two holders are in a sliced record. A third one, whose end this record cannot represent, is in a uniform
    /// record.
    fn table() -> Table {
        let mut table = Table::default();
        for (lane, end) in [(0, 1000), (1, 1001), (2, 5000)] {
            let change = table.learn(KEY, lane, 900, Window { first: end, last: end });
            assert_eq!(change, Change { expired: 0, is_new: true });
        }
        assert_eq!((table.uniform.len(), table.sliced.len()), (1, 1));
        table
    }

    #[test]
    fn a_sweep_reports_each_emptied_key_once() {
        let mut table = table();
        let (mut removed, mut emptied) = (Vec::new(), Vec::new());
        table.sweep(1001, |_| 0, &mut removed, &mut emptied);
        assert_eq!((removed.as_slice(), emptied.as_slice()), ([(3, 0b11)].as_slice(), [].as_slice()));
        let mut table = self::table();
        let other = Key { id: NameId(8), chunk: 4 };
        table.learn(other, 5, 900, Window { first: 999, last: 999 });
        assert_eq!((table.uniform.len(), table.sliced.len()), (2, 1));
        removed.clear();
        table.sweep(1000, |_| 0b110, &mut removed, &mut emptied);
        removed.sort_unstable();
        assert_eq!(removed, [(3, 0b11), (3, 0b100), (4, 0b10_0000)]);
        assert_eq!(emptied, [KEY, other]);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn an_answer_removes_what_has_ended_of_its_key() {
        let mut table = table();
        let change = table.learn(KEY, 3, 2000, Window { first: 5000, last: 5000 });
        assert_eq!(change, Change { expired: 0b11, is_new: true });
        assert_eq!((table.uniform.len(), table.sliced.len()), (1, 0));
        assert_eq!(table.uniform[0].holders.bits(), 0b1100);
        // The one that has ended counts as held until then.
        let change = table.learn(KEY, 2, 5000, Window { first: 6000, last: 6000 });
        assert_eq!(change, Change { expired: 0b1000, is_new: false });
        assert_eq!((table.len(), table.end(KEY, 2), table.end(KEY, 3)), (1, Some(6000), None));
    }
}
