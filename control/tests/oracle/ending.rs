//! Policies and isolations that stay in force after their deletion, because their namespace is being deleted.
//!
//! The contents of such a namespace are deleted in no particular order. A remaining pod must not be open without its policies
//! (CVE-2024-7598). A policy, or the namespace's isolation, that disappears from a terminating namespace therefore stays in force until the
//! pods that it selects are gone:
//!
//! * A pod counts while it can send and receive by itself: it has not terminated and has its own network.
//! * After the last such pod, the policy is gone for good, even if new pods appear in the namespace.
//! * A namespace without an object is still being deleted while it has pods. A namespace that exists and does not terminate is not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_control::cache::Event;
use bulkhead_control::object::{Object, Pod, Policy, PolicyName};

use super::{State, selects};

/// The retained policies and isolations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Namespaces that are being deleted, with or without an object.
    ending: BTreeSet<Arc<str>>,
    pub(crate) policies: BTreeMap<PolicyName, Policy>,
    /// Namespaces that still isolate without an annotation.
    pub(crate) isolations: BTreeSet<Arc<str>>,
}

impl State {
    /// Updates what is retained after an event that led from `before` to this state.
    pub(super) fn keep(&mut self, before: &Self, event: &Event) {
        if let Event::Apply(Object::Namespace(namespace)) = event {
            if namespace.terminating {
                self.kept.ending.insert(namespace.name.clone());
            } else {
                self.kept.ending.remove(&namespace.name);
            }
        }
        let (namespaces, pods) = (&self.namespaces, &self.pods);
        let has_pods = |name: &Arc<str>| pods.keys().any(|pod| pod.namespace == *name);
        self.kept.ending.retain(|name| namespaces.contains_key(name) || has_pods(name));

        for (name, policy) in before.policies.iter().filter(|(name, _)| !self.policies.contains_key(*name)) {
            self.kept.policies.insert(name.clone(), policy.clone());
        }
        let mut all: BTreeSet<Arc<str>> = before.pods.keys().map(|pod| pod.namespace.clone()).collect();
        all.extend(before.namespaces.keys().cloned());
        for name in all {
            let did = before.says_that_it_isolates(&name) || before.kept.isolations.contains(&name);
            if did && !self.says_that_it_isolates(&name) {
                self.kept.isolations.insert(name);
            }
        }
        self.end();
    }

    /// Drops retained policies and isolations that have no pods any more, or exist again.
    fn end(&mut self) {
        let Kept { ending, policies, isolations } = std::mem::take(&mut self.kept);
        let lives = |pod: &Pod| !pod.finished && !pod.host_network;
        let concerns = |policy: &Policy| {
            let mut own = self.pods.values().filter(|pod| pod.name.namespace == policy.name.namespace);
            own.any(|pod| lives(pod) && selects(&policy.subject, &pod.labels))
        };
        let needed = |name: &PolicyName, policy: &Policy| {
            !self.policies.contains_key(name) && ending.contains(&name.namespace) && concerns(policy)
        };
        let policies = policies.into_iter().filter(|(name, policy)| needed(name, policy)).collect();
        let has_pods = |name: &Arc<str>| self.pods.values().any(|pod| pod.name.namespace == *name && lives(pod));
        let needed = |name: &Arc<str>| ending.contains(name) && has_pods(name) && !self.says_that_it_isolates(name);
        let isolations = isolations.into_iter().filter(needed).collect();
        self.kept = Kept { ending, policies, isolations };
    }

    /// The state with retained policies as objects. `None` if an isolation is retained, which no object can express.
    pub(crate) fn with_the_kept(&self) -> Option<Self> {
        let mut state = self.clone();
        state.policies.append(&mut state.kept.policies);
        self.kept.isolations.is_empty().then_some(state)
    }
}
