//! The tiers around NetworkPolicy, evaluated after "API Overview" of sigs.k8s.io/network-policy-api.

use bulkhead_control::object::{
    ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, ClusterRule, Peer, Pod, PolicyName, PolicyPort, PolicyRule,
    Rank, RuleAction, Tier,
};
use bulkhead_control::origin::Direction;

use super::{Asked, Part, Side, number_of};
use crate::random::foreign::OTHER_TIERS;

/// A rule of a tier.
enum Entry<'a> {
    /// A matching rule of a NetworkPolicy.
    Kubernetes(&'a PolicyName, usize),
    Ranked(&'a Rank, usize, &'a ClusterRule),
}

fn is_foreign(policy: &ClusterPolicy) -> bool {
    use ClusterPolicyKind::{AdminNetworkPolicy, BaselineAdminNetworkPolicy, ClusterNetworkPolicy};
    !matches!(policy.rank.name.kind, AdminNetworkPolicy | BaselineAdminNetworkPolicy | ClusterNetworkPolicy)
}

fn isolates(policy: &ClusterPolicy, direction: Direction) -> bool {
    match direction {
        Direction::Ingress => policy.isolates.ingress,
        Direction::Egress => policy.isolates.egress,
    }
}

fn rules(policy: &ClusterPolicy, direction: Direction) -> &[ClusterRule] {
    match direction {
        Direction::Ingress => &policy.ingress,
        Direction::Egress => &policy.egress,
    }
}

/// The place of a tier: a number, then a name. The numbers of other products' tiers are those of the generator, by name.
fn place(tier: &Tier) -> (f64, &str) {
    match tier {
        Tier::Admin => (1_000.0, "kube-admin"),
        Tier::NetworkPolicy => (1_000_000.0, "default"),
        Tier::Baseline => (10_000_000.0, "kube-baseline"),
        Tier::Other(tier) => {
            let (_, number, _) = OTHER_TIERS.into_iter().find(|(name, ..)| **name == *tier.name).unwrap();
            (number, &tier.name)
        }
    }
}

/// The rule that decides in a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) tier: Tier,
    pub(crate) policy: ClusterPolicyName,
    pub(crate) rule: usize,
    pub(crate) accepts: bool,
}

