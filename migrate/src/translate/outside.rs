//! Ingress from addresses outside the cluster, in the tiers before NetworkPolicies. A ClusterNetworkPolicy can only name pods as sources, so the
//! translation moves what these tiers decide about other sources into NetworkPolicies.
//!
//! ```text
//!  Accept --without what earlier rules deny--> another rule in the NetworkPolicy that isolates the pods
//!  Deny -------------------------------------> removed from what NetworkPolicies allow
//!  Pass -------------------------------------> no rule: no ClusterNetworkPolicy decides about these sources, so NetworkPolicies do
//! ```
//! A NetworkPolicy can only allow, so it can say a Deny only about pods that it isolates. If nothing isolates these pods, the translation adds a
//! NetworkPolicy that allows everything except what the rule denies.

use std::sync::Arc;

use bulkhead_control::object::{ClusterPolicyKind, Direction, IpBlock, Peer, Policy, PolicyRule, RuleAction, Tier};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::cluster::Cluster;
use super::meet::{are_disjoint_peers, are_disjoint_pods, are_disjoint_ports, is_within_pods, is_within_ports};
use super::report::Report;
use super::terms::{Network, Plan, Step, every_pod, pods_of};

/// Moves decisions about sources outside the cluster from `before` into the NetworkPolicies of `plan`. `before` has the steps of the tiers before
/// NetworkPolicies, in order of evaluation. Sets [`Step::is_said_by_networks`] in each step that NetworkPolicies can say; the caller reports the
/// other ones as not translated.
pub(super) fn plan(before: &mut [Step], plan: &mut Plan, cluster: &Cluster<'_>, report: &mut Report) {
    for at in 0..before.len() {
        let (earlier, step) = (&before[..at], &before[at]);
        // From everything, a NetworkPolicy can remove whole blocks, not single ports of them.
        let is_sayable = step.ports.is_none() && !is_passed(step, earlier) && !has_pods(step, cluster);
        if is_about_others(step) && step.action == RuleAction::Deny && is_sayable {
            isolate(step, plan, cluster);
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
            RuleAction::Deny => !is_passed(step, earlier) && deny(step, plan, cluster, report),
            RuleAction::Accept => match accept(step, earlier, plan, cluster) {
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

/// Whether the step is about ingress from other sources than pods.
fn is_about_others(step: &Step) -> bool {
    step.direction == Direction::Ingress && step.has_others()
}

/// Whether an earlier Pass matches some of the step's traffic from other sources than pods. The step does not decide about that traffic.
fn is_passed(step: &Step, earlier: &[Step]) -> bool {
    let passes = |other: &Step| other.action == RuleAction::Pass && other.has_others() && !other.is_apart(step);
    earlier.iter().any(passes)
}

/// Adds a NetworkPolicy that isolates the step's pods and allows all ingress, if that changes no verdict.
fn isolate(step: &Step, plan: &mut Plan, cluster: &Cluster<'_>) {
    if is_open(step, plan, cluster) {
        let accept = Step::everything(&step.policy, step.direction, RuleAction::Accept, step.slot);
        let (policy, subject) = (step.policy.clone(), step.subject.clone());
        let allows = vec![Step { rule: step.rule, subject: subject.clone(), ..accept }];
        plan.networks.push(Network { policy, direction: step.direction, subject, allows });
    }
}

/// Whether ingress to the step's pods is allowed unless a tier before NetworkPolicies denies it: neither NetworkPolicies nor rules of Baseline
/// concern these pods.
fn is_open(step: &Step, plan: &Plan, cluster: &Cluster<'_>) -> bool {
    let is_apart = |network: &Network| are_disjoint_pods(&network.subject, &step.subject);
    let isolates =
        |policy: &Arc<Policy>| policy.ingress.is_some() && !are_disjoint_pods(&pods_of(policy), &step.subject);
    let has_baseline = !plan.baseline.is_empty()
        || cluster.cache.cluster_policies().values().any(|policy| {
            policy.rank.name.kind == ClusterPolicyKind::ClusterNetworkPolicy
                && policy.rank.tier == Tier::Baseline
                && !policy.ingress.is_empty()
        });
    !has_baseline && plan.networks.iter().all(is_apart) && !cluster.cache.policies().values().any(isolates)
}

/// Removes what the step denies from what the NetworkPolicies of the plan allow. Returns false, and changes nothing, if NetworkPolicies cannot say
/// the rest, or if a NetworkPolicy of the state allows some of it.
fn deny(step: &Step, plan: &mut Plan, cluster: &Cluster<'_>, report: &mut Report) -> bool {
    let is_isolated = plan.networks.iter().any(|network| is_within_pods(&step.subject, &network.subject));
    if !is_isolated
        || has_pods(step, cluster)
        || cluster.cache.policies().values().any(|policy| allows_others(policy, step))
    {
        return false;
    }
    let mut rests = Vec::new();
    for (network, place) in plan.networks.iter().enumerate() {
        for (allow, allowed) in place.allows.iter().enumerate().filter(|(_, allowed)| !step.is_apart(allowed)) {
            let mut rest = allowed.clone();
            if !subtract(&mut rest, step, cluster) {
                return false;
            }
            rests.push((network, allow, rest));
        }
    }
    for (network, allow, rest) in rests {
        plan.networks[network].allows[allow] = rest;
    }
    report.only_here_by_blocks(step);
    true
}

/// Whether the step's blocks contain addresses of pods, or its peers are neither pods nor plain blocks. Rules of the tier Admin cannot name pods
/// by address. False for a step about all sources, as these rules can name all pods.
fn has_pods(step: &Step, cluster: &Cluster<'_>) -> bool {
    if step.peers.is_none() {
        return false;
    }
    let Some(blocks) = blocks(step) else { return true };
    cluster.has_pod_in(&blocks)
}

/// Whether a NetworkPolicy of the state may allow traffic of the step from other sources than pods.
fn allows_others(policy: &Policy, step: &Step) -> bool {
    let others = |peers: &Option<Vec<Peer>>| -> Option<Vec<Peer>> {
        peers.as_ref().map(|peers| peers.iter().filter(|peer| !matches!(peer, Peer::Pods(_))).cloned().collect())
    };
    let overlaps = |rule: &PolicyRule| {
        !are_disjoint_peers(&others(&rule.peers), &others(&step.peers)) && !are_disjoint_ports(&rule.ports, &step.ports)
    };
    !are_disjoint_pods(&pods_of(policy), &step.subject) && policy.ingress.iter().flatten().any(overlaps)
}

/// How the target accepts the traffic of an Accept from other sources than pods.
enum Accepted {
    /// By another rule in a NetworkPolicy: its index in [`Plan::networks`], and the rule.
    By(usize, Box<Step>),
    /// Without a rule, because nothing denies the traffic.
    Anyway,
    /// Not at all.
    Not,
}

/// Returns how the target accepts the step's traffic from other sources than pods. `earlier` are the steps before it.
fn accept(step: &Step, earlier: &[Step], plan: &Plan, cluster: &Cluster<'_>) -> Accepted {
    if is_passed(step, earlier) {
        return Accepted::Not;
    }
    let Some(network) = plan.networks.iter().position(|network| is_within_pods(&step.subject, &network.subject)) else {
        return if is_open(step, plan, cluster) { Accepted::Anyway } else { Accepted::Not };
    };
    let mut own = step.clone();
    // Rules of the tier Admin accept the pods among the sources.
    if let Some(peers) = &mut own.peers {
        peers.retain(|peer| !matches!(peer, Peer::Pods(_)));
    }
    let denies = |other: &&Step| other.action == RuleAction::Deny && other.has_others() && !other.is_apart(step);
    match earlier.iter().filter(denies).all(|other| subtract(&mut own, other, cluster)) {
        true => Accepted::By(network, Box::new(own)),
        false => Accepted::Not,
    }
}

/// Returns the blocks of addresses among the step's peers: for a step without peers, all addresses. Empty if all peers are pods or own nodes.
/// `None` if a peer is neither a pod, an own node nor a block without exceptions.
fn blocks(step: &Step) -> Option<Vec<IpNet>> {
    let Some(peers) = &step.peers else { return Some(vec![Ipv4Net::default().into(), Ipv6Net::default().into()]) };
    let others = peers.iter().filter(|peer| !matches!(peer, Peer::Pods(_) | Peer::OwnNode));
    let of = |peer: &Peer| match peer {
        Peer::Block(IpBlock { cidr, except }) if except.is_empty() => Some(*cidr),
        _ => None,
    };
    others.map(of).collect()
}

/// Takes the addresses outside the cluster that an earlier rule denies from an ingress rule. Rules of the tier Admin deny the pods among
/// them. Returns false if the rest cannot be written.
pub(super) fn subtract(step: &mut Step, deny: &Step, cluster: &Cluster<'_>) -> bool {
    let Some(blocks) = blocks(deny) else { return false };
    if blocks.is_empty() {
        return true;
    }
    let is_whole = is_within_pods(&step.subject, &deny.subject) && is_within_ports(&step.ports, &deny.ports);
    if !is_whole {
        return false;
    }
    let all = [Ipv4Net::default().into(), Ipv6Net::default().into()];
    let everybody = || match deny.peers {
        None => vec![every_pod()],
        Some(_) => all.map(|cidr| Peer::Block(IpBlock { cidr, except: Vec::new() })).to_vec(),
    };
    let peers = step.peers.get_or_insert_with(everybody);
    let mut left = Vec::new();
    for peer in std::mem::take(peers) {
        match peer {
            Peer::Block(mut block) => {
                if blocks.iter().any(|without| without.contains(&block.cidr)) {
                    continue;
                }
                block.except.extend(blocks.iter().filter(|without| block.cidr.contains(*without)));
                left.push(Peer::Block(block));
            }
            Peer::Pods(_) if deny.peers.is_none() || !cluster.has_pod_in(&blocks) => left.push(peer),
            _ => return false,
        }
    }
    *peers = left;
    true
}
