//! What every packet has that a filter selects, in tests that cost next to nothing.
//!
//! A filter says more than what is tested here: which end is the source, what must not be, what goes together with what. The sieve
//! forgets all of that. It keeps for each of three things (protocol and family, ports, addresses) a set in which a packet that
//! is selected must be, of ports and addresses with one of its ends. So it lets through all that the filter selects and more, and whoever
//! has passed is asked properly. A packet fails it by the first test, which is the one that the fewest packets pass.
//!
//! ```text
//!   tcp and (host 10.0.0.7 or net 10.1.0.0/16) and not port 22   -->   addresses: 10.0.0.0/15    kinds: TCP over IPv4    (ports: all)
//! ```

mod bounds;

use std::collections::HashSet;
use std::net::IpAddr;

use bulkhead_classifier::protocol;

use super::parse::Tree;
use bounds::{Addresses, Bounds};

/// A packet's two ends in no order, in the words of a session's key and of what is written into headers.
///
/// ```text
///             addresses                          rest
///   IPv4      one << 32 | other    0   0  0      one's port << 48 | other's port << 32 | protocol << 8
///   IPv6      one                  other         the same, and 1
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    pub(crate) addresses: &'a [u64; 4],
    /// The other bits of the lowest byte are anybody's.
    pub(crate) rest: u64,
}

impl Pair<'_> {
    /// Where the protocol begins.
    pub(crate) const PROTOCOL: u32 = 8;

    /// Protocol and family: [`kind`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "it has nine bits")]
    const fn kind(self) -> usize {
        (self.rest >> (Self::PROTOCOL - 1) & 0x1fe | self.rest & 1) as usize
    }

    #[inline(always)]
    const fn is_v6(self) -> bool {
        self.rest & 1 != 0
    }
}

/// The number of a protocol over a family.
const fn kind(protocol: u8, v6: bool) -> usize {
    (protocol as usize) << 1 | v6 as usize
}

/// A set of small numbers: a bit for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bits<const WORDS: usize>(Box<[u64; WORDS]>);

impl<const WORDS: usize> Bits<WORDS> {
    const LEN: usize = 64 * WORDS;

    fn none() -> Self {
        Self(Box::new([0; WORDS]))
    }

    fn all() -> Self {
        Self(Box::new([u64::MAX; WORDS]))
    }

    fn add(&mut self, number: usize) {
        self.0[number / 64 % WORDS] |= 1 << (number % 64);
    }

    #[inline(always)]
    const fn has(&self, number: usize) -> bool {
        self.0[number / 64 % WORDS] >> (number % 64) & 1 != 0
    }

    fn and(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&*other.0).for_each(|(own, other)| *own &= other);
        self
    }

    fn or(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&*other.0).for_each(|(own, other)| *own |= other);
        self
    }

    fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// Protocols and families.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kinds(Bits<8>);

/// Ports by their lower 12 bits: 512 bytes, which stay in the nearest cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ports(Bits<64>);

/// A network of IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct V4 {
    net: u32,
    mask: u32,
}

/// A network of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct V6 {
    net: [u64; 2],
    mask: [u64; 2],
}

/// Single addresses by 14 bits that are made of all of theirs: 2 KB, and of a hundred pods one packet in a hundred passes by accident.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hosts(Bits<256>);

impl Kinds {
    #[inline(always)]
    pub(crate) const fn passes(&self, pair: Pair<'_>) -> bool {
        self.0.has(pair.kind())
    }
}

impl Ports {
    #[inline(always)]
    pub(crate) const fn passes(&self, pair: Pair<'_>) -> bool {
        self.0.has((pair.rest >> 48) as usize) | self.0.has((pair.rest >> 32) as usize)
    }

    /// Those of a range.
    fn of(low: u16, high: u16) -> Self {
        let mut bits = Bits::none();
        (low..=high).take(Bits::<64>::LEN).for_each(|port| bits.add(port.into()));
        Self(bits)
    }
}

impl V4 {
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "each half is an address")]
    pub(crate) const fn passes(self, pair: Pair<'_>) -> bool {
        let both = pair.addresses[0];
        ((both >> 32) as u32 & self.mask == self.net) | (both as u32 & self.mask == self.net)
    }

    /// Whether some of several packets do: both addresses of each are tested in one step.
    #[inline(always)]
    pub(crate) fn passes_some<'a>(self, pairs: impl Iterator<Item = Pair<'a>>) -> bool {
        const ONES: u64 = 1 << 32 | 1;
        let (net, mask) = (u64::from(self.net) * ONES, u64::from(self.mask) * ONES);
        // A half that is 0 borrows from its top bit (Hacker's Delight §6-1). The one above it may seem to be 0 then, which is no other answer.
        let borrows = pairs.fold(0, |all, pair| {
            let differs = (pair.addresses[0] ^ net) & mask;
            all | (differs.wrapping_sub(ONES) & !differs)
        });
        borrows & (ONES << 31) != 0
    }

    /// The smallest network with both.
    const fn or(self, other: Self) -> Self {
        let differs = self.net ^ other.net;
        let common = if differs == 0 { u32::MAX } else { !(u32::MAX >> differs.leading_zeros()) };
        let mask = self.mask & other.mask & common;
        Self { net: self.net & mask, mask }
    }
}

impl V6 {
    #[inline(always)]
    pub(crate) const fn passes(self, pair: Pair<'_>) -> bool {
        let [a, b, c, d] = *pair.addresses;
        let Self { net: [high, low], mask: [high_mask, low_mask] } = self;
        ((a & high_mask == high) & (b & low_mask == low)) | ((c & high_mask == high) & (d & low_mask == low))
    }

