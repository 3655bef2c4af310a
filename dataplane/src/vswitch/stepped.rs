//! Workers without threads: whoever owns one says when it does a round, and what time it is.
//!
//! For benches, which measure rounds and nothing else, and for tests that want to choose who goes next. A round is that of
//! a worker with a thread, commands and snapshot included; only the look at the clock is the caller's.

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
    /// One round at this time, in nanoseconds that do not go back: commands, then receive, judge, forward, send. False when
    /// there was nothing to do. It never sleeps.
    #[inline]
    pub fn round(&mut self, now: u64) -> bool {
        self.work.listen(self.is_idle);
        let worked = self.work.round(now);
        self.is_idle = !worked;
        worked
    }

    /// Whether this worker has the sessions of a packet with these bytes; others are handed over.
    pub fn owns(&self, frame: &[u8]) -> bool {
        self.workers == 1 || self.affinity.worker(frame, self.workers) == self.id
    }

    /// What it counted so far.
    pub fn counters(&self) -> WorkerCounters {
        self.work.counters()
    }

    /// Bytes of memory that its sessions take.
    pub fn session_memory(&self) -> usize {
        self.work.session_memory()
    }

    /// Closes its ports and tells what it counted. With several workers, the others must do no more rounds, or what they
    /// still hand over is lost.
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
    /// A vswitch whose workers run only when they are told to. The first value takes commands as ever, but asks nobody:
    /// [`Vswitch::counters`] and [`Vswitch::stop`] would wait in vain for workers that do no rounds. Cores are not looked
    /// at but for their number.
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
