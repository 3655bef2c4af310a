//! A set of addresses of one family, as ordered intervals. Each change takes time logarithmic in their number.
//!
//! [`AddressSet`](bulkhead_classifier::AddressSet) is rewritten with each change, which is too slow for a set of all pods.

use std::collections::BTreeMap;

/// Inclusive, disjoint intervals of numbers that represent addresses. Intervals may be adjacent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Intervals {
    by_first: BTreeMap<u128, u128>,
    /// Number of members, modulo 2^128. 0 for both the empty set and all of IPv6.
    count: u128,
}

impl Intervals {
    /// Returns the number of members, modulo 2^128.
    pub(super) fn count(&self) -> u128 {
        self.count
    }

    pub(super) fn len(&self) -> usize {
        self.by_first.len()
    }

    /// Whether the set contains all 128-bit numbers.
    pub(super) fn is_everything(&self) -> bool {
        self.count == 0 && !self.by_first.is_empty()
    }

    pub(super) fn contains(&self, number: u128) -> bool {
        self.by_first.range(..=number).next_back().is_some_and(|(_, &last)| number <= last)
    }

    /// Returns the intervals, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u128, u128)> + '_ {
        self.by_first.iter().map(|(&first, &last)| (first, last))
    }

    /// Adds `first ..= last`. The set may already contain some of it.
    pub(super) fn insert(&mut self, first: u128, last: u128) {
        self.remove(first, last);
        self.by_first.insert(first, last);
        self.count = self.count.wrapping_add(size(first, last));
    }

    /// Removes `first ..= last`. The set need not contain all of it.
    pub(super) fn remove(&mut self, first: u128, last: u128) {
        let reaching_in = self.by_first.range(..first).next_back().filter(|(_, end)| **end >= first);
        let inside = self.by_first.range(first..=last);
        let touched: Vec<(u128, u128)> = reaching_in.into_iter().chain(inside).map(|(&a, &b)| (a, b)).collect();
        for (start, end) in touched {
            self.by_first.remove(&start);
            self.count = self.count.wrapping_sub(size(start, end));
            if start < first {
                self.put(start, first - 1);
            }
            if end > last {
                self.put(last + 1, end);
            }
        }
    }

    fn put(&mut self, first: u128, last: u128) {
        self.by_first.insert(first, last);
        self.count = self.count.wrapping_add(size(first, last));
    }
}

/// Returns the number of members of an interval, modulo 2^128.
fn size(first: u128, last: u128) -> u128 {
    (last - first).wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn intervals_are_the_numbers_that_came_and_did_not_go(
            changes in prop::collection::vec((any::<bool>(), 0u128..60, 0u128..20), 1..60),
        ) {
            let (mut intervals, mut plain) = (Intervals::default(), BTreeSet::new());
            for (inserts, first, more) in changes {
                let range = first..=first + more;
                if inserts {
                    intervals.insert(first, first + more);
                    plain.extend(range);
                } else {
                    intervals.remove(first, first + more);
                    plain.retain(|number| !range.contains(number));
                }
                let members: BTreeSet<u128> = intervals.iter().flat_map(|(first, last)| first..=last).collect();
                prop_assert_eq!(&members, &plain);
                prop_assert_eq!(intervals.count(), plain.len() as u128);
                prop_assert!((0..90).all(|number| intervals.contains(number) == plain.contains(&number)));
            }
        }
    }

    #[test]
    fn everything_is_not_nothing() {
        let mut intervals = Intervals::default();
        assert!(!intervals.is_everything());
        intervals.insert(0, u128::MAX);
        assert!(intervals.is_everything() && intervals.contains(7));
        intervals.remove(7, 7);
        assert_eq!((intervals.is_everything(), intervals.count(), intervals.len()), (false, u128::MAX, 2));
    }
}
