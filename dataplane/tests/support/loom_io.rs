//! `crate::io` for the loom models.

use loom::sync::{Condvar, Mutex};

/// A model of an eventfd: it is readable from a write until the next read.
#[derive(Debug, Default)]
pub(crate) struct Waker {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Waker {
    pub(crate) fn wake(&self) {
        *self.is_set.lock().unwrap() = true;
        self.changed.notify_one();
    }

    pub(crate) fn drain(&self) {
        *self.is_set.lock().unwrap() = false;
    }

    /// Blocks until the eventfd is readable, as poll(2) does.
    pub(crate) fn wait(&self) {
        let mut is_set = self.is_set.lock().unwrap();
        while !*is_set {
            is_set = self.changed.wait(is_set).unwrap();
        }
    }
}
