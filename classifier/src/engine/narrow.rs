//! Maps the IPv6 addresses of a list to 32-bit numbers, so that the list is compiled and searched like an IPv4 list.
//!
//! Rules distinguish addresses only at the **boundaries** of their sets: the first address of each interval, and the first one after it. Most
//! bits of a list's boundaries are equal, for example those of a cluster's prefix and those between a node's prefix and a pod's number:
//!
//! ```text
//!   boundaries fd00:244:1::5, fd00:244:1::6, fd00:244:9::, ...  --> a prefix: constant bits, varying bits
//!   address with the constant bits   --its varying bits, moved together--> number
//!   another address                  --> the number of the nearest such address that no boundary separates from it
//! ```
//!
//! Too many bits vary between boundaries in different parts of the address space, as in a cluster and in the Internet. So a side has up to
//! [`PREFIXES`] prefixes, and the numbers of each follow those of the one before.
//!
//! **Invariant.** An address is at or above a boundary if and only if its number is at or above the boundary's. So an interval of addresses is
//! an interval of numbers. A prefix of addresses is a prefix of numbers too, which tuples need.
//!
//! **Bounds.** Numbers have 32 bits. A list whose boundaries need more is not narrowed. If the numbers suffice only without those of the
//! addresses below the first boundary, or above the last, packets with such an address are looked up in the list compiled for addresses.
//!
//! **Alternatives that lost.** Numbers for the gaps between prefixes, apart from the prefixes' own: packets of the world took longer than a
//! search of addresses. **Not taken:** comparing the boundaries by the bits that differ between neighbours (a fusion tree) needs fewer bits,
//! but each search has to be verified, and tuples cannot use it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use ahash::RandomState;

use super::address::{Address, Fields};
use super::prefix::{Prefix, size};
use super::{Block, Changed, Move};
use crate::address_set::Point;
use crate::addresses::Place;
use crate::{AddressSet, Addresses, Rule};

/// Maximum number of prefixes of a side. Each takes a comparison for an address outside of the largest.
const PREFIXES: usize = 4;

/// A list with several prefixes on a side needs this many times the boundaries for a gain, because finding the number of an address outside of
/// the largest prefix takes longer.
const DIVIDED: usize = 32;

/// The number of 32-bit numbers.
const NUMBERS: u64 = 1 << 32;

/// The numbers of a list's source and destination addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Narrowing {
    src: Side,
    dst: Side,
}

/// The sets of one side as intervals of numbers, during a build.
#[derive(Debug, Default)]
pub(super) struct Narrowed {
    /// The intervals of all sets, each as its first and last number: those of one set, ascending, then those of the next.
    intervals: Vec<(u32, u32)>,
    /// The range of indexes in `intervals` of each set, by the set's place in memory.
    parts: HashMap<Place, Range<usize>, RandomState>,
}

impl Narrowed {
    /// Returns the intervals of numbers of a rule's address field, ascending. All numbers for a field that accepts any address.
    ///
    /// # Panics
    /// If the field is not one of the list's.
    pub(super) fn of(&self, addresses: &Addresses) -> &[(u32, u32)] {
        match addresses.place() {
            Some(place) => &self.intervals[self.parts[&place].clone()],
            None => u32::EVERY,
        }
    }
}

impl Narrowing {
    /// Chooses the numbers, and returns the sources and destinations of the list as numbers. `None` if the numbers need more than 32 bits, or
    /// if the list's IPv6 sets have fewer than `fewest` boundaries, or none.
    pub(super) fn of(rules: &[Rule], fewest: usize) -> Option<(Self, [Narrowed; 2])> {
        let [srcs, dsts] = [Sets::of(rules.iter().map(|rule| &rule.src)), Sets::of(rules.iter().map(|rule| &rule.dst))];
        let boundaries = srcs.boundaries.len() + dsts.boundaries.len();
        if boundaries < fewest.max(1) {
            return None;
        }
        let [src, dst] = [srcs.numbers()?, dsts.numbers()?];
        let is_divided = [&src, &dst].iter().any(|(side, _)| side.prefixes.len() > 1);
        if is_divided && boundaries / DIVIDED < fewest {
            return None;
        }
        Some((Self { src: src.0, dst: dst.0 }, [src.1, dst.1]))
    }

