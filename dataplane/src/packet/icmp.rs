//! ICMP for IPv4 (RFC 792), and the packets that ICMP errors of both families embed.

use std::net::IpAddr;

use bulkhead_classifier::protocol;

use super::{Bytes, Ports, Transport, ipv4, ipv6};
use crate::wire::icmpv4::{HEADER_LEN, kind};
use crate::wire::icmpv6;
use crate::{DropReason, Flow};

/// The packet that an ICMP error is about, as far as its session can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Embedded {
    /// Who sent it: the error goes back there.
    pub(crate) src: IpAddr,
    /// Where it was going.
    pub(crate) dst: IpAddr,
    /// Its protocol.
    pub(crate) protocol: u8,
    /// Its ports or echo identifier.
    pub(crate) ports: Ports,
}

/// Reads a message.
pub(super) fn parse(message: Bytes<'_>, flow: &mut Flow) -> Result<Transport, DropReason> {
    let header = message.seen.first_chunk::<HEADER_LEN>().ok_or(DropReason::L4Truncated)?;
    flow.icmp = Some((header[0], header[1]));
    let id = u16::from_be_bytes([header[4], header[5]]);
    Ok(match header[0] {
        kind::ECHO_REQUEST => Transport::Echo { id, request: true },
        kind::ECHO_REPLY => Transport::Echo { id, request: false },
        kind::UNREACHABLE | kind::TIME_EXCEEDED | kind::PARAMETER_PROBLEM => {
            Transport::IcmpError(embedded_v4(&message.seen[HEADER_LEN..]))
        }
        // RFC 6633 deprecates source quench: it slows down whom it is sent to, and nobody sends it honestly.
        kind::REDIRECT | kind::SOURCE_QUENCH => Transport::IcmpRedirect,
        _ => Transport::Other,
    })
}

/// Reads the packet in an ICMPv4 error. It is cut short by design (RFC 792: the header and 8 bytes), so its lengths
/// are not held against anything; what is missing makes it none.
fn embedded_v4(bytes: &[u8]) -> Option<Embedded> {
    let header = ipv4::header(bytes)?;
    // A later fragment has no ports. A total length below the header's is no packet that anybody sent.
    if header.fragment_offset != 0 || header.total_len < header.header_len {
        return None;
    }
    let ports = embedded_ports(header.protocol, bytes.get(header.header_len..)?, protocol::ICMP)?;
    Some(Embedded { src: header.src.into(), dst: header.dst.into(), protocol: header.protocol, ports })
}

/// Reads the packet in an ICMPv6 error.
pub(super) fn embedded_v6(bytes: &[u8]) -> Option<Embedded> {
    let header = ipv6::header(bytes)?;
    let rest = bytes.get(ipv6::HEADER_LEN..)?;
    // The packet was longer than what the error holds of it.
    let payload = Bytes::new(rest, header.payload_len);
    let chain = ipv6::walk(header.next_header, payload).ok()?;
    if chain.fragment.is_some_and(|part| !part.is_first()) {
        return None;
    }
    let ports = embedded_ports(chain.protocol, chain.payload.seen, protocol::ICMPV6)?;
    Some(Embedded { src: header.src.into(), dst: header.dst.into(), protocol: chain.protocol, ports })
}

/// The ports of an embedded packet: its first four bytes, or type and identifier of an echo. `icmp` is the ICMP of
/// the packet's own family.
fn embedded_ports(number: u8, header: &[u8], icmp: u8) -> Option<Ports> {
    match number {
        protocol::TCP | protocol::UDP | protocol::SCTP => {
            let &[a, b, c, d, ..] = header else { return None };
            Some(Ports::Pair(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
        }
        number if number == icmp => {
            let &[message, _, _, _, high, low, ..] = header else { return None };
            let id = u16::from_be_bytes([high, low]);
            let (request, reply) = match number {
                protocol::ICMP => (kind::ECHO_REQUEST, kind::ECHO_REPLY),
                _ => (icmpv6::kind::ECHO_REQUEST, icmpv6::kind::ECHO_REPLY),
            };
            // Other messages: an error about an error must not be sent (RFC 1122 §3.2.2), and the rest needs none.
            match message {
                _ if message == request => Some(Ports::EchoRequest(id)),
                _ if message == reply => Some(Ports::EchoReply(id)),
                _ => None,
            }
        }
        _ => Some(Ports::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::{flow_of, frame_v4, frame_v6, set_u16};

    fn message(kind: u8, rest: &[u8]) -> Vec<u8> {
        [&[kind, 0, 0, 0, 0x12, 0x34, 0, 1], rest].concat()
    }

    fn parse_bytes(bytes: &[u8]) -> Result<Transport, DropReason> {
        parse(Bytes::new(bytes, bytes.len()), &mut flow_of(1))
    }

    #[test]
    fn echoes_have_an_identifier_and_a_direction() {
        assert_eq!(parse_bytes(&message(8, &[])), Ok(Transport::Echo { id: 0x1234, request: true }));
        assert_eq!(parse_bytes(&message(0, &[])), Ok(Transport::Echo { id: 0x1234, request: false }));
    }

    #[test]
    fn a_short_message_is_truncated() {
        for len in 0..HEADER_LEN {
            assert_eq!(parse_bytes(&message(8, &[])[..len]), Err(DropReason::L4Truncated));
        }
    }

    #[test]
    fn redirects_and_source_quenches_are_told_from_errors() {
        let inner = frame_v4(17, &[0, 1, 0, 2, 0, 8, 0, 0]);
        for kind in [4, 5] {
            assert_eq!(parse_bytes(&message(kind, &inner)), Ok(Transport::IcmpRedirect));
        }
        for kind in [3, 11, 12] {
            assert!(matches!(parse_bytes(&message(kind, &inner)), Ok(Transport::IcmpError(Some(_)))));
        }
    }

    #[test]
    fn eight_bytes_after_the_embedded_header_are_enough_and_fewer_are_safe() {
        let inner = frame_v4(6, &[0x9c, 0x40, 0, 80, 0, 0, 0, 0]);
        let whole = embedded_v4(&inner).unwrap();
        assert_eq!((whole.protocol, whole.ports), (6, Ports::Pair(40_000, 80)));
        for len in 0..24 {
            assert_eq!(embedded_v4(&inner[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn an_embedded_later_fragment_or_error_has_no_session() {
        let mut fragment = frame_v4(6, &[0x9c, 0x40, 0, 80, 0, 0, 0, 0]);
        set_u16(&mut fragment, 6, 1);
        assert_eq!(embedded_v4(&fragment), None);
        assert_eq!(embedded_v4(&frame_v4(1, &message(3, &[]))), None);
        assert_eq!(embedded_v4(&frame_v4(1, &message(8, &[]))).unwrap().ports, Ports::EchoRequest(0x1234));
    }

    #[test]
    fn an_embedded_ipv6_packet_is_found_behind_its_extension_headers() {
        let inner = frame_v6(60, &[17, 0, 0, 0, 0, 0, 0, 0, 0x9c, 0x40, 0, 53, 0, 8, 0, 0]);
        let whole = embedded_v6(&inner).unwrap();
        assert_eq!((whole.protocol, whole.ports), (17, Ports::Pair(40_000, 53)));
        for len in 0..52 {
            assert_eq!(embedded_v6(&inner[..len]), None, "{len} bytes");
        }
        let echo = frame_v6(58, &[129, 0, 0, 0, 0, 7, 0, 0]);
        assert_eq!(embedded_v6(&echo).unwrap().ports, Ports::EchoReply(7));
    }
}
