//! Maps the IPv6 addresses of a list to 32-bit numbers, so that the list is compiled and searched like an IPv4 list.
//!
//! Rules distinguish addresses only at the **boundaries** of their sets: the first address of each interval, and the first one after it. Most
//! bits of a list's boundaries are equal, for example those of a cluster's prefix and those between a node's prefix and a pod's number:
//!
//! ```text
//!   boundaries fd00:244:1::5, fd00:244:1::6, fd00:244:9::, ...   --> a prefix: constant bits, varying bits
//!   address with the prefix's constant bits   --its varying bits, moved together--> number
//!   another address within the prefix         --> the number of the nearest address with these bits that no boundary separates from it
//!   an address outside of all prefixes        --> the number of its gap
//! ```
//!
//! The varying bits of all boundaries together may be too many, as those of a few prefixes of the Internet and of a cluster's pods. So a side
//! has up to [`PREFIXES`] prefixes, each a prefix that contains some of the boundaries.
//!
//! **Invariant.** No rule distinguishes two addresses with the same number. The numbers of a prefix's part form a prefix too, which tuples need.
//!
//! **Bounds.** The numbers of the prefixes have 32 bits. A list whose boundaries need more is not narrowed. A prefix that takes all numbers may
//! leave none for a gap. Packets with an address of such a gap are looked up in the list that is compiled for addresses.
//!
//! **Alternatives not taken.** Comparing the boundaries by the bits that differ between neighbours (a fusion tree) needs fewer bits, but each
//! search has to be verified, and tuples cannot use it. Searching for the number in a tree costs as much as the search it replaces.

use std::collections::HashMap;

use ahash::RandomState;

use super::address::Fields;
use super::prefix::{Prefix, size};
use super::{Block, Changed, Move};
use crate::address_set::Point;
use crate::addresses::Place;
use crate::{AddressSet, Addresses, Rule};

/// Maximum number of prefixes of a side. An address is compared with each, in the order of their sizes.
const PREFIXES: usize = 4;

/// The numbers of a list's source and destination addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Narrowing {
    src: Side,
    dst: Side,
}

/// The IPv4 set in place of each set of a side, by the place of the latter in memory.
type Known = HashMap<Place, Addresses, RandomState>;

impl Narrowing {
    /// Chooses the numbers, and returns the list with IPv4 sets in place of the IPv6 sets. `None` if the addresses need more than 32 bits, or
    /// if the list names no IPv6 address.
    pub(super) fn of(rules: &[Rule]) -> Option<(Self, Vec<Rule>)> {
        let has_v6 = |addresses: &Addresses| addresses.members().is_some_and(|set| !set.v6_intervals().is_empty());
        if !rules.iter().any(|rule| has_v6(&rule.src) || has_v6(&rule.dst)) {
            return None;
        }
        let (src, srcs) = Side::of(rules, |rule| &rule.src)?;
        let (dst, dsts) = Side::of(rules, |rule| &rule.dst)?;
        let narrowed = |known: &Known, addresses: &Addresses| match addresses.place() {
            Some(place) => known[&place].clone(),
            None => Addresses::Any,
        };
        let rules = rules.iter().map(|rule| Rule {
            src: narrowed(&srcs, &rule.src),
            dst: narrowed(&dsts, &rule.dst),
            ..rule.clone()
        });
        let rules = rules.collect();
        Some((Self { src, dst }, rules))
    }

    /// Whether some addresses have no number.
    pub(super) fn is_partial(&self) -> bool {
        self.src.is_partial() || self.dst.is_partial()
    }

    /// Returns a block of packets with numbers in place of addresses. `None` if an address has no number.
    #[inline(always)]
    pub(super) fn block<const N: usize>(
        &self,
        packets: impl Iterator<Item = Fields<u128>> + Clone,
    ) -> Option<Block<u32, N>> {
        let [src, dst] = [&self.src.prefixes[0], &self.dst.prefixes[0]];
        let mut block = Block::new();
        let mut different = 0;
        // As if all addresses had the constant bits of the largest prefix, whose numbers start at 0: one branch per block instead of two per
        // packet.
        for Fields { src: from, dst: to, service, src_port } in packets.clone() {
            different |= src.different(from) | dst.different(to);
            block.push(Fields { src: src.varying(from), dst: dst.varying(to), service, src_port });
        }
        if different != 0 {
            block = Block::new();
            for packet in packets {
                block.push(self.packet(&packet)?);
            }
        }
        Some(block)
    }

