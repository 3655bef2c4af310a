//! Very large address sets, in parts that versions share.
//!
//! ```text
//!  the set of all pods       [ part | part | part | ... ]      Arc<AddressSet> each, ascending
//!                                     |
//!  one pod later             [  ''  | part'|  ''  | ... ]      copies one part, whatever the set's size
//! ```
//! All rules that name a large set refer to one object, which also answers whether an address is a member. So tables need not be compiled
//! for its members, and 100 tables hold the set once.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use crate::AddressSet;
use crate::address_set::{Point, interval_among, interval_contains, normalise};

/// A set of addresses in parts. Two sets are equal if they have the same members in the same parts.
pub struct PartedSet {
    parts: Vec<Arc<AddressSet>>,
    v4: Family<u32>,
    v6: Family<u128>,
    /// All members as one set. Computed when first requested.
    flat: OnceLock<AddressSet>,
}

/// For one family: the parts with members of that family, and the lowest member of each.
#[derive(Debug, Default)]
pub(crate) struct Family<A> {
    /// The lowest member of each part, ascending.
    firsts: Vec<A>,
    /// The index of each part in `PartedSet::parts`.
    at: Vec<usize>,
}

impl PartedSet {
    /// Makes a set of the members of all parts.
    ///
    /// Parts that do not ascend or that overlap are merged into one, which then shares nothing with other versions.
    pub fn new(parts: Vec<Arc<AddressSet>>) -> Self {
        Self::in_order(parts).unwrap_or_else(|parts| {
            let all = parts.iter().fold(AddressSet::default(), |all, part| all.union(part));
            Self::in_order(vec![Arc::new(all)]).unwrap_or_else(|_| unreachable!("one part is in order"))
        })
    }

    fn in_order(parts: Vec<Arc<AddressSet>>) -> Result<Self, Vec<Arc<AddressSet>>> {
        let v4 = Family::new(parts.iter().map(|part| part.v4_intervals()));
        let v6 = Family::new(parts.iter().map(|part| part.v6_intervals()));
        match (v4, v6) {
            (Some(v4), Some(v6)) => Ok(Self { parts, v4, v6, flat: OnceLock::new() }),
            _ => Err(parts),
        }
    }

    /// Returns the parts, ascending.
    pub fn parts(&self) -> &[Arc<AddressSet>] {
        &self.parts
    }

    /// Whether the address is a member. Takes logarithmic time in the number of intervals.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4().contains(u32::from(address)),
            IpAddr::V6(address) => self.v6().contains(u128::from(address)),
        }
    }

    #[inline]
    pub(crate) fn v4(&self) -> Members<'_, u32> {
        Members { parts: &self.parts, family: &self.v4, intervals: AddressSet::v4_intervals }
    }

    #[inline]
    pub(crate) fn v6(&self) -> Members<'_, u128> {
        Members { parts: &self.parts, family: &self.v6, intervals: AddressSet::v6_intervals }
    }

    /// Returns all members as one set. The first call computes it; the result is cached.
    pub fn flat(&self) -> &AddressSet {
        self.flat.get_or_init(|| {
            let v4 = self.parts.iter().flat_map(|part| part.v4_intervals().iter().copied());
            let v6 = self.parts.iter().flat_map(|part| part.v6_intervals().iter().copied());
            AddressSet::of_intervals(v4.collect(), v6.collect())
        })
    }

    /// Returns the number of intervals in all parts.
    pub fn intervals(&self) -> usize {
        self.parts.iter().map(|part| part.v4_intervals().len() + part.v6_intervals().len()).sum()
    }

    /// Returns the members of exactly one of the sets. Reads only parts that the two do not share.
    #[must_use]
    pub fn difference(&self, other: &Self) -> AddressSet {
        let own = |all: &[Arc<AddressSet>], others: &[Arc<AddressSet>]| {
            // Shared parts mostly have the same index in both.
            let shared = |(at, part): (usize, &Arc<AddressSet>)| {
                others.get(at).is_some_and(|other| Arc::ptr_eq(part, other))
                    || others.iter().any(|other| Arc::ptr_eq(part, other))
            };
            let own = all.iter().enumerate().filter(|&(at, part)| !shared((at, part))).map(|(_, part)| part);
            own.cloned().collect::<Vec<_>>()
        };
        let (mine, theirs) = (own(&self.parts, &other.parts), own(&other.parts, &self.parts));
        match (&mine[..], &theirs[..]) {
            ([], []) => AddressSet::default(),
            ([mine], [theirs]) => mine.difference(theirs),
            _ => Self::new(mine).flat().difference(Self::new(theirs).flat()),
        }
    }
}

