//! First packets of conversations, for reachability questions.
//!
//! Such a question is answered by passing the packet through the pipeline that judges real packets. A second implementation could answer
//! differently. A probe is a raw IP packet ([`LinkType::Raw`](crate::LinkType::Raw)), so no MAC addresses are needed.

use std::net::IpAddr;

use bulkhead_classifier::protocol;

use crate::packet::query;
use crate::wire::{checksum, icmpv4, icmpv6, ipv4, ipv6, tcp, udp};

/// The initial TTL of all systems except Windows (RFC 1700 "IP time to live parameter").
const HOP_LIMIT: u8 = 64;

/// The first packet of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    /// A TCP SYN, answered by SYN and ACK.
    Tcp,
    /// A UDP datagram without data, answered by another.
    Udp,
    /// An SCTP INIT, answered by INIT ACK.
    Sctp,
    /// An echo request of the addresses' family, answered by an echo reply.
    IcmpEcho,
    /// An ICMP message of the addresses' family with this type and code, answered by the answer to a request, otherwise by a message of its
    /// own type.
    Icmp(u8, u8),
}

/// A conversation to be tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Probe {
    /// Source address of the request.
    pub src: IpAddr,
    /// Destination address of the request.
    pub dst: IpAddr,
    /// The protocol and type of the first packet.
    pub kind: ProbeKind,
    /// Source port, or the identifier of an echo.
    pub sport: u16,
    /// Destination port. Unused for an echo.
    pub dport: u16,
}

/// The two addresses are of different families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{src} and {dst} are of different families; name two IPv4 or two IPv6 addresses")]
pub struct ProbeError {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
}

impl Probe {
    /// Returns the first packet.
    ///
    /// # Errors
    /// [`ProbeError`] if the addresses are of different families.
    pub fn request(&self) -> Result<Vec<u8>, ProbeError> {
        self.packet(false)
    }

    /// Returns the answer of the other side.
    ///
    /// # Errors
    /// [`ProbeError`] if the addresses are of different families.
    pub fn reply(&self) -> Result<Vec<u8>, ProbeError> {
        let Self { src, dst, kind, sport, dport } = *self;
        Self { src: dst, dst: src, kind, sport: dport, dport: sport }.packet(true).map_err(|_| ProbeError { src, dst })
    }

    /// Returns the IANA protocol number of the request and the reply.
    pub const fn protocol(&self) -> u8 {
        match self.kind {
            ProbeKind::Tcp => protocol::TCP,
            ProbeKind::Udp => protocol::UDP,
            ProbeKind::Sctp => protocol::SCTP,
            ProbeKind::IcmpEcho | ProbeKind::Icmp(..) if self.src.is_ipv4() => protocol::ICMP,
            ProbeKind::IcmpEcho | ProbeKind::Icmp(..) => protocol::ICMPV6,
        }
    }

