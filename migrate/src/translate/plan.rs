//! From ranked policies of all tiers to the three layers of the target: an ordered list in the tier Admin, NetworkPolicies, an ordered list in
//! the tier Baseline.
//!
//! ```text
//!  tiers before NetworkPolicy ------------------------> Admin, in order; the end of a tier denies there
//!  NetworkPolicy: union, or Calico's `default`: denies -> Admin, unless nothing after them could allow the same
//!                                  accepts -----------> NetworkPolicies; Admin, if a later deny must not win, or by name, or without isolation
//!                                  isolation ---------> NetworkPolicies; Baseline for the egress of pods of several namespaces
//!  tiers behind --------------------------------------> Baseline, in order
//! ```
//! Traffic to the own node is the one exception to isolation by a NetworkPolicy, but other products judge it. So each isolation of egress gets
//! a rule at the end of Admin that denies nodes ([`Phase::NodesDenied`]), after rules that accept the nodes that the policy accepts.

use std::sync::Arc;

use bulkhead_control::cache::Cache;
use bulkhead_control::object::{
    ClusterPolicy, ClusterPolicyKind, ClusterRule, Direction, NamespaceScope, Order, Peer, PodPeer, PolicyPort,
    RuleAction, Tier,
};
use bulkhead_control::selector::Selector;

use super::default_tier;
use super::meet::{are_disjoint_peers, are_disjoint_pods, meet_peers, meet_pods, meet_ports};
use super::report::Report;

/// The place of an object in its tier of the target. Objects of one slot have rules of one action, so that their order does not matter, or
/// belong to one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    /// Before, among or behind the policies of the target's tier that are in the state.
    pub(super) zone: Zone,
    /// The number of the tier.
    pub(super) tier: usize,
    pub(super) phase: Phase,
    /// The number of the policy in order of evaluation. 0 in phases in which all objects share a place.
    pub(super) policy: usize,
    /// The number of the part of a policy with too many rules for one object.
    pub(super) part: usize,
}

/// The place of a tier relative to a tier of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Zone {
    Before,
    Among,
    Behind,
}

/// The kind of a step inside its tier, in order of evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Rules of a union that deny.
    Denied,
    /// Rules in the order of policies.
    Ordered,
    /// Rules of a union that accept.
    Accepted,
    /// Nodes that a policy accepts.
    NodesAccepted,
    /// Nodes that a policy's isolation denies.
    NodesDenied,
    /// The end of a tier.
    End,
}

impl Phase {
    /// Whether all objects of the phase share one place.
    pub(super) const fn is_shared(self) -> bool {
        !matches!(self, Self::Ordered)
    }
}

/// A rule on its way to the target.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// The policy that the rule comes from.
    pub(super) policy: Arc<ClusterPolicy>,
    pub(super) direction: Direction,
    /// The rule's index in the policy's list. `None` for the end of a tier and for isolation.
    pub(super) rule: Option<usize>,
    pub(super) subject: PodPeer,
    pub(super) action: RuleAction,
    pub(super) peers: Option<Vec<Peer>>,
    pub(super) ports: Option<Vec<PolicyPort>>,
    pub(super) slot: Slot,
}

impl Step {
    /// Returns the step of a policy's rule.
    pub(super) fn of(policy: &Arc<ClusterPolicy>, direction: Direction, at: usize, slot: Slot) -> Self {
        let rule = &rules(policy, direction)[at];
        Self {
            policy: policy.clone(),
            direction,
            rule: Some(at),
            subject: policy.subject.clone(),
            action: rule.action,
            peers: rule.traffic.peers.clone(),
            ports: rule.traffic.ports.clone(),
            slot,
        }
    }

    /// Returns the step that does something with all traffic of the policy's pods.
    pub(super) fn everything(
        policy: &Arc<ClusterPolicy>,
        direction: Direction,
        action: RuleAction,
        slot: Slot,
    ) -> Self {
        let (subject, policy) = (policy.subject.clone(), policy.clone());
        Self { policy, direction, rule: None, subject, action, peers: None, ports: None, slot }
    }

