//! ICMP errors to the senders of dropped packets, from the node's address.
//!
//! Reported drops: no route, TTL exceeded, packet too big, unreachable next hop, and as [refusals](super::refusal) Services without
//! endpoints and addresses that no pod has. Drops by policy are silent by default, as users of NetworkPolicy expect: a client times out, and
//! a scanner learns nothing. [Refusals](super::refusal) are the exception. A packet is too big if it must not be [fragmented](super::fragmentation): IPv6, and IPv4
//! with "don't fragment".
//!
//! **Invariant.** No errors about ICMP errors, later fragments, or packets to or from group or unspecified addresses (RFC 1812 §4.3.2.7,
//! RFC 4443 §2.4(e)). No more than the [limits](super::limits) per port and per destination. No answer exceeds the packet by more than its
//! own headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::fields;
use super::limits::ErrorClass;
use super::side::Side;
use crate::packet::{self, Body, Ip, Transport};
use crate::wire::ethernet::{self, Mac, ethertype};
use crate::wire::{icmpv4, icmpv6, ipv4, ipv6, protocol};
use crate::{DropReason, LinkType, Packet, PortId, PortKind, Snapshot};

/// Maximum length of an ICMP error with its Ethernet header, in bytes.
pub const ERROR_MAX: usize = ethernet::HEADER_LEN + V6_MAX;

/// RFC 1812 §4.3.2.3: quote as much as fits into 576 bytes.
const V4_MAX: usize = 576;
/// RFC 4443 §2.4(c): quote as much as fits into IPv6's minimum MTU.
const V6_MAX: usize = ipv6::MIN_MTU;
/// TTL or hop limit of errors: the TTL of Linux, and RFC 1700's default.
pub(super) const HOP_LIMIT: u8 = 64;
/// Internetwork control, as RFC 1812 §4.3.2.5 recommends for errors.
const PRECEDENCE: u8 = 0xc0;

/// The condition that an ICMP error reports, named by the error that the sender receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The vswitch has no route: net unreachable.
    Net,
    /// The next hop does not answer: host (IPv6: address) unreachable.
    Host,
    /// The TTL or hop limit is used up: time exceeded.
    Time,
    /// The packet is too long for the next link: fragmentation needed, or packet too big.
    Size,
    /// Policy denies the packet, and senders are notified: communication administratively prohibited.
    Denied,
    /// The Service has no endpoint for the port: port unreachable, from the Service's address.
    Port,
    /// No pod has the address: host (IPv6: address) unreachable. UDP and SCTP get the error of a [port](Self::Port), because Linux
    /// passes only that on to a connected UDP socket.
    Pod,
}

impl Cause {
    /// Returns the error for a drop. `None` for silent drops. Drops by policy are only reported [on request](super::refusal).
    pub(super) const fn of(reason: DropReason) -> Option<Self> {
        Some(match reason {
            DropReason::NoRoute => Self::Net,
            DropReason::NoNeighbour | DropReason::PortDown => Self::Host,
            DropReason::TtlExpired => Self::Time,
            DropReason::PacketTooBig => Self::Size,
            DropReason::PolicyDenied => Self::Denied,
            DropReason::NoEndpoint | DropReason::UnknownServicePort => Self::Port,
            DropReason::NoSuchPod => Self::Pod,
            _ => return None,
        })
    }

    /// Returns type and code of the ICMP error (RFC 792, RFC 1191; RFC 1812 §5.2.7.1 for denials).
    const fn v4(self) -> (u8, u8) {
        use icmpv4::{kind, unreachable};
        match self {
            Self::Net => (kind::UNREACHABLE, unreachable::NET),
            Self::Host | Self::Pod => (kind::UNREACHABLE, unreachable::HOST),
            Self::Time => (kind::TIME_EXCEEDED, 0),
            Self::Size => (kind::UNREACHABLE, unreachable::FRAGMENTATION_NEEDED),
            Self::Denied => (kind::UNREACHABLE, unreachable::ADMINISTRATIVELY_PROHIBITED),
            Self::Port => (kind::UNREACHABLE, unreachable::PORT),
        }
    }

    /// Returns type and code of the ICMPv6 error (RFC 4443).
    const fn v6(self) -> (u8, u8) {
        use icmpv6::{kind, unreachable};
        match self {
            Self::Net => (kind::UNREACHABLE, unreachable::NO_ROUTE),
            Self::Host | Self::Pod => (kind::UNREACHABLE, unreachable::ADDRESS),
            Self::Time => (kind::TIME_EXCEEDED, 0),
            Self::Size => (kind::PACKET_TOO_BIG, 0),
            Self::Denied => (kind::UNREACHABLE, unreachable::ADMINISTRATIVELY_PROHIBITED),
            Self::Port => (kind::UNREACHABLE, unreachable::PORT),
        }
    }
}

