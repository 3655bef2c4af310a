//! Recovery of a worker from a panic.

use std::any::Any;
use std::panic::resume_unwind;

use super::super::VswitchEvent;
use super::Stage;

/// Maximum number of panics within [`FAULTS_WITHIN`]. Beyond it the worker ends, so that packets that trigger a panic do not leave a
/// vswitch that only seems to work.
pub(super) const MAX_FAULTS: usize = 8;

/// The period in which [`MAX_FAULTS`] panics end the worker: one minute, in nanoseconds.
const FAULTS_WITHIN: u64 = 60_000_000_000;

impl Stage {
    /// Recovers from a panic outside of the engine. Packets in processing are lost with their frames.
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

    /// Restarts the engine with its sessions, or ends the worker after too many panics.
    #[cold]
    pub(super) fn go_on_after(&mut self, panic: Box<dyn Any + Send>) {
        let is_hopeless = self.faults[0] != 0 && self.now.saturating_sub(self.faults[0]) < FAULTS_WITHIN;
        self.faults.rotate_left(1);
        self.faults[MAX_FAULTS - 1] = self.now;
        if is_hopeless || self.engine.restart().is_err() {
            resume_unwind(panic);
        }
        self.ledger.counters.restarts += 1;
        // Sending fails only while the vswitch ends.
        let _ = self.events.send(VswitchEvent::WorkerRestarted { worker: self.id });
    }
}
