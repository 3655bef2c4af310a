//! What time it is: nanoseconds since 1970 that never go back.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Counts on from the time of day at which it was made, by the monotonic clock. Were the time of day read again, a
/// correction of it would end all sessions, or none for hours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    started: Instant,
    started_at: u64,
}

impl Clock {
    pub(super) fn new() -> Self {
        let started_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Self { started: Instant::now(), started_at: u64::try_from(started_at).unwrap_or(u64::MAX) }
    }

    pub(super) fn now(&self) -> u64 {
        let elapsed = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.started_at.saturating_add(elapsed)
    }
}
