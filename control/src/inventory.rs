//! The objects that a source has listed, by name. Turns a new listing into events for the objects that changed.
//!
//! ```text
//!   listing --replace--> [ objects by kind and name ] --differences--> events --> Pipeline::apply_batch
//! ```
//! The cost for the pipeline is then proportional to the changes, even for sources that can only list, such as files, or for a watch that
//! must list again. [`Pipeline::resync`](crate::pipeline::Pipeline::resync) with each listing would compile every policy again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::cache::Event;
use crate::foreign::ForeignName;
use crate::object::{ClusterPolicyName, Object, ObjectName, PodName, PolicyName, ServiceName};
use crate::texts::Texts;

/// An object's kind and name, which are unique at any time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A node.
    Node(Arc<str>),
    /// A namespace.
    Namespace(Arc<str>),
    /// A NetworkPolicy.
    Policy(PolicyName),
    /// A policy of the tiers around NetworkPolicy.
    ClusterPolicy(ClusterPolicyName),
    /// A pod.
    Pod(PodName),
    /// A Service.
    Service(ServiceName),
    /// An EndpointSlice.
    EndpointSlice(ObjectName),
    /// An object of another product, or one that only policies of other products refer to.
    Foreign(ForeignName),
}

impl fmt::Display for Key {
    /// Writes Kubernetes' name of the kind, then the object's name: `NetworkPolicy shop/db`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "Node {name}"),
            Self::Namespace(name) => write!(f, "Namespace {name}"),
            Self::Policy(name) => write!(f, "NetworkPolicy {name}"),
            Self::ClusterPolicy(name) => write!(f, "{} {}", name.kind.name(), name.name),
            Self::Pod(name) => write!(f, "Pod {name}"),
            Self::Service(name) => write!(f, "Service {name}"),
            Self::EndpointSlice(name) => write!(f, "EndpointSlice {name}"),
            Self::Foreign(name) => write!(f, "{name}"),
        }
    }
}

impl Key {
    /// Returns the key of an event's object.
    pub fn of_event(event: &Event) -> Self {
        match event {
            Event::Apply(object) => Self::of(object),
            Event::DeleteNode(name) => Self::Node(name.clone()),
            Event::DeleteNamespace(name) => Self::Namespace(name.clone()),
            Event::DeletePolicy(name) => Self::Policy(name.clone()),
            Event::DeleteClusterPolicy(name) => Self::ClusterPolicy(name.clone()),
            Event::DeletePod(name) => Self::Pod(name.clone()),
            Event::DeleteService(name) => Self::Service(name.clone()),
            Event::DeleteEndpointSlice(name) => Self::EndpointSlice(name.clone()),
            Event::DeleteForeign(name) => Self::Foreign(name.clone()),
        }
    }

    /// Returns the key of an object.
    pub fn of(object: &Object) -> Self {
        match object {
            Object::Node(node) => Self::Node(node.name.clone()),
            Object::Namespace(namespace) => Self::Namespace(namespace.name.clone()),
            Object::Policy(policy) => Self::Policy(policy.name.clone()),
            Object::ClusterPolicy(policy) => Self::ClusterPolicy(policy.rank.name.clone()),
            Object::Pod(pod) => Self::Pod(pod.name.clone()),
            Object::Service(service) => Self::Service(service.name.clone()),
            Object::EndpointSlice(slice) => Self::EndpointSlice(slice.name.clone()),
            Object::Foreign(object) => Self::Foreign(object.name()),
        }
    }

    /// Returns the deletion event of this object.
    pub fn gone(self) -> Event {
        match self {
            Self::Node(name) => Event::DeleteNode(name),
            Self::Namespace(name) => Event::DeleteNamespace(name),
            Self::Policy(name) => Event::DeletePolicy(name),
            Self::ClusterPolicy(name) => Event::DeleteClusterPolicy(name),
            Self::Pod(name) => Event::DeletePod(name),
            Self::Service(name) => Event::DeleteService(name),
            Self::EndpointSlice(name) => Event::DeleteEndpointSlice(name),
            Self::Foreign(name) => Event::DeleteForeign(name),
        }
    }
}

/// The objects of the last listing, with later events applied.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    objects: BTreeMap<Key, Object>,
    texts: Texts,
}

impl Inventory {
    /// Whether the inventory is empty.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Returns all objects, sorted by kind and name.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    /// Returns the object of this key. `None` if it was not listed.
    pub fn get(&self, key: &Key) -> Option<&Object> {
        self.objects.get(key)
    }

