//! A value that one thread replaces and many read, with old values freed by the thread that replaces.
//!
//! ```text
//!   Publisher --publish--> [cell: Arc<T>] [version]  <--is it still mine?-- Reader { held: Arc<T>, version }
//!       |                                                    yes, nearly always: nothing else is touched
//!       `--> retired: [Arc<T>, ...] --nobody else holds it--> freed here
//! ```
//!
//! A reader keeps an `Arc` of its own and compares one number per load, so readers share no cache line that anybody
//! writes, until something is published. That it lets go of an old value then frees nothing: the publisher holds it as
//! well, and lets go last. Freeing a snapshot with its tables takes milliseconds, which on a worker would be
//! thousands of packets.
//!
//! **Invariant.** A value that was replaced is freed by a call of the publisher, never by a reader's. A reader keeps at
//! most one retired value from being freed, two in the middle of a load. What a reader sees never goes back.
//!
//! What lost: `arc_swap::Cache` alone reads as fast, but whoever lets go last frees. An `RwLock` makes a worker wait for
//! whoever was interrupted while holding it. Epochs (`crossbeam-epoch`) free on the publisher's side as well, but every
//! reader has to announce each burst with a store and a fence, and they need `unsafe` here. Sending a value to each
//! worker through a queue of its own makes the workers change one after another and a queue can be full.
//!
//! A load costs 1.5 ns while nothing changes and 64 ns right after a publish, in the publisher's thread and so without
//! what it costs to fetch a cache line from another core (`what_a_load_costs` in `snapshot/tests.rs`).

use crate::sync::{Arc, AtomicU64, Cell, Ordering};

/// What the two sides share.
#[derive(Debug)]
struct Shared<T> {
    cell: Cell<T>,
    /// How many values were published. Raised after the cell has the new one, so that a reader that sees the number
    /// finds that value or a later one.
    version: AtomicU64,
}

/// The side that replaces. There is one; what it publishes is seen by every load that begins afterwards.
///
/// To be kept until the readers are gone: when it is dropped first, what readers still hold is freed by them.
#[derive(Debug)]
pub(crate) struct Publisher<T> {
    shared: Arc<Shared<T>>,
    retired: Vec<Arc<T>>,
}

impl<T> Publisher<T> {
    /// Starts with this value.
    pub(crate) fn new(first: T) -> Self {
        let shared = Shared { cell: Cell::new(Arc::new(first)), version: AtomicU64::new(0) };
        Self { shared: Arc::new(shared), retired: Vec::new() }
    }

    /// Replaces the value, and frees old ones that no reader holds any more.
    pub(crate) fn publish(&mut self, next: T) {
        let old = self.shared.cell.swap(Arc::new(next));
        self.shared.version.fetch_add(1, Ordering::Release);
        self.retired.push(old);
        self.collect();
    }

    /// Frees old values that no reader holds any more. Returns how many are left: a reader lets go of one with its next
    /// load.
    pub(crate) fn collect(&mut self) -> usize {
        // Nobody can get hold of a retired value but by a clone of another holder's, so 1 stays 1. And a count of 1
        // says that the others have let go, so ours is the `drop` that frees.
        self.retired.retain(|value| Arc::strong_count(value) > 1);
        self.retired.len()
    }

    /// The value in use.
    pub(crate) fn current(&self) -> Arc<T> {
        self.shared.cell.load()
    }

    /// A side that reads.
    pub(crate) fn reader(&self) -> Reader<T> {
        // Nothing is published between the two: that would take the publisher for itself.
        let version = self.shared.version.load(Ordering::Acquire);
        Reader { shared: Arc::clone(&self.shared), held: self.shared.cell.load(), version }
    }
}

/// A side that reads.
#[derive(Debug)]
pub(crate) struct Reader<T> {
    shared: Arc<Shared<T>>,
    held: Arc<T>,
    /// The value held is of this version or a later one.
    version: u64,
}

impl<T> Reader<T> {
    /// The value in use. While nothing is published this is one atomic read.
    #[inline]
    pub(crate) fn load(&mut self) -> &T {
        let version = self.shared.version.load(Ordering::Acquire);
        if version != self.version {
            self.renew(version);
        }
        &self.held
    }

    /// Apart, so that the usual way is short enough to be inlined.
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
