//! A packet's addresses and ports, as words in the order of its headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::filter::Pair;
use crate::flow::Translation;

/// A packet's addresses and ports, source first.
///
/// ```text
///             addresses                                                  rest
///   IPv4      source << 32 | destination    0      0            0        source port << 48 | destination port << 32
///   IPv6      source                        ..     destination  ..       the same, and 1
/// ```
/// All words have the same size, because the value is copied for each translated packet. Reading a word that was just written in another
/// size stalls the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    addresses: [u64; 4],
    rest: u64,
}

const V6: u64 = 1;

impl Ends {
    /// Creates the ends of an IPv4 packet. The upper half of `ports` is the source port.
    #[inline]
    pub(crate) const fn v4(source_and_destination: u64, ports: u32) -> Self {
        Self { addresses: [source_and_destination, 0, 0, 0], rest: (ports as u64) << 32 }
    }

    /// Creates the ends of an IPv6 packet. Each address has its high half first.
    #[inline]
    pub(crate) const fn v6(src: [u64; 2], dst: [u64; 2], ports: u32) -> Self {
        Self { addresses: [src[0], src[1], dst[0], dst[1]], rest: (ports as u64) << 32 | V6 }
    }

    /// Returns a translation's addresses and ports. `None` if the address families differ.
    pub(crate) fn of(to: &Translation) -> Option<Self> {
        let ports = u32::from(to.sport) << 16 | u32::from(to.dport);
        match (to.src, to.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Some(Self::v4(u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()), ports))
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::v6(halves(src), halves(dst), ports)),
            _ => None,
        }
    }

    #[inline]
    pub(crate) const fn is_v6(&self) -> bool {
        self.rest & V6 != 0
    }

    /// Returns both ends in the form that filters test, for a packet of this protocol.
    #[inline]
    pub(crate) const fn pair(&self, protocol: u8) -> Pair<'_> {
        Pair { addresses: &self.addresses, rest: self.rest | (protocol as u64) << Pair::PROTOCOL }
    }

    /// Returns source and destination address as in an IPv4 header. Meaningless for IPv6.
    #[inline]
    pub(crate) const fn addresses_v4(&self) -> [u8; 8] {
        self.addresses[0].to_be_bytes()
    }

    /// Returns source and destination address as in an IPv6 header. Meaningless for IPv4.
    #[inline]
    pub(crate) fn addresses_v6(&self) -> [u8; 32] {
        zerocopy::transmute!(self.addresses.map(u64::to_be_bytes))
    }

    /// Returns source and destination port as in the first four bytes of a transport header.
    #[inline]
    pub(crate) const fn ports(&self) -> [u8; 4] {
        ((self.rest >> 32) as u32).to_be_bytes()
    }

    pub(crate) fn translation(&self) -> Translation {
        let [a, b, c, d] = self.addresses;
        let (src, dst) = if self.is_v6() {
            let address = |high, low| IpAddr::V6(Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)));
            (address(a, b), address(c, d))
        } else {
            let [s0, s1, s2, s3, d0, d1, d2, d3] = self.addresses_v4();
            (Ipv4Addr::new(s0, s1, s2, s3).into(), Ipv4Addr::new(d0, d1, d2, d3).into())
        };
        let [s0, s1, d0, d1] = self.ports();
        Translation { src, dst, sport: u16::from_be_bytes([s0, s1]), dport: u16::from_be_bytes([d0, d1]) }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is what is wanted")]
const fn halves(address: Ipv6Addr) -> [u64; 2] {
    let bits = address.to_bits();
    [(bits >> 64) as u64, bits as u64]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_the_translation_that_they_are_made_of() {
        for (src, dst) in
            [("10.0.0.1", "192.0.2.254"), ("2001:db8::1", "fd00:1:2:3:4:5:6:7"), ("::ffff:10.0.0.1", "::")]
        {
            let to = Translation { src: src.parse().unwrap(), dst: dst.parse().unwrap(), sport: 40_000, dport: 53 };
            let ends = Ends::of(&to).unwrap();
            assert_eq!((ends.translation(), ends.is_v6()), (to, src.contains(':')));
        }
    }

    #[test]
    fn addresses_of_two_families_are_no_ends() {
        let (src, dst) = ("10.0.0.1".parse().unwrap(), "::ffff:10.0.0.2".parse().unwrap());
        assert_eq!(Ends::of(&Translation { src, dst, sport: 1, dport: 2 }), None);
    }

    #[test]
    fn bytes_are_those_of_the_headers() {
        let ends = Ends::v4(0x0a00_0001_c000_02fe, 0x9c40_0035);
        assert_eq!((ends.addresses_v4(), ends.ports()), ([10, 0, 0, 1, 192, 0, 2, 254], [0x9c, 0x40, 0, 53]));
        let ends = Ends::v6([0x2001_0db8_0000_0000, 1], [0xfd00_0001_0002_0003, 0x0004_0005_0006_0007], 0);
        let [src, dst] = ["2001:db8::1", "fd00:1:2:3:4:5:6:7"].map(|text| text.parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(ends.addresses_v6(), *[src, dst].concat());
    }
}
