//! What one session table for all workers would cost at the least, for comparison.
//!
//! A hit writes to its session: the time, TCP's state, its place among those that may be recycled. In a table that workers
//! share, the cache line of an entry so travels between their cores. Two bounds: plain reads and writes, as if a table
//! without locks could do with them ([`Access::Plain`]), and a lock in each entry, which is what keeps two workers that hit
//! one session from undoing each other's work ([`Access::Locked`]). Creating, ending and recycling sessions, which need more
//! than that in a shared table, are in neither. Each worker has sessions of its own besides, which give the verdicts; what
//! the additional lines cost as memory shows when each worker has lines of its own too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A session as far as workers write to it: one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    lock: AtomicBool,
    time: AtomicU64,
}

/// How workers write to lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Plain,
    Locked,
}

/// Such lines, one for each flow.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    lines: Arc<[Line]>,
    access: Access,
}

impl Lines {
    pub(super) fn new(flows: u32, access: Access) -> Self {
        Self { lines: (0..flows).map(|_| Line::default()).collect(), access }
    }

    /// What a burst of hits writes. The lines are all read before, as the engine reads ahead, so that the misses overlap.
    #[inline]
    pub(super) fn touch(&self, flows: &[u64], now: u64) {
        let lines = || flows.iter().filter_map(|&flow| self.lines.get(usize::try_from(flow).ok()?));
        let read = lines().fold(0, |all, line| all ^ line.time.load(Ordering::Relaxed));
        std::hint::black_box(read);
        lines().for_each(|line| line.write(now, self.access));
    }
}

impl Line {
    #[inline]
    fn write(&self, now: u64, access: Access) {
        let is_locked = access == Access::Locked;
        while is_locked && self.lock.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        self.time.store(now, Ordering::Relaxed);
        if is_locked {
            self.lock.store(false, Ordering::Release);
        }
    }
}
