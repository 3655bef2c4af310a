//! Events that lead from one state to another.

use bulkhead_control::cache::Event;

use super::State;

/// Returns the events that lead from one state to the next, deletions first or last.
pub(crate) fn events(old: &State, new: &State, deletions_first: bool) -> Vec<Event> {
    let mut gone: Vec<Event> = Vec::new();
    gone.extend(
        old.namespaces.keys().filter(|name| !new.namespaces.contains_key(*name)).cloned().map(Event::DeleteNamespace),
    );
    gone.extend(old.pods.keys().filter(|name| !new.pods.contains_key(name)).cloned().map(Event::DeletePod));
    gone.extend(old.policies.keys().filter(|name| !new.policies.contains_key(name)).cloned().map(Event::DeletePolicy));
    let cluster_policies = old.cluster_policies.keys().filter(|name| !new.cluster_policies.contains_key(name));
    gone.extend(cluster_policies.cloned().map(Event::DeleteClusterPolicy));
    gone.extend(old.nodes.keys().filter(|name| !new.nodes.contains_key(*name)).cloned().map(Event::DeleteNode));
    let before = old.objects();
    let come: Vec<_> = new.objects().into_iter().filter(|object| !before.contains(object)).map(Event::Apply).collect();
    if deletions_first { gone.into_iter().chain(come).collect() } else { come.into_iter().chain(gone).collect() }
}
