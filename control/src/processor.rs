//! The processor: which pods a change concerns, and what their policies mean in addresses and numbers.
//!
//! ```text
//!  change --> groups that the pod or namespace enters or leaves --> policies that use them --> pods they select
//!         `-> policies whose subjects change ----------------------------------------------------------^
//! ```
//! A step that finds its result unchanged ends the walk there: a relabelled pod that stays in the same groups concerns
//! nobody. Only pods of the scope (one node, or all for a what-if) are looked after; the others are peers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::{AddressSet, Addresses, ServiceSet, Services};

use crate::cache::{Cache, Change, PodKey};
use crate::contiv::{ContivMatch, ContivPolicy, service};
use crate::group::{GroupId, Groups};
use crate::object::{Peer, Pod, Policy, PolicyName, PolicyPort, PolicyRule, Transport};

/// Whose pods are looked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The pods of one node.
    Node(Arc<str>),
    /// The pods of all nodes, for questions about the whole cluster.
    Cluster,
}

impl Scope {
    /// Whether the pod is looked after: an endpoint of the scope.
    pub fn covers(&self, pod: &Pod) -> bool {
        pod.is_endpoint()
            && match self {
                Self::Node(node) => pod.node.as_ref() == Some(node),
                Self::Cluster => true,
            }
    }
}

/// A policy that selects at least one pod of the scope.
#[derive(Debug)]
struct Assignment {
    policy: Arc<Policy>,
    subjects: BTreeSet<PodKey>,
    groups: BTreeSet<GroupId>,
    compiled: Arc<ContivPolicy>,
}

/// See the module.
#[derive(Debug)]
pub struct Processor {
    scope: Scope,
    groups: Groups,
    assignments: BTreeMap<PolicyName, Assignment>,
    policies_of: AHashMap<PodKey, BTreeSet<PolicyName>>,
    /// Policies with egress port names for peers that are not pods by label: any pod may be such a peer.
    name_watchers: BTreeSet<PolicyName>,
}

