//! Maps a key's hash to its entry, with buckets of one cache line.
//!
//! ```text
//!   hash --upper half--> bucket: 8 tags of 16 bits | 8 slots of 32 bits | number of keys stored behind it
//!        --lower bits--> tag                                                 `-> the next bucket, at most 8 of them
//! ```
//!
//! A lookup reads one line of the index and one of the entry. The standard library's map needs two dependent lines. The array has its final
//! size from the start ([`super::memory`]), with twice as many places as sessions, so only one key in fifty is not in its first bucket.
//! Probing is bounded: no packet reads more than [`PROBES`] buckets, whatever the table contains. A key that finds no place in them is
//! rejected. With a full table and secret hashes, that affects less than one key in a million.
//!
//! Linear hashing was rejected: probing needs the sizes of both halves, and small tables, which would benefit, fit into the cache anyway.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::entry::{NONE, Slot};
use super::memory::{Column, SessionMemoryError};

/// Entries per bucket, in a cache line of 64 bytes.
const WAYS: usize = 8;

/// Maximum number of buckets for a key. With half of the places in use, eight neighbouring full buckets need 64 keys where 32 are expected:
/// once in 10^7.
const PROBES: usize = 8;

/// Eight entries of the index on one cache line.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Bucket {
    /// Eight tags of 16 bits in two words, so that four are compared at once. 0 marks a free place.
    tags: [u64; 2],
    slots: [Slot; WAYS],
    /// Number of keys that are stored behind this bucket although their home is here or before. 0 ends a lookup.
    passed: u16,
    spare: [u16; 7],
}

/// Places in a bucket as bits: place `4 * w + l` is bit `16 * l + w`. In each word's group only the lowest set bit is reliable, so verify
/// any further one.
#[derive(Clone, Copy)]
struct Places(u64);

impl Places {
    /// Returns the first place of the set. `None` if the set is empty.
    #[inline]
    const fn first(self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        Some((bit & 1) << 2 | bit >> 4)
    }

    #[inline]
    const fn without_first(self) -> Self {
        Self(self.0 & (self.0 - 1))
    }
}

impl Bucket {
    #[inline]
    fn with_tag(&self, tag: u16) -> Places {
        const ONES: u64 = 0x0001_0001_0001_0001;
        const TOPS: u64 = ONES << 15;
        let [low, high] = self.tags.map(|word| {
            // Lanes that are 0 borrow into their top bit (Hacker's Delight §6-1).
            let differs = word ^ (ONES * u64::from(tag));
            differs.wrapping_sub(ONES) & !differs & TOPS
        });
        Places(low >> 15 | high >> 14)
    }

    #[inline]
    const fn slot(&self, place: usize) -> Slot {
        self.slots[place % WAYS]
    }

    /// Whether the place really has this tag.
    #[inline]
    fn has_tag(&self, place: usize, tag: u16) -> bool {
        (self.tags[place / 4] >> (16 * (place % 4))) & 0xffff == u64::from(tag)
    }

    fn set_tag(&mut self, place: usize, tag: u16) {
        let shift = 16 * (place % 4);
        let word = &mut self.tags[place / 4];
        *word = *word & !(0xffff << shift) | u64::from(tag) << shift;
    }
}

/// The hash index of the session table.
#[derive(Debug)]
pub(super) struct Index {
    buckets: Column<Bucket>,
    /// Number of home buckets. A few more follow, so that probing never wraps around.
    homes: usize,
    len: usize,
}

impl Index {
    /// Creates an index for this many entries.
    ///
    /// # Errors
    /// If there is not enough address space.
    pub(super) fn new(capacity: usize) -> Result<Self, SessionMemoryError> {
        // Half full at capacity. Translated sessions have two places: a table with only those is full at about nine tenths.
        let homes = (2 * capacity).div_ceil(WAYS).max(1);
        Ok(Self { buckets: Column::new(homes + PROBES - 1, capacity)?, homes, len: 0 })
    }

