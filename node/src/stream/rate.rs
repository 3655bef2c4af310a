//! The rate of events, for Hubble's server status.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Averaging time, as in Hubble.
const OVER: Duration = Duration::from_secs(60);

/// Measures events per second, averaged over the last minute.
#[derive(Debug, Default)]
pub(super) struct Rate {
    /// Total counts by time. The first entry is at most slightly older than a minute.
    seen: VecDeque<(Instant, u64)>,
}

impl Rate {
    /// Records `seen`, the total number of events until `now`. Returns events per second, averaged over the last minute; 0 at first.
    pub(super) fn after(&mut self, now: Instant, seen: u64) -> f64 {
        while self.seen.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= OVER) {
            self.seen.pop_front();
        }
        self.seen.push_back((now, seen));
        let Some((at, before)) = self.seen.front() else { return 0.0 };
        let seconds = now.duration_since(*at).as_secs_f64();
        #[allow(clippy::cast_precision_loss, reason = "a rate for people")]
        let events = seen.saturating_sub(*before) as f64;
        if seconds > 0.0 { events / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_the_last_minute() {
        let (start, mut rate) = (Instant::now(), Rate::default());
        let after = |rate: &mut Rate, seconds, seen| rate.after(start + Duration::from_secs(seconds), seen);
        assert_eq!(after(&mut rate, 0, 100).to_bits(), 0.0_f64.to_bits());
        assert!((after(&mut rate, 10, 200) - 10.0).abs() < 1e-9);
        for second in 11..70 {
            after(&mut rate, second, 200);
        }
        assert!((after(&mut rate, 70, 260) - 1.0).abs() < 1e-9, "those of the first ten seconds are older");
        assert!(rate.seen.len() < 100);
    }
}
