//! What the rules of one end say to one other end, and both ends together.

use std::sync::Arc;

use bulkhead_classifier::{OriginId, PortRange, ServiceSet, Services, protocol};

use crate::contract::{RuleAction, TierRule};
use crate::object::Transport;

/// A class of protocols that rules tell apart. Policies name TCP, UDP and SCTP; whatever else there is meets the rules without
/// ports alone, so that all of it has one verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// All others: ICMP, GRE and so on. They have no ports.
    Other,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Sctp, Self::Other];

    /// The IANA protocol number; of the others the highest, which is reserved, so that no rule can name it.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => protocol::TCP,
            Self::Udp => protocol::UDP,
            Self::Sctp => protocol::SCTP,
            Self::Other => u8::MAX,
        }
    }

    /// `TCP`, `UDP`, `SCTP` or `other`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
            Self::Other => "other",
        }
    }

    /// The class of an IANA protocol number.
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

/// What one end says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Whether it lets the connection through.
    pub allowed: bool,
    /// The rule that decides; none where no rule does, so that the end is open.
    pub origin: Option<OriginId>,
}

impl Decision {
    /// An end without rules.
    pub const OPEN: Self = Self { allowed: true, origin: None };
}

/// What the rules of one end say to one other end: disjoint services that cover all, each with its decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    pieces: Vec<(ServiceSet, Decision)>,
    allowed: Arc<ServiceSet>,
}

impl Side {
    /// An end without rules.
    pub fn open() -> Self {
        Self::of(vec![(ServiceSet::all(), Decision::OPEN)])
    }

    fn of(pieces: Vec<(ServiceSet, Decision)>) -> Self {
        let allowed = pieces.iter().filter(|(_, decision)| decision.allowed);
        let allowed = allowed.fold(ServiceSet::default(), |all, (services, _)| all.union(services));
        Self { pieces, allowed: Arc::new(allowed) }
    }

    /// What these rules say, in their order, to somebody whom all of them name.
    pub(super) fn of_rules<'a>(rules: impl Iterator<Item = &'a TierRule>) -> Self {
        Self::watched(rules, |_, _| {})
    }

    /// The same. `hits` is told what each rule is the first of its tier to match, also where it passes it on.
    pub(super) fn watched<'a>(
        rules: impl Iterator<Item = &'a TierRule>,
        mut hits: impl FnMut(&'a TierRule, &ServiceSet),
    ) -> Self {
        // What no rule of this tier has decided, and what one has passed on to the next tier.
        let (mut open, mut passed) = (ServiceSet::all(), ServiceSet::default());
        let mut pieces: Vec<(ServiceSet, Decision)> = Vec::new();
        let mut tier = None;
        for rule in rules {
            if tier != Some(rule.tier) {
                (open, passed) = (open.union(&passed), ServiceSet::default());
                tier = Some(rule.tier);
            }
            let hit = match &rule.services {
                Services::Any => open.clone(),
                Services::Set(services) => open.intersect(services),
            };
            if hit.is_empty() {
                continue;
            }
            open = open.subtract(&hit);
            hits(rule, &hit);
            let allowed = match rule.action {
                RuleAction::Accept => true,
                RuleAction::Deny => false,
                RuleAction::Pass => {
                    passed = passed.union(&hit);
                    continue;
                }
            };
            let decision = Decision { allowed, origin: Some(rule.origin) };
            match pieces.iter_mut().find(|(_, known)| *known == decision) {
                Some((services, _)) => *services = services.union(&hit),
                None => pieces.push((hit, decision)),
            }
        }
        let rest = open.union(&passed);
        if !rest.is_empty() {
            pieces.push((rest, Decision::OPEN));
        }
        Self::of(pieces)
    }

    /// The services with their decisions: disjoint, and together all.
    pub fn pieces(&self) -> &[(ServiceSet, Decision)] {
        &self.pieces
    }

    /// The services that the end lets through.
    pub fn allowed(&self) -> &Arc<ServiceSet> {
        &self.allowed
    }

    /// Ranges of ports with their decisions: ascending, disjoint and together all ports.
    fn ranges(&self, protocol: Protocol) -> Vec<((u16, u16), Decision)> {
        let of = |(services, decision): &(ServiceSet, Decision)| -> Vec<_> {
            services.ports_of(protocol.number()).iter().map(|&ports| (ports, *decision)).collect()
        };
        let mut ranges: Vec<_> = self.pieces.iter().flat_map(of).collect();
        ranges.sort_unstable_by_key(|(ports, _)| *ports);
        ranges
    }
}

/// What both ends say to connections to a range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The destination ports; all for protocols without ports.
    pub ports: PortRange,
    /// What the source's rules say.
    pub egress: Decision,
    /// What the destination's rules say. They are asked only where the source's allow.
    pub ingress: Decision,
}

impl Verdict {
    /// Whether a connection gets through.
    pub const fn allowed(&self) -> bool {
        self.egress.allowed && self.ingress.allowed
    }

    /// The end that denies, which is the source where both do; of what gets through, both.
    pub fn deciding(&self) -> impl Iterator<Item = Decision> {
        let (egress, ingress) = (self.egress, self.ingress);
        [Some(egress), egress.allowed.then_some(ingress)]
            .into_iter()
            .flatten()
            .filter(move |decision| decision.allowed == (egress.allowed && ingress.allowed))
    }
}

/// The verdicts between two ends: for each protocol, ranges of ports that are disjoint, ascending and together all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdicts {
    by_protocol: [Vec<Verdict>; Protocol::ALL.len()],
}

impl Verdicts {
    /// What the two ends say together.
    pub fn of(egress: &Side, ingress: &Side) -> Self {
        Self { by_protocol: Protocol::ALL.map(|protocol| both(&egress.ranges(protocol), &ingress.ranges(protocol))) }
    }

    /// Those of a protocol.
    pub fn of_protocol(&self, protocol: Protocol) -> &[Verdict] {
        &self.by_protocol[protocol as usize]
    }

    /// That of one port.
    pub fn at(&self, protocol: Protocol, port: u16) -> &Verdict {
        let verdicts = self.of_protocol(protocol);
        &verdicts[verdicts.partition_point(|verdict| verdict.ports.last < port)]
    }
}

/// Cuts the ports where either changes.
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
