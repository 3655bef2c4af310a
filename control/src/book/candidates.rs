//! An index of groups by what their selectors require, so that a pod event checks few groups.
//!
//! ```text
//!  groups of one namespace            by the namespace
//!  groups of namespaces by label      by a label that their pods must have: app=web
//!                                     groups that require no value are checked each time
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::AHashMap;

use super::GroupId;
use crate::object::{Labels, NamespaceScope, PodPeer};
use crate::selector::{Condition, Selector};

/// Groups by the namespace or label that their pods must have.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// Groups in one namespace, by its name.
    own: AHashMap<Arc<str>, BTreeSet<GroupId>>,
    /// Groups that select namespaces by label.
    selected: BTreeSet<GroupId>,
    /// Groups in `selected` that require a label value, by label key and by each permitted value.
    by_label: AHashMap<Arc<str>, AHashMap<Arc<str>, BTreeSet<GroupId>>>,
    /// Groups in `selected` that require no label value.
    any: BTreeSet<GroupId>,
    /// Groups in `own` whose condition on pods depends on the labels of the namespace, by its name.
    own_by_labels: AHashMap<Arc<str>, BTreeSet<GroupId>>,
}

impl Candidates {
    pub(super) fn insert(&mut self, peer: &PodPeer, id: GroupId) {
        if let NamespaceScope::Own(namespace) = &peer.namespaces {
            self.own.entry(namespace.clone()).or_default().insert(id);
            if depends_on_labels(peer) {
                self.own_by_labels.entry(namespace.clone()).or_default().insert(id);
            }
            return;
        }
        self.selected.insert(id);
        match asked(&peer.pods) {
            Some((key, values)) => {
                let by_value = self.by_label.entry(key.clone()).or_default();
                for value in values {
                    by_value.entry(value.clone()).or_default().insert(id);
                }
            }
            None => drop(self.any.insert(id)),
        }
    }

    pub(super) fn remove(&mut self, peer: &PodPeer, id: GroupId) {
        if let NamespaceScope::Own(namespace) = &peer.namespaces {
            take_out(&mut self.own, namespace, id);
            if depends_on_labels(peer) {
                take_out(&mut self.own_by_labels, namespace, id);
            }
            return;
        }
        self.selected.remove(&id);
        self.any.remove(&id);
        let Some((key, values)) = asked(&peer.pods) else { return };
        if let Some(by_value) = self.by_label.get_mut(key) {
            values.iter().for_each(|value| take_out(by_value, value, id));
            if by_value.is_empty() {
                self.by_label.remove(key);
            }
        }
    }

    /// Returns at least all groups that match a pod of the namespace with one of these label sets.
    pub(super) fn of_pod<'a>(&self, namespace: &str, labels: impl Iterator<Item = &'a Labels>) -> BTreeSet<GroupId> {
        let mut all = self.any.clone();
        all.extend(self.own.get(namespace).into_iter().flatten());
        for (key, value) in labels.flatten() {
            all.extend(self.by_label.get(key).and_then(|by_value| by_value.get(value)).into_iter().flatten());
        }
        all
    }

    /// Returns the groups whose pods of the namespace depend on its labels.
    pub(super) fn of_namespace(&self, name: &str) -> Vec<GroupId> {
        self.selected.iter().chain(self.own_by_labels.get(name).into_iter().flatten()).copied().collect()
    }
}

fn depends_on_labels(peer: &PodPeer) -> bool {
    peer.filter.as_ref().is_some_and(|filter| filter.has_namespace_labels())
}

/// Returns a label that every pod of the selector must have, with its permitted values. `None` if the selector requires no value.
fn asked(selector: &Selector) -> Option<(&Arc<str>, &[Arc<str>])> {
    let asked = selector.requirements().iter().filter_map(|requirement| match &requirement.condition {
        Condition::In(values) => Some((&requirement.key, values.as_slice())),
        _ => None,
    });
    // Fewer values match fewer pods. Ties go to the first requirement, so that the result depends on the selector only.
    asked.min_by_key(|(_, values)| values.len())
}

fn take_out(index: &mut AHashMap<Arc<str>, BTreeSet<GroupId>>, at: &Arc<str>, id: GroupId) {
    if let Some(ids) = index.get_mut(at) {
        ids.remove(&id);
        if ids.is_empty() {
            index.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::selector;
    use crate::selector::Requirement;

    fn peer(namespaces: Option<&str>, pods: &[&str]) -> PodPeer {
        let namespaces = match namespaces {
            Some(own) => NamespaceScope::Own(own.into()),
            None => NamespaceScope::Selected(selector("team=a")),
        };
        let requirements = |text: &&str| match *text {
            "tier" => vec![Requirement { key: "tier".into(), condition: Condition::Exists }],
            text => selector(text).requirements().to_vec(),
        };
        PodPeer { namespaces, pods: Selector::new(pods.iter().flat_map(requirements)), filter: None }
    }

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn a_pod_is_compared_with_every_group_that_selects_it_and_with_few_others() {
        let peers = [
            peer(Some("x"), &["app=web"]),
            peer(Some("y"), &["app=web"]),
            peer(None, &["app=web"]),
            peer(None, &["app in (web,db)"]),
            peer(None, &["app in (web,db)", "tier=front"]),
            peer(None, &["app!=web"]),
            peer(None, &["tier"]),
            peer(None, &[]),
            peer(None, &["app=db"]),
        ];
        let mut candidates = Candidates::default();
        for (at, peer) in peers.iter().enumerate() {
            candidates.insert(peer, GroupId(at));
        }
        let values = [None, Some("web"), Some("db"), Some("other")];
        let mut looked_at = 0;
        for namespace in ["x", "y", "z"] {
            for app in values {
                for tier in [None, Some("front"), Some("back")] {
                    let pairs = [("app", app), ("tier", tier)];
                    let pairs: Vec<_> = pairs.iter().filter_map(|(key, value)| Some((*key, (*value)?))).collect();
                    let labels = labels(&pairs);
                    let found = candidates.of_pod(namespace, [&labels].into_iter());
                    looked_at += found.len();
                    for (at, peer) in peers.iter().enumerate() {
                        let covers = match &peer.namespaces {
                            NamespaceScope::Own(own) => **own == *namespace,
                            NamespaceScope::Selected(_) => true,
                        };
                        let is_member = covers && peer.pods.matches(&labels);
                        assert!(!is_member || found.contains(&GroupId(at)), "{peer:?} {namespace} {labels:?}");
                    }
                }
            }
        }
        assert!(looked_at < 36 * 6, "{looked_at} in 36 looks at nine groups");
        assert_eq!(candidates.of_namespace("x").len(), 7);
        for (at, peer) in peers.iter().enumerate() {
            candidates.remove(peer, GroupId(at));
        }
        let Candidates { own, selected, by_label, any, own_by_labels } = candidates;
        assert!(own.is_empty() && selected.is_empty() && by_label.is_empty() && any.is_empty());
        assert!(own_by_labels.is_empty());
    }
}
