//! Refusals: notify a sender at once that policy denies its packet, or that the called Service has no endpoint.
//!
//! ```text
//!                               TCP SYN   everything else           in the name of   told to
//!   policy, where it is wanted  reset     ICMP, "administratively   the node         pods, the node itself
//!                                         prohibited"
//!   Service without endpoints   reset     ICMP, "port unreachable"  the Service      everybody
//!   or such a port
//! ```
//!
//! A client then fails at once instead of after its timeout (130 s for TCP on Linux). A reset always comes from the called address, because
//! otherwise the client would ignore it.
//!
//! Policy drops silently by default. Whether a denial is refused depends on the origin of the denying rule ([`Snapshot::refusing`]), which
//! the control plane knows. A Service is open to all callers, so its clients on other machines are notified too.
//!
//! **Invariant.** A refusal returns to where the packet came from. Policy denials are never reported to the uplink, so outsiders learn
//! nothing. No refusals are sent about resets and other segments without SYN, fragments, ICMP errors, group addresses, and senders that do
//! not own their address. Each port has [a limit](super::limits).

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
    /// Writes the refusal of a packet as a whole frame for the packet's receiving port. `cause` is [`Cause::Denied`] or [`Cause::Port`].
    /// Returns its length. `None` if no refusal is sent or `into` is shorter than [`ERROR_MAX`].
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
        // Checked before the table, so that a flood of silently denied packets costs no lookups either.
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

/// Whether a packet may be refused. ICMP errors are excluded earlier.
fn is_refusable(subject: &Subject<'_>) -> bool {
    subject.ip.fragment.is_none()
        && match subject.ip.transport {
            // Other segments belong to a connection that a new policy cuts, which continues if the policy is withdrawn in time, or to one
            // whose Service has lost its endpoints and which may be translated elsewhere.
            Transport::Tcp(flags) => flags.opens(),
            _ => true,
        }
}

/// A TCP reset in answer to a SYN.
#[derive(Clone, Copy, Debug)]
struct Reset {
    /// Source and destination address of the reset.
    addresses: (IpAddr, IpAddr),
    segment: tcp::Repr,
    link: Link,
}

impl Reset {
    /// Returns the reset that answers a SYN, `None` if the packet is incomplete. A SYN acknowledges nothing, so the reset has sequence
    /// number zero and acknowledges the whole segment (RFC 9293 §3.5.2). Linux and others ignore any other reset.
    fn about(subject: &Subject<'_>) -> Option<Self> {
        let flow = &subject.ip.flow;
        let (segment, len) = match flow.src {
            IpAddr::V4(_) => {
                let packet = ipv4::Packet::new_checked(subject.bytes).ok()?;
                (subject.bytes.get(packet.header_len()..)?, packet.payload_len())
            }
            IpAddr::V6(_) => {
                let packet = ipv6::Packet::new_checked(subject.bytes).ok()?;
                // SYNs behind extension headers are ignored; no system sends them.
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

    /// Writes the frame with the reset. Returns its length in bytes, or `None` if `into` is too short.
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
