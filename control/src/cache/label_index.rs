//! The index of pods by label and namespace.
//!
//! Most selectors apply to one namespace or to a few: a policy's subject, peers without a `namespaceSelector`, and namespaces by name. So the
//! pods with a label are kept by namespace, and a lookup in one namespace does not visit the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::AHashMap;

use super::PodKey;
use crate::object::Pod;
use crate::selector::{Condition, Selector};

/// The pods of a namespace that have one label and value.
type Posting = (Arc<str>, BTreeSet<PodKey>);

/// The pods with each label and value, in postings sorted by namespace. A sorted list is smaller than a map: many labels differ for each pod.
#[derive(Debug, Default)]
pub(super) struct LabelIndex(AHashMap<(Arc<str>, Arc<str>), Vec<Posting>>);

impl LabelIndex {
    pub(super) fn insert(&mut self, key: PodKey, pod: &Pod) {
        let namespace = &pod.name.namespace;
        for (label, value) in &pod.labels {
            let postings = self.0.entry((label.clone(), value.clone())).or_default();
            match position(postings, namespace) {
                Ok(at) => _ = postings[at].1.insert(key),
                Err(at) => {
                    // No room for others, as most labels that differ for each pod have one.
                    postings.reserve_exact(usize::from(postings.is_empty()));
                    postings.insert(at, (namespace.clone(), BTreeSet::from([key])));
                }
            }
        }
    }

    /// Removes the pod, which must have the labels with which it was inserted.
    pub(super) fn remove(&mut self, key: PodKey, pod: &Pod) {
        for (label, value) in &pod.labels {
            let pair = (label.clone(), value.clone());
            let Some(postings) = self.0.get_mut(&pair) else { continue };
            if let Ok(at) = position(postings, &pod.name.namespace) {
                postings[at].1.remove(&key);
                if postings[at].1.is_empty() {
                    postings.remove(at);
                }
            }
            if postings.is_empty() {
                self.0.remove(&pair);
            }
        }
    }

    /// Returns the pods that meet one requirement of a selector, by namespace: the requirement with the fewest pods. A namespace may occur
    /// several times. `namespaces` restricts the namespaces; `None` means all. `None` if no requirement is indexed.
    pub(super) fn rarest<'a>(
        &'a self,
        selector: &'a Selector,
        namespaces: Option<&'a [Arc<str>]>,
    ) -> Option<impl Iterator<Item = (&'a Arc<str>, &'a BTreeSet<PodKey>)>> {
        let postings = |(label, values): (&Arc<str>, &'a [Arc<str>])| {
            let label = label.clone();
            values.iter().flat_map(move |value| self.postings(&(label.clone(), value.clone()), namespaces))
        };
        let indexed = selector.requirements().iter().filter_map(|requirement| match &requirement.condition {
            Condition::In(values) => Some((&requirement.key, values.as_slice())),
            Condition::NotIn(_) | Condition::Exists | Condition::DoesNotExist => None,
        });
        let pods = |requirement| postings(requirement).map(|(_, keys)| keys.len()).sum::<usize>();
        Some(postings(indexed.min_by_key(|&requirement| pods(requirement))?))
    }

    /// Returns the pods with a label and value in these namespaces, by namespace.
    fn postings<'a>(
        &'a self,
        pair: &(Arc<str>, Arc<str>),
        namespaces: Option<&'a [Arc<str>]>,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a BTreeSet<PodKey>)> + use<'a> {
        let all = self.0.get(pair).map_or(&[][..], Vec::as_slice);
        let named = namespaces.into_iter().flatten().filter_map(|namespace| all.get(position(all, namespace).ok()?));
        let others = if namespaces.is_none() { all } else { &[] };
        named.chain(others).map(|(namespace, keys)| (namespace, keys))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns the position of a namespace, or that at which it would be inserted.
fn position(postings: &[Posting], namespace: &Arc<str>) -> Result<usize, usize> {
    postings.binary_search_by(|(name, _)| name.cmp(namespace))
}
