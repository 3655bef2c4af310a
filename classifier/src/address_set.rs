//! Sets of IPv4 and IPv6 addresses as sorted, disjoint intervals.
//!
//! Intervals make union, intersection and `except` one merge each, and give every set a canonical form: equal sets compare equal, whatever
//! blocks they were made from. A sorted list of prefixes lost: one subtraction can need 128 prefixes, and a canonical form needs a
//! minimising pass. Prefixes are derived for output.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv4Subnets, Ipv6Net, Ipv6Subnets};

/// A set of addresses, as ascending inclusive intervals that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AddressSet {
    v4: Vec<(u32, u32)>,
    v6: Vec<(u128, u128)>,
}

impl AddressSet {
    /// Makes a set of inclusive intervals in any order.
    pub(crate) fn of_intervals(mut v4: Vec<(u32, u32)>, mut v6: Vec<(u128, u128)>) -> Self {
        normalise(&mut v4);
        normalise(&mut v6);
        Self { v4, v6 }
    }

    /// Makes a set of inclusive ranges. A range with ends of different families is ignored.
    pub fn of_ranges(ranges: impl IntoIterator<Item = (IpAddr, IpAddr)>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for (first, last) in ranges {
            match (first, last) {
                (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => v4.push((first.into(), last.into())),
                (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => v6.push((first.into(), last.into())),
                _ => {}
            }
        }
        Self::of_intervals(v4, v6)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Whether the address is a member. Takes logarithmic time in the number of intervals.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(a) => interval_contains(&self.v4, u32::from(a)),
            IpAddr::V6(a) => interval_contains(&self.v6, u128::from(a)),
        }
    }

    /// Returns the IPv4 members as inclusive intervals in host byte order.
    pub fn v4_intervals(&self) -> &[(u32, u32)] {
        &self.v4
    }

    /// Returns the IPv6 members as inclusive intervals in host byte order.
    pub fn v6_intervals(&self) -> &[(u128, u128)] {
        &self.v6
    }

    /// Returns the union: the members of this set, of `other`, or of both.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut v4 = [&self.v4[..], &other.v4[..]].concat();
        let mut v6 = [&self.v6[..], &other.v6[..]].concat();
        normalise(&mut v4);
        normalise(&mut v6);
        Self { v4, v6 }
    }

    /// Returns the members that are not in `other` (`ipBlock.except`).
    #[must_use]
    pub fn subtract(&self, other: &Self) -> Self {
        Self { v4: interval_subtract(&self.v4, &other.v4), v6: interval_subtract(&self.v6, &other.v6) }
    }

    /// Returns the intersection: the addresses that are members of both sets.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        Self { v4: interval_intersect(&self.v4, &other.v4), v6: interval_intersect(&self.v6, &other.v6) }
    }

    /// Returns the members of exactly one of the sets. Takes linear time, but allocates only for what differs.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self { v4: interval_difference(&self.v4, &other.v4), v6: interval_difference(&self.v6, &other.v6) }
    }

    /// Returns the IPv4 members.
    #[must_use]
    pub fn only_v4(&self) -> Self {
        Self { v4: self.v4.clone(), v6: Vec::new() }
    }

    /// Returns the IPv6 members.
    #[must_use]
    pub fn only_v6(&self) -> Self {
        Self { v4: Vec::new(), v6: self.v6.clone() }
    }

    /// Returns the fewest prefixes that cover exactly the members, ascending, IPv4 first.
    pub fn prefixes(&self) -> impl Iterator<Item = IpNet> + '_ {
        let v4 = self
            .v4
            .iter()
            .flat_map(|&(first, last)| Ipv4Subnets::new(Ipv4Addr::from(first), Ipv4Addr::from(last), 0))
            .map(IpNet::V4);
        let v6 = self
            .v6
            .iter()
            .flat_map(|&(first, last)| Ipv6Subnets::new(Ipv6Addr::from(first), Ipv6Addr::from(last), 0))
            .map(IpNet::V6);
        v4.chain(v6)
    }
}

