//! Writes TCP segments of the vswitch, without options and data: resets, and probes of peers whose pod is gone.

use std::net::IpAddr;

use super::icmp::{HOP_LIMIT, Link, Subject};
use crate::wire::ethernet::{self, ethertype};
use crate::wire::tcp::{self, flags};
use crate::wire::{ipv4, ipv6, protocol};

/// A segment that the vswitch sends in the name of an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Source and destination address.
    pub(super) addresses: (IpAddr, IpAddr),
    pub(super) header: tcp::Repr,
    pub(super) link: Link,
}

impl Segment {
    /// Returns the reset that answers a segment (RFC 9293 §3.5.2), `None` if the packet is incomplete. It has the sequence number that the
    /// segment acknowledges. If the segment acknowledges nothing, as a SYN, the reset has sequence number zero and acknowledges the whole
    /// segment. Linux and others ignore any other reset.
    pub(super) fn reset(subject: &Subject<'_>) -> Option<Self> {
        let flow = &subject.ip.flow;
        let (segment, len) = match flow.src {
            IpAddr::V4(_) => {
                let packet = ipv4::Packet::new_checked(subject.bytes).ok()?;
                (subject.bytes.get(packet.header_len()..)?, packet.payload_len())
            }
            IpAddr::V6(_) => {
                let packet = ipv6::Packet::new_checked(subject.bytes).ok()?;
                // Segments behind extension headers are ignored; no system sends them.
                let segment =
                    subject.bytes.get(ipv6::HEADER_LEN..).filter(|_| packet.next_header() == protocol::TCP)?;
                (segment, packet.payload_len())
            }
        };
        let segment = tcp::Segment::new_checked(segment).ok()?;
        let data_len = u32::try_from(len.checked_sub(segment.header_len())?).ok()?;
        let has = |bit| segment.flags() & bit != 0;
        let (sequence, acknowledgement, flags) = if has(flags::ACK) {
            (segment.acknowledgement(), 0, flags::RST)
        } else {
            let len = data_len.wrapping_add(u32::from(has(flags::SYN)) + u32::from(has(flags::FIN)));
            (0, segment.sequence().wrapping_add(len), flags::RST | flags::ACK)
        };
        let (source_port, destination_port, window) = (flow.dport, flow.sport, 0);
        let header = tcp::Repr { source_port, destination_port, sequence, acknowledgement, flags, window };
        Some(Self { addresses: (flow.dst, flow.src), header, link: subject.link })
    }

    /// Writes the frame with the segment. Returns its length in bytes, or `None` if `into` is too short.
    pub(super) fn write(&self, into: &mut [u8]) -> Option<usize> {
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
        self.header.emit(source, destination, &mut payload[..tcp::MIN_HEADER_LEN]);
        Some(len)
    }
}
