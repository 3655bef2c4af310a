//! The processor: finds the pods that a change concerns, and compiles their policies to sets and port numbers.
//!
//! ```text
//!  change --> address book: changes of sets' members ------------------------------------commit--> SetDelta
//!         |        `--a port name maps to other numbers--> policies to compile --commit--> pods that they select
//!         `-> policies whose text or subjects change ---------------^--------------------------^
//! ```
//! Adding or removing a pod changes sets and compiles no policy. A policy that compiles to the same result affects no pod. Only pods of the
//! scope (one node, or all nodes for a what-if) get rules; the others are only peers.

mod acquire;
mod compile;
mod governing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};

use self::acquire::Blocks;
use self::compile::Compiler;
pub use self::compile::{CompiledPolicy, Match};
use self::governing::Governing;
use crate::book::{self, AddressBook, Use};
use crate::cache::{Cache, CacheChange, PodKey, scope_covers};
use crate::contract::{SetDelta, SetId};
use crate::object::{Enforcement, Namespace, Pod, PodPeer, PolicyName};
use crate::work::Work;

/// The pods that get rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The pods of one node.
    Node(Arc<str>),
    /// The pods of all nodes, for questions about the whole cluster.
    Cluster,
}

impl Scope {
    /// Whether the pod is an endpoint of the scope.
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
    policy: Governing,
    subjects: BTreeSet<PodKey>,
    uses: AHashSet<Use>,
    blocks: Blocks,
    /// The compiled policy. `None` until the first commit.
    compiled: Option<Revision>,
}

/// A compiled policy with a unique number. Equal numbers mean equal results.
#[derive(Clone, Debug)]
pub struct Revision {
    /// The revision's number, which is never reused.
    pub number: u64,
    /// The compiled policy.
    pub policy: Arc<CompiledPolicy>,
}

/// The changes that a batch of events caused: affected pods and address sets.
#[derive(Debug, Default)]
pub struct Committed {
    /// Pods whose rules may have changed, including pods that left the scope.
    pub affected: BTreeSet<PodKey>,
    /// New and changed sets, sorted by identity.
    pub sets: Vec<SetDelta>,
    /// Sets that no policy names any more, sorted by identity.
    pub dropped: Vec<SetId>,
}

/// Compiles the policies that select pods of the scope, and tracks which pods and address sets each change affects.
#[derive(Debug)]
pub struct Processor {
    scope: Scope,
    book: AddressBook,
    assignments: BTreeMap<PolicyName, Assignment>,
    policies_of: AHashMap<PodKey, BTreeSet<PolicyName>>,
    revisions: u64,
    /// Pods whose policies changed since the last commit.
    affected: BTreeSet<PodKey>,
    uncompiled: BTreeSet<PolicyName>,
    /// The default for policies without an enforcement annotation. `None` without auditing: all policies are enforced except staged ones.
    auditing: Option<Enforcement>,
    /// The audited policies, as of the last commit.
    audited: BTreeSet<PolicyName>,
    /// The last revisions of policies that were removed since the last commit, and may be added again.
    retired: AHashMap<PolicyName, Revision>,
    work: Work,
}

