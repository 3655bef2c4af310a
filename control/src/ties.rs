//! Finds cluster policies of the same tier and priority that disagree about a pod.
//!
//! The API does not define which of them takes precedence. Bulkhead evaluates them in the order of their names, so its verdict is
//! deterministic. The policies' author cannot see this order, and other implementations may use another one.

use std::fmt;

use crate::cache::Cache;
use crate::object::{ClusterPolicy, ClusterPolicyName, ClusterRule, PodName};

/// Two policies of the same tier and priority that may disagree about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tie {
    /// The policy that Bulkhead evaluates first.
    pub first: ClusterPolicyName,
    /// The other policy.
    pub second: ClusterPolicyName,
    /// A pod that both policies select.
    pub pod: PodName,
}

impl fmt::Display for Tie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, second, pod } = self;
        write!(f, "{first} and {second} have the same tier and priority, different actions, and both select {pod}")
    }
}

/// Returns for each cluster policy its first tie with an earlier policy.
pub fn ties(cache: &Cache) -> Vec<Tie> {
    let policies = cache.cluster_policies().values().map(|policy| &**policy);
    // Other products define the order of their policies.
    let mut policies: Vec<&ClusterPolicy> = policies.filter(|policy| !policy.rank.name.kind.is_foreign()).collect();
    policies.sort_by(|a, b| a.rank.cmp(&b.rank));
    let mut ties = Vec::new();
    for (at, second) in policies.iter().enumerate() {
        let place = |policy: &ClusterPolicy| (policy.rank.tier.clone(), policy.rank.order);
        let tied = policies[..at].iter().rev().take_while(|first| place(first) == place(second));
        let mut disagreeing = tied.filter(|first| disagree(first, second)).filter_map(|first| {
            let common = cache.pods_of_peer(&first.subject);
            let pod = common.intersection(&cache.pods_of_peer(&second.subject)).next().copied()?;
            let pod = cache.pod(pod)?.name.clone();
            Some(Tie { first: first.rank.name.clone(), second: second.rank.name.clone(), pod })
        });
        ties.extend(disagreeing.next());
    }
    ties
}

/// Whether the policies have rules with different actions for one direction.
fn disagree(one: &ClusterPolicy, other: &ClusterPolicy) -> bool {
    let differ = |one: &[ClusterRule], other: &[ClusterRule]| {
        one.iter().any(|rule| other.iter().any(|other| other.action != rule.action))
    };
    differ(&one.ingress, &other.ingress) || differ(&one.egress, &other.egress)
}
