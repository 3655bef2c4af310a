//! What the server has, as far as it has been heard, and what of it has not been taken yet.
//!
//! ```text
//!   list of a kind --Listing: what differs, which names--> settle --.
//!   line of a watch ---------------------------------------put------+--> objects, changed names --take--> batch of events
//! ```
//! What changes again before it is taken is taken once, as it is then: a burst costs as much as the objects that it is about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use bulkhead_control::cache::Event;
use bulkhead_control::inventory::Key;
use bulkhead_control::object::{ClusterPolicyKind, NAMESPACE_NAME_LABEL, NamespaceScope, Object, Peer};
use bulkhead_control::source::SourceErrors;
use bulkhead_control::source::single::{Faults, Single, Unknown, exclude_namespaces, needs_labels};
use bulkhead_control::texts::Texts;

use super::kinds::{Kind, Purpose};
use super::page::Item;

/// What messages name in the place of a file.
const PLACE: &str = "kubernetes";

/// A batch: what has changed of the kinds of one purpose since the one before. That of Services has nodes as well.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Whether it is the first one, and so everything that there is.
    pub is_whole: bool,
    /// When the first change of the batch was heard; none where that was no change of something that was known, but a part of the first
    /// lists.
    pub heard: Option<Instant>,
    /// What has changed, what is gone first.
    pub events: Vec<Event>,
    /// How many objects are not understood, of all that there are.
    pub faulty: usize,
    /// What is wrong with them, and what deserves a look.
    pub warnings: SourceErrors,
}

/// What has changed of the kinds of a purpose and was not taken yet.
#[derive(Debug, Default)]
struct Pending {
    changed: BTreeSet<Key>,
    /// Since when there is something to take.
    since: Option<Instant>,
    was_taken: bool,
}

/// What of an object was told before, and its faults.
type Before = (Option<Box<Object>>, Option<Box<Faults>>);

/// How far a kind is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Known {
    /// Nothing was heard of it.
    #[default]
    Nothing,
    /// The server does not have it.
    Absent,
    /// Its first list is whole.
    Listed,
    /// It is not to be followed.
    Ignored,
}

/// See the module.
pub(super) struct Store {
    /// None of an object for which nothing stands. Boxed, since a tree is about half empty and objects are large.
    objects: BTreeMap<Key, Option<Box<Object>>>,
    /// Of the few objects that are not in order.
    faults: BTreeMap<Key, Box<Faults>>,
    texts: Texts,
    counts: [usize; Kind::ALL.len()],
    /// By purpose.
    pending: [Pending; Purpose::ALL.len()],
    known: [Known; Kind::ALL.len()],
    /// The namespaces whose labels could not be read, when a batch was taken last.
    excluded: BTreeSet<Arc<str>>,
}

/// A list that is being read.
pub(super) struct Listing {
    kind: Kind,
    names: BTreeSet<Key>,
    /// What is not as the store has it.
    different: BTreeMap<Key, Before>,
}

impl Listing {
    pub(super) const fn new(kind: Kind) -> Self {
        Self { kind, names: BTreeSet::new(), different: BTreeMap::new() }
    }
}

impl Store {
    pub(super) fn new(kinds: impl Iterator<Item = Kind>) -> Self {
        let mut known = [Known::Ignored; Kind::ALL.len()];
        kinds.for_each(|kind| known[kind.index()] = Known::Nothing);
        Self {
            objects: BTreeMap::new(),
            faults: BTreeMap::new(),
            texts: Texts::default(),
            counts: [0; Kind::ALL.len()],
            pending: Default::default(),
            known,
            excluded: BTreeSet::new(),
        }
    }

    /// Whether the first lists of all kinds of the purpose are whole.
    pub(super) fn is_known(&self, purpose: Purpose) -> bool {
        let known = |kind: Kind| self.known[kind.index()];
        match purpose {
            Purpose::Policy => {
                Kind::ALL.into_iter().all(|kind| kind.purpose() != purpose || known(kind) != Known::Nothing)
            }
            Purpose::Services => {
                [Kind::Service, Kind::EndpointSlice, Kind::Node].into_iter().all(|kind| known(kind) == Known::Listed)
            }
        }
    }

    /// Whether there is something to take.
    pub(super) fn has_changed(&self, purpose: Purpose) -> bool {
        let Pending { changed, was_taken, .. } = &self.pending[purpose.index()];
        self.is_known(purpose) && (!was_taken || !changed.is_empty())
    }