    /// Whether some addresses have no number.
    pub(super) fn is_partial(&self) -> bool {
        self.src.is_partial || self.dst.is_partial
    }

    /// Fills an empty block with packets that have numbers in place of addresses. `None` if an address has no number.
    #[inline(always)]
    pub(super) fn block<const N: usize>(
        &self,
        packets: impl Iterator<Item = Fields<u128>> + Clone,
        block: &mut Block<u32, N>,
    ) -> Option<()> {
        for Fields { service, src_port, .. } in packets.clone() {
            block.push(Fields { src: 0, dst: 0, service, src_port });
        }
        self.src.numbers(packets.clone().map(|packet| packet.src), &mut block.src)?;
        self.dst.numbers(packets.map(|packet| packet.dst), &mut block.dst)
    }

    /// Returns a packet's fields with numbers in place of addresses. `None` if an address has no number.
    #[inline(always)]
    pub(super) fn packet(&self, packet: &Fields<u128>) -> Option<Fields<u32>> {
        let (src, dst) = (self.src.number(packet.src)?, self.dst.number(packet.dst)?);
        Some(Fields { src, dst, service: packet.service, src_port: packet.src_port })
    }

    /// Returns the move with numbers, as IPv4 addresses, in place of the IPv6 addresses. `None` if a boundary of its sets has no number of its
    /// own, so that the list must be compiled again.
    pub(super) fn of_move(&self, Move { code, changed }: &Move) -> Option<Move> {
        let changed = Changed { src: self.src.moved(&changed.src)?, dst: self.dst.moved(&changed.dst)? };
        Some(Move { code: *code, changed })
    }
}

/// The sets of one side, sources or destinations.
struct Sets<'a> {
    /// The IPv6 intervals of each set, by its place in memory.
    sets: HashMap<Place, &'a [(u128, u128)], RandomState>,
    /// The boundaries of all sets, in any order.
    boundaries: Vec<u128>,
}

impl<'a> Sets<'a> {
    fn of(all: impl Iterator<Item = &'a Addresses>) -> Self {
        let mut found = Self { sets: HashMap::default(), boundaries: Vec::new() };
        for (place, set) in all.filter_map(|addresses| addresses.place().zip(addresses.members())) {
            if let Entry::Vacant(vacant) = found.sets.entry(place) {
                let intervals = *vacant.insert(set.v6_intervals());
                found.boundaries.extend(intervals.iter().copied().flat_map(boundaries_of));
            }
        }
        found
    }

    /// Chooses the numbers, and returns the sets as numbers. `None` if the numbers need more than 32 bits or [`PREFIXES`].
    fn numbers(self) -> Option<(Side, Narrowed)> {
        let side = Side::new(self.boundaries)?;
        let mut narrowed = Narrowed::default();
        for (place, set) in self.sets {
            let from = narrowed.intervals.len();
            narrowed.intervals.extend(side.narrowed(set));
            narrowed.parts.insert(place, from..narrowed.intervals.len());
        }
        Some((side, narrowed))
    }
}

/// The numbers of the addresses of one side, sources or destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Side {
    /// The prefixes, ascending. At least one.
    prefixes: Vec<Prefix>,
    /// The index of the prefix with the most numbers.
    largest: usize,
    /// The lowest address that has a number.
    first: u128,
    /// The highest address that has a number.
    last: u128,
    /// Whether some addresses have no number.
    is_partial: bool,
}

