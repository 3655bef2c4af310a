//! Pauses after failures.

use std::time::Duration;

use super::settings::Timing;

/// Exponential backoff with jitter: pauses double, and each is shortened at random by up to a half. So clients that lost a server together
/// do not return together.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
    random: ahash::RandomState,
}

impl Backoff {
    pub(super) fn new(timing: &Timing) -> Self {
        let (first, longest) = (timing.first_pause, timing.longest_pause);
        Self { first, longest, failures: 0, random: ahash::RandomState::new() }
    }

    /// Starts again with the first pause, after a success.
    pub(super) const fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns the pause after another failure.
    pub(super) fn next(&mut self) -> Duration {
        let pause = self.first.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX)).min(self.longest);
        self.failures = self.failures.saturating_add(1);
        // A random share between 128/256 and 255/256.
        let share = 128 + u32::try_from(self.random.hash_one(self.failures) % 128).unwrap_or_default();
        pause * share / 256
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_start_again() {
        let timing = Timing::default();
        let mut backoff = Backoff::new(&timing);
        let mut expected = timing.first_pause;
        for _ in 0..100 {
            let pause = backoff.next();
            assert!(pause >= expected / 2 && pause <= expected, "{pause:?} of {expected:?}");
            expected = (expected * 2).min(timing.longest_pause);
        }
        backoff.reset();
        assert!(backoff.next() <= timing.first_pause);
    }
}
