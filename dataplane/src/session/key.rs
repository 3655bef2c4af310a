//! The key that both directions of a conversation share, and its hash.

use std::net::IpAddr;

use ahash::RandomState;
use bulkhead_classifier::protocol;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::filter::Pair;
use crate::flow::Translation;
use crate::packet::{Ends, Ports, query};

/// Two endpoints, lower one first, and protocol and kind. Equal for both directions.
///
/// ```text
///   IPv4   low << 32 | high    0           0            0         |  ports and kind
///   IPv6   low                 low         high         high      |  lower port << 48 | higher port's << 32 | ..
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Key {
    pub(super) addresses: [u64; 4],
    /// Lower endpoint's port, higher endpoint's port, 8 free bits, type of an ICMP request or message that is no echo, protocol, [`kind`].
    pub(super) rest: u64,
}

/// Bits of [`Key::rest`]. An IPv4 address and its IPv4-mapped IPv6 address are different endpoints.
pub(super) mod kind {
    pub(super) const V6: u64 = 1;
    /// The lower endpoint sends the ICMP requests. Otherwise a ping from the other side with this identifier would pass as a reply.
    pub(super) const LOW_PINGS: u64 = 2;
    pub(super) const HIGH_PINGS: u64 = 4;
    pub(in crate::session) const PINGS: u64 = LOW_PINGS | HIGH_PINGS;
    /// Set in the key of every entry, because a slot whose key has no bits set is free.
    pub(in crate::session) const USED: u64 = 8;
    /// The bits of the protocol.
    pub(in crate::session) const OF_PROTOCOL: u64 = 0xff << super::shift::PROTOCOL;
}

mod shift {
    pub(super) const LOW_PORT: u32 = 48;
    pub(super) const HIGH_PORT: u32 = 32;
    pub(super) const MESSAGE: u32 = 16;
    pub(super) const PROTOCOL: u32 = 8;
}

impl Key {
    /// A key that no packet has.
    pub(crate) const UNUSED: Self = Self { addresses: [0; 4], rest: 0 };

