//! Parses the packets quoted in ICMP errors of both families.

use bulkhead_classifier::protocol;

use super::transport::{Embedded, Ports};
use super::{Bytes, ipv4_header, ipv6_headers};
use crate::wire::icmpv4::kind;
use crate::wire::{icmpv6, ipv6};

/// Parses the packet in an ICMPv4 error. It is truncated by design (RFC 792: the header and 8 bytes), so its lengths are not checked
/// against the bytes. `None` if required fields are missing.
pub(super) fn embedded_v4(bytes: &[u8]) -> Option<Embedded> {
    let header = ipv4_header::header(bytes)?;
    // A later fragment has no ports. A total length below the header length is invalid.
    if header.fragment_offset != 0 || header.total_len < header.header_len {
        return None;
    }
    let ports = embedded_ports(header.protocol, bytes.get(header.header_len..)?, protocol::ICMP)?;
    Some(Embedded { src: header.src.into(), dst: header.dst.into(), protocol: header.protocol, ports })
}

/// Parses the packet in an ICMPv6 error. `None` if required fields are missing.
pub(super) fn embedded_v6(bytes: &[u8]) -> Option<Embedded> {
    let header = ipv6_headers::header(bytes)?;
    let rest = bytes.get(ipv6::HEADER_LEN..)?;
    // The error may contain only the packet's beginning.
    let payload = Bytes::new(rest, header.payload_len);
    let chain = ipv6_headers::walk(header.next_header, payload).ok()?;
    if chain.fragment.is_some_and(|part| !part.is_first()) {
        return None;
    }
    let ports = embedded_ports(chain.protocol, chain.payload.seen, protocol::ICMPV6)?;
    Some(Embedded { src: header.src.into(), dst: header.dst.into(), protocol: chain.protocol, ports })
}

/// Reads the ports of a quoted packet from its first four bytes, or the identifier of an echo. `icmp` is the ICMP protocol of the packet's
/// family.
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
            // No ICMP error may be sent about an error (RFC 1122 §3.2.2). Other messages have no sessions.
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
    use crate::packet::tests::{frame_v4, frame_v6, set_u16};

    fn message(kind: u8, rest: &[u8]) -> Vec<u8> {
        [&[kind, 0, 0, 0, 0x12, 0x34, 0, 1], rest].concat()
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
