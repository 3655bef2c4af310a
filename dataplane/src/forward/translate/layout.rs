//! Where packets have what a translation changes, found by reading all their headers.

use std::net::IpAddr;

use bulkhead_classifier::protocol;

use super::{PORTS_LEN, replace, updated};
use crate::flow::Translation;
use crate::packet::Ends;
use crate::wire::{checksum, icmpv4, icmpv6, ipv4, ipv6, tcp, udp, word};

/// SCTP (RFC 9260 §3.1).
mod sctp {
    /// Ports, verification tag, checksum.
    pub(super) const HEADER_LEN: usize = 12;
    pub(super) const CHECKSUM: usize = 8;
}

/// What a translation changes of a transport header.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Bytes that have to be there.
    len: usize,
    numbers: Numbers,
    checksum: Checksum,
}

/// What tells conversations apart in a transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    None,
    /// Two ports, with which it begins.
    Ports,
    /// The identifier of an ICMP echo, which stands in for the source port.
    Identifier,
}

impl Numbers {
    /// Where they stand.
    const fn range(self) -> std::ops::Range<usize> {
        match self {
            Self::None => 0..0,
            Self::Ports => 0..PORTS_LEN,
            Self::Identifier => IDENTIFIER..IDENTIFIER + 2,
        }
    }
}

/// Where echoes of ICMP and ICMPv6 have their identifier (RFC 792, RFC 4443 §4.1).
const IDENTIFIER: usize = 4;

/// The checksum of a transport header, and where it is.
#[derive(Clone, Copy, Debug)]
enum Checksum {
    /// None, or one over nothing that changes.
    None,
    /// That of RFC 1071, over pseudo-header and transport packet.
    Sum(usize),
    /// The same without a pseudo-header.
    SumAlone(usize),
    /// CRC-32C, over the transport packet.
    Crc(usize),
}

impl Shape {
    const TCP: Self = Self::new(tcp::MIN_HEADER_LEN, Numbers::Ports, Checksum::Sum(tcp::field::CHECKSUM));
    const UDP: Self = Self::new(udp::HEADER_LEN, Numbers::Ports, Checksum::Sum(udp::field::CHECKSUM));
    const SCTP: Self = Self::new(sctp::HEADER_LEN, Numbers::Ports, Checksum::Crc(sctp::CHECKSUM));
    const ECHO: Self = Self::new(IDENTIFIER + 2, Numbers::Identifier, Checksum::SumAlone(icmpv4::field::CHECKSUM));
    const ECHO_V6: Self = Self::new(IDENTIFIER + 2, Numbers::Identifier, Checksum::Sum(icmpv6::field::CHECKSUM));
    /// Type, code and checksum: not all messages have more.
    const ICMPV6: Self = Self::new(4, Numbers::None, Checksum::Sum(icmpv6::field::CHECKSUM));
    const OPAQUE: Self = Self::new(0, Numbers::None, Checksum::None);

    const fn new(len: usize, numbers: Numbers, checksum: Checksum) -> Self {
        Self { len, numbers, checksum }
    }

    /// `kind` is the first byte of the transport packet, which is the type of an ICMP message. One of which that is not there may be an
    /// echo, whose identifier is not there either.
    fn of(protocol: u8, is_v4: bool, kind: Option<u8>) -> Self {
        use icmpv4::kind::{ECHO_REPLY, ECHO_REQUEST};
        match (protocol, kind) {
            (protocol::TCP, _) => Self::TCP,
            (protocol::UDP, _) => Self::UDP,
            (protocol::SCTP, _) => Self::SCTP,
            (protocol::ICMP, None | Some(ECHO_REQUEST | ECHO_REPLY)) if is_v4 => Self::ECHO,
            (protocol::ICMPV6, None | Some(icmpv6::kind::ECHO_REQUEST | icmpv6::kind::ECHO_REPLY)) if !is_v4 => {
                Self::ECHO_V6
            }
            (protocol::ICMPV6, _) if !is_v4 => Self::ICMPV6,
            _ => Self::OPAQUE,
        }
    }
}

/// Where a packet has what a translation changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) is_v4: bool,
    pub(super) protocol: u8,
    /// Whether it is a fragment but the first, without a transport header.
    pub(super) is_later: bool,
    /// Where the transport header begins, in bytes from the start of the packet.
    pub(super) transport: usize,
    /// Bytes from there on, as the packet says itself. None in a fragment, which does not tell how long the whole is.
    transport_len: Option<usize>,
    shape: Shape,
}

