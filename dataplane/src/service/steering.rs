//! Finds the worker that owns the session of a translated connection.
//!
//! A packet's pair of addresses selects its worker ([`crate::Affinity`]). The client's packets carry the VIP and the backend's packets do
//! not, so the two directions arrive at different workers. The session belongs to the worker that receives the backend's answers. The other
//! worker looks up the owner here and hands the client's packets over.
//!
//! ```text
//!   hash(client, vip, protocol, ports) --> two neighbouring cache lines of words      word: 56 bits of the hash | worker
//! ```
//!
//! The alternative is half a session at each worker, without handing over. State, shares, timeouts and policy of the halves would have to
//! be synchronised across cores. That would save 45 ns per packet (`vswitch/lane.rs`), while a packet of a live port costs about 800 ns and
//! flows in the kernel's cache reach no worker.
//!
//! **Invariant.** A word is in the table exactly while its session is in its worker's table. Workers write without a lock: a word is
//! complete or absent.

use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;

use super::lines::{Lines, WORDS};
use crate::session::{Key, KeyHasher};

/// Bits of a word that number the worker, from 1. 0 marks a free word.
const WORKER_BITS: u32 = 8;

/// Maps the keys of translated sessions to the workers that own them. All workers of a vswitch share it.
#[derive(Debug)]
pub(crate) struct Steering {
    hasher: KeyHasher,
    lines: Lines,
}

impl Steering {
    /// Creates a table for this many sessions. The kernel allocates its memory on first use.
    pub(crate) fn new(capacity: usize) -> Self {
        // At capacity a quarter of the words is used. Then two neighbouring lines without a free word have a probability of 1 in 500,000.
        Self { hasher: KeyHasher::new(&RandomState::new()), lines: Lines::new((4 * capacity).div_ceil(WORDS).max(2)) }
    }

    /// Returns the number of the worker, from 0, that owns the session with this key. `None` if no worker has it.
    pub(crate) fn find(&self, key: &Key) -> Option<usize> {
        let tag = self.tag(key);
        let mut places = self.homes(tag).into_iter().flat_map(|line| self.lines.read(line));
        let word =
            places.find_map(|place| Some(place.load(Ordering::Relaxed)).filter(|word| word >> WORKER_BITS == tag))?;
        let worker = usize::try_from(word & ((1 << WORKER_BITS) - 1)).ok()?;
        worker.checked_sub(1)
    }

    /// Records that `worker` owns the session with this key. Returns false if the places for the key are in use.
    pub(crate) fn insert(&self, key: &Key, worker: usize) -> bool {
        let tag = self.tag(key);
        let word = tag << WORKER_BITS | (worker as u64 + 1);
        let take = |place: &AtomicU64| place.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        self.homes(tag).into_iter().flat_map(|line| self.lines.write(line)).any(take)
    }

    /// Removes the record that `worker` owns the session with this key.
    pub(crate) fn remove(&self, key: &Key, worker: usize) {
        let tag = self.tag(key);
        let word = tag << WORKER_BITS | (worker as u64 + 1);
        let give = |place: &AtomicU64| place.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        self.homes(tag).into_iter().flat_map(|line| self.lines.read(line)).any(give);
    }

    fn tag(&self, key: &Key) -> u64 {
        (self.hasher.hash(key) >> WORKER_BITS).max(1)
    }

    /// Returns the two neighbouring lines that may contain a tag.
    fn homes(&self, tag: u64) -> [usize; 2] {
        let lines = self.lines.len();
        // The lower half of the tag selects the line. The whole tag is compared.
        let line = usize::try_from(((tag & 0xffff_ffff) * lines as u64) >> 32).unwrap_or(0);
        [line, if line + 1 < lines { line + 1 } else { 0 }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Ports;

    fn key(number: u16) -> Key {
        Key::of([10, 0, 0, 1].into(), [10, 96, 0, 1].into(), 6, Ports::Pair(number, 80)).0
    }

    #[test]
    fn a_session_is_found_with_its_worker_until_it_ends() {
        let steering = Steering::new(1000);
        assert!((0..1000).all(|number| steering.insert(&key(number), usize::from(number % 64))));
        assert!((0..1000).all(|number| steering.find(&key(number)) == Some(usize::from(number % 64))));
        (0..500).for_each(|number| steering.remove(&key(number), usize::from(number % 64)));
        assert!((0..2000).all(|number| steering.find(&key(number)).is_some() == (500..1000).contains(&number)));
        steering.remove(&key(600), 63);
        assert!(steering.find(&key(600)).is_some(), "another worker's session of the same key stays");
    }

    #[test]
    fn a_full_table_says_so() {
        let steering = Steering::new(4);
        let taken: Vec<u16> = (0..100).filter(|&number| steering.insert(&key(number), 1)).collect();
        assert_eq!(taken.len(), 16);
        assert!(taken.iter().all(|&number| steering.find(&key(number)) == Some(1)));
    }
}
