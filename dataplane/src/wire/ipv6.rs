//! IPv6 (RFC 8200): header, extension headers, and addresses derived from others.

use std::net::Ipv6Addr;

use super::ethernet::Mac;
use super::{WireError, set_word, word};

/// Length in bytes of the header.
pub const HEADER_LEN: usize = 40;
/// MTU that every link supports (RFC 8200 §5).
pub const MIN_MTU: usize = 1280;

/// Multicast address of all nodes on the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Byte offsets in the header.
pub(crate) mod field {
    use std::ops::Range;

    pub(crate) const VERSION: usize = 0;
    pub(crate) const PAYLOAD_LEN: usize = 4;
    pub(crate) const NEXT_HEADER: usize = 6;
    pub(crate) const HOP_LIMIT: usize = 7;
    pub(crate) const SOURCE: Range<usize> = 8..24;
    pub(crate) const DESTINATION: Range<usize> = 24..40;
}

/// Next header values of extension headers. Source: IANA "IPv6 Extension Header Types".
pub mod extension {
    /// Hop-by-hop options header: options for all routers on the path.
    pub const HOP_BY_HOP: u8 = 0;
    /// Routing header: nodes that the packet must visit.
    pub const ROUTING: u8 = 43;
    /// Fragment header: position of the packet's payload in its datagram.
    pub const FRAGMENT: u8 = 44;
    /// Authentication header (RFC 4302).
    pub const AUTHENTICATION: u8 = 51;
    /// Destination options header: options for the destination.
    pub const DESTINATION: u8 = 60;
}

/// Bits of the fragment header's offset and flag field.
pub mod fragment {
    /// More fragments follow.
    pub const MORE_FRAGMENTS: u16 = 1;
    /// Fragment offset, in bytes.
    pub const OFFSET: u16 = 0xfff8;
}

/// Returns the link-local address derived from a MAC address (RFC 4291 appendix A).
pub const fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Returns an address's solicited-node multicast address: ff02::1:ff and the last three bytes (RFC 4291 §2.7.1).
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let octets = address.octets();
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    (group[13], group[14], group[15]) = (octets[13], octets[14], octets[15]);
    Ipv6Addr::from_octets(group)
}

/// Returns the MAC address of a multicast address (RFC 2464 §7).
pub const fn group_mac(group: Ipv6Addr) -> Mac {
    let octets = group.octets();
    [0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]
}

/// A packet with a complete header.
#[derive(Clone, Copy, Debug)]
pub struct Packet<T>(T);

