//! The tier of NetworkPolicies: Cilium's union, and Calico's tier `default`.

use std::sync::Arc;

use bulkhead_control::object::{
    ClusterPolicy, Direction, IpBlock, Order, Peer, PodPeer, Policy, PolicyRule, Region, RuleAction, Tier,
};

use super::cluster::Cluster;
use super::meet::{are_disjoint_peers, are_disjoint_pods, are_disjoint_ports, is_everyone, is_outside};
use super::outside::subtract;
use super::report::Report;
use super::terms::{
    Among, Network, Phase, Plan, Slot, Step, Zone, every_node, every_pod, is_translated, namespace_of, pods_of, rules,
};

/// Plans the tier. `has_later` is true if policies of later tiers may judge what a rule passes on.
pub(super) fn plan(
    direction: Direction,
    number: usize,
    tier: &[(usize, &Arc<ClusterPolicy>)],
    has_later: bool,
    cluster: &Cluster<'_>,
    plan: &mut Plan,
    report: &mut Report,
) {
    let tier: Vec<_> = tier.iter().copied().filter(|(_, policy)| is_translated(policy)).collect();
    let mut of_tier = OfTier { direction, number, cluster, report, steps: Vec::new() };
    of_tier.collect(&tier, has_later);
    of_tier.keep_denies();
    let mut networks = Vec::new();
    for &(_, policy) in tier.iter().filter(|(_, policy)| policy.isolates.of(direction)) {
        match namespace_of(&policy.subject) {
            None if direction == Direction::Egress => {
                let slot = Slot { zone: Zone::Before, tier: number, phase: Phase::End, policy: 0, part: 0 };
                plan.baseline.push(Step::everything(policy, direction, RuleAction::Deny, slot));
            }
            _ => networks.push(Network {
                policy: policy.clone(),
                direction,
                subject: policy.subject.clone(),
                allows: Vec::new(),
            }),
        }
    }
    of_tier.divide(&mut plan.admin, &mut networks);
    if direction == Direction::Egress {
        of_tier.guard_nodes(&networks, &plan.baseline, &mut plan.admin);
    }
    plan.admin.sort_by_key(|step| step.slot);
    plan.networks = networks;
}

/// A step with its place among NetworkPolicies.
struct Placed {
    step: Step,
    among: Among,
    /// Whether the deny must be in the tier Admin.
    is_kept: bool,
}

struct OfTier<'a> {
    direction: Direction,
    number: usize,
    cluster: &'a Cluster<'a>,
    report: &'a mut Report,
    /// In order of evaluation.
    steps: Vec<Placed>,
}

