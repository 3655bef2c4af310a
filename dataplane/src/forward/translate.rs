//! Translation: writes new addresses and ports into packets to and from Services.
//!
//! Plain functions on bytes, as in [`rewrite`](super::rewrite). The engine decides the addresses and ports. An ICMP error quotes a packet
//! as it was when it was dropped, which is [translated](error) too.
//!
//! ```text
//!               address   checksum of the header   ports   checksum of the transport
//!   TCP, UDP       x          x (IPv4)               x     x: pseudo-header and ports
//!   SCTP           x          x (IPv4)               x     x: ports
//!   echoes         x          x (IPv4)               id    x: identifier, over IPv6 pseudo-header
//!   ICMPv6         x                                       x: pseudo-header
//!   others         x          x (IPv4)
//! ```
//!
//! The first fragment of a datagram has the transport header. The others only get new addresses.
//!
//! **Invariant.** A wrong checksum stays equally wrong: checksums are updated by the change (RFC 1624) and never recomputed, so that the
//! receiver still detects damaged packets. A function that returns false has changed nothing.

mod error;
mod layout;

use std::net::IpAddr;

use bulkhead_classifier::protocol;

pub use error::translate_error;

use super::fields;
use crate::flow::Translation;
use crate::packet::Ends;
use crate::translations::PlainV4;
use crate::wire::ethernet::{self, ethertype};
use crate::wire::{checksum, ipv4, ipv6, set_word, tcp, udp, word};
use layout::{Addresses, Layout};

/// Offset of the IP header in an Ethernet frame.
const IP: usize = ethernet::HEADER_LEN;
/// Both ports, source first, at the start of TCP, UDP and SCTP headers.
const PORTS_LEN: usize = 4;

/// Writes new addresses and ports into a packet and updates its checksums. For an ICMP echo the source port is the identifier. Packets of
/// protocols without ports only get new addresses. Returns false, without changes, if the addresses are of another family, if headers are
/// incomplete or inconsistent, or if ports of SCTP in a fragment would change: the change of its CRC depends on the length of the whole
/// packet, which fragments do not contain.
///
/// `frame` is the packet's first frame from the Ethernet header on. `wire_len` is the length of the whole packet in bytes with its Ethernet
/// header.
pub fn translate(frame: &mut [u8], wire_len: usize, to: &Translation) -> bool {
    Ends::of(to).is_some_and(|to| write_ends(frame, wire_len, &to, false))
}

/// [`translate`] to addresses given as words. `is_plain` tells that the packet was parsed as [plain](crate::packet::Plain) and is of the
/// addresses' family, so its headers need not be checked again.
#[inline]
pub(crate) fn write_ends(frame: &mut [u8], wire_len: usize, to: &Ends, is_plain: bool) -> bool {
    let ports = to.ports();
    let is_done = if to.is_v6() {
        translate_plain_v6(frame, wire_len, &to.addresses_v6(), ports, is_plain)
    } else {
        translate_plain_v4(frame, wire_len, &to.addresses_v4(), ports, is_plain)
    };
    is_done || translate_any(frame, wire_len, &to.translation())
}