impl Layout {
    /// The layout of a packet of the address's family. None when the headers before the transport's are not all there or
    /// contradict each other. The packet itself may be cut short, as one that an ICMP error quotes.
    pub(super) fn of(packet: &[u8], family: IpAddr) -> Option<Self> {
        let (protocol, transport, total_len, is_later, has_more) = match family {
            IpAddr::V4(_) => {
                use ipv4::fragment::{MORE_FRAGMENTS, OFFSET};
                let header = ipv4::Packet::new_checked(packet).ok()?;
                let word = header.fragment_word();
                let (is_later, has_more) = (word & OFFSET != 0, word & MORE_FRAGMENTS != 0);
                (header.protocol(), header.header_len(), header.total_len(), is_later, has_more)
            }
            IpAddr::V6(_) => {
                use ipv6::fragment::{MORE_FRAGMENTS, OFFSET};
                let header = ipv6::Packet::new_checked(packet).ok()?;
                let upper = header.upper_layer()?;
                let word = upper.fragment_word.unwrap_or_default();
                let (is_later, has_more) = (word & OFFSET != 0, word & MORE_FRAGMENTS != 0);
                (upper.protocol, upper.at, header.total_len(), is_later, has_more)
            }
        };
        let is_v4 = family.is_ipv4();
        let transport_len = total_len.checked_sub(transport).filter(|_| !is_later && !has_more);
        let shape = if is_later { Shape::OPAQUE } else { Shape::of(protocol, is_v4, packet.get(transport).copied()) };
        Some(Self { is_v4, protocol, is_later, transport, transport_len, shape })
    }

    /// Whether all that changes is in `packet`, and is known.
    pub(super) fn is_complete(&self, packet: &[u8], ports: [u8; PORTS_LEN]) -> bool {
        let header = packet.get(self.transport..).and_then(|rest| rest.get(..self.shape.len));
        header.is_some_and(|header| match self.shape.checksum {
            Checksum::Crc(_) => self.transport_len.is_some() || header.starts_with(&ports),
            _ => true,
        })
    }

    /// Whether the ports, or the identifier, are in `packet`, if it has any.
    pub(super) fn has_its_ports(&self, packet: &[u8]) -> bool {
        self.shape.numbers == Numbers::None || self.transport + self.shape.numbers.range().end <= packet.len()
    }

    /// Writes addresses, ports and checksums, as far as there is room for them in `packet`, which has its addresses at least.
    /// Returns what that [changes](checksum::change) a checksum over the packet by.
    pub(super) fn translate(&self, packet: &mut [u8], addresses: &Addresses, ports: [u8; PORTS_LEN]) -> u64 {
        let (at, octets) = addresses.in_header();
        let mut covered = replace(packet, at, octets);
        let mut change = covered;
        if self.is_v4 {
            let sum = checksum::updated(word(packet, ipv4::field::CHECKSUM), covered);
            change += replace(packet, ipv4::field::CHECKSUM, &sum.to_be_bytes());
        }
        let header = packet.get_mut(self.transport..).unwrap_or_default();
        let (mut difference, mut numbers) = ([0; PORTS_LEN], 0);
        let range = self.shape.numbers.range();
        if range.end <= header.len() {
            if let Some(&old) = header.first_chunk::<PORTS_LEN>() {
                difference = (u32::from_be_bytes(old) ^ u32::from_be_bytes(ports)).to_be_bytes();
            }
            numbers = replace(header, range.start, &ports[..range.len()]);
            (covered, change) = (covered + numbers, change + numbers);
        }
        match self.shape.checksum {
            Checksum::None => change,
            Checksum::Sum(at) => change + self.update_sum(header.get_mut(at..).unwrap_or_default(), covered),
            Checksum::SumAlone(at) => change + self.update_sum(header.get_mut(at..).unwrap_or_default(), numbers),
            Checksum::Crc(at) => change + self.update_crc(header.get_mut(at..).unwrap_or_default(), difference),
        }
    }

    /// Updates the checksum that `bytes` begins with, if it is all there. Returns what that changes others by.
    fn update_sum(&self, bytes: &mut [u8], covered: u64) -> u64 {
        let Some(&found) = bytes.first_chunk() else { return 0 };
        let sum = updated(self.protocol, u16::from_be_bytes(found), covered);
        replace(bytes, 0, &sum.to_be_bytes())
    }

    /// As [`Layout::update_sum`], for a CRC, if it is known what that becomes. `difference` is the old ports exclusive-or the
    /// new ones.
    fn update_crc(&self, bytes: &mut [u8], difference: [u8; PORTS_LEN]) -> u64 {
        let (Some(&found), Some(len)) = (bytes.first_chunk(), self.transport_len) else { return 0 };
        let crc = u32::from_le_bytes(found) ^ checksum::crc32c_change(difference, len);
        replace(bytes, 0, &crc.to_le_bytes())
    }
}

/// Two addresses as they stand in a header, the source first.
pub(super) enum Addresses {
    V4([u8; 8]),
    V6([u8; 32]),
}

impl Addresses {
    /// None when they are of two families.
    pub(super) fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        let ends = Ends::of(&Translation { src, dst, sport: 0, dport: 0 })?;
        Some(if ends.is_v6() { Self::V6(ends.addresses_v6()) } else { Self::V4(ends.addresses_v4()) })
    }

    /// Where they stand, and their bytes.
    pub(super) const fn in_header(&self) -> (usize, &[u8]) {
        match self {
            Self::V4(octets) => (ipv4::field::SOURCE.start, octets),
            Self::V6(octets) => (ipv6::field::SOURCE.start, octets),
        }
    }
}
