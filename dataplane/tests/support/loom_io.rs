//! `crate::io` of the code that loom explores.

use loom::sync::{Condvar, Mutex};

/// An eventfd: remembers that it was written to until it is read.
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

    /// What poll(2) does with it.
    pub(crate) fn wait(&self) {
        let mut is_set = self.is_set.lock().unwrap();
        while !*is_set {
            is_set = self.changed.wait(is_set).unwrap();
        }
    }
}
