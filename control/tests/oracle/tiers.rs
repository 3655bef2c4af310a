//! The tiers around NetworkPolicy, evaluated after "API Overview" of sigs.k8s.io/network-policy-api.

use bulkhead_control::object::{
    ClusterPolicy, ClusterPolicyKind, ClusterPolicyName, Peer, Pod, PolicyPort, PolicyRule, RuleAction, Tier,
};
use bulkhead_control::origin::Direction;

use super::{Asked, number_of};

/// The rule that decides in a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) tier: Tier,
    pub(crate) policy: ClusterPolicyName,
    pub(crate) rule: usize,
    pub(crate) accepts: bool,
}

impl Asked<'_> {
    /// A tier's decision for one end of the flow. `None` if the tier passes or no rule matches.
    pub(super) fn tier(&mut self, tier: &Tier, subject: &Pod, direction: Direction) -> Option<Decision> {
        let state = self.state;
        let selected =
            |policy: &&ClusterPolicy| policy.rank.tier == *tier && state.is_selected(&policy.subject, subject);
        let mut policies: Vec<_> = state.cluster_policies.values().filter(selected).collect();
        policies.sort_by_key(|policy| {
            let name = &policy.rank.name;
            let last = name.kind == ClusterPolicyKind::BaselineAdminNetworkPolicy;
            (last, policy.rank.order, name.kind != ClusterPolicyKind::ClusterNetworkPolicy, &name.name)
        });
        for policy in policies {
            let rules = match direction {
                Direction::Ingress => &policy.ingress,
                Direction::Egress => &policy.egress,
            };
            for (rule, one) in rules.iter().enumerate() {
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
        let names_pods = rule.peers.iter().flatten().any(|peer| matches!(peer, Peer::Pods(_)));
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