/// [`translate`] for a plain packet with precomputed checksum changes. Returns false, without changes, if the IP header does not directly
/// follow the Ethernet header.
#[inline(always)]
pub(crate) fn write_plain_v4(frame: &mut [u8], to: &PlainV4) -> bool {
    const TRANSPORT: usize = IP + ipv4::MIN_HEADER_LEN;
    let Some((head, rest)) = frame.split_first_chunk_mut::<{ TRANSPORT + udp::HEADER_LEN }>() else { return false };
    if word(head, ethernet::field::ETHERTYPE) != ethertype::IPV4 {
        return false;
    }
    let changes = to.changes();
    let ends = to.sent();
    let is_tcp = head[IP + ipv4::field::PROTOCOL] == protocol::TCP;
    if is_tcp {
        const CHECKSUM: usize = tcp::field::CHECKSUM - udp::HEADER_LEN;
        let Some(field) = rest.get_mut(CHECKSUM..CHECKSUM + 2) else { return false };
        let sum = checksum::updated_by(word(field, 0), changes.all);
        set_word(field, 0, sum);
    } else {
        let at = TRANSPORT + udp::field::CHECKSUM;
        // See `updated` below.
        let sum = match word(head, at) {
            0 => 0,
            sum => match checksum::updated_by(sum, changes.all) {
                0 => u16::MAX,
                updated => updated,
            },
        };
        set_word(head, at, sum);
    }
    let at = IP + ipv4::field::CHECKSUM;
    let sum = checksum::updated_by(word(head, at), changes.addresses);
    set_word(head, at, sum);
    head[IP + ipv4::field::SOURCE.start..][..8].copy_from_slice(&ends.addresses_v4());
    head[TRANSPORT..][..PORTS_LEN].copy_from_slice(&ends.ports());
    true
}

/// The fast path over IPv4: TCP or UDP without options. Returns false, without changes, for other packets.
#[inline]
fn translate_plain_v4(
    frame: &mut [u8],
    wire_len: usize,
    addresses: &[u8; 8],
    ports: [u8; PORTS_LEN],
    is_plain: bool,
) -> bool {
    let wire_len = wire_len.max(frame.len());
    let Some((head, payload)) = frame.split_first_chunk_mut::<{ IP + ipv4::MIN_HEADER_LEN }>() else { return false };
    let total_len = usize::from(word(head, IP + ipv4::field::TOTAL_LEN));
    // A plain packet may have a VLAN tag.
    let is_plain = word(head, ethernet::field::ETHERTYPE) == ethertype::IPV4
        && (is_plain
            || head[IP + ipv4::field::VERSION_LEN] == 0x45
                && word(head, IP + ipv4::field::FRAGMENT) & ipv4::fragment::OFFSET == 0
                && IP + total_len <= wire_len);
    let Some(payload_len) = total_len.checked_sub(ipv4::MIN_HEADER_LEN).filter(|_| is_plain) else { return false };
    let Some(transport) = Ported::new(head[IP + ipv4::field::PROTOCOL], payload, payload_len) else { return false };
    let change = replace(head, IP + ipv4::field::SOURCE.start, addresses);
    let sum = checksum::updated(word(head, IP + ipv4::field::CHECKSUM), change);
    set_word(head, IP + ipv4::field::CHECKSUM, sum);
    transport.translate(ports, change);
    true
}

/// The fast path over IPv6: TCP or UDP without extension headers. Returns false, without changes, for other packets.
#[inline]
fn translate_plain_v6(
    frame: &mut [u8],
    wire_len: usize,
    addresses: &[u8; 32],
    ports: [u8; PORTS_LEN],
    is_plain: bool,
) -> bool {
    let wire_len = wire_len.max(frame.len());
    let Some((head, payload)) = frame.split_first_chunk_mut::<{ IP + ipv6::HEADER_LEN }>() else { return false };
    let payload_len = usize::from(word(head, IP + ipv6::field::PAYLOAD_LEN));
    let is_plain = word(head, ethernet::field::ETHERTYPE) == ethertype::IPV6
        && (is_plain || head[IP + ipv6::field::VERSION] >> 4 == 6 && IP + ipv6::HEADER_LEN + payload_len <= wire_len);
    if !is_plain {
        return false;
    }
    let Some(transport) = Ported::new(head[IP + ipv6::field::NEXT_HEADER], payload, payload_len) else { return false };
    let change = replace(head, IP + ipv6::field::SOURCE.start, addresses);
    transport.translate(ports, change);
    true
}

/// The parts of a TCP or UDP header that a translation changes.
struct Ported<'a> {
    ports: &'a mut [u8; PORTS_LEN],
    checksum: &'a mut [u8; 2],
    protocol: u8,
}