    /// Returns the number of slots in the index.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Size of the index in bytes, used or not.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.buckets.records())
    }

    /// Returns a hash's home bucket: its upper half as a fraction of the array, which works with any size.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.homes as u64) >> 32) as usize
    }

    /// Returns a view that reads buckets ahead of lookups.
    #[inline]
    pub(super) fn prefetch(&self) -> Prefetch<'_> {
        Prefetch { buckets: self.buckets.records(), homes: self.homes as u64 }
    }

    /// Returns the slot with this hash for which `is_it` returns true.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(Slot) -> bool) -> Option<Slot> {
        let home = self.home(hash);
        for bucket in &self.buckets.records()[home..home + PROBES] {
            let mut places = bucket.with_tag(tag(hash));
            while let Some(place) = places.first() {
                if bucket.has_tag(place, tag(hash)) && is_it(bucket.slot(place)) {
                    return Some(bucket.slot(place));
                }
                places = places.without_first();
            }
            if bucket.passed == 0 {
                break;
            }
        }
        None
    }

    /// Adds an entry's slot under its key's hash. Returns false if all buckets of the hash are full.
    pub(super) fn insert(&mut self, hash: u64, slot: Slot) -> bool {
        let home = self.home(hash);
        let walk = &mut self.buckets.records_mut()[home..home + PROBES];
        for at in 0..PROBES {
            if let Some(place) = walk[at].with_tag(0).first() {
                walk[at].set_tag(place, tag(hash));
                walk[at].slots[place] = slot;
                walk[..at].iter_mut().for_each(|bucket| bucket.passed += 1);
                self.len += 1;
                return true;
            }
        }
        false
    }

    /// Removes an entry's slot, which was added under this hash.
    pub(super) fn remove(&mut self, hash: u64, slot: Slot) {
        let home = self.home(hash);
        for bucket in &mut self.buckets.records_mut()[home..home + PROBES] {
            let mut places = bucket.with_tag(tag(hash));
            while let Some(place) = places.first() {
                if bucket.has_tag(place, tag(hash)) && bucket.slot(place) == slot {
                    bucket.set_tag(place, 0);
                    self.len -= 1;
                    return;
                }
                places = places.without_first();
            }
            bucket.passed -= 1;
        }
        debug_assert!(false, "slot {slot} is not in the index");
    }
}

/// Reads home buckets ahead of the lookups. The slots that it returns are guesses.
#[derive(Clone, Copy)]
pub(crate) struct Prefetch<'a> {
    buckets: &'a [Bucket],
    homes: u64,
}

impl Prefetch<'_> {
    #[inline]
    fn bucket(&self, hash: u64) -> &Bucket {
        &self.buckets[(((hash >> 32) * self.homes) >> 32) as usize]
    }

    /// Reads the hash's home bucket and nothing else, so that a loop has as many cache misses in flight as the CPU allows.
    #[inline]
    pub(crate) fn touch(&self, hash: u64) -> u16 {
        self.bucket(hash).passed
    }

    /// Returns the slot of a hash if it is in its home bucket, otherwise `NONE` or a wrong slot.
    #[inline]
    pub(crate) fn guess(&self, hash: u64) -> Slot {
        let bucket = self.bucket(hash);
        bucket.with_tag(tag(hash)).first().map_or(NONE, |place| bucket.slot(place))
    }
}

/// Returns a hash's tag. Never 0, which marks a free place.
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
    fn every_place_of_a_bucket_is_found_by_its_tag() {
        let mut bucket = Bucket { tags: [0; 2], slots: [0; WAYS], passed: 0, spare: [0; 7] };
        for place in 0..WAYS {
            let free = bucket.with_tag(0).first().unwrap();
            assert!(bucket.has_tag(free, 0));
            let tag = u16::try_from(2 * place + 1).unwrap();
            bucket.set_tag(free, tag);
            assert_eq!(bucket.with_tag(tag).first(), Some(free));
            assert_eq!(bucket.with_tag(0xffff).first(), None);
        }
        assert_eq!(bucket.with_tag(0).first(), None);
        bucket.set_tag(5, 0);
        assert_eq!(bucket.with_tag(0).first(), Some(5));
    }

    #[test]
    fn cve_2019_25076_no_lookup_reads_more_than_eight_buckets_whatever_was_inserted() {
        let mut index = Index::new(1000).unwrap();
        // All keys have the same hash, as if an attacker had chosen them.
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
            let mut index = Index::new(capacity).unwrap();
            let hash = |slot: u32| (u64::from(slot) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
            let slots = 0..u32::try_from(capacity).unwrap();
            assert!(slots.clone().all(|slot| index.insert(hash(slot), slot)), "{capacity}");
            assert!(slots.clone().all(|slot| index.find(hash(slot), |other| other == slot).is_some()));
            slots.for_each(|slot| index.remove(hash(slot), slot));
            assert!(index.buckets.records().iter().all(|bucket| bucket.tags == [0; 2] && bucket.passed == 0));
        }
    }

    proptest! {
        #[test]
        fn the_index_agrees_with_a_map(steps in proptest::collection::vec((0u64..40, any::<bool>()), 1..400)) {
            let mut index = Index::new(20).unwrap();
            let mut model = HashMap::new();
            // Few home buckets and fewer tags.
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
