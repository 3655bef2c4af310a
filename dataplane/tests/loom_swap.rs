//! Explores with loom all interleavings of the swap (`src/swap.rs`): generations never decrease, a reader sees a whole value or none, and
//! only the publisher's thread frees replaced values. The model runs the production code with loom's types. It replaces `ArcSwap`, which
//! loom cannot instrument, by a [`Cell`](crate::sync::Cell) with the same guarantee: load and exchange are atomic, and a reader counts as a
//! holder once the exchange has returned. `src/sync.rs` tests with real threads that `ArcSwap` provides it. The cell's mutex orders more
//! than `ArcSwap` does, so these models would not detect a weaker order of accesses to the version.

#[path = "../src/swap.rs"]
mod swap;

use crate::sync::{Arc, AtomicU64, Ordering};
use loom::model::Builder;
use loom::thread::{self, JoinHandle, ThreadId};
use swap::{Publisher, Reader};

/// Records the end of every value of one run.
#[derive(Debug, Default)]
struct Ledger {
    freed: std::sync::Mutex<Vec<(u64, ThreadId)>>,
}

impl Ledger {
    fn freed(&self) -> Vec<u64> {
        self.freed.lock().unwrap().iter().map(|&(generation, _)| generation).collect()
    }

    fn freed_elsewhere(&self, here: ThreadId) -> usize {
        self.freed.lock().unwrap().iter().filter(|&&(_, thread)| thread != here).count()
    }
}

/// A model of a snapshot: two halves that must be equal. They are relaxed atomics, so that loom shows zeros to a reader without
/// synchronization.
#[derive(Debug)]
struct Value {
    halves: [AtomicU64; 2],
    generation: u64,
    ledger: std::sync::Arc<Ledger>,
}

impl Value {
    fn new(generation: u64, ledger: &std::sync::Arc<Ledger>) -> Self {
        let halves = [AtomicU64::new(0), AtomicU64::new(0)];
        halves.iter().for_each(|half| half.store(generation, Ordering::Relaxed));
        Self { halves, generation, ledger: std::sync::Arc::clone(ledger) }
    }

    /// Returns the generation. Panics if the halves differ or the value is freed.
    fn check(&self) -> u64 {
        let halves = self.halves.each_ref().map(|half| half.load(Ordering::Relaxed));
        assert_eq!(halves, [self.generation; 2], "a mixture");
        assert!(!self.ledger.freed().contains(&self.generation), "freed while it is in use");
        self.generation
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.ledger.freed.lock().unwrap().push((self.generation, thread::current().id()));
    }
}

/// A worker that loads `loads` times. Returns its reader and the last generation.
fn worker(mut reader: Reader<Value>, loads: usize) -> JoinHandle<(Reader<Value>, u64)> {
    thread::spawn(move || {
        let mut last = 0;
        for _ in 0..loads {
            let generation = reader.load().check();
            assert!(generation >= last, "{generation} after {last}");
            last = generation;
        }
        (reader, last)
    })
}

fn ledger() -> std::sync::Arc<Ledger> {
    std::sync::Arc::default()
}

/// Explores all interleavings with at most this number of forced preemptions. Most bugs in such code need two; without a bound the number
/// of interleavings explodes.
fn explore(preemptions: usize, model: fn()) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn readers_see_whole_values_in_order_and_free_none() {
    explore(3, || {
        let ledger = ledger();
        let mut publisher = Publisher::new(Value::new(0, &ledger));
        let workers = [1, 2].map(|loads| worker(publisher.reader(), loads));
        publisher.publish(Value::new(1, &ledger));
        publisher.publish(Value::new(2, &ledger));
        for worker in workers {
            let (mut reader, _) = worker.join().unwrap();
            assert_eq!(reader.load().check(), 2, "what was published is seen by every later load");
        }
        assert_eq!(publisher.collect(), 0);
        assert_eq!(ledger.freed().len(), 2);
        assert_eq!(ledger.freed_elsewhere(thread::current().id()), 0);
    });
}

#[test]
fn a_reader_that_ends_in_the_middle_of_a_publish_frees_nothing() {
    explore(3, || {
        let ledger = ledger();
        let mut publisher = Publisher::new(Value::new(0, &ledger));
        let mut reader = publisher.reader();
        let worker = thread::spawn(move || {
            reader.load().check();
            drop(reader);
        });
        publisher.publish(Value::new(1, &ledger));
        let waiting = publisher.collect();
        assert!(waiting <= 1, "one reader holds at most one old value");
        worker.join().unwrap();
        assert_eq!(publisher.collect(), 0);
        assert_eq!((ledger.freed(), ledger.freed_elsewhere(thread::current().id())), (vec![0], 0));
    });
}

#[test]
fn a_reader_that_is_made_in_the_middle_of_a_publish_is_up_to_date_with_its_next_load() {
    explore(3, || {
        let ledger = ledger();
        let publisher = Arc::new(loom::sync::Mutex::new(Publisher::new(Value::new(0, &ledger))));
        let other = publisher.lock().unwrap().reader();
        let worker = thread::spawn(move || {
            let mut made = other.clone();
            let first = made.load().check();
            assert!(made.load().check() >= first);
            (other, made)
        });
        publisher.lock().unwrap().publish(Value::new(1, &ledger));
        let (mut other, mut made) = worker.join().unwrap();
        assert_eq!((other.load().check(), made.load().check()), (1, 1));
        let mut publisher = publisher.lock().unwrap();
        assert_eq!((publisher.reader().load().check(), publisher.current().check()), (1, 1));
        assert_eq!(publisher.collect(), 0);
        assert_eq!(ledger.freed_elsewhere(thread::current().id()), 0);
    });
}

#[test]
fn a_publisher_that_goes_first_leaves_its_readers_the_newest_value() {
    explore(3, || {
        let ledger = ledger();
        let mut publisher = Publisher::new(Value::new(0, &ledger));
        let worker = worker(publisher.reader(), 2);
        publisher.publish(Value::new(1, &ledger));
        drop(publisher);
        let (mut reader, _) = worker.join().unwrap();
        assert_eq!(reader.load().check(), 1);
        assert_eq!(ledger.freed(), [0]);
        drop(reader);
        assert_eq!(ledger.freed(), [0, 1], "nothing is leaked");
    });
}

#[test]
fn a_value_that_a_reader_is_using_outlives_any_number_of_publishes() {
    explore(2, || {
        let ledger = ledger();
        let mut publisher = Publisher::new(Value::new(0, &ledger));
        let mut reader = publisher.reader();
        let worker = thread::spawn(move || {
            // A burst uses the value that it loaded at its start until its end.
            let value = reader.load();
            let first = value.check();
            thread::yield_now();
            assert_eq!(value.check(), first);
        });
        for generation in 1..=3 {
            publisher.publish(Value::new(generation, &ledger));
            assert!(publisher.collect() <= 2, "the one it uses, or two in the middle of a load");
        }
        worker.join().unwrap();
        assert_eq!(publisher.collect(), 0);
        assert_eq!((ledger.freed().len(), ledger.freed_elsewhere(thread::current().id())), (3, 0));
    });
}
