//! Parsing: extracts from a frame what the pipeline needs.
//!
//! Each protocol has a file with lengths and offsets as constants, a `parse` function over the header's bytes, and tests on byte arrays.
//! Only the fields that forwarding and policy need are copied.
//!
//! ```text
//!   link (ethernet, cooked, loopback, none) -> arp
//!                                          \-> ipv4 / ipv6 (options, extension headers, fragment) -> transport
//!                                                                 tcp · udp · sctp · icmp · icmpv6 -> neighbour
//! ```
//!
//! **Contract.** No parser panics on any input or reads outside of its bytes. A missing or inconsistent field yields a [`DropReason`],
//! never a default value. Parsing verifies no checksums: captures contain packets from before checksum offload, and receivers check them
//! anyway. Only packets that would change a session's state are verified ([`Payload`]).
//!
//! A capture may have truncated a frame, so two lengths are kept: the captured bytes and the length on the wire. Lengths in headers are
//! checked against the wire length. Fields are read from the captured bytes.

mod arp;
mod cooked;
mod embedded;
mod ends;
mod ethernet;
mod icmp;
mod icmpv6;
mod ipv4;
mod ipv4_header;
mod ipv6;
mod ipv6_headers;
mod link;
mod loopback;
mod neighbour;
mod payload;
mod plain;
pub(crate) mod query;
mod sctp;
mod segment;
mod tcp;
mod transport;
mod udp;

use std::net::IpAddr;

use bulkhead_classifier::protocol;

pub use link::LinkType;

pub(crate) use arp::{Arp, Operation};
pub(crate) use ends::Ends;
pub(crate) use neighbour::Neighbour;
pub(crate) use plain::{Plain, parse_v4 as parse_plain_v4, parse_v6 as parse_plain_v6};
pub(crate) use segment::{Checksum, Data, Payload, Piece, SeqSpan};
pub(crate) use tcp::Flags as TcpFlags;
pub(crate) use transport::{Embedded, Ports, Transport};

use crate::wire::ethernet::ethertype;
use crate::{DropReason, Flow};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Parsed {
    /// The source MAC address. `None` if the link layer has none.
    pub(crate) source_mac: Option<[u8; 6]>,
    /// Addresses, protocol and ports. Parts after the first invalid header are 0. `None` if the IP header is invalid.
    pub(crate) flow: Option<Flow>,
    /// The content, or the reason to drop the frame.
    pub(crate) body: Result<Body, DropReason>,
}

impl Parsed {
    /// TCP control bits. `None` for other protocols.
    pub(crate) fn tcp_flags(&self) -> Option<TcpFlags> {
        match &self.body {
            Ok(Body::Ip(ip)) => ip.transport.flags().filter(|_| ip.flow.protocol == protocol::TCP),
            Ok(Body::Arp(_)) | Err(_) => None,
        }
    }
}

/// The content of a valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Arp(Arp),
    /// IPv4 or IPv6.
    Ip(Ip),
}

/// An IP packet, whole or a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ip {
    /// Addresses, protocol and ports.
    pub(crate) flow: Flow,
    /// TTL or hop limit.
    pub(crate) hop_limit: u8,
    /// The packet's part of a datagram. `None` for a whole datagram, including an atomic fragment (RFC 6946).
    pub(crate) fragment: Option<Fragment>,
    /// The parsed payload.
    pub(crate) transport: Transport,
}

/// A packet's part of a fragmented datagram. Positions count bytes of the datagram's payload, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// The identification that all fragments of the datagram share.
    pub(crate) id: u32,
    /// Position of the fragment's first byte.
    pub(crate) start: u32,
    /// Position after the fragment's last byte.
    pub(crate) end: u32,
    /// Whether further fragments of the datagram follow.
    pub(crate) more: bool,
}

impl Fragment {
    /// Whether this is the fragment with the transport header.
    pub(crate) const fn is_first(self) -> bool {
        self.start == 0
    }
}

/// The bytes of a packet from one of its headers on, and their number on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    /// The captured bytes, at most `wire_len`.
    pub(crate) seen: &'a [u8],
    /// Number of bytes on the wire, some of which the capture may lack.
    pub(crate) wire_len: usize,
}

impl<'a> Bytes<'a> {
    /// Wraps all bytes of a frame. A wire length below the captured length is corrected to it.
    pub(crate) fn new(seen: &'a [u8], wire_len: usize) -> Self {
        Self { seen, wire_len: wire_len.max(seen.len()) }
    }

    /// Returns the bytes after the first `count`. `None` if the wire length is shorter.
    pub(crate) fn skip(self, count: usize) -> Option<Self> {
        let wire_len = self.wire_len.checked_sub(count)?;
        Some(Self { seen: self.seen.get(count..).unwrap_or_default(), wire_len })
    }

    /// Returns the first `count` bytes. `None` if the wire length is shorter.
    pub(crate) fn take(self, count: usize) -> Option<Self> {
        (count <= self.wire_len).then(|| Self { seen: &self.seen[..count.min(self.seen.len())], wire_len: count })
    }
}

