//! Refusals: telling a sender at once that policy denies what it sent, or that nobody serves the Service that it called.
//!
//! ```text
//!                               TCP SYN   everything else           in the name of   told to
//!   policy, where it is wanted  reset     ICMP, "administratively   the node         pods, the node itself
//!                                         prohibited"
//!   Service without endpoints   reset     ICMP, "port unreachable"  the Service      everybody
//!   or such a port
//! ```
//!
//! A client then fails at once instead of after its time-out (130 s for TCP on Linux). A reset always comes from the address
//! that was called, or else nobody would take it for an answer.
//!
//! Policy drops in silence by default. Whether a denial is refused depends on the origin of the rule that denies
//! ([`Snapshot::refusing`]): the control plane knows whose policy it is. A Service has asked everybody to call, so its clients
//! on other machines are told as well.
//!
//! **Invariant.** A refusal goes back to where the packet came from. What policy denies is never told out of the uplink:
//! strangers learn nothing. There is none about resets and other segments without SYN, fragments, ICMP errors, groups, and
//! senders that do not own their address. A port gets no more than [its limit](super::limits).

use std::net::IpAddr;

use super::icmp::{Cause, HOP_LIMIT, Link, Report, Subject};
use super::{ERROR_MAX, Forwarder};
use crate::packet::Transport;
use crate::wire::ethernet::{self, ethertype};
use crate::wire::tcp::{self, flags};
use crate::wire::{ipv4, ipv6, protocol};
use crate::worker::denied_by;
use crate::{Packet, PortKind, Snapshot};

impl<T> Forwarder<T> {
    /// Writes the refusal of a packet, a whole frame for the port that the packet came in on. `cause` is [`Cause::Denied`] or
    /// [`Cause::Port`]. Returns its length; none when there is to be none, or when `into` is shorter than [`ERROR_MAX`].
    pub(super) fn refuse(
        &mut self,
        snapshot: &Snapshot,
        packet: &Packet<'_>,
        cause: Cause,
        into: &mut [u8],
    ) -> Option<usize> {
        let side = self.sides.get(packet.in_port.index())?;
        let is_denied = cause == Cause::Denied;
        if (is_denied && side.kind == PortKind::Uplink) || into.len() < ERROR_MAX {
            return None;
        }
        let subject = Subject::new(snapshot, side, packet).filter(is_refusable)?;
        // Before the table is asked, so that a flood of packets that are denied in silence costs no lookups either.
        if !self.limits.allow_refusal(packet.in_port, self.now) {
            self.counters.refusals_suppressed += 1;
            return None;
        }
        if is_denied && !snapshot.refuses(denied_by(snapshot, packet.in_port, &subject.ip.flow)?) {
            return None;
        }
        let len = match subject.ip.transport {
            Transport::Tcp(_) => Reset::about(&subject)?.write(into)?,
            _ => Report::new(snapshot, &subject, cause)?.write(0, into)?,
        };
        self.counters.refused += 1;
        Some(len)
    }
}

/// Whether a packet is one that is refused at all. ICMP errors are no subjects in the first place.
fn is_refusable(subject: &Subject<'_>) -> bool {
    subject.ip.fragment.is_none()
        && match subject.ip.transport {
            // Segments of a connection that a new policy cuts: it goes on if the policy is taken back in time. Or of one whose
            // Service has lost its endpoints, and which may have been translated elsewhere.
            Transport::Tcp(flags) => flags.opens(),
            _ => true,
        }
}

/// A TCP reset that answers a SYN.
#[derive(Clone, Copy, Debug)]
struct Reset {
    /// From whom to whom.
    addresses: (IpAddr, IpAddr),
    segment: tcp::Repr,
    link: Link,
}

impl Reset {
    /// RFC 9293 §3.5.2: a SYN has no acknowledgement, so the reset has sequence number zero and acknowledges the whole
    /// segment. Linux and others take no other for an answer to their SYN.
    fn about(subject: &Subject<'_>) -> Option<Self> {
        let flow = &subject.ip.flow;
        let (segment, len) = match flow.src {
            IpAddr::V4(_) => {
                let packet = ipv4::Packet::new_checked(subject.bytes).ok()?;
                (subject.bytes.get(packet.header_len()..)?, packet.payload_len())
            }
            IpAddr::V6(_) => {
                let packet = ipv6::Packet::new_checked(subject.bytes).ok()?;
                // Behind extension headers nobody looks for the segment; no system sends its SYN behind any.
                let segment =
                    subject.bytes.get(ipv6::HEADER_LEN..).filter(|_| packet.next_header() == protocol::TCP)?;
                (segment, packet.payload_len())
            }
        };
        let syn = tcp::Segment::new_checked(segment).ok()?;
        let data_len = u32::try_from(len.checked_sub(syn.header_len())?).ok()?;
        let segment = tcp::Repr {
            source_port: flow.dport,
            destination_port: flow.sport,
            sequence: 0,
            // The SYN itself counts as one.
            acknowledgement: syn.sequence().wrapping_add(1).wrapping_add(data_len),
            flags: flags::RST | flags::ACK,
            window: 0,
        };
        Some(Self { addresses: (flow.dst, flow.src), segment, link: subject.link })
    }

    /// Writes the frame. Returns its length; none when `into` is too short.
    fn write(&self, into: &mut [u8]) -> Option<usize> {
        let frame = into.get_mut(..ethernet::HEADER_LEN + ipv6::HEADER_LEN + tcp::MIN_HEADER_LEN)?;
        frame.fill(0);
        let (source, destination) = self.addresses;
        let payload_len = tcp::MIN_HEADER_LEN;
        let (payload, len) = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let (protocol, hop_limit, tos) = (protocol::TCP, HOP_LIMIT, 0);
                let ip = ipv4::Repr { source, destination, protocol, hop_limit, tos, payload_len };
                (ip.emit(self.link.emit(ethertype::IPV4, frame)), ethernet::MIN_FRAME_LEN)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let (next_header, hop_limit) = (protocol::TCP, HOP_LIMIT);
                let ip = ipv6::Repr { source, destination, next_header, hop_limit, payload_len };
                let len = frame.len();
                (ip.emit(self.link.emit(ethertype::IPV6, frame)), len)
            }
            _ => return None,
        };
        self.segment.emit(source, destination, &mut payload[..tcp::MIN_HEADER_LEN]);
        Some(len)
    }
}
