//! Cheap tests that every packet passes which the filter matches. They reject most other packets.
//!
//! The sieve keeps three sets of a filter: protocol and family, ports, and addresses. A matching packet is in the first set, and at least
//! one of its ends is in each of the others. The sieve ignores sides, combinations, and negated ports and addresses. So other packets may
//! pass too, and the program decides about all that pass. The first test is the one that the fewest packets pass.
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

/// A packet's two ends in either order, as in a session's key ([`Key`](crate::session::Key)) and in [`Ends`](crate::packet::Ends).
///
/// ```text
///             addresses                          rest
///   IPv4      one << 32 | other    0   0  0      one's port << 48 | other's port << 32 | protocol << 8
///   IPv6      one                  other         the same, and 1
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair<'a> {
    pub(crate) addresses: &'a [u64; 4],
    /// Ports, protocol and family. The other bits of the lowest byte are ignored.
    pub(crate) rest: u64,
}

impl Pair<'_> {
    /// Position in `rest` of the lowest bit of the protocol number.
    pub(crate) const PROTOCOL: u32 = 8;

    /// Returns the packet's [`kind`].
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

/// Returns a number of 9 bits for protocol and family.
const fn kind(protocol: u8, v6: bool) -> usize {
    (protocol as usize) << 1 | v6 as usize
}

/// A set of numbers below 64 × `WORDS`, with a bit for each. Higher bits of a number are ignored.
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

/// A set of combinations of protocol and family, each a [`kind`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kinds(Bits<8>);

/// A set of ports, by their lower 12 bits. Its 512 bytes stay in the L1 cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ports(Bits<64>);

/// An IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct V4 {
    net: u32,
    mask: u32,
}

/// An IPv6 network. Numbers have their high half first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct V6 {
    net: [u64; 2],
    mask: [u64; 2],
}

/// A set of addresses, by a hash of 14 bits: 2 KiB. With a hundred pods' addresses, one other packet in a hundred passes.
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

    /// Returns the set of the ports from `low` to `high`, inclusive.
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

    /// Whether the filter may match any of these packets. Tests both addresses of a packet in one step.
    #[inline(always)]
    pub(crate) fn passes_some<'a>(self, pairs: impl Iterator<Item = Pair<'a>>) -> bool {
        const ONES: u64 = 1 << 32 | 1;
        let (net, mask) = (u64::from(self.net) * ONES, u64::from(self.mask) * ONES);
        // A half that is 0 borrows from its top bit (Hacker's Delight §6-1). The upper half may then look like 0 too, with the same result.
        let borrows = pairs.fold(0, |all, pair| {
            let differs = (pair.addresses[0] ^ net) & mask;
            all | (differs.wrapping_sub(ONES) & !differs)
        });
        borrows & (ONES << 31) != 0
    }

    /// Returns the smallest network that contains both.
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

    /// Returns the smallest network that contains both.
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

/// Hashes an address to 14 bits. A sender that chooses colliding addresses only slows down its own packets.
#[inline(always)]
const fn hash(high: u64, low: u64) -> usize {
    // Knuth's multiplicative hash with the golden ratio.
    ((low ^ high.rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as usize
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
const fn halves(bits: u128) -> [u64; 2] {
    [(bits >> 64) as u64, bits as u64]
}

fn whole([high, low]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// A test that a packet must pass to match the filter.
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

/// Cheap tests that every packet passes that matches the filter. The default sieve passes every packet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sieve {
    /// Each test with its estimated fraction of packets that pass, smallest first. Tests that all packets pass are omitted.
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

    /// Restricts the sieve to packets from or to these addresses.
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

    /// Returns the test that the fewest packets pass. `None` if the sieve passes every packet.
    #[inline]
    pub(crate) fn first(&self) -> Option<&Test> {
        self.tests.first().map(|(_, test)| test)
    }

    /// Whether the filter may match packets with these ends.
    #[inline]
    pub(crate) fn passes(&self, pair: Pair<'_>) -> bool {
        self.tests.iter().all(|(_, test)| test.passes(pair))
    }
}

/// Estimates the fraction of a node's packets with these kinds. Nearly all are TCP, or UDP over IPv4.
fn part_of_kinds(kinds: &Kinds) -> f64 {
    let usual = [(protocol::TCP, false, 0.5), (protocol::UDP, false, 0.3), (protocol::TCP, true, 0.1)];
    let part: f64 = usual.iter().filter(|(number, v6, _)| kinds.0.has(kind(*number, *v6))).map(|(.., part)| part).sum();
    let is_all = kinds.0.len() == Bits::<8>::LEN;
    if is_all { 1.0 } else { part.min(0.99) }
}

/// Estimates the fraction of packets with one of these ports. The client's port is one of 30,000, the server's one of a few common ones.
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
        /// Few bits, so that addresses are often in the network, and at both ends of the halves, where borrows occur.
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
