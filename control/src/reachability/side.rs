//! The decisions of one end's rules about one peer, and the verdicts of both ends together.

use std::sync::Arc;

use bulkhead_classifier::{OriginId, PortRange, ServiceSet, protocol};

use crate::contract::{RuleAction, TierRule};
use crate::decision::decide;
use crate::object::Transport;

/// A class of protocols that rules distinguish. Protocols other than TCP, UDP and SCTP match only rules without ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// All other protocols, such as ICMP and GRE. They have no ports.
    Other,
}

impl Protocol {
    /// All classes of protocols.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Sctp, Self::Other];

    /// Returns the IANA protocol number. For `Other` the reserved number 255, which no rule can name.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => protocol::TCP,
            Self::Udp => protocol::UDP,
            Self::Sctp => protocol::SCTP,
            Self::Other => u8::MAX,
        }
    }

    /// Returns the name in output: `TCP`, `UDP`, `SCTP` or `other`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
            Self::Other => "other",
        }
    }

    /// Returns the class that contains an IANA protocol number.
    pub const fn of_number(number: u8) -> Self {
        match number {
            protocol::TCP => Self::Tcp,
            protocol::UDP => Self::Udp,
            protocol::SCTP => Self::Sctp,
            _ => Self::Other,
        }
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    pieces: Vec<(ServiceSet, Decision)>,
    allowed: Arc<ServiceSet>,
}

impl Side {
    /// Returns the side of an end without rules: allows all protocols and ports.
    pub fn open() -> Self {
        Self::of(vec![(ServiceSet::all(), Decision::OPEN)])
    }

    fn of(pieces: Vec<(ServiceSet, Decision)>) -> Self {
        let allowed = pieces.iter().filter(|(_, decision)| decision.allowed);
        let allowed = allowed.fold(ServiceSet::default(), |all, (services, _)| all.union(services));
        Self { pieces, allowed: Arc::new(allowed) }
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
    by_protocol: [Vec<Verdict>; Protocol::ALL.len()],
}

impl Verdicts {
    /// Combines the sides of the source and the destination.
    pub fn of(egress: &Side, ingress: &Side) -> Self {
        Self { by_protocol: Protocol::ALL.map(|protocol| both(&egress.ranges(protocol), &ingress.ranges(protocol))) }
    }

    /// Returns the verdicts of one protocol, ascending by port.
    pub fn of_protocol(&self, protocol: Protocol) -> &[Verdict] {
        &self.by_protocol[protocol as usize]
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
