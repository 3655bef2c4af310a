//! IPv4 (RFC 791): the header, its options, the fragment fields.

use std::net::IpAddr;

use super::ipv4_header::{Header, header};
use super::transport::Segment;
use super::{Bytes, Fragment, Ip, Transport, payload};
use crate::wire::ipv4::option;
use crate::{DropReason, Flow};

pub(super) use crate::wire::ipv4::MIN_HEADER_LEN;

/// Maximum length of a datagram with its header, in bytes.
const MAX_DATAGRAM_LEN: u32 = 65_535;

/// Parses a packet. Bytes after its total length are link-layer padding. `flow` is set as soon as the header is valid.
pub(super) fn parse(packet: Bytes<'_>, flow: &mut Option<Flow>) -> Result<Ip, DropReason> {
    let header = header(packet.seen).ok_or(DropReason::Ipv4Malformed)?;
    let (src, dst) = (IpAddr::V4(header.src), IpAddr::V4(header.dst));
    let mut parsed = Flow { src, dst, protocol: header.protocol, sport: 0, dport: 0, icmp: None };
    *flow = Some(parsed);
    let options = packet.seen.get(MIN_HEADER_LEN..header.header_len).ok_or(DropReason::Ipv4Malformed)?;
    check_options(options)?;
    let payload = packet
        .take(header.total_len)
        .and_then(|packet| packet.skip(header.header_len))
        .ok_or(DropReason::Ipv4Malformed)?;
    let fragment = fragment(&header, payload)?;
    let transport = match fragment {
        Some(part) if !part.is_first() => Transport::LaterFragment,
        _ => {
            let segment = Segment { bytes: payload, hop_limit: header.ttl, whole: fragment.is_none() };
            payload::parse_v4(segment, &mut parsed)?
        }
    };
    *flow = Some(parsed);
    Ok(Ip { flow: parsed, hop_limit: header.ttl, fragment, transport })
}

/// Returns the packet's part of its datagram. `None` for a whole datagram.
pub(super) fn fragment(header: &Header, payload: Bytes<'_>) -> Result<Option<Fragment>, DropReason> {
    if header.fragment_offset == 0 && !header.more_fragments {
        return Ok(None);
    }
    let len = u32::try_from(payload.wire_len).map_err(|_| DropReason::FragmentMalformed)?;
    let header_len = u32::try_from(header.header_len).map_err(|_| DropReason::FragmentMalformed)?;
    let part = Fragment {
        id: header.id.into(),
        start: header.fragment_offset,
        end: header.fragment_offset + len,
        more: header.more_fragments,
    };
    // Only the last fragment may have a length that is not a multiple of 8. A fragment beyond the maximum datagram is a "ping of death".
    let uneven = part.more && !len.is_multiple_of(8);
    if len == 0 || uneven || part.end + header_len > MAX_DATAGRAM_LEN {
        return Err(DropReason::FragmentMalformed);
    }
    Ok(Some(part))
}