    /// Returns a packet's key, and whether its source is the lower endpoint.
    pub(crate) fn of(src: IpAddr, dst: IpAddr, protocol: u8, ports: Ports) -> (Self, bool) {
        let (sport, dport) = match ports {
            Ports::Pair(sport, dport) => (sport, dport),
            Ports::EchoRequest(id) | Ports::EchoReply(id) => (id, id),
            Ports::None | Ports::Request(_) | Ports::Answer(_) | Ports::Message(_) => (0, 0),
        };
        let (mut key, mut from_low) = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Self::v4(src.into(), dst.into(), protocol, sport, dport),
            (src, dst) => Self::v6(bits(src), bits(dst), protocol, sport, dport),
        };
        // A ping from an address to itself: only the type shows the direction.
        if matches!(ports, Ports::EchoReply(_) | Ports::Answer(_)) && src == dst {
            from_low = false;
        }
        key.rest |= match ports {
            Ports::EchoRequest(_) | Ports::Request(_) if from_low => kind::LOW_PINGS,
            Ports::EchoRequest(_) | Ports::Request(_) => kind::HIGH_PINGS,
            Ports::EchoReply(_) | Ports::Answer(_) if from_low => kind::HIGH_PINGS,
            Ports::EchoReply(_) | Ports::Answer(_) => kind::LOW_PINGS,
            Ports::Pair(..) | Ports::None | Ports::Message(_) => 0,
        };
        if let Ports::Request(message) | Ports::Answer(message) | Ports::Message(message) = ports {
            key.rest |= u64::from(message) << shift::MESSAGE;
        }
        (key, from_low)
    }

    /// Returns the key of a packet with ports over IPv4, and whether its source is the lower endpoint; see [`Key::of`].
    #[inline]
    pub(crate) fn v4(src: u32, dst: u32, protocol: u8, sport: u16, dport: u16) -> (Self, bool) {
        let from = u64::from(src) << 16 | u64::from(sport);
        let to = u64::from(dst) << 16 | u64::from(dport);
        let (low, high) = (from.min(to), from.max(to));
        let addresses = [(low >> 16) << 32 | high >> 16, 0, 0, 0];
        let ports = low << shift::LOW_PORT | (high & 0xffff) << shift::HIGH_PORT;
        let rest = ports | u64::from(protocol) << shift::PROTOCOL | kind::USED;
        (Self { addresses, rest }, from <= to)
    }

    /// Like [`Key::of`], for ports over IPv6. Addresses are numbers, high half first.
    #[inline]
    pub(crate) fn v6(src: [u64; 2], dst: [u64; 2], protocol: u8, sport: u16, dport: u16) -> (Self, bool) {
        let from_low = (src, sport) <= (dst, dport);
        let (low, high, low_port, high_port) =
            if from_low { (src, dst, sport, dport) } else { (dst, src, dport, sport) };
        let ports = u64::from(low_port) << shift::LOW_PORT | u64::from(high_port) << shift::HIGH_PORT;
        let rest = ports | u64::from(protocol) << shift::PROTOCOL | kind::USED | kind::V6;
        (Self { addresses: [low[0], low[1], high[0], high[1]], rest }, from_low)
    }

    /// IANA protocol number.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the field has eight bits")]
    pub(crate) const fn protocol(&self) -> u8 {
        (self.rest >> shift::PROTOCOL) as u8
    }

    /// Whether a packet may have this key.
    pub(super) const fn is_sound(&self) -> bool {
        const KNOWN: u64 = kind::V6 | kind::LOW_PINGS | kind::HIGH_PINGS | kind::USED;
        let rest = self.rest;
        let [a, b, c, d] = self.addresses;
        let (low_port, high_port) = (rest >> shift::LOW_PORT, rest >> shift::HIGH_PORT & 0xffff);
        let is_ordered = if rest & kind::V6 != 0 {
            a < c || (a == c && (b < d || (b == d && low_port <= high_port)))
        } else {
            let (low, high) = (a >> 32, a & 0xffff_ffff);
            b == 0 && c == 0 && d == 0 && (low < high || (low == high && low_port <= high_port))
        };
        let has_known_bits = rest & 0xff00_0000 == 0 && rest & 0xff & !KNOWN == 0 && rest & kind::USED != 0;
        is_ordered && has_known_bits && (self.message() == 0 || self.is_icmp())
    }

    /// Whether both keys have the same address family and protocol.
    pub(super) const fn is_like(&self, other: &Self) -> bool {
        const COMMON: u64 = 0xff << shift::PROTOCOL | kind::V6;
        self.rest & COMMON == other.rest & COMMON
    }

    /// Returns a packet's source and destination port. `from_low` tells whether its source is the lower endpoint.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the fields have 16 bits")]
    pub(crate) const fn ports(&self, from_low: bool) -> [u16; 2] {
        let (low, high) = ((self.rest >> shift::LOW_PORT) as u16, (self.rest >> shift::HIGH_PORT) as u16);
        if from_low { [low, high] } else { [high, low] }
    }

    /// Whether its addresses are of IPv6.
    #[inline]
    pub(crate) const fn is_v6(&self) -> bool {
        self.rest & kind::V6 != 0
    }

    /// Returns a packet's IPv4 addresses and its ports, each with the source in the upper half.
    #[inline(always)]
    pub(super) const fn ends_v4(&self, from_low: bool) -> (u64, u32) {
        let turned = !from_low as u32;
        (self.addresses[0].rotate_left(32 * turned), ((self.rest >> shift::HIGH_PORT) as u32).rotate_left(16 * turned))
    }

    /// Whether this is [`Key::UNUSED`].
    #[inline]
    pub(crate) const fn is_unused(&self) -> bool {
        self.rest & kind::USED == 0
    }

    /// Whether the conversation is an ICMP echo.
    pub(super) const fn is_echo(&self) -> bool {
        self.rest & kind::PINGS != 0 && self.message() == 0
    }

    /// Whether the protocol is ICMP of the key's address family.
    pub(super) const fn is_icmp(&self) -> bool {
        self.protocol() == if self.is_v6() { protocol::ICMPV6 } else { protocol::ICMP }
    }

    /// Returns the type of the ICMP message that most sessions with this key begin with, and code 0.
    pub(super) fn first_message(&self) -> (u8, u8) {
        (if self.is_echo() { query::echo(self.protocol()) } else { self.message() }, 0)
    }

    /// Returns the type of an ICMP request or message that is no echo. 0 for all other packets.
    #[expect(clippy::cast_possible_truncation, reason = "the field has eight bits")]
    pub(super) const fn message(&self) -> u8 {
        (self.rest >> shift::MESSAGE) as u8
    }

    /// Returns the endpoints in the form that filters test.
    #[inline(always)]
    pub(crate) const fn pair(&self) -> Pair<'_> {
        Pair { addresses: &self.addresses, rest: self.rest }
    }

    /// Returns a packet's endpoints, source first. `from_low` tells whether the source is the lower endpoint.
    pub(crate) fn endpoints(&self, from_low: bool) -> [(IpAddr, u16); 2] {
        let Translation { src, dst, sport, dport } = self.ends(from_low).translation();
        [(src, sport), (dst, dport)]
    }

    /// Like [`Key::endpoints`], but returns addresses and ports packed into 64-bit words; see [`Ends`].
    #[inline]
    pub(crate) const fn ends(&self, from_low: bool) -> Ends {
        let ports = (self.rest >> shift::HIGH_PORT) as u32;
        let [a, b, c, d] = self.addresses;
        // The source's port comes first.
        let ports = ports.rotate_left(if from_low { 0 } else { 16 });
        if self.rest & kind::V6 == 0 {
            Ends::v4(a.rotate_left(if from_low { 0 } else { 32 }), ports)
        } else if from_low {
            Ends::v6([a, b], [c, d], ports)
        } else {
            Ends::v6([c, d], [a, b], ports)
        }
    }
}

