//! Groups pods into workloads.
//!
//! ```text
//!  pods --same namespace and labels, except revisions' and runs' labels--> alike --of one owner--> groups --names--> workloads
//! ```
//! Pods with the same labels form one workload regardless of their owners, because no selector distinguishes them. Pods of one owner form
//! one workload even if labels differ: a database operator, for example, labels the primary.
//!
//! `learn` builds selectors from the groups, `reach` shows workloads instead of pods. Neither assumes that policy treats all pods of a
//! workload alike: an `ipBlock` may distinguish them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bulkhead_control::cache::Cache;
use bulkhead_control::object::{Labels, Pod, PodName, TEMPLATE_HASH_LABEL, Workload as Owner};

/// Labels that controllers set per revision, pod or run; policies cannot select by them. Source: Kubernetes "Well-Known Labels, Annotations
/// and Taints".
const UNSTABLE: [&str; 12] = [
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/cronjob-scheduled-timestamp",
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-name",
    "controller-revision-hash",
    "controller-uid",
    "job-name",
    "pod-template-generation",
    TEMPLATE_HASH_LABEL,
    "rollouts-pod-template-hash",
    "statefulset.kubernetes.io/pod-name",
];

/// Labels that identify workloads, most common first.
pub(crate) const USUAL: [&str; 8] = [
    "app.kubernetes.io/name",
    "app",
    "k8s-app",
    "app.kubernetes.io/component",
    "app.kubernetes.io/instance",
    "component",
    "name",
    "role",
];

/// Pods of one namespace with the same stable labels.
#[derive(Clone, Debug)]
pub(crate) struct Alike {
    pub namespace: Arc<str>,
    /// The pods' common labels, without those that controllers set per revision, pod or run.
    pub labels: Labels,
    pub pods: Vec<Arc<Pod>>,
}

/// Groups the pods accepted by `is_asked` by namespace and stable labels, in this order.
pub(crate) fn alike(cache: &Cache, is_asked: impl Fn(&Pod) -> bool) -> Vec<Alike> {
    let mut alike: BTreeMap<(Arc<str>, Labels), Vec<Arc<Pod>>> = BTreeMap::new();
    for (_, pod) in cache.pods().filter(|(_, pod)| is_asked(pod)) {
        alike.entry((pod.name.namespace.clone(), stable(&pod.labels))).or_default().push(pod.clone());
    }
    alike.into_iter().map(|((namespace, labels), pods)| Alike { namespace, labels, pods }).collect()
}

