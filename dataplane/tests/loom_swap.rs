//! All interleavings of the swap (`src/swap.rs`) with loom: generations never go back, a value is seen whole or not at
//! all, and only the publisher's thread frees what was replaced.
//!
//! The code under test is the code that runs; only the types below it are loom's. In place of `ArcSwap`, which loom
//! cannot look into, there is a [`Cell`](crate::sync::Cell) that keeps the same promise: reading and exchanging are atomic, and who
//! has read a value counts as a holder once the exchange has returned. That `ArcSwap` keeps it is tested in
//! `src/sync.rs` with real threads. A mutex orders more than `ArcSwap` does, so these models would not notice a
//! weaker order of the version's accesses.

#[path = "../src/swap.rs"]
mod swap;

use crate::sync::{Arc, AtomicU64, Ordering};
use loom::model::Builder;
use loom::thread::{self, JoinHandle, ThreadId};
use swap::{Publisher, Reader};

/// What the values of one run tell about their end.
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

/// A snapshot in small: two halves that must agree. They are atomics that are written and read with the weakest order,
/// so that loom shows a reader that was not made to see them the zeros from before.
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

    /// The generation, after a check that all of it is there and that it is not freed.
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

/// A worker that takes a look `loads` times and gives its reader back with the last generation.
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

/// Explores all orders with at most `preemptions` forced changes of thread. Most faults of such code need two; what
/// the bound leaves out is the product of everything with everything.
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
            // A burst: what was loaded at its start is used to its end.
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