    /// The smallest network with both.
    fn or(self, other: Self) -> Self {
        let differs = whole(self.net) ^ whole(other.net);
        let common = if differs == 0 { u128::MAX } else { !(u128::MAX >> differs.leading_zeros()) };
        let mask = whole(self.mask) & whole(other.mask) & common;
        Self { net: halves(whole(self.net) & mask), mask: halves(mask) }
    }
}

impl Hosts {
    #[inline(always)]
    pub(crate) const fn passes(&self, pair: Pair<'_>) -> bool {
        let [a, b, c, d] = *pair.addresses;
        if pair.is_v6() {
            self.0.has(hash(a, b)) | self.0.has(hash(c, d))
        } else {
            self.0.has(hash(0, a >> 32)) | self.0.has(hash(0, a & 0xffff_ffff))
        }
    }

    fn add(&mut self, address: IpAddr) {
        let number = match address {
            IpAddr::V4(address) => hash(0, address.to_bits().into()),
            IpAddr::V6(address) => {
                let [high, low] = halves(address.to_bits());
                hash(high, low)
            }
        };
        self.0.add(number);
    }
}

/// 14 bits of an address. A sender that chooses addresses that pass by accident makes nothing but its own packets slower.
#[inline(always)]
const fn hash(high: u64, low: u64) -> usize {
    // The golden ratio, as Knuth's multiplicative hash has it.
    ((low ^ high.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as usize
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
const fn halves(bits: u128) -> [u64; 2] {
    [(bits >> 64) as u64, bits as u64]
}

fn whole([high, low]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// One test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Kinds(Kinds),
    Ports(Ports),
    V4(V4),
    V6(V6),
    Hosts(Hosts),
}

impl Test {
    #[inline]
    pub(crate) fn passes(&self, pair: Pair<'_>) -> bool {
        match self {
            Self::Kinds(test) => test.passes(pair),
            Self::Ports(test) => test.passes(pair),
            Self::V4(test) => test.passes(pair),
            Self::V6(test) => test.passes(pair),
            Self::Hosts(test) => test.passes(pair),
        }
    }
}

/// See the module. The default one lets everything through.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sieve {
    /// With the part of all packets that may pass, the smallest first. Without those that all pass.
    tests: Vec<(f64, Test)>,
}

impl Sieve {
    pub(super) fn of(tree: &Tree) -> Self {
        let Bounds { kinds, ports, addresses } = Bounds::of(tree, false);
        let mut sieve = Self::default();
        sieve.add_addresses(addresses);
        sieve.add(part_of_kinds(&kinds), Test::Kinds(kinds));
        if let Some(ports) = ports {
            sieve.add(part_of_ports(&ports), Test::Ports(ports));
        }
        sieve
    }

    /// This one, for packets from or to one of the addresses alone.
    pub(super) fn with_an_end_in(mut self, addresses: &HashSet<IpAddr>) -> Self {
        self.add_addresses(Addresses::among(addresses));
        self
    }

    fn add_addresses(&mut self, addresses: Addresses) {
        let part = addresses.part();
        match addresses {
            Addresses::All => {}
            Addresses::V4(test) => self.add(part, Test::V4(test)),
            Addresses::V6(test) => self.add(part, Test::V6(test)),
            Addresses::Hosts(test) => self.add(part, Test::Hosts(test)),
        }
    }

    fn add(&mut self, part: f64, test: Test) {
        if part < 1.0 {
            self.tests.push((part, test));
            self.tests.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        }
    }

    /// The test that the fewest packets pass; none when all are let through.
    #[inline]
    pub(crate) fn first(&self) -> Option<&Test> {
        self.tests.first().map(|(_, test)| test)
    }

    /// Whether the filter may select such packets.
    #[inline]
    pub(crate) fn passes(&self, pair: Pair<'_>) -> bool {
        self.tests.iter().all(|(_, test)| test.passes(pair))
    }
}

/// The part of a node's packets that are of one of these kinds, at a guess: nearly all are TCP or UDP over IPv4.
fn part_of_kinds(kinds: &Kinds) -> f64 {
    let usual = [(protocol::TCP, false, 0.5), (protocol::UDP, false, 0.3), (protocol::TCP, true, 0.1)];
    let part: f64 = usual.iter().filter(|(number, v6, _)| kinds.0.has(kind(*number, *v6))).map(|(.., part)| part).sum();
    let is_all = kinds.0.len() == Bits::<8>::LEN;
    if is_all { 1.0 } else { part.min(0.99) }
}

/// The same of ports. One end has one of 30,000, the other one of a few that many have.
#[expect(clippy::cast_precision_loss, reason = "it is an estimate")]
fn part_of_ports(ports: &Ports) -> f64 {
    let part = ports.0.len() as f64 / Bits::<64>::LEN as f64;
    if ports.0.len() == Bits::<64>::LEN { 1.0 } else { part.max(0.01) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Few bits, so that networks are met, and at the ends of both halves, where borrows come from.
        #[test]
        fn several_packets_are_tested_as_each_of_them(
            net in 0u32..4, shift in prop_oneof![Just(0u32), Just(30)], bits in 0u32..=32,
            ends in proptest::collection::vec((0u32..4, 0u32..4), 0..8),
        ) {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            let test = V4 { net: (net << shift) & mask, mask };
            let addresses: Vec<[u64; 4]> = ends
                .iter()
                .map(|(low, high)| [u64::from(low << shift) << 32 | u64::from(high << shift), 0, 0, 0])
                .collect();
            let pairs = || addresses.iter().map(|addresses| Pair { addresses, rest: 0 });
            prop_assert_eq!(test.passes_some(pairs()), pairs().any(|pair| test.passes(pair)));
        }
    }
}