impl FromIterator<IpNet> for AddressSet {
    /// Returns the union of the prefixes. Ignores bits beyond a prefix's length.
    fn from_iter<I: IntoIterator<Item = IpNet>>(prefixes: I) -> Self {
        let mut set = Self::default();
        for prefix in prefixes {
            match prefix {
                IpNet::V4(net) => set.v4.push(v4_interval(net)),
                IpNet::V6(net) => set.v6.push(v6_interval(net)),
            }
        }
        normalise(&mut set.v4);
        normalise(&mut set.v6);
        set
    }
}

impl FromIterator<IpAddr> for AddressSet {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        addresses.into_iter().map(IpNet::from).collect()
    }
}

fn v4_interval(net: Ipv4Net) -> (u32, u32) {
    (net.network().into(), net.broadcast().into())
}

fn v6_interval(net: Ipv6Net) -> (u128, u128) {
    (net.network().into(), net.broadcast().into())
}

/// An unsigned number that intervals consist of.
pub(crate) trait Point: Copy + Ord {
    /// Returns the next number. `None` after the last.
    fn next(self) -> Option<Self>;
    /// Returns the previous number. `None` before the first.
    fn previous(self) -> Option<Self>;
}

macro_rules! point {
    ($($t:ty),*) => {$(
        impl Point for $t {
            fn next(self) -> Option<Self> {
                self.checked_add(1)
            }
            fn previous(self) -> Option<Self> {
                self.checked_sub(1)
            }
        }
    )*};
}
point!(u16, u32, u128);

/// Sorts the intervals and joins those that overlap or touch.
pub(crate) fn normalise<T: Point>(intervals: &mut Vec<(T, T)>) {
    // The stable sort merges sorted runs, so the union of two sets takes linear time.
    intervals.sort();
    let mut kept = 0;
    for at in 0..intervals.len() {
        let (first, last) = intervals[at];
        if kept > 0 {
            let previous = &mut intervals[kept - 1];
            if previous.1.next().is_none_or(|after| first <= after) {
                previous.1 = previous.1.max(last);
                continue;
            }
        }
        intervals[kept] = (first, last);
        kept += 1;
    }
    intervals.truncate(kept);
}

pub(crate) fn interval_contains<T: Point>(intervals: &[(T, T)], point: T) -> bool {
    let after = intervals.partition_point(|&(first, _)| first <= point);
    after > 0 && point <= intervals[after - 1].1
}

/// Returns the intersection of both. Each interval of `few` is looked up in `all`.
pub(crate) fn interval_among<T: Point>(all: &[(T, T)], few: &[(T, T)]) -> Vec<(T, T)> {
    let mut both = Vec::new();
    for &(first, last) in few {
        let from = all.partition_point(|&(_, end)| end < first);
        let inside = all[from..].iter().take_while(|&&(begin, _)| begin <= last);
        both.extend(inside.map(|&(begin, end)| (begin.max(first), end.min(last))));
    }
    both
}

pub(crate) fn interval_subtract<T: Point>(from: &[(T, T)], what: &[(T, T)]) -> Vec<(T, T)> {
    let mut left = Vec::with_capacity(from.len());
    let mut holes = what.iter().peekable();
    for &(first, last) in from {
        while holes.next_if(|hole| hole.1 < first).is_some() {}
        let mut start = Some(first);
        // A hole may reach into the next interval, so it is dropped only by the line above.
        for &(hole_first, hole_last) in holes.clone() {
            let Some(begin) = start.filter(|_| hole_first <= last) else { break };
            if let Some(end) = hole_first.previous().filter(|&end| begin <= end) {
                left.push((begin, end));
            }
            start = hole_last.next().filter(|&next| next <= last);
        }
        if let Some(begin) = start {
            left.push((begin, last));
        }
    }
    left
}

/// Returns the points in exactly one of both sets. Skips equal intervals at both ends, so large sets with one difference are compared but
/// not copied.
fn interval_difference<T: Point>(a: &[(T, T)], b: &[(T, T)]) -> Vec<(T, T)> {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[same..], &b[same..]);
    let same = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[..a.len() - same], &b[..b.len() - same]);
    let mut all = interval_subtract(a, b);
    all.append(&mut interval_subtract(b, a));
    normalise(&mut all);
    all
}