impl<T: AsRef<[u8]>> Packet<T> {
    /// Checks that the header is complete and has version 6. The payload may be incomplete.
    ///
    /// # Errors
    /// [`WireError`]
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        let header = bytes.as_ref();
        if header.len() < HEADER_LEN {
            return Err(WireError::Truncated { protocol: "IPv6" });
        }
        if header[field::VERSION] >> 4 != 6 {
            return Err(WireError::Malformed { protocol: "IPv6" });
        }
        Ok(Self(bytes))
    }

    /// Returns the payload length field: bytes after the fixed header.
    pub fn payload_len(&self) -> usize {
        usize::from(word(self.0.as_ref(), field::PAYLOAD_LEN))
    }

    /// Returns the length of fixed header and payload in bytes, by the payload length field.
    pub fn total_len(&self) -> usize {
        HEADER_LEN + self.payload_len()
    }

    /// Type of the next header, see [`super::protocol`] and [`extension`].
    pub fn next_header(&self) -> u8 {
        self.0.as_ref()[field::NEXT_HEADER]
    }

    /// Hop limit: how many routers may still forward the packet.
    pub fn hop_limit(&self) -> u8 {
        self.0.as_ref()[field::HOP_LIMIT]
    }

    fn address(&self, at: std::ops::Range<usize>) -> Ipv6Addr {
        <[u8; 16]>::try_from(&self.0.as_ref()[at]).expect("the range is sixteen bytes long").into()
    }

    /// Source address.
    pub fn source(&self) -> Ipv6Addr {
        self.address(field::SOURCE)
    }

    /// Destination address.
    pub fn destination(&self) -> Ipv6Addr {
        self.address(field::DESTINATION)
    }

    /// Returns the payload without padding. Shorter than [`payload_len`](Self::payload_len) if bytes are missing.
    pub fn payload(&self) -> &[u8] {
        let bytes = self.0.as_ref();
        &bytes[HEADER_LEN..self.total_len().min(bytes.len())]
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// Returns the header after the extension headers. `None` if an extension header is incomplete, if the packet has two fragment headers,
    /// or if a routing header has segments left, because the destination is then not final.
    pub fn upper_layer(&self) -> Option<UpperLayer> {
        let bytes = self.0.as_ref();
        let mut found = UpperLayer { protocol: self.next_header(), at: HEADER_LEN, fragment_word: None };
        loop {
            let len = match (found.protocol, bytes.get(found.at..)?) {
                // The length counts units of eight bytes, minus 1.
                (extension::HOP_BY_HOP | extension::DESTINATION, &[_, len, ..]) => (usize::from(len) + 1) * 8,
                (extension::ROUTING, &[_, len, _, 0, ..]) => (usize::from(len) + 1) * 8,
                // The length counts units of four bytes, minus 2.
                (extension::AUTHENTICATION, &[_, len, ..]) => (usize::from(len) + 2) * 4,
                (extension::FRAGMENT, &[_, _, high, low, ..]) if found.fragment_word.is_none() => {
                    found.fragment_word = Some(u16::from_be_bytes([high, low]));
                    8
                }
                (
                    extension::HOP_BY_HOP
                    | extension::DESTINATION
                    | extension::ROUTING
                    | extension::AUTHENTICATION
                    | extension::FRAGMENT,
                    _,
                ) => return None,
                _ => return Some(found),
            };
            found.protocol = bytes[found.at];
            found.at += len;
            if found.fragment_word.is_some_and(|word| word & fragment::OFFSET != 0) {
                // The rest is part of the datagram's payload, without a header.
                return (found.at <= bytes.len()).then_some(found);
            }
        }
    }
}

/// The header after a packet's extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpperLayer {
    /// Type of the first header that is not an extension header, see [`super::protocol`].
    pub protocol: u8,
    /// Byte offset of that header in the packet. In a later fragment, the offset of the fragment's data.
    pub at: usize,
    /// Offset and flag of the fragment header, see [`fragment`]. `None` if the packet has no fragment header.
    pub fragment_word: Option<u16>,
}

/// A header with traffic class and flow label 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Type of the next header, see [`super::protocol`] and [`extension`].
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Length in bytes of the payload.
    pub payload_len: usize,
}

impl Repr {
    /// Writes the header. Returns the bytes after it.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`HEADER_LEN`], or the payload longer than 65,535 bytes.
    pub fn emit<'a>(&self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let (header, payload) = bytes.split_at_mut(HEADER_LEN);
        header[..field::PAYLOAD_LEN].copy_from_slice(&[0x60, 0, 0, 0]);
        let payload_len = u16::try_from(self.payload_len).expect("a payload has at most 65,535 bytes");
        set_word(header, field::PAYLOAD_LEN, payload_len);
        header[field::NEXT_HEADER] = self.next_header;
        header[field::HOP_LIMIT] = self.hop_limit;
        header[field::SOURCE].copy_from_slice(&self.source.octets());
        header[field::DESTINATION].copy_from_slice(&self.destination.octets());
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::Ipv6HeaderSlice;

