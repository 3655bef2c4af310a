//! IPv6 (RFC 8200): the header and the chain of extension headers.

use std::net::IpAddr;

use super::ipv6_headers::{ChainError, header, next_header, walk};
use super::transport::Segment;
use super::{Bytes, Ip, Transport, payload};
use crate::{DropReason, Flow};

pub(super) use crate::wire::ipv6::HEADER_LEN;

/// Parses a packet. Bytes after its payload length are link-layer padding. `flow` is set as soon as the header is valid.
pub(super) fn parse(packet: Bytes<'_>, flow: &mut Option<Flow>) -> Result<Ip, DropReason> {
    let header = header(packet.seen).ok_or(DropReason::Ipv6Malformed)?;
    let (src, dst) = (IpAddr::V6(header.src), IpAddr::V6(header.dst));
    let mut parsed = Flow { src, dst, protocol: header.next_header, sport: 0, dport: 0, icmp: None };
    *flow = Some(parsed);
    // RFC 2675: a jumbogram has 0 here, and its length in a hop-by-hop option.
    if header.payload_len == 0 && header.next_header == next_header::HOP_BY_HOP {
        return Err(DropReason::Ipv6Jumbogram);
    }
    let payload = packet
        .skip(HEADER_LEN)
        .and_then(|payload| payload.take(header.payload_len))
        .ok_or(DropReason::Ipv6Malformed)?;
    let chain = walk(header.next_header, payload).map_err(|error| match error {
        // RFC 7112: the first fragment must contain the whole chain.
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
            payload::parse_v6(segment, chain.has_fragment_header, &mut parsed)?
        }
    };
    *flow = Some(parsed);
    Ok(Ip { flow: parsed, hop_limit: header.hop_limit, fragment: chain.fragment, transport })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Fragment;
    use crate::packet::tests::frame_v6;

    const UDP: [u8; 8] = [0x9c, 0x40, 0, 53, 0, 8, 0, 0];

    fn parse_bytes(bytes: &[u8]) -> Result<Ip, DropReason> {
        parse(Bytes::new(bytes, bytes.len()), &mut None)
    }

    /// Builds a packet with extension headers of these types, 8 bytes each, and UDP.
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
        assert!(parse_bytes(&packet).is_ok(), "a segment routing header without segments left");
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
        assert_eq!(parse_bytes(&packet), Err(DropReason::Ipv6Malformed), "one byte longer than the packet");
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
        // A second fragment header.
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
