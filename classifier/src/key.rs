//! The fields of a packet that rules match.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IANA protocol numbers that rules often name. Source: IANA "Assigned Internet Protocol Numbers".
pub mod protocol {
    /// ICMP for IPv4 (RFC 792).
    pub const ICMP: u8 = 1;
    /// TCP (RFC 9293).
    pub const TCP: u8 = 6;
    /// UDP (RFC 768).
    pub const UDP: u8 = 17;
    /// ICMP for IPv6 (RFC 4443).
    pub const ICMPV6: u8 = 58;
    /// SCTP (RFC 9260).
    pub const SCTP: u8 = 132;
}

/// The classifier's view of a packet: addresses, protocol number and ports in host byte order.
///
/// Ports are 0 for protocols without ports. For ICMP the two port fields can hold type and code.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The address as a number, high half first. An IPv4 address is in the low 32 bits.
    src: [u64; 2],
    dst: [u64; 2],
    src_port: u16,
    dst_port: u16,
    protocol: u8,
    /// Bit 0: the source is IPv6; bit 1: the destination is. An IPv4-mapped IPv6 address is IPv6.
    family: u8,
}

impl Key {
    /// Makes a key. Ports are in host byte order, 0 for protocols without ports.
    pub const fn new(src: IpAddr, dst: IpAddr, protocol: u8, src_port: u16, dst_port: u16) -> Self {
        let (src, src_v6) = halves(src);
        let (dst, dst_v6) = halves(dst);
        Self { src, dst, src_port, dst_port, protocol, family: src_v6 as u8 | (dst_v6 as u8) << 1 }
    }

    /// Returns the source address.
    pub const fn src(&self) -> IpAddr {
        address(self.src, self.family & 1 != 0)
    }

    /// Returns the destination address.
    pub const fn dst(&self) -> IpAddr {
        address(self.dst, self.family & 2 != 0)
    }

    /// Returns the IANA protocol number.
    #[inline]
    pub const fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Returns the source port, 0 for protocols without ports.
    #[inline]
    pub const fn src_port(&self) -> u16 {
        self.src_port
    }

    /// Returns the destination port, 0 for protocols without ports.
    #[inline]
    pub const fn dst_port(&self) -> u16 {
        self.dst_port
    }

    /// Returns the family of both addresses: [`Key::V4`], [`Key::V6`], or another number if they differ.
    #[inline]
    pub(crate) const fn family(&self) -> u8 {
        self.family
    }

    /// The family number of keys with two IPv4 addresses. Zero, so that one OR checks the families of many keys.
    pub(crate) const V4: u8 = 0;
    /// The family number of keys with two IPv6 addresses.
    pub(crate) const V6: u8 = 3;

    /// Returns the bits of both addresses, high half first.
    #[inline]
    pub(crate) const fn bits(&self) -> ([u64; 2], [u64; 2]) {
        (self.src, self.dst)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half")]
const fn halves(address: IpAddr) -> ([u64; 2], bool) {
    match address {
        IpAddr::V4(a) => ([0, a.to_bits() as u64], false),
        IpAddr::V6(a) => {
            let bits = a.to_bits();
            ([(bits >> 64) as u64, bits as u64], true)
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "an IPv4 address sits in the low 32 bits")]
const fn address(bits: [u64; 2], v6: bool) -> IpAddr {
    if v6 {
        IpAddr::V6(Ipv6Addr::from_bits((bits[0] as u128) << 64 | bits[1] as u128))
    } else {
        IpAddr::V4(Ipv4Addr::from_bits(bits[1] as u32))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("src", &self.src())
            .field("dst", &self.dst())
            .field("protocol", &self.protocol)
            .field("src_port", &self.src_port)
            .field("dst_port", &self.dst_port)
            .finish()
    }
}
