//! Refusals: telling a sender at once that policy denies what it sent.
//!
//! Policy drops in silence by default. Where the control plane wants it ([`Snapshot::refusing`]) a TCP SYN is answered by a
//! reset, and everything else by an ICMP error "administratively prohibited". A client then fails at once instead of after
//! its time-out (130 s for TCP on Linux).
//!
//! Whether a denial is refused depends on the origin of the rule that denies: the control plane knows whose policy it is.
//!
//! **Invariant.** A refusal goes back to where the packet came from, if that is a pod of this node or the node itself, and
//! never out of the uplink: strangers learn nothing. There is none about resets and other segments without SYN, fragments,
//! ICMP errors, groups, and senders that do not own their address. A port gets no more than [its limit](super::limits).

use std::net::IpAddr;

use super::icmp::{Cause, Report, Subject};
use super::message::{SHORTEST, transport_checksum};
use super::wire::{ETHERNET_LEN, ethertype};
use super::{ERROR_MAX, Forwarder};
use crate::packet::{TcpFlags, Transport, checksum};
use crate::worker::denied_by;
use crate::{Packet, PortKind, Snapshot};

const V4_LEN: usize = 20;
const V6_LEN: usize = 40;
/// A TCP header without options.
const TCP_LEN: usize = 20;
const TCP: u8 = 6;
/// What Linux sends with; RFC 1700's default.
const HOP_LIMIT: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;

impl<T> Forwarder<T> {
    /// Writes the refusal of a packet that policy denied, a whole frame for the port that the packet came in on. Returns
    /// its length; none when there is to be none, or when `into` is shorter than [`ERROR_MAX`].
    pub(super) fn refuse(&mut self, snapshot: &Snapshot, packet: &Packet<'_>, into: &mut [u8]) -> Option<usize> {
        let side = self.sides.get(packet.in_port.index())?;
        if side.kind == PortKind::Uplink || into.len() < ERROR_MAX {
            return None;
        }
        let subject = Subject::new(snapshot, side, packet).filter(is_refusable)?;
        // Before the table is asked, so that a flood of packets that are denied in silence costs no lookups either.
        if !self.limits.allow_refusal(packet.in_port, self.now) {
            self.counters.refusals_suppressed += 1;
            return None;
        }
        if !snapshot.refuses(denied_by(snapshot, packet.in_port, &subject.ip.flow)?) {
            return None;
        }
        let len = match subject.ip.transport {
            Transport::Tcp(_) => Reset::about(&subject)?.write(into)?,
            _ => Report::new(snapshot, &subject, Cause::Denied)?.write(0, into)?,
        };
        self.counters.refused += 1;
        Some(len)
    }
}

/// Whether a packet is one that is refused when policy denies it. ICMP errors are no subjects at all.
fn is_refusable(subject: &Subject<'_>) -> bool {
    subject.ip.fragment.is_none()
        && match subject.ip.transport {
            // Segments of a connection that a new policy cuts: it goes on if the policy is taken back in time.
            Transport::Tcp(flags) => flags.opens(),
            _ => true,
        }
}

/// A TCP reset that answers a SYN.
#[derive(Clone, Copy, Debug)]
struct Reset {
    /// From whom to whom.
    addresses: (IpAddr, IpAddr),
    ports: (u16, u16),
    /// The first byte that the SYN's sender would send next.
    acknowledged: u32,
    link: [u8; 12],
}

impl Reset {
    /// RFC 9293 §3.5.2: a SYN has no acknowledgement, so the reset has sequence number zero and acknowledges the whole
    /// segment. Linux and others take no other for an answer to their SYN.
    fn about(subject: &Subject<'_>) -> Option<Self> {
        let (flow, bytes) = (&subject.ip.flow, subject.bytes);
        let word = |at: usize| Some(usize::from(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])));
        // Behind IPv6 extension headers nobody looks for the segment; no system sends its SYN behind any.
        let (header_len, total_len) = match flow.src {
            IpAddr::V4(_) => (usize::from(bytes.first()? & 0xf) * 4, word(2)?),
            IpAddr::V6(_) if *bytes.get(6)? == TCP => (V6_LEN, V6_LEN + word(4)?),
            IpAddr::V6(_) => return None,
        };
        let segment = bytes.get(header_len..)?.first_chunk::<TCP_LEN>()?;
        let data_len = total_len.checked_sub(header_len + usize::from(segment[12] >> 4) * 4)?;
        let sequence = u32::from_be_bytes([segment[4], segment[5], segment[6], segment[7]]);
        // The SYN itself counts as one.
        let acknowledged = sequence.wrapping_add(1).wrapping_add(u32::try_from(data_len).ok()?);
        let (addresses, ports) = ((flow.dst, flow.src), (flow.dport, flow.sport));
        Some(Self { addresses, ports, acknowledged, link: subject.link })
    }

    /// Writes the frame. Returns its length; none when `into` is too short.
    fn write(&self, into: &mut [u8]) -> Option<usize> {
        let frame = into.get_mut(..SHORTEST.max(ETHERNET_LEN + V6_LEN + TCP_LEN))?;
        frame.fill(0);
        frame[..12].copy_from_slice(&self.link);
        let mut segment = [0; TCP_LEN];
        segment[..2].copy_from_slice(&self.ports.0.to_be_bytes());
        segment[2..4].copy_from_slice(&self.ports.1.to_be_bytes());
        segment[8..12].copy_from_slice(&self.acknowledged.to_be_bytes());
        // The header's length in words of four bytes, in the upper half.
        segment[12] = 5 << 4;
        segment[13] = TcpFlags::RST | TcpFlags::ACK;
        let sum = transport_checksum(self.addresses.0, self.addresses.1, TCP, &segment);
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        let (ethertype, ip) = frame[12..].split_at_mut(2);
        Some(match self.addresses {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                ethertype.copy_from_slice(&ethertype::IPV4.to_be_bytes());
                let total = 40;
                ip[..12].copy_from_slice(&[0x45, 0, 0, total, 0, 0, DONT_FRAGMENT, 0, HOP_LIMIT, TCP, 0, 0]);
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..V4_LEN].copy_from_slice(&dst.octets());
                let sum = checksum::internet(&[&ip[..V4_LEN]]);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                ip[V4_LEN..V4_LEN + TCP_LEN].copy_from_slice(&segment);
                SHORTEST
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                ethertype.copy_from_slice(&ethertype::IPV6.to_be_bytes());
                let payload = 20;
                ip[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, payload, TCP, HOP_LIMIT]);
                ip[8..24].copy_from_slice(&src.octets());
                ip[24..V6_LEN].copy_from_slice(&dst.octets());
                ip[V6_LEN..V6_LEN + TCP_LEN].copy_from_slice(&segment);
                ETHERNET_LEN + V6_LEN + TCP_LEN
            }
            _ => return None,
        })
    }
}
