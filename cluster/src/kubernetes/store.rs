//! The API server's objects that the lists and watches have delivered, and the changes that no batch contains yet.
//!
//! ```text
//!   list of a kind --Listing: what differs, which names--> settle --.
//!   line of a watch ---------------------------------------put------+--> objects, changed names --take--> batch of events
//! ```
//! An object that changes several times before a batch is taken occurs once, in its latest state. So a burst costs as much as its distinct
//! objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use bulkhead_control::cache::Event;
use bulkhead_control::foreign::{self, Needs};
use bulkhead_control::inventory::Key;
use bulkhead_control::object::{NAMESPACE_NAME_LABEL, NamespaceScope, Object, Peer};
use bulkhead_control::source::single::{Faults, Single, Unknown, exclude_namespaces, needs_labels};
use bulkhead_control::source::{SourceError, SourceErrors};
use bulkhead_control::texts::Texts;

use super::kinds::{Kind, Purpose};
use super::page::Item;

/// The source that messages name instead of a file.
const PLACE: &str = "kubernetes";

/// A batch: the changes of one purpose since the previous batch. Batches of Services include nodes.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Whether this is the first batch, which has all objects.
    pub is_whole: bool,
    /// When the first change of the batch arrived. `None` for the first batch.
    pub heard: Option<Instant>,
    /// The changes, removals first.
    pub events: Vec<Event>,
    /// The number of malformed objects among all known ones.
    pub faulty: usize,
    /// Problems of these objects, and warnings.
    pub warnings: SourceErrors,
}

/// The changes of a purpose that are not taken yet.
#[derive(Debug, Default)]
struct Pending {
    changed: BTreeSet<Key>,
    /// When the first of these changes arrived. `None` without changes.
    since: Option<Instant>,
    was_taken: bool,
}

/// An object as received, and its faults. The object is `None` if it is malformed and cannot be used.
type Before = (Option<Box<Object>>, Option<Box<Faults>>);

/// What the store knows about a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Known {
    /// No list is complete yet.
    #[default]
    Nothing,
    /// The server does not have the kind.
    Absent,
    /// The first list is complete.
    Listed,
    /// The kind is not followed.
    Ignored,
}

/// All known objects, their faults, and pending changes.
pub(super) struct Store {
    /// All objects by key; `None` if malformed and not usable. Boxed, because objects are large and tree nodes about half empty.
    objects: BTreeMap<Key, Option<Box<Object>>>,
    /// Faults of the objects that have any.
    faults: BTreeMap<Key, Box<Faults>>,
    texts: Texts,
    counts: [usize; Kind::ALL.len()],
    /// Changes that no batch contains yet. Indexed by purpose.
    pending: [Pending; Purpose::ALL.len()],
    known: [Known; Kind::ALL.len()],
    /// Namespaces with unreadable labels, as of the last batch.
    excluded: BTreeSet<Arc<str>>,
    /// Whether policy depends on Services and endpoint slices: policies of other products may name them. Batches of policy then include
    /// them.
    needs_services: bool,
}

/// A list of a kind whose pages are not all read yet.
pub(super) struct Listing {
    kind: Kind,
    names: BTreeSet<Key>,
    /// Received objects that differ from the store's.
    different: BTreeMap<Key, Before>,
}

impl Listing {
    pub(super) const fn new(kind: Kind) -> Self {
        Self { kind, names: BTreeSet::new(), different: BTreeMap::new() }
    }
}

