//! Determines a frame's conversation and its part in it, without judging the frame.
//!
//! Lists of a capture's conversations need endpoints and initiators, not verdicts. The pipeline's parsers are used, so that both agree on
//! each packet.

use crate::packet::{self, Body, LinkType, Transport};
use crate::{DropReason, Flow};

/// The part of a packet in its conversation: whether it opens, answers, continues or ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Opens a new conversation: a TCP SYN, an SCTP INIT or an echo request.
    Opens,
    /// Answers the opening packet: a TCP SYN-ACK, an SCTP INIT ACK or an echo reply.
    Answers,
    /// Ends the conversation: a TCP FIN or RST, or their SCTP equivalents.
    Ends,
    /// Any other packet of a protocol that marks its opening packets.
    Continues,
    /// A packet of a protocol that does not mark opening packets, such as UDP: the first packet counts as the opening one.
    Unmarked,
}

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A packet of a conversation.
    Conversation(Flow, Part),
    /// A later fragment, which has no ports. Its first fragment represents the datagram.
    LaterFragment(Flow),
    /// A control message outside of any conversation: ARP, neighbour discovery, ICMP errors.
    Control,
}

/// Parses a frame. `wire_len` is its length on the wire, in bytes.
///
/// # Errors
/// The [`DropReason`] of a frame that cannot be parsed.
pub fn read(link: LinkType, frame: &[u8], wire_len: usize) -> Result<Frame, DropReason> {
    let Body::Ip(ip) = packet::parse(link, frame, wire_len).body? else { return Ok(Frame::Control) };
    Ok(match ip.transport {
        Transport::Tcp(flags) | Transport::Sctp(flags) => {
            type Flags = packet::TcpFlags;
            let part = if flags.opens() {
                Part::Opens
            } else if flags.has(Flags::FIN | Flags::RST) {
                Part::Ends
            } else if flags.has(Flags::SYN) {
                Part::Answers
            } else {
                Part::Continues
            };
            Frame::Conversation(ip.flow, part)
        }
        Transport::Echo { request, .. } => {
            Frame::Conversation(ip.flow, if request { Part::Opens } else { Part::Answers })
        }
        Transport::Udp => Frame::Conversation(ip.flow, Part::Unmarked),
        Transport::Other if ip.flow.icmp.is_none() => Frame::Conversation(ip.flow, Part::Unmarked),
        Transport::LaterFragment => Frame::LaterFragment(ip.flow),
        Transport::Other | Transport::IcmpError(_) | Transport::IcmpRedirect | Transport::Neighbour(_) => {
            Frame::Control
        }
    })
}

/// Whether an ICMP message of this type may begin a conversation that policy judges. False for echo replies, errors, redirects and neighbour
/// discovery. `number` is the protocol: ICMP or ICMPv6.
pub fn may_begin(number: u8, kind: u8) -> bool {
    packet::query::may_begin(number, kind)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests may panic")]

    use super::*;
    use crate::probe::{Probe, ProbeKind};

    #[test]
    fn a_packet_says_who_opens_where_its_protocol_does() {
        let parts = |kind, src: &str, dst: &str| {
            let probe = Probe { src: src.parse().unwrap(), dst: dst.parse().unwrap(), kind, sport: 9, dport: 80 };
            [probe.request().unwrap(), probe.reply().unwrap()].map(|packet| {
                match read(LinkType::Raw, &packet, packet.len()).unwrap() {
                    Frame::Conversation(flow, part) => (flow.src == probe.src, part),
                    other => panic!("{other:?}"),
                }
            })
        };
        for (from, to) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            for kind in [ProbeKind::Tcp, ProbeKind::IcmpEcho] {
                assert_eq!(parts(kind, from, to), [(true, Part::Opens), (false, Part::Answers)], "{kind:?}");
            }
            // The answer to an INIT is read like any packet other than an INIT.
            assert_eq!(parts(ProbeKind::Sctp, from, to), [(true, Part::Opens), (false, Part::Continues)]);
            assert_eq!(parts(ProbeKind::Udp, from, to), [(true, Part::Unmarked), (false, Part::Unmarked)]);
        }
        assert!(read(LinkType::Raw, &[0x45], 1).is_err());
    }
}