impl OfTier<'_> {
    fn slot(&self, phase: Phase, policy: usize) -> Slot {
        Slot { zone: Zone::Behind, tier: self.number, phase, policy, part: 0 }
    }

    /// Collects the steps in order of evaluation: of a union first the denies.
    fn collect(&mut self, tier: &[(usize, &Arc<ClusterPolicy>)], has_later: bool) {
        for is_first in [true, false] {
            for &(at, policy) in tier {
                for (index, rule) in rules(policy, self.direction).iter().enumerate() {
                    if (policy.is_union && rule.action == RuleAction::Deny) != is_first {
                        continue;
                    }
                    let slot = match (policy.is_union, is_first) {
                        (true, true) => self.slot(Phase::Denied, 0),
                        (true, false) => self.slot(Phase::Accepted, 0),
                        (false, _) => self.slot(Phase::Ordered, at),
                    };
                    let mut step = Step::of(policy, self.direction, index, slot);
                    if step.action == RuleAction::Pass {
                        step.action = RuleAction::Accept;
                        if has_later {
                            self.report.refuse(
                                &step,
                                "a Pass of the tier `default`, while later tiers have policies".into(),
                                "write what the later tiers say as rules of this policy",
                            );
                            step.action = RuleAction::Deny;
                        }
                    }
                    self.steps.push(Placed { step, among: Among::of(policy), is_kept: false });
                }
            }
        }
    }

    /// Decides which denies the target needs: those after which something could allow the same traffic. The end of the tier denies the rest.
    fn keep_denies(&mut self) {
        for at in 0..self.steps.len() {
            let Placed { step, among, .. } = &self.steps[at];
            if step.action != RuleAction::Deny {
                continue;
            }
            let accepts = |later: &Placed| later.step.action == RuleAction::Accept && !later.step.is_apart(step);
            let network = self.cluster.cache.policies().values().find(|policy| allows_some(policy, step)).cloned();
            let is_tied = step.policy.rank.order == Order::NETWORK_POLICY && !step.policy.is_union;
            if let (Some(network), true) = (&network, is_tied) {
                let reason = format!(
                    "its order is that of NetworkPolicies, which allow some of what it denies: {}; it is translated as if it came first",
                    network.name
                );
                self.report.refuse(&step.clone(), reason, "give the policy another order than 1000");
            }
            let is_open = !is_isolating(&step.policy, self.direction);
            let is_kept =
                is_open || self.steps[at + 1..].iter().any(accepts) || (*among == Among::Before && network.is_some());
            let is_of_others = self.direction == Direction::Ingress && step.has_others();
            if is_of_others && (is_open || (*among == Among::Before && network.is_some())) {
                let reason = "it denies sources that are no pods, and a ClusterNetworkPolicy has only pods as sources";
                let help = "isolate the pods, and leave the sources out of what NetworkPolicies allow";
                self.report.refuse(&step.clone(), reason.into(), help);
            }
            let is_passed = *among == Among::Behind && network.is_some();
            let placed = &mut self.steps[at];
            placed.is_kept = is_kept;
            if is_kept && is_passed {
                // The end of the tier denies, unless a NetworkPolicy allows.
                placed.step.action = RuleAction::Pass;
            }
        }
    }

    /// Divides the steps between the tier Admin and NetworkPolicies.
    fn divide(&mut self, admin: &mut Vec<Step>, networks: &mut [Network]) {
        let steps = std::mem::take(&mut self.steps);
        for (at, Placed { step, is_kept, .. }) in steps.iter().enumerate() {
            if step.action != RuleAction::Accept {
                if *is_kept {
                    admin.push(step.clone());
                }
                continue;
            }
            if self.report.refuse_requests(step) {
                continue;
            }
            if let Some(step) = self.accept_outside(step, &steps[at + 1..], admin) {
                self.accept(&step, &steps[..at], &steps[at + 1..], admin, networks);
            }
        }
    }

    /// Moves Accepts of regions without pods and nodes to the end of Admin, behind a Pass of all pods and nodes. These regions are the domain
    /// names, blocks and `world` of Cilium's egress rules. Returns the step with its other peers, or `None` if it has no others. Regions stay in
    /// the step if a later Deny concerns them, or if a Pass of the state would skip the end of Admin; domain names do not.
    fn accept_outside(&self, step: &Step, later: &[Placed], admin: &mut Vec<Step>) -> Option<Step> {
        let Some(peers) = &step.peers else { return Some(step.clone()) };
        let is_last = !later.iter().any(|later| later.is_kept && !later.step.is_apart(step))
            && !skips_end_of_admin(step, self.cluster);
        let (outside, others): (Vec<Peer>, Vec<Peer>) = peers.iter().cloned().partition(|peer| match peer {
            Peer::Region(region) if self.direction == Direction::Egress => {
                is_outside(region) && (is_last || region.names().is_some())
            }
            _ => false,
        });
        if !outside.is_empty() {
            let inside = Some(vec![every_pod(), every_node()]);
            let peers = Some(outside.into_iter().map(without_inside).collect());
            let accepted = Step { slot: self.slot(Phase::Outside, 0), peers, ..step.clone() };
            admin.push(Step { action: RuleAction::Pass, peers: inside, ports: None, ..accepted.clone() });
            admin.push(accepted);
        }
        (!others.is_empty()).then(|| Step { peers: Some(others), ..step.clone() })
    }

    fn accept(
        &mut self,
        step: &Step,
        earlier: &[Placed],
        later: &[Placed],
        admin: &mut Vec<Step>,
        networks: &mut [Network],
    ) {
        let wins = |later: &Placed| later.is_kept && !later.step.is_apart(step);
        let network = networks.iter_mut().find(|network| {
            network.policy.rank.name == step.policy.rank.name || is_part(&step.policy, &network.policy)
        });
        // NetworkPolicies have no domain names, and never deny the pod's own node.
        let is_of_admin = |peer: &Peer| match peer {
            Peer::Names(_) => true,
            Peer::OwnNode => self.direction == Direction::Egress,
            _ => false,
        };
        let is_first = later.iter().any(wins) || step.peers.iter().flatten().any(is_of_admin);
        match (network, self.direction) {
            (None, _) => {
                if self.direction == Direction::Ingress && step.has_others() {
                    let reason = "it allows sources that are no pods, without isolating the pods; only NetworkPolicies name such sources, and they isolate";
                    self.report.refuse(step, reason.into(), "isolate the pods in this direction");
                }
                admin.push(step.clone());
            }
            (Some(_), Direction::Egress) if is_first => admin.push(step.clone()),
            (Some(network), _) => {
                if is_first {
                    admin.push(step.clone());
                }
                let mut step = step.clone();
                if self.direction == Direction::Egress || self.leaves_out(&mut step, earlier) {
                    network.allows.push(step);
                }
            }
        }
    }

    /// Removes what earlier rules deny from an ingress rule of a NetworkPolicy. If the rest cannot be written, reports the rule as not translated
    /// and returns false.
    fn leaves_out(&mut self, step: &mut Step, earlier: &[Placed]) -> bool {
        for deny in earlier.iter().filter(|deny| deny.is_kept) {
            if deny.step.is_apart(step) {
                continue;
            }
            self.report.only_here_by_blocks(&deny.step);
            if !subtract(step, &deny.step, self.cluster) {
                let reason = "an earlier rule denies a part of it that a NetworkPolicy cannot leave out";
                let help = "write the blocks of the one rule inside those of the other";
                self.report.refuse(step, reason.into(), help);
                return false;
            }
        }
        true
    }

    /// Adds the rules about nodes, which NetworkPolicies do not judge if a node is the pod's own.
    fn guard_nodes(&mut self, networks: &[Network], baseline: &[Step], admin: &mut Vec<Step>) {
        let deny = |policy: &Arc<ClusterPolicy>, subject: &PodPeer, slot| Step {
            subject: subject.clone(),
            peers: Some(vec![every_node()]),
            ..Step::everything(policy, Direction::Egress, RuleAction::Deny, slot)
        };
        for network in networks {
            let mut is_open = false;
            for step in &network.allows {
                let Some(peers) = nodes_of(step, self.cluster) else { continue };
                is_open |= step.peers.is_none() && step.ports.is_none() && step.subject == network.subject;
                admin.push(Step { peers: Some(peers), slot: self.slot(Phase::NodesAccepted, 0), ..step.clone() });
            }
            if is_open {
                // All nodes are allowed.
                continue;
            }
            admin.push(deny(&network.policy, &network.subject, self.slot(Phase::NodesDenied, 0)));
        }
        // Other NetworkPolicies of these pods would let them reach their own node.
        let selects = |policy: &Arc<Policy>, subject: &PodPeer| {
            policy.egress.is_some() && !are_disjoint_pods(&pods_of(policy), subject)
        };
        for end in baseline {
            let is_selected = networks.iter().any(|network| !are_disjoint_pods(&network.subject, &end.subject))
                || self.cluster.cache.policies().values().any(|policy| selects(policy, &end.subject));
            if is_selected {
                admin.push(deny(&end.policy, &end.subject, self.slot(Phase::NodesDenied, 0)));
            }
        }
    }
}

