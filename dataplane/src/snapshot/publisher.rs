//! Publishes snapshots to the workers: one [`Publisher`] for the control plane, one [`Reader`] per worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Snapshot;
use crate::swap;

/// A snapshot that is not newer than the current one was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("generation {offered} was published after generation {current}; each publish needs a higher number")]
pub struct PublishError {
    /// Generation of the current snapshot.
    pub current: u64,
    /// Generation of the rejected snapshot.
    pub offered: u64,
}

/// The control plane's end: swaps snapshots without blocking workers, and frees old ones.
///
/// Keep it until the workers have ended. Workers free the snapshots that they still hold when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Publisher {
    /// Locked by publishers only, so that the highest generation stays. Readers never lock it.
    swap: Arc<Mutex<swap::Publisher<Snapshot>>>,
}

impl Publisher {
    /// Creates a publisher with this snapshot as the current one.
    pub fn new(first: Snapshot) -> Self {
        Self { swap: Arc::new(Mutex::new(swap::Publisher::new(first))) }
    }

    /// Makes the snapshot current, atomically: every later [`Reader::load`] returns it or a newer one. Then frees old snapshots as
    /// [`Publisher::collect`] does.
    ///
    /// # Errors
    /// [`PublishError`] unless its generation is higher than the current one, or equal with a higher epoch of Services.
    pub fn publish(&self, next: impl Into<Arc<Snapshot>>) -> Result<(), PublishError> {
        let next = next.into();
        let mut swap = self.swap();
        let now = swap.current();
        let is_later =
            |next: &Snapshot| (next.generation, next.services_epoch()) > (now.generation, now.services_epoch());
        if !is_later(&next) {
            return Err(PublishError { current: now.generation, offered: next.generation });
        }
        swap.publish(next);
        Ok(())
    }

    /// Frees old snapshots that no reader holds and returns how many are still held: at most one per [`Reader`], which releases it with its
    /// next load, and those returned by [`Publisher::current`]. Call it from time to time: otherwise a snapshot that was held during a
    /// publish is only freed by the next one.
    pub fn collect(&self) -> usize {
        self.swap().collect()
    }

    /// Returns the current snapshot.
    pub fn current(&self) -> Arc<Snapshot> {
        self.swap().current()
    }

    /// Creates a reader for a worker.
    pub fn reader(&self) -> Reader {
        Reader { swap: self.swap().reader() }
    }

    fn swap(&self) -> MutexGuard<'_, swap::Publisher<Snapshot>> {
        // A publisher that panicked with the lock has published or has not; no state is half written.
        self.swap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's end. A load costs one atomic read while the snapshot does not change, touches no reference count and frees nothing.
#[derive(Clone, Debug)]
pub struct Reader {
    swap: swap::Reader<Snapshot>,
}

impl Reader {
    /// Returns the current snapshot. Call it once per burst, so that one snapshot judges the whole burst.
    #[inline]
    pub fn load(&mut self) -> &Snapshot {
        self.swap.load()
    }
}