    /// Returns a packet's fields with numbers in place of addresses. `None` if an address has no number.
    #[inline(always)]
    pub(super) fn packet(&self, packet: &Fields<u128>) -> Option<Fields<u32>> {
        let (src, dst) = (self.src.number(packet.src)?, self.dst.number(packet.dst)?);
        Some(Fields { src, dst, service: packet.service, src_port: packet.src_port })
    }

    /// Returns the move with numbers in place of the IPv6 addresses. `None` if a boundary of its sets is not between two numbers.
    pub(super) fn of_move(&self, Move { code, changed }: &Move) -> Option<Move> {
        let changed = Changed { src: self.src.checked(&changed.src)?, dst: self.dst.checked(&changed.dst)? };
        Some(Move { code: *code, changed })
    }
}

/// The numbers of the addresses of one side, sources or destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Side {
    /// The prefixes, largest first.
    prefixes: Vec<Prefix>,
    /// The places in `prefixes`, ascending by address.
    ascending: Vec<usize>,
    /// The numbers of the addresses below the first prefix, between neighbouring prefixes, and above the last. `None` if there is no address, or
    /// no number is left.
    gaps: Vec<Option<u32>>,
    is_partial: bool,
}

impl Side {
    /// Chooses the numbers of one side, and narrows its sets.
    fn of(rules: &[Rule], side: fn(&Rule) -> &Addresses) -> Option<(Self, Known)> {
        let mut sets: HashMap<Place, &[(u128, u128)], RandomState> = HashMap::default();
        for addresses in rules.iter().map(side) {
            sets.extend(addresses.place().zip(addresses.members().map(AddressSet::v6_intervals)));
        }
        let mut boundaries: Vec<u128> =
            sets.values().flat_map(|set| set.iter().copied().flat_map(boundaries_of)).collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        let side = Self::new(&boundaries)?;
        let narrowed = |set: &[(u128, u128)]| AddressSet::of_intervals(side.intervals(set), Vec::new()).into();
        let known = sets.iter().map(|(&place, set)| (place, narrowed(set))).collect();
        Some((side, known))
    }

    /// Chooses the numbers for these ascending boundaries. `None` if they need more than 32 bits or too many prefixes.
    fn new(boundaries: &[u128]) -> Option<Self> {
        // With each part, the position of the bit in which it differs from its neighbour.
        let mut parts = vec![(boundaries, u128::BITS)];
        loop {
            let prefixes: Vec<Prefix> = parts.iter().map(|&(part, limit)| Prefix::new(part, limit)).collect();
            // A prefix without varying bits may go without a number.
            let sizes = prefixes.iter().filter(|prefix| prefix.bits > 0).map(|prefix| size(prefix.bits));
            if sizes.fold(0, u128::saturating_add) <= size(u32::BITS) {
                return Some(Self::with(prefixes));
            }
            if parts.len() == PREFIXES {
                return None;
            }
            let (largest, prefix) = prefixes.iter().enumerate().max_by_key(|(_, prefix)| prefix.bits)?;
            let (part, _) = parts.swap_remove(largest);
            let highest = (prefix.last - prefix.first).ilog2();
            let middle = prefix.first | 1 << highest;
            let (below, above) = part.split_at(part.partition_point(|&boundary| boundary < middle));
            parts.extend([(below, highest), (above, highest)]);
        }
    }

    /// Gives numbers to the prefixes, largest first so that each starts at a multiple of its size, and then to the gaps.
    fn with(mut prefixes: Vec<Prefix>) -> Self {
        prefixes.sort_by_key(|prefix| (std::cmp::Reverse(prefix.bits), prefix.first));
        let (mut next, mut is_partial) = (0, false);
        let mut take = |size: u128| {
            let number = u32::try_from(next).ok();
            is_partial |= number.is_none();
            next += size;
            number
        };
        for prefix in &mut prefixes {
            prefix.base = take(size(prefix.bits));
        }
        let mut ascending: Vec<usize> = (0..prefixes.len()).collect();
        ascending.sort_by_key(|&at| prefixes[at].first);
        let mut gaps = Vec::new();
        // The first address above the prefixes so far.
        let mut reached = Some(0);
        for &at in &ascending {
            let has_addresses = reached.is_some_and(|reached| reached < prefixes[at].lowest);
            gaps.push(if has_addresses { take(1) } else { None });
            reached = prefixes[at].last.next();
        }
        gaps.push(if reached.is_some() { take(1) } else { None });
        Self { prefixes, ascending, gaps, is_partial }
    }

