//! The configurator: generates a pod's two rule lists from its policies.
//!
//! Pods with the same policies and the same numbers for the policies' port names share one list. The list depends on nothing else:
//!
//! ```text
//!  Admin          rules by the policies' rank, then in the policy's order
//!  NetworkPolicy  of an isolated pod: accept the own node; rules by the policies' names; deny all, which names the isolating policies
//!  Baseline       of a pod that is not isolated: rules by rank, then in the policy's order
//! ```
//! A direction without policies has no list and is open. Ineffective rules are omitted unless [`Configurator::keeping_every_rule`] made the
//! configurator: rules after one that accepts everything, and Baseline rules of an isolated pod.

use std::sync::{Arc, Weak};

use ahash::AHashMap;
use bulkhead_classifier::{ServiceSet, Services};

use crate::contract::{EndpointRules, ListId, Peers, RuleAction, Tier, TierRule, TieredList};
use crate::object::{Pod, PolicyName, PolicyVersion, Rank, Transport};
use crate::origin::{Direction, Origin, Origins};
use crate::processor::{CompiledPolicy, Match, Revision};

/// The input of a list: direction, revisions of the policies, and the pod's numbers for their port names.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ListKey {
    direction: Direction,
    policies: Vec<u64>,
    numbers: Vec<Vec<(Transport, u16)>>,
}

/// Generates the rule lists of pods from the compiled policies that select them. Pods with equal rules share a list.
#[derive(Debug, Default)]
pub struct Configurator {
    /// The generated lists. Those that no endpoint has any more are removed by [`Self::sweep`].
    lists: AHashMap<ListKey, Weak<TieredList>>,
    given: u64,
    keeps_all: bool,
}

impl Configurator {
    /// Creates a configurator that keeps ineffective rules. The verdicts are the same, but the lists also show what a rule would do if
    /// others were removed.
    pub fn keeping_every_rule() -> Self {
        Self { keeps_all: true, ..Self::default() }
    }

    /// Returns the rules of a pod that these policies select.
    pub fn configure<'a>(
        &mut self,
        pod: &Pod,
        policies: impl Iterator<Item = &'a Revision>,
        origins: &mut Origins,
    ) -> EndpointRules {
        let mut policies: Vec<_> = policies.collect();
        // By tier, rank and name.
        policies.sort_by(|a, b| place(&a.policy).cmp(&place(&b.policy)));
        EndpointRules {
            ingress: self.list(Direction::Ingress, pod, &policies, origins),
            egress: self.list(Direction::Egress, pod, &policies, origins),
            apart: None,
        }
    }

    /// Removes the lists that no endpoint has any more.
    pub fn sweep(&mut self) {
        self.lists.retain(|_, list| list.strong_count() > 0);
    }

    /// Returns all lists that at least one endpoint has.
    pub(crate) fn lists(&self) -> impl Iterator<Item = Arc<TieredList>> {
        self.lists.values().filter_map(Weak::upgrade)
    }

    fn list(
        &mut self,
        direction: Direction,
        pod: &Pod,
        policies: &[&Revision],
        origins: &mut Origins,
    ) -> Option<Arc<TieredList>> {
        let mut concerned: Vec<_> =
            policies.iter().filter(|revision| concerns(&revision.policy, direction, policies)).collect();
        if !self.keeps_all && concerned.iter().any(|revision| revision.policy.rank.is_none()) {
            // An isolated pod's NetworkPolicies decide all traffic.
            concerned.retain(|revision| tier(&revision.policy) != Tier::Baseline);
        }
        if concerned.is_empty() {
            return None;
        }
        let matches = concerned.iter().flat_map(|revision| revision.policy.matches(direction).into_iter().flatten());
        let key = ListKey {
            direction,
            policies: concerned.iter().map(|revision| revision.number).collect(),
            numbers: matches.filter(|entry| !entry.named.is_empty()).map(|entry| numbers(entry, pod)).collect(),
        };
        if let Some(list) = self.lists.get(&key).and_then(Weak::upgrade) {
            return Some(list);
        }
        self.given += 1;
        let policies: Vec<_> = concerned.iter().map(|revision| &*revision.policy).collect();
        let rules = generate(direction, pod, &policies, self.keeps_all, origins);
        let list = Arc::new(TieredList { id: ListId(self.given), rules });
        self.lists.insert(key, Arc::downgrade(&list));
        Some(list)
    }
}

