//! What a worker does after a panic.

use std::any::Any;
use std::panic::resume_unwind;

use super::super::VswitchEvent;
use super::Stage;

/// A worker that fails more often than this within [`FAULTS_WITHIN`] ends: a packet that somebody can send again and again
/// must not look like a vswitch that works.
pub(super) const MAX_FAULTS: usize = 8;

/// A minute in nanoseconds.
const FAULTS_WITHIN: u64 = 60_000_000_000;

impl Stage {
    /// The worker has failed outside of the engine. What it had in its hands is lost, and its frames with it.
    pub(in crate::vswitch) fn recover(&mut self, panic: Box<dyn Any + Send>) {
        let Self { received, arrivals, copies, pool, ledger, .. } = self;
        received.extend(arrivals.frames().drain(..).chain(copies.frames().drain(..)));
        received.iter().for_each(|frame| ledger.forget(frame));
        ledger.recover(pool);
        pool.give_all(received.drain(..));
        arrivals.clear();
        copies.clear();
        self.go_on_after(panic);
    }

    /// Goes on with the sessions, unless that has been of no use: then the worker ends, which the control thread sees.
    #[cold]
    pub(super) fn go_on_after(&mut self, panic: Box<dyn Any + Send>) {
        let is_hopeless = self.faults[0] != 0 && self.now.saturating_sub(self.faults[0]) < FAULTS_WITHIN;
        self.faults.rotate_left(1);
        self.faults[MAX_FAULTS - 1] = self.now;
        if is_hopeless || self.engine.restart().is_err() {
            resume_unwind(panic);
        }
        self.ledger.counters.restarts += 1;
        // Nobody listens any more when the vswitch ends.
        let _ = self.events.send(VswitchEvent::WorkerRestarted { worker: self.id });
    }
}
