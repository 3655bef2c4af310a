//! Sources that are no pods, in the tiers before NetworkPolicies. ClusterNetworkPolicies have only pods as sources, so NetworkPolicies say what
//! these tiers do with other sources.
//!
//! ```text
//!  Accept --without what earlier rules deny--> one more rule of the NetworkPolicy that isolates the pods
//!  Deny -------------------------------------> left out of all that NetworkPolicies allow
//!  Pass -------------------------------------> nothing: in the target, only NetworkPolicies judge these sources
//! ```
//! A NetworkPolicy only allows. So a Deny needs pods that NetworkPolicies isolate. If none does, the translation makes one that allows everything
//! else.

use std::sync::Arc;

use bulkhead_control::cache::Cache;
use bulkhead_control::object::{ClusterPolicyKind, Direction, Peer, Policy, PolicyRule, RuleAction, Tier};

use super::default_tier::{blocks, has_others, pods_of, subtract};
use super::meet::{are_disjoint_peers, are_disjoint_pods, are_disjoint_ports, is_within_pods};
use super::report::Report;
use super::terms::{Network, Plan, Step};

/// Plans what NetworkPolicies say of the steps of the tiers before them, which are in order of evaluation, and marks these steps. Others remain
/// without a term.
pub(super) fn plan(before: &mut [Step], plan: &mut Plan, cache: &Cache, report: &mut Report) {
    for at in 0..before.len() {
        let (earlier, step) = (&before[..at], &before[at]);
        if is_about_others(step) && step.action == RuleAction::Deny && !is_passed(step, earlier) {
            isolate(step, plan, cache);
        }
    }
    let mut accepted: Vec<(usize, Step)> = Vec::new();
    for at in 0..before.len() {
        let (earlier, step) = (&before[..at], &before[at]);
        if !is_about_others(step) {
            continue;
        }
        before[at].is_said_by_networks = match step.action {
            RuleAction::Pass => true,
            RuleAction::Deny => !is_passed(step, earlier) && deny(step, plan, cache, report),
            RuleAction::Accept => match accept(step, earlier, plan, cache) {
                Accepted::By(network, step) => {
                    accepted.push((network, *step));
                    true
                }
                Accepted::Anyway => true,
                Accepted::Not => false,
            },
        };
    }
    for (network, step) in accepted {
        plan.networks[network].allows.push(step);
    }
}

fn is_about_others(step: &Step) -> bool {
    step.direction == Direction::Ingress && has_others(step)
}

/// Whether an earlier rule passes some of the step's sources on.
fn is_passed(step: &Step, earlier: &[Step]) -> bool {
    let passes = |other: &Step| other.action == RuleAction::Pass && has_others(other) && !other.is_apart(step);
    earlier.iter().any(passes)
}

/// Makes a NetworkPolicy that allows everything, if nothing isolates the step's pods or judges them behind NetworkPolicies.
fn isolate(step: &Step, plan: &mut Plan, cache: &Cache) {
    if is_open(step, plan, cache) {
        let accept = Step::everything(&step.policy, step.direction, RuleAction::Accept, step.slot);
        let (policy, subject) = (step.policy.clone(), step.subject.clone());
        let allows = vec![Step { rule: step.rule, subject: subject.clone(), ..accept }];
        plan.networks.push(Network { policy, direction: step.direction, subject, allows });
    }
}

/// Whether nothing but the tiers before NetworkPolicies judges traffic to the step's pods.
fn is_open(step: &Step, plan: &Plan, cache: &Cache) -> bool {
    let is_apart = |network: &Network| are_disjoint_pods(&network.subject, &step.subject);
    let isolates =
        |policy: &Arc<Policy>| policy.ingress.is_some() && !are_disjoint_pods(&pods_of(policy), &step.subject);
    let has_baseline = !plan.baseline.is_empty()
        || cache.cluster_policies().values().any(|policy| {
            policy.rank.name.kind == ClusterPolicyKind::ClusterNetworkPolicy
                && policy.rank.tier == Tier::Baseline
                && !policy.ingress.is_empty()
        });
    !has_baseline && plan.networks.iter().all(is_apart) && !cache.policies().values().any(isolates)
}

/// Takes what the step denies from what NetworkPolicies allow. Returns false, and changes nothing, if they cannot say that.
fn deny(step: &Step, plan: &mut Plan, cache: &Cache, report: &mut Report) -> bool {
    let is_isolated = plan.networks.iter().any(|network| is_within_pods(&step.subject, &network.subject));
    if !is_isolated || has_pods(step, cache) || cache.policies().values().any(|policy| allows_others(policy, step)) {
        return false;
    }
    let mut networks = Vec::new();
    for network in &plan.networks {
        let mut network = network.clone();
        for allow in network.allows.iter_mut().filter(|allow| !step.is_apart(allow)) {
            if !subtract(allow, step, cache) {
                return false;
            }
        }
        networks.push(network);
    }
    plan.networks = networks;
    report.only_here_by_blocks(step);
    true
}

/// Whether blocks of the step contain pods, which rules of the tier Admin cannot tell from other pods.
fn has_pods(step: &Step, cache: &Cache) -> bool {
    let Some(blocks) = step.peers.is_some().then(|| blocks(step)).flatten() else { return step.peers.is_some() };
    let mut addresses = cache.pods().flat_map(|(_, pod)| pod.addresses.iter());
    addresses.any(|address| blocks.iter().any(|block| block.contains(address)))
}

/// Whether a NetworkPolicy of the state may allow sources that are no pods and that the step denies.
fn allows_others(policy: &Policy, step: &Step) -> bool {
    let others = |peers: &Option<Vec<Peer>>| -> Option<Vec<Peer>> {
        peers.as_ref().map(|peers| peers.iter().filter(|peer| !matches!(peer, Peer::Pods(_))).cloned().collect())
    };
    let overlaps = |rule: &PolicyRule| {
        !are_disjoint_peers(&others(&rule.peers), &others(&step.peers)) && !are_disjoint_ports(&rule.ports, &step.ports)
    };
    !are_disjoint_pods(&pods_of(policy), &step.subject) && policy.ingress.iter().flatten().any(overlaps)
}

/// How the target accepts the sources of a step that are no pods.
enum Accepted {
    /// The NetworkPolicy of this number in the plan gets one more rule.
    By(usize, Box<Step>),
    /// Nothing denies them.
    Anyway,
    /// It cannot.
    Not,
}

fn accept(step: &Step, earlier: &[Step], plan: &Plan, cache: &Cache) -> Accepted {
    if is_passed(step, earlier) {
        return Accepted::Not;
    }
    let Some(network) = plan.networks.iter().position(|network| is_within_pods(&step.subject, &network.subject)) else {
        return if is_open(step, plan, cache) { Accepted::Anyway } else { Accepted::Not };
    };
    let mut own = step.clone();
    // Rules of the tier Admin accept the pods among the sources.
    if let Some(peers) = &mut own.peers {
        peers.retain(|peer| !matches!(peer, Peer::Pods(_)));
    }
    let denies = |other: &&Step| other.action == RuleAction::Deny && has_others(other) && !other.is_apart(step);
    match earlier.iter().filter(denies).all(|other| subtract(&mut own, other, cache)) {
        true => Accepted::By(network, Box::new(own)),
        false => Accepted::Not,
    }
}
