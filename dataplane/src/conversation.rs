//! Which conversation a frame belongs to and what it does there, without a snapshot that would judge it.
//!
//! Whoever lists the conversations of a capture needs their ends and who has opened them, not a verdict. The parsing is that of the
//! pipeline, so that both agree on what a packet is.

use crate::packet::{self, Body, LinkType, Transport};
use crate::{DropReason, Flow};

/// What a packet does in its conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// It asks for a new one: SYN, INIT, an echo request.
    Opens,
    /// It answers one that asks: SYN with ACK, INIT ACK, an echo reply.
    Answers,
    /// It ends one: FIN, RST and what means the same in SCTP.
    Ends,
    /// Anything else of one whose protocol says who opens it.
    Continues,
    /// One of a protocol whose packets do not say, such as UDP: the first one opens.
    Unmarked,
}

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A packet of a conversation.
    Conversation(Flow, Part),
    /// The middle or the end of a datagram, which names no ports: its first fragment stands for it.
    LaterFragment(Flow),
    /// A control message that belongs to no conversation of its own: address resolution, neighbour discovery, ICMP errors.
    Control,
}

/// Reads a frame. `wire_len` is how long it was on the wire, in bytes.
///
/// # Errors
/// Why it is not understood.
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
            // An answer to an INIT is read as any other packet that is none.
            assert_eq!(parts(ProbeKind::Sctp, from, to), [(true, Part::Opens), (false, Part::Continues)]);
            assert_eq!(parts(ProbeKind::Udp, from, to), [(true, Part::Unmarked), (false, Part::Unmarked)]);
        }
        assert!(read(LinkType::Raw, &[0x45], 1).is_err());
    }
}