impl Store {
    pub(super) fn new(kinds: impl Iterator<Item = Kind>, needs_services: bool) -> Self {
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
            needs_services,
        }
    }

    /// Whether the first lists of all kinds of the purpose are complete.
    pub(super) fn is_known(&self, purpose: Purpose) -> bool {
        let known = |kind: Kind| self.known[kind.index()];
        match purpose {
            Purpose::Policy => {
                let is_needed = |kind: &Kind| kind.purpose() == purpose || self.needs_services;
                Kind::ALL.into_iter().filter(is_needed).all(|kind| known(kind) != Known::Nothing)
            }
            Purpose::Services => {
                [Kind::Service, Kind::EndpointSlice, Kind::Node].into_iter().all(|kind| known(kind) == Known::Listed)
            }
        }
    }

    /// Whether a batch can be taken.
    pub(super) fn has_changed(&self, purpose: Purpose) -> bool {
        let Pending { changed, was_taken, .. } = &self.pending[purpose.index()];
        self.is_known(purpose) && (!was_taken || !changed.is_empty())
    }

    /// Returns the number of objects of each kind. `None` for a kind that is absent or not followed. Without kinds that only policies of other
    /// products need, if these are not read.
    pub(super) fn counts(&self) -> Vec<(Kind, Option<usize>)> {
        let count = |kind: Kind| {
            let is_there = matches!(self.known[kind.index()], Known::Listed | Known::Nothing);
            (kind, is_there.then(|| self.counts[kind.index()]))
        };
        let is_listed = |kind: &Kind| !kind.is_foreign() || self.known[kind.index()] != Known::Ignored;
        Kind::ALL.into_iter().filter(is_listed).map(count).collect()
    }

    /// Adds a page to a list. If an object occurs twice, the later one counts.
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

    /// Completes a list: replaces the objects of the kind.
    pub(super) fn settle(&mut self, listing: Listing) {
        let Listing { kind, names, different } = listing;
        let is_gone = |key: &&Key| Kind::of(key) == kind && !names.contains(key);
        let gone: Vec<_> = self.objects.keys().filter(is_gone).cloned().collect();
        gone.into_iter().for_each(|key| self.delete(key));
        for (key, (object, faults)) in different {
            self.set(key, object, faults);
        }
        self.known[kind.index()] = Known::Listed;
    }

    /// Records that the server does not have the kind. Removes its objects.
    pub(super) fn set_absent(&mut self, kind: Kind) {
        self.settle(Listing::new(kind));
        self.known[kind.index()] = Known::Absent;
    }

    /// Adds or replaces an object.
    pub(super) fn put(&mut self, item: Item) {
        let (key, object, faults) = parts(item, &mut self.texts);
        if !self.has(&key, object.as_deref(), faults.as_deref()) {
            self.set(key, object, faults);
        }
    }

    /// Removes an object.
    pub(super) fn delete(&mut self, key: Key) {
        if self.objects.remove(&key).is_some() {
            self.counts[Kind::of(&key).index()] -= 1;
            self.faults.remove(&key);
            self.note(key);
        }
    }

    fn note(&mut self, key: Key) {
        let (kind, follows_services) = (Kind::of(&key), self.known[Kind::Service.index()] != Known::Ignored);
        // A node's zone and addresses determine which endpoints are near.
        if kind == Kind::Node && follows_services {
            self.pending[Purpose::Services.index()].note(key.clone());
        }
        if kind.purpose() == Purpose::Services && self.needs_services {
            self.pending[Purpose::Policy.index()].note(key.clone());
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
        let kind = Kind::of(&key);
        if self.objects.insert(key, object).is_none() {
            self.counts[kind.index()] += 1;
        }
    }

    /// Returns all objects of the batches taken so far. `None` if policy objects have changed since. Includes Services once a batch of them
    /// was taken.
    pub(super) fn taken(&self) -> Option<impl Iterator<Item = &Object>> {
        let [policy, services] = &self.pending;
        let has_services = services.was_taken || self.needs_services;
        let is_wanted = move |key: &Key| has_services || Kind::of(key).purpose() != Purpose::Services;
        let objects =
            self.objects.iter().filter(move |(key, _)| is_wanted(key)).filter_map(|(_, object)| object.as_deref());
        (policy.was_taken && policy.changed.is_empty()).then_some(objects)
    }

    /// Returns the changes of a purpose since the last call. `None` without changes, or before the first lists are complete.
    ///
    /// # Errors
    /// If an object that affects policy is malformed and no safe substitute exists. The changes stay pending.
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
        for (_, faults) in self.faults.iter().filter(|(key, _)| Kind::of(key).purpose() == purpose) {
            faults.tell_problems(PLACE, &mut warnings);
            faults.tell_warnings(PLACE, &mut warnings);
            faulty += usize::from(faults.has_problems());
        }
        Some(Ok(Changes { is_whole, heard, events, faulty, warnings }))
    }

    /// Determines which namespaces have readable labels. Marks the policies whose meaning that changes.
    ///
    /// # Errors
    /// If a malformed object has no safe substitute.
    fn understand_policy(&mut self) -> Result<(), SourceErrors> {
        let unknown = self.unknown();
        let mut errors = SourceErrors::default();
        let unsurvived = self.faults.values().filter(|faults| !faults.is_survived());
        unsurvived.for_each(|faults| faults.tell_problems(PLACE, &mut errors));
        errors.extend(self.needs_a_faulty_service());
        if errors.is_empty() && (unknown.is_node || unknown.is_pod || !unknown.namespaces.is_empty()) {
            errors.extend(self.needs_unknown_labels(&unknown));
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

    /// Returns the error of a policy that depends on labels that are unknown. `None` if there is none.
    fn needs_unknown_labels(&self, unknown: &Unknown) -> Option<SourceError> {
        let objects = self.objects.values().flatten().map(|object| &**object);
        if !self.needs_services {
            return needs_labels(objects, unknown);
        }
        let resolved = foreign::resolved(objects.cloned());
        needs_labels(resolved.iter(), unknown)
    }

    /// Returns the error of a policy of another product that names Services, if a Service or endpoint slice is malformed: rules that deny
    /// could match less. `None` if there is none.
    fn needs_a_faulty_service(&self) -> Option<SourceError> {
        if !self.needs_services {
            return None;
        }
        let is_faulty = |key: &Key| Kind::of(key).purpose() == Purpose::Services;
        let (service, _) = self.faults.iter().find(|(key, faults)| faults.has_problems() && is_faulty(key))?;
        let policy = self.objects.iter().find(|(_, object)| match object.as_deref() {
            Some(Object::Foreign(object)) => object.needs().is_some_and(|needs| needs.overlaps(Needs::SERVICES)),
            _ => false,
        });
        let (policy, _) = policy?;
        Some(SourceError {
            file: PLACE.into(),
            document: 0,
            line: None,
            object: Some(policy.to_string()),
            path: String::new(),
            problem: format!("names a Service, and {service} could not be read"),
            help: "correct that object".to_owned(),
        })
    }

    /// Returns a policy restricted to namespaces with readable labels. Other objects are returned unchanged.
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
                Key::Policy(_) | Key::ClusterPolicy(_) | Key::Service(_) | Key::EndpointSlice(_) | Key::Foreign(_) => {}
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

/// Whether the object's meaning depends on namespaces' labels.
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
        Peer::Block(_) | Peer::Nodes(_) | Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => false,
    })
}

#[cfg(test)]
mod tests;
