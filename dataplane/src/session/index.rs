//! From a key's hash to its entry: buckets of one cache line.
//!
//! ```text
//!   hash --upper half--> bucket: 8 tags of 16 bits | 8 slots of 32 bits | how many went on from here
//!        --lower bits--> tag                                                 `-> the next bucket, at most 8 of them
//! ```
//!
//! A lookup reads one line here and one line of the entry; with the standard library's map it was two dependent lines
//! here. The array has its final size from the start ([`super::memory`]), twice as many places as sessions, so that
//! one key in fifty is not in its first bucket. The walk is bounded: no packet reads more than [`PROBES`] buckets,
//! whatever somebody has put into the table. A key that finds no place in them is not taken; with a full table and
//! hashes that nobody outside can know, that happens to fewer than one in a million.
//!
//! Buckets that grow one at a time (linear hashing) were not taken: the walk then needs the sizes of both halves, and
//! small tables, which are the ones that gain, fit the cache anyway.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::entry::{NONE, Slot};
use super::memory::Column;

/// Entries in a bucket: what fits a cache line of 64 bytes.
const WAYS: usize = 8;

/// The most buckets that a key may be in. With half of the places in use, eight neighbouring buckets without a free
/// place need 64 keys where 32 are expected: once in 10^7.
const PROBES: usize = 8;

/// One cache line.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Bucket {
    /// 0 for a free place; others are never 0.
    tags: [u16; WAYS],
    slots: [Slot; WAYS],
    /// How many keys began their walk here or before and lie behind. 0 ends the walk of a lookup.
    passed: u16,
    spare: [u16; 7],
}

impl Bucket {
    /// The places with this tag, one bit each.
    #[inline]
    fn with_tag(&self, tag: u16) -> u32 {
        let mut found = 0;
        for (way, &other) in self.tags.iter().enumerate() {
            found |= u32::from(other == tag) << way;
        }
        found
    }
}

/// The index.
#[derive(Debug)]
pub(super) struct Index {
    buckets: Column<Bucket>,
    /// How many buckets a key may begin at; a few more lie behind, so that no walk has to turn around.
    homes: usize,
    len: usize,
}

impl Index {
    /// For this many entries.
    pub(super) fn new(capacity: usize) -> Self {
        // Half full at capacity.
        let homes = (2 * capacity).div_ceil(WAYS).max(1);
        Self { buckets: Column::new(homes + PROBES - 1), homes, len: 0 }
    }

    /// How many entries it has.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory, touched or not.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.buckets.records())
    }

    /// Where the walk of a hash begins: its upper half as a fraction of the array, so that any size will do.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.homes as u64) >> 32) as usize
    }

    /// A guess at the slot of each hash, from its first bucket alone, `NONE` when there is none: reads all buckets of a
    /// burst in a row, so that their cache misses overlap.
    #[inline]
    pub(super) fn guess(&self, hash: u64) -> Slot {
        let bucket = &self.buckets.records()[self.home(hash)];
        match bucket.with_tag(tag(hash)) {
            0 => NONE,
            found => bucket.slots[found.trailing_zeros() as usize % WAYS],
        }
    }

    /// The slot under this hash of which `is_it` says yes.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(Slot) -> bool) -> Option<Slot> {
        let home = self.home(hash);
        for bucket in &self.buckets.records()[home..home + PROBES] {
            let mut found = bucket.with_tag(tag(hash));
            while found != 0 {
                let slot = bucket.slots[found.trailing_zeros() as usize % WAYS];
                if is_it(slot) {
                    return Some(slot);
                }
                found &= found - 1;
            }
            if bucket.passed == 0 {
                break;
            }
        }
        None
    }

    /// Puts a slot in. False when there is no place where it could be found again.
    pub(super) fn insert(&mut self, hash: u64, slot: Slot) -> bool {
        let home = self.home(hash);
        let walk = &mut self.buckets.records_mut()[home..home + PROBES];
        let Some(at) = walk.iter().position(|bucket| bucket.with_tag(0) != 0) else { return false };
        walk[..at].iter_mut().for_each(|bucket| bucket.passed += 1);
        let way = walk[at].with_tag(0).trailing_zeros() as usize;
        walk[at].tags[way] = tag(hash);
        walk[at].slots[way] = slot;
        self.len += 1;
        true
    }

    /// Takes a slot out that is in under this hash.
    pub(super) fn remove(&mut self, hash: u64, slot: Slot) {
        let home = self.home(hash);
        for bucket in &mut self.buckets.records_mut()[home..home + PROBES] {
            let mut found = bucket.with_tag(tag(hash));
            while found != 0 {
                let way = found.trailing_zeros() as usize;
                if bucket.slots[way] == slot {
                    bucket.tags[way] = 0;
                    self.len -= 1;
                    return;
                }
                found &= found - 1;
            }
            bucket.passed -= 1;
        }
        debug_assert!(false, "slot {slot} is not in the index");
    }
}

/// Never 0, which marks a free place.
#[inline]
const fn tag(hash: u64) -> u16 {
    (hash & 0xffff) as u16 | 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_bucket_is_a_cache_line() {
        assert_eq!(size_of::<Bucket>(), 64);
    }

    #[test]
    fn cve_2019_25076_no_lookup_reads_more_than_eight_buckets_whatever_was_inserted() {
        let mut index = Index::new(1000);
        // All with one hash, as if somebody could choose them.
        let taken = (0..1000).take_while(|&slot| index.insert(7 << 32, slot)).count();
        assert_eq!((taken, index.len()), (PROBES * WAYS, PROBES * WAYS));
        let mut asked = 0;
        index.find(7 << 32, |_| {
            asked += 1;
            false
        });
        assert_eq!(asked, PROBES * WAYS);
    }

    #[test]
    fn an_index_takes_its_whole_capacity() {
        for capacity in [1, 2, 7, 1000, 100_000] {
            let mut index = Index::new(capacity);
            let hash = |slot: u32| (u64::from(slot) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
            let slots = 0..u32::try_from(capacity).unwrap();
            assert!(slots.clone().all(|slot| index.insert(hash(slot), slot)), "{capacity}");
            assert!(slots.clone().all(|slot| index.find(hash(slot), |other| other == slot).is_some()));
            slots.for_each(|slot| index.remove(hash(slot), slot));
            assert!(index.buckets.records().iter().all(|bucket| bucket.tags == [0; WAYS] && bucket.passed == 0));
        }
    }

    proptest! {
        #[test]
        fn the_index_agrees_with_a_map(steps in proptest::collection::vec((0u64..40, any::<bool>()), 1..400)) {
            let mut index = Index::new(20);
            let mut model = HashMap::new();
            // Few homes and fewer tags.
            let hash = |key: u64| ((key % 3) << 62) | (key % 7);
            for (key, put) in steps {
                let slot = u32::try_from(key).unwrap();
                if put && !model.contains_key(&key) {
                    if index.insert(hash(key), slot) {
                        model.insert(key, slot);
                    }
                } else if !put && model.remove(&key).is_some() {
                    index.remove(hash(key), slot);
                }
                prop_assert_eq!(index.len(), model.len());
                for key in 0..40 {
                    let slot = u32::try_from(key).unwrap();
                    let found = index.find(hash(key), |other| other == slot);
                    prop_assert_eq!(found, model.get(&key).copied());
                }
            }
        }
    }
}