impl<A: Point> Family<A> {
    /// Builds the index from the intervals of each part. `None` if the parts do not ascend.
    fn new<'a>(parts: impl Iterator<Item = &'a [(A, A)]>) -> Option<Self>
    where
        A: 'a,
    {
        let mut family = Self { firsts: Vec::new(), at: Vec::new() };
        let mut end: Option<A> = None;
        for (at, intervals) in parts.enumerate() {
            let (Some(first), Some(last)) = (intervals.first(), intervals.last()) else { continue };
            if end.is_some_and(|end| first.0 <= end) {
                return None;
            }
            end = Some(last.1);
            family.firsts.push(first.0);
            family.at.push(at);
        }
        Some(family)
    }
}

pub(crate) struct Members<'a, A> {
    parts: &'a [Arc<AddressSet>],
    family: &'a Family<A>,
    intervals: fn(&AddressSet) -> &[(A, A)],
}

impl<A: Point> Members<'_, A> {
    #[inline]
    pub(crate) fn contains(&self, point: A) -> bool {
        let after = self.family.firsts.partition_point(|&first| first <= point);
        after > 0 && interval_contains((self.intervals)(&self.parts[self.family.at[after - 1]]), point)
    }

    /// Returns the intersection of the set with the addresses in `few`. Reads only the parts that may contain them.
    pub(crate) fn among(&self, few: &[(A, A)]) -> Vec<(A, A)> {
        let Family { firsts, at } = self.family;
        let mut members = Vec::new();
        for &(first, last) in few {
            let from = firsts.partition_point(|&begin| begin <= first).saturating_sub(1);
            let end = firsts.partition_point(|&begin| begin <= last);
            // If no part begins at `last` or before, the range is empty.
            for &part in &at[from.min(end)..end] {
                members.extend(interval_among((self.intervals)(&self.parts[part]), &[(first, last)]));
            }
        }
        // The members of one part may touch those of the next.
        normalise(&mut members);
        members
    }
}

impl PartialEq for PartedSet {
    fn eq(&self, other: &Self) -> bool {
        self.parts == other.parts
    }
}

impl Eq for PartedSet {}

impl std::hash::Hash for PartedSet {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.parts.hash(state);
    }
}

impl std::fmt::Debug for PartedSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.parts).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use proptest::prelude::*;

    fn address(at: u16) -> IpAddr {
        if at.is_multiple_of(3) {
            IpAddr::from(u128::from(at).to_be_bytes())
        } else {
            Ipv4Addr::from(u32::from(at)).into()
        }
    }

    fn set(members: &[u16]) -> AddressSet {
        members.iter().map(|&at| address(at)).collect()
    }

    /// Returns the members in parts of `each`, one family first.
    fn parted(members: &[u16], each: usize) -> PartedSet {
        let mut addresses: Vec<IpAddr> = members.iter().map(|&at| address(at)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        PartedSet::new(addresses.chunks(each).map(|part| Arc::new(part.iter().copied().collect())).collect())
    }

    proptest! {
        #[test]
        fn a_set_in_parts_has_the_members_of_its_parts(
            a in prop::collection::vec(0u16..300, 0..60),
            b in prop::collection::vec(0u16..300, 0..60),
            each in 1usize..9,
        ) {
            let (parts, others) = (parted(&a, each), parted(&b, each));
            prop_assert_eq!(parts.flat(), &set(&a));
            for at in 0..300 {
                prop_assert_eq!(parts.contains(address(at)), set(&a).contains(address(at)));
            }
            prop_assert_eq!(parts.difference(&others), set(&a).difference(&set(&b)));
            let few = set(&b);
            let both = set(&a).intersect(&few);
            prop_assert_eq!(parts.v4().among(few.v4_intervals()), both.v4_intervals());
            prop_assert_eq!(parts.v6().among(few.v6_intervals()), both.v6_intervals());
            // Another version, which shares all parts but one.
            let mut changed = parts.parts().to_vec();
            let gone = changed.len() / 2;
            if gone < changed.len() {
                let left = changed.remove(gone);
                prop_assert_eq!(&PartedSet::new(changed).difference(&parts), &*left);
            }
        }
    }

    #[test]
    fn parts_that_overlap_or_descend_are_made_one() {
        let parts = |all: &[&[u16]]| PartedSet::new(all.iter().map(|part| Arc::new(set(part))).collect());
        for all in [parts(&[&[4, 8], &[5, 10]]), parts(&[&[8, 10], &[4, 5]])] {
            assert_eq!(all.parts().len(), 1);
            assert_eq!(*all.flat(), set(&[4, 5, 8, 10]));
        }
        assert_eq!(parts(&[&[4, 5], &[8, 10]]).parts().len(), 2);
    }

    #[test]
    fn members_that_touch_across_parts_are_one_interval() {
        let set = PartedSet::new([4, 5, 8].map(|at| Arc::new(set(&[at]))).into());
        assert_eq!(set.v4().among(&[(0, 6), (8, 9)]), [(4, 5), (8, 8)]);
        assert_eq!((set.v4().among(&[(6, 7)]), set.v6().among(&[(0, 9)])), (vec![], vec![]));
    }
}
