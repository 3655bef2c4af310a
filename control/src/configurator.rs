//! The configurator: a pod's policies in, its two rule lists out.
//!
//! A list is made once for all pods with the same policies and the same numbers behind the port names; it is a function
//! of those alone. Rules come in the order of the policies' names, then of the rules in them; at the end stands the deny
//! of everything else with the names of the policies that isolate the pod. No policy for a direction: no list, the
//! direction is open.

use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::{Action, Addresses, ServiceSet, Services};

use crate::contiv::{ContivMatch, ContivPolicy, ContivRule, RuleList, service};
use crate::object::{Pod, PolicyName, PolicyVersion, Transport};
use crate::origin::{Direction, Origin, Origins};

/// A pod's rules, as renderers get them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRules {
    /// What may come in; none for everything.
    pub ingress: Option<Arc<RuleList>>,
    /// What may go out; none for everything.
    pub egress: Option<Arc<RuleList>>,
}

/// What makes two lists the same: direction, policies by identity, and the numbers behind the port names.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ListKey {
    direction: Direction,
    policies: Vec<Identity>,
    numbers: Vec<Vec<(Transport, u16)>>,
}

/// A compiled policy compared by address. The configurator keeps the policy alive, so no other can take the address.
#[derive(Clone, Debug)]
struct Identity(Arc<ContivPolicy>);

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Identity {}

impl std::hash::Hash for Identity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Configurator {
    lists: AHashMap<ListKey, Arc<RuleList>>,
    revisions: u64,
}

impl Configurator {
    /// The rules of a pod that these policies select.
    pub fn configure<'a>(
        &mut self,
        pod: &Pod,
        policies: impl Iterator<Item = &'a Arc<ContivPolicy>>,
        origins: &mut Origins,
    ) -> PodRules {
        let policies: Vec<_> = policies.collect();
        PodRules {
            ingress: self.list(Direction::Ingress, pod, &policies, origins),
            egress: self.list(Direction::Egress, pod, &policies, origins),
        }
    }

    /// Forgets the lists that no renderer holds any more. Worth a call after each transaction: lists hold big sets.
    pub fn sweep(&mut self) {
        self.lists.retain(|_, list| Arc::strong_count(list) > 1);
    }

    /// The lists that somebody holds.
    pub(crate) fn lists(&self) -> impl Iterator<Item = &Arc<RuleList>> {
        self.lists.values()
    }

    fn list(
        &mut self,
        direction: Direction,
        pod: &Pod,
        policies: &[&Arc<ContivPolicy>],
        origins: &mut Origins,
    ) -> Option<Arc<RuleList>> {
        let concerned: Vec<_> =
            policies.iter().copied().filter(|policy| concerns(policy, direction, policies)).collect();
        if concerned.is_empty() {
            return None;
        }
        let matches = concerned.iter().flat_map(|policy| matches_of(policy, direction).into_iter().flatten());
        let key = ListKey {
            direction,
            policies: concerned.iter().map(|policy| Identity((*policy).clone())).collect(),
            numbers: matches.filter(|entry| !entry.named.is_empty()).map(|entry| numbers(entry, pod)).collect(),
        };
        if let Some(list) = self.lists.get(&key) {
            return Some(list.clone());
        }
        self.revisions += 1;
        let rules = generate(direction, pod, &concerned, origins);
        let list = Arc::new(RuleList { revision: self.revisions, rules });
        self.lists.insert(key, list.clone());
        Some(list)
    }
}

/// Whether the policy has a say in a direction. One of `extensions/v1beta1` has only where the namespace isolates.
fn concerns(policy: &ContivPolicy, direction: Direction, all: &[&Arc<ContivPolicy>]) -> bool {
    let namespace_isolates = || all.iter().any(|policy| policy.version == PolicyVersion::NamespaceIsolation);
    matches_of(policy, direction).is_some() && (policy.version != PolicyVersion::V1beta1 || namespace_isolates())
}

fn matches_of(policy: &ContivPolicy, direction: Direction) -> Option<&Vec<ContivMatch>> {
    match direction {
        Direction::Ingress => policy.ingress.as_ref(),
        Direction::Egress => policy.egress.as_ref(),
    }
}

/// The numbers that a match's port names have on the pod, sorted. A name that no container declares has none.
fn numbers(entry: &ContivMatch, pod: &Pod) -> Vec<(Transport, u16)> {
    let names = |transport, name: &Arc<str>| entry.named.iter().any(|(t, n)| *t == transport && n == name);
    let ports = pod.ports.iter().filter(|port| names(port.transport, &port.name));
    let mut numbers: Vec<_> = ports.map(|port| (port.transport, port.port)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn generate(
    direction: Direction,
    pod: &Pod,
    policies: &[&Arc<ContivPolicy>],
    origins: &mut Origins,
) -> Vec<ContivRule> {
    let mut rules = Vec::new();
    for policy in policies {
        // Several matches in a row come from one rule where it names a large group.
        let mut last = None;
        for entry in matches_of(policy, direction).into_iter().flatten() {
            let Some(services) = services(entry, pod) else { continue };
            let origin = match last {
                Some((rule, origin)) if rule == entry.rule => origin,
                _ => origins.id(Origin::Policy { policy: policy.name.clone(), direction, rule: entry.rule }),
            };
            last = Some((entry.rule, origin));
            let allows_everything = entry.peers == Addresses::Any && services == Services::Any;
            rules.push(ContivRule { peers: entry.peers.clone(), services, action: Action::Allow, origin });
            if allows_everything {
                return rules;
            }
        }
    }
    let isolating = policies.iter().filter(|policy| policy.version != PolicyVersion::V1beta1);
    let names: Arc<[PolicyName]> = isolating.map(|policy| policy.name.clone()).collect();
    let origin = origins.id(Origin::Isolation { policies: names, direction });
    rules.push(ContivRule { peers: Addresses::Any, services: Services::Any, action: Action::Deny, origin });
    rules
}

/// The services of a match on this pod; none when its port names resolve to nothing and it has no other ports.
fn services(entry: &ContivMatch, pod: &Pod) -> Option<Services> {
    let Services::Set(numbered) = &entry.services else { return Some(Services::Any) };
    if entry.named.is_empty() {
        return Some(entry.services.clone());
    }
    let named = numbers(entry, pod).into_iter().map(|(transport, number)| service(transport, number, number));
    let all = numbered.union(&named.collect::<ServiceSet>());
    (!all.is_empty()).then(|| all.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::object::{ContainerPort, Object};

    fn pod_with_port(number: u16, transport: Transport) -> Pod {
        let Object::Pod(mut pod) = fixtures::pod("x/a", "10.0.0.1", "n", "") else { unreachable!() };
        pod.ports.push(ContainerPort { name: "web".into(), transport, port: number });
        pod
    }

    fn named_policy() -> Arc<ContivPolicy> {
        Arc::new(ContivPolicy {
            name: fixtures::name("x/p"),
            version: PolicyVersion::V1,
            ingress: Some(vec![ContivMatch {
                rule: 0,
                peers: Addresses::Any,
                services: ServiceSet::default().into(),
                named: vec![(Transport::Tcp, "web".into())],
            }]),
            egress: None,
        })
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
        assert_eq!(list.rules.iter().map(|rule| rule.action).collect::<Vec<_>>(), [Action::Deny]);
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