    const fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Returns an address's number. `None` if it has none.
    #[inline(always)]
    fn number(&self, address: u128) -> Option<u32> {
        for prefix in &self.prefixes {
            if prefix.agrees(address) {
                return Some(prefix.base? + prefix.varying(address));
            }
        }
        self.nearest(address)
    }

    /// Returns the number of an address that differs from every prefix's constant bits. `None` if it has none.
    #[inline(never)]
    fn nearest(&self, address: u128) -> Option<u32> {
        let mut gap = 0;
        for &at in &self.ascending {
            let prefix = &self.prefixes[at];
            if address < prefix.lowest {
                break;
            }
            if address <= prefix.last {
                return Some(prefix.base? + prefix.nearest(address));
            }
            gap += 1;
        }
        self.gaps[gap]
    }

    /// Returns the numbers of the addresses in these intervals, whose boundaries are between two numbers.
    fn intervals(&self, intervals: &[(u128, u128)]) -> Vec<(u32, u32)> {
        let mut numbers = Vec::new();
        for &(first, last) in intervals {
            numbers.extend(self.prefixes.iter().filter_map(|prefix| prefix.interval(first, last)));
            for (gap, &number) in self.gaps.iter().enumerate() {
                // An address of the gap's piece.
                let address = match self.ascending.get(gap) {
                    Some(&at) => self.prefixes[at].lowest.wrapping_sub(1),
                    None => u128::MAX,
                };
                let is_member = (first..=last).contains(&address);
                numbers.extend(number.filter(|_| is_member).map(|number| (number, number)));
            }
        }
        numbers
    }

    /// Returns a set with numbers in place of the IPv6 members. `None` if one of its boundaries is not between two numbers.
    fn checked(&self, set: &AddressSet) -> Option<AddressSet> {
        let intervals = set.v6_intervals();
        let has = |boundary: u128| self.prefixes.iter().any(|prefix| prefix.has(boundary));
        let has_all = intervals.iter().copied().flat_map(boundaries_of).all(has);
        has_all.then(|| AddressSet::of_intervals(self.intervals(intervals), Vec::new()))
    }
}

