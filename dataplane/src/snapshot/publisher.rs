//! How snapshots reach the workers: a [`Publisher`] on the control plane's side, a [`Reader`] for each worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Snapshot;
use crate::swap;

/// A publish that would go back in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("generation {offered} was published after generation {current}; each publish needs a higher number")]
pub struct PublishError {
    /// The generation in use.
    pub current: u64,
    /// The generation that was refused.
    pub offered: u64,
}

/// The control plane's end: swaps snapshots without a lock in any worker's way, and frees the old ones.
///
/// To be kept until the workers have ended: what they still hold when the last clone of it is dropped, they free.
#[derive(Clone, Debug)]
pub struct Publisher {
    /// Publishers exclude each other, so that the highest generation stays; readers never take it.
    swap: Arc<Mutex<swap::Publisher<Snapshot>>>,
}

impl Publisher {
    /// Starts with this snapshot.
    pub fn new(first: Snapshot) -> Self {
        Self { swap: Arc::new(Mutex::new(swap::Publisher::new(first))) }
    }

    /// Makes the snapshot the current one, whole and at once: every [`Reader::load`] that begins after this returns it or
    /// a later one. Frees old snapshots as [`Publisher::collect`] does.
    ///
    /// # Errors
    /// [`PublishError`] when its generation is not higher than the current one, nor the same with a higher epoch of Services.
    pub fn publish(&self, next: Snapshot) -> Result<(), PublishError> {
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

    /// Frees the old snapshots that nobody holds any more, and returns how many are still held: at most one per
    /// [`Reader`], whose next load lets go of it, besides what [`Publisher::current`] gave out. To be called now and then,
    /// as a snapshot that was held at the time of a publish waits for the next one otherwise.
    pub fn collect(&self) -> usize {
        self.swap().collect()
    }

    /// The snapshot in use.
    pub fn current(&self) -> Arc<Snapshot> {
        self.swap().current()
    }

    /// A worker's end.
    pub fn reader(&self) -> Reader {
        Reader { swap: self.swap().reader() }
    }

    fn swap(&self) -> MutexGuard<'_, swap::Publisher<Snapshot>> {
        // Whoever panicked with it has published or has not; nothing is half done.
        self.swap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's end: one atomic read per burst, no reference count touched while nothing changes, and nothing freed.
#[derive(Clone, Debug)]
pub struct Reader {
    swap: swap::Reader<Snapshot>,
}

impl Reader {
    /// The current snapshot. To be called once per burst: what it returns is what the whole burst is judged by.
    #[inline]
    pub fn load(&mut self) -> &Snapshot {
        self.swap.load()
    }
}
