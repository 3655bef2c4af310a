//! An address set that follows deltas, in parts that its versions share.
//!
//! ```text
//!                 all addresses of the family
//!                 /                         \             a prefix is one part as soon as its members are at most
//!          0.0.0.0/1                     128.0.0.0/1      PART intervals; else it is split into halves
//!          /       \
//!    0.0.0.0/2   64.0.0.0/2      parts: Arc<AddressSet> each, ascending
//! ```
//! A change copies the affected parts and shares the others. Parts of different sets with the same members are one object ([`Shared`]), and
//! so are sets of the same parts. Rules name a set of several parts as a whole ([`PartedSet`]), so the tables of all rules refer to one
//! object. The division depends on the members only and not on history, because what is enforced must be a function of the objects.
//!
//! Rejected alternatives: one sorted vector (100,000 intervals: 0.5 ms for each change and group); a persistent tree such as `imbl`'s (the
//! classifier searches slices, so each publication would flatten it); chunks of equal size (their borders depend on the order of changes).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bulkhead_classifier::{AddressSet, PartedSet};
use ipnet::IpNet;

use super::shared::{Shared, size};

/// Maximum number of intervals of a part. A change copies about 3,000 of them (15 us). A set of 100,000 intervals has 32 parts, and most
/// sets have one.
pub(crate) const PART: usize = 4_096;

/// An address set, divided into parts so that a change copies only one of them.
#[derive(Debug, Default)]
pub(in crate::renderer) struct Parts {
    /// Parts by first address. The prefixes cover the whole family, unless it has no member.
    parts: BTreeMap<IpAddr, Part>,
    /// All parts as one set. `None` unless a family has more than one part.
    large: Option<Arc<PartedSet>>,
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

impl Parts {
    /// Returns the non-empty parts, ascending.
    pub(in crate::renderer) fn sets(&self) -> impl Iterator<Item = &Arc<AddressSet>> {
        self.parts.values().map(|part| &part.members).filter(|members| !members.is_empty())
    }

    /// Returns the set as named by rules, shared with other sets of the same members. `None` if the set has one part at most per family.
    pub(in crate::renderer) fn large(&self) -> Option<&Arc<PartedSet>> {
        self.large.as_ref()
    }

    pub(in crate::renderer) fn apply(&mut self, added: &AddressSet, removed: &AddressSet, shared: &mut Shared) {
        self.take(added, removed, shared);
        let is_divided = self.parts.values().any(|part| part.prefix.prefix_len() > 0);
        self.large = is_divided.then(|| shared.parted(self.sets().cloned().collect()));
    }

    fn take(&mut self, added: &AddressSet, removed: &AddressSet, shared: &mut Shared) {
        for (family, added, removed) in
            [(V4, added.only_v4(), removed.only_v4()), (V6, added.only_v6(), removed.only_v6())]
        {
            if added.is_empty() && removed.is_empty() {
                continue;
            }
            let touched = self.touched(&added, &removed);
            if touched.is_empty() {
                self.settle(Part { prefix: family, members: shared.of(added) }, shared);
                continue;
            }
            let within = |set: &AddressSet, prefix| set.intersect(&AddressSet::from_iter([prefix]));
            let changed: Vec<_> = touched
                .into_iter()
                .filter_map(|first| self.parts.remove(&first))
                .map(|Part { prefix, members }| {
                    let members = shared.changed(&members, within(&added, prefix), within(&removed, prefix));
                    Part { prefix, members }
                })
                .collect();
            // A part joins its neighbour when the later of both is inserted.
            changed.into_iter().for_each(|part| self.settle(part, shared));
        }
    }