/// Returns an address as two halves. [`kind::V6`] distinguishes the families.
fn bits(address: IpAddr) -> [u64; 2] {
    match address {
        IpAddr::V4(a) => [0, u64::from(u32::from(a))],
        IpAddr::V6(a) => {
            let octets = a.octets();
            let half = |at: usize| u64::from_be_bytes(octets[at..at + 8].try_into().expect("eight bytes"));
            [half(0), half(8)]
        }
    }
}

/// A keyed hash of keys, so that outsiders cannot choose colliding packets.
///
/// Folded multiplications as in wyhash and in ahash's portable version, two for an IPv4 key. ahash itself passes the words through its
/// state one by one, in five dependent steps.
#[derive(Clone, Debug)]
pub(crate) struct KeyHasher([u64; 4]);

impl KeyHasher {
    /// Derives a secret key from the keys of `state`.
    pub(crate) fn new(state: &RandomState) -> Self {
        Self([0u64, 1, 2, 3].map(|number| state.hash_one(number) | 1))
    }

    /// Returns the hash of a key. All 64 bits are usable.
    #[inline]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        let [a, b, c, d] = key.addresses;
        let [k0, k1, k2, k3] = self.0;
        let mut sum = fold(a ^ k0, key.rest ^ k1);
        if key.rest & kind::V6 != 0 {
            sum ^= fold(b ^ k2, c ^ k3).wrapping_add(fold(d ^ k1, sum ^ k2));
        }
        fold(sum ^ k2, k3)
    }
}