impl Asked<'_> {
    /// Whether a policy of another product selects the pod in a direction, with rules or as an isolating one.
    pub(super) fn has_foreign(&self, subject: &Pod, direction: Direction) -> bool {
        self.state.cluster_policies.values().any(|policy| {
            is_foreign(policy)
                && (isolates(policy, direction) || !rules(policy, direction).is_empty())
                && self.state.is_selected(&policy.subject, subject)
        })
    }

    /// The verdict of one end with a policy of another product: own node, then the tiers in order, and in each its policies in order.
    pub(super) fn foreign_side(&mut self, subject: &Pod, direction: Direction) -> Side {
        if direction == Direction::Ingress && self.is_own_node(direction) {
            return Side::Exempt;
        }
        let state = self.state;
        let selecting: Vec<&ClusterPolicy> =
            state.cluster_policies.values().filter(|policy| state.is_selected(&policy.subject, subject)).collect();
        let (isolating, allowing) = self.network_policies(subject, direction);
        let mut tiers: Vec<Tier> = selecting.iter().map(|policy| policy.rank.tier.clone()).collect();
        tiers.push(Tier::NetworkPolicy);
        tiers.sort_by(|one, other| place(one).partial_cmp(&place(other)).unwrap());
        tiers.dedup();
        for tier in tiers {
            let of_tier: Vec<&ClusterPolicy> =
                selecting.iter().copied().filter(|policy| policy.rank.tier == tier).collect();
            let is_kubernetes = tier == Tier::NetworkPolicy && !isolating.is_empty();
            let concerns =
                |policy: &&ClusterPolicy| isolates(policy, direction) || !rules(policy, direction).is_empty();
            let is_exempt = tier == Tier::NetworkPolicy && self.flow.src == self.flow.dst;
            if is_exempt && (is_kubernetes || of_tier.iter().any(concerns)) {
                return Side::Exempt;
            }
            let decided = self.in_order(&of_tier, if is_kubernetes { &allowing } else { &[] }, direction);
            match decided {
                Some(Some(side)) => return side,
                Some(None) => {
                    self.passed.insert((tier, direction));
                    continue;
                }
                None => {}
            }
            let mut others: Vec<&ClusterPolicy> =
                of_tier.iter().copied().filter(|policy| isolates(policy, direction)).collect();
            if others.is_empty() && !is_kubernetes {
                continue;
            }
            let passes = match &tier {
                Tier::NetworkPolicy => false,
                Tier::Admin | Tier::Baseline => true,
                Tier::Other(tier) => tier.end == RuleAction::Pass,
            };
            self.part(Part::EndPasses, passes);
            if !passes {
                others.sort_by(|one, other| one.rank.cmp(&other.rank));
                let others = others.iter().map(|policy| policy.rank.name.clone()).collect();
                return Side::End(tier, if is_kubernetes { isolating } else { Vec::new() }, others);
            }
        }
        Side::NotIsolated
    }

    /// What the rules of a tier decide. Inner `None` if a Pass ends the tier, outer `None` if no rule matches. `allowing` are the matching
    /// rules of NetworkPolicies.
    fn in_order(
        &mut self,
        policies: &[&ClusterPolicy],
        allowing: &[(PolicyName, usize)],
        direction: Direction,
    ) -> Option<Option<Side>> {
        let mut entries: Vec<(bool, _, String, Entry<'_>)> = Vec::new();
        for policy in policies {
            for (at, rule) in rules(policy, direction).iter().enumerate() {
                let is_first = policy.is_union && rule.action == RuleAction::Deny;
                let (order, tie) = (policy.rank.order, policy.rank.tie.to_string());
                entries.push((!is_first, order, tie, Entry::Ranked(&policy.rank, at, rule)));
            }
        }
        let order = bulkhead_control::object::Order::NETWORK_POLICY;
        for (policy, rule) in allowing {
            let tie = format!("{}/{}/KubernetesNetworkPolicy", policy.name, policy.namespace);
            entries.push((true, order, tie, Entry::Kubernetes(policy, *rule)));
        }
        // NetworkPolicies stand before ranked policies of the same text; these by their names.
        entries.sort_by_key(|(is_late, order, tie, entry)| {
            let last = match entry {
                Entry::Kubernetes(policy, at) => (None, Some(*policy), *at),
                Entry::Ranked(rank, at, _) => (Some(&rank.name), None, *at),
            };
            (*is_late, *order, tie.clone(), last)
        });
        for (is_late, _, _, entry) in entries {
            match entry {
                Entry::Kubernetes(..) => {
                    let order = bulkhead_control::object::Order::NETWORK_POLICY;
                    self.part(Part::BeforeForeign, policies.iter().any(|policy| policy.rank.order > order));
                    return Some(Some(Side::Allowed(allowing.to_vec())));
                }
                Entry::Ranked(rank, at, rule) => {
                    let decision =
                        |accepts| Decision { tier: rank.tier.clone(), policy: rank.name.clone(), rule: at, accepts };
                    if rule.action != RuleAction::Accept && self.may_be_of_named_pods(&rule.traffic, direction) {
                        self.by_quarantine = true;
                        return Some(Some(Side::Tier(decision(false))));
                    }
                    if !self.matches(&rule.traffic, direction) {
                        continue;
                    }
                    self.part(Part::UnionDeny, !is_late);
                    return Some(match rule.action {
                        RuleAction::Accept => Some(Side::Tier(decision(true))),
                        RuleAction::Deny => Some(Side::Tier(decision(false))),
                        RuleAction::Pass => None,
                    });
                }
            }
        }
        None
    }

    /// A tier's decision for one end of the flow, without policies of other products. `None` if the tier passes or no rule matches.
    pub(super) fn tier(&mut self, tier: &Tier, subject: &Pod, direction: Direction) -> Option<Decision> {
        let state = self.state;
        let selected = |policy: &&ClusterPolicy| {
            policy.rank.tier == *tier && !is_foreign(policy) && state.is_selected(&policy.subject, subject)
        };
        let mut policies: Vec<_> = state.cluster_policies.values().filter(selected).collect();
        policies.sort_by_key(|policy| {
            let name = &policy.rank.name;
            let last = name.kind == ClusterPolicyKind::BaselineAdminNetworkPolicy;
            (last, policy.rank.order, name.kind != ClusterPolicyKind::ClusterNetworkPolicy, &name.name)
        });
        for policy in policies {
            for (rule, one) in rules(policy, direction).iter().enumerate() {
                if one.action != RuleAction::Accept && self.may_be_of_named_pods(&one.traffic, direction) {
                    self.by_quarantine = true;
                    return Some(Decision {
                        tier: tier.clone(),
                        policy: policy.rank.name.clone(),
                        rule,
                        accepts: false,
                    });
                }
                if self.matches(&one.traffic, direction) {
                    let accepts = match one.action {
                        RuleAction::Accept => true,
                        RuleAction::Deny => false,
                        RuleAction::Pass => {
                            self.passed.insert((tier.clone(), direction));
                            return None;
                        }
                    };
                    return Some(Decision { tier: tier.clone(), policy: policy.rank.name.clone(), rule, accepts });
                }
            }
        }
        None
    }

    /// Whether the rule names pods, and the other end is a contested address that may be one of these pods'. The number of a port name is
    /// unknown there too.
    fn may_be_of_named_pods(&mut self, rule: &PolicyRule, direction: Direction) -> bool {
        let other = match direction {
            Direction::Ingress => self.flow.src,
            Direction::Egress => self.flow.dst,
        };
        let is_about_pods = |peer: &Peer| match peer {
            Peer::Pods(_) => true,
            Peer::Region(region) => {
                let mut peers = region.all.iter().flatten().chain(&region.none);
                peers.any(|peer| matches!(peer, Peer::Pods(_)))
            }
            _ => false,
        };
        let names_pods = rule.peers.iter().flatten().any(is_about_pods);
        names_pods
            && self.state.is_quarantined(other)
            && rule.ports.as_ref().is_none_or(|ports| {
                ports.iter().any(|port| match port {
                    PolicyPort::Named { transport, .. } if direction == Direction::Egress => {
                        number_of(*transport) == self.flow.protocol
                    }
                    port => self.port(port),
                })
            })
    }
}
