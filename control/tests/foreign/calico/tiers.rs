//! The tiers of a pod, and the order of policies in them.

use std::cmp::Ordering;

use super::{Calico, Policy};
use crate::foreign::kubernetes::{ClusterNetworkPolicy, NetworkPolicy};
use crate::foreign::world::{Direction, Pod, World};

/// A policy of a tier, of any kind.
pub(super) enum Member<'a> {
    Calico(&'a Policy),
    Kubernetes(&'a NetworkPolicy),
    Cluster(&'a ClusterNetworkPolicy),
}

impl Member<'_> {
    /// The place in the tier: a number, then a text.
    pub(super) fn place(&self) -> (f64, String) {
        match self {
            Self::Calico(policy) => {
                let kind = if policy.namespace.is_some() { "NetworkPolicy" } else { "GlobalNetworkPolicy" };
                let tie = format!("{}/{}/{kind}", policy.name, policy.namespace.unwrap_or_default());
                (policy.order.unwrap_or(f64::INFINITY), tie)
            }
            Self::Kubernetes(policy) => {
                (1000.0, format!("{}/{}/KubernetesNetworkPolicy", policy.name, policy.namespace))
            }
            Self::Cluster(policy) => (policy.priority.into(), policy.name.clone()),
        }
    }
}

/// A tier with the policies that select a pod in one direction.
pub(super) struct TierOfPod<'a> {
    pub(super) name: &'a str,
    /// `None` for the last place.
    order: Option<f64>,
    pub(super) has_object: bool,
    pub(super) passes: bool,
    pub(super) members: Vec<Member<'a>>,
}

impl TierOfPod<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let order = |tier: &Self| tier.order.unwrap_or(f64::INFINITY);
        let missing = self.has_object.cmp(&other.has_object).reverse();
        missing.then(order(self).total_cmp(&order(other))).then(self.name.cmp(other.name))
    }
}

impl Calico {
    /// The tiers that are there for the pod in this direction, in order.
    pub(super) fn tiers<'a>(&'a self, world: &World, pod: &Pod, direction: Direction) -> Vec<TierOfPod<'a>> {
        let tier = |name, order, passes| TierOfPod { name, order, has_object: true, passes, members: Vec::new() };
        let mut tiers = vec![
            tier("kube-admin", Some(1e3), true),
            tier("default", Some(1e6), false),
            tier("kube-baseline", Some(1e7), true),
        ];
        tiers.extend(self.tiers.iter().map(|one| tier(one.name, one.order, one.passes == Some(true))));
        for (at, is_admin) in [(0, true), (2, false)] {
            let policies = self.kubernetes.tier(world, is_admin, pod);
            let with_rules = policies.into_iter().filter(|policy| !policy.rules(direction).is_empty());
            tiers[at].members.extend(with_rules.map(Member::Cluster));
        }
        let isolating = self.kubernetes.policies.iter().filter(|policy| policy.isolates(pod, direction));
        tiers[1].members.extend(isolating.map(Member::Kubernetes));
        for policy in self.of_pod(world, pod, direction) {
            let name = policy.tier.unwrap_or("default");
            let at = tiers.iter().position(|tier| tier.name == name).unwrap_or_else(|| {
                tiers.push(TierOfPod { name, order: None, has_object: false, passes: false, members: Vec::new() });
                tiers.len() - 1
            });
            tiers[at].members.push(Member::Calico(policy));
        }
        tiers.retain(|tier| !tier.members.is_empty());
        tiers.sort_by(TierOfPod::cmp);
        for tier in &mut tiers {
            tier.members.sort_by(|one, other| {
                let ((one, tie), (other, of_other)) = (one.place(), other.place());
                one.total_cmp(&other).then(tie.cmp(&of_other))
            });
        }
        tiers
    }
}

pub(super) fn is_of_kubernetes(member: &Member<'_>) -> bool {
    matches!(member, Member::Kubernetes(_))
}