    #[test]
    fn what_is_written_is_read_again_here_and_by_etherparse() {
        let (source, destination) = ("fd00::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let repr = Repr { source, destination, next_header: 17, hop_limit: 63, payload_len: 5 };
        let mut bytes = [0xaa; 50];
        repr.emit(&mut bytes);
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!((packet.source(), packet.destination()), (source, destination));
        assert_eq!((packet.next_header(), packet.hop_limit()), (17, 63));
        assert_eq!((packet.payload_len(), packet.total_len(), packet.payload()), (5, 45, &[0xaa; 5][..]));
        let header = Ipv6HeaderSlice::from_slice(&bytes).unwrap().to_header();
        assert_eq!((header.source_addr(), header.destination_addr()), (source, destination));
        assert_eq!((header.next_header.0, header.hop_limit, header.payload_length), (17, 63, 5));
        assert_eq!((header.traffic_class, header.flow_label.value()), (0, 0));
    }

    #[test]
    fn a_header_that_is_cut_short_or_of_another_version_is_an_error() {
        for len in 0..HEADER_LEN {
            assert_eq!(Packet::new_checked(vec![0x60; len]).unwrap_err(), WireError::Truncated { protocol: "IPv6" });
        }
        assert_eq!(Packet::new_checked([0x45; 60]).unwrap_err(), WireError::Malformed { protocol: "IPv6" });
    }

    #[test]
    fn derived_addresses_are_those_of_the_rfcs() {
        assert_eq!(link_local([0x02, 0x00, 0x5e, 0x10, 0x00, 0x01]).to_string(), "fe80::5eff:fe10:1");
        let group = solicited_node("fd00::12:3456".parse().unwrap());
        assert_eq!(group.to_string(), "ff02::1:ff12:3456");
        assert_eq!(group_mac(group), [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
    }

    /// Builds a packet with extension headers of these types and 8 bytes each, and 8 bytes of payload.
    fn behind(types: &[u8], next_header: u8) -> Vec<u8> {
        let mut payload = vec![];
        for following in types.iter().skip(1).chain([&next_header]) {
            payload.extend([*following, 0, 0, 0, 0, 0, 0, 9]);
        }
        payload.extend([7; 8]);
        let first = types.first().copied().unwrap_or(next_header);
        let (source, destination) = (ALL_NODES, ALL_NODES);
        let repr = Repr { source, destination, next_header: first, hop_limit: 1, payload_len: payload.len() };
        let mut bytes = vec![0; HEADER_LEN + payload.len()];
        repr.emit(&mut bytes).copy_from_slice(&payload);
        bytes
    }

    fn upper_layer(bytes: &[u8]) -> Option<UpperLayer> {
        Packet::new_checked(bytes).unwrap().upper_layer()
    }

    #[test]
    fn what_extension_headers_lead_to_is_found_unless_they_are_cut_short() {
        for types in [&[][..], &[0], &[60, 43, 60], &[0, 43, 44, 60]] {
            let bytes = behind(types, 17);
            let at = HEADER_LEN + types.len() * 8;
            let fragment_word = types.contains(&44).then_some(0);
            assert_eq!(upper_layer(&bytes), Some(UpperLayer { protocol: 17, at, fragment_word }), "{types:?}");
            for len in HEADER_LEN..at {
                assert_eq!(upper_layer(&bytes[..len]), None, "{len}");
            }
            assert_eq!(
                upper_layer(&bytes[..at]).map(|found| found.at),
                Some(at),
                "of the header itself nothing is read"
            );
        }
        // Headers of 16 bytes, with their two units of length.
        for (kind, len) in [(extension::AUTHENTICATION, 2), (extension::DESTINATION, 1)] {
            let mut bytes = behind(&[kind, 59], 59);
            (bytes[HEADER_LEN], bytes[HEADER_LEN + 1]) = (6, len);
            let found = UpperLayer { protocol: 6, at: HEADER_LEN + 16, fragment_word: None };
            assert_eq!(upper_layer(&bytes), Some(found), "{kind}");
        }
    }

    #[test]
    fn behind_a_later_fragments_header_nothing_is_read() {
        let mut bytes = behind(&[44], extension::DESTINATION);
        (bytes[HEADER_LEN + 2], bytes[HEADER_LEN + 3]) = (0x12, 0x39);
        let found = UpperLayer { protocol: extension::DESTINATION, at: HEADER_LEN + 8, fragment_word: Some(0x1239) };
        assert_eq!(upper_layer(&bytes), Some(found));
        assert_eq!(upper_layer(&bytes[..HEADER_LEN + 7]), None);
    }

    #[test]
    fn two_fragment_headers_and_a_route_with_nodes_left_lead_nowhere() {
        assert_eq!(upper_layer(&behind(&[44, 44], 17)), None);
        let mut bytes = behind(&[43], 17);
        bytes[HEADER_LEN + 3] = 1;
        assert_eq!(upper_layer(&bytes), None);
    }
}
