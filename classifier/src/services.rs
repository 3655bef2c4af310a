//! Sets of services: pairs of a protocol number and a destination port.

use std::fmt;
use std::sync::Arc;

use crate::address_set::{interval_contains, interval_intersect, interval_subtract, normalise};
use crate::protocol;

/// An inclusive range of ports in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRange {
    /// The lowest port.
    pub first: u16,
    /// The highest port, at least `first`.
    pub last: u16,
}

impl PortRange {
    /// Every port.
    pub const ALL: Self = Self { first: 0, last: u16::MAX };

    /// Returns a range of one port.
    pub const fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// Whether the port is in the range.
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ALL => f.write_str("*"),
            Self { first, last } if first == last => write!(f, "{first}"),
            Self { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

/// Protocol numbers `protocols.0 ..= protocols.1` with the same ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Service {
    /// The lowest and the highest protocol number.
    pub protocols: (u8, u8),
    /// Destination ports.
    pub ports: PortRange,
}

impl fmt::Display for Service {
    /// `TCP:80`, `UDP:*`, `protocols 133-255`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocols {
            (first, last) if first != last => write!(f, "protocols {first}-{last}")?,
            (protocol::TCP, _) => f.write_str("TCP")?,
            (protocol::UDP, _) => f.write_str("UDP")?,
            (protocol::SCTP, _) => f.write_str("SCTP")?,
            (number, _) => write!(f, "protocol {number}")?,
        }
        let ports_say_something =
            matches!(self.protocols, (a, b) if a == b && has_ports(a)) || self.ports != PortRange::ALL;
        if ports_say_something { write!(f, ":{}", self.ports) } else { Ok(()) }
    }
}

const fn has_ports(number: u8) -> bool {
    matches!(number, protocol::TCP | protocol::UDP | protocol::SCTP)
}

/// The service field of a rule: every protocol and port, or the members of a set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Services {
    /// Every protocol and port.
    Any,
    /// The members of the set. An empty set matches nothing.
    Set(Arc<ServiceSet>),
}

impl Services {
    /// Whether a packet of this protocol to this port matches.
    pub fn contains(&self, protocol: u8, port: u16) -> bool {
        match self {
            Self::Any => true,
            Self::Set(set) => set.contains(protocol, port),
        }
    }

    /// Returns the services that both match.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Any, one) | (one, Self::Any) => one.clone(),
            (Self::Set(a), Self::Set(b)) => a.intersect(b).into(),
        }
    }
}

impl From<ServiceSet> for Services {
    /// Wraps the set, or returns [`Services::Any`] if it holds every protocol and port.
    fn from(set: ServiceSet) -> Self {
        if set == ServiceSet::all() { Self::Any } else { Self::Set(Arc::new(set)) }
    }
}

/// A set of (protocol, destination port) pairs.
///
/// Stored as ascending blocks of protocol numbers that have the same ports, as intervals that neither overlap nor touch. This form is
/// canonical: equal sets are equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServiceSet {
    blocks: Vec<Block>,
}

/// Consecutive protocol numbers with the same ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Block {
    protocols: (u8, u8),
    ports: Vec<(u16, u16)>,
}

impl ServiceSet {
    /// Returns the set of every protocol number and port.
    pub fn all() -> Self {
        Self { blocks: vec![Block { protocols: (0, u8::MAX), ports: vec![(0, u16::MAX)] }] }
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Whether the pair of protocol and port is a member.
    pub fn contains(&self, protocol: u8, port: u16) -> bool {
        interval_contains(self.ports_of(protocol), port)
    }

    /// Returns the ports of one protocol, as ascending disjoint intervals.
    pub fn ports_of(&self, protocol: u8) -> &[(u16, u16)] {
        let after = self.blocks.partition_point(|block| block.protocols.0 <= protocol);
        match after.checked_sub(1).map(|at| &self.blocks[at]) {
            Some(block) if protocol <= block.protocols.1 => &block.ports,
            _ => &[],
        }
    }

    /// Returns the members as ascending blocks of consecutive protocol numbers and a port range each.
    pub fn services(&self) -> impl Iterator<Item = Service> + '_ {
        self.blocks.iter().flat_map(|block| {
            let protocols = block.protocols;
            block.ports.iter().map(move |&(first, last)| Service { protocols, ports: PortRange { first, last } })
        })
    }

