//! What a list says, as far as it can be told by groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_classifier::Services;

use crate::contract::{Peers, RuleAction, Tier, TieredList};
use crate::object::PolicyName;
use crate::origin::{Origin, Origins};
use crate::renderer::neutron::Allow;

/// See the module.
#[derive(Debug)]
pub(super) enum Shape {
    /// Policies that only allow: each is a group, and their union is the list.
    Policies { policies: Vec<(PolicyName, Arc<[Allow]>)>, own_node: bool },
    /// With an order, or not attributed: one group for the whole.
    Whole { own_node: bool },
}

impl Shape {
    /// What a list says. Its policies can be told apart where it has no order: where all is of NetworkPolicies.
    pub(super) fn of(list: &TieredList, origins: &Origins) -> Self {
        let own_node = list.rules.iter().any(|rule| rule.peers == Peers::OwnNode);
        // What a list leaves undecided passes; only one that decides everything is the union of what it accepts.
        if !list.rules.last().is_some_and(|last| last.peers == Peers::Any && last.services == Services::Any) {
            return Self::Whole { own_node };
        }
        let mut policies: BTreeMap<PolicyName, Vec<Allow>> = BTreeMap::new();
        for rule in &list.rules {
            match (rule.tier, rule.action, origins.get(rule.origin)) {
                (Tier::NetworkPolicy, RuleAction::Accept, _) if rule.peers == Peers::OwnNode => {}
                (Tier::NetworkPolicy, RuleAction::Accept, Some(Origin::Policy { policy, rule: at, .. })) => {
                    let (peers, services) = (rule.peers.clone(), rule.services.clone());
                    policies.entry(policy.clone()).or_default().push(Allow { rule: *at, peers, services });
                }
                // What ends the list. Those that isolate and allow nothing have a group as well, without rules.
                (Tier::NetworkPolicy, RuleAction::Deny, Some(Origin::Isolation { policies: isolating, .. })) => {
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
