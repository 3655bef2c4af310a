//! A set of pod addresses that changes one address at a time, in parts that are shared between its versions.
//!
//! ```text
//!                 all addresses of the family
//!                 /                         \             a prefix is one part as soon as its members are at most
//!          0.0.0.0/1                     128.0.0.0/1      PART intervals; else its halves are looked at
//!          /       \
//!    0.0.0.0/2   64.0.0.0/2      parts: Arc<AddressSet> each, ascending
//! ```
//! A change copies the one part that has the address; whoever holds the set holds the parts, and compares them by
//! address before content. Parts of different sets with the same members are one object ([`Sets`]). Which parts there are follows from the members alone, not from the history, because what is
//! enforced must be a function of the objects.
//!
//! What lost: one sorted vector for all (100,000 intervals: 0.5 ms for each change and group); a persistent tree such as
//! `imbl`'s (the classifier searches slices, so it would be flattened again for each publication); chunks of equal size
//! (their borders follow from the order of the changes).

mod sets;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;
use ipnet::IpNet;

use self::sets::Change;
pub(crate) use self::sets::Sets;
use crate::processor::Work;

/// The most intervals of a part. A change copies some 3,000 of them (about 15 us); a set of 100,000 has 32 parts, each
/// of which is a rule of its own to the classifier. Sets up to this size are one part, as most are.
pub(crate) const PART: usize = 4_096;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// By first address. Together the prefixes cover a family, or it has no member.
    parts: BTreeMap<IpAddr, Part>,
    /// How much more often than once an address was added: while it passes from an ended pod to the next.
    again: AHashMap<IpAddr, u32>,
}

#[derive(Debug)]
struct Part {
    prefix: IpNet,
    members: Arc<AddressSet>,
}

impl Part {
    fn size(&self) -> usize {
        size(&self.members)
    }
}

/// Intervals of a set.
pub(crate) fn size(set: &AddressSet) -> usize {
    set.v4_intervals().len() + set.v6_intervals().len()
}

impl Parts {
    /// The set of these addresses, each counted as often as it comes.
    pub(crate) fn new(addresses: impl IntoIterator<Item = IpAddr>, sets: &mut Sets, work: &mut Work) -> Self {
        let mut sorted: Vec<_> = addresses.into_iter().collect();
        sorted.sort_unstable();
        let mut again = AHashMap::new();
        for pair in sorted.windows(2).filter(|pair| pair[0] == pair[1]) {
            *again.entry(pair[0]).or_insert(0) += 1;
        }
        let members: AddressSet = sorted.into_iter().collect();
        let mut parts = Self { parts: BTreeMap::new(), again };
        for (prefix, members) in [(V4, members.only_v4()), (V6, members.only_v6())] {
            if !members.is_empty() {
                parts.place(prefix, members, sets, work);
            }
        }
        parts
    }

