//! The processor: which pods a change concerns, and what their policies mean in sets and numbers.
//!
//! ```text
//!  change --> address book: members of sets come and go --commit--> SetDelta
//!         |        `--a port name stands for other numbers--> policies to compile --commit--> pods they select
//!         `-> policies whose text or subjects change ---------------^---------------------------^
//! ```
//! A pod that comes or goes changes sets and compiles no policy. A policy that comes out as it was concerns nobody. Only pods of
//! the scope (one node, or all for a what-if) are looked after; the others are peers.

mod compile;
mod governing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};

use self::compile::{Blocks, Compiler};
pub use self::compile::{CompiledPolicy, Match};
use self::governing::Governing;
use crate::book::{self, AddressBook, Use};
use crate::cache::{Cache, CacheChange, PodKey, scope_covers};
use crate::contract::{SetDelta, SetId};
use crate::object::{Enforcement, Namespace, Pod, PolicyName};
use crate::work::Work;

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
    policy: Governing,
    subjects: BTreeSet<PodKey>,
    uses: AHashSet<Use>,
    blocks: Blocks,
    /// None until the first commit.
    compiled: Option<Revision>,
}

/// What a policy means, and the number of that meaning: never another one's.
#[derive(Clone, Debug)]
pub struct Revision {
    /// The number.
    pub number: u64,
    /// The meaning.
    pub policy: Arc<CompiledPolicy>,
}

/// What a batch changed.
#[derive(Debug, Default)]
pub struct Committed {
    /// Pods whose rules it may have altered, among them pods that left the scope.
    pub affected: BTreeSet<PodKey>,
    /// New and changed sets, by identity.
    pub sets: Vec<SetDelta>,
    /// Sets that no policy names any more, by identity.
    pub dropped: Vec<SetId>,
}

/// See the module.
#[derive(Debug)]
pub struct Processor {
    scope: Scope,
    book: AddressBook,
    assignments: BTreeMap<PolicyName, Assignment>,
    policies_of: AHashMap<PodKey, BTreeSet<PolicyName>>,
    revisions: u64,
    /// Pods whose policies changed since the last commit, and policies that are to be compiled.
    affected: BTreeSet<PodKey>,
    uncompiled: BTreeSet<PolicyName>,
    /// What holds for policies that do not say whether they are enforced; none where all are, whatever they say.
    auditing: Option<Enforcement>,
    /// Those of the assigned policies that are not enforced, as of the last commit.
    audited: BTreeSet<PolicyName>,
    /// What policies meant that were taken out since the last commit: they may come back.
    retired: AHashMap<PolicyName, Revision>,
    work: Work,
}

impl Processor {
    /// A processor that knows nothing yet.
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

    /// The work done since this processor was made.
    pub fn work(&self) -> Work {
        self.work
    }

    /// Whose pods are looked after.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Has policies be audited that say so, and with [`Enforcement::Audit`] also those that say nothing; with none all are enforced. To be
    /// called before there are objects, or before a resync.
    pub fn set_auditing(&mut self, default: Option<Enforcement>) {
        self.auditing = default;
    }

    /// See [`Processor::set_auditing`].
    pub fn auditing(&self) -> Option<Enforcement> {
        self.auditing
    }

    /// The policies that select a pod of the scope and are not enforced, as of the last commit.
    pub fn audited(&self) -> &BTreeSet<PolicyName> {
        &self.audited
    }

    /// The policies that select the pod, sorted by name, as of the last commit.
    pub fn policies_of(&self, pod: PodKey) -> impl Iterator<Item = &Revision> {
        let names = self.policies_of.get(&pod).into_iter().flatten();
        names.filter_map(|name| self.assignments.get(name)?.compiled.as_ref())
    }