fn tier(policy: &CompiledPolicy) -> Tier {
    policy.rank.as_ref().map_or(Tier::NetworkPolicy, |rank| rank.tier.clone())
}

/// Returns the policy's sort key among the policies of a pod.
fn place(policy: &CompiledPolicy) -> (Tier, Option<&Rank>, &PolicyName) {
    (tier(policy), policy.rank.as_ref(), &policy.name)
}

/// Whether the policy has rules for a direction. An `extensions/v1beta1` policy has none unless the namespace isolates.
fn concerns(policy: &CompiledPolicy, direction: Direction, all: &[&Revision]) -> bool {
    let namespace_isolates = || all.iter().any(|one| one.policy.version == PolicyVersion::NamespaceIsolation);
    policy.matches(direction).is_some() && (policy.version != PolicyVersion::V1beta1 || namespace_isolates())
}

/// Returns the port numbers that the pod's containers declare for a match's port names, sorted.
fn numbers(entry: &Match, pod: &Pod) -> Vec<(Transport, u16)> {
    let names = |transport, name: &Arc<str>| entry.named.iter().any(|(t, n)| *t == transport && n == name);
    let ports = pod.ports.iter().filter(|port| names(port.transport, &port.name));
    let mut numbers: Vec<_> = ports.map(|port| (port.transport, port.port)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Generates the rules of policies that are sorted by [`place`].
fn generate(
    direction: Direction,
    pod: &Pod,
    policies: &[&CompiledPolicy],
    keeps_all: bool,
    origins: &mut Origins,
) -> Vec<TierRule> {
    let (namespaced, cluster): (Vec<&CompiledPolicy>, Vec<_>) =
        policies.iter().partition(|policy| policy.rank.is_none());
    let mut rules = Vec::new();
    let add_tier = |of: Tier, rules: &mut Vec<TierRule>, origins: &mut Origins| {
        for (policy, rank) in cluster.iter().filter_map(|policy| Some((policy, policy.rank.as_ref()?))) {
            if rank.tier == of {
                rules.extend(ranked(direction, pod, policy, rank, origins));
            }
        }
    };
    add_tier(Tier::Admin, &mut rules, origins);
    if !namespaced.is_empty() {
        rules.extend(isolate(direction, pod, &namespaced, keeps_all, origins));
    }
    // An isolated pod has Baseline policies here only with `keeps_all`.
    add_tier(Tier::Baseline, &mut rules, origins);
    rules
}

/// Generates the rules of a cluster policy.
fn ranked(
    direction: Direction,
    pod: &Pod,
    policy: &CompiledPolicy,
    rank: &Rank,
    origins: &mut Origins,
) -> Vec<TierRule> {
    let matches = policy.matches(direction).into_iter().flatten();
    let rule = |entry: &Match| {
        let services = services(entry, pod)?;
        let (tier, rule_name, policy) = (rank.tier.clone(), entry.name.clone(), rank.name.clone());
        let origin = Origin::ClusterPolicy { tier: tier.clone(), policy, direction, rule: entry.rule, rule_name };
        let origin = origins.id(origin);
        Some(TierRule { tier, peers: entry.peers.clone(), services, action: entry.action, origin })
    };
    matches.filter_map(rule).collect()
}

/// Generates the rules of the NetworkPolicies that isolate a pod.
fn isolate(
    direction: Direction,
    pod: &Pod,
    policies: &[&CompiledPolicy],
    keeps_all: bool,
    origins: &mut Origins,
) -> Vec<TierRule> {
    let rule =
        |peers, services, action, origin| TierRule { tier: Tier::NetworkPolicy, peers, services, action, origin };
    let mut rules = vec![rule(Peers::OwnNode, Services::Any, RuleAction::Accept, Origins::OWN_NODE)];
    for policy in policies {
        for entry in policy.matches(direction).into_iter().flatten() {
            let Some(services) = services(entry, pod) else { continue };
            let origin = origins.id(Origin::Policy { policy: policy.name.clone(), direction, rule: entry.rule });
            let allows_everything = entry.peers == Peers::Any && services == Services::Any;
            rules.push(rule(entry.peers.clone(), services, RuleAction::Accept, origin));
            if allows_everything && !keeps_all {
                return rules;
            }
        }
    }
    let isolating = policies.iter().filter(|policy| policy.version != PolicyVersion::V1beta1);
    let names: Arc<[PolicyName]> = isolating.map(|policy| policy.name.clone()).collect();
    let origin = origins.id(Origin::Isolation { policies: names, direction });
    rules.push(rule(Peers::Any, Services::Any, RuleAction::Deny, origin));
    rules
}

/// Returns the protocols and ports of a match on this pod. `None` if the match has only port names, and the pod declares none of them.
fn services(entry: &Match, pod: &Pod) -> Option<Services> {
    let Services::Set(numbered) = &entry.services else { return Some(Services::Any) };
    if entry.named.is_empty() {
        return Some(entry.services.clone());
    }
    let named = numbers(entry, pod).into_iter().map(|(transport, number)| transport.service(number, number));
    let all = numbered.union(&named.collect::<ServiceSet>());
    (!all.is_empty()).then(|| all.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::object::{ContainerPort, Object};

    fn pod_with_port(number: u16, transport: Transport) -> Pod {
        let Object::Pod(pod) = fixtures::pod("x/a", "10.0.0.1", "n", "") else { unreachable!() };
        let mut pod = Arc::unwrap_or_clone(pod);
        pod.ports.push(ContainerPort { name: "web".into(), transport, port: number });
        pod
    }

    fn named_policy() -> Revision {
        let policy = CompiledPolicy {
            name: fixtures::name("x/p"),
            version: PolicyVersion::V1,
            rank: None,
            ingress: Some(vec![Match {
                rule: 0,
                name: None,
                action: RuleAction::Accept,
                peers: Peers::Any,
                services: ServiceSet::default().into(),
                named: vec![(Transport::Tcp, "web".into())],
            }]),
            egress: None,
            is_audited: false,
        };
        Revision { number: 1, policy: Arc::new(policy) }
    }

    #[test]
    fn pods_with_the_same_policies_and_numbers_share_one_list() {
        let (mut configurator, mut origins, policy) = (Configurator::default(), Origins::default(), named_policy());
        let mut ingress = |port| {
            let pod = pod_with_port(port, Transport::Tcp);
            configurator.configure(&pod, std::iter::once(&policy), &mut origins).ingress.unwrap()
        };
        let (a, again, other) = (ingress(80), ingress(80), ingress(81));
        assert!(Arc::ptr_eq(&a, &again));
        assert!(!Arc::ptr_eq(&a, &other), "the second pod must not get the first one's number (Contiv fault B7)");
    }

    #[test]
    fn a_port_name_that_resolves_to_nothing_or_to_another_protocol_allows_nothing() {
        let (mut configurator, mut origins, policy) = (Configurator::default(), Origins::default(), named_policy());
        let pod = pod_with_port(80, Transport::Udp);
        let rules = configurator.configure(&pod, std::iter::once(&policy), &mut origins);
        let list = rules.ingress.unwrap();
        let told: Vec<_> = list.rules.iter().map(|rule| (&rule.peers, rule.action)).collect();
        assert_eq!(told, [(&Peers::OwnNode, RuleAction::Accept), (&Peers::Any, RuleAction::Deny)]);
        assert_eq!(rules.egress, None);
    }

    #[test]
    fn a_list_that_nobody_holds_is_swept() {
        let (mut configurator, mut origins, policy) = (Configurator::default(), Origins::default(), named_policy());
        drop(configurator.configure(&pod_with_port(80, Transport::Tcp), std::iter::once(&policy), &mut origins));
        configurator.sweep();
        assert!(configurator.lists.is_empty());
    }
}
