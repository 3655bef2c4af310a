//! IPv6 (RFC 8200): the header and the chain of extension headers.

use std::net::{IpAddr, Ipv6Addr};

use super::transport::{self, Segment};
use super::{Bytes, Fragment, Ip, Transport};
use crate::wire::ipv6::field;
use crate::{DropReason, Flow};

pub(super) use crate::wire::ipv6::HEADER_LEN;

/// The most extension headers that are walked. RFC 8504 §5.3 lets a node set a limit and names 8 as its example; real
/// packets have at most three.
pub(super) const MAX_EXTENSIONS: usize = 8;

/// Next header values of extension headers. Source: IANA "IPv6 Extension Header Types".
mod next_header {
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const AUTHENTICATION: u8 = 51;
    pub(super) const DESTINATION: u8 = 60;
}

/// The fixed header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) payload_len: usize,
    pub(super) next_header: u8,
    pub(super) hop_limit: u8,
    pub(super) src: Ipv6Addr,
    pub(super) dst: Ipv6Addr,
}

/// Reads the fixed header; none when it is cut short or the version is wrong.
pub(super) fn header(bytes: &[u8]) -> Option<Header> {
    let fixed = bytes.first_chunk::<HEADER_LEN>()?;
    if fixed[0] >> 4 != 6 {
        return None;
    }
    let address = |at: usize| {
        let octets: [u8; 16] = fixed[at..at + 16].try_into().expect("the range is 16 bytes long");
        Ipv6Addr::from(octets)
    };
    Some(Header {
        payload_len: usize::from(u16::from_be_bytes([fixed[field::PAYLOAD_LEN], fixed[field::PAYLOAD_LEN + 1]])),
        next_header: fixed[field::NEXT_HEADER],
        hop_limit: fixed[field::HOP_LIMIT],
        src: address(8),
        dst: address(24),
    })
}

/// What the chain of extension headers leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain<'a> {
    /// The first header that is not an extension header.
    pub(super) protocol: u8,
    /// Its bytes and those that follow.
    pub(super) payload: Bytes<'a>,
    /// The part of a datagram that the packet holds; none for a whole one.
    pub(super) fragment: Option<Fragment>,
    /// Whether there is a fragment header, be it an atomic one.
    pub(super) has_fragment_header: bool,
}

/// Why a chain does not lead to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainError {
    /// A header reaches past the packet's end, as it was on the wire.
    CutShort {
        /// Whether the packet is a first fragment: then the rest of the chain may be in the next one.
        in_first_fragment: bool,
    },
    /// Anything else.
    Refused(DropReason),
}

/// Walks the extension headers of `payload`, which begins with a header of type `next`.
pub(super) fn walk(mut next: u8, payload: Bytes<'_>) -> Result<Chain<'_>, ChainError> {
    let mut chain = Chain { protocol: next, payload, fragment: None, has_fragment_header: false };
    for position in 0..=MAX_EXTENSIONS {
        let cut_short = ChainError::CutShort { in_first_fragment: chain.fragment.is_some() };
        chain.protocol = next;
        let length_unit = match next {
            // RFC 8200 §4.1: hop-by-hop options stand only right behind the fixed header.
            next_header::HOP_BY_HOP if position > 0 => return Err(ChainError::Refused(DropReason::Ipv6Malformed)),
            next_header::HOP_BY_HOP | next_header::ROUTING | next_header::DESTINATION => 8,
            // RFC 4302 §2.2: in words of 4 bytes, minus 2; its fixed fields alone are three words.
            next_header::AUTHENTICATION => 4,
            next_header::FRAGMENT => {
                next = chain.enter_fragment(cut_short)?;
                if chain.fragment.is_some_and(|part| !part.is_first()) {
                    // What follows is the middle of something, not a header.
                    chain.protocol = next;
                    return Ok(chain);
                }
                continue;
            }
            _ => return Ok(chain),
        };
        if position == MAX_EXTENSIONS {
            break;
        }
        let &[following, length, kind, left, ..] = chain.payload.seen else { return Err(cut_short) };
        if next == next_header::ROUTING && is_source_route(kind, left) {
            return Err(ChainError::Refused(DropReason::SourceRouted));
        }
        if next == next_header::AUTHENTICATION && length == 0 {
            return Err(ChainError::Refused(DropReason::Ipv6Malformed));
        }
        let len = if length_unit == 8 { (usize::from(length) + 1) * 8 } else { (usize::from(length) + 2) * 4 };
        chain.payload = chain.payload.skip(len).ok_or(cut_short)?;
        next = following;
    }
    Err(ChainError::Refused(DropReason::Ipv6ExtensionLimit))
}

/// Type 0 is refused whatever it says (RFC 5095). Any other type that still has segments left changes the destination
/// further on, to one that policy has not seen.
fn is_source_route(kind: u8, segments_left: u8) -> bool {
    kind == 0 || segments_left > 0
}

impl Chain<'_> {
    /// Reads a fragment header and steps behind it. Returns the type of the header that follows.
    fn enter_fragment(&mut self, cut_short: ChainError) -> Result<u8, ChainError> {
        const FRAGMENT_HEADER_LEN: usize = 8;
        let malformed = ChainError::Refused(DropReason::FragmentMalformed);
        if self.has_fragment_header {
            return Err(malformed);
        }
        let header = *self.payload.seen.first_chunk::<FRAGMENT_HEADER_LEN>().ok_or(cut_short)?;
        self.payload = self.payload.skip(FRAGMENT_HEADER_LEN).ok_or(cut_short)?;
        self.has_fragment_header = true;
        let offset_and_more = u16::from_be_bytes([header[2], header[3]]);
        let (start, more) = (u32::from(offset_and_more & !7), offset_and_more & 1 != 0);
        if start > 0 || more {
            let len = u32::try_from(self.payload.wire_len).map_err(|_| malformed)?;
            // As for IPv4: empty parts, parts that leave a gap of odd bytes, and parts past the largest payload.
            if len == 0 || (more && !len.is_multiple_of(8)) || start + len > u32::from(u16::MAX) {
                return Err(malformed);
            }
            let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
            self.fragment = Some(Fragment { id, start, end: start + len, more });
        }
        Ok(header[0])
    }
}

