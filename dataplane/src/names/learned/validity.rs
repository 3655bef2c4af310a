//! Rounds the end times of addresses, so that holders that asked at different moments share records.

const SECOND: u64 = 1_000_000_000;

/// The time left, divided by this, is the most by which a validity may be lengthened: a quarter.
const LENGTHENED: u64 = 4;

/// Returns the whole seconds since 1970 of a time in nanoseconds. `u32::MAX` in and after 2106.
pub(super) fn seconds(time: u64) -> u32 {
    u32::try_from(time / SECOND).unwrap_or(u32::MAX)
}

/// Returns the nanoseconds since 1970 of a time in seconds.
pub(super) fn nanoseconds(second: u32) -> u64 {
    u64::from(second) * SECOND
}

/// The end times from which the table may choose one for a new answer, in seconds since 1970, both included. An address with end `e` is
/// valid in all seconds before `e`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// The answer's own end, rounded up to a full second. At least 1.
    pub(super) first: u32,
    /// The latest allowed end. At least `first`.
    pub(super) last: u32,
}

impl Window {
    /// Returns the allowed ends of an answer that is valid from `now` to `until`, both in nanoseconds since 1970. `None` if `until` is not
    /// after `now`.
    pub(super) fn new(now: u64, until: u64) -> Option<Self> {
        let left = until.checked_sub(now).filter(|&left| left > 0)?;
        let first = u32::try_from(until.div_ceil(SECOND)).unwrap_or(u32::MAX);
        let last = seconds(until.saturating_add(left / LENGTHENED));
        Some(Self { first, last: last.max(first) })
    }

    /// Returns the allowed end that is divisible by the highest power of two. This power is at least an eighth of the time left, so few
    /// different ends remain.
    pub(super) const fn roundest(self) -> u32 {
        // The highest bit in which `last` differs from the second before the window is set in `last` and ends the number.
        let differ = self.first.saturating_sub(1) ^ self.last;
        match differ.checked_ilog2() {
            Some(bit) => self.last >> bit << bit,
            None => self.last,
        }
    }

    pub(super) const fn contains(self, end: u32) -> bool {
        self.first <= end && end <= self.last
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_validity_is_lengthened_by_at_most_a_quarter_or_to_the_next_second(
            now in 0..4_000_000_000 * SECOND,
            left in prop_oneof![1..10 * SECOND, 30 * SECOND..400 * SECOND, 1..100_000_000 * SECOND],
        ) {
            let window = Window::new(now, now + left).unwrap();
            let (first, last) = (nanoseconds(window.first), nanoseconds(window.last));
            prop_assert!(now + left <= first && first < now + left + SECOND);
            prop_assert!(last <= now + left + left / 4 || last == first);
            prop_assert!(last > now + left + left / 4 - SECOND, "the whole quarter is allowed");
        }

        #[test]
        fn the_roundest_end_has_more_trailing_zeros_than_any_other(first in 1u32.., len in 0u32..1000) {
            let window = Window { first, last: first.saturating_add(len) };
            let roundest = window.roundest();
            prop_assert!(window.contains(roundest));
            let others = (window.first..=window.last).filter(|&end| end != roundest);
            prop_assert!(others.map(u32::trailing_zeros).all(|zeros| zeros < roundest.trailing_zeros()));
        }
    }

    #[test]
    fn an_answer_that_has_ended_has_no_window_and_one_after_2106_has_no_end() {
        assert_eq!(Window::new(5, 5), None);
        assert_eq!(Window::new(5, 4), None);
        let window = Window::new(u64::MAX - 1, u64::MAX).unwrap();
        assert_eq!((window.first, window.last, window.roundest()), (u32::MAX, u32::MAX, u32::MAX));
        assert_eq!(Window::new(0, 1), Some(Window { first: 1, last: 1 }));
    }
}
