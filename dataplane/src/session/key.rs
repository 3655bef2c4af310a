//! The key under which both directions of a conversation are found.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use crate::packet::Ports;

/// Two endpoints, lower one first, and what tells their conversations apart. Equal for both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    // Halves and not u128: that would align the key, and with it every entry of the slab, to 16 bytes.
    low: [u64; 2],
    high: [u64; 2],
    low_port: u16,
    high_port: u16,
    protocol: u8,
    kind: u8,
}

/// Bits of [`Key::kind`]. An IPv4 address and the IPv6 address that maps it are different endpoints.
mod kind {
    pub(super) const V6: u8 = 1;
    /// Echo: which endpoint sends the requests. Without it a ping from the other side with the same identifier would
    /// pass as the reply to this side's ping.
    pub(super) const LOW_PINGS: u8 = 2;
    pub(super) const HIGH_PINGS: u8 = 4;
}

impl Key {
    /// The key of a packet, and whether the packet goes from the lower endpoint to the higher one.
    pub(crate) fn of(src: IpAddr, dst: IpAddr, protocol: u8, ports: Ports) -> (Self, bool) {
        let family = if src.is_ipv6() { kind::V6 } else { 0 };
        let (src, dst) = (bits(src), bits(dst));
        let (sport, dport) = match ports {
            Ports::Pair(sport, dport) => (sport, dport),
            Ports::EchoRequest(id) | Ports::EchoReply(id) => (id, id),
            Ports::None => (0, 0),
        };
        let from_low = match ports {
            // A ping to oneself: only the type says which way a packet goes.
            Ports::EchoReply(_) if src == dst => false,
            _ => (src, sport) <= (dst, dport),
        };
        let echo = match ports {
            Ports::EchoRequest(_) if from_low => kind::LOW_PINGS,
            Ports::EchoRequest(_) => kind::HIGH_PINGS,
            Ports::EchoReply(_) if from_low => kind::HIGH_PINGS,
            Ports::EchoReply(_) => kind::LOW_PINGS,
            Ports::Pair(..) | Ports::None => 0,
        };
        let (low, high, low_port, high_port) =
            if from_low { (src, dst, sport, dport) } else { (dst, src, dport, sport) };
        (Self { low, high, low_port, high_port, protocol, kind: family | echo }, from_low)
    }
}

/// The address as two halves; families are told apart by [`kind::V6`].
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

impl Hash for Key {
    /// Five words instead of nine fields: this runs for every packet.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ports = u64::from(self.low_port) << 32 | u64::from(self.high_port) << 16;
        for word in [self.low[0], self.low[1], self.high[0], self.high[1]] {
            state.write_u64(word);
        }
        state.write_u64(ports | u64::from(self.protocol) << 8 | u64::from(self.kind));
    }
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
