//! Removes expired addresses from what pods have learned by name.

use std::time::{Duration, Instant};

use bulkhead_dataplane::Learned;

/// Time between two sweeps. Each sweeps one 32nd of the table of learned names.
const SWEEP: Duration = Duration::from_secs(1);

/// Number of sweeps after the last rule that names domains is gone. They sweep the whole table twice, which releases the memory of all
/// holders.
const LAST_SWEEPS: u32 = 64;

/// The schedule of sweeps. Sweeping stops some time after the last rule that names domains is gone.
#[derive(Debug)]
pub(super) struct NameSweep {
    /// Time of the next sweep.
    at: Instant,
    /// Number of sweeps until sweeping stops. 0 if it has stopped.
    left: u32,
}

impl NameSweep {
    pub(super) fn new() -> Self {
        Self { at: Instant::now(), left: 0 }
    }

    /// Sweeps if it is time. Returns when to call this again, `None` if sweeping has stopped. `is_used`: whether any rule names domains.
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
