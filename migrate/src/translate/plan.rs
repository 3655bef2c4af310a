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

use bulkhead_control::object::{ClusterPolicy, Direction, RuleAction, Tier};

use super::cluster::Cluster;
use super::default_tier;
use super::outside;
use super::report::Report;
use super::terms::{Phase, Plan, Slot, Step, Zone, is_translated, rules};

/// The policies of one tier with their numbers in order of evaluation.
type OfTier<'a> = Vec<(usize, &'a Arc<ClusterPolicy>)>;

/// Plans the translation of one direction. `policies` are sorted by rank.
pub(super) fn plan(
    direction: Direction,
    policies: &[Arc<ClusterPolicy>],
    cluster: &Cluster<'_>,
    report: &mut Report,
) -> Plan {
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
        default_tier::plan(direction, number, tier, has_later, cluster, &mut plan, report);
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
    let of_default = before.pop().unwrap_or_default();
    let mut before = before.concat();
    outside::plan(&mut before, &mut plan, cluster, report);
    plan.admin = [before, of_default].concat();
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
    let mut steps: Vec<Step> = Vec::new();
    let slot = |phase, policy| Slot { zone, tier: number, phase, policy, part: 0 };
    for &(at, policy) in tier.iter().filter(|(_, policy)| is_translated(policy)) {
        let of_rule = |rule| Step::of(policy, direction, rule, slot(Phase::Ordered, at));
        let own = (0..rules(policy, direction).len()).map(of_rule);
        steps.extend(own.filter(|step| !report.refuse_requests(step)));
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
    let mut said = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        // Traffic that no further rule of the tier matches gets to the next tier without a Pass, which would also skip policies of the state.
        let is_needed = || zone == Zone::Among || steps[at + 1..].iter().any(|later| !later.is_apart(step));
        if step.action != RuleAction::Pass {
            said.push(step.clone());
        } else if is_needed() {
            said.extend(passed(step.clone(), later, report));
        }
    }
    said
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