impl<'a> Ported<'a> {
    /// Finds ports and checksum in a TCP or UDP header. `None` if it is incomplete or another protocol's. `len` is the payload's length.
    #[inline]
    fn new(protocol: u8, payload: &'a mut [u8], len: usize) -> Option<Self> {
        let (header_len, checksum) = match protocol {
            protocol::TCP => (tcp::MIN_HEADER_LEN, tcp::field::CHECKSUM),
            protocol::UDP => (udp::HEADER_LEN, udp::field::CHECKSUM),
            _ => return None,
        };
        let header = payload.get_mut(..header_len).filter(|_| header_len <= len)?;
        let (ports, rest) = header.split_first_chunk_mut()?;
        let checksum = rest.get_mut(checksum - PORTS_LEN..)?.first_chunk_mut()?;
        Some(Self { ports, checksum, protocol })
    }

    /// Writes the ports and updates the checksum. `change` is the checksum change of the addresses.
    #[inline]
    fn translate(self, ports: [u8; PORTS_LEN], change: u64) {
        let change = change + checksum::change(self.ports, &ports);
        *self.ports = ports;
        *self.checksum = updated(self.protocol, u16::from_be_bytes(*self.checksum), change).to_be_bytes();
    }
}

/// Updates a transport checksum. UDP's 0 means no checksum, over IPv6 too (RFC 6935), so it stays. A result of 0 is written as 0xffff (RFC
/// 768).
#[inline]
fn updated(protocol: u8, checksum: u16, change: u64) -> u16 {
    match checksum::updated(checksum, change) {
        _ if protocol == protocol::UDP && checksum == 0 => 0,
        0 if protocol == protocol::UDP => u16::MAX,
        updated => updated,
    }
}

/// [`translate`] for packets that miss the fast path.
#[cold]
#[inline(never)]
fn translate_any(frame: &mut [u8], wire_len: usize, to: &Translation) -> bool {
    let (Some(addresses), Some(packet)) = (Addresses::new(to.src, to.dst), packet_of(frame, wire_len, to.src)) else {
        return false;
    };
    let ports = ports_of(to);
    let Some(layout) = Layout::of(packet, to.src).filter(|layout| layout.is_complete(packet, ports)) else {
        return false;
    };
    layout.translate(packet, &addresses, ports);
    true
}

/// Returns the available bytes of the IP packet in a frame, without padding. `None` if it is of another family than the address or longer
/// than the frame.
fn packet_of(frame: &mut [u8], wire_len: usize, family: IpAddr) -> Option<&mut [u8]> {
    let room = wire_len.max(frame.len()).checked_sub(IP)?;
    let ethertype = fields::ethertype_of(frame)?;
    let packet = frame.get_mut(IP..)?;
    let total_len = match family {
        IpAddr::V4(_) if ethertype == ethertype::IPV4 => ipv4::Packet::new_checked(&*packet).ok()?.total_len(),
        IpAddr::V6(_) if ethertype == ethertype::IPV6 => ipv6::Packet::new_checked(&*packet).ok()?.total_len(),
        _ => return None,
    };
    let seen = packet.len().min(total_len);
    packet.get_mut(..seen).filter(|_| total_len <= room)
}

/// Returns the ports as bytes of a transport header.
#[inline]
fn ports_of(to: &Translation) -> [u8; PORTS_LEN] {
    (u32::from(to.sport) << 16 | u32::from(to.dport)).to_be_bytes()
}

/// Writes `new` into `bytes` at `at`. Returns the [change](checksum::change) of a checksum over them.
#[inline]
fn replace(bytes: &mut [u8], at: usize, new: &[u8]) -> u64 {
    let old = &mut bytes[at..at + new.len()];
    let change = checksum::change(old, new);
    old.copy_from_slice(new);
    change
}

#[cfg(test)]
mod tests;
