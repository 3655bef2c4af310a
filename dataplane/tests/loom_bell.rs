//! Explores with loom all interleavings of a worker that goes to sleep and threads that ring its bell: no wake-up is lost. The model runs
//! the code of `src/vswitch/bell.rs` with loom's types and a model of an eventfd. A real worker also wakes up after a timeout. Here it does
//! not, so a lost wake-up blocks the model ("deadlock").

use crate::io::Waker;
use bell::Bell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

#[path = "../src/vswitch/bell.rs"]
mod bell;

/// A lane or a channel: the number of entries put in so far, with the memory order of a queue of one producer.
#[derive(Debug, Default)]
struct Lane(AtomicUsize);

impl Lane {
    fn put(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

/// A worker that sleeps whenever it finds nothing new, until it has found all entries of all lanes.
fn work(bell: &Bell, lanes: &[Lane], everything: usize) {
    let look = || lanes.iter().map(Lane::count).sum::<usize>();
    let mut found = look();
    while found < everything {
        bell.prepare_to_sleep();
        if look() == found {
            bell.waker().wait();
        }
        bell.awake();
        found = look();
    }
}

fn explore(model: fn()) {
    let mut builder = Builder::new();
    // Bounds forced preemptions of a thread. A sleep is none.
    builder.preemption_bound = Some(4);
    builder.check(model);
}

#[test]
fn one_who_brings_news_twice_is_never_slept_through() {
    explore(|| {
        let shared = Arc::new((Bell::new(Waker::default()), [Lane::default()]));
        let worker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || work(&shared.0, &shared.1, 2))
        };
        for _ in 0..2 {
            shared.1[0].put();
            shared.0.ring();
        }
        worker.join().unwrap();
    });
}

#[test]
fn two_who_bring_news_at_once_are_never_slept_through() {
    explore(|| {
        let shared = Arc::new((Bell::new(Waker::default()), [Lane::default(), Lane::default()]));
        let bringers = [0, 1].map(|lane| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.1[lane].put();
                shared.0.ring();
            })
        });
        work(&shared.0, &shared.1, 2);
        for bringer in bringers {
            bringer.join().unwrap();
        }
    });
}
