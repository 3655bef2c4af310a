//! The synchronisation types of [`swap`](crate::swap) and of the workers' bells. A model checker substitutes its own types of the same
//! names (`tests/loom_*.rs`), so that it explores the production code.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use arc_swap::ArcSwap;

/// A place for one `Arc`, which threads may read and replace at any time without blocking.
#[derive(Debug)]
pub(crate) struct Cell<T>(ArcSwap<T>);

impl<T> Cell<T> {
    pub(crate) fn new(value: Arc<T>) -> Self {
        Self(ArcSwap::new(value))
    }

    /// Returns the current `Arc`.
    pub(crate) fn load(&self) -> Arc<T> {
        self.0.load_full()
    }

    /// Replaces the value and returns the old one. Afterwards the old value's `strong_count` includes all readers: `ArcSwap` settles their
    /// debts before it returns.
    pub(crate) fn swap(&self, next: Arc<T>) -> Arc<T> {
        self.0.swap(next)
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use super::*;
    use crate::swap::{Publisher, Reader};

    /// Changes that each reader must see. With this many, changes hit a load in each of its states.
    const CHANGES: u64 = 200;

    /// Number of values freed by the publisher's thread, and by other threads.
    #[derive(Default)]
    struct Ledger {
        here: AtomicU64,
        elsewhere: AtomicU64,
    }

    struct Value {
        generation: u64,
        /// Equal to `generation`. `Drop` overwrites them.
        halves: [AtomicU64; 2],
        publisher: ThreadId,
        ledger: Arc<Ledger>,
    }

    impl Drop for Value {
        fn drop(&mut self) {
            self.halves[0].store(u64::MAX, Ordering::Relaxed);
            let Ledger { here, elsewhere } = &*self.ledger;
            let whose = if thread::current().id() == self.publisher { here } else { elsewhere };
            whose.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Loads in a loop until `stop` is set. Counts in `met` the loads that returned a new generation.
    fn read(mut reader: Reader<Value>, met: &AtomicU64, stop: &AtomicBool) -> Reader<Value> {
        let (mut last, mut loads) = (0, 0u32);
        while !stop.load(Ordering::Relaxed) {
            let value = reader.load();
            let halves = value.halves.each_ref().map(|half| half.load(Ordering::Relaxed));
            assert_eq!(halves, [value.generation; 2]);
            assert!(value.generation >= last);
            if value.generation > last {
                met.fetch_add(1, Ordering::Relaxed);
            }
            last = value.generation;
            // On a machine with one core, the other threads must run too.
            loads = loads.wrapping_add(1);
            if loads % 1024 == 0 {
                thread::yield_now();
            }
        }
        reader
    }

    #[test]
    fn who_has_read_a_value_counts_as_a_holder_once_the_exchange_has_returned() {
        let ledger = Arc::<Ledger>::default();
        let value = |generation| Value {
            generation,
            halves: [generation, generation].map(AtomicU64::new),
            publisher: thread::current().id(),
            ledger: Arc::clone(&ledger),
        };
        let mut publisher = Publisher::new(value(0));
        let (met, stop) = ([const { AtomicU64::new(0) }; 3], AtomicBool::new(false));
        let mut generation = 0;
        let readers = thread::scope(|scope| {
            let readers = met.each_ref().map(|met| {
                let (reader, stop) = (publisher.reader(), &stop);
                scope.spawn(move || read(reader, met, stop))
            });
            while met.iter().any(|met| met.load(Ordering::Relaxed) < CHANGES)
                && !readers.iter().any(|r| r.is_finished())
            {
                generation += 1;
                publisher.publish(value(generation));
                assert!(publisher.collect() <= 6, "at most two per reader");
                if generation % 64 == 0 {
                    thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
            readers.map(|reader| reader.join().unwrap())
        });
        drop(readers);
        assert_eq!((publisher.collect(), ledger.here.load(Ordering::Relaxed)), (0, generation));
        drop(publisher);
        assert_eq!(ledger.here.load(Ordering::Relaxed), generation + 1, "nothing is leaked");
        assert_eq!(ledger.elsewhere.load(Ordering::Relaxed), 0);
    }
}