/// Parses a packet; what follows its payload length is padding of the link layer.
pub(super) fn parse(packet: Bytes<'_>, flow: &mut Option<Flow>) -> Result<Ip, DropReason> {
    let header = header(packet.seen).ok_or(DropReason::Ipv6Malformed)?;
    let (src, dst) = (IpAddr::V6(header.src), IpAddr::V6(header.dst));
    let mut parsed = Flow { src, dst, protocol: header.next_header, sport: 0, dport: 0, icmp: None };
    *flow = Some(parsed);
    // RFC 2675: a jumbogram says 0 here and its length in a hop-by-hop option.
    if header.payload_len == 0 && header.next_header == next_header::HOP_BY_HOP {
        return Err(DropReason::Ipv6Jumbogram);
    }
    let payload = packet
        .skip(HEADER_LEN)
        .and_then(|payload| payload.take(header.payload_len))
        .ok_or(DropReason::Ipv6Malformed)?;
    let chain = walk(header.next_header, payload).map_err(|error| match error {
        // RFC 7112: the first fragment must hold the whole chain.
        ChainError::CutShort { in_first_fragment: true } => DropReason::FragmentTiny,
        ChainError::CutShort { in_first_fragment: false } => DropReason::Ipv6Malformed,
        ChainError::Refused(reason) => reason,
    })?;
    parsed.protocol = chain.protocol;
    *flow = Some(parsed);
    let transport = match chain.fragment {
        Some(part) if !part.is_first() => Transport::LaterFragment,
        _ => {
            let whole = chain.fragment.is_none();
            let segment = Segment { bytes: chain.payload, hop_limit: header.hop_limit, whole };
            transport::parse_v6(segment, chain.has_fragment_header, &mut parsed)?
        }
    };
    *flow = Some(parsed);
    Ok(Ip { flow: parsed, hop_limit: header.hop_limit, fragment: chain.fragment, transport })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::frame_v6;

    const UDP: [u8; 8] = [0x9c, 0x40, 0, 53, 0, 8, 0, 0];

    fn parse_bytes(bytes: &[u8]) -> Result<Ip, DropReason> {
        parse(Bytes::new(bytes, bytes.len()), &mut None)
    }

    /// Extension headers of 8 bytes (their types), then UDP.
    fn with_chain(types: &[u8]) -> Vec<u8> {
        let mut payload = Vec::new();
        for at in 0..types.len() {
            payload.extend([types.get(at + 1).copied().unwrap_or(17), 0, 1, 0, 0, 0, 0, 0]);
        }
        payload.extend(UDP);
        frame_v6(types.first().copied().unwrap_or(17), &payload)
    }

    #[test]
    fn the_fields_that_matter_are_read() {
        let ip = parse_bytes(&with_chain(&[])).unwrap();
        assert_eq!(ip.flow.to_string(), "[fd00::1]:40000 > [fd00::2]:53 protocol 17");
        assert_eq!((ip.hop_limit, ip.fragment), (64, None));
    }

    #[test]
    fn extension_headers_are_walked_to_the_transport_header() {
        for types in [&[0, 60][..], &[60, 60], &[43], &[0, 43, 60]] {
            let mut packet = with_chain(types);
            if let Some(at) = types.iter().position(|&t| t == 43) {
                packet[HEADER_LEN + at * 8 + 2] = 2;
            }
            assert_eq!(parse_bytes(&packet).map(|ip| ip.flow.dport), Ok(53), "{types:?}");
        }
        // An authentication header of 16 bytes: (2 + 2) words.
        let mut payload = vec![17, 2];
        payload.extend([0; 14]);
        payload.extend(UDP);
        assert_eq!(parse_bytes(&frame_v6(51, &payload)).map(|ip| ip.flow.dport), Ok(53));
    }

    #[test]
    fn an_authentication_header_shorter_than_its_fixed_fields_is_malformed() {
        let payload = [&[17, 0, 0, 0, 0, 0, 0, 7][..], &UDP].concat();
        assert_eq!(parse_bytes(&frame_v6(51, &payload)), Err(DropReason::Ipv6Malformed));
    }

    #[test]
    fn eight_extension_headers_are_walked_and_nine_are_not() {
        assert!(parse_bytes(&with_chain(&[60; 8])).is_ok());
        assert_eq!(parse_bytes(&with_chain(&[60; 9])), Err(DropReason::Ipv6ExtensionLimit));
    }

    #[test]
    fn hop_by_hop_options_stand_first_or_not_at_all() {
        assert_eq!(parse_bytes(&with_chain(&[60, 0])), Err(DropReason::Ipv6Malformed));
    }

    #[test]
    fn a_routing_header_of_type_0_or_with_segments_left_is_refused() {
        let mut packet = with_chain(&[43]);
        packet[HEADER_LEN + 2] = 0;
        assert_eq!(parse_bytes(&packet), Err(DropReason::SourceRouted));
        packet[HEADER_LEN + 2] = 4;
        assert!(parse_bytes(&packet).is_ok(), "a segment routing header that is used up");
        packet[HEADER_LEN + 3] = 1;
        assert_eq!(parse_bytes(&packet), Err(DropReason::SourceRouted));
    }

    #[test]
    fn an_extension_header_that_reaches_past_the_packet_is_malformed() {
        let mut packet = with_chain(&[60]);
        packet[HEADER_LEN + 1] = 255;
        assert_eq!(parse_bytes(&packet), Err(DropReason::Ipv6Malformed));
    }

    #[test]
    fn jumbograms_and_wrong_lengths_and_versions_are_refused() {
        let mut packet = with_chain(&[0]);
        packet[4..6].copy_from_slice(&[0, 0]);
        assert_eq!(parse_bytes(&packet), Err(DropReason::Ipv6Jumbogram));
        packet[4..6].copy_from_slice(&[0, 17]);
        assert_eq!(parse_bytes(&packet), Err(DropReason::Ipv6Malformed), "one byte more than there is");
        packet[0] = 0x40;
        assert_eq!(parse_bytes(&packet), Err(DropReason::Ipv6Malformed));
        assert_eq!(parse_bytes(&[0x60; 39]), Err(DropReason::Ipv6Malformed));
    }

    #[test]
    fn no_next_header_is_a_protocol_without_ports() {
        let ip = parse_bytes(&frame_v6(59, &[])).unwrap();
        assert_eq!((ip.flow.protocol, ip.transport), (59, Transport::Other));
    }

    fn fragment(offset_and_more: u16, rest: &[u8]) -> Vec<u8> {
        let [high, low] = offset_and_more.to_be_bytes();
        frame_v6(44, &[&[17, 0, high, low, 0, 0, 0, 9], rest].concat())
    }

    #[test]
    fn an_atomic_fragment_is_a_whole_packet() {
        let ip = parse_bytes(&fragment(0, &UDP)).unwrap();
        assert_eq!((ip.fragment, ip.flow.dport), (None, 53));
    }

    #[test]
    fn parts_of_a_datagram_are_told_apart() {
        let first = parse_bytes(&fragment(1, &UDP)).unwrap();
        assert_eq!(first.fragment, Some(Fragment { id: 9, start: 0, end: 8, more: true }));
        assert_eq!(first.flow.dport, 53);
        let later = parse_bytes(&fragment(8, &[1, 2, 3])).unwrap();
        assert_eq!(later.fragment, Some(Fragment { id: 9, start: 8, end: 11, more: false }));
        assert_eq!((later.transport, later.flow.dport), (Transport::LaterFragment, 0));
    }

    #[test]
    fn impossible_fragments_are_malformed() {
        for (offset_and_more, rest) in [(1, &UDP[..7]), (9, &[]), (0xfff8, &UDP)] {
            assert_eq!(parse_bytes(&fragment(offset_and_more, rest)), Err(DropReason::FragmentMalformed));
        }
        // A fragment within a fragment.
        let mut nested = fragment(0, &[17, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
        nested[HEADER_LEN] = 44;
        assert_eq!(parse_bytes(&nested), Err(DropReason::FragmentMalformed));
    }

    #[test]
    fn rfc_7112_a_first_fragment_that_does_not_hold_the_whole_chain_is_tiny() {
        let mut packet = fragment(1, &[17, 9, 0, 0, 0, 0, 0, 0]);
        packet[HEADER_LEN] = 60;
        assert_eq!(parse_bytes(&packet), Err(DropReason::FragmentTiny));
    }
}
