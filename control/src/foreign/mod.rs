//! Policies of other products: keeps them with the objects that they refer to, and resolves them to ranked policies.
//!
//! ```text
//!  event --> Foreign --> other events, unchanged --------------------------------------> claims, cache
//!              |- Calico's and Cilium's objects, ServiceAccounts: kept, not passed on     ^
//!              |- Services, EndpointSlices: kept and passed on                            |
//!              `- each policy that one of these changes --resolve--> ClusterPolicy -------'
//! ```
//! A policy of another product names tiers, sets of networks, Services and service accounts. Each such object may arrive before or after the
//! policy and may change. A change resolves all policies again that need an object of this kind. The events contain only the resolved
//! policies that differ from the last ones.
//!
//! **Invariant.** The compiler knows no dialect: it receives [`ClusterPolicy`] only.

pub mod calico;
pub mod cilium;
mod surroundings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::surroundings::{Needs, Surroundings};
use crate::cache::Event;
pub use crate::object::foreign::{ForeignKind, ForeignName, ForeignObject, ServiceAccount};
use crate::object::{ClusterPolicy, ClusterPolicyName, Object};

impl ForeignObject {
    /// Returns the kinds of objects that the object's meaning depends on. `None` if the object is no policy.
    pub fn needs(&self) -> Option<Needs> {
        match self {
            Self::CalicoPolicy(policy) => Some(policy.needs()),
            Self::CiliumPolicy(policy) => Some(policy.needs()),
            Self::CalicoTier(_) | Self::CalicoNetworkSet(_) | Self::CiliumCidrGroup(_) | Self::ServiceAccount(_) => {
                None
            }
        }
    }

    fn resolve(&self, surroundings: &Surroundings) -> Vec<ClusterPolicy> {
        match self {
            Self::CalicoPolicy(policy) => calico::resolve(policy, surroundings),
            Self::CiliumPolicy(policy) => cilium::resolve(policy, surroundings),
            Self::CalicoTier(_) | Self::CalicoNetworkSet(_) | Self::CiliumCidrGroup(_) | Self::ServiceAccount(_) => {
                Vec::new()
            }
        }
    }
}

/// The objects of other products, and the policies that they resolve to.
#[derive(Debug, Default)]
pub struct Foreign {
    policies: BTreeMap<ForeignName, Kept>,
    surroundings: Surroundings,
    /// The policies that changed since the last call of [`Foreign::changed`].
    touched: BTreeSet<ForeignName>,
    /// The kinds of other objects that changed since then.
    moved: Needs,
}

/// A policy. Without an object, it was deleted after the last call of [`Foreign::changed`].
#[derive(Debug, Default)]
struct Kept {
    object: Option<Arc<ForeignObject>>,
    /// What the policy resolved to at the last call.
    resolved: BTreeMap<ClusterPolicyName, Arc<ClusterPolicy>>,
}

impl Foreign {
    /// Returns the events for the cache: the event itself unless it is about another product's object, then the policies that it changes.
    pub fn resolve(&mut self, event: Event) -> Vec<Event> {
        self.resolve_all([event])
    }

    /// As [`Foreign::resolve`], for events that are applied as one change.
    pub fn resolve_all(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Event> {
        let mut all: Vec<Event> = events.into_iter().filter_map(|event| self.take(event)).collect();
        all.append(&mut self.changed());
        all
    }

    /// Takes note of an event. Returns it if the cache also needs it. [`Foreign::changed`] returns its effect on policies.
    pub fn take(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Apply(Object::Foreign(object)) => {
                self.set(object.name(), Some(object));
                None
            }
            Event::DeleteForeign(name) => {
                self.set(name, None);
                None
            }
            event => {
                self.moved |= self.surroundings.look_at(&event);
                Some(event)
            }
        }
    }

    fn set(&mut self, name: ForeignName, object: Option<Arc<ForeignObject>>) {
        if !name.kind.is_policy() {
            self.moved |= self.surroundings.set(name, object);
            return;
        }
        self.policies.entry(name.clone()).or_default().object = object;
        self.touched.insert(name);
    }

    /// Returns the events for the policies that resolve to something else since the last call: first those that are gone.
    pub fn changed(&mut self) -> Vec<Event> {
        let moved = std::mem::take(&mut self.moved);
        let mut touched = std::mem::take(&mut self.touched);
        if !moved.is_empty() {
            let needs = |kept: &Kept| kept.object.as_ref().and_then(|object| object.needs());
            let others =
                self.policies.iter().filter(|(_, kept)| needs(kept).is_some_and(|needs| needs.overlaps(moved)));
            touched.extend(others.map(|(name, _)| name.clone()));
        }
        let (mut gone, mut changed) = (Vec::new(), Vec::new());
        for name in touched {
            let Some(kept) = self.policies.get_mut(&name) else { continue };
            let object = kept.object.clone();
            let resolved = object.iter().flat_map(|object| object.resolve(&self.surroundings));
            let mut before = std::mem::take(&mut kept.resolved);
            for policy in resolved {
                let name = policy.rank.name.clone();
                let policy = match before.remove(&name) {
                    Some(known) if *known == policy => known,
                    _ => {
                        let policy = Arc::new(policy);
                        changed.push(Event::Apply(Object::ClusterPolicy(Arc::clone(&policy))));
                        policy
                    }
                };
                kept.resolved.insert(name, policy);
            }
            gone.extend(before.into_keys().map(Event::DeleteClusterPolicy));
            if object.is_none() {
                self.policies.remove(&name);
            }
        }
        gone.append(&mut changed);
        gone
    }
}

/// Returns the objects with the ranked policies that the other products' objects among them resolve to, instead of these.
pub fn resolved(objects: impl IntoIterator<Item = Object>) -> Vec<Object> {
    let events = Foreign::default().resolve_all(objects.into_iter().map(Event::Apply));
    let object = |event| match event {
        Event::Apply(object) => Some(object),
        _ => None,
    };
    events.into_iter().filter_map(object).collect()
}