/// Returns the XOR of a product's two halves.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the halves are what is wanted")]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn both_directions_have_one_key() {
        let (there, up) = Key::of(ip("10.0.0.1"), ip("10.0.0.2"), 6, Ports::Pair(40_000, 80));
        let (back, down) = Key::of(ip("10.0.0.2"), ip("10.0.0.1"), 6, Ports::Pair(80, 40_000));
        assert_eq!((there, up), (back, !down));
    }

    #[test]
    fn a_ping_and_its_reply_have_one_key_and_a_ping_from_the_other_side_has_another() {
        let (a, b) = (ip("10.0.0.1"), ip("10.0.0.2"));
        let (request, up) = Key::of(a, b, 1, Ports::EchoRequest(0));
        let (reply, down) = Key::of(b, a, 1, Ports::EchoReply(0));
        assert_eq!((request, up), (reply, !down));
        assert_ne!(Key::of(b, a, 1, Ports::EchoRequest(0)).0, request);
        assert_ne!(Key::of(a, b, 1, Ports::None).0, request);
    }

    #[test]
    fn a_request_and_its_answer_have_one_key_and_other_messages_have_others() {
        for (a, b, number) in [("10.0.0.1", "10.0.0.2", 1), ("fd00::1", "fd00::2", 58)] {
            let (a, b) = (ip(a), ip(b));
            let (request, up) = Key::of(a, b, number, Ports::Request(13));
            assert_eq!(Key::of(b, a, number, Ports::Answer(13)), (request, !up));
            assert_eq!((request.first_message(), request.is_echo(), request.is_sound()), ((13, 0), false, true));
            let others = [
                Key::of(b, a, number, Ports::Request(13)).0,
                Key::of(a, b, number, Ports::Request(15)).0,
                Key::of(a, b, number, Ports::Message(13)).0,
                Key::of(a, b, number, Ports::EchoRequest(13)).0,
            ];
            assert!(others.iter().all(|other| other.is_sound() && *other != request));
            let message = Key::of(a, b, number, Ports::Message(40));
            assert_eq!(Key::of(b, a, number, Ports::Message(40)), (message.0, !message.1));
            assert!(!Key::of(a, b, 17, Ports::Message(40)).0.is_sound(), "no other protocol has a type");
        }
    }

    #[test]
    fn a_ping_to_oneself_has_two_directions() {
        let a = ip("fd00::1");
        let (request, up) = Key::of(a, a, 58, Ports::EchoRequest(7));
        let (reply, down) = Key::of(a, a, 58, Ports::EchoReply(7));
        assert_eq!((request, up), (reply, !down));
    }

    #[test]
    fn a_mapped_address_is_another_endpoint() {
        let v4 = Key::of(ip("10.0.0.1"), ip("10.0.0.2"), 6, Ports::None).0;
        assert_ne!(Key::of(ip("::10.0.0.1"), ip("::10.0.0.2"), 6, Ports::None).0, v4);
    }

    #[test]
    fn a_key_gives_its_packets_endpoints_back() {
        for (src, dst) in
            [("10.0.0.9", "10.0.0.2"), ("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2"), ("fd00::3", "::1")]
        {
            let (key, from_low) = Key::of(ip(src), ip(dst), 6, Ports::Pair(7, 9));
            assert_eq!(key.endpoints(from_low), [(ip(src), 7), (ip(dst), 9)]);
            assert_eq!(key.protocol(), 6);
        }
    }

    #[test]
    fn hashes_differ_from_state_to_state_and_from_key_to_key() {
        let (one, other) = (KeyHasher::new(&RandomState::new()), KeyHasher::new(&RandomState::new()));
        for pair in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let keys: Vec<Key> =
                (0..5000).map(|port| Key::of(ip(pair.0), ip(pair.1), 17, Ports::Pair(port, 53)).0).collect();
            assert_ne!(one.hash(&keys[0]), other.hash(&keys[0]));
            // Both halves are used separately: one selects the bucket, the other is the tag.
            for shift in [0, 32, 48] {
                let mut parts: Vec<u64> = keys.iter().map(|key| one.hash(key) >> shift & 0xffff).collect();
                parts.sort_unstable();
                parts.dedup();
                assert!((4650..4950).contains(&parts.len()), "{} of 5000 at random are 4,816", parts.len());
            }
        }
    }

    #[test]
    fn every_word_of_a_key_counts_in_its_hash() {
        let hasher = KeyHasher::new(&RandomState::with_seeds(1, 2, 3, 4));
        let key = Key::of(ip("fd00::1"), ip("fd00::2"), 17, Ports::Pair(1, 2)).0;
        for bit in 0..320 {
            let mut other = key;
            match bit / 64 {
                4 => other.rest ^= 1 << (bit % 64) & !kind::V6,
                word => other.addresses[word] ^= 1 << (bit % 64),
            }
            assert!(other == key || hasher.hash(&other) != hasher.hash(&key), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn conversations_that_differ_have_keys_that_differ(
            a in (0u8..3, 0u8..3, 0u8..3, 0u16..3, 0u16..3), b in (0u8..3, 0u8..3, 0u8..3, 0u16..3, 0u16..3),
        ) {
            let key = |(src, dst, protocol, sport, dport): (u8, u8, u8, u16, u16)| {
                Key::of([10, 0, 0, src].into(), [10, 0, 0, dst].into(), protocol, Ports::Pair(sport, dport)).0
            };
            let same = a == b || (a.0, a.1, a.2, a.3, a.4) == (b.1, b.0, b.2, b.4, b.3);
            prop_assert_eq!(key(a) == key(b), same);
        }
    }
}
