//! NetworkPolicies and cluster policies behind one interface: the pods that they select, and their rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cache::{Cache, PodKey};
use crate::object::{
    ClusterPolicy, ClusterRule, Enforcement, NamespaceScope, Peer, Pod, Policy, PolicyName, PolicyRule, RuleAction,
};
use crate::origin::Direction;
use crate::work::Work;

/// A NetworkPolicy or a cluster policy.
#[derive(Clone, Debug)]
pub(super) enum Governing {
    /// A NetworkPolicy.
    Namespaced(Arc<Policy>),
    /// A policy of the tiers around NetworkPolicy.
    Cluster(Arc<ClusterPolicy>),
}

impl Governing {
    /// Returns a name that is unique among both kinds.
    pub(super) fn key(&self) -> PolicyName {
        match self {
            Self::Namespaced(policy) => policy.name.clone(),
            Self::Cluster(policy) => policy.rank.name.key(),
        }
    }

    /// Whether the policy is enforced or audited. `default` applies without an annotation.
    pub(super) fn enforcement(&self, cache: &Cache, default: Enforcement) -> Enforcement {
        match self {
            Self::Namespaced(policy) => cache.enforcement(policy, default),
            Self::Cluster(policy) => policy.enforcement.unwrap_or(default),
        }
    }

    /// Whether the policy is a proposal, which is never enforced.
    pub(super) fn is_staged(&self) -> bool {
        matches!(self, Self::Cluster(policy) if policy.rank.name.kind.is_staged())
    }

    /// Returns the policies that select the pod.
    pub(super) fn of<'a>(cache: &'a Cache, pod: &'a Pod) -> impl Iterator<Item = Self> + 'a {
        let namespaced = cache.policies_in(&pod.name.namespace).filter(|policy| policy.subject.matches(&pod.labels));
        let cluster = cache.cluster_policies().values().filter(|policy| cache.is_selected(&policy.subject, pod));
        namespaced.cloned().map(Self::Namespaced).chain(cluster.cloned().map(Self::Cluster))
    }

    /// Returns the keys of the pods that the policy selects, also of those that are not endpoints. Empty if it selects none. Adds their number
    /// to `work.pods`.
    pub(super) fn subjects(&self, cache: &Cache, work: &mut Work) -> BTreeSet<PodKey> {
        let pods: BTreeSet<PodKey> = match self {
            Self::Namespaced(policy) => {
                let own = NamespaceScope::Own(policy.name.namespace.clone());
                cache.pods_matching(&own, &policy.subject).map(|(key, _)| key).collect()
            }
            Self::Cluster(policy) => cache.pods_of_peer(&policy.subject),
        };
        work.pods += pods.len() as u64;
        pods
    }

    /// Whether a rule denies quarantined addresses.
    pub(super) fn has_quarantine(&self) -> bool {
        match self {
            Self::Namespaced(_) => false,
            Self::Cluster(policy) => policy.ingress.iter().chain(&policy.egress).any(denies_quarantined),
        }
    }

    /// Returns the traffic of all rules, with direction and position.
    pub(super) fn rules(&self) -> Box<dyn Iterator<Item = (Direction, usize, &PolicyRule)> + '_> {
        fn numbered<'a>(
            direction: Direction,
            rules: impl Iterator<Item = &'a PolicyRule> + 'a,
        ) -> impl Iterator<Item = (Direction, usize, &'a PolicyRule)> + 'a {
            rules.enumerate().map(move |(at, rule)| (direction, at, rule))
        }
        match self {
            Self::Namespaced(policy) => Box::new(
                numbered(Direction::Ingress, policy.ingress.iter().flatten())
                    .chain(numbered(Direction::Egress, policy.egress.iter().flatten())),
            ),
            Self::Cluster(policy) => Box::new(
                numbered(Direction::Ingress, policy.ingress.iter().map(|rule| &rule.traffic))
                    .chain(numbered(Direction::Egress, policy.egress.iter().map(|rule| &rule.traffic))),
            ),
        }
    }
}

/// Whether the rule also denies quarantined addresses. Rules that deny or pass pods do, because the address may be one of these pods'.
/// Rules that accept pods do not match such an address.
///
/// A rule therefore never treats the address better than it treats any pod that claims it. Before the first such rule of a tier, only rules
/// that name networks can allow the address.
pub(super) fn denies_quarantined(rule: &ClusterRule) -> bool {
    let is_about_pods = |peer: &Peer| match peer {
        Peer::Pods(_) => true,
        Peer::Region(region) => region.has_pods(),
        Peer::Block(_) | Peer::Nodes(_) | Peer::OwnNode | Peer::Names(_) => false,
    };
    rule.action != RuleAction::Accept && rule.traffic.peers.iter().flatten().any(is_about_pods)
}
