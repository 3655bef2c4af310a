//! The index of pods by label and namespace: finds the pods that can match a selector without visiting all pods.
//!
//! ```text
//!   app=web --> [ (ns shop, {pod 3, pod 9}), (ns test, {pod 4}) ]     sorted by namespace
//! ```
//! A policy's subject, and a peer without a `namespaceSelector`, apply to one namespace. With a thousand namespaces, that one has few of the pods
//! with a common label such as `app=web`, so the pods with each label are divided by namespace.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::AHashMap;

use super::PodKey;
use crate::object::Pod;
use crate::selector::{Condition, Selector};

/// The pods of a namespace that have one label and value.
type Posting = (Arc<str>, BTreeSet<PodKey>);

/// The pods with each pair of label and value, in postings sorted by namespace. Many labels differ for each pod, and then a list of one posting
/// is smaller than a map.
#[derive(Debug, Default)]
pub(super) struct LabelIndex(AHashMap<(Arc<str>, Arc<str>), Vec<Posting>>);

impl LabelIndex {
    /// Adds the key of a pod to the posting of its namespace for each of its labels. A pod without labels is not in the index.
    pub(super) fn insert(&mut self, key: PodKey, pod: &Pod) {
        let namespace = &pod.name.namespace;
        for (label, value) in &pod.labels {
            let postings = self.0.entry((label.clone(), value.clone())).or_default();
            match position(postings, namespace) {
                Ok(at) => _ = postings[at].1.insert(key),
                Err(at) => {
                    // The first posting is often the only one, so it reserves no memory for others.
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

    /// Returns the keys of the pods that meet one requirement of a selector, by namespace: the requirement that the fewest pods meet. A
    /// namespace may occur once for each value of the requirement. `namespaces` are the namespaces to search; `None` means all. Returns `None`
    /// if no requirement lists values (`key in (..)`), as only those are indexed.
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
            _ => None,
        });
        let pods = |requirement| postings(requirement).map(|(_, keys)| keys.len()).sum::<usize>();
        Some(postings(indexed.min_by_key(|&requirement| pods(requirement))?))
    }

    /// Returns the pods with a pair of label and value, by namespace. `namespaces` are the namespaces to search; `None` means all.
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

    /// Returns the number of different pairs of label and value.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns the index of a namespace's posting, or as an error the index at which one would be inserted.
fn position(postings: &[Posting], namespace: &Arc<str>) -> Result<usize, usize> {
    postings.binary_search_by(|(name, _)| name.cmp(namespace))
}
