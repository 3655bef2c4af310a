//! Calico's policies, of `projectcalico.org/v3` and `crd.projectcalico.org/v1`.
//!
//! ```text
//!  Policy --pods--> the pods that it selects ------------------.
//!    `- rules --entity--> peers: pods, sets of networks, blocks +--> ClusterPolicy, one or, if rules name their own end, several
//!            `- ports, Services' endpoints ---------------------'
//! ```
//! Docs: `docs/foreign-policies.md` lists the rules of meaning. Source: projectcalico/calico, `api/pkg/apis/projectcalico/v3` for the fields,
//! `felix/calc` and `felix/rules` for what they mean.

mod entity;
mod pods;
mod rule;
mod services;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::{ForeignKind, Needs, Surroundings};
pub use crate::object::foreign::calico::{
    Accounts, Action, DEFAULT_TIER, Entity, Families, NetworkSet, Policy, Rule, Selector, TIERS_OF_KUBERNETES, Tier,
};
use crate::object::{
    ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, ClusterRule, Isolation, Order, OtherTier, PodPeer, Rank,
    RuleAction, Tier as RankTier,
};
use crate::origin::Direction;

impl Policy {
    /// Returns the kinds of objects that the policy's meaning depends on.
    pub(super) fn needs(&self) -> Needs {
        let mut needs = Needs::NOTHING;
        if TIERS_OF_KUBERNETES.iter().all(|(name, _)| **name != *self.tier) {
            needs |= Needs::TIERS;
        }
        needs |= pods::needs(&self.subject());
        for rule in self.ingress.iter().chain(&self.egress) {
            needs |= rule.needs(self.namespace());
        }
        needs
    }

    /// Returns the condition on the endpoints that the policy applies to.
    fn subject(&self) -> Selector {
        let own = self.namespace().map(pods::in_namespace);
        let namespaces = self.namespaces.as_ref().map(pods::of_namespaces);
        let accounts = self.service_accounts.as_ref().map(pods::of_accounts);
        let others = [own, namespaces, accounts];
        Selector::And([self.selector.clone()].into_iter().chain(others.into_iter().flatten()).collect())
    }

    /// Returns the place in the order of evaluation of the policy's part of this number. The first part, 0, has the policy's own name.
    fn rank(&self, tier: &RankTier, part: usize) -> Rank {
        let (kind, calico_kind) = match self.name.kind {
            ForeignKind::CalicoGlobalNetworkPolicy => {
                (ClusterPolicyKind::CalicoGlobalNetworkPolicy, "GlobalNetworkPolicy")
            }
            ForeignKind::CalicoStagedNetworkPolicy => {
                (ClusterPolicyKind::CalicoStagedNetworkPolicy, "StagedNetworkPolicy")
            }
            ForeignKind::CalicoStagedGlobalNetworkPolicy => {
                (ClusterPolicyKind::CalicoStagedGlobalNetworkPolicy, "StagedGlobalNetworkPolicy")
            }
            _ => (ClusterPolicyKind::CalicoNetworkPolicy, "NetworkPolicy"),
        };
        let namespace = self.namespace().unwrap_or_default();
        let own = self.name.name.strip_prefix(namespace).unwrap_or(&self.name.name);
        let own = own.strip_prefix('/').unwrap_or(own);
        let (mut tie, mut name) = (format!("{own}/{namespace}/{calico_kind}"), self.name.name.to_string());
        if part > 0 {
            // A fixed width, so that the parts' texts are ordered as their numbers are.
            tie += &format!("#{part:06}");
            name += &format!("#{part}");
        }
        let name = ClusterPolicyName { kind, name: name.into() };
        Rank { tier: tier.clone(), order: self.order, tie: tie.into(), name }
    }
}

/// Returns the tier of this name.
fn tier_of(name: &Arc<str>, surroundings: &Surroundings) -> RankTier {
    match &**name {
        "kube-admin" => RankTier::Admin,
        DEFAULT_TIER => RankTier::NetworkPolicy,
        "kube-baseline" => RankTier::Baseline,
        _ => {
            // Policies of a tier without an object are evaluated after all others.
            let (order, end) = match surroundings.tiers.get(name) {
                Some(tier) => (tier.order.unwrap_or(Order::of(f64::INFINITY)), tier.end),
                None => (Order::LAST, RuleAction::Deny),
            };
            RankTier::Other(Arc::new(OtherTier { name: Arc::clone(name), order, end }))
        }
    }
}

/// A part of a policy: consecutive rules with the same condition on the policy's own end.
#[derive(Default)]
struct Part {
    own: Option<Selector>,
    ingress: Vec<ClusterRule>,
    egress: Vec<ClusterRule>,
}

/// Resolves a policy. Rules with a condition on the policy's own end, such as an ingress rule with `destination.selector`, become policies
/// of their own directly behind the policy, with fewer pods.
pub(super) fn resolve(policy: &Policy, surroundings: &Surroundings) -> Vec<ClusterPolicy> {
    let tier = tier_of(&policy.tier, surroundings);
    let subject = policy.subject();
    let mut parts = vec![Part::default()];
    for (direction, rules, applies) in [
        (Direction::Ingress, &policy.ingress, policy.types.ingress),
        (Direction::Egress, &policy.egress, policy.types.egress),
    ] {
        let mut current = 0;
        for (at, rule) in rules.iter().enumerate().filter(|_| applies) {
            let own = rule.own_end(direction).condition(policy.namespace());
            if parts[current].own != own {
                current = parts.len();
                parts.push(Part { own, ..Part::default() });
            }
            let part = &mut parts[current];
            let list = if direction == Direction::Ingress { &mut part.ingress } else { &mut part.egress };
            list.extend(rule.resolve(direction, at, policy.namespace(), surroundings));
        }
    }
    // Traffic that no policy of Kubernetes' tiers decides goes on to the next tier.
    let isolates = match tier {
        RankTier::Admin | RankTier::Baseline => Isolation::default(),
        RankTier::NetworkPolicy | RankTier::Other(_) => policy.types,
    };
    let of_part = |(number, part): (usize, Part)| {
        let pods: PodPeer = match part.own {
            None => pods::of(&subject, surroundings)?,
            Some(own) => pods::of(&Selector::And(vec![subject.clone(), own]), surroundings)?,
        };
        (number == 0 || !part.ingress.is_empty() || !part.egress.is_empty()).then(|| ClusterPolicy {
            rank: policy.rank(&tier, number),
            subject: pods,
            ingress: part.ingress,
            egress: part.egress,
            isolates: if number == 0 { isolates } else { Isolation::default() },
            is_union: false,
            fault: policy.fault.clone(),
            position: policy.position.clone(),
            enforcement: policy.enforcement,
        })
    };
    parts.into_iter().enumerate().filter_map(of_part).collect()
}
