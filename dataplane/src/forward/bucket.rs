//! A token bucket.

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

/// The fill rate and size of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate {
    pub(super) per_second: u32,
    pub(super) burst: u32,
}

/// A token bucket, initially full. Stored as the time at which it would be full again: one number, without rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    full_at: u64,
}

impl Bucket {
    /// Takes a token at time `now`, in nanoseconds. Returns false if the bucket is empty.
    pub(super) fn take(&mut self, rate: Rate, now: u64) -> bool {
        let after = self.after(rate, now);
        if let Some(after) = after {
            *self = after;
        }
        after.is_some()
    }

    /// Takes a token from both buckets, or from neither if one is empty. Returns whether it took them.
    pub(super) fn take_both(one: &mut Self, one_rate: Rate, other: &mut Self, other_rate: Rate, now: u64) -> bool {
        match (one.after(one_rate, now), other.after(other_rate, now)) {
            (Some(after), Some(other_after)) => {
                (*one, *other) = (after, other_after);
                true
            }
            _ => false,
        }
    }

    /// Returns the bucket after taking a token. `None` if the bucket is empty.
    fn after(self, rate: Rate, now: u64) -> Option<Self> {
        let cost = SECOND / u64::from(rate.per_second.max(1));
        let full_at = self.full_at.max(now).saturating_add(cost);
        (full_at <= now.saturating_add(cost.saturating_mul(rate.burst.into()))).then_some(Self { full_at })
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

    #[test]
    fn of_two_buckets_neither_loses_a_token_when_the_other_has_none() {
        let (mut one, mut other) = (Bucket::default(), Bucket::default());
        let few = Rate { per_second: 1, burst: 2 };
        let both = (0..10).filter(|_| Bucket::take_both(&mut one, few, &mut other, RATE, SECOND)).count();
        assert_eq!((both, taken(&mut other, SECOND, 1000)), (2, 48));
    }
}