/// Returns the labels that policies can select by.
pub(crate) fn stable(labels: &Labels) -> Labels {
    labels.iter().filter(|(key, _)| is_stable(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Whether policies can select by this label.
pub(crate) fn is_stable(key: &str) -> bool {
    !UNSTABLE.contains(&key)
}

/// Merges groups of a namespace that share an owner. Returns the indexes of each merged group. A group without owners stays alone.
pub(crate) fn of_one_owner(namespace: &[Alike]) -> Vec<Vec<usize>> {
    // Each index points to an earlier one of its group, the first to itself.
    let mut earlier: Vec<usize> = (0..namespace.len()).collect();
    fn first(earlier: &[usize], mut at: usize) -> usize {
        while earlier[at] != at {
            at = earlier[at];
        }
        at
    }
    let mut of_owner: HashMap<&Owner, usize> = HashMap::new();
    for (at, alike) in namespace.iter().enumerate() {
        for owner in alike.pods.iter().filter_map(|pod| pod.owner.as_deref()) {
            let known = *of_owner.entry(owner).or_insert(at);
            let (one, other) = (first(&earlier, known), first(&earlier, at));
            earlier[one.max(other)] = one.min(other);
        }
    }
    let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for at in 0..namespace.len() {
        groups.entry(first(&earlier, at)).or_default().push(at);
    }
    groups.into_values().collect()
}

/// Returns the name of pods: of their common owner, else from a usual label. `None` without both.
pub(crate) fn called(labels: &Labels, pods: &[Arc<Pod>]) -> Option<Arc<str>> {
    let owner = pods.first()?.owner.as_ref();
    let owner = owner.filter(|owner| pods.iter().all(|pod| pod.owner.as_ref() == Some(owner)));
    let usual = || USUAL.iter().find_map(|key| labels.get(*key)).filter(|value| !value.is_empty()).cloned();
    owner.map(|owner| owner.name.clone()).or_else(usual)
}

/// Names of workloads and the workload of each pod.
#[derive(Debug, Default)]
pub(crate) struct Workloads {
    names: Vec<Option<String>>,
    by_pod: HashMap<PodName, usize>,
}

impl Workloads {
    /// Groups all pods that have not terminated.
    pub(crate) fn of(cache: &Cache) -> Self {
        let alike = alike(cache, |pod| !pod.finished);
        let mut workloads = Self::default();
        for namespace in alike.chunk_by(|one, other| one.namespace == other.namespace) {
            workloads.add(namespace);
        }
        workloads
    }

    fn add(&mut self, namespace: &[Alike]) {
        type Named = (Option<Arc<str>>, Vec<Arc<Pod>>);
        let mut groups: Vec<Named> = Vec::new();
        for group in of_one_owner(namespace) {
            let mut pods: Vec<Arc<Pod>> = group.iter().flat_map(|&at| namespace[at].pods.iter().cloned()).collect();
            pods.sort_unstable_by(|a, b| a.name.cmp(&b.name));
            let is_bare = pods.len() == 1 && pods[0].owner.is_none();
            groups.push((called(&namespace[group[0]].labels, &pods).filter(|_| !is_bare), pods));
        }
        // Pods keep their names, so workloads must not use these.
        let unnamed = groups.iter().filter(|(name, _)| name.is_none()).flat_map(|(_, pods)| pods);
        let mut taken: BTreeSet<String> = unnamed.map(|pod| pod.name.name.to_string()).collect();
        for (name, pods) in groups {
            let name = name.map(|name| free(&name, &mut taken));
            self.by_pod.extend(pods.iter().map(|pod| (pod.name.clone(), self.names.len())));
            self.names.push(name);
        }
    }

    /// Returns the index of a pod's workload. `None` if the pod is unknown or has terminated.
    pub(crate) fn of_pod(&self, name: &PodName) -> Option<usize> {
        self.by_pod.get(name).copied()
    }

    /// Returns the name of a workload, unique in its namespace and different from pods' names. `None` if the pods have only their own
    /// names.
    pub(crate) fn name(&self, workload: usize) -> Option<&str> {
        self.names[workload].as_deref()
    }
}

/// Returns the name, or the first free `name-N`, and marks it as taken.
pub(crate) fn free(name: &str, taken: &mut BTreeSet<String>) -> String {
    let mut free = name.to_owned();
    let mut number = 2u32;
    while !taken.insert(free.clone()) {
        free = format!("{name}-{number}");
        number += 1;
    }
    free
}

#[cfg(test)]
pub(crate) mod tests {
    use bulkhead_control::pipeline::Pipeline;
    use bulkhead_control::source::{Strictness, load_text};

    use super::*;

    pub(crate) fn labels(text: &str) -> Labels {
        let pairs =
            text.split(',').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.map(|(k, v)| (k.into(), v.into())).collect()
    }

    /// Returns a state with pods `p0`, `p1` and so on, given as `labels@owner`.
    pub(crate) fn state(pods: &[&str]) -> Pipeline {
        let pod = |(at, text): (usize, &&str)| {
            let (labels, owner) = text.split_once('@').unwrap_or((text, ""));
            let labels: Vec<String> = labels
                .split(',')
                .filter_map(|pair| pair.split_once('='))
                .map(|(key, value)| format!("'{key}': '{value}'"))
                .collect();
            let owner = if owner.is_empty() {
                String::new()
            } else {
                format!(
                    ", ownerReferences: [{{apiVersion: apps/v1, kind: StatefulSet, name: {owner}, uid: u, controller: true}}]"
                )
            };
            format!(
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{at}, namespace: a, labels: {{{}}}{owner}}}\n\
                 spec: {{nodeName: n1, containers: [{{name: c}}]}}\nstatus: {{phase: Running, podIPs: [{{ip: 10.0.0.{at}}}]}}\n",
                labels.join(", ")
            )
        };
        let text: String = pods.iter().enumerate().map(pod).collect();
        let mut pipeline = Pipeline::without_tables(Default::default());
        pipeline.resync(load_text("state", &text, Strictness::Strict).unwrap().objects).unwrap();
        pipeline
    }

    fn workloads(pods: &[&str]) -> Vec<String> {
        let workloads = Workloads::of(state(pods).cache());
        let mut told: Vec<String> = Vec::new();
        for (number, name) in workloads.names.iter().enumerate() {
            let mut pods: Vec<_> =
                workloads.by_pod.iter().filter(|(_, of)| **of == number).map(|(pod, _)| pod).collect();
            pods.sort();
            let pods: Vec<&str> = pods.iter().map(|pod| &*pod.name).collect();
            told.push(format!("{}: {}", name.as_deref().unwrap_or("-"), pods.join(" ")));
        }
        told
    }

    #[test]
    fn pods_of_one_owner_or_with_the_same_labels_are_a_workload() {
        let owned = workloads(&["app=db,rank=primary@db", "app=db,rank=replica@db", "app=web@web"]);
        assert_eq!(owned, ["db: p0 p1", "web: p2"]);
        assert_eq!(workloads(&["app=x@blue", "app=x@green", "app=x", "app=z"]), ["x: p0 p1 p2", "-: p3"]);
        // Pods of two owners share labels, so all form one workload.
        assert_eq!(workloads(&["app=x@one", "app=y@one", "app=y@two", "app=z@two"]), ["x: p0 p1 p2 p3"]);
    }

    #[test]
    fn a_pod_that_nothing_owns_keeps_its_name_and_no_workload_takes_it() {
        assert_eq!(workloads(&["x=y@p1", "app=q"]), ["-: p1", "p1-2: p0"]);
        assert_eq!(workloads(&["", "", "run=x"]), ["-: p0 p1", "-: p2"]);
    }

    #[test]
    fn labels_of_revisions_and_runs_tell_no_workloads_apart() {
        let all = stable(&labels("app=a,pod-template-hash=x,statefulset.kubernetes.io/pod-name=a-0,job-name=j"));
        assert_eq!(all, labels("app=a"));
    }
}
