//! Parsing: bytes in, a small value that says what the pipeline must know out.
//!
//! One file per protocol, all of one shape: the lengths and field positions as constants, a `parse` that takes the
//! header's bytes, tests on byte arrays. Nothing is copied but the few fields that forwarding and policy look at.
//!
//! ```text
//!   link (ethernet, cooked, loopback, none) -> arp
//!                                          \-> ipv4 / ipv6 (options, extension headers, fragment) -> transport
//!                                                                 tcp · udp · sctp · icmp · icmpv6 -> neighbour
//! ```
//!
//! **Contract.** No parser panics on any input and none reads outside the bytes that it is given. What is not there
//! or contradicts itself is a [`DropReason`], never a default value: a packet that is not understood does not pass.
//! Parsing verifies no checksums: captures hold packets from before an interface filled them in, and a wrong checksum is
//! the receiver's to find. Only a packet that would change a session's state is looked at once more ([`Payload`]).
//!
//! A capture may have cut the frame. So two lengths go along: the bytes that are there, and how many there were on the
//! wire. Lengths in headers are held against the wire, fields are read from the bytes.

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
pub(crate) use segment::{Checksum, Payload, SeqSpan};
pub(crate) use tcp::Flags as TcpFlags;
pub(crate) use transport::{Embedded, Ports, Transport};

use crate::wire::ethernet::ethertype;
use crate::{DropReason, Flow};

/// What the pipeline knows about a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parsed {
    /// The sender's MAC address, where the link layer has one.
    pub(crate) source_mac: Option<[u8; 6]>,
    /// Who talks to whom; also there when parsing failed later on.
    pub(crate) flow: Option<Flow>,
    /// What it is.
    pub(crate) body: Result<Body, DropReason>,
}

impl Parsed {
    /// The control bits of a TCP segment.
    pub(crate) fn tcp_flags(&self) -> Option<TcpFlags> {
        match &self.body {
            Ok(Body::Ip(ip)) => ip.transport.flags().filter(|_| ip.flow.protocol == protocol::TCP),
            Ok(Body::Arp(_)) | Err(_) => None,
        }
    }
}

/// A frame that was understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// Address resolution for IPv4.
    Arp(Arp),
    /// IPv4 or IPv6.
    Ip(Ip),
}

/// An IP packet, whole or a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ip {
    /// Who talks to whom.
    pub(crate) flow: Flow,
    /// TTL or hop limit.
    pub(crate) hop_limit: u8,
    /// Which part of a datagram it is; none for a whole one (an atomic fragment is whole, RFC 6946).
    pub(crate) fragment: Option<Fragment>,
    /// What it carries.
    pub(crate) transport: Transport,
}

/// A part of a datagram. Positions are bytes in the datagram's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// The identification that all fragments of the datagram share.
    pub(crate) id: u32,
    /// The first byte.
    pub(crate) start: u32,
    /// The byte after the last.
    pub(crate) end: u32,
    /// Whether more fragments follow.
    pub(crate) more: bool,
}

impl Fragment {
    /// Whether this is the part that holds the transport header.
    pub(crate) const fn is_first(self) -> bool {
        self.start == 0
    }
}

/// Bytes of a packet from some header on: those that were captured, and how many there were on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a> {
    /// The bytes that are there; never more than there were on the wire.
    pub(crate) seen: &'a [u8],
    /// How many there were on the wire.
    pub(crate) wire_len: usize,
}

impl<'a> Bytes<'a> {
    /// All bytes of a frame. A wire length below the bytes that are there is a capture's mistake and counts as those.
    pub(crate) fn new(seen: &'a [u8], wire_len: usize) -> Self {
        Self { seen, wire_len: wire_len.max(seen.len()) }
    }

    /// What follows the first `count` bytes; none when the wire did not have that many.
    pub(crate) fn skip(self, count: usize) -> Option<Self> {
        let wire_len = self.wire_len.checked_sub(count)?;
        Some(Self { seen: self.seen.get(count..).unwrap_or_default(), wire_len })
    }

    /// The first `count` bytes; none when the wire did not have that many.
    pub(crate) fn take(self, count: usize) -> Option<Self> {
        (count <= self.wire_len).then(|| Self { seen: &self.seen[..count.min(self.seen.len())], wire_len: count })
    }
}

/// What follows a link header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    Ipv4,
    Ipv6,
    Arp,
}

impl Network {
    /// From an [ethertype].
    fn from_ethertype(ethertype: u16) -> Result<Self, DropReason> {
        match ethertype {
            ethertype::IPV4 => Ok(Self::Ipv4),
            ethertype::IPV6 => Ok(Self::Ipv6),
            ethertype::ARP => Ok(Self::Arp),
            ethertype::VLAN | ethertype::SERVICE_VLAN | ethertype::OLD_SERVICE_VLAN => Err(DropReason::VlanTagged),
            _ => Err(DropReason::UnknownEthertype),
        }
    }

    /// From the version field of a packet without a link header.
    fn from_version(packet: &[u8]) -> Result<Self, DropReason> {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => Ok(Self::Ipv4),
            Some(6) => Ok(Self::Ipv6),
            Some(_) => Err(DropReason::UnknownEthertype),
            None => Err(DropReason::LinkTruncated),
        }
    }
}

/// What a quick look at the link header finds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inner<'a> {
    V4(Bytes<'a>),
    V6(Bytes<'a>),
}

/// The first step of the quick way: the IP packet and its sender's MAC address. A part of the loop that parses a burst:
/// called, its answer goes through memory.
#[inline(always)]
pub(crate) fn open(link: LinkType, frame: &[u8], wire_len: usize) -> Option<(Inner<'_>, Option<[u8; 6]>)> {
    let mut source_mac = None;
    match parse_link(link, Bytes::new(frame, wire_len), &mut source_mac) {
        Ok((Network::Ipv4, packet)) => Some((Inner::V4(packet), source_mac)),
        Ok((Network::Ipv6, packet)) => Some((Inner::V6(packet), source_mac)),
        _ => None,
    }
}

/// Parses a frame.
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

/// Takes the link header off. The source MAC is told even when the rest of the frame is not understood.
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

/// What tells who sent a captured frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    /// The source of the link layer.
    pub(crate) mac: Option<[u8; 6]>,
    /// The source of the packet, or the sender of the ARP message.
    pub(crate) address: Option<IpAddr>,
    /// Whether the packet is as its first sender sent it: ARP, or a hop limit that systems begin with. Then MAC and
    /// address belong together; behind a router the MAC would be the router's.
    pub(crate) is_unrouted: bool,
}

/// Reads who sent a frame.
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
