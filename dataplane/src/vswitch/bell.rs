//! Wakes sleeping workers without losing a wake-up.
//!
//! The types come from `crate::sync` and `crate::io`, so that a model checker can substitute its own and explore this code
//! (`tests/loom_bell.rs`).

use crate::io::Waker;
use crate::sync::{AtomicBool, Ordering, fence};

/// Wakes one worker from its sleep. Other workers ring it after they have put packets into the worker's lanes.
#[derive(Debug)]
pub(crate) struct Bell {
    asleep: AtomicBool,
    waker: Waker,
}

impl Bell {
    /// Creates the bell of a worker that is awake.
    pub(crate) fn new(waker: Waker) -> Self {
        Self { asleep: AtomicBool::new(false), waker }
    }

    /// Returns the waker that the worker polls.
    pub(crate) const fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Announces that the worker will sleep. The worker must check for work once more before it sleeps.
    pub(crate) fn prepare_to_sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Announces that the worker is awake, so that other workers do not wake it.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        self.waker.drain();
    }

    /// Wakes the worker if it sleeps or is about to. Call it after making the work visible.
    pub(crate) fn ring(&self) {
        // Pairs with the worker's fence: either the worker sees the work, or this thread sees that it sleeps.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}
