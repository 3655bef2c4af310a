//! How a worker that goes to sleep and those who have news for it do not miss each other.
//!
//! The types come from `crate::sync` and `crate::io`, so that a model checker can give its own (`tests/loom_bell.rs`) and
//! explores the code that runs.

use crate::io::Waker;
use crate::sync::{AtomicBool, Ordering, fence};

/// Wakes a worker that sleeps.
#[derive(Debug)]
pub(crate) struct Bell {
    asleep: AtomicBool,
    waker: Waker,
}

impl Bell {
    /// A bell of a worker that is awake.
    pub(crate) fn new(waker: Waker) -> Self {
        Self { asleep: AtomicBool::new(false), waker }
    }

    /// What the worker sleeps on.
    pub(crate) const fn waker(&self) -> &Waker {
        &self.waker
    }

    /// The worker looks around once more after this, before it sleeps.
    pub(crate) fn prepare_to_sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The worker is awake again.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        self.waker.drain();
    }

    /// Wakes the worker if it sleeps or is about to. To be called after the news was put where the worker looks.
    pub(crate) fn ring(&self) {
        // Together with the worker's fence: either the worker sees the news, or this sees that it sleeps.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}
