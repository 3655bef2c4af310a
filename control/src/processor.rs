//! The processor: which pods a change concerns, and what their policies mean in addresses and numbers.
//!
//! ```text
//!  change --> groups that the pod or namespace enters or leaves --> policies that use them --> pods they select
//!         `-> policies whose subjects change ----------------------------------------------------------^
//! ```
//! A step that finds its result unchanged ends the walk there: a relabelled pod that stays in the same groups concerns
//! nobody. Only pods of the scope (one node, or all for a what-if) are looked after; the others are peers.

mod compile;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};

use self::compile::{Blocks, Compiler};
use crate::cache::{Cache, Change, PodKey};
use crate::contiv::ContivPolicy;
use crate::group::{Groups, Use};
use crate::object::{Pod, Policy, PolicyName};

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

/// Work done so far, in steps that do not depend on the machine: what an event costs is the difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Pods looked at, as peers or as subjects of policies.
    pub pods: u64,
    /// Intervals of address sets written.
    pub intervals: u64,
    /// Policies compiled.
    pub policies: u64,
}

/// A policy that selects at least one pod of the scope.
#[derive(Debug)]
struct Assignment {
    policy: Arc<Policy>,
    subjects: BTreeSet<PodKey>,
    uses: AHashSet<Use>,
    blocks: Blocks,
    compiled: Arc<ContivPolicy>,
}

/// See the module.
#[derive(Debug)]
pub struct Processor {
    scope: Scope,
    groups: Groups,
    assignments: BTreeMap<PolicyName, Assignment>,
    policies_of: AHashMap<PodKey, BTreeSet<PolicyName>>,
    work: Work,
}

impl Processor {
    /// A processor that knows nothing yet.
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            groups: Groups::default(),
            assignments: BTreeMap::new(),
            policies_of: AHashMap::new(),
            work: Work::default(),
        }
    }

    /// The work done since this processor was made.
    pub fn work(&self) -> Work {
        self.work
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

    /// Starts over from the whole state. Returns all pods of the scope.
    pub fn resync(&mut self, cache: &Cache) -> BTreeSet<PodKey> {
        let mut before = std::mem::replace(self, Self::new(self.scope.clone()));
        self.work = before.work;
        self.groups = before.groups.start_over();
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

    /// Follows one change. Returns the pods whose rules it may have altered; a pod that left the scope is among them.
    pub fn process(&mut self, cache: &Cache, change: &Change) -> BTreeSet<PodKey> {
        match change {
            Change::Policy { name, new, .. } => self.policy_changed(cache, name, new.as_ref()),
            Change::Pod { key, old, new } => self.pod_changed(cache, *key, old.as_deref(), new.as_deref()),
            Change::Namespace { name, old, new } => {
                let (old, new) = (old.as_deref(), new.as_deref());
                let users = self.groups.namespace_changed(cache, name, old, new, &mut self.work);
                self.recompile(users)
            }
            Change::Node { .. } => BTreeSet::new(),
        }
    }

    fn policy_changed(&mut self, cache: &Cache, name: &PolicyName, new: Option<&Arc<Policy>>) -> BTreeSet<PodKey> {
        let Some(old) = self.detach(name) else {
            return new.map(|policy| self.assign(cache, policy)).unwrap_or_default();
        };
        let subjects = new.map(|policy| self.assign(cache, policy)).unwrap_or_default();
        // Only now: a group that both versions use is not made anew.
        let kept = self.assignments.get(name).map(|assignment| &assignment.uses);
        for used in old.uses.iter().filter(|used| kept.is_none_or(|kept| !kept.contains(used))) {
            self.groups.release(used, name);
        }
        match self.assignments.get_mut(name).filter(|assignment| assignment.compiled == old.compiled) {
            // Another text with the same meaning concerns those alone that it selects now or did before.
            Some(assignment) => {
                assignment.compiled = old.compiled;
                &subjects ^ &old.subjects
            }
            None => &subjects | &old.subjects,
        }
    }

    fn pod_changed(&mut self, cache: &Cache, key: PodKey, old: Option<&Pod>, new: Option<&Pod>) -> BTreeSet<PodKey> {
        let users = self.groups.pod_changed(cache, key, old, new, &mut self.work);
        let mut affected = self.recompile(users);
        if old.is_some_and(|pod| self.scope.covers(pod)) || new.is_some_and(|pod| self.scope.covers(pod)) {
            self.reassign_pod(cache, key, new.filter(|pod| self.scope.covers(pod)));
            affected.insert(key);
        }
        affected
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

    /// Takes in a policy. Returns the pods that it selects.
    fn assign(&mut self, cache: &Cache, policy: &Arc<Policy>) -> BTreeSet<PodKey> {
        let subjects: BTreeSet<_> = cache
            .pods_in(&policy.name.namespace)
            .inspect(|_| self.work.pods += 1)
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
        let uses = compile::acquire(&mut self.groups, cache, policy, &mut self.work);
        let blocks = Blocks::of(policy);
        let compiled = Arc::new(Compiler::new(&self.groups, &blocks, &mut self.work).compile(policy));
        let assignment = Assignment { policy: policy.clone(), subjects, uses, blocks, compiled };
        self.assignments.insert(policy.name.clone(), assignment);
    }

    /// Forgets a policy.
    fn unassign(&mut self, name: &PolicyName) {
        for used in self.detach(name).into_iter().flat_map(|assignment| assignment.uses) {
            self.groups.release(&used, name);
        }
    }

    /// Takes a policy out, but for what it uses. Returns what it was.
    fn detach(&mut self, name: &PolicyName) -> Option<Assignment> {
        let assignment = self.assignments.remove(name)?;
        for pod in &assignment.subjects {
            if let Some(policies) = self.policies_of.get_mut(pod) {
                policies.remove(name);
            }
        }
        Some(assignment)
    }

    /// Compiles the policies anew. Returns the subjects of those whose meaning changed.
    fn recompile(&mut self, policies: BTreeSet<PolicyName>) -> BTreeSet<PodKey> {
        let mut affected = BTreeSet::new();
        for name in policies {
            let Some(assignment) = self.assignments.get_mut(&name) else { continue };
            let compiled = Compiler::new(&self.groups, &assignment.blocks, &mut self.work).compile(&assignment.policy);
            // Sets that did not change are the same objects: the comparison looks into those alone that did.
            if *assignment.compiled != compiled {
                assignment.compiled = Arc::new(compiled);
                affected.extend(&assignment.subjects);
            }
        }
        affected
    }
}