    /// Returns the parts with some of these addresses, by first address.
    fn touched(&self, added: &AddressSet, removed: &AddressSet) -> Vec<IpAddr> {
        let bounds = |set: &AddressSet| -> Vec<(IpAddr, IpAddr)> {
            let v4 = set.v4_intervals().iter().map(|&(a, b)| (Ipv4Addr::from(a).into(), Ipv4Addr::from(b).into()));
            let v6 = set.v6_intervals().iter().map(|&(a, b)| (Ipv6Addr::from(a).into(), Ipv6Addr::from(b).into()));
            v4.chain(v6).collect()
        };
        let mut touched = Vec::new();
        for (first, last) in bounds(added).into_iter().chain(bounds(removed)) {
            let holds = |(_, part): &(&IpAddr, &Part)| part.prefix.contains(&first);
            let from = self.parts.range(..=first).next_back().filter(holds).map(|(&start, _)| start);
            // A family without a part at its first address is empty.
            let Some(from) = from else { continue };
            touched.extend(self.parts.range(from..=last).map(|(&start, _)| start));
        }
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    /// Inserts a changed part, after dividing it or joining it with its neighbour as its size requires.
    fn settle(&mut self, mut part: Part, shared: &mut Shared) {
        while let Some(parent) = part.prefix.supernet() {
            let sibling = halves(parent).into_iter().find(|half| *half != part.prefix).map(|half| half.network());
            let Some(other) = sibling.and_then(|first| self.parts.get(&first)) else { break };
            // A neighbour that is divided further is larger than a part.
            if other.prefix.prefix_len() != part.prefix.prefix_len() || part.size() + other.size() > PART + 1 {
                break;
            }
            let members = part.members.union(&other.members);
            // Joining two adjacent intervals saves one.
            if size(&members) > PART {
                break;
            }
            self.parts.remove(&sibling.expect("just found"));
            part = Part { prefix: parent, members: shared.of(members) };
        }
        if part.size() > PART {
            return self.divide(part.prefix, &part.members, shared);
        }
        if !part.members.is_empty() || part.prefix.prefix_len() > 0 {
            self.parts.insert(part.prefix.network(), part);
        }
    }

    /// Inserts the members of a prefix, divided until each part is small enough.
    fn place(&mut self, prefix: IpNet, members: AddressSet, shared: &mut Shared) {
        if size(&members) > PART {
            return self.divide(prefix, &members, shared);
        }
        self.parts.insert(prefix.network(), Part { prefix, members: shared.of(members) });
    }

    fn divide(&mut self, prefix: IpNet, members: &AddressSet, shared: &mut Shared) {
        for half in halves(prefix) {
            self.place(half, members.intersect(&AddressSet::from_iter([half])), shared);
        }
    }
}

const V4: IpNet = IpNet::V4(ipnet::Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));
const V6: IpNet = IpNet::V6(ipnet::Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0));

/// Returns the two halves of a prefix. Empty for a single address.
fn halves(prefix: IpNet) -> Vec<IpNet> {
    prefix.subnets(prefix.prefix_len() + 1).map(Iterator::collect).unwrap_or_default()
}

