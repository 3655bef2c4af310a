//! Names custom resources whose pods the state may lack: an operator makes a Prometheus' pods, and a manifest alone does not show them.

use std::collections::BTreeSet;
use std::sync::Arc;

use bulkhead_control::cache::Cache;
use bulkhead_control::object::{Labels, PodPeer};
use bulkhead_control::selector::{Condition, Requirement, Selector};
use bulkhead_control::source::CustomResource;

use super::finding::{At, Found};
use crate::output::some_of;

/// Maximum number of custom resources named by one finding.
const MAX_NAMED: usize = 3;

/// The custom resources of a state that may make pods and have none there.
pub(super) struct Makers<'a>(Vec<&'a CustomResource>);

impl<'a> Makers<'a> {
    pub(super) fn new(cache: &Cache, all: &'a [CustomResource]) -> Self {
        Self(all.iter().filter(|one| !has_pods(cache, one)).collect())
    }

    /// Adds the resources that may make the pods of `peer` to a finding that the state has none. `is_sure` says that the finding has a
    /// remedy of its own. Then only resources that match are named, else also those whose pods' labels are unknown.
    pub(super) fn beside(&self, found: Found<'a>, cache: &Cache, peer: &PodPeer, is_sure: bool) -> Found<'a> {
        let covered = |one: &&&CustomResource| {
            one.name.namespace.is_empty() || cache.scope_covers(&peer.namespaces, &one.name.namespace)
        };
        let here: Vec<&CustomResource> = self.0.iter().filter(covered).copied().collect();
        let mut named: Vec<_> = here.iter().copied().filter(|one| fits(one, &peer.pods)).collect();
        if named.is_empty() && !is_sure {
            named = here.into_iter().filter(|one| one.templates.is_empty()).collect();
        }
        if named.is_empty() {
            return found;
        }
        let texts: Vec<String> = named.iter().map(ToString::to_string).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let reason = format!(
            "{}. The state has no pods of {}, which may make such pods",
            found.reason,
            some_of(&texts, MAX_NAMED)
        );
        let mend = match is_sure {
            true => found.mend,
            false => {
                format!("add the pods to --state, as from `kubectl get pods -A -o yaml`; otherwise {}", found.mend)
            }
        };
        let at =
            |one: &&'a CustomResource| At { text: one.to_string(), position: Some(&one.position), path: String::new() };
        let cause = found.cause.is_some().then(|| texts.join(", "));
        let by = found.by.into_iter().chain(named.iter().take(MAX_NAMED).map(at)).collect();
        Found { reason, mend, cause, by, ..found }
    }
}

/// Whether the state has pods of a resource: pods that it owns, or pods with the labels of its template.
fn has_pods(cache: &Cache, one: &CustomResource) -> bool {
    cache.pods_in(&one.name.namespace).any(|(_, pod)| {
        let owner = pod.owner.as_ref();
        let carries = |labels: &Labels| labels.iter().all(|(key, value)| pod.labels.get(key) == Some(value));
        owner.is_some_and(|owner| *owner.kind == *one.kind && owner.name == one.name.name)
            || one.templates.iter().any(carries)
    })
}

/// Whether what is known of the resource's pods meets every requirement of the selector. Operators label pods with the resource's name or
/// kind, besides the labels of a template.
fn fits(one: &CustomResource, selector: &Selector) -> bool {
    let kind = one.kind.to_ascii_lowercase();
    let known = |key: &Arc<str>| -> BTreeSet<&str> {
        one.templates.iter().chain([&one.labels]).filter_map(|labels| labels.get(key)).map(|value| &**value).collect()
    };
    selector.requirements().iter().all(|Requirement { key, condition }| match condition {
        Condition::In(values) => {
            let known = known(key);
            values.iter().any(|value| {
                known.contains(&**value) || **value == *one.name.name || value.to_ascii_lowercase().contains(&kind)
            })
        }
        Condition::Exists => !known(key).is_empty(),
        Condition::Contains(text) => known(key).iter().any(|value| value.contains(&**text)),
        Condition::StartsWith(text) => known(key).iter().any(|value| value.starts_with(&**text)),
        Condition::EndsWith(text) => known(key).iter().any(|value| value.ends_with(&**text)),
        Condition::NotIn(_) | Condition::DoesNotExist => true,
    })
}
