//! The lists kept in force for pods whose new lists cannot be lowered.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{PlainList, PlainLists, Refused, list_of};
use crate::contract::Endpoint;
use crate::object::PodName;
use crate::origin::Direction;
use crate::renderer::{Instead, Refusal};

/// The previous lists, by pod and direction, which stay in force while the new list is too complex to translate. `None` for a pod that was
/// not restricted. For a pod without an entry, all traffic in the direction is denied.
#[derive(Debug, Default)]
pub(super) struct Kept(BTreeMap<(PodName, Direction), Option<Arc<PlainList>>>);

impl Kept {
    pub(super) fn get(&self, pod: &PodName, direction: Direction) -> Option<&Option<Arc<PlainList>>> {
        // Usually the map is empty, and pods are many.
        if self.0.is_empty() { None } else { self.0.get(&(pod.clone(), direction)) }
    }

    /// Records the list that was in force before. Outer `None` if the pod had nothing in force.
    pub(super) fn set(&mut self, pod: &PodName, direction: Direction, before: Option<Option<Arc<PlainList>>>) {
        match before {
            Some(before) => drop(self.0.insert((pod.clone(), direction), before)),
            None if self.0.is_empty() => {}
            None => drop(self.0.remove(&(pod.clone(), direction))),
        }
    }

    /// Removes entries that are no longer needed.
    pub(super) fn retain(&mut self, is_needed: impl Fn(&PodName, Direction) -> bool) {
        self.0.retain(|(pod, direction), _| is_needed(pod, *direction));
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl PlainLists {
    /// Records the lists in force for a pod whose lists change, in case the new ones are too complex to translate.
    pub(super) fn keep(&mut self, pod: &PodName, old: Option<&Endpoint>, new: Option<&Endpoint>) {
        for direction in [Direction::Ingress, Direction::Egress] {
            let id = |endpoint: Option<&Endpoint>| Some(list_of(endpoint?, direction)?.id);
            if id(old) == id(new) && old.is_some() {
                continue;
            }
            let before = old.filter(|_| new.is_some()).map(|old| self.in_force(pod, old, direction));
            self.kept.set(pod, direction, before.flatten());
        }
    }

    /// Returns the list in force for an endpoint in one direction. `None` if all traffic is denied, `Some(None)` if all is allowed.
    pub(super) fn in_force(
        &self,
        pod: &PodName,
        endpoint: &Endpoint,
        direction: Direction,
    ) -> Option<Option<Arc<PlainList>>> {
        let Some(list) = list_of(endpoint, direction) else { return Some(None) };
        match self.lists.get(&list.id).and_then(|listed| listed.plain.clone()) {
            Some(plain) => Some(Some(plain)),
            None => self.kept.get(pod, direction).cloned(),
        }
    }

    /// Returns the lists that are too complex to translate, with their pods, the reason, and the replacement in force.
    pub(crate) fn refusals(&self) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        for listed in self.lists.values() {
            let Some(Refused { why, .. }) = &listed.refused else { continue };
            let is_kept = |pod: &&PodName| listed.plain.is_some() || self.kept.get(pod, listed.direction).is_some();
            let (kept, closed): (Vec<_>, Vec<_>) = listed.pods.iter().partition(is_kept);
            for (pods, instead) in [(kept, Instead::LastGood), (closed, Instead::Closed)] {
                if !pods.is_empty() {
                    let subject = format!("{} of {}", listed.direction, names(&pods));
                    refusals.push(Refusal { subject, instead, why: why.to_string() });
                }
            }
        }
        refusals.sort_by(|a, b| a.subject.cmp(&b.subject));
        refusals
    }
}

/// Maximum number of pods named in one line.
const MAX_NAMED: usize = 5;

fn names(pods: &[&PodName]) -> String {
    let shown: Vec<String> = pods.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    let more = pods.len().saturating_sub(MAX_NAMED);
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}
