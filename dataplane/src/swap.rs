//! A value that one thread replaces and many threads read. The replacing thread frees old values.
//!
//! ```text
//!   Publisher --publish--> [cell: Arc<T>] [version]  <--is it still mine?-- Reader { held: Arc<T>, version }
//!       |                                                    yes, nearly always: nothing else is touched
//!       `--> retired: [Arc<T>, ...] --nobody else holds it--> freed here
//! ```
//!
//! A reader keeps its own `Arc` and compares one number per load, so readers share no written cache line until something is published.
//! Releasing an old value frees nothing, because the publisher also holds it and releases it last. Freeing a snapshot with its tables takes
//! milliseconds, or thousands of packets on a worker.
//!
//! **Invariant.** Replaced values are freed by the publisher's calls, never by readers. A reader keeps at most one retired value alive, two
//! during a load. A reader never sees an older value after a newer one.
//!
//! Rejected alternatives: `arc_swap::Cache` alone reads as fast, but the last holder frees. An `RwLock` blocks a worker behind a preempted
//! holder. Epochs (`crossbeam-epoch`) free on the publisher's side, but each reader announces each burst with a store and a fence, and they
//! need `unsafe` here. A queue per worker changes workers one after another, and may be full.
//!
//! A load costs 1.5 ns while nothing changes, and 64 ns after a publish, measured in the publisher's thread and thus without a transfer of
//! the cache line (`what_a_load_costs` in `snapshot/tests.rs`).

use crate::sync::{Arc, AtomicU64, Cell, Ordering};

/// State shared by publisher and readers.
#[derive(Debug)]
struct Shared<T> {
    cell: Cell<T>,
    /// Number of published values. Incremented after the cell has the new value, so a reader that sees the number finds that value or a
    /// later one.
    version: AtomicU64,
}

/// The side that replaces the value. A load that begins after a publish returns the published value or a newer one.
///
/// Keep it until all readers are gone. Readers free what they still hold when it is dropped first.
#[derive(Debug)]
pub(crate) struct Publisher<T> {
    shared: Arc<Shared<T>>,
    retired: Vec<Arc<T>>,
}

impl<T> Publisher<T> {
    /// Creates a publisher with this value.
    pub(crate) fn new(first: T) -> Self {
        let shared = Shared { cell: Cell::new(Arc::new(first)), version: AtomicU64::new(0) };
        Self { shared: Arc::new(shared), retired: Vec::new() }
    }

    /// Replaces the value, and frees old ones that no reader holds.
    pub(crate) fn publish(&mut self, next: impl Into<Arc<T>>) {
        let old = self.shared.cell.swap(next.into());
        self.shared.version.fetch_add(1, Ordering::Release);
        self.retired.push(old);
        self.collect();
    }

    /// Frees old values that no reader holds. Returns the number of those left. A reader releases its value with its next load.
    pub(crate) fn collect(&mut self) -> usize {
        // A retired value can only be cloned from another holder, so a count of 1 stays 1. It also proves that the others have released it,
        // so this drop frees it.
        self.retired.retain(|value| Arc::strong_count(value) > 1);
        self.retired.len()
    }

    pub(crate) fn current(&self) -> Arc<T> {
        self.shared.cell.load()
    }

    pub(crate) fn reader(&self) -> Reader<T> {
        // Nothing is published in between, because publishing needs exclusive access.
        let version = self.shared.version.load(Ordering::Acquire);
        Reader { shared: Arc::clone(&self.shared), held: self.shared.cell.load(), version }
    }
}

/// The side that reads the value, for one thread.
#[derive(Debug)]
pub(crate) struct Reader<T> {
    shared: Arc<Shared<T>>,
    held: Arc<T>,
    /// Version of the held value, which may in fact be newer.
    version: u64,
}

impl<T> Reader<T> {
    /// Returns the current value. Costs one atomic read while nothing is published.
    #[inline]
    pub(crate) fn load(&mut self) -> &T {
        let version = self.shared.version.load(Ordering::Acquire);
        if version != self.version {
            self.renew(version);
        }
        &self.held
    }

    /// Loads the value of this version. A function of its own, so that the common path is short enough to be inlined.
    #[cold]
    fn renew(&mut self, version: u64) {
        self.held = self.shared.cell.load();
        self.version = version;
    }
}

impl<T> Clone for Reader<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), held: Arc::clone(&self.held), version: self.version }
    }
}
