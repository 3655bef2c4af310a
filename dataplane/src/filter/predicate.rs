//! A predicate on a packet: its family, protocol, ports or addresses.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::protocol;
use ipnet::IpNet;

use super::Subject;

/// Which ends of a packet a predicate tests: source, destination, either or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sides {
    Source,
    Destination,
    Either,
    Both,
}

impl Sides {
    #[inline]
    fn of<T>(self, [source, destination]: [T; 2], test: impl Fn(T) -> bool) -> bool {
        match self {
            Self::Source => test(source),
            Self::Destination => test(destination),
            Self::Either => test(source) || test(destination),
            Self::Both => test(source) && test(destination),
        }
    }
}

/// A condition on one property of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Predicate {
    /// True for IPv6, false for IPv4.
    Family(bool),
    Protocol(u8),
    /// Whether the ports are in this inclusive range. False for protocols without ports.
    Ports(Sides, u16, u16),
    /// Whether the IPv4 addresses are in the network with this address and mask.
    V4(Sides, u32, u32),
    V6(Sides, u128, u128),
    Among(Sides, Arc<HashSet<IpAddr>>),
}

impl Predicate {
    /// Returns the predicate for addresses in a network.
    pub(super) fn net(sides: Sides, net: IpNet) -> Self {
        match net {
            IpNet::V4(net) => Self::V4(sides, net.network().into(), net.netmask().into()),
            IpNet::V6(net) => Self::V6(sides, net.network().into(), net.netmask().into()),
        }
    }

    #[inline]
    pub(super) fn holds(&self, subject: &impl Subject) -> bool {
        match self {
            Self::Family(v6) => subject.is_v6() == *v6,
            Self::Protocol(number) => subject.protocol() == *number,
            Self::Ports(sides, low, high) => {
                let has_ports = matches!(subject.protocol(), protocol::TCP | protocol::UDP | protocol::SCTP);
                has_ports && sides.of(subject.ports(), |port| (*low..=*high).contains(&port))
            }
            Self::V4(sides, net, mask) => {
                let is_in = |address| matches!(address, IpAddr::V4(address) if u32::from(address) & mask == *net);
                !subject.is_v6() && sides.of(subject.addresses(), is_in)
            }
            Self::V6(sides, net, mask) => {
                let is_in = |address| matches!(address, IpAddr::V6(address) if u128::from(address) & mask == *net);
                subject.is_v6() && sides.of(subject.addresses(), is_in)
            }
            Self::Among(sides, addresses) => sides.of(subject.addresses(), |address| addresses.contains(&address)),
        }
    }
}