    /// Returns the members' protocol numbers as ascending ranges. The numbers of a range have the same ports.
    pub fn protocols(&self) -> impl Iterator<Item = (u8, u8)> + '_ {
        self.blocks.iter().map(|block| block.protocols)
    }

    /// Returns the union: the members of this set, of `other`, or of both.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.merge(other, |a, b| {
            let mut ports = [a, b].concat();
            normalise(&mut ports);
            ports
        })
    }

    /// Returns the intersection: the pairs that are members of both sets.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        self.merge(other, interval_intersect)
    }

    /// Returns the members that are not in `other`.
    #[must_use]
    pub fn subtract(&self, other: &Self) -> Self {
        self.merge(other, interval_subtract)
    }

    /// Combines the ports of each run of protocol numbers in which both sets are constant.
    fn merge(&self, other: &Self, combine: impl Fn(&[(u16, u16)], &[(u16, u16)]) -> Vec<(u16, u16)>) -> Self {
        let mut starts: Vec<u8> = vec![0];
        for block in self.blocks.iter().chain(&other.blocks) {
            starts.push(block.protocols.0);
            starts.extend(block.protocols.1.checked_add(1));
        }
        starts.sort_unstable();
        starts.dedup();
        let mut merged = Self::default();
        for (at, &first) in starts.iter().enumerate() {
            let last = starts.get(at + 1).map_or(u8::MAX, |next| next - 1);
            merged
                .push(Block { protocols: (first, last), ports: combine(self.ports_of(first), other.ports_of(first)) });
        }
        merged
    }

    /// Appends a block after all others. Joins it to the last one if they touch and have the same ports.
    fn push(&mut self, block: Block) {
        if block.ports.is_empty() {
            return;
        }
        match self.blocks.last_mut() {
            Some(last) if last.ports == block.ports && last.protocols.1.checked_add(1) == Some(block.protocols.0) => {
                last.protocols.1 = block.protocols.1;
            }
            _ => self.blocks.push(block),
        }
    }
}

impl FromIterator<Service> for ServiceSet {
    fn from_iter<I: IntoIterator<Item = Service>>(services: I) -> Self {
        services.into_iter().fold(Self::default(), |set, Service { protocols, ports }| {
            set.union(&Self { blocks: vec![Block { protocols, ports: vec![(ports.first, ports.last)] }] })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(services: &[(u8, u16, u16)]) -> ServiceSet {
        services
            .iter()
            .map(|&(number, first, last)| Service { protocols: (number, number), ports: PortRange { first, last } })
            .collect()
    }

    #[test]
    fn sctp_and_tcp_are_never_mixed_up() {
        let only_sctp = set(&[(protocol::SCTP, 80, 80)]);
        assert!(only_sctp.contains(protocol::SCTP, 80));
        assert!(!only_sctp.contains(protocol::TCP, 80));
    }

    #[test]
    fn everything_but_three_protocols_still_holds_icmp() {
        let l4 = set(&[(protocol::TCP, 0, 65535), (protocol::UDP, 0, 65535), (protocol::SCTP, 0, 65535)]);
        let rest = ServiceSet::all().subtract(&l4);
        assert!(rest.contains(protocol::ICMP, 0) && rest.contains(255, 0) && rest.contains(0, 0));
        assert!(!rest.contains(protocol::UDP, 53));
        assert_eq!(Services::from(rest.union(&l4)), Services::Any);
    }

    #[test]
    fn services_read_as_people_write_them() {
        let shown: Vec<_> = set(&[(6, 80, 80), (17, 0, 65535), (132, 1, 9), (58, 0, 65535)])
            .services()
            .map(|s| s.to_string())
            .collect();
        assert_eq!(shown, ["TCP:80", "UDP:*", "protocol 58", "SCTP:1-9"]);
    }

    fn service() -> impl Strategy<Value = Service> {
        (0u8..8, 0u8..4, 0u16..16, 0u16..8).prop_map(|(number, more, first, width)| Service {
            protocols: (number, number + more),
            ports: PortRange { first, last: first + width },
        })
    }

    proptest! {
        #[test]
        fn set_algebra_equals_membership_one_service_at_a_time(
            a in proptest::collection::vec(service(), 0..6),
            b in proptest::collection::vec(service(), 0..6),
        ) {
            let inside = |all: &[Service], p: u8, port: u16| {
                all.iter().any(|s| s.protocols.0 <= p && p <= s.protocols.1 && s.ports.contains(port))
            };
            let (sa, sb): (ServiceSet, ServiceSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            prop_assert_eq!(&sa.services().collect::<ServiceSet>(), &sa);
            for p in 0u8..14 {
                for port in 0u16..28 {
                    let (ia, ib) = (inside(&a, p, port), inside(&b, p, port));
                    prop_assert_eq!(sa.contains(p, port), ia);
                    prop_assert_eq!(sa.union(&sb).contains(p, port), ia || ib);
                    prop_assert_eq!(sa.subtract(&sb).contains(p, port), ia && !ib);
                    prop_assert_eq!(sa.intersect(&sb).contains(p, port), ia && ib);
                    prop_assert_eq!(ServiceSet::all().subtract(&sa).contains(p, port), !ia);
                }
            }
        }
    }
}
