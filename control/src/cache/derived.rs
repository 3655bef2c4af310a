//! What is in the state although no object of its own says so:
//!
//! * A namespace that isolates its pods (`extensions/v1beta1`) stands as a policy that selects them all and lets nothing in.
//! * A policy that vanishes from a namespace that is being deleted stays until the pods that it selects are gone. The
//!   namespace's contents are deleted in no particular order, and pods that outlive their policies would be open for as
//!   long as they take to stop (CVE-2024-7598). A policy that is deleted before its namespace is said to terminate is
//!   gone like any other: nothing tells the two apart.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Cache, CacheChange};
use crate::object::{ISOLATION_ANNOTATION, IngressIsolation, Namespace, Pod, Policy, PolicyName, PolicyVersion};
use crate::selector::Selector;

impl Cache {
    /// Keeps the policies of `before` that this state lacks and that have to outlive their deletion.
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

    /// Keeps account of the namespaces that are being deleted. One whose object is gone is among them until its last pod
    /// is gone too: watches of different kinds are not ordered among each other.
    pub(super) fn follow_end(&mut self, name: &Arc<str>, old: Option<&Namespace>, new: Option<&Namespace>) {
        // That it is gone may be told twice.
        let Some(namespace) = new.or(old) else { return };
        if namespace.terminating {
            self.ending.insert(name.clone());
        } else {
            self.ending.remove(name);
        }
    }

    /// Makes the namespace's isolation a policy, or removes that. After a change of a pod the policy may have to come, but not to go:
    /// one that the namespace does not have any more is kept for its pods, and ends with them ([`Self::release`]).
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
            // It may have been kept beyond its end, and is wanted again.
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

    /// Ends the policies that were kept for pods of the namespace and have none left, or a namespace that stays.
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

    /// Whether a policy has to outlive its deletion. A pod without an address counts: it may get one again.
    pub(super) fn is_needed(&self, name: &PolicyName) -> bool {
        let Some(policy) = self.policies.get(name) else { return false };
        let lives = |pod: &Pod| !pod.finished && !pod.host_network && policy.subject.matches(&pod.labels);
        self.ending.contains(&name.namespace) && self.pods_in(&name.namespace).any(|(_, pod)| lives(pod))
    }
}
