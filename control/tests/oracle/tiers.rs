//! The tiers around NetworkPolicy, read from "API Overview" of sigs.k8s.io/network-policy-api.

use bulkhead_control::object::{ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, Pod, RuleAction, Tier};
use bulkhead_control::origin::Direction;

use super::{Asked, selects};

/// The rule that decides in a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) tier: Tier,
    pub(crate) policy: ClusterPolicyName,
    pub(crate) rule: usize,
    pub(crate) accepts: bool,
}

impl Asked<'_> {
    /// What a tier says for one end of the flow; none when it passes, or says nothing.
    pub(super) fn tier(&mut self, tier: Tier, subject: &Pod, direction: Direction) -> Option<Decision> {
        let state = self.state;
        let selected = |policy: &&ClusterPolicy| {
            policy.rank.tier == tier
                && state.covers(&policy.subject.namespaces, &subject.name.namespace)
                && selects(&policy.subject.pods, &subject.labels)
        };
        let mut policies: Vec<_> = state.cluster_policies.values().filter(selected).collect();
        policies.sort_by_key(|policy| {
            let name = &policy.rank.name;
            let last = name.kind == ClusterPolicyKind::BaselineAdminNetworkPolicy;
            (last, policy.rank.priority, name.kind != ClusterPolicyKind::ClusterNetworkPolicy, &name.name)
        });
        for policy in policies {
            let rules = match direction {
                Direction::Ingress => &policy.ingress,
                Direction::Egress => &policy.egress,
            };
            for (rule, one) in rules.iter().enumerate() {
                if self.matches(&one.traffic, direction) {
                    let accepts = match one.action {
                        RuleAction::Accept => true,
                        RuleAction::Deny => false,
                        RuleAction::Pass => {
                            self.passed.insert((tier, direction));
                            return None;
                        }
                    };
                    return Some(Decision { tier, policy: policy.rank.name.clone(), rule, accepts });
                }
            }
        }
        None
    }
}
