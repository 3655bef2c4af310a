//! Workers without threads. The owner calls each round and supplies the time.
//!
//! Benchmarks use them to measure rounds only, and tests to choose the order of workers. A round is the same as with a thread, including
//! commands and snapshots, except that the caller supplies the time.

use super::worker_loop::{Parts, WorkerLoop};
use super::{Affinity, Vswitch, VswitchConfig, VswitchError, WorkerCounters};
use crate::Publisher;

/// A worker that its owner drives.
pub struct SteppedWorker {
    work: WorkerLoop,
    affinity: Affinity,
    id: usize,
    workers: usize,
    is_idle: bool,
}

impl SteppedWorker {
    /// Runs one round at this time, in nanoseconds that must not decrease: commands, receive, judge, forward, send. Returns false if there
    /// was no work. Never sleeps.
    #[inline]
    pub fn round(&mut self, now: u64) -> bool {
        self.work.listen(self.is_idle);
        let worked = self.work.round(now);
        self.is_idle = !worked;
        worked
    }

    /// Whether this worker owns the sessions of a packet with these bytes. Other packets are handed over.
    pub fn owns(&self, frame: &[u8]) -> bool {
        self.workers == 1 || self.affinity.worker(frame, self.workers) == self.id
    }

    /// Returns the worker's counters since its start.
    pub fn counters(&self) -> WorkerCounters {
        self.work.counters()
    }

    /// Returns the memory used by the worker's sessions, in bytes.
    pub fn session_memory(&self) -> usize {
        self.work.session_memory()
    }

    /// Closes the worker's ports and returns its counters. With several workers, stop calling rounds of the others, or packets that they
    /// hand over are lost.
    pub fn stop(self) -> WorkerCounters {
        self.work.end()
    }
}

impl std::fmt::Debug for SteppedWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SteppedWorker").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Vswitch {
    /// Creates a vswitch whose workers run only when their owner calls a round. The [`Vswitch`] queues commands as usual, but its
    /// [`Vswitch::counters`] and [`Vswitch::stop`] wait in vain while no rounds run. Only the number of configured cores matters.
    ///
    /// # Errors
    /// [`VswitchError`].
    pub fn stepped(config: &VswitchConfig, publisher: &Publisher) -> Result<(Self, Vec<SteppedWorker>), VswitchError> {
        let (vswitch, parts) = Self::assemble(config, publisher, None)?;
        let workers = parts.len();
        let stepped = |(id, parts): (usize, Parts)| {
            let affinity = parts.surroundings.affinity.clone();
            SteppedWorker { work: WorkerLoop::new(parts), affinity, id, workers, is_idle: true }
        };
        Ok((vswitch, parts.into_iter().enumerate().map(stepped).collect()))
    }
}