impl Processor {
    /// Creates a processor without policies.
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            book: AddressBook::default(),
            assignments: BTreeMap::new(),
            policies_of: AHashMap::new(),
            revisions: 0,
            affected: BTreeSet::new(),
            uncompiled: BTreeSet::new(),
            auditing: None,
            audited: BTreeSet::new(),
            retired: AHashMap::new(),
            work: Work::default(),
        }
    }

    /// Returns the work since the processor was made.
    pub fn work(&self) -> Work {
        self.work
    }

    /// Returns the pods that get rules.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Enables auditing, with the default for policies without an annotation. `None` disables auditing: all policies are enforced
    /// except staged ones. Policies that are compiled already stay as they are until the next resync.
    pub fn set_auditing(&mut self, default: Option<Enforcement>) {
        self.auditing = default;
    }

    /// Returns the default of [`Processor::set_auditing`].
    pub fn auditing(&self) -> Option<Enforcement> {
        self.auditing
    }

    /// Returns the audited policies that select a pod of the scope, as of the last commit.
    pub fn audited(&self) -> &BTreeSet<PolicyName> {
        &self.audited
    }

    /// Returns the compiled policies that select the pod, sorted by name, as of the last commit.
    pub fn policies_of(&self, pod: PodKey) -> impl Iterator<Item = &Revision> {
        let names = self.policies_of.get(&pod).into_iter().flatten();
        names.filter_map(|name| self.assignments.get(name)?.compiled.as_ref())
    }

    /// Starts over from the whole state. Returns all pods of the scope, and all sets with all their members.
    pub fn resync(&mut self, cache: &Cache) -> Committed {
        let mut before = std::mem::replace(self, Self::new(self.scope.clone()));
        self.work = before.work;
        self.auditing = before.auditing;
        self.revisions = before.revisions;
        self.book = before.book.start_over();
        let namespaced = cache.policies().values().cloned().map(Governing::Namespaced);
        for policy in namespaced.chain(cache.cluster_policies().values().cloned().map(Governing::Cluster)) {
            self.assign(cache, &policy);
        }
        // Equal results keep their number, so that a resync without a change changes no list.
        let revisions = before.assignments.into_iter().filter_map(|(name, before)| Some((name, before.compiled?)));
        self.retired = revisions.collect();
        let mut committed = self.commit(cache);
        committed.affected = cache.pods().filter(|(_, pod)| self.scope.covers(pod)).map(|(key, _)| key).collect();
        committed
    }

    /// Applies one change of the cache: updates the address sets and records the policies to compile. The next commit compiles them.
    pub fn process(&mut self, cache: &Cache, change: &CacheChange) {
        match change {
            CacheChange::Policy { name, new, .. } => {
                self.policy_changed(cache, name, new.clone().map(Governing::Namespaced).as_ref());
            }
            CacheChange::ClusterPolicy { name, new, .. } => {
                self.policy_changed(cache, &name.key(), new.clone().map(Governing::Cluster).as_ref());
            }
            CacheChange::Pod { key, old, new } => self.pod_changed(cache, *key, old.as_deref(), new.as_deref()),
            CacheChange::Namespace { name, old, new } => {
                self.book.namespace_changed(cache, name, old.as_deref(), new.as_deref(), &mut self.work);
                self.reassign_namespace(cache, name, old.as_deref(), new.as_deref());
                let [before, after] = [old, new].map(|namespace| namespace.as_ref().and_then(|one| one.enforcement));
                if before != after {
                    let policies = cache.policies_in(name).map(|policy| &policy.name);
                    self.uncompiled.extend(policies.filter(|name| self.assignments.contains_key(*name)).cloned());
                }
            }
            CacheChange::Node { .. } => self.book.node_changed(cache),
            CacheChange::Quarantine => self.book.quarantine_changed(cache),
        }
    }

    /// Ends a batch: compiles the changed policies and returns the changes since the last commit.
    pub fn commit(&mut self, cache: &Cache) -> Committed {
        let book::CommittedSets { sets, dropped, renumbered } = self.book.commit(cache);
        let mut affected = std::mem::take(&mut self.affected);
        for name in &std::mem::take(&mut self.uncompiled) | &renumbered {
            let Some(assignment) = self.assignments.get_mut(&name) else { continue };
            if assignment.compiled.is_none() {
                assignment.compiled = self.retired.remove(&name);
            }
            self.work.policies += 1;
            let is_audited = match self.auditing {
                Some(default) => assignment.policy.enforcement(cache, default) == Enforcement::Audit,
                None => assignment.policy.is_staged(),
            };
            let compiler = Compiler { book: &self.book, blocks: &assignment.blocks };
            let compiled = compiler.compile(&assignment.policy, is_audited);
            if is_audited {
                self.audited.insert(name.clone());
            } else {
                self.audited.remove(&name);
            }
            // Another text with the same result affects only the pods that it newly selects or no longer selects.
            if assignment.compiled.as_ref().is_none_or(|known| *known.policy != compiled) {
                self.revisions += 1;
                assignment.compiled = Some(Revision { number: self.revisions, policy: Arc::new(compiled) });
                affected.extend(&assignment.subjects);
            }
        }
        self.retired.clear();
        Committed { affected, sets, dropped }
    }

    /// Returns the largest number of pods that one policy names. A pod counts once per group that contains it. A port name that is looked
    /// up on all pods counts the pods that declare it.
    pub(crate) fn most_named(&self) -> usize {
        let named = |assignment: &Assignment| assignment.uses.iter().map(|used| self.book.pods_named_by(used)).sum();
        self.assignments.values().map(named).max().unwrap_or(0)
    }

    /// Returns the number of stored items: policies, pods with policies, and entries of the address book.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.book.held() + self.assignments.len() + self.policies_of.len()
    }

    /// Returns all sets in use, computed from the cache: the reference for the deltas.
    #[cfg(test)]
    pub(crate) fn sets(&self, cache: &Cache) -> BTreeMap<SetId, bulkhead_classifier::AddressSet> {
        self.book.all(cache)
    }

    fn policy_changed(&mut self, cache: &Cache, name: &PolicyName, new: Option<&Governing>) {
        let old = self.detach(name);
        let subjects = new.map(|policy| self.assign(cache, policy)).unwrap_or_default();
        let Some(old) = old else { return self.affected.extend(subjects) };
        for used in &old.uses {
            let kept = self.assignments.get(name).is_some_and(|assignment| assignment.uses.contains(used));
            if !kept {
                self.book.release(used, name);
            }
        }
        self.affected.extend(&subjects ^ &old.subjects);
    }

    fn pod_changed(&mut self, cache: &Cache, key: PodKey, old: Option<&Pod>, new: Option<&Pod>) {
        self.book.pod_changed(cache, key, old, new, &mut self.work);
        if old.into_iter().chain(new).any(|pod| pod.host_network) {
            self.book.node_changed(cache);
        }
        if old.is_some_and(|pod| self.scope.covers(pod)) || new.is_some_and(|pod| self.scope.covers(pod)) {
            self.reassign_pod(cache, key, new.filter(|pod| self.scope.covers(pod)));
            self.affected.insert(key);
        }
    }

    /// Applies a change of a namespace's labels to cluster policies.
    fn reassign_namespace(&mut self, cache: &Cache, name: &Arc<str>, old: Option<&Namespace>, new: Option<&Namespace>) {
        let [before, after] = [old, new].map(|namespace| namespace.map(|namespace| &namespace.labels));
        let is_moved = |subject: &PodPeer| {
            let scope = &subject.namespaces;
            scope_covers(scope, name, before) != scope_covers(scope, name, after)
                || subject.filter.as_ref().is_some_and(|filter| filter.has_namespace_labels())
        };
        if !cache.cluster_policies().values().any(|policy| is_moved(&policy.subject)) {
            return;
        }
        let pods = cache.pods_in(name).inspect(|_| self.work.pods += 1);
        let pods: Vec<_> = pods.filter(|(_, pod)| self.scope.covers(pod)).collect();
        for (key, pod) in pods {
            self.reassign_pod(cache, key, Some(pod));
            self.affected.insert(key);
        }
    }

    /// Updates the set of policies that select one pod.
    fn reassign_pod(&mut self, cache: &Cache, key: PodKey, pod: Option<&Pod>) {
        let selecting = pod.into_iter().flat_map(|pod| Governing::of(cache, pod));
        let selecting: BTreeMap<PolicyName, Governing> = selecting.map(|policy| (policy.key(), policy)).collect();
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

    /// Adds a policy, which the next commit compiles. Returns the pods that it selects.
    fn assign(&mut self, cache: &Cache, policy: &Governing) -> BTreeSet<PodKey> {
        let mut subjects = policy.subjects(cache, &mut self.work);
        subjects.retain(|&key| cache.pod(key).is_some_and(|pod| self.scope.covers(pod)));
        for &pod in &subjects {
            self.policies_of.entry(pod).or_default().insert(policy.key());
        }
        if !subjects.is_empty() {
            self.assign_to(cache, policy, subjects.clone());
        }
        subjects
    }

    fn assign_to(&mut self, cache: &Cache, policy: &Governing, subjects: BTreeSet<PodKey>) {
        let blocks = Blocks::of(policy);
        let uses = acquire::acquire(&mut self.book, cache, policy, &blocks, &mut self.work);
        let assignment = Assignment { policy: policy.clone(), subjects, uses, blocks, compiled: None };
        self.assignments.insert(policy.key(), assignment);
        self.uncompiled.insert(policy.key());
    }

    /// Removes a policy and releases the sets that it uses.
    fn unassign(&mut self, name: &PolicyName) {
        for used in self.detach(name).into_iter().flat_map(|assignment| assignment.uses) {
            self.book.release(&used, name);
        }
    }

    /// Removes a policy without releasing the sets that it uses. Returns it.
    fn detach(&mut self, name: &PolicyName) -> Option<Assignment> {
        let mut assignment = self.assignments.remove(name)?;
        self.audited.remove(name);
        if let Some(revision) = assignment.compiled.take() {
            self.retired.insert(name.clone(), revision);
        }
        for pod in &assignment.subjects {
            if let Some(policies) = self.policies_of.get_mut(pod) {
                policies.remove(name);
            }
        }
        Some(assignment)
    }
}
