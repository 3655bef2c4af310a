//! Determines how groups can express a list.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_classifier::Services;

use crate::contract::{Peers, RuleAction, Tier, TieredList};
use crate::object::PolicyName;
use crate::origin::{Origin, Origins};
use crate::renderer::neutron::Allow;

/// How security groups express a pod's rule list.
#[derive(Debug)]
pub(super) enum Shape {
    /// NetworkPolicies, which only allow. Each is a group, and the list is the union of all groups.
    Policies { policies: Vec<(PolicyName, Arc<[Allow]>)>, own_node: bool },
    /// A list with an order, or with unknown origins. One group expresses the whole list.
    Whole { own_node: bool },
}

impl Shape {
    /// Returns the shape of a list. Its policies are separable if it has no order, that is, if all rules come from NetworkPolicies.
    pub(super) fn of(list: &TieredList, origins: &Origins) -> Self {
        let own_node = list.rules.iter().any(|rule| rule.peers == Peers::OwnNode);
        // A list allows what no rule matches, so it equals the union of its accepts only if its last rule matches everything.
        if !list.rules.last().is_some_and(|last| last.peers == Peers::Any && last.services == Services::Any) {
            return Self::Whole { own_node };
        }
        let mut policies: BTreeMap<PolicyName, Vec<Allow>> = BTreeMap::new();
        for rule in &list.rules {
            match (&rule.tier, rule.action, origins.get(rule.origin)) {
                (Tier::NetworkPolicy, RuleAction::Accept, Some(Origin::OwnNode)) => {}
                (Tier::NetworkPolicy, RuleAction::Accept, Some(Origin::Policy { policy, rule: at, .. })) => {
                    let (peers, services) = (rule.peers.clone(), rule.services.clone());
                    policies.entry(policy.clone()).or_default().push(Allow { rule: *at, peers, services });
                }
                // The end of the list. A policy that isolates and allows nothing also has a group, without rules.
                (
                    Tier::NetworkPolicy,
                    RuleAction::Deny,
                    Some(Origin::Isolation { policies: isolating, others, .. }),
                ) if others.is_empty() => {
                    for policy in isolating.iter() {
                        policies.entry(policy.clone()).or_default();
                    }
                }
                _ => return Self::Whole { own_node },
            }
        }
        let policies = policies.into_iter().map(|(policy, rules)| (policy, rules.into())).collect();
        Self::Policies { policies, own_node }
    }
}
