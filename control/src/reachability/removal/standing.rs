//! The rules of a list that stand after a removal: an isolation ends with its last policy, and with it what depends on it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bulkhead_classifier::{OriginId, Services};

use super::{ListNumber, Removal, Removals, names_domains};
use crate::contract::{Peers, RuleAction, Tier, TierRule};
use crate::object::PolicyName;
use crate::origin::{Direction, Origin, Origins};

/// The isolations of a list's pods.
#[derive(Debug, Default)]
pub(super) struct Isolations {
    /// The default denies, one a tier, each with the keys of the isolating policies.
    ends: Vec<(OriginId, BTreeSet<PolicyName>)>,
    /// The NetworkPolicies that isolate the pods.
    kubernetes: Arc<[PolicyName]>,
    /// The other rules of NetworkPolicies.
    rules_of_kubernetes: BTreeSet<OriginId>,
    /// The rules of other products' policies, without default denies.
    foreign_rules: BTreeSet<OriginId>,
    /// The keys of other products' policies that isolate the pods.
    foreign: BTreeSet<PolicyName>,
}

/// What depends on a list's isolations: the same value before and after a removal means that it changes no isolation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// The default denies that are gone.
    ended: BTreeSet<OriginId>,
    /// Whether NetworkPolicies isolate the pods.
    is_isolated: bool,
    /// Whether policies of other products have rules in the list. The own node is then exempt from other rules.
    is_foreign: bool,
}

impl Isolations {
    /// Notes a rule of the list.
    pub(super) fn note(&mut self, rule: &TierRule, origin: Option<&Origin>) {
        match origin {
            Some(Origin::Policy { .. }) => drop(self.rules_of_kubernetes.insert(rule.origin)),
            Some(Origin::ClusterPolicy { policy, .. }) if policy.kind.is_foreign() => {
                self.foreign_rules.insert(rule.origin);
            }
            Some(Origin::Isolation { policies, others, .. }) => {
                let keys: Vec<PolicyName> = others.iter().map(|policy| policy.key()).collect();
                self.foreign.extend(keys.iter().cloned());
                self.ends.push((rule.origin, policies.iter().cloned().chain(keys).collect()));
                if !policies.is_empty() {
                    self.kubernetes = policies.clone();
                }
            }
            _ => {}
        }
    }

    fn standing(&self, policy_goes: impl Fn(&PolicyName) -> bool, rule_goes: impl Fn(&OriginId) -> bool) -> Standing {
        let ended = self.ends.iter().filter(|(_, policies)| policies.iter().all(&policy_goes));
        Standing {
            ended: ended.map(|(end, _)| *end).collect(),
            is_isolated: !self.kubernetes.iter().all(&policy_goes),
            is_foreign: !(self.foreign.iter().all(&policy_goes) && self.foreign_rules.iter().all(rule_goes)),
        }
    }

    /// Whether the rule is a NetworkPolicy's. Such rules have no effect without an isolation by NetworkPolicies.
    fn is_of_kubernetes(&self, rule: &TierRule) -> bool {
        self.rules_of_kubernetes.contains(&rule.origin)
    }

    /// Whether removing the rule changes no verdict between the pods and their own nodes: NetworkPolicies exempt these.
    pub(super) fn exempts_own_nodes(&self, rule: &TierRule, standing: &Standing) -> bool {
        !standing.is_foreign && self.is_of_kubernetes(rule)
    }
}

impl<'a> Removals<'a> {
    /// Returns how the isolations of a list stand after a removal, whose rules are `gone`, and all earlier ones.
    pub(super) fn standing(&self, list: ListNumber, removal: &Removal, gone: &BTreeSet<OriginId>) -> Standing {
        let policy_goes =
            |policy: &PolicyName| self.removed.policies.contains(policy) || removal.policies.contains(policy);
        let rule_goes = |rule: &OriginId| self.removed.rules.contains(rule) || gone.contains(rule);
        self.occurrence(list).isolations.standing(policy_goes, rule_goes)
    }

    /// Returns how the isolations of a list stand after the removals so far.
    pub(super) fn standing_now(&self, list: ListNumber) -> Standing {
        self.standing(list, &Removal::default(), &BTreeSet::new())
    }

    /// Returns the remaining rules at these indices. Of the rules that name domains, includes only the one with the index `name`. Omits
    /// the rules in `gone`, those already removed, and those that `standing` ends.
    pub(super) fn left<'s>(
        &'s self,
        list: ListNumber,
        positions: &'s [u32],
        name: Option<u32>,
        gone: &'s BTreeSet<OriginId>,
        standing: &'s Standing,
    ) -> impl Iterator<Item = &'a TierRule> + use<'a, 's> {
        let isolations = &self.occurrence(list).isolations;
        let rules = positions.iter().map(move |&at| (at, &self.rules(list)[at as usize]));
        let rules = rules.filter(move |(at, rule)| name == Some(*at) || !names_domains(rule)).map(|(_, rule)| rule);
        rules.filter(move |rule| {
            let is_gone = gone.contains(&rule.origin) || self.removed.rules.contains(&rule.origin);
            let is_ended = standing.ended.contains(&rule.origin)
                || !standing.is_isolated && isolations.is_of_kubernetes(rule)
                || rule.origin == Origins::OWN_NODE;
            !is_gone && !is_ended
        })
    }

    /// Returns the rules that decide about the pods' own nodes: those left, with the rule that accepts the own node at its place.
    pub(super) fn with_own_node(
        &self,
        list: ListNumber,
        left: impl Iterator<Item = &'a TierRule>,
        standing: &Standing,
    ) -> Vec<TierRule> {
        let mut rules: Vec<TierRule> = left.cloned().collect();
        let place = match (standing.is_foreign, self.occurrence(list).direction) {
            (true, Direction::Ingress) => Some(0),
            (true, Direction::Egress) => None,
            (false, _) => standing
                .is_isolated
                .then(|| rules.iter().position(|rule| rule.tier >= Tier::NetworkPolicy).unwrap_or(rules.len())),
        };
        if let Some(place) = place {
            let tier = if standing.is_foreign { rules.first().map(|rule| rule.tier.clone()) } else { None };
            let own = TierRule {
                tier: tier.unwrap_or(Tier::NetworkPolicy),
                peers: Peers::OwnNode,
                services: Services::Any,
                action: RuleAction::Accept,
                origin: Origins::OWN_NODE,
            };
            rules.insert(place, own);
        }
        rules
    }
}
