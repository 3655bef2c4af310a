//! The decisions of one end's rules about one peer, and the verdicts of both ends together.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bulkhead_classifier::{OriginId, PortRange, ServiceSet, protocol};

use crate::contract::{RuleAction, TierRule};
use crate::decision::decide;
use crate::object::Transport;

/// A class of protocols that rules distinguish. Only policies of other products distinguish protocols other than TCP, UDP and SCTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// Another protocol, by its IANA number. It has no ports, except ICMP and ICMPv6, whose port is the type times 256 plus the code.
    Number(u8),
    /// The protocols that no rule in question names. They have no ports.
    Other,
}

impl Protocol {
    /// The classes of protocols that policies of Kubernetes' own kinds distinguish.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Sctp, Self::Other];

    /// Returns the IANA protocol number. For `Other` the reserved number 255.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => protocol::TCP,
            Self::Udp => protocol::UDP,
            Self::Sctp => protocol::SCTP,
            Self::Number(number) => number,
            Self::Other => u8::MAX,
        }
    }

    /// Returns the name in output: `TCP`, `UDP`, `SCTP`, `ICMP`, `ICMPv6`, `protocol 47` or `other`.
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::Tcp => "TCP".into(),
            Self::Udp => "UDP".into(),
            Self::Sctp => "SCTP".into(),
            Self::Number(protocol::ICMP) => "ICMP".into(),
            Self::Number(protocol::ICMPV6) => "ICMPv6".into(),
            Self::Number(number) => format!("protocol {number}").into(),
            Self::Other => "other".into(),
        }
    }

    /// Returns the protocol as one of those whose ports objects of Kubernetes name. `None` for other protocols.
    pub fn transport(self) -> Option<Transport> {
        Transport::ALL.into_iter().find(|&transport| Self::from(transport) == self)
    }

    /// Whether hosts send packets of the protocol in this address family. False only for ICMP of the other family.
    pub const fn is_of_family(self, is_ipv4: bool) -> bool {
        match self {
            Self::Number(protocol::ICMP) => is_ipv4,
            Self::Number(protocol::ICMPV6) => !is_ipv4,
            _ => true,
        }
    }

    /// Whether the port of a packet is its ICMP type and code.
    pub const fn is_icmp(self) -> bool {
        matches!(self, Self::Number(protocol::ICMP | protocol::ICMPV6))
    }

    /// Returns the class that contains an IANA protocol number.
    pub const fn of_number(number: u8) -> Self {
        match number {
            protocol::TCP => Self::Tcp,
            protocol::UDP => Self::Udp,
            protocol::SCTP => Self::Sctp,
            u8::MAX => Self::Other,
            number => Self::Number(number),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}

impl From<Transport> for Protocol {
    fn from(transport: Transport) -> Self {
        Self::of_number(transport.number())
    }
}

/// The decision of one end about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Whether this end allows the connection.
    pub allowed: bool,
    /// The rule that decides. `None` if no rule decides; the end then allows the connection.
    pub origin: Option<OriginId>,
}

impl Decision {
    /// The decision of an end without rules.
    pub const OPEN: Self = Self { allowed: true, origin: None };
}

/// The decisions of one end's rules about one peer, for disjoint sets of protocols and ports that together cover everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Side {
    pieces: Vec<(ServiceSet, Decision)>,
    allowed: Arc<ServiceSet>,
    /// The numbers of other protocols than TCP, UDP and SCTP about which the decisions are not those of [`Protocol::Other`], ascending.
    named: Vec<u8>,
}

impl Side {
    /// Returns the side of an end without rules: allows all protocols and ports.
    pub fn open() -> Self {
        Self::of(vec![(ServiceSet::all(), Decision::OPEN)])
    }

    fn of(pieces: Vec<(ServiceSet, Decision)>) -> Self {
        let allowed = pieces.iter().filter(|(_, decision)| decision.allowed);
        let allowed = allowed.fold(ServiceSet::default(), |all, (services, _)| all.union(services));
        Self { allowed: Arc::new(allowed), named: named(&pieces), pieces }
    }

    /// Evaluates rules in order for a peer that all of them match.
    pub(super) fn of_rules<'a>(rules: impl Iterator<Item = &'a TierRule>) -> Self {
        Self::watched(rules, |_, _| {})
    }

    /// As `of_rules`, and calls `hits` with the services for which each rule is the first match in its tier, including Pass rules.
    pub(super) fn watched<'a>(
        rules: impl Iterator<Item = &'a TierRule>,
        hits: impl FnMut(&'a TierRule, &ServiceSet),
    ) -> Self {
        let decision = |by| match by {
            Some((action, origin)) => Decision { allowed: action == RuleAction::Accept, origin: Some(origin) },
            None => Decision::OPEN,
        };
        Self::of(decide(rules, hits).into_iter().map(|(services, by)| (services, decision(by))).collect())
    }

    /// Returns the sets of protocols and ports with their decisions. The sets are disjoint and cover everything.
    pub fn pieces(&self) -> &[(ServiceSet, Decision)] {
        &self.pieces
    }

    /// Returns the protocols and ports that the end allows.
    pub fn allowed(&self) -> &Arc<ServiceSet> {
        &self.allowed
    }

    /// Returns ranges of ports with their decisions, ascending and disjoint. They cover all ports.
    fn ranges(&self, protocol: Protocol) -> Vec<((u16, u16), Decision)> {
        let of = |(services, decision): &(ServiceSet, Decision)| -> Vec<_> {
            services.ports_of(protocol.number()).iter().map(|&ports| (ports, *decision)).collect()
        };
        let mut ranges: Vec<_> = self.pieces.iter().flat_map(of).collect();
        ranges.sort_unstable_by_key(|(ports, _)| *ports);
        ranges
    }
}