    /// Applies an event of another source. Returns the object's previous state, `None` if it did not exist.
    pub fn apply(&mut self, event: Event) -> Option<Object> {
        match event {
            Event::Apply(mut object) => {
                self.texts.share(&mut object);
                self.objects.insert(Key::of(&object), object)
            }
            gone => self.objects.remove(&Key::of_event(&gone)),
        }
    }

    /// Replaces all objects by `listing`. If it has two objects of one name, the later one counts. Returns the difference as events: first
    /// deletions, then new and changed objects.
    pub fn replace(&mut self, listing: impl IntoIterator<Item = Object>) -> Vec<Event> {
        let mut before = std::mem::take(&mut self.objects);
        for mut object in listing {
            self.texts.share(&mut object);
            self.objects.insert(Key::of(&object), object);
        }
        let differs = |(key, object): (&Key, &mut Object)| match before.remove(key) {
            Some(before) if before == *object => {
                // Earlier events share the previous object's memory.
                *object = before;
                None
            }
            _ => Some(Event::Apply(object.clone())),
        };
        let changed: Vec<_> = self.objects.iter_mut().filter_map(differs).collect();
        before.into_keys().map(Key::gone).chain(changed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{deny_all, name, pod};
    use crate::object::EndpointSlice;

    fn shown(events: &[Event]) -> Vec<String> {
        let show = |event: &Event| match event {
            Event::Apply(Object::Pod(pod)) => format!("+{} {:?}", pod.name, pod.addresses),
            Event::Apply(Object::Policy(policy)) => format!("+{}", policy.name),
            Event::DeletePod(name) => format!("-{name}"),
            Event::DeletePolicy(name) => format!("-{name}"),
            other => format!("{other:?}"),
        };
        events.iter().map(show).collect()
    }

    #[test]
    fn only_what_differs_is_told_and_what_is_gone_first() {
        let mut inventory = Inventory::default();
        let (a, b) = (pod("x/a", "10.0.0.1", "n", ""), pod("x/b", "10.0.0.2", "n", ""));
        assert!(inventory.is_empty());
        assert_eq!(
            shown(&inventory.replace([a.clone(), b.clone(), deny_all("x/p")])),
            ["+x/p", "+x/a [10.0.0.1]", "+x/b [10.0.0.2]"]
        );
        assert!(inventory.replace([b.clone(), deny_all("x/p"), a]).is_empty(), "in any order");
        let moved = pod("x/b", "10.0.0.1", "n", "");
        assert_eq!(shown(&inventory.replace([moved.clone()])), ["-x/p", "-x/a", "+x/b [10.0.0.1]"]);
        // The later one of two counts.
        assert_eq!(shown(&inventory.replace([moved, b])), ["+x/b [10.0.0.2]"]);
        assert_eq!(shown(&inventory.replace([])), ["-x/b"]);
        assert!(inventory.is_empty());
    }

    #[test]
    fn events_lead_to_the_same_as_the_listing_that_they_are_of() {
        let (a, b) = (pod("x/a", "10.0.0.1", "n", ""), pod("x/b", "10.0.0.2", "n", ""));
        let (mut listed, mut told) = (Inventory::default(), Inventory::default());
        for listing in
            [vec![a.clone(), b, deny_all("x/p")], vec![pod("x/b", "10.0.0.3", "n", ""), deny_all("x/q")], vec![a]]
        {
            for event in listed.replace(listing) {
                let (key, is_there) = (Key::of_event(&event), matches!(event, Event::Apply(_)));
                told.apply(event);
                assert_eq!(told.get(&key).is_some(), is_there);
            }
            assert!(listed.objects().eq(told.objects()));
        }
        assert_eq!(Key::of(&deny_all("x/p")).to_string(), "NetworkPolicy x/p");
        assert!(told.apply(Event::DeletePod(name("x/a"))).is_some() && told.is_empty());
    }

    #[test]
    fn what_is_listed_again_is_still_shared_with_whoever_was_told_of_it() {
        let slice = |service: &str| {
            let slice = EndpointSlice {
                name: name("x/a-1"),
                service: Some(service.into()),
                headless: false,
                ports: vec![],
                endpoints: vec![],
            };
            Object::EndpointSlice(slice.into())
        };
        let mut inventory = Inventory::default();
        let told = inventory.replace([slice("a")]);
        assert!(inventory.replace([slice("a")]).is_empty());
        let [Event::Apply(Object::EndpointSlice(told))] = &told[..] else { panic!("{told:?}") };
        assert_eq!(Arc::strong_count(told), 2, "the inventory's and the one that was told");
        assert_eq!(inventory.replace([slice("b")]).len(), 1);
        assert_eq!(Arc::strong_count(told), 1);
    }
}