/// Merges sets until merging would exceed a part, since each becomes a rule. The members stay the same.
pub(in crate::renderer) fn join(mut sets: Vec<Arc<AddressSet>>) -> Vec<Arc<AddressSet>> {
    sets.retain(|set| !set.is_empty());
    let all: usize = sets.iter().map(|set| size(set)).sum();
    if sets.len() < 2 || all > PART {
        return sets;
    }
    let first = AddressSet::clone(&sets[0]);
    vec![Arc::new(sets[1..].iter().fold(first, |all, set| all.union(set)))]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn address(at: u32) -> IpAddr {
        // Both families, sometimes with adjacent addresses.
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

    fn of_members(addresses: impl IntoIterator<Item = IpAddr>, shared: &mut Shared) -> Parts {
        let mut parts = Parts::default();
        parts.apply(&addresses.into_iter().collect(), &AddressSet::default(), shared);
        parts
    }

    fn insert(parts: &mut Parts, address: IpAddr, shared: &mut Shared) {
        parts.apply(&[address].into_iter().collect(), &AddressSet::default(), shared);
    }

    fn remove(parts: &mut Parts, address: IpAddr, shared: &mut Shared) {
        parts.apply(&AddressSet::default(), &[address].into_iter().collect(), shared);
    }

    #[test]
    fn a_change_of_a_large_set_copies_one_part_and_shares_the_others() {
        let mut shared = Shared::default();
        let mut parts = of_members(spread(100_000), &mut shared);
        let before: Vec<_> = parts.sets().cloned().collect();
        assert!((25..=64).contains(&before.len()), "{} parts", before.len());
        let built = shared.written();
        remove(&mut parts, spread(50_000).last().unwrap(), &mut shared);
        assert!(shared.written() - built <= PART as u64, "{} intervals copied", shared.written() - built);
        let after: Vec<_> = parts.sets().cloned().collect();
        assert_eq!(before.iter().zip(&after).filter(|(a, b)| !Arc::ptr_eq(a, b)).count(), 1);
        insert(&mut parts, spread(50_000).last().unwrap(), &mut shared);
        assert_eq!(shown(&parts), before.iter().map(|set| AddressSet::clone(set)).collect::<Vec<_>>());
    }

    #[test]
    fn which_parts_there_are_follows_from_the_members_alone() {
        let mut shared = Shared::default();
        let few = u32::try_from(PART).unwrap() / 2 - 7;
        let mut grown = Parts::default();
        for address in spread(3 * few) {
            insert(&mut grown, address, &mut shared);
        }
        assert!(grown.sets().count() > 1, "it was divided");
        for count in [3 * few, 2 * few + 15, 2 * few + 14, 2 * few + 13, few, 1, 0] {
            for address in spread(3 * few).skip(count as usize) {
                remove(&mut grown, address, &mut shared);
            }
            assert_eq!(shown(&grown), shown(&of_members(spread(count), &mut shared)), "{count} addresses");
            let rest = spread(3 * few).skip(count as usize).collect();
            grown.apply(&rest, &AddressSet::default(), &mut shared);
            assert_eq!(
                shown(&grown),
                shown(&of_members(spread(3 * few), &mut shared)),
                "{count} addresses and all others"
            );
        }
        grown.apply(&AddressSet::default(), &spread(3 * few).collect(), &mut shared);
        assert_eq!(shown(&grown), []);
    }

    #[test]
    fn filling_the_gaps_of_a_divided_set_makes_it_one_part_again() {
        let mut shared = Shared::default();
        let mut parts = of_members(spread(u32::try_from(PART).unwrap() + 1), &mut shared);
        assert!(parts.sets().count() > 1);
        insert(&mut parts, Ipv4Addr::from(0x0a00_0001).into(), &mut shared);
        assert_eq!(parts.sets().count(), 1, "two intervals became one");
        remove(&mut parts, Ipv4Addr::from(0x0a00_0001).into(), &mut shared);
        assert!(parts.sets().count() > 1);
    }

    proptest! {
        #[test]
        fn after_every_delta_the_parts_are_those_of_the_members(
            deltas in proptest::collection::vec(proptest::collection::vec((0u32..40_000, any::<bool>()), 0..9_000), 1..6),
        ) {
            let (mut parts, mut shared) = (Parts::default(), Shared::default());
            let mut all = BTreeSet::new();
            for delta in deltas {
                let delta: BTreeMap<u32, bool> = delta.into_iter().collect();
                let of = |add: bool| delta.iter().filter(|(_, is)| **is == add).map(|(at, _)| *at).collect::<Vec<_>>();
                all.extend(of(true));
                all.retain(|at| delta.get(at) != Some(&false));
                let set = |at: Vec<u32>| -> AddressSet { at.into_iter().map(address).collect() };
                parts.apply(&set(of(true)), &set(of(false)), &mut shared);
                prop_assert_eq!(members(&parts), set(all.iter().copied().collect()));
                let fresh = of_members(all.iter().map(|&at| address(at)), &mut Shared::default());
                prop_assert_eq!(shown(&fresh), shown(&parts));
            }
        }
    }
}