/// A packet whose sender may receive an ICMP error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    /// The parsed packet.
    pub(super) ip: Ip,
    /// The packet's available bytes without Ethernet header and padding.
    pub(super) bytes: &'a [u8],
    /// The MAC addresses of frames to the packet's sender.
    pub(super) link: Link,
}

/// Destination and source MAC address of frames from the vswitch to a host on a port's link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    destination: Mac,
    source: Mac,
}

impl Link {
    /// The addresses of a frame whose next hop is not known yet.
    pub(super) const UNKNOWN: Self = Self { destination: [0; 6], source: [0; 6] };

    /// Writes the Ethernet header. Returns the bytes after it.
    pub(super) fn emit<'a>(&self, ethertype: u16, frame: &'a mut [u8]) -> &'a mut [u8] {
        ethernet::Repr { destination: self.destination, source: self.source, ethertype }.emit(frame)
    }
}

impl<'a> Subject<'a> {
    /// Returns the packet, or `None` if no error may be sent about it.
    pub(super) fn new(snapshot: &Snapshot, side: &Side, packet: &Packet<'a>) -> Option<Self> {
        let (destination, source) = (fields::destination_mac(packet.frame)?, fields::source_mac(packet.frame)?);
        if !side.has_link() || ethernet::is_group(destination) || !ethernet::is_station(source) {
            return None;
        }
        let Ok(Body::Ip(ip)) = packet::parse(LinkType::Ethernet, packet.frame, packet.wire_len).body else {
            return None;
        };
        if !is_worth_an_error(&ip) || !is_honest(snapshot, packet.in_port, &ip) {
            return None;
        }
        let bytes = packet.frame.get(ethernet::HEADER_LEN..)?;
        let bytes = &bytes[..ip_len(bytes)?.min(bytes.len())];
        let link = Link { destination: source, source: side.own_mac() };
        Some(Self { ip, bytes, link })
    }
}

/// An ICMP error that is about to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report<'a> {
    cause: Cause,
    /// Source (the node, or the called address) and destination of the error.
    addresses: Addresses,
    /// The available bytes of the quoted packet.
    quoted: &'a [u8],
    link: Link,
}

#[derive(Clone, Copy, Debug)]
enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl<'a> Report<'a> {
    /// Creates the error about a packet. `None` if there is no address to send it from.
    pub(super) fn new(snapshot: &Snapshot, subject: &Subject<'a>, cause: Cause) -> Option<Self> {
        let flow = &subject.ip.flow;
        let speaker = match (cause, node_address(snapshot, flow.src)) {
            // The sender knows the Service, not the node.
            (Cause::Port, _) => flow.dst,
            (_, Some(node)) => node,
            // As bridges do: from the called address.
            (Cause::Denied, None) => flow.dst,
            (_, None) => return None,
        };
        Self::between(cause, (speaker, flow.src), subject.bytes, subject.link)
    }

    /// Creates the error from one address to another, which quotes a packet. `None` if the addresses are of different families.
    pub(super) fn between(cause: Cause, ends: (IpAddr, IpAddr), quoted: &'a [u8], link: Link) -> Option<Self> {
        let addresses = match ends {
            (IpAddr::V4(speaker), IpAddr::V4(sender)) => Addresses::V4(speaker, sender),
            (IpAddr::V6(speaker), IpAddr::V6(sender)) => Addresses::V6(speaker, sender),
            _ => return None,
        };
        Some(Self { cause, addresses, quoted, link })
    }

    /// Returns the class of errors whose rate limit applies to this error.
    pub(super) fn class(&self) -> ErrorClass {
        if self.cause == Cause::Size { ErrorClass::TooBig } else { ErrorClass::Other }
    }

    pub(super) fn destination(&self) -> IpAddr {
        match self.addresses {
            Addresses::V4(_, sender) => sender.into(),
            Addresses::V6(_, sender) => sender.into(),
        }
    }

    /// Writes the frame. `mtu` is that of the link for which the packet is too big. Returns the length. `None` if `into` is shorter than
    /// [`ERROR_MAX`].
    pub(super) fn write(&self, mtu: usize, into: &mut [u8]) -> Option<usize> {
        let frame = into.get_mut(..ERROR_MAX)?;
        let len = match self.addresses {
            Addresses::V4(src, dst) => self.write_v4(src, dst, mtu, self.link.emit(ethertype::IPV4, frame)),
            Addresses::V6(src, dst) => self.write_v6(src, dst, mtu, self.link.emit(ethertype::IPV6, frame)),
        };
        Some(ethernet::HEADER_LEN + len)
    }

    /// Writes the error as an IPv4 packet and returns its length in bytes.
    fn write_v4(&self, source: Ipv4Addr, destination: Ipv4Addr, mtu: usize, into: &mut [u8]) -> usize {
        let quoted = self.quoted(V4_MAX - ipv4::MIN_HEADER_LEN);
        let payload_len = icmpv4::HEADER_LEN + quoted.len();
        let ip = ipv4::Repr {
            source,
            destination,
            protocol: protocol::ICMP,
            hop_limit: HOP_LIMIT,
            tos: PRECEDENCE,
            payload_len,
        };
        let message = &mut ip.emit(into)[..payload_len];
        message[icmpv4::HEADER_LEN..].copy_from_slice(quoted);
        let (kind, code) = self.cause.v4();
        let told = if self.cause == Cause::Size { u16::try_from(mtu).unwrap_or(u16::MAX) } else { 0 };
        icmpv4::Repr { kind, code, rest: told.into() }.emit(message);
        ipv4::MIN_HEADER_LEN + payload_len
    }

    /// Writes the error as an IPv6 packet and returns its length in bytes.
    fn write_v6(&self, source: Ipv6Addr, destination: Ipv6Addr, mtu: usize, into: &mut [u8]) -> usize {
        let quoted = self.quoted(V6_MAX - ipv6::HEADER_LEN);
        let payload_len = icmpv6::HEADER_LEN + quoted.len();
        let ip = ipv6::Repr { source, destination, next_header: protocol::ICMPV6, hop_limit: HOP_LIMIT, payload_len };
        let message = &mut ip.emit(into)[..payload_len];
        message[icmpv6::HEADER_LEN..].copy_from_slice(quoted);
        let (kind, code) = self.cause.v6();
        // RFC 8200 §5: no IPv6 link has a lower MTU, and senders ignore a lower value.
        let told = if self.cause == Cause::Size { u32::try_from(mtu.max(V6_MAX)).unwrap_or(u32::MAX) } else { 0 };
        icmpv6::Repr { kind, code, rest: told }.emit(source, destination, message);
        ipv6::HEADER_LEN + payload_len
    }

    /// Returns the first bytes of the packet, at most `room`, to be quoted in the error.
    fn quoted(&self, room: usize) -> &'a [u8] {
        &self.quoted[..self.quoted.len().min(room - icmpv4::HEADER_LEN)]
    }
}