/// Checks that the options fit into the header, and that none is a source route.
fn check_options(mut options: &[u8]) -> Result<(), DropReason> {
    /// Loose and strict source and record route (RFC 791). RFC 7126 §4.3 and §4.4: dropped by default.
    const LSRR: u8 = 131;
    const SSRR: u8 = 137;
    while let [kind, rest @ ..] = options {
        options = match *kind {
            option::END => return Ok(()),
            option::NOP => rest,
            LSRR | SSRR => return Err(DropReason::SourceRouted),
            // The length includes the bytes of type and length.
            _ => match rest.first() {
                Some(&len) if len >= 2 => options.get(usize::from(len)..).ok_or(DropReason::Ipv4Malformed)?,
                _ => return Err(DropReason::Ipv4Malformed),
            },
        };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::{frame_v4, set_u16};

    fn parse_bytes(bytes: &[u8]) -> Result<Ip, DropReason> {
        parse(Bytes::new(bytes, bytes.len()), &mut None)
    }

    #[test]
    fn the_fields_that_matter_are_read() {
        let ip = parse_bytes(&frame_v4(17, &[0x9c, 0x40, 0, 53, 0, 9, 0, 0, 7])).unwrap();
        assert_eq!(ip.flow.to_string(), "10.0.0.1:40000 > 10.0.0.2:53 protocol 17");
        assert_eq!((ip.hop_limit, ip.fragment), (64, None));
    }

    #[test]
    fn version_header_length_and_total_length_must_fit() {
        let good = frame_v4(17, &[0, 1, 0, 2, 0, 8, 0, 0]);
        for (at, value) in [(0, 0x65), (0, 0x44), (0, 0x4f)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(parse_bytes(&bad), Err(DropReason::Ipv4Malformed), "byte {at} = {value:#x}");
        }
        for total in [0, 19, 29, 65_535] {
            let mut bad = good.clone();
            set_u16(&mut bad, 2, total);
            assert_eq!(parse_bytes(&bad), Err(DropReason::Ipv4Malformed), "total length {total}");
        }
        for len in 0..20 {
            assert_eq!(parse_bytes(&good[..len]), Err(DropReason::Ipv4Malformed));
        }
    }

    #[test]
    fn padding_after_the_total_length_is_not_payload() {
        let mut padded = frame_v4(17, &[0, 1, 0, 2, 0, 9, 0, 0]);
        padded.extend([0; 18]);
        assert_eq!(parse_bytes(&padded), Err(DropReason::L4Malformed), "the UDP length reaches into the padding");
    }

    fn with_options(options: &[u8]) -> Vec<u8> {
        let mut packet = frame_v4(17, &[0, 1, 0, 2, 0, 8, 0, 0]);
        packet.splice(20..20, options.iter().copied());
        packet[0] = 0x40 | u8::try_from((20 + options.len()) / 4).unwrap();
        let total = u16::try_from(packet.len()).unwrap();
        set_u16(&mut packet, 2, total);
        packet
    }

    #[test]
    fn options_are_walked_within_their_bounds() {
        for good in [[1, 1, 1, 0], [0, 9, 9, 9], [148, 4, 0, 0], [1, 7, 3, 0]] {
            assert_eq!(parse_bytes(&with_options(&good)).map(|ip| ip.flow.dport), Ok(2), "{good:?}");
        }
        for bad in [[7, 0, 0, 0], [7, 1, 0, 0], [7, 5, 0, 0], [1, 1, 1, 7]] {
            assert_eq!(parse_bytes(&with_options(&bad)), Err(DropReason::Ipv4Malformed), "{bad:?}");
        }
    }

    #[test]
    fn a_source_route_is_refused_wherever_it_stands() {
        for bad in [[131, 3, 4, 0], [137, 3, 4, 0], [1, 131, 3, 4], [1, 1, 1, 137]] {
            assert_eq!(parse_bytes(&with_options(&bad)), Err(DropReason::SourceRouted), "{bad:?}");
        }
    }

    #[test]
    fn a_fragment_must_fit_into_a_datagram() {
        let fragment = |flags_and_offset: u16, payload: usize| {
            let mut packet = frame_v4(17, &vec![0; payload]);
            set_u16(&mut packet, 6, flags_and_offset);
            parse_bytes(&packet)
        };
        assert_eq!(fragment(0x2001, 9), Err(DropReason::FragmentMalformed), "no multiple of 8 and not the last");
        assert_eq!(fragment(0x2001, 0), Err(DropReason::FragmentMalformed), "empty");
        assert_eq!(fragment(0x1fff, 16), Err(DropReason::FragmentMalformed), "past 65,535");
        let part = fragment(0x0002, 9).unwrap();
        assert_eq!(part.transport, Transport::LaterFragment);
        assert_eq!(part.fragment, Some(Fragment { id: 7, start: 16, end: 25, more: false }));
    }

    #[test]
    fn cve_2016_10377_a_total_length_below_the_header_length_does_not_underflow() {
        let mut packet = frame_v4(6, &[0; 20]);
        packet[0] = 0x4a;
        set_u16(&mut packet, 2, 39);
        assert_eq!(parse_bytes(&packet), Err(DropReason::Ipv4Malformed));
    }
}
