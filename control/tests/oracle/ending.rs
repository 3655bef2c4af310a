//! What outlives its deletion, because its namespace is being deleted with everything in it.
//!
//! The contents of such a namespace go in no particular order. A pod that is still there when its policies are gone must
//! not be open for that (CVE-2024-7598), so a policy, or the isolation of the namespace, that vanishes from a namespace
//! that was said to terminate stays in force until the pods that it is about are gone:
//!
//! * A pod counts as long as it may send and receive by itself: it has not ended, and has a network of its own.
//! * When none is left it is over for good, whatever comes into the namespace then.
//! * A namespace whose object is gone is still being deleted while it has pods. One that is said to stay is not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_control::cache::Event;
use bulkhead_control::object::{Object, Pod, Policy, PolicyName};

use super::{State, selects};

/// What is gone and still in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Namespaces that are being deleted, with or without an object.
    ending: BTreeSet<Arc<str>>,
    pub(crate) policies: BTreeMap<PolicyName, Policy>,
    /// Namespaces that isolate and no longer say so.
    pub(crate) isolations: BTreeSet<Arc<str>>,
}

impl State {
    /// Follows what an event that led here from `before` means for what is kept.
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

    /// Ends what is kept for nobody any more, and what is there again.
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

    /// The state in which what is kept is there as an object of its own; none when that is an isolation, which has none.
    pub(crate) fn with_the_kept(&self) -> Option<Self> {
        let mut state = self.clone();
        state.policies.append(&mut state.kept.policies);
        self.kept.isolations.is_empty().then_some(state)
    }
}