/// Whether errors may be sent about the packet (RFC 1812 §4.3.2.7, RFC 4443 §2.4(e)).
fn is_worth_an_error(ip: &Ip) -> bool {
    let answers_nothing = match ip.transport {
        Transport::IcmpError(_) | Transport::IcmpRedirect | Transport::Neighbour(_) | Transport::LaterFragment => true,
        _ => ip.fragment.is_some_and(|part| !part.is_first()),
    };
    !answers_nothing && fields::is_routable(ip.flow.src) && fields::is_routable(ip.flow.dst)
}

/// Whether the sender owns its address. The engine has checked it for all reported drops. An error to a host that sent nothing would be
/// worse than a missing one.
fn is_honest(snapshot: &Snapshot, in_port: PortId, ip: &Ip) -> bool {
    match snapshot.owner(ip.flow.src) {
        Some(owner) => owner == in_port,
        None => snapshot.port(in_port).is_some_and(|port| port.kind != PortKind::Pod),
    }
}

/// Returns the packet's length in bytes by its IP header. `None` if the header is invalid.
fn ip_len(bytes: &[u8]) -> Option<usize> {
    match bytes.first()? >> 4 {
        4 => ipv4::Packet::new_checked(bytes).ok().map(|packet| packet.total_len()),
        _ => ipv6::Packet::new_checked(bytes).ok().map(|packet| packet.total_len()),
    }
}

/// Returns the node's source address for messages to `peer`: of the host port's addresses, the one with the longest common prefix, which is
/// the one of the same subnet. `None` if the host has no address of the family.
pub(super) fn node_address(snapshot: &Snapshot, peer: IpAddr) -> Option<IpAddr> {
    let host = snapshot.port(snapshot.host()?)?;
    let usable = host.addresses.iter().filter(|address| match (address, peer) {
        (IpAddr::V4(_), IpAddr::V4(_)) => true,
        // A link-local address is only valid on its own link.
        (IpAddr::V6(own), IpAddr::V6(peer)) => !own.is_unicast_link_local() || peer.is_unicast_link_local(),
        _ => false,
    });
    usable.copied().max_by_key(|&address| bits_in_common(address, peer))
}

fn bits_in_common(one: IpAddr, other: IpAddr) -> u32 {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (u32::from(one) ^ u32::from(other)).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (u128::from(one) ^ u128::from(other)).leading_zeros(),
        _ => 0,
    }
}