/// Returns the numbers of protocols for [`Side::named`].
fn named(pieces: &[(ServiceSet, Decision)]) -> Vec<u8> {
    let ranges = pieces.iter().flat_map(|(services, _)| services.protocols());
    let mut starts: Vec<u8> = ranges.flat_map(|(first, last)| [Some(first), last.checked_add(1)]).flatten().collect();
    starts.sort_unstable();
    starts.dedup();
    let other = Protocol::Other.number();
    let is_named =
        |number: u8| pieces.iter().any(|(services, _)| services.ports_of(number) != services.ports_of(other));
    // `None` for TCP, UDP and SCTP, whose verdicts are always apart.
    let is_other = |number: u8| matches!(Protocol::of_number(number), Protocol::Number(_)).then(|| is_named(number));
    let ends = starts.iter().skip(1).map(|next| next - 1).chain([u8::MAX]);
    // Numbers of one range are alike, except that TCP, UDP and SCTP do not count.
    let ranges = starts.iter().zip(ends).filter(|(first, last)| (**first..=*last).find_map(is_other) == Some(true));
    ranges.flat_map(|(&first, last)| first..=last).filter(|&number| is_other(number).is_some()).collect()
}

/// The decisions of both ends about connections to a range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The destination ports. All ports for protocols without ports.
    pub ports: PortRange,
    /// The decision of the source's rules.
    pub egress: Decision,
    /// The decision of the destination's rules. Has no effect if the source's rules deny.
    pub ingress: Decision,
}

impl Verdict {
    /// Whether both ends allow the connection.
    pub const fn allowed(&self) -> bool {
        self.egress.allowed && self.ingress.allowed
    }

    /// Returns the decisions that determine the verdict: the denying end's, which is the source's if both deny, or both if allowed.
    pub fn deciding(&self) -> impl Iterator<Item = Decision> {
        let (egress, ingress) = (self.egress, self.ingress);
        [Some(egress), egress.allowed.then_some(ingress)]
            .into_iter()
            .flatten()
            .filter(move |decision| decision.allowed == (egress.allowed && ingress.allowed))
    }
}

/// The verdicts between two ends: for each protocol, ascending and disjoint ranges that cover all ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdicts {
    /// The verdicts of [`Protocol::ALL`].
    common: [Vec<Verdict>; Protocol::ALL.len()],
    /// The verdicts of other protocols, by ascending number, if they are not those of [`Protocol::Other`].
    named: Vec<(u8, Vec<Verdict>)>,
}

impl Verdicts {
    /// Combines the sides of the source and the destination.
    pub fn of(egress: &Side, ingress: &Side) -> Self {
        let of = |protocol| both(&egress.ranges(protocol), &ingress.ranges(protocol));
        let common = Protocol::ALL.map(of);
        let [.., other] = &common;
        let mut numbers = [&egress.named[..], &ingress.named].concat();
        numbers.sort_unstable();
        numbers.dedup();
        let named = numbers.into_iter().map(|number| (number, of(Protocol::Number(number))));
        Self { named: named.filter(|(_, verdicts)| verdicts != other).collect(), common }
    }

    /// Returns the protocols that the verdicts distinguish, in the order of their names in output. `Other` is the last one.
    pub fn protocols(&self) -> impl Iterator<Item = Protocol> {
        let [tcp, udp, sctp, other] = Protocol::ALL;
        let named = self.named.iter().map(|(number, _)| Protocol::Number(*number));
        [tcp, udp, sctp].into_iter().chain(named).chain([other])
    }

    /// Returns the verdicts of one protocol, ascending by port.
    pub fn of_protocol(&self, protocol: Protocol) -> &[Verdict] {
        let [tcp, udp, sctp, other] = &self.common;
        match protocol {
            Protocol::Tcp => tcp,
            Protocol::Udp => udp,
            Protocol::Sctp => sctp,
            Protocol::Number(number) => match self.named.binary_search_by_key(&number, |(number, _)| *number) {
                Ok(at) => &self.named[at].1,
                Err(_) => other,
            },
            Protocol::Other => other,
        }
    }

    /// Returns the verdict of one destination port.
    pub fn at(&self, protocol: Protocol, port: u16) -> &Verdict {
        let verdicts = self.of_protocol(protocol);
        &verdicts[verdicts.partition_point(|verdict| verdict.ports.last < port)]
    }
}

/// Splits the port ranges at the borders of both sides.
fn both(egress: &[((u16, u16), Decision)], ingress: &[((u16, u16), Decision)]) -> Vec<Verdict> {
    let (mut out, mut into) = (0, 0);
    let (mut verdicts, mut first) = (Vec::<Verdict>::new(), 0);
    while let (Some((left, egress)), Some((right, ingress))) = (egress.get(out), ingress.get(into)) {
        let last = left.1.min(right.1);
        match verdicts.last_mut() {
            Some(verdict) if (verdict.egress, verdict.ingress) == (*egress, *ingress) => verdict.ports.last = last,
            _ => verdicts.push(Verdict { ports: PortRange { first, last }, egress: *egress, ingress: *ingress }),
        }
        out += usize::from(left.1 == last);
        into += usize::from(right.1 == last);
        first = last.saturating_add(1);
    }
    verdicts
}