pub(crate) fn interval_intersect<T: Point>(a: &[(T, T)], b: &[(T, T)]) -> Vec<(T, T)> {
    let (mut i, mut j, mut both) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        let first = a[i].0.max(b[j].0);
        let last = a[i].1.min(b[j].1);
        if first <= last {
            both.push((first, last));
        }
        if a[i].1 < b[j].1 {
            i += 1;
        } else {
            j += 1;
        }
    }
    both
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(prefixes: &[&str]) -> AddressSet {
        prefixes.iter().map(|p| p.parse::<IpNet>().unwrap()).collect()
    }

    fn shown(set: &AddressSet) -> Vec<String> {
        set.prefixes().map(|p| p.to_string()).collect()
    }

    #[test]
    fn except_leaves_the_covering_blocks_of_the_kuryr_document() {
        let left = set(&["1.1.1.0/24"]).subtract(&set(&["1.1.1.0/26"]));
        assert_eq!(shown(&left), ["1.1.1.64/26", "1.1.1.128/25"]);
        let left = set(&["172.17.0.0/16"]).subtract(&set(&["172.17.1.0/24"]));
        assert_eq!(left.prefixes().count(), 8);
    }

    #[test]
    fn except_of_the_other_family_changes_nothing() {
        let block = set(&["10.0.0.0/8"]);
        assert_eq!(block.subtract(&set(&["::/0"])), block);
    }

    #[test]
    fn except_of_everything_leaves_nothing() {
        assert!(set(&["10.0.0.0/8"]).subtract(&set(&["0.0.0.0/0"])).is_empty());
        assert!(set(&["::/0"]).subtract(&set(&["::/0"])).is_empty());
    }

    #[test]
    fn one_hole_may_span_two_intervals() {
        let left =
            set(&["10.0.0.0/24", "10.0.2.0/24"]).subtract(&set(&["10.0.0.128/25", "10.0.1.0/24", "10.0.2.0/25"]));
        assert_eq!(shown(&left), ["10.0.0.0/25", "10.0.2.128/25"]);
    }

    #[test]
    fn equal_members_make_equal_sets() {
        assert_eq!(set(&["10.0.0.0/25", "10.0.0.128/25", "10.0.0.7/32"]), set(&["10.0.0.0/24"]));
        assert_eq!(shown(&set(&["0.0.0.0/1", "128.0.0.0/1", "ffff::/16"])), ["0.0.0.0/0", "ffff::/16"]);
    }

    fn small_prefix() -> impl Strategy<Value = IpNet> {
        prop_oneof![
            (0u32..64, 26u8..=32)
                .prop_map(|(host, len)| Ipv4Net::new((0x0a00_0000 | host).into(), len).unwrap().into()),
            (0u128..64, 122u8..=128)
                .prop_map(|(host, len)| Ipv6Net::new((0xfd << 120 | host).into(), len).unwrap().into()),
        ]
    }

    fn small_address() -> impl Iterator<Item = IpAddr> {
        (0u32..64)
            .map(|host| IpAddr::from(Ipv4Addr::from(0x0a00_0000 | host)))
            .chain((0u128..64).map(|host| IpAddr::from(Ipv6Addr::from(0xfd << 120 | host))))
    }

    proptest! {
        #[test]
        fn set_algebra_equals_membership_one_address_at_a_time(
            a in proptest::collection::vec(small_prefix(), 0..8),
            b in proptest::collection::vec(small_prefix(), 0..8),
        ) {
            let inside = |nets: &[IpNet], x: IpAddr| nets.iter().any(|net| net.contains(&x));
            let (sa, sb): (AddressSet, AddressSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            let again: AddressSet = sa.prefixes().collect();
            prop_assert_eq!(&again, &sa);
            for x in small_address() {
                let (ia, ib) = (inside(&a, x), inside(&b, x));
                prop_assert_eq!(sa.contains(x), ia);
                prop_assert_eq!(sa.union(&sb).contains(x), ia || ib);
                prop_assert_eq!(sa.subtract(&sb).contains(x), ia && !ib);
                prop_assert_eq!(sa.difference(&sb).contains(x), ia != ib);
                prop_assert_eq!(sa.intersect(&sb).contains(x), ia && ib);
                let among = AddressSet::of_intervals(interval_among(&sa.v4, &sb.v4), interval_among(&sa.v6, &sb.v6));
                prop_assert_eq!(among.contains(x), ia && ib);
            }
        }
    }
}
