//! Wakes a sleeping thread without losing a wake-up: a worker, or the reader of a stream.
//!
//! The types come from `crate::sync` and `crate::io`, so that a model checker can substitute its own and explore this code
//! (`tests/loom_bell.rs`).

use crate::io::Waker;
use crate::sync::{AtomicBool, Ordering, fence};

/// Wakes the thread that owns a [`Bell`].
pub(crate) trait Wake {
    /// Ends the owner's present or next sleep.
    fn wake(&self);

    /// Discards a wake-up that has not ended a sleep.
    fn drain(&self);
}

impl Wake for Waker {
    fn wake(&self) {
        self.wake();
    }

    fn drain(&self) {
        self.drain();
    }
}

/// Wakes one thread, its owner, from its sleep. Other threads ring it after they have put work into the owner's lanes or rings.
#[derive(Debug)]
pub(crate) struct Bell<W = Waker> {
    asleep: AtomicBool,
    waker: W,
}

impl<W: Wake> Bell<W> {
    /// Creates the bell of a thread that is awake.
    pub(crate) fn new(waker: W) -> Self {
        Self { asleep: AtomicBool::new(false), waker }
    }

    /// Returns the waker for which the owner waits.
    pub(crate) const fn waker(&self) -> &W {
        &self.waker
    }

    /// Announces that the owner will sleep. The owner must check for work once more before it sleeps.
    pub(crate) fn prepare_to_sleep(&self) {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Announces that the owner is awake, so that other threads do not wake it.
    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        self.waker.drain();
    }

    /// Wakes the owner if it sleeps or is about to. Call it after making the work visible.
    pub(crate) fn ring(&self) {
        // Pairs with the owner's fence: either the owner sees the work, or this thread sees that it sleeps.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}
