//! Finds the fields that a translation changes, by parsing all headers of a packet.

use std::net::IpAddr;

use bulkhead_classifier::protocol;

use super::{PORTS_LEN, replace, updated};
use crate::flow::Translation;
use crate::packet::Ends;
use crate::wire::{checksum, icmpv4, icmpv6, ipv4, ipv6, tcp, udp, word};

/// Sizes of the SCTP common header (RFC 9260 §3.1).
mod sctp {
    /// Length of the common header in bytes: ports, verification tag, checksum.
    pub(super) const HEADER_LEN: usize = 12;
    pub(super) const CHECKSUM: usize = 8;
}

/// The parts of a transport header that a translation changes.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Number of bytes of the header that must be present.
    len: usize,
    numbers: Numbers,
    checksum: Checksum,
}

/// The kind of port fields in a transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    None,
    /// Two ports at the start of the header.
    Ports,
    /// The identifier of an ICMP echo, used as the source port.
    Identifier,
}

impl Numbers {
    /// Returns the byte range of the port fields in the header.
    const fn range(self) -> std::ops::Range<usize> {
        match self {
            Self::None => 0..0,
            Self::Ports => 0..PORTS_LEN,
            Self::Identifier => IDENTIFIER..IDENTIFIER + 2,
        }
    }
}

/// Offset of the identifier in ICMP and ICMPv6 echoes (RFC 792, RFC 4443 §4.1).
const IDENTIFIER: usize = 4;

/// The kind of checksum in a transport header, with its offset in bytes.
#[derive(Clone, Copy, Debug)]
enum Checksum {
    /// No checksum, or one over fields that translation does not change.
    None,
    /// The checksum of RFC 1071, over pseudo-header and transport packet.
    Sum(usize),
    /// The checksum of RFC 1071 over the transport packet only.
    SumAlone(usize),
    /// CRC-32C over the transport packet.
    Crc(usize),
}

impl Shape {
    const TCP: Self = Self::new(tcp::MIN_HEADER_LEN, Numbers::Ports, Checksum::Sum(tcp::field::CHECKSUM));
    const UDP: Self = Self::new(udp::HEADER_LEN, Numbers::Ports, Checksum::Sum(udp::field::CHECKSUM));
    const SCTP: Self = Self::new(sctp::HEADER_LEN, Numbers::Ports, Checksum::Crc(sctp::CHECKSUM));
    const ECHO: Self = Self::new(IDENTIFIER + 2, Numbers::Identifier, Checksum::SumAlone(icmpv4::field::CHECKSUM));
    const ECHO_V6: Self = Self::new(IDENTIFIER + 2, Numbers::Identifier, Checksum::Sum(icmpv6::field::CHECKSUM));
    /// Any other ICMPv6 message. Only type, code and checksum are required, because some messages have nothing else.
    const ICMPV6: Self = Self::new(4, Numbers::None, Checksum::Sum(icmpv6::field::CHECKSUM));
    const OPAQUE: Self = Self::new(0, Numbers::None, Checksum::None);

    const fn new(len: usize, numbers: Numbers, checksum: Checksum) -> Self {
        Self { len, numbers, checksum }
    }

    /// Returns the shape of this protocol's header. `kind` is the first byte of the transport packet, the type of an ICMP message. Without
    /// it the packet may be an echo whose identifier is missing too.
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

/// Offsets of the fields that a translation changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) is_v4: bool,
    pub(super) protocol: u8,
    /// Whether the packet is a later fragment, without a transport header.
    pub(super) is_later: bool,
    /// Offset of the transport header in bytes.
    pub(super) transport: usize,
    /// Length of the transport packet according to its headers. `None` in a fragment, which does not contain the length of the whole.
    transport_len: Option<usize>,
    shape: Shape,
}

impl Layout {
    /// Returns the layout of a packet of the address's family. `None` if headers before the transport header are incomplete or
    /// inconsistent. The packet may be truncated, as in an ICMP error.
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

    /// Whether `packet` contains all changed fields and their new values are computable.
    pub(super) fn is_complete(&self, packet: &[u8], ports: [u8; PORTS_LEN]) -> bool {
        let header = packet.get(self.transport..).and_then(|rest| rest.get(..self.shape.len));
        header.is_some_and(|header| match self.shape.checksum {
            Checksum::Crc(_) => self.transport_len.is_some() || header.starts_with(&ports),
            _ => true,
        })
    }

    /// Whether `packet` contains the ports or the identifier, if it has any.
    pub(super) fn has_its_ports(&self, packet: &[u8]) -> bool {
        self.shape.numbers == Numbers::None || self.transport + self.shape.numbers.range().end <= packet.len()
    }

    /// Writes the addresses, and the ports and checksums that `packet` contains. A truncated packet, such as one quoted in an ICMP error,
    /// may lack ports and checksums. Returns the [change](checksum::change) of a checksum over the packet.
    ///
    /// # Panics
    /// If the packet does not contain both addresses.
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

    /// Updates the checksum at the start of `bytes` if it is complete. Returns the change of checksums over it.
    fn update_sum(&self, bytes: &mut [u8], covered: u64) -> u64 {
        let Some(&found) = bytes.first_chunk() else { return 0 };
        let sum = updated(self.protocol, u16::from_be_bytes(found), covered);
        replace(bytes, 0, &sum.to_be_bytes())
    }

    /// Like [`Layout::update_sum`], for a CRC, if its change is computable. `difference` is the exclusive-or of old and new ports.
    fn update_crc(&self, bytes: &mut [u8], difference: [u8; PORTS_LEN]) -> u64 {
        let (Some(&found), Some(len)) = (bytes.first_chunk(), self.transport_len) else { return 0 };
        let crc = u32::from_le_bytes(found) ^ checksum::crc32c_change(difference, len);
        replace(bytes, 0, &crc.to_le_bytes())
    }
}

/// Two addresses as bytes of a header, source first.
pub(super) enum Addresses {
    V4([u8; 8]),
    V6([u8; 32]),
}

impl Addresses {
    /// Creates the pair of addresses. `None` if the addresses are of different families.
    pub(super) fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        let ends = Ends::of(&Translation { src, dst, sport: 0, dport: 0 })?;
        Some(if ends.is_v6() { Self::V6(ends.addresses_v6()) } else { Self::V4(ends.addresses_v4()) })
    }

    /// Returns the offset of the addresses in the IP header, and their bytes.
    pub(super) const fn in_header(&self) -> (usize, &[u8]) {
        match self {
            Self::V4(octets) => (ipv4::field::SOURCE.start, octets),
            Self::V6(octets) => (ipv6::field::SOURCE.start, octets),
        }
    }
}