    /// How many objects there are of each kind.
    pub(super) fn counts(&self) -> Vec<(Kind, Option<usize>)> {
        let count = |kind: Kind| {
            let is_there = matches!(self.known[kind.index()], Known::Listed | Known::Nothing);
            (kind, is_there.then(|| self.counts[kind.index()]))
        };
        Kind::ALL.into_iter().map(count).collect()
    }

    /// Adds a page to a list. Of an object that is in it twice the later one counts.
    pub(super) fn add(&mut self, listing: &mut Listing, items: Vec<Item>) {
        for item in items {
            let (key, object, faults) = parts(item, &mut self.texts);
            if self.has(&key, object.as_deref(), faults.as_deref()) {
                listing.different.remove(&key);
            } else {
                listing.different.insert(key.clone(), (object, faults));
            }
            listing.names.insert(key);
        }
    }

    /// The list is whole: it is what there is of the kind.
    pub(super) fn settle(&mut self, listing: Listing) {
        let Listing { kind, names, different } = listing;
        let is_gone = |key: &&Key| kind_of(key) == kind && !names.contains(key);
        let gone: Vec<_> = self.objects.keys().filter(is_gone).cloned().collect();
        gone.into_iter().for_each(|key| self.delete(key));
        for (key, (object, faults)) in different {
            self.set(key, object, faults);
        }
        self.known[kind.index()] = Known::Listed;
    }

    /// The server does not have the kind, and so none of its objects.
    pub(super) fn set_absent(&mut self, kind: Kind) {
        self.settle(Listing::new(kind));
        self.known[kind.index()] = Known::Absent;
    }

    /// The object is there.
    pub(super) fn put(&mut self, item: Item) {
        let (key, object, faults) = parts(item, &mut self.texts);
        if !self.has(&key, object.as_deref(), faults.as_deref()) {
            self.set(key, object, faults);
        }
    }

    /// The object is not there any more.
    pub(super) fn delete(&mut self, key: Key) {
        if self.objects.remove(&key).is_some() {
            self.counts[kind_of(&key).index()] -= 1;
            self.faults.remove(&key);
            self.note(key);
        }
    }

    fn note(&mut self, key: Key) {
        let (kind, follows_services) = (kind_of(&key), self.known[Kind::Service.index()] != Known::Ignored);
        // A node's zone and addresses tell which endpoints are near it.
        if kind == Kind::Node && follows_services {
            self.pending[Purpose::Services.index()].note(key.clone());
        }
        self.pending[kind.purpose().index()].note(key);
    }

    fn has(&self, key: &Key, object: Option<&Object>, faults: Option<&Faults>) -> bool {
        self.objects.get(key).is_some_and(|known| known.as_deref() == object)
            && self.faults.get(key).map(|known| &**known) == faults
    }

    fn set(&mut self, key: Key, object: Option<Box<Object>>, faults: Option<Box<Faults>>) {
        match faults {
            Some(faults) => drop(self.faults.insert(key.clone(), faults)),
            None => drop(self.faults.remove(&key)),
        }
        self.note(key.clone());
        let kind = kind_of(&key);
        if self.objects.insert(key, object).is_none() {
            self.counts[kind.index()] += 1;
        }
    }

    /// All objects, when those that policy depends on are those of the batch that was taken last; Services when a batch of them was taken.
    pub(super) fn taken(&self) -> Option<impl Iterator<Item = &Object>> {
        let [policy, services] = &self.pending;
        let is_wanted = |key: &Key| services.was_taken || kind_of(key).purpose() != Purpose::Services;
        let objects =
            self.objects.iter().filter(move |(key, _)| is_wanted(key)).filter_map(|(_, object)| object.as_deref());
        (policy.was_taken && policy.changed.is_empty()).then_some(objects)
    }

    /// What has changed of this purpose since the last time; none where nothing has, or not everything is known yet.
    ///
    /// # Errors
    /// When something that is about policy is not understood, and nothing can stand for it. What has changed stays to be taken.
    pub(super) fn take(&mut self, purpose: Purpose) -> Option<Result<Changes, SourceErrors>> {
        if !self.has_changed(purpose) {
            return None;
        }
        if purpose == Purpose::Policy
            && let Err(errors) = self.understand_policy()
        {
            return Some(Err(errors));
        }
        let pending = &mut self.pending[purpose.index()];
        let changed = std::mem::take(&mut pending.changed);
        let is_whole = !std::mem::replace(&mut pending.was_taken, true);
        let heard = pending.since.take().filter(|_| !is_whole);
        let standing = |key: &Key| self.objects.get(key).and_then(Option::as_deref);
        let (applied, gone): (Vec<Key>, Vec<Key>) = changed.into_iter().partition(|key| standing(key).is_some());
        let mut events = Vec::with_capacity(applied.len() + gone.len());
        events.extend(gone.into_iter().map(Key::gone));
        events.extend(applied.iter().filter_map(standing).map(|object| Event::Apply(self.meant(object))));
        let (mut warnings, mut faulty) = (SourceErrors::default(), 0);
        for (_, faults) in self.faults.iter().filter(|(key, _)| kind_of(key).purpose() == purpose) {
            faults.tell_problems(PLACE, &mut warnings);
            faults.tell_warnings(PLACE, &mut warnings);
            faulty += usize::from(faults.has_problems());
        }
        Some(Ok(Changes { is_whole, heard, events, faulty, warnings }))
    }

