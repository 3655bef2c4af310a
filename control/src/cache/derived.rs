//! Policies that the cache derives or retains without a present object:
//!
//! * A namespace that isolates its pods (`extensions/v1beta1`) is represented by a policy that selects all of them and allows no ingress.
//! * A deleted policy of a terminating namespace stays until the pods that it selects are gone. A namespace's contents are deleted in no
//!   particular order, and pods that outlive their policies would be open until they stop (CVE-2024-7598). A policy deleted before its
//!   namespace starts to terminate is removed immediately: its deletion looks like any other.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Cache, CacheChange};
use crate::object::{ISOLATION_ANNOTATION, IngressIsolation, Namespace, Pod, Policy, PolicyName, PolicyVersion};
use crate::selector::Selector;

impl Cache {
    /// Keeps the policies of `before` that this state lacks but must still enforce.
    pub(crate) fn retain_from(&mut self, before: &Self) {
        let left = before.ending.iter().filter(|name| !self.namespaces.contains_key(*name)).cloned();
        let left: Vec<_> = left.filter(|name| self.pods_in(name).next().is_some()).collect();
        self.ending.extend(left);
        for (name, policy) in &before.policies {
            if !self.policies.contains_key(name) {
                self.policies.insert(name.clone(), policy.clone());
                self.set_policy(name.clone(), None);
            }
        }
    }

    /// Tracks which namespaces are being deleted. A namespace without an object stays among them until its last pod is deleted, because
    /// watches of different kinds are not ordered.
    pub(super) fn follow_end(&mut self, name: &Arc<str>, old: Option<&Namespace>, new: Option<&Namespace>) {
        // A deletion may be reported twice.
        let Some(namespace) = new.or(old) else { return };
        if namespace.terminating {
            self.ending.insert(name.clone());
        } else {
            self.ending.remove(name);
        }
    }

    /// Adds or removes the policy that represents the namespace's isolation. A change of a pod may add it but not remove it: after the
    /// namespace stops isolating, a retained policy ends with its pods ([`Self::release`]).
    pub(super) fn isolate(&mut self, namespace: &Arc<str>, is_pod: bool) -> Option<CacheChange> {
        let own = self.namespaces.get(namespace).map(|namespace| namespace.isolation).unwrap_or_default();
        let isolates = match own {
            IngressIsolation::ClusterDefault => self.default_isolation == IngressIsolation::DefaultDeny,
            IngressIsolation::DefaultDeny => true,
        };
        if is_pod && !isolates {
            return None;
        }
        let name = PolicyName::new(namespace.clone(), ISOLATION_ANNOTATION);
        if isolates == self.policies.contains_key(&name) {
            // The policy may have been retained after its end. It is current again.
            if let Some(kept) = self.retained.get_mut(namespace).filter(|_| isolates) {
                kept.remove(&name);
            }
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
            identity: None,
            enforcement: None,
        });
        self.set_policy(name, policy.map(Arc::new))
    }

    /// Removes the namespace's retained policies that select no pod any more, or all of them if the namespace no longer terminates.
    pub(super) fn release(&mut self, namespace: &Arc<str>) -> Vec<CacheChange> {
        let is_ending = self.ending.contains(namespace);
        if is_ending && !self.namespaces.contains_key(namespace) && self.pods_in(namespace).next().is_none() {
            self.ending.remove(namespace);
        }
        let Some(kept) = self.retained.remove(namespace) else { return Vec::new() };
        let (needed, over): (BTreeSet<_>, BTreeSet<_>) = kept.into_iter().partition(|name| self.is_needed(name));
        if !needed.is_empty() {
            self.retained.insert(namespace.clone(), needed);
        }
        let ended = over.into_iter().filter_map(|name| {
            let old = self.policies.remove(&name)?;
            Some(CacheChange::Policy { name, old: Some(old), new: None })
        });
        ended.collect()
    }

    /// Whether a deleted policy must stay enforced. A pod without an address counts, as it may get one again.
    pub(super) fn is_needed(&self, name: &PolicyName) -> bool {
        let Some(policy) = self.policies.get(name) else { return false };
        let lives = |pod: &Pod| !pod.finished && !pod.host_network && policy.subject.matches(&pod.labels);
        self.ending.contains(&name.namespace) && self.pods_in(&name.namespace).any(|(_, pod)| lives(pod))
    }
}