impl Side {
    /// Chooses the numbers for boundaries in any order. `None` if they need more than 32 bits or [`PREFIXES`].
    fn new(boundaries: Vec<u128>) -> Option<Self> {
        // With each part, the position of the bit in which it differs from its neighbour.
        let mut parts = vec![(boundaries, u128::BITS)];
        loop {
            let prefixes: Vec<Prefix> = parts.iter().map(|(part, limit)| Prefix::new(part, *limit)).collect();
            let (largest, prefix) = prefixes.iter().enumerate().max_by_key(|(_, prefix)| prefix.bits)?;
            // A prefix of one number may go without.
            let sizes = prefixes.iter().filter(|prefix| prefix.bits > 0).map(|prefix| size(prefix.bits));
            if sizes.fold(0, u64::saturating_add) <= NUMBERS {
                let lowest = prefixes.iter().map(|prefix| prefix.constant).min()?;
                let is_edge = parts.iter().any(|(part, _)| part.contains(&lowest));
                return Self::with(prefixes, is_edge.then_some(lowest));
            }
            if parts.len() == PREFIXES {
                return None;
            }
            let highest = prefix.highest_varying();
            let (part, _) = parts.swap_remove(largest);
            let (above, below): (Vec<_>, Vec<_>) = part.into_iter().partition(|boundary| boundary >> highest & 1 == 1);
            parts.extend([(below, highest), (above, highest)]);
        }
    }

    /// Gives numbers to the prefixes, each from a multiple of its size on. `edge` is the lowest boundary if it has no varying bit set, so that
    /// the addresses below it need a number that is lower than those of the first prefix.
    fn with(mut prefixes: Vec<Prefix>, edge: Option<u128>) -> Option<Self> {
        prefixes.sort_unstable_by_key(|prefix| prefix.first);
        let (mut first, mut last) = (0, u128::MAX);
        if !place(&mut prefixes, u64::from(edge.is_some())) {
            first = edge.unwrap_or(0);
            while !place(&mut prefixes, 0) {
                last = prefixes.pop_if(|prefix| prefix.bits == 0)?.first - 1;
            }
        }
        let (largest, _) = prefixes.iter().enumerate().max_by_key(|(_, prefix)| prefix.bits)?;
        Some(Self { prefixes, largest, first, last, is_partial: (first, last) != (0, u128::MAX) })
    }

    #[inline(always)]
    fn largest(&self) -> &Prefix {
        &self.prefixes[self.largest]
    }

    /// Returns an address's number. `None` if it has none.
    #[inline(always)]
    fn number(&self, address: u128) -> Option<u32> {
        if self.is_partial && !(self.first..=self.last).contains(&address) {
            return None;
        }
        Some(self.prefix(address).nearest(address))
    }

    /// Returns the last prefix that begins at or before the address, or else the first.
    #[inline(always)]
    fn prefix(&self, address: u128) -> &Prefix {
        let (first, further) = self.prefixes.split_first().expect("at least one");
        further.iter().fold(first, |found, prefix| if prefix.first <= address { prefix } else { found })
    }

    /// Writes the addresses' numbers, in their order. `None` if one has none.
    #[inline(always)]
    fn numbers(&self, addresses: impl Iterator<Item = u128> + Clone, numbers: &mut [u32]) -> Option<()> {
        // As if all addresses had the constant bits of the largest prefix: one branch per block instead of several per address.
        if self.largest().numbers(addresses.clone(), numbers) {
            return Some(());
        }
        for (number, address) in numbers.iter_mut().zip(addresses) {
            *number = self.number(address)?;
        }
        Some(())
    }

    /// Returns the number of the first address that is not below a boundary, which must have its prefix's constant bits. [`NUMBERS`] if that
    /// address has no number because it is above the last one that has.
    fn edge(&self, boundary: u128) -> u64 {
        if boundary > self.last { NUMBERS } else { self.prefix(boundary).number(boundary).into() }
    }

    /// Returns the intervals of numbers of these intervals of addresses, each as its first and last number, in the same order. An interval of
    /// which no address has a number is left out. Expects boundaries that have the constant bits of their prefixes: those of the list, or
    /// others for which [`Prefix::has`] is true.
    fn narrowed(&self, intervals: &[(u128, u128)]) -> impl Iterator<Item = (u32, u32)> {
        intervals.iter().filter_map(|&(first, last)| {
            let from = if first == 0 { 0 } else { self.edge(first) };
            let to = last.next().map_or(NUMBERS, |end| self.edge(end)).checked_sub(1)?;
            // An interval of addresses without numbers has none.
            Some((u32::try_from(from).ok()?, u32::try_from(to).ok()?)).filter(|(from, to)| from <= to)
        })
    }

