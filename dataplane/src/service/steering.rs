//! Which worker has the session of a connection to a Service's address.
//!
//! A pair of addresses decides which worker a packet belongs to ([`crate::Affinity`]). What a client sends to a virtual address has
//! another pair than what the backend sees, so the two directions come to different workers. The session is with the one that the
//! backend's answers come to. The other one looks here, and hands the client's packets over.
//!
//! ```text
//!   hash(client, vip, protocol, ports) --> two neighbouring cache lines of words      word: 56 bits of the hash | worker
//! ```
//! The alternative is a half of the session with each worker, which shows its own half the way out and hands nothing over. It was not
//! taken: state, share, time and policy of the halves have to be kept alike across cores, for 45 ns per packet (`vswitch/lane.rs`), where
//! a packet of a live port costs some 800, and where flows that the kernel forwards by itself come to no worker at all.
//!
//! **Invariant.** A word is in the table exactly as long as its session is in its worker's table. Workers write without a lock; a word
//! is whole or not there.

use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;

use super::lines::{Lines, WORDS};
use crate::session::{Key, KeyHasher};

/// Bits of a word that name the worker, from 1; 0 is a free word.
const WORKER_BITS: u32 = 8;

/// The table of all workers of a vswitch.
#[derive(Debug)]
pub(crate) struct Steering {
    hasher: KeyHasher,
    lines: Lines,
}

impl Steering {
    /// For so many sessions. Memory is touched as it is used.
    pub(crate) fn new(capacity: usize) -> Self {
        // A quarter full at capacity: two neighbouring lines without a free word are then as rare as one in 500,000.
        Self { hasher: KeyHasher::new(&RandomState::new()), lines: Lines::new((4 * capacity).div_ceil(WORDS).max(2)) }
    }

    /// The worker, from 0, that has the session.
    pub(crate) fn find(&self, key: &Key) -> Option<usize> {
        let tag = self.tag(key);
        let mut places = self.homes(tag).into_iter().flat_map(|line| self.lines.read(line));
        let word =
            places.find_map(|place| Some(place.load(Ordering::Relaxed)).filter(|word| word >> WORKER_BITS == tag))?;
        let worker = usize::try_from(word & ((1 << WORKER_BITS) - 1)).ok()?;
        worker.checked_sub(1)
    }

    /// A worker has a new session. False when there is no place where it could be found.
    pub(crate) fn insert(&self, key: &Key, worker: usize) -> bool {
        let tag = self.tag(key);
        let word = tag << WORKER_BITS | (worker as u64 + 1);
        let take = |place: &AtomicU64| place.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        self.homes(tag).into_iter().flat_map(|line| self.lines.write(line)).any(take)
    }

    /// A worker's session has ended.
    pub(crate) fn remove(&self, key: &Key, worker: usize) {
        let tag = self.tag(key);
        let word = tag << WORKER_BITS | (worker as u64 + 1);
        let give = |place: &AtomicU64| place.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        self.homes(tag).into_iter().flat_map(|line| self.lines.read(line)).any(give);
    }

    fn tag(&self, key: &Key) -> u64 {
        (self.hasher.hash(key) >> WORKER_BITS).max(1)
    }

    /// Two lines, of which the second is the first one's neighbour.
    fn homes(&self, tag: u64) -> [usize; 2] {
        let lines = self.lines.len();
        // The tag's lower half chooses the line; all of it is compared.
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