    /// Whether no packet can match both steps.
    pub(super) fn is_apart(&self, other: &Self) -> bool {
        are_disjoint_pods(&self.subject, &other.subject)
            || super::meet::are_disjoint_ports(&self.ports, &other.ports)
            || are_disjoint_peers(&self.peers, &other.peers)
    }

    /// Returns what another step does with the traffic of this one. `None` if none can match both.
    fn meet(&self, other: &Self) -> Result<Option<Self>, String> {
        if self.is_apart(other) {
            return Ok(None);
        }
        let Some(subject) = meet_pods(&self.subject, &other.subject) else { return Ok(None) };
        let (peers, ports) = (meet_peers(&self.peers, &other.peers), meet_ports(&self.ports, &other.ports)?);
        let (policy, rule) = (other.policy.clone(), other.rule);
        Ok(Some(Self { policy, rule, subject, action: other.action, peers, ports, ..self.clone() }))
    }
}

/// Returns a policy's rules for a direction.
pub(super) fn rules(policy: &ClusterPolicy, direction: Direction) -> &[ClusterRule] {
    match direction {
        Direction::Ingress => &policy.ingress,
        Direction::Egress => &policy.egress,
    }
}

/// Pods that a NetworkPolicy of the target selects, and what it allows.
#[derive(Clone, Debug)]
pub(super) struct Network {
    /// The policy that isolates.
    pub(super) policy: Arc<ClusterPolicy>,
    pub(super) direction: Direction,
    pub(super) subject: PodPeer,
    pub(super) allows: Vec<Step>,
}

/// The layers of the target for one direction.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) admin: Vec<Step>,
    pub(super) networks: Vec<Network>,
    pub(super) baseline: Vec<Step>,
}

/// The policies of one tier with their numbers in order of evaluation.
type OfTier<'a> = Vec<(usize, &'a Arc<ClusterPolicy>)>;

/// Returns whether a policy is translated.
pub(super) fn is_translated(policy: &ClusterPolicy) -> bool {
    policy.rank.name.kind != ClusterPolicyKind::ClusterNetworkPolicy && !policy.rank.name.kind.is_staged()
}

/// Plans the translation of one direction. `policies` are sorted by rank.
pub(super) fn plan(direction: Direction, policies: &[Arc<ClusterPolicy>], cache: &Cache, report: &mut Report) -> Plan {
    let mut tiers: Vec<OfTier<'_>> = Vec::new();
    for (number, policy) in policies.iter().enumerate() {
        match tiers.last_mut() {
            Some(tier) if tier[0].1.rank.tier == policy.rank.tier => tier.push((number, policy)),
            _ => tiers.push(vec![(number, policy)]),
        }
    }
    let place = |tier: &OfTier<'_>| tier[0].1.rank.tier.cmp(&Tier::NetworkPolicy);
    let has_later = tiers.iter().any(|tier| place(tier).is_gt() && concerns(tier, direction));
    let mut plan = Plan::default();
    for (number, tier) in tiers.iter().enumerate().filter(|(_, tier)| place(tier).is_eq()) {
        default_tier::plan(direction, number, tier, has_later, cache, &mut plan, report);
    }
    let mut behind: Vec<Vec<Step>> = Vec::new();
    for (number, tier) in tiers.iter().enumerate().rev().filter(|(_, tier)| place(tier).is_gt()) {
        let zone = zone(&tier[0].1.rank.tier, &Tier::Baseline);
        let steps = ordered(direction, number, zone, tier, &behind.concat()[..], report);
        behind.insert(0, steps);
    }
    plan.baseline.extend(behind.into_iter().flatten());
    let mut before: Vec<Vec<Step>> = vec![std::mem::take(&mut plan.admin)];
    for (number, tier) in tiers.iter().enumerate().rev().filter(|(_, tier)| place(tier).is_lt()) {
        let zone = zone(&tier[0].1.rank.tier, &Tier::Admin);
        before.insert(0, ordered(direction, number, zone, tier, &before.concat()[..], report));
    }
    plan.admin = before.concat();
    plan
}

