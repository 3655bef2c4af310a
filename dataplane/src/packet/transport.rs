//! The parsed payload of an IP packet, and its ports.

use std::net::IpAddr;

use super::neighbour::Neighbour;
use super::{Bytes, TcpFlags, query};
use crate::Flow;

/// The parsed payload of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp(TcpFlags),
    Udp,
    /// An SCTP packet, with the TCP flags that correspond to its first chunk.
    Sctp(TcpFlags),
    /// An ICMP echo request or reply with its identifier.
    Echo {
        /// The identifier, which a reply shares with its request.
        id: u16,
        request: bool,
    },
    /// An ICMP error. `None` if the packet that it quotes cannot belong to a session (cut short, a later fragment).
    IcmpError(Option<Embedded>),
    /// An ICMP redirect or a source quench.
    IcmpRedirect,
    /// IPv6 neighbour discovery.
    Neighbour(Neighbour),
    /// Any other protocol, and ICMP messages that are neither echo nor error.
    Other,
    /// A later fragment, which has no transport header.
    LaterFragment,
}

/// The fields of a packet quoted in an ICMP error that its session key needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Embedded {
    /// Source of the quoted packet, to which the error is sent.
    pub(crate) src: IpAddr,
    /// Destination of the quoted packet.
    pub(crate) dst: IpAddr,
    /// IANA protocol number of the quoted packet.
    pub(crate) protocol: u8,
    /// Ports or echo identifier of the quoted packet.
    pub(crate) ports: Ports,
}

/// The part of a session key that distinguishes conversations between two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ports {
    /// The protocol has no ports.
    None,
    /// Source and destination port.
    Pair(u16, u16),
    /// An echo request's identifier.
    EchoRequest(u16),
    /// An echo reply's identifier.
    EchoReply(u16),
    /// The type of an ICMP request other than an echo.
    Request(u8),
    /// The type of the ICMP request that such a message answers.
    Answer(u8),
    /// The type of an ICMP message that is neither a request nor an answer.
    Message(u8),
}

/// A transport header and the bytes that follow it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    pub(super) bytes: Bytes<'a>,
    pub(super) hop_limit: u8,
    /// Whether the bytes are the whole transport packet. False for a first fragment.
    pub(super) whole: bool,
}

impl Transport {
    /// Whether the packet opens a conversation. False for protocols that do not mark opening packets, such as UDP.
    pub(crate) const fn opens(&self) -> bool {
        match *self {
            Self::Tcp(flags) | Self::Sctp(flags) => flags.opens(),
            Self::Echo { request, .. } => request,
            _ => false,
        }
    }

    /// TCP flags, or their SCTP equivalents. `None` for other protocols.
    pub(crate) const fn flags(&self) -> Option<TcpFlags> {
        match *self {
            Self::Tcp(flags) | Self::Sctp(flags) => Some(flags),
            _ => None,
        }
    }

    /// Returns the packet's ports, echo identifier or ICMP type, as a session key contains them.
    pub(crate) fn ports(&self, flow: &Flow) -> Ports {
        match *self {
            Self::Tcp(_) | Self::Udp | Self::Sctp(_) => Ports::Pair(flow.sport, flow.dport),
            Self::Echo { id, request: true } => Ports::EchoRequest(id),
            Self::Echo { id, request: false } => Ports::EchoReply(id),
            Self::Other => flow.icmp.map_or(Ports::None, |(kind, _)| message_ports(flow.protocol, kind)),
            _ => Ports::None,
        }
    }
}

/// Returns the part of a session key for an ICMP message that is neither an echo nor an error. `number` is its protocol, `kind` its type.
fn message_ports(number: u8, kind: u8) -> Ports {
    match query::request_of(number, kind) {
        Some(request) if request == kind => Ports::Request(request),
        Some(request) => Ports::Answer(request),
        None => Ports::Message(kind),
    }
}