/// Returns the boundaries of an interval: its first address, unless that is the lowest of all, and the first address after it.
fn boundaries_of((first, last): (u128, u128)) -> impl Iterator<Item = u128> {
    Some(first).filter(|&first| first > 0).into_iter().chain(last.next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::prefix::below;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU32;
    use std::sync::atomic::Ordering::Relaxed;

    /// Addresses of pods and nodes of two clusters, and of networks of the world.
    fn address() -> impl Strategy<Value = u128> {
        let pod = (0..4u128, 0..40u128).prop_map(|(node, pod)| 0xfd00_0244 << 96 | node << 64 | pod);
        let other = (0..3u128, 0..0x1_0000u128).prop_map(|(node, pod)| 0xfd00_0245_00ff << 80 | node << 70 | pod);
        let mapped = any::<u32>().prop_map(|low| 0x2001_0db8 << 96 | u128::from(low));
        prop_oneof![4 => pod, 1 => other, 1 => mapped, 1 => Just(0), 1 => Just(u128::MAX), 1 => any::<u128>()]
    }

    /// An address, a prefix that contains it, or everything from one address to another.
    fn interval() -> impl Strategy<Value = (u128, u128)> {
        let prefix = (address(), 0..128u32).prop_map(|(address, length)| {
            let within = below(u128::BITS - length);
            (address & !within, address | within)
        });
        let range = (address(), address()).prop_map(|(a, b)| (a.min(b), a.max(b)));
        prop_oneof![4 => address().prop_map(|address| (address, address)), 2 => prefix, 1 => range]
    }

    fn set(intervals: &[(u128, u128)]) -> AddressSet {
        AddressSet::of_intervals(Vec::new(), intervals.to_vec())
    }

    fn is_member(numbers: &[(u32, u32)], number: u32) -> bool {
        numbers.iter().any(|&(first, last)| (first..=last).contains(&number))
    }

    /// The addresses whose numbers are compared: the given ones, those near boundaries, and those that differ in one bit.
    fn near(boundaries: &[u128], others: &[u128], flips: &[u32]) -> Vec<u128> {
        let next_to = boundaries.iter().flat_map(|&at| [at, at.wrapping_sub(1), at.wrapping_add(1)]);
        let all: Vec<u128> = next_to.chain(others.iter().copied()).collect();
        let flipped = all.iter().flat_map(|address| flips.iter().map(move |bit| address ^ 1 << bit));
        all.iter().copied().chain(flipped.collect::<Vec<_>>()).collect()
    }

    /// What the cases reached: one prefix, several, none; a partial side; a set that entered later, and one that could not.
    static REACHED: [AtomicU32; 6] = [const { AtomicU32::new(0) }; 6];

    fn reach(what: usize) {
        REACHED[what].fetch_add(1, Relaxed);
    }

    fn check(
        sets: &[Vec<(u128, u128)>],
        later: &[(u128, u128)],
        others: &[u128],
        flips: &[u32],
    ) -> Result<(), TestCaseError> {
        let sets: Vec<AddressSet> = sets.iter().map(|intervals| set(intervals)).collect();
        let mut boundaries: Vec<u128> =
            sets.iter().flat_map(|set| set.v6_intervals().iter().copied().flat_map(boundaries_of)).collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        let Some(side) = Side::new(&boundaries) else {
            reach(2);
            return Ok(());
        };
        reach(usize::from(side.prefixes.len() > 1));
        let mut sets: Vec<(AddressSet, Vec<(u32, u32)>)> =
            sets.into_iter().map(|set| (set.clone(), side.intervals(set.v6_intervals()))).collect();
        let later = set(later);
        match side.checked(&later) {
            Some(numbers) => {
                reach(4);
                sets.push((later, numbers.v4_intervals().to_vec()));
            }
            None => reach(5),
        }
        for address in near(&boundaries, others, flips) {
            let Some(number) = side.number(address) else {
                prop_assert!(side.is_partial());
                reach(3);
                continue;
            };
            for (set, numbers) in &sets {
                let is_in = set.contains(std::net::Ipv6Addr::from_bits(address).into());
                prop_assert_eq!(
                    is_member(numbers, number),
                    is_in,
                    "{:x} is {} in {:x?}: {:?}",
                    address,
                    number,
                    set,
                    side
                );
            }
        }
        Ok(())
    }

    #[test]
    fn addresses_with_one_number_are_in_the_same_sets() {
        let sets = prop::collection::vec(prop::collection::vec(interval(), 0..6), 1..5);
        let later = prop::collection::vec(interval(), 1..3);
        let cases = (sets, later, prop::collection::vec(address(), 8), prop::collection::vec(0..128u32, 4));
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(3_000));
        runner.run(&cases, |(sets, later, others, flips)| check(&sets, &later, &others, &flips)).unwrap();
        for (count, what) in
            REACHED.iter().zip(["one prefix", "several", "none", "a partial side", "later", "too late"])
        {
            assert!(count.load(Relaxed) > 30, "{what} was not reached");
        }
    }

    #[test]
    fn a_block_has_the_numbers_of_its_packets_one_by_one() {
        let rule = |src: u128, dst: u128| Rule {
            src: set(&[(src, src)]).into(),
            dst: set(&[(dst, dst)]).into(),
            ..Rule::any(crate::Action::Allow, crate::OriginId(0))
        };
        let pod = |pod: u128| 0xfd00_0244 << 96 | pod;
        let (narrowing, rules) = Narrowing::of(&[rule(pod(5), pod(9)), rule(pod(8), 0x2001 << 112)]).unwrap();
        assert!(rules.iter().all(|rule| rule.src.members().unwrap().v4_intervals().len() == 1));
        let packet = |(src, dst)| Fields { src, dst, service: 7, src_port: 8 };
        let inside = [(pod(5), pod(9)), (pod(6), pod(8)), (pod(8), pod(1))];
        let outside = [(pod(5), pod(9)), (1 << 127, pod(9)), (pod(9), 0x2001 << 112)];
        for ends in [inside, outside] {
            let packets = ends.map(packet);
            let block: Block<u32, 4> = narrowing.block(packets.iter().copied()).unwrap();
            let alone = packets.map(|packet| narrowing.packet(&packet).unwrap());
            assert_eq!([0, 1, 2].map(|at| block.packet(at)), alone);
        }
    }

    #[test]
    fn pods_that_come_later_have_numbers() {
        let pods: Vec<(u128, u128)> = (2..7).map(|pod| 0xfd00_0244 << 96 | pod).map(|pod| (pod, pod)).collect();
        let of = |set: &AddressSet| set.v6_intervals().iter().copied().flat_map(boundaries_of).collect::<Vec<_>>();
        let side = Side::new(&of(&set(&pods))).unwrap();
        for (pod, has_number) in [(1, true), (62, true), (64, false)] {
            let pod = 0xfd00_0244 << 96 | pod;
            assert_eq!(side.checked(&set(&[(pod, pod)])).is_some(), has_number, "{pod:x}");
        }
    }
}