fn zone(tier: &Tier, of: &Tier) -> Zone {
    match tier.cmp(of) {
        std::cmp::Ordering::Less => Zone::Before,
        std::cmp::Ordering::Equal => Zone::Among,
        std::cmp::Ordering::Greater => Zone::Behind,
    }
}

fn concerns(tier: &OfTier<'_>, direction: Direction) -> bool {
    tier.iter().any(|(_, policy)| !rules(policy, direction).is_empty() || policy.isolates.of(direction))
}

/// Returns the steps of a tier whose rules decide in order. `later` are the steps of the tiers after it in the same tier of the target, which
/// a Pass there would skip.
fn ordered(
    direction: Direction,
    number: usize,
    zone: Zone,
    tier: &OfTier<'_>,
    later: &[Step],
    report: &mut Report,
) -> Vec<Step> {
    let mut steps = Vec::new();
    let slot = |phase, policy| Slot { zone, tier: number, phase, policy, part: 0 };
    for &(at, policy) in tier.iter().filter(|(_, policy)| is_translated(policy)) {
        for rule in 0..rules(policy, direction).len() {
            let step = Step::of(policy, direction, rule, slot(Phase::Ordered, at));
            match step.action {
                RuleAction::Pass => steps.extend(passed(step, later, report)),
                RuleAction::Accept | RuleAction::Deny => steps.push(step),
            }
        }
    }
    if tier[0].1.rank.tier.end() == RuleAction::Deny {
        let is_decided = |policy: &ClusterPolicy| {
            let is_everything = |step: &Step| step.peers.is_none() && step.ports.is_none();
            steps.iter().any(|step| is_everything(step) && step.subject == policy.subject)
        };
        let isolating = tier.iter().filter(|(_, policy)| is_translated(policy) && policy.isolates.of(direction));
        let isolating: Vec<_> = isolating.filter(|(_, policy)| !is_decided(policy)).collect();
        let end = |(_, policy): &&(usize, &Arc<ClusterPolicy>)| {
            Step::everything(policy, direction, RuleAction::Deny, slot(Phase::End, 0))
        };
        steps.extend(isolating.iter().map(end));
    }
    steps
}

/// Returns what the later steps do with the traffic that a step passes on, then the step itself.
fn passed(step: Step, later: &[Step], report: &mut Report) -> Vec<Step> {
    let mut steps = Vec::new();
    for other in later {
        match step.meet(other) {
            Ok(met) => steps.extend(met),
            Err(reason) => {
                report.refuse(
                    &step,
                    format!("Pass skips only one tier, and {reason}"),
                    "write rules without names of ports",
                );
                steps.push(Step { action: RuleAction::Deny, ..step });
                return steps;
            }
        }
    }
    steps.push(step);
    steps
}

/// The place of a policy in the tier of NetworkPolicies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Among {
    /// NetworkPolicies cannot allow what the policy denies.
    Before,
    /// NetworkPolicies come first.
    Behind,
}

impl Among {
    pub(super) fn of(policy: &ClusterPolicy) -> Self {
        // Among equal orders, the texts decide. In doubt the policy comes first, so that it denies more.
        if policy.is_union || policy.rank.order <= Order::NETWORK_POLICY { Self::Before } else { Self::Behind }
    }
}

/// Returns the peer that is every node.
pub(super) fn every_node() -> Peer {
    Peer::Nodes(Selector::everything())
}

/// Returns the namespace of the pods. `None` if they may be in several.
pub(super) fn namespace_of(pods: &PodPeer) -> Option<&Arc<str>> {
    match &pods.namespaces {
        NamespaceScope::Own(name) => Some(name),
        NamespaceScope::Selected(_) => None,
    }
}