/// Whether the end of the tier denies what no rule of the policy decides. Each policy of Calico isolates the pods of its rules.
fn is_isolating(policy: &ClusterPolicy, direction: Direction) -> bool {
    !policy.is_union || policy.isolates.of(direction)
}

/// Whether a policy is a part of another one of Calico, with fewer pods.
fn is_part(part: &ClusterPolicy, whole: &ClusterPolicy) -> bool {
    let (part, whole) = (&part.rank.name, &whole.rank.name);
    part.kind == whole.kind && part.name.split_once('#').is_some_and(|(name, _)| *name == *whole.name)
}

/// Whether a ClusterNetworkPolicy of the state has a Pass for egress of some of the step's pods. Traffic that it matches never gets to the end of
/// Admin.
fn skips_end_of_admin(step: &Step, cluster: &Cluster<'_>) -> bool {
    cluster.cache.cluster_policies().values().any(|policy| {
        policy.rank.tier == Tier::Admin
            && !is_translated(policy)
            && policy.egress.iter().any(|rule| rule.action == RuleAction::Pass)
            && !are_disjoint_pods(&policy.subject, &step.subject)
    })
}

/// Returns a region that may also contain pods and nodes. Other peers stay as they are.
fn without_inside(peer: Peer) -> Peer {
    match peer {
        Peer::Region(region) => {
            let none = region.none.iter().filter(|peer| !is_everyone(peer)).cloned().collect();
            Peer::Region(Arc::new(Region { all: region.all.clone(), none }))
        }
        peer => peer,
    }
}

/// Whether a NetworkPolicy may allow some of what a step denies.
fn allows_some(policy: &Policy, step: &Step) -> bool {
    let rules = if step.direction == Direction::Ingress { &policy.ingress } else { &policy.egress };
    let overlaps = |rule: &PolicyRule| {
        !are_disjoint_peers(&rule.peers, &step.peers) && !are_disjoint_ports(&rule.ports, &step.ports)
    };
    !are_disjoint_pods(&pods_of(policy), &step.subject) && rules.iter().flatten().any(overlaps)
}

/// Returns the nodes, and blocks that contain nodes, among what the step accepts. `None` if there are none.
fn nodes_of(step: &Step, cluster: &Cluster<'_>) -> Option<Vec<Peer>> {
    let Some(peers) = &step.peers else { return Some(vec![every_node()]) };
    let has_node = |block: &IpBlock| {
        cluster
            .cache
            .nodes()
            .values()
            .flat_map(|node| &node.addresses)
            .any(|address| block.cidr.contains(address) && !block.except.iter().any(|of| of.contains(address)))
    };
    let is_node = |peer: &&Peer| match peer {
        Peer::Nodes(_) => true,
        Peer::Block(block) => has_node(block),
        _ => false,
    };
    let found: Vec<Peer> = peers.iter().filter(is_node).cloned().collect();
    (!found.is_empty()).then_some(found)
}
