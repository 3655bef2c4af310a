//! Parses the payload of an IP packet by its protocol.

use bulkhead_classifier::protocol;

use super::transport::{Segment, Transport};
use super::{icmp, icmpv6, sctp, tcp, udp};
use crate::{DropReason, Flow};

/// Parses the payload of an IPv4 packet and sets the flow's ports or ICMP type.
pub(super) fn parse_v4(segment: Segment<'_>, flow: &mut Flow) -> Result<Transport, DropReason> {
    let parsed = match flow.protocol {
        protocol::ICMP => icmp::parse(segment.bytes, flow),
        _ => parse_ported(segment, flow),
    };
    parsed.map_err(|reason| segment.blame(reason))
}

/// Parses the payload of an IPv6 packet and sets the flow's ports or ICMP type.
pub(super) fn parse_v6(
    segment: Segment<'_>,
    has_fragment_header: bool,
    flow: &mut Flow,
) -> Result<Transport, DropReason> {
    let parsed = match flow.protocol {
        protocol::ICMPV6 => icmpv6::parse(segment, has_fragment_header, flow),
        _ => parse_ported(segment, flow),
    };
    parsed.map_err(|reason| segment.blame(reason))
}

/// Parses TCP, UDP and SCTP. ICMP of the other address family has no ports, and policy judges it by its protocol number.
fn parse_ported(segment: Segment<'_>, flow: &mut Flow) -> Result<Transport, DropReason> {
    let transport = match flow.protocol {
        protocol::TCP => {
            let header = tcp::parse(segment.bytes)?;
            (flow.sport, flow.dport) = (header.sport, header.dport);
            Transport::Tcp(header.flags)
        }
        protocol::UDP => {
            let header = udp::parse(segment.bytes, segment.whole)?;
            (flow.sport, flow.dport) = (header.sport, header.dport);
            Transport::Udp
        }
        protocol::SCTP => {
            let header = sctp::parse(segment.bytes)?;
            (flow.sport, flow.dport) = (header.sport, header.dport);
            Transport::Sctp(header.flags)
        }
        _ => Transport::Other,
    };
    Ok(transport)
}

impl Segment<'_> {
    /// Returns the drop reason to report: `FragmentTiny` instead of `L4Truncated` for a first fragment, an evasion attempt (RFC 1858).
    fn blame(&self, reason: DropReason) -> DropReason {
        if !self.whole && reason == DropReason::L4Truncated { DropReason::FragmentTiny } else { reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::{frame_v4, parse_raw, set_u16};
    use crate::packet::{Body, Ip, Ports};

    fn ip(packet: &[u8]) -> Result<Ip, DropReason> {
        parse_raw(packet).map(|body| match body {
            Body::Ip(ip) => ip,
            Body::Arp(_) => unreachable!("no ARP in raw IP"),
        })
    }

    #[test]
    fn cve_2023_1668_protocol_0_is_a_protocol_like_any_other() {
        let packet = ip(&frame_v4(0, &[0, 80, 0, 80, 1, 2, 3, 4])).unwrap();
        assert_eq!(packet.transport, Transport::Other);
        assert_eq!((packet.flow.protocol, packet.flow.sport, packet.flow.dport), (0, 0, 0));
    }

    #[test]
    fn bytes_of_a_protocol_without_ports_are_never_read_as_ports() {
        for number in (0..=255).filter(|n| ![1, 6, 17, 132].contains(n)) {
            let packet = ip(&frame_v4(number, &[0x9c, 0x40, 0, 80, 0, 8, 0, 0])).unwrap();
            assert_eq!((packet.flow.sport, packet.flow.dport), (0, 0), "protocol {number}");
            assert_eq!(packet.transport.ports(&packet.flow), Ports::None);
        }
    }

    #[test]
    fn rfc_1858_a_first_fragment_without_the_whole_transport_header_is_tiny() {
        for (number, payload) in [(6, 16), (132, 8)] {
            let mut packet = frame_v4(number, &vec![0x50; payload]);
            set_u16(&mut packet, 6, 0x2000);
            assert_eq!(ip(&packet), Err(DropReason::FragmentTiny), "protocol {number}");
        }
        // RFC 3128: the fixed header is complete, but its options are in the next fragment.
        let mut packet = frame_v4(6, &[0x60; 24]);
        packet[20 + 12] = 0x70;
        set_u16(&mut packet, 6, 0x2000);
        assert_eq!(ip(&packet), Err(DropReason::FragmentTiny));
    }
}
