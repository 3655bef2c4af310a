//! The time in nanoseconds since 1970, which never decreases.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A clock that starts with the time of day and follows the monotonic clock. A later correction of the time of day would otherwise end all
/// sessions, or keep them for hours.
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
