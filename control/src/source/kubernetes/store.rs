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

use super::super::cluster_policy::{Unknown, needs_labels};
use super::super::decode::Outcome;
use super::super::error::{Problem, SourceError, SourceErrors};
use super::super::fallback::exclude_namespaces;
use super::super::load::consequence;
use super::kinds::Kind;
use super::page::Item;
use crate::cache::Event;
use crate::inventory::Key;
use crate::object::{NAMESPACE_NAME_LABEL, NamespaceScope, Object, Peer, Policy};
use crate::texts::Texts;

/// What messages name in the place of a file.
const PLACE: &str = "kubernetes";

/// A batch: what has changed since the one before.
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

/// What is not in order with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Faults {
    label: String,
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    /// Whether something stands for the object that allows no more than it can mean.
    is_survived: bool,
    /// What the remedy ends with.
    consequence: &'static str,
}

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
    /// None of an object for which nothing stands.
    objects: BTreeMap<Key, Option<Object>>,
    /// Of the few objects that are not in order.
    faults: BTreeMap<Key, Faults>,
    texts: Texts,
    counts: [usize; Kind::ALL.len()],
    changed: BTreeSet<Key>,
    /// Since when there is something to take.
    changed_since: Option<Instant>,
    known: [Known; Kind::ALL.len()],
    was_taken: bool,
    /// The namespaces whose labels could not be read, when a batch was taken last.
    excluded: BTreeSet<Arc<str>>,
}