    /// Starts over from the whole state. All pods of the scope are affected, and all sets are told with all their members.
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
        // What means the same keeps its number, so that a resync without a change changes nothing below.
        let revisions = before.assignments.into_iter().filter_map(|(name, before)| Some((name, before.compiled?)));
        self.retired = revisions.collect();
        let mut committed = self.commit(cache);
        committed.affected = cache.pods().filter(|(_, pod)| self.scope.covers(pod)).map(|(key, _)| key).collect();
        committed
    }

    /// Follows one change.
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

    /// Ends a batch: compiles what has to be, and tells what all changes since the last commit came to.
    pub fn commit(&mut self, cache: &Cache) -> Committed {
        let book::CommittedSets { sets, dropped, renumbered } = self.book.commit(cache);
        let mut affected = std::mem::take(&mut self.affected);
        for name in &std::mem::take(&mut self.uncompiled) | &renumbered {
            let Some(assignment) = self.assignments.get_mut(&name) else { continue };
            if assignment.compiled.is_none() {
                assignment.compiled = self.retired.remove(&name);
            }
            self.work.policies += 1;
            let enforcement = self.auditing.map(|default| assignment.policy.enforcement(cache, default));
            let is_audited = enforcement == Some(Enforcement::Audit);
            let compiler = Compiler { book: &self.book, blocks: &assignment.blocks };
            let compiled = compiler.compile(&assignment.policy, is_audited);
            if is_audited {
                self.audited.insert(name.clone());
            } else {
                self.audited.remove(&name);
            }
            // Another text with the same meaning concerns those alone that it selects now or did before.
            if assignment.compiled.as_ref().is_none_or(|known| *known.policy != compiled) {
                self.revisions += 1;
                assignment.compiled = Some(Revision { number: self.revisions, policy: Arc::new(compiled) });
                affected.extend(&assignment.subjects);
            }
        }
        self.retired.clear();
        Committed { affected, sets, dropped }
    }

    /// The most pods that one policy of the scope's pods names together, each as often as the policy's groups have it. A port name that is
    /// looked up among all pods names those that declare it.
    pub(crate) fn most_named(&self) -> usize {
        let named = |assignment: &Assignment| assignment.uses.iter().map(|used| self.book.pods_named_by(used)).sum();
        self.assignments.values().map(named).max().unwrap_or(0)
    }

    /// How much of the address book, and how many policies and pods of policies are remembered.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.book.held() + self.assignments.len() + self.policies_of.len()
    }

    /// All sets in use with their members, read from the cache: the slow truth beside the deltas.
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

    /// Follows a namespace whose labels cluster policies may ask for.
    fn reassign_namespace(&mut self, cache: &Cache, name: &Arc<str>, old: Option<&Namespace>, new: Option<&Namespace>) {
        let [before, after] = [old, new].map(|namespace| namespace.map(|namespace| &namespace.labels));
        let mut subjects = cache.cluster_policies().values().map(|policy| &policy.subject.namespaces);
        if !subjects.any(|scope| scope_covers(scope, name, before) != scope_covers(scope, name, after)) {
            return;
        }
        let pods = cache.pods_in(name).inspect(|_| self.work.pods += 1);
        let pods: Vec<_> = pods.filter(|(_, pod)| self.scope.covers(pod)).collect();
        for (key, pod) in pods {
            self.reassign_pod(cache, key, Some(pod));
            self.affected.insert(key);
        }
    }

    /// Brings the set of policies that select one pod up to date.
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

    /// Takes in a policy, to be compiled with the next commit. Returns the pods that it selects.
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
        let uses = compile::acquire(&mut self.book, cache, policy, &blocks, &mut self.work);
        let assignment = Assignment { policy: policy.clone(), subjects, uses, blocks, compiled: None };
        self.assignments.insert(policy.key(), assignment);
        self.uncompiled.insert(policy.key());
    }

    /// Forgets a policy.
    fn unassign(&mut self, name: &PolicyName) {
        for used in self.detach(name).into_iter().flat_map(|assignment| assignment.uses) {
            self.book.release(&used, name);
        }
    }

    /// Takes a policy out, but for what it uses. Returns what it was.
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
