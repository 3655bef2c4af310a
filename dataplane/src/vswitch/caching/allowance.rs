//! A port's budget of flows.

/// A port's token bucket: one share at once, refilled within a given time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Number of tokens.
    left: u64,
    /// Time of the last refill in nanoseconds.
    at: u64,
}

impl Allowance {
    /// Returns a full bucket.
    pub(super) const fn full(share: u64) -> Self {
        Self { left: share, at: 0 }
    }

    /// Takes one token. Returns false if none is left. `within` is the refill time of a share in nanoseconds.
    pub(super) fn take(&mut self, share: u64, within: u64, now: u64) -> bool {
        let each = (within / share).max(1);
        let gained = now.saturating_sub(self.at) / each;
        if gained > 0 {
            self.left = self.left.saturating_add(gained).min(share);
            self.at = if self.left == share { now } else { self.at + gained * each };
        }
        let has_one = self.left > 0;
        self.left -= u64::from(has_one);
        has_one
    }
}

#[cfg(test)]
mod tests {
    use super::super::SHARE;
    use super::*;

    #[test]
    fn a_port_adds_no_more_flows_within_a_lease_than_its_share() {
        const LEASE: u64 = 30_000_000_000;
        let mut allowance = Allowance::full(SHARE);
        let taken = (0..10 * SHARE).filter(|_| allowance.take(SHARE, LEASE, 1_000)).count();
        assert_eq!(taken as u64, SHARE);
        // Over a lease, the same number again, however requests are spread.
        let taken =
            (1..=1_000_000).filter(|step| allowance.take(SHARE, LEASE, 1_000 + step * (LEASE / 1_000_000))).count();
        assert!((SHARE - 2..=SHARE + 1).contains(&(taken as u64)), "{taken}");
        assert_eq!((0..2 * SHARE).filter(|_| allowance.take(SHARE, LEASE, 10 * LEASE)).count() as u64, SHARE);
    }
}