impl Processor {
    /// A processor that knows nothing yet.
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            groups: Groups::default(),
            assignments: BTreeMap::new(),
            policies_of: AHashMap::new(),
            name_watchers: BTreeSet::new(),
        }
    }

    /// Whose pods are looked after.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The policies that select the pod, sorted by name.
    pub fn policies_of(&self, pod: PodKey) -> impl Iterator<Item = &Arc<ContivPolicy>> {
        let names = self.policies_of.get(&pod).into_iter().flatten();
        names.filter_map(|name| self.assignments.get(name)).map(|assignment| &assignment.compiled)
    }

    /// Starts over from the whole state. Answers all pods of the scope.
    pub fn resync(&mut self, cache: &Cache) -> BTreeSet<PodKey> {
        let before = std::mem::replace(self, Self::new(self.scope.clone()));
        for policy in cache.policies().values() {
            self.assign(cache, policy);
        }
        // What means the same stays the same object, so that a resync without a change changes nothing below.
        for (name, assignment) in &mut self.assignments {
            if let Some(old) = before.assignments.get(name).filter(|old| old.compiled == assignment.compiled) {
                assignment.compiled = old.compiled.clone();
            }
        }
        cache.pods().filter(|(_, pod)| self.scope.covers(pod)).map(|(key, _)| key).collect()
    }

    /// Follows one change. Answers the pods whose rules it may have altered; a pod that left the scope is among them.
    pub fn process(&mut self, cache: &Cache, change: &Change) -> BTreeSet<PodKey> {
        match change {
            Change::Policy { name, new, .. } => {
                let mut affected = self.unassign(name);
                if let Some(policy) = new {
                    affected.extend(self.assign(cache, policy));
                }
                affected
            }
            Change::Pod { key, old, new } => self.pod_changed(cache, *key, old.as_deref(), new.as_deref()),
            Change::Namespace { name, old, new } => {
                let changed = self.groups.namespace_changed(cache, name, old.as_deref(), new.as_deref());
                self.recompile(cache, self.users(&changed))
            }
            Change::Node { .. } => BTreeSet::new(),
        }
    }

    fn pod_changed(&mut self, cache: &Cache, key: PodKey, old: Option<&Pod>, new: Option<&Pod>) -> BTreeSet<PodKey> {
        let changed = self.groups.pod_changed(cache, key, old, new);
        let mut dirty = self.users(&changed);
        if old.is_some_and(Pod::is_endpoint) || new.is_some_and(Pod::is_endpoint) {
            dirty.extend(self.name_watchers.iter().cloned());
        }
        let mut affected = self.recompile(cache, dirty);
        if old.is_some_and(|pod| self.scope.covers(pod)) || new.is_some_and(|pod| self.scope.covers(pod)) {
            self.reassign_pod(cache, key, new.filter(|pod| self.scope.covers(pod)));
            affected.insert(key);
        }
        affected
    }

    fn users(&self, groups: &[GroupId]) -> BTreeSet<PolicyName> {
        groups.iter().flat_map(|&id| self.groups.get(id).users()).cloned().collect()
    }

    /// Brings the set of policies that select one pod up to date.
    fn reassign_pod(&mut self, cache: &Cache, key: PodKey, pod: Option<&Pod>) {
        let selecting: BTreeMap<PolicyName, Arc<Policy>> = pod
            .into_iter()
            .flat_map(|pod| cache.policies_in(&pod.name.namespace).filter(|policy| policy.subject.matches(&pod.labels)))
            .map(|policy| (policy.name.clone(), policy.clone()))
            .collect();
        for name in self.policies_of.remove(&key).unwrap_or_default() {
            if selecting.contains_key(&name) {
                continue;
            }
            let last = self.assignments.get_mut(&name).is_some_and(|assignment| {
                assignment.subjects.remove(&key);
                assignment.subjects.is_empty()
            });
            if last {
                self.unassign(&name);
            }
        }
        for (name, policy) in &selecting {
            match self.assignments.get_mut(name) {
                Some(assignment) => {
                    assignment.subjects.insert(key);
                }
                None => {
                    self.assign_to(cache, policy, BTreeSet::from([key]));
                }
            }
        }
        if !selecting.is_empty() {
            self.policies_of.insert(key, selecting.into_keys().collect());
        }
    }

    /// Takes in a policy. Answers the pods that it selects.
    fn assign(&mut self, cache: &Cache, policy: &Arc<Policy>) -> BTreeSet<PodKey> {
        let subjects: BTreeSet<_> = cache
            .pods_in(&policy.name.namespace)
            .filter(|(_, pod)| self.scope.covers(pod) && policy.subject.matches(&pod.labels))
            .map(|(key, _)| key)
            .collect();
        for &pod in &subjects {
            self.policies_of.entry(pod).or_default().insert(policy.name.clone());
        }
        if !subjects.is_empty() {
            self.assign_to(cache, policy, subjects.clone());
        }
        subjects
    }

    fn assign_to(&mut self, cache: &Cache, policy: &Arc<Policy>, subjects: BTreeSet<PodKey>) {
        let name = &policy.name;
        let groups: BTreeSet<_> = pod_peers(policy).map(|peer| self.groups.acquire(cache, peer, name)).collect();
        if egress_rules(policy).any(names_ports_of_any_pod) {
            self.name_watchers.insert(name.clone());
        }
        let compiled = Arc::new(self.compile(cache, policy));
        self.assignments.insert(name.clone(), Assignment { policy: policy.clone(), subjects, groups, compiled });
    }

    /// Forgets a policy. Answers the pods that it selected.
    fn unassign(&mut self, name: &PolicyName) -> BTreeSet<PodKey> {
        let Some(assignment) = self.assignments.remove(name) else { return BTreeSet::new() };
        for &group in &assignment.groups {
            self.groups.release(group, name);
        }
        self.name_watchers.remove(name);
        for pod in &assignment.subjects {
            if let Some(policies) = self.policies_of.get_mut(pod) {
                policies.remove(name);
            }
        }
        assignment.subjects
    }

    /// Compiles the policies anew. Answers the subjects of those whose meaning changed.
    fn recompile(&mut self, cache: &Cache, policies: BTreeSet<PolicyName>) -> BTreeSet<PodKey> {
        let mut affected = BTreeSet::new();
        for name in policies {
            let Some(policy) = self.assignments.get(&name).map(|assignment| assignment.policy.clone()) else {
                continue;
            };
            let compiled = self.compile(cache, &policy);
            let Some(assignment) = self.assignments.get_mut(&name) else { continue };
            if *assignment.compiled != compiled {
                assignment.compiled = Arc::new(compiled);
                affected.extend(&assignment.subjects);
            }
        }
        affected
    }

    fn compile(&self, cache: &Cache, policy: &Policy) -> ContivPolicy {
        let ingress = |rules: &Vec<PolicyRule>| {
            rules.iter().enumerate().filter_map(|(at, rule)| self.ingress_match(at, rule)).collect()
        };
        let egress = |rules: &Vec<PolicyRule>| {
            rules.iter().enumerate().flat_map(|(at, rule)| self.egress_matches(cache, at, rule)).collect()
        };
        ContivPolicy {
            name: policy.name.clone(),
            version: policy.version,
            ingress: policy.ingress.as_ref().map(ingress),
            egress: policy.egress.as_ref().map(egress),
        }
    }

    /// None when the rule can match nothing, whatever pod it is applied to.
    fn ingress_match(&self, rule: usize, from: &PolicyRule) -> Option<ContivMatch> {
        let peers = self.peers(from);
        let named = named_ports(from);
        let services = numbered_services(from);
        let nothing = |services: &Services| matches!(services, Services::Set(set) if set.is_empty());
        let impossible = is_empty(&peers) || (nothing(&services) && named.is_empty());
        (!impossible).then_some(ContivMatch { rule, peers, services, named })
    }

    /// One match for the numbered ports, and one for each number that a port name stands for on some destination.
    fn egress_matches(&self, cache: &Cache, rule: usize, to: &PolicyRule) -> Vec<ContivMatch> {
        let peers = self.peers(to);
        let services = numbered_services(to);
        let mut matches = Vec::new();
        if !is_empty(&peers) && !matches!(&services, Services::Set(set) if set.is_empty()) {
            matches.push(ContivMatch { rule, peers: peers.clone(), services, named: Vec::new() });
        }
        for ((transport, number), addresses) in self.destinations_of_names(cache, to, &peers) {
            let services = ServiceSet::from_iter([service(transport, number, number)]).into();
            matches.push(ContivMatch { rule, peers: addresses.into(), services, named: Vec::new() });
        }
        matches
    }

    /// The destinations of a rule's port names, by the number that the name has on each.
    fn destinations_of_names(
        &self,
        cache: &Cache,
        to: &PolicyRule,
        peers: &Addresses,
    ) -> BTreeMap<(Transport, u16), AddressSet> {
        let named = named_ports(to);
        let mut destinations: BTreeMap<_, Vec<_>> = BTreeMap::new();
        if named.is_empty() {
            return BTreeMap::new();
        }
        let mut consider = |pod: &Pod| {
            let ports = pod.ports.iter();
            for port in ports.filter(|port| named.iter().any(|(t, name)| *t == port.transport && *name == port.name)) {
                let addresses = pod.addresses.iter().copied().filter(|&address| peers.contains(address));
                destinations.entry((port.transport, port.port)).or_default().extend(addresses);
            }
        };
        if names_ports_of_any_pod(to) {
            cache.pods().filter(|(_, pod)| pod.is_endpoint()).for_each(|(_, pod)| consider(pod));
        } else {
            let members = self.groups_of(to).flat_map(|id| self.groups.get(id).members());
            members.filter_map(|&key| cache.pod(key)).for_each(|pod| consider(pod));
        }
        destinations.into_iter().map(|(key, addresses)| (key, addresses.into_iter().collect())).collect()
    }

    fn groups_of<'a>(&'a self, rule: &'a PolicyRule) -> impl Iterator<Item = GroupId> + 'a {
        rule.peers.iter().flatten().filter_map(|peer| match peer {
            Peer::Pods(peer) => Some(self.groups.find(peer)),
            Peer::Block(_) => None,
        })
    }

    /// The addresses of a rule's peers.
    fn peers(&self, rule: &PolicyRule) -> Addresses {
        let Some(peers) = &rule.peers else { return Addresses::Any };
        let mut sets = peers.iter().map(|peer| match peer {
            Peer::Pods(peer) => self.groups.get(self.groups.find(peer)).addresses().clone(),
            Peer::Block(block) => {
                let except: AddressSet = block.except.iter().copied().collect();
                Arc::new(AddressSet::from_iter([block.cidr]).subtract(&except))
            }
        });
        let Some(first) = sets.next() else { return AddressSet::default().into() };
        // One peer alone shares its group's set instead of copying it.
        Addresses::Set(sets.fold(first, |all, set| Arc::new(all.union(&set))))
    }
}