    /// The parts, none of them empty, ascending.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &Arc<AddressSet>> {
        self.parts.values().map(|part| &part.members).filter(|members| !members.is_empty())
    }

    /// Whether there is no member.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds an address once more.
    pub(crate) fn insert(&mut self, address: IpAddr, sets: &mut Sets, work: &mut Work) {
        let mut part = self.take(address).unwrap_or_else(|| Part { prefix: family(address), members: Arc::default() });
        if part.members.contains(address) {
            *self.again.entry(address).or_insert(0) += 1;
            self.parts.insert(part.prefix.network(), part);
            return;
        }
        part.members = sets.changed(&part.members, Change::Insert(address), work);
        self.settle(part, sets, work);
    }

    /// Takes back one addition of an address. It stays a member while there are others.
    pub(crate) fn remove(&mut self, address: IpAddr, sets: &mut Sets, work: &mut Work) {
        if let Some(again) = self.again.get_mut(&address) {
            *again -= 1;
            if *again == 0 {
                self.again.remove(&address);
            }
            return;
        }
        let Some(mut part) = self.take(address) else { return };
        part.members = sets.changed(&part.members, Change::Remove(address), work);
        self.settle(part, sets, work);
    }

    fn take(&mut self, address: IpAddr) -> Option<Part> {
        let (&first, _) =
            self.parts.range(..=address).next_back().filter(|(_, part)| part.prefix.contains(&address))?;
        self.parts.remove(&first)
    }

    /// Puts a changed part in, divided or joined with its neighbour as its size asks for.
    fn settle(&mut self, mut part: Part, sets: &mut Sets, work: &mut Work) {
        while let Some(parent) = part.prefix.supernet() {
            let sibling = halves(parent).into_iter().find(|half| *half != part.prefix).map(|half| half.network());
            let Some(other) = sibling.and_then(|first| self.parts.get(&first)) else { break };
            // A neighbour that is divided further is larger than a part.
            if other.prefix.prefix_len() != part.prefix.prefix_len() || part.size() + other.size() > PART + 1 {
                break;
            }
            let members = part.members.union(&other.members);
            // Two neighbours that touch are one interval less together.
            if size(&members) > PART {
                work.intervals += size(&members) as u64;
                break;
            }
            self.parts.remove(&sibling.expect("just found"));
            part = Part { prefix: parent, members: sets.shared(members, work) };
        }
        if part.size() > PART {
            return self.divide(part.prefix, &part.members, sets, work);
        }
        if !part.members.is_empty() || part.prefix.prefix_len() > 0 {
            self.parts.insert(part.prefix.network(), part);
        }
    }

    /// Puts the members of a prefix in, divided until each piece is small enough.
    fn place(&mut self, prefix: IpNet, members: AddressSet, sets: &mut Sets, work: &mut Work) {
        if size(&members) > PART {
            work.intervals += size(&members) as u64;
            return self.divide(prefix, &members, sets, work);
        }
        self.parts.insert(prefix.network(), Part { prefix, members: sets.shared(members, work) });
    }

    fn divide(&mut self, prefix: IpNet, members: &AddressSet, sets: &mut Sets, work: &mut Work) {
        for half in halves(prefix) {
            self.place(half, members.intersect(&AddressSet::from_iter([half])), sets, work);
        }
    }
}

const V4: IpNet = IpNet::V4(ipnet::Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));
const V6: IpNet = IpNet::V6(ipnet::Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0));

const fn family(address: IpAddr) -> IpNet {
    if address.is_ipv4() { V4 } else { V6 }
}

/// The two halves of a prefix; none of a single address.
fn halves(prefix: IpNet) -> Vec<IpNet> {
    prefix.subnets(prefix.prefix_len() + 1).map(Iterator::collect).unwrap_or_default()
}

