//! Sweeps the names that pods have learned.

use std::time::{Duration, Instant};

use bulkhead_dataplane::Learned;

/// Time between two sweeps of the learned names, each of a part of the table.
const SWEEP: Duration = Duration::from_secs(1);

/// Number of sweeps after the last rule that names domains is gone, which remove everything.
const LAST_SWEEPS: u32 = 64;

/// The schedule of sweeps. Nothing is swept while no rule names domains.
#[derive(Debug)]
pub(super) struct NameSweep {
    at: Instant,
    left: u32,
}

impl NameSweep {
    pub(super) fn new() -> Self {
        Self { at: Instant::now(), left: 0 }
    }

    /// Sweeps if it is time. Returns when to call this again. `None` if there is nothing to sweep.
    pub(super) fn next(&mut self, is_used: bool, learned: &Learned) -> Option<Instant> {
        let now = Instant::now();
        if is_used {
            self.left = LAST_SWEEPS;
        }
        if self.left > 0 && now >= self.at {
            learned.sweep(crate::clock::now());
            (self.left, self.at) = (self.left - 1, now + SWEEP);
        }
        (self.left > 0).then_some(self.at)
    }
}