    fn packet(&self, is_reply: bool) -> Result<Vec<u8>, ProbeError> {
        let payload = self.payload(is_reply);
        let (protocol, hop_limit, payload_len) = (self.protocol(), HOP_LIMIT, payload.len());
        match (self.src, self.dst) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut packet = vec![0; ipv4::MIN_HEADER_LEN + payload_len];
                let header = ipv4::Repr { source, destination, protocol, hop_limit, tos: 0, payload_len };
                header.emit(&mut packet).copy_from_slice(&payload);
                Ok(packet)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut packet = vec![0; ipv6::HEADER_LEN + payload_len];
                let header = ipv6::Repr { source, destination, next_header: protocol, hop_limit, payload_len };
                header.emit(&mut packet).copy_from_slice(&payload);
                Ok(packet)
            }
            (src, dst) => Err(ProbeError { src, dst }),
        }
    }

    /// Returns the packet's bytes after the IP header.
    fn payload(&self, is_reply: bool) -> Vec<u8> {
        let Self { src, dst, sport, dport, .. } = *self;
        match self.kind {
            ProbeKind::Tcp => {
                let mut segment = vec![0; tcp::MIN_HEADER_LEN];
                let flags = if is_reply { tcp::flags::SYN | tcp::flags::ACK } else { tcp::flags::SYN };
                // The largest window without scaling. The answer acknowledges the SYN, whose sequence number is 1.
                let (sequence, acknowledgement, window) = (1, if is_reply { 2 } else { 0 }, u16::MAX);
                let header =
                    tcp::Repr { source_port: sport, destination_port: dport, sequence, acknowledgement, flags, window };
                header.emit(src, dst, &mut segment);
                segment
            }
            ProbeKind::Udp => {
                let mut datagram = vec![0; udp::HEADER_LEN];
                udp::Repr { source_port: sport, destination_port: dport }.emit(src, dst, &mut datagram);
                datagram
            }
            ProbeKind::Sctp => self.sctp(is_reply),
            ProbeKind::IcmpEcho => self.echo(is_reply),
            ProbeKind::Icmp(kind, code) => match query::answer_to(self.protocol(), kind).filter(|_| is_reply) {
                Some(answer) => self.message((answer, 0), is_reply),
                None => self.message((kind, code), is_reply),
            },
        }
    }

    /// Returns the SCTP common header with an INIT or INIT ACK chunk (RFC 9260 §3.3.2, §3.3.3).
    fn sctp(&self, is_reply: bool) -> Vec<u8> {
        const INIT: u8 = 1;
        const INIT_ACK: u8 = 2;
        const TAG: [u8; 4] = [0, 0, 0, 1];
        // The mandatory state cookie parameter (7) of an INIT ACK, with 4 bytes of data.
        const COOKIE: [u8; 8] = [0, 7, 0, 8, 0, 0, 0, 1];
        // Source and destination port.
        let mut packet = [self.sport.to_be_bytes(), self.dport.to_be_bytes()].concat();
        // The verification tag: 0 in an INIT, and in its answer the INIT's initiate tag.
        packet.extend(if is_reply { TAG } else { [0; 4] });
        packet.extend([0; 4]);
        packet.extend(if is_reply { [INIT_ACK, 0, 0, 28] } else { [INIT, 0, 0, 20] });
        // Initiate tag, receive window, 1 stream out, 1 stream in, first sequence number.
        packet.extend(TAG);
        packet.extend([0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1]);
        if is_reply {
            packet.extend(COOKIE);
        }
        let sum = checksum::crc32c(&packet).to_le_bytes();
        packet[8..12].copy_from_slice(&sum);
        packet
    }

    fn echo(&self, is_reply: bool) -> Vec<u8> {
        let kind = query::echo(self.protocol());
        let answer = query::answer_to(self.protocol(), kind).filter(|_| is_reply);
        self.message((answer.unwrap_or(kind), 0), is_reply)
    }

    /// Returns an ICMP message of this type and code with an identifier, as echoes have.
    fn message(&self, (kind, code): (u8, u8), is_reply: bool) -> Vec<u8> {
        // The identifier is the request's source port, which is the reply's destination port.
        let id = if is_reply { self.dport } else { self.sport };
        match (self.src, self.dst) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let mut message = vec![0; icmpv6::HEADER_LEN];
                icmpv6::Repr { code, ..icmpv6::Repr::echo(kind, id, 1) }.emit(src, dst, &mut message);
                message
            }
            _ => {
                let mut message = vec![0; icmpv4::HEADER_LEN];
                icmpv4::Repr { code, ..icmpv4::Repr::echo(kind, id, 1) }.emit(&mut message);
                message
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetHeaders, PacketHeaders, TransportHeader};

    const KINDS: [ProbeKind; 4] = [ProbeKind::Tcp, ProbeKind::Udp, ProbeKind::Sctp, ProbeKind::IcmpEcho];

    fn probes() -> impl Iterator<Item = Probe> {
        let pairs = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];
        pairs.into_iter().flat_map(|(src, dst)| {
            KINDS.map(|kind| Probe {
                src: src.parse().unwrap(),
                dst: dst.parse().unwrap(),
                kind,
                sport: 40_000,
                dport: 80,
            })
        })
    }

    fn check_sums(packet: &[u8]) {
        let parsed = PacketHeaders::from_ip_slice(packet).unwrap();
        let payload = parsed.payload.slice();
        match (parsed.net.as_ref().unwrap(), &parsed.transport) {
            (NetHeaders::Ipv4(ip, _), transport) => {
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                match transport {
                    Some(TransportHeader::Tcp(h)) => assert_eq!(h.checksum, h.calc_checksum_ipv4(ip, payload).unwrap()),
                    Some(TransportHeader::Udp(h)) => assert_eq!(h.checksum, h.calc_checksum_ipv4(ip, payload).unwrap()),
                    Some(TransportHeader::Icmpv4(h)) => assert_eq!(h.checksum, h.icmp_type.calc_checksum(payload)),
                    other => assert!(other.is_none(), "SCTP is not known to etherparse"),
                }
            }
            (NetHeaders::Ipv6(ip, _), transport) => match transport {
                Some(TransportHeader::Tcp(h)) => assert_eq!(h.checksum, h.calc_checksum_ipv6(ip, payload).unwrap()),
                Some(TransportHeader::Udp(h)) => assert_eq!(h.checksum, h.calc_checksum_ipv6(ip, payload).unwrap()),
                Some(TransportHeader::Icmpv6(h)) => {
                    assert_eq!(h.checksum, h.icmp_type.calc_checksum(ip.source, ip.destination, payload).unwrap());
                }
                other => assert!(other.is_none(), "SCTP is not known to etherparse"),
            },
            _ => panic!("no IP"),
        }
    }

    #[test]
    fn requests_and_replies_are_packets_with_right_checksums() {
        for probe in probes() {
            check_sums(&probe.request().unwrap());
            check_sums(&probe.reply().unwrap());
        }
    }

    #[test]
    fn an_sctp_packet_has_the_checksum_of_itself_with_a_zero_in_its_place() {
        for probe in probes().filter(|probe| probe.kind == ProbeKind::Sctp) {
            for packet in [probe.request().unwrap(), probe.reply().unwrap()] {
                let header_len = if probe.src.is_ipv4() { 20 } else { 40 };
                let mut sctp = packet[header_len..].to_vec();
                let sum: [u8; 4] = sctp[8..12].try_into().unwrap();
                sctp[8..12].fill(0);
                assert_eq!(u32::from_le_bytes(sum), checksum::crc32c(&sctp));
            }
        }
    }

    #[test]
    fn two_families_make_no_packet() {
        let probe = Probe { dst: "fd00::2".parse().unwrap(), ..probes().next().unwrap() };
        assert!(probe.request().is_err());
        assert_eq!(probe.reply().unwrap_err().src, probe.src);
    }
}