    /// Returns the set of numbers, as IPv4 addresses, for IPv6 addresses that enter or leave sets of the list. `None` if one of its boundaries
    /// has no number of its own, so that the list must be compiled again.
    fn moved(&self, set: &AddressSet) -> Option<AddressSet> {
        let intervals = set.v6_intervals();
        // The number 0 may also be that of addresses below all prefixes.
        let has = |boundary| self.prefix(boundary).has(boundary) && (1..NUMBERS).contains(&self.edge(boundary));
        let has_all = intervals.iter().copied().flat_map(boundaries_of).all(has);
        has_all.then(|| AddressSet::of_intervals(self.narrowed(intervals).collect(), Vec::new()))
    }
}

/// Gives each of the ascending prefixes its numbers, the first from `next` on or above. Returns false if that needs more than [`NUMBERS`].
fn place(prefixes: &mut [Prefix], mut next: u64) -> bool {
    for prefix in prefixes {
        next = next.next_multiple_of(size(prefix.bits));
        let Ok(base) = u32::try_from(next) else { return false };
        prefix.base = base;
        next += size(prefix.bits);
    }
    next <= NUMBERS
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
        let boundaries: Vec<u128> =
            sets.iter().flat_map(|set| set.v6_intervals().iter().copied().flat_map(boundaries_of)).collect();
        let Some(side) = Side::new(boundaries.clone()) else {
            reach(2);
            return Ok(());
        };
        reach(usize::from(side.prefixes.len() > 1));
        let mut sets: Vec<(AddressSet, Vec<(u32, u32)>)> =
            sets.into_iter().map(|set| (set.clone(), side.narrowed(set.v6_intervals()).collect())).collect();
        let later = set(later);
        match side.moved(&later) {
            Some(numbers) => {
                reach(4);
                sets.push((later, numbers.v4_intervals().to_vec()));
            }
            None => reach(5),
        }
        for address in near(&boundaries, others, flips) {
            let Some(number) = side.number(address) else {
                prop_assert!(side.is_partial);
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
        let pod = |pod: u128| 0xfd00_0244 << 96 | pod;
        let side = |addresses: [u128; 2]| {
            let set = set(&addresses.map(|address| (address, address)));
            Side::new(set.v6_intervals().iter().copied().flat_map(boundaries_of).collect()).unwrap()
        };
        let narrowing = Narrowing { src: side([pod(5), pod(8)]), dst: side([pod(9), 0x2001 << 112]) };
        let packet = |(src, dst)| Fields { src, dst, service: 7, src_port: 8 };
        let inside = [(pod(5), pod(9)), (pod(6), pod(8)), (pod(8), pod(1))];
        let outside = [(pod(5), pod(9)), (1 << 127, pod(9)), (pod(9), 0x2001 << 112)];
        for ends in [inside, outside] {
            let packets = ends.map(packet);
            let mut block = Block::<u32, 4>::new();
            narrowing.block(packets.iter().copied(), &mut block).unwrap();
            let alone = packets.map(|packet| narrowing.packet(&packet).unwrap());
            assert_eq!([0, 1, 2].map(|at| block.packet(at)), alone);
        }
    }

    #[test]
    fn pods_that_come_later_have_numbers() {
        let pods: Vec<(u128, u128)> = (2..7).map(|pod| 0xfd00_0244 << 96 | pod).map(|pod| (pod, pod)).collect();
        let of = |set: &AddressSet| set.v6_intervals().iter().copied().flat_map(boundaries_of).collect::<Vec<_>>();
        let side = Side::new(of(&set(&pods))).unwrap();
        for (pod, has_number) in [(1, true), (62, true), (64, false)] {
            let pod = 0xfd00_0244 << 96 | pod;
            assert_eq!(side.moved(&set(&[(pod, pod)])).is_some(), has_number, "{pod:x}");
        }
    }
}
