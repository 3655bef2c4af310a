//! A lower bound for the cost of a session table that all workers share, for comparison. A hit writes to its session: the time, TCP's
//! state, its place in the order of expiry. In a shared table, the entry's cache line therefore moves between cores. There are two bounds:
//! plain reads and writes, as if a table without locks could use them ([`Access::Plain`]), and a lock in each entry, which keeps two
//! workers from overwriting each other's changes ([`Access::Locked`]). Neither bound includes creating, ending and reusing sessions, which
//! cost more in a shared table. Workers also keep their own sessions, which decide verdicts. A run in which each worker has its own lines
//! shows the cost of the lines' memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The part of a session that workers write: one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    lock: AtomicBool,
    time: AtomicU64,
}

/// How workers write to a line: without or with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Plain,
    Locked,
}

/// The simulated session table that workers share: one cache line per flow.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    lines: Arc<[Line]>,
    access: Access,
}

impl Lines {
    pub(super) fn new(flows: u32, access: Access) -> Self {
        Self { lines: (0..flows).map(|_| Line::default()).collect(), access }
    }

    /// Writes to the cache lines of a burst's flows. Reads all lines first, as the engine prefetches, so that cache misses overlap.
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