/// The protocol of the bytes after the link header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Ipv4,
    Ipv6,
    Arp,
}

impl Network {
    /// Returns the protocol of an [ethertype].
    fn from_ethertype(ethertype: u16) -> Result<Self, DropReason> {
        match ethertype {
            ethertype::IPV4 => Ok(Self::Ipv4),
            ethertype::IPV6 => Ok(Self::Ipv6),
            ethertype::ARP => Ok(Self::Arp),
            ethertype::VLAN | ethertype::SERVICE_VLAN | ethertype::OLD_SERVICE_VLAN => Err(DropReason::VlanTagged),
            _ => Err(DropReason::UnknownEthertype),
        }
    }

    /// Returns the protocol from the version field, for packets without a link header.
    fn from_version(packet: &[u8]) -> Result<Self, DropReason> {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => Ok(Self::Ipv4),
            Some(6) => Ok(Self::Ipv6),
            Some(_) => Err(DropReason::UnknownEthertype),
            None => Err(DropReason::LinkTruncated),
        }
    }
}

/// An IP packet without its link header.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inner<'a> {
    V4(Bytes<'a>),
    V6(Bytes<'a>),
}

/// Returns the IP packet in a frame, and its source MAC address: the first step of the fast path. `None` if the frame is not IP. Inlined
/// into the loop over a burst, because a call would return through memory.
#[inline(always)]
pub(crate) fn open(link: LinkType, frame: &[u8], wire_len: usize) -> Option<(Inner<'_>, Option<[u8; 6]>)> {
    let mut source_mac = None;
    match parse_link(link, Bytes::new(frame, wire_len), &mut source_mac) {
        Ok((Network::Ipv4, packet)) => Some((Inner::V4(packet), source_mac)),
        Ok((Network::Ipv6, packet)) => Some((Inner::V6(packet), source_mac)),
        _ => None,
    }
}

/// Parses a frame by the general parser. `wire_len` is its length on the wire, in bytes.
pub(crate) fn parse(link: LinkType, frame: &[u8], wire_len: usize) -> Parsed {
    let frame = Bytes::new(frame, wire_len);
    let mut parsed = Parsed { source_mac: None, flow: None, body: Err(DropReason::Unjudged) };
    parsed.body = parse_link(link, frame, &mut parsed.source_mac).and_then(|(network, payload)| match network {
        Network::Arp => arp::parse(payload.seen).map(Body::Arp),
        Network::Ipv4 => ipv4::parse(payload, &mut parsed.flow).map(Body::Ip),
        Network::Ipv6 => ipv6::parse(payload, &mut parsed.flow).map(Body::Ip),
    });
    parsed
}

/// Removes the link header. The source MAC address is returned even if the rest is invalid.
#[inline(always)]
fn parse_link<'a>(
    link: LinkType,
    frame: Bytes<'a>,
    source_mac: &mut Option<[u8; 6]>,
) -> Result<(Network, Bytes<'a>), DropReason> {
    let (header_len, network) = match link {
        LinkType::Ethernet => (ethernet::HEADER_LEN, ethernet::parse(frame.seen, source_mac)?),
        LinkType::LinuxSll => (cooked::SLL_LEN, cooked::parse_sll(frame.seen, source_mac)?),
        LinkType::LinuxSll2 => (cooked::SLL2_LEN, cooked::parse_sll2(frame.seen, source_mac)?),
        LinkType::Null => (loopback::HEADER_LEN, loopback::parse_null(frame.seen)?),
        LinkType::Loop => (loopback::HEADER_LEN, loopback::parse_loop(frame.seen)?),
        LinkType::Raw => (0, Network::from_version(frame.seen)?),
        LinkType::Ipv4 => (0, Network::Ipv4),
        LinkType::Ipv6 => (0, Network::Ipv6),
    };
    Ok((network, frame.skip(header_len).ok_or(DropReason::LinkTruncated)?))
}

/// The sender of a captured frame, as its headers claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    /// The link-layer source. `None` if the link layer has none.
    pub(crate) mac: Option<[u8; 6]>,
    /// The packet's source address, or the sender address of the ARP message. `None` for other frames.
    pub(crate) address: Option<IpAddr>,
    /// Whether no router has forwarded the packet: ARP, or a hop limit with an initial value. Then MAC and IP address belong to the same
    /// host.
    pub(crate) is_unrouted: bool,
}

pub(crate) fn sender(link: LinkType, frame: &[u8], wire_len: usize) -> Sender {
    let Parsed { source_mac: mac, flow, body } = parse(link, frame, wire_len);
    let (address, is_unrouted) = match body {
        Ok(Body::Arp(arp)) => (Some(IpAddr::V4(arp.sender)), true),
        Ok(Body::Ip(ip)) => (Some(ip.flow.src), matches!(ip.hop_limit, 64 | 128 | 255)),
        Err(_) => (flow.map(|flow| flow.src), false),
    };
    Sender { mac, address, is_unrouted }
}

#[cfg(test)]
pub(crate) mod tests;
