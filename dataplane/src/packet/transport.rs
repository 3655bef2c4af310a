//! What an IP packet carries, and which of its numbers count as ports.

use std::net::IpAddr;

use super::neighbour::Neighbour;
use super::{Bytes, TcpFlags};
use crate::Flow;

/// The payload of a packet, as the pipeline sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// A TCP segment.
    Tcp(TcpFlags),
    /// A UDP datagram.
    Udp,
    /// An SCTP packet, with the TCP flags that mean what its first chunk says.
    Sctp(TcpFlags),
    /// An ICMP echo request or reply with its identifier.
    Echo {
        /// What ties a reply to its request.
        id: u16,
        /// Whether it is the request.
        request: bool,
    },
    /// An ICMP error; none when the packet in it could not have had a session (cut short, a later fragment).
    IcmpError(Option<Embedded>),
    /// An ICMP redirect or a source quench.
    IcmpRedirect,
    /// IPv6 neighbour discovery.
    Neighbour(Neighbour),
    /// Any other protocol, and ICMP messages that are neither echo nor error.
    Other,
    /// The middle or the end of a datagram: there is no header to look at.
    LaterFragment,
}

/// The packet that an ICMP error is about, as far as its session can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Embedded {
    /// Who sent it: the error goes back there.
    pub(crate) src: IpAddr,
    /// Where it was going.
    pub(crate) dst: IpAddr,
    /// Its protocol.
    pub(crate) protocol: u8,
    /// Its ports or echo identifier.
    pub(crate) ports: Ports,
}

/// What tells apart the conversations between two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ports {
    /// Nothing: the protocol has no ports.
    None,
    /// Source and destination port.
    Pair(u16, u16),
    /// An echo request's identifier.
    EchoRequest(u16),
    /// An echo reply's identifier.
    EchoReply(u16),
}

/// A transport header and what follows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment<'a> {
    pub(super) bytes: Bytes<'a>,
    pub(super) hop_limit: u8,
    /// Whether the packet is not a first fragment.
    pub(super) whole: bool,
}

impl Transport {
    /// Whether the packet says of itself that it begins a conversation. UDP and most protocols do not say.
    pub(crate) const fn opens(&self) -> bool {
        match *self {
            Self::Tcp(flags) | Self::Sctp(flags) => flags.opens(),
            Self::Echo { request, .. } => request,
            _ => false,
        }
    }

    /// What the packet says about how far its connection is.
    pub(crate) const fn flags(&self) -> Option<TcpFlags> {
        match *self {
            Self::Tcp(flags) | Self::Sctp(flags) => Some(flags),
            _ => None,
        }
    }

    /// What tells this conversation apart from others between the same addresses.
    pub(crate) const fn ports(&self, flow: &Flow) -> Ports {
        match *self {
            Self::Tcp(_) | Self::Udp | Self::Sctp(_) => Ports::Pair(flow.sport, flow.dport),
            Self::Echo { id, request: true } => Ports::EchoRequest(id),
            Self::Echo { id, request: false } => Ports::EchoReply(id),
            _ => Ports::None,
        }
    }
}
