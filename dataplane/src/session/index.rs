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
use super::memory::{Column, SessionMemoryError};

/// Entries in a bucket: what fits a cache line of 64 bytes.
const WAYS: usize = 8;

/// The most buckets that a key may be in. With half of the places in use, eight neighbouring buckets without a free
/// place need 64 keys where 32 are expected: once in 10^7.
const PROBES: usize = 8;

/// One cache line.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Bucket {
    /// Eight tags of 16 bits in two words, so that four are compared in one step: 0 for a free place, others are never 0.
    tags: [u64; 2],
    slots: [Slot; WAYS],
    /// How many keys began their walk here or before and lie behind. 0 ends the walk of a lookup.
    passed: u16,
    spare: [u16; 7],
}

/// Places in a bucket, as bits: place `4 * w + l` is bit `16 * l + w`. The lowest bit of each word's four is right; those
/// above it may be wrong, so whoever goes on to a second one has to look for himself.
#[derive(Clone, Copy)]
struct Places(u64);

impl Places {
    /// Some place, if there is one.
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
    /// The places with this tag.
    #[inline]
    fn with_tag(&self, tag: u16) -> Places {
        const ONES: u64 = 0x0001_0001_0001_0001;
        const TOPS: u64 = ONES << 15;
        let [low, high] = self.tags.map(|word| {
            // The lanes that are 0 now are those whose borrow reaches their top bit (Hacker's Delight §6-1).
            let differs = word ^ (ONES * u64::from(tag));
            differs.wrapping_sub(ONES) & !differs & TOPS
        });
        Places(low >> 15 | high >> 14)
    }

    /// The slot in a place.
    #[inline]
    const fn slot(&self, place: usize) -> Slot {
        self.slots[place % WAYS]
    }

    /// Whether a place has this tag indeed.
    #[inline]
    fn has_tag(&self, place: usize, tag: u16) -> bool {
        (self.tags[place / 4] >> (16 * (place % 4))) & 0xffff == u64::from(tag)
    }

    /// Writes a tag into a place.
    fn set_tag(&mut self, place: usize, tag: u16) {
        let shift = 16 * (place % 4);
        let word = &mut self.tags[place / 4];
        *word = *word & !(0xffff << shift) | u64::from(tag) << shift;
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
    ///
    /// # Errors
    /// When there is not so much address space.
    pub(super) fn new(capacity: usize) -> Result<Self, SessionMemoryError> {
        // Half full at capacity. Sessions to Services' addresses have two places: a table of nothing else is full at some nine tenths.
        let homes = (2 * capacity).div_ceil(WAYS).max(1);
        Ok(Self { buckets: Column::new(homes + PROBES - 1, capacity)?, homes, len: 0 })
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

    /// What reads buckets ahead.
    #[inline]
    pub(super) fn prefetch(&self) -> Prefetch<'_> {
        Prefetch { buckets: self.buckets.records(), homes: self.homes as u64 }
    }

    /// The slot under this hash of which `is_it` says yes.
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

    /// Puts a slot in. False when there is no place where it could be found again.
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

    /// Takes a slot out that is in under this hash.
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

/// Reads first buckets ahead: what it says is a guess.
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

    /// Reads the bucket and nothing else: a loop of these has as many cache misses under way as the CPU can have.
    #[inline]
    pub(crate) fn touch(&self, hash: u64) -> u16 {
        self.bucket(hash).passed
    }

    /// The slot of a hash, if it is in its first bucket, else `NONE` or a wrong one.
    #[inline]
    pub(crate) fn guess(&self, hash: u64) -> Slot {
        let bucket = self.bucket(hash);
        bucket.with_tag(tag(hash)).first().map_or(NONE, |place| bucket.slot(place))
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