    /// Takes note of which namespaces' labels are known, which changes what some policies mean.
    ///
    /// # Errors
    /// When something is not understood that nothing can stand for.
    fn understand_policy(&mut self) -> Result<(), SourceErrors> {
        let unknown = self.unknown();
        let mut errors = SourceErrors::default();
        let unsurvived = self.faults.values().filter(|faults| !faults.is_survived());
        unsurvived.for_each(|faults| faults.tell_problems(PLACE, &mut errors));
        if errors.is_empty() && (unknown.is_node || unknown.is_pod || !unknown.namespaces.is_empty()) {
            let error = needs_labels(self.objects.values().flatten().map(|object| &**object), &unknown);
            errors.extend(error);
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        if unknown.namespaces != self.excluded {
            let names = self.objects.iter().filter(|(_, object)| asks_for_labels(object.as_deref()));
            self.pending[Purpose::Policy.index()].changed.extend(names.map(|(key, _)| key.clone()));
            self.excluded = unknown.namespaces;
        }
        Ok(())
    }

    /// The object as it counts beside those that are not understood.
    fn meant(&self, object: &Object) -> Object {
        let mut object = object.clone();
        if let Object::Policy(policy) = &mut object
            && !self.excluded.is_empty()
        {
            exclude_namespaces(Arc::make_mut(policy), &self.excluded);
        }
        object
    }

    fn unknown(&self) -> Unknown {
        let mut unknown = Unknown::default();
        for (key, _) in self.faults.iter().filter(|(_, faults)| faults.has_problems()) {
            match key {
                Key::Namespace(name) => drop(unknown.namespaces.insert(name.clone())),
                Key::Pod(_) => unknown.is_pod = true,
                Key::Node(_) => unknown.is_node = true,
                Key::Policy(_) | Key::ClusterPolicy(_) | Key::Service(_) | Key::EndpointSlice(_) => {}
            }
        }
        unknown
    }
}

impl Pending {
    fn note(&mut self, key: Key) {
        self.changed.insert(key);
        self.since.get_or_insert_with(Instant::now);
    }
}

fn parts(item: Item, texts: &mut Texts) -> (Key, Option<Box<Object>>, Option<Box<Faults>>) {
    let Item { key, read: Single { mut object, faults }, .. } = item;
    let Some(read) = &mut object else { return (key, None, faults) };
    texts.share(read);
    (Key::of(read), object.map(Box::new), faults)
}

/// The kind of a followed object.
fn kind_of(key: &Key) -> Kind {
    match key {
        Key::Service(_) => Kind::Service,
        Key::EndpointSlice(_) => Kind::EndpointSlice,
        Key::Namespace(_) => Kind::Namespace,
        Key::Node(_) => Kind::Node,
        Key::Pod(_) => Kind::Pod,
        Key::Policy(_) => Kind::NetworkPolicy,
        Key::ClusterPolicy(name) => match name.kind {
            ClusterPolicyKind::ClusterNetworkPolicy => Kind::ClusterNetworkPolicy,
            ClusterPolicyKind::AdminNetworkPolicy => Kind::AdminNetworkPolicy,
            ClusterPolicyKind::BaselineAdminNetworkPolicy => Kind::BaselineAdminNetworkPolicy,
        },
    }
}

/// Whether what the object means depends on which namespaces' labels are known.
fn asks_for_labels(object: Option<&Object>) -> bool {
    let Some(Object::Policy(policy)) = object else { return false };
    let peers = policy.ingress.iter().chain(&policy.egress).flatten().filter_map(|rule| rule.peers.as_ref()).flatten();
    peers.into_iter().any(|peer| match peer {
        Peer::Pods(peer) => match &peer.namespaces {
            NamespaceScope::Selected(selector) => {
                selector.requirements().iter().any(|requirement| &*requirement.key != NAMESPACE_NAME_LABEL)
            }
            NamespaceScope::Own(_) => false,
        },
        Peer::Block(_) | Peer::Nodes(_) => false,
    })
}

#[cfg(test)]
mod tests;
