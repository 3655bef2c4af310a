//! A token bucket: so many at once, so many per second.

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// How fast a bucket fills and how much it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) per_second: u32,
    pub(super) burst: u32,
}

/// A bucket, full at first. Kept as the time at which it would be full again: one number, no rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    full_at: u64,
}

/// What the vswitch sends of its own to a port because of what came in there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortBuckets {
    /// ICMP errors.
    pub(super) errors: Bucket,
    /// Answers to ARP and neighbour discovery.
    pub(super) answers: Bucket,
}

impl Bucket {
    /// Takes a token; false when there is none.
    pub(super) fn take(&mut self, rate: Rate, now: u64) -> bool {
        let cost = SECOND / u64::from(rate.per_second.max(1));
        let full_at = self.full_at.max(now).saturating_add(cost);
        let allowed = full_at <= now.saturating_add(cost.saturating_mul(rate.burst.into()));
        if allowed {
            self.full_at = full_at;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { per_second: 100, burst: 50 };

    fn taken(bucket: &mut Bucket, now: u64, tries: u32) -> usize {
        (0..tries).filter(|_| bucket.take(RATE, now)).count()
    }

    #[test]
    fn a_burst_is_allowed_and_then_the_rate() {
        let mut bucket = Bucket::default();
        assert_eq!(taken(&mut bucket, 1000 * SECOND, 1000), 50);
        assert_eq!(taken(&mut bucket, 1000 * SECOND + SECOND / 10, 1000), 10);
        assert_eq!(taken(&mut bucket, 1001 * SECOND + SECOND / 10, 1000), 50, "no more than a burst is saved up");
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_gives_nothing() {
        let mut bucket = Bucket::default();
        assert_eq!(taken(&mut bucket, 10 * SECOND, 100), 50);
        assert_eq!(taken(&mut bucket, 10 * SECOND, 100), 0);
        assert_eq!(taken(&mut bucket, 9 * SECOND, 100), 0);
    }
}