fn is_empty(addresses: &Addresses) -> bool {
    matches!(addresses, Addresses::Set(set) if set.is_empty())
}

fn egress_rules(policy: &Policy) -> impl Iterator<Item = &PolicyRule> {
    policy.egress.iter().flatten()
}

fn pod_peers(policy: &Policy) -> impl Iterator<Item = &crate::object::PodPeer> {
    let rules = policy.ingress.iter().flatten().chain(egress_rules(policy));
    rules.flat_map(|rule| rule.peers.iter().flatten()).filter_map(|peer| match peer {
        Peer::Pods(peer) => Some(peer),
        Peer::Block(_) => None,
    })
}

/// Whether a rule's port names are to be looked up on pods that no selector of the rule names.
fn names_ports_of_any_pod(rule: &PolicyRule) -> bool {
    !named_ports(rule).is_empty()
        && rule.peers.as_ref().is_none_or(|peers| peers.iter().any(|peer| matches!(peer, Peer::Block(_))))
}

fn named_ports(rule: &PolicyRule) -> Vec<(Transport, Arc<str>)> {
    let ports = rule.ports.iter().flatten();
    ports
        .filter_map(|port| match port {
            PolicyPort::Named { transport, name } => Some((*transport, name.clone())),
            PolicyPort::All(_) | PolicyPort::Range { .. } => None,
        })
        .collect()
}

/// The services that a rule names by number; everything when it names no ports at all.
fn numbered_services(rule: &PolicyRule) -> Services {
    let Some(ports) = &rule.ports else { return Services::Any };
    let numbered = ports.iter().filter_map(|port| match port {
        PolicyPort::All(transport) => Some(service(*transport, 0, u16::MAX)),
        PolicyPort::Range { transport, first, last } => Some(service(*transport, *first, *last)),
        PolicyPort::Named { .. } => None,
    });
    numbered.collect::<ServiceSet>().into()
}