/// A list that is being read.
pub(super) struct Listing {
    kind: Kind,
    names: BTreeSet<Key>,
    /// What is not as the store has it.
    different: BTreeMap<Key, (Option<Object>, Option<Faults>)>,
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
            changed: BTreeSet::new(),
            changed_since: None,
            known,
            was_taken: false,
            excluded: BTreeSet::new(),
        }
    }

    /// Whether the first lists of all kinds are whole.
    pub(super) fn is_synced(&self) -> bool {
        self.known.iter().all(|&known| known != Known::Nothing)
    }

    /// Whether there is something to take.
    pub(super) fn has_changed(&self) -> bool {
        self.is_synced() && (!self.was_taken || !self.changed.is_empty())
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
            if self.has(&key, object.as_ref(), faults.as_ref()) {
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
        let is_gone = |key: &&Key| kind_of(key) == Some(kind) && !names.contains(key);
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
        if !self.has(&key, object.as_ref(), faults.as_ref()) {
            self.set(key, object, faults);
        }
    }

    /// The object is not there any more.
    pub(super) fn delete(&mut self, key: Key) {
        if self.objects.remove(&key).is_some() {
            kind_of(&key).into_iter().for_each(|kind| self.counts[kind.index()] -= 1);
            self.faults.remove(&key);
            self.note(key);
        }
    }

    fn note(&mut self, key: Key) {
        self.changed.insert(key);
        self.changed_since.get_or_insert_with(Instant::now);
    }

    fn has(&self, key: &Key, object: Option<&Object>, faults: Option<&Faults>) -> bool {
        self.objects.get(key).is_some_and(|known| known.as_ref() == object) && self.faults.get(key) == faults
    }

    fn set(&mut self, key: Key, object: Option<Object>, faults: Option<Faults>) {
        match faults {
            Some(faults) => drop(self.faults.insert(key.clone(), faults)),
            None => drop(self.faults.remove(&key)),
        }
        self.note(key.clone());
        let kind = kind_of(&key);
        if self.objects.insert(key, object).is_none() {
            kind.into_iter().for_each(|kind| self.counts[kind.index()] += 1);
        }
    }

    /// All objects, when they are those of the batch that was taken last.
    pub(super) fn taken(&self) -> Option<impl Iterator<Item = &Object>> {
        (self.was_taken && self.changed.is_empty()).then(|| self.objects.values().flatten())
    }

    /// What has changed since the last time; none where nothing has, or not everything is known yet.
    ///
    /// # Errors
    /// When something is not understood that nothing can stand for. What has changed stays to be taken.
    pub(super) fn take(&mut self) -> Option<Result<Changes, SourceErrors>> {
        if !self.has_changed() {
            return None;
        }
        let unknown = self.unknown();
        let mut errors = SourceErrors::default();
        let unsurvived = self.faults.values().filter(|faults| !faults.is_survived);
        unsurvived.for_each(|faults| faults.tell_problems(&mut errors));
        if errors.is_empty() && (unknown.is_node || unknown.is_pod || !unknown.namespaces.is_empty()) {
            let error = needs_labels(self.objects.values().flatten(), &unknown);
            error.into_iter().for_each(|error| {
                errors.push(error);
            });
        }
        if !errors.is_empty() {
            return Some(Err(errors));
        }
        if unknown.namespaces != self.excluded {
            let names = self.objects.iter().filter(|(_, object)| asks_for_labels(object.as_ref()));
            self.changed.extend(names.map(|(key, _)| key.clone()));
            self.excluded = unknown.namespaces;
        }
        let changed = std::mem::take(&mut self.changed);
        let is_whole = !std::mem::replace(&mut self.was_taken, true);
        let heard = self.changed_since.take().filter(|_| !is_whole);
        let (mut events, mut applied) = (Vec::new(), Vec::new());
        for key in changed {
            match self.objects.get(&key) {
                Some(Some(object)) => applied.push(Event::Apply(self.meant(object))),
                Some(None) | None => events.push(key.gone()),
            }
        }
        events.append(&mut applied);
        let mut warnings = SourceErrors::default();
        for faults in self.faults.values() {
            faults.tell_problems(&mut warnings);
            faults.tell_warnings(&mut warnings);
        }
        let faulty = self.faults.values().filter(|faults| !faults.problems.is_empty()).count();
        Some(Ok(Changes { is_whole, heard, events, faulty, warnings }))
    }

    /// The object as it counts beside those that are not understood.
    fn meant(&self, object: &Object) -> Object {
        let mut object = object.clone();
        if let Object::Policy(policy) = &mut object {
            exclude_namespaces(policy, &self.excluded);
        }
        object
    }

    fn unknown(&self) -> Unknown {
        let mut unknown = Unknown::default();
        for (key, _) in self.faults.iter().filter(|(_, faults)| !faults.problems.is_empty()) {
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

impl Faults {
    fn tell_problems(&self, told: &mut SourceErrors) {
        for problem in &self.problems {
            self.tell(problem, if self.is_survived { self.consequence } else { "" }, told);
        }
    }

    fn tell_warnings(&self, told: &mut SourceErrors) {
        self.warnings.iter().for_each(|warning| self.tell(warning, "", told));
    }

    fn tell(&self, problem: &Problem, consequence: &str, told: &mut SourceErrors) {
        told.push(SourceError {
            file: PLACE.into(),
            document: 0,
            line: None,
            object: Some(self.label.clone()).filter(|label| !label.is_empty()),
            path: problem.path.to_string(),
            problem: problem.text.clone(),
            help: format!("{}{consequence}", problem.help),
        });
    }
}

fn parts(item: Item, texts: &mut Texts) -> (Key, Option<Object>, Option<Faults>) {
    let Item { key, outcome, label, findings, .. } = item;
    let is_clean = findings.problems.is_empty() && findings.warnings.is_empty();
    let faults = (!is_clean).then(|| Faults {
        label,
        problems: findings.problems,
        warnings: findings.warnings,
        is_survived: !matches!(outcome, Outcome::Unreadable),
        consequence: consequence(&outcome),
    });
    let mut object = match outcome {
        Outcome::Object(object) | Outcome::Closed(object) => Some(object),
        Outcome::Nothing | Outcome::Unreadable => None,
    };
    let Some(read) = &mut object else { return (key, None, faults) };
    texts.share(read);
    (Key::of(read), object, faults)
}

/// The kind of a followed object; none of a kind that is not followed.
fn kind_of(key: &Key) -> Option<Kind> {
    use crate::object::ClusterPolicyKind;
    Some(match key {
        Key::Service(_) | Key::EndpointSlice(_) => return None,
        Key::Namespace(_) => Kind::Namespace,
        Key::Node(_) => Kind::Node,
        Key::Pod(_) => Kind::Pod,
        Key::Policy(_) => Kind::NetworkPolicy,
        Key::ClusterPolicy(name) => match name.kind {
            ClusterPolicyKind::ClusterNetworkPolicy => Kind::ClusterNetworkPolicy,
            ClusterPolicyKind::AdminNetworkPolicy => Kind::AdminNetworkPolicy,
            ClusterPolicyKind::BaselineAdminNetworkPolicy => Kind::BaselineAdminNetworkPolicy,
        },
    })
}

/// Whether what the object means depends on which namespaces' labels are known.
fn asks_for_labels(object: Option<&Object>) -> bool {
    let Some(Object::Policy(Policy { ingress, egress, .. })) = object else { return false };
    let peers = ingress.iter().chain(egress).flatten().filter_map(|rule| rule.peers.as_ref()).flatten();
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