/// The same members in sets that are worth a rule each: one as long as it is no larger than a part.
pub(crate) fn join(mut sets: Vec<Arc<AddressSet>>, work: &mut Work) -> Vec<Arc<AddressSet>> {
    sets.retain(|set| !set.is_empty());
    let all: usize = sets.iter().map(|set| size(set)).sum();
    if sets.len() < 2 || all > PART {
        return sets;
    }
    work.intervals += all as u64;
    let first = AddressSet::clone(&sets[0]);
    vec![Arc::new(sets[1..].iter().fold(first, |all, set| all.union(set)))]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(at: u32) -> IpAddr {
        // Both families, neighbours now and then.
        if at.is_multiple_of(5) {
            Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(at)).into()
        } else {
            Ipv4Addr::from(0x0a00_0000 + at).into()
        }
    }

    fn members(parts: &Parts) -> AddressSet {
        parts.sets().fold(AddressSet::default(), |all, set| all.union(set))
    }

    fn shown(parts: &Parts) -> Vec<AddressSet> {
        parts.sets().map(|set| AddressSet::clone(set)).collect()
    }

    fn spread(count: u32) -> impl Iterator<Item = IpAddr> {
        (0..count).map(|at| Ipv4Addr::from(0x0a00_0000 + 2 * at).into())
    }

    #[test]
    fn a_change_of_a_large_set_copies_one_part_and_shares_the_others() {
        let (mut sets, mut work) = (Sets::default(), Work::default());
        let mut parts = Parts::new(spread(100_000), &mut sets, &mut work);
        let before: Vec<_> = parts.sets().cloned().collect();
        assert!((25..=64).contains(&before.len()), "{} parts", before.len());
        let built = work.intervals;
        parts.remove(spread(50_000).last().unwrap(), &mut sets, &mut work);
        assert!(work.intervals - built <= PART as u64, "{} intervals copied", work.intervals - built);
        let after: Vec<_> = parts.sets().cloned().collect();
        assert_eq!(before.iter().zip(&after).filter(|(a, b)| !Arc::ptr_eq(a, b)).count(), 1);
        parts.insert(spread(50_000).last().unwrap(), &mut sets, &mut work);
        assert_eq!(shown(&parts), before.iter().map(|set| AddressSet::clone(set)).collect::<Vec<_>>());
    }

    #[test]
    fn which_parts_there_are_follows_from_the_members_alone() {
        let (mut sets, mut work) = (Sets::default(), Work::default());
        let few = u32::try_from(PART).unwrap() / 2 - 7;
        let mut grown = Parts::default();
        for address in spread(3 * few) {
            grown.insert(address, &mut sets, &mut work);
        }
        assert!(grown.sets().count() > 1, "it was divided");
        for count in [3 * few, 2 * few + 15, 2 * few + 14, 2 * few + 13, few, 1, 0] {
            let members: Vec<_> = spread(count).collect();
            for address in spread(3 * few).skip(count as usize) {
                grown.remove(address, &mut sets, &mut work);
            }
            assert_eq!(
                shown(&grown),
                shown(&Parts::new(members.iter().copied(), &mut sets, &mut work)),
                "{count} addresses"
            );
            for address in spread(3 * few).skip(count as usize) {
                grown.insert(address, &mut sets, &mut work);
            }
        }
        for address in spread(3 * few) {
            grown.remove(address, &mut sets, &mut work);
        }
        assert!(grown.is_empty());
    }

    #[test]
    fn filling_the_gaps_of_a_divided_set_makes_it_one_part_again() {
        let (mut sets, mut work) = (Sets::default(), Work::default());
        let mut parts = Parts::new(spread(u32::try_from(PART).unwrap() + 1), &mut sets, &mut work);
        assert!(parts.sets().count() > 1);
        parts.insert(Ipv4Addr::from(0x0a00_0001).into(), &mut sets, &mut work);
        assert_eq!(parts.sets().count(), 1, "two intervals became one");
        parts.remove(Ipv4Addr::from(0x0a00_0001).into(), &mut sets, &mut work);
        assert!(parts.sets().count() > 1);
    }

    proptest! {
        #[test]
        fn members_are_those_that_were_added_more_often_than_taken_back(
            changes in proptest::collection::vec((0u32..24, any::<bool>()), 0..80),
        ) {
            let (mut parts, mut sets, mut work) = (Parts::default(), Sets::default(), Work::default());
            let mut counts = BTreeMap::<IpAddr, u32>::new();
            for (at, add) in changes {
                let count = counts.entry(address(at)).or_default();
                if add {
                    parts.insert(address(at), &mut sets, &mut work);
                    *count += 1;
                } else if *count > 0 {
                    parts.remove(address(at), &mut sets, &mut work);
                    *count -= 1;
                }
            }
            let expected = counts.iter().filter(|(_, count)| **count > 0).map(|(&address, _)| address);
            prop_assert_eq!(members(&parts), expected.collect::<AddressSet>());
            prop_assert_eq!(parts.is_empty(), counts.values().all(|&count| count == 0));
            let all = counts.iter().flat_map(|(&address, &count)| std::iter::repeat_n(address, count as usize));
            let fresh = Parts::new(all, &mut sets, &mut work);
            prop_assert_eq!(shown(&fresh), shown(&parts));
            prop_assert_eq!(fresh.again, parts.again);
        }
    }
}
