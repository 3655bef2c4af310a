//! What is in the state although no object of its own says so:
//!
//! * A namespace that isolates its pods (`extensions/v1beta1`) stands as a policy that selects them all and lets nothing in.
//! * A policy that vanishes from a namespace that is being deleted stays until the pods that it selects are gone. The
//!   namespace's contents are deleted in no particular order, and pods that outlive their policies would be open for as
//!   long as they take to stop (CVE-2024-7598).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Cache, Change};
use crate::object::{ISOLATION_ANNOTATION, IngressIsolation, Policy, PolicyName, PolicyVersion};
use crate::selector::Selector;

impl Cache {
    /// Keeps the policies of `before` that this state lacks and that have to outlive their deletion.
    pub fn retain_from(&mut self, before: &Self) {
        for (name, policy) in &before.policies {
            if !self.policies.contains_key(name) && policy.version != PolicyVersion::NamespaceIsolation {
                self.policies.insert(name.clone(), policy.clone());
                self.set_policy(name.clone(), None);
            }
        }
    }

    /// Makes the namespace's isolation a policy, or removes that.
    pub(super) fn isolate(&mut self, namespace: &Arc<str>) -> Option<Change> {
        let own = self.namespaces.get(namespace).map(|namespace| namespace.isolation).unwrap_or_default();
        let isolates = match own {
            IngressIsolation::ClusterDefault => self.default_isolation == IngressIsolation::DefaultDeny,
            IngressIsolation::DefaultDeny => true,
        };
        let name = PolicyName::new(namespace.clone(), ISOLATION_ANNOTATION);
        if isolates == self.policies.contains_key(&name) {
            return None;
        }
        let policy = isolates.then(|| Policy {
            name: name.clone(),
            subject: Selector::everything(),
            ingress: Some(Vec::new()),
            egress: None,
            version: PolicyVersion::NamespaceIsolation,
            fault: None,
            position: None,
        });
        self.set_policy(name, policy.map(Arc::new))
    }

    /// Ends the policies that were kept for pods of the namespace and have none left, or a namespace that stays.
    pub(super) fn release(&mut self, namespace: &Arc<str>) -> Vec<Change> {
        let Some(kept) = self.retained.remove(namespace) else { return Vec::new() };
        let (needed, over): (BTreeSet<_>, BTreeSet<_>) = kept.into_iter().partition(|name| self.is_needed(name));
        if !needed.is_empty() {
            self.retained.insert(namespace.clone(), needed);
        }
        let ended = over.into_iter().filter_map(|name| {
            let old = self.policies.remove(&name)?;
            Some(Change::Policy { name, old: Some(old), new: None })
        });
        ended.collect()
    }

    /// Whether a policy has to outlive its deletion.
    pub(super) fn is_needed(&self, name: &PolicyName) -> bool {
        let Some(policy) = self.policies.get(name) else { return false };
        self.namespaces.get(&name.namespace).is_some_and(|namespace| namespace.terminating)
            && self.pods_in(&name.namespace).any(|(_, pod)| pod.is_endpoint() && policy.subject.matches(&pod.labels))
    }
}
