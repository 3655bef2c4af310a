//! Finds what a user's name for an end means in a state: pods, a node or an address. Suggests the nearest existing name for a misspelt one.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::cache::Cache;
use bulkhead_control::object::{self, Labels, Pod, PodName, TEMPLATE_HASH_LABEL};
use bulkhead_control::selector::Condition;
use bulkhead_control::source::nearest_word;

use crate::args::{EndName, PodLabels, Workload};
use crate::fabric::addresses_of_node;
use crate::output;

/// Maximum number of names that a suggestion lists.
const MAX_NAMED: usize = 8;

/// What a name means in a state.
#[derive(Debug)]
pub enum Named<'a> {
    /// Pods that have not terminated, sorted by name. At least one.
    Pods(Vec<&'a Arc<Pod>>),
    /// The addresses of a node, at least one.
    Node(Vec<IpAddr>),
    /// An address as the user wrote it.
    Address(IpAddr),
}

/// A name that means nothing in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// What the state lacks: `no pod shop/wbe in the state`.
    pub problem: String,
    /// A similar name, or what the state has instead. `None` if nothing is similar.
    pub similar: Option<String>,
    /// The remedy if nothing is similar: what a state from files may lack.
    pub missing: &'static str,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  help: {}", self.problem, self.similar.as_deref().unwrap_or(self.missing))
    }
}

impl std::error::Error for Unknown {}

/// Returns what the name means.
///
/// # Errors
/// If the state has no such end, or all its pods have terminated.
pub fn find<'a>(cache: &'a Cache, name: &EndName) -> Result<Named<'a>, Unknown> {
    match name {
        EndName::Address(address) => Ok(Named::Address(*address)),
        EndName::Node(node) => {
            let addresses = addresses_of_node(cache, node);
            let pod = EndName::of_namespace_node(node);
            match addresses.is_empty() {
                false => Ok(Named::Node(addresses)),
                true if cache.pod_key(&pod).is_some() => pods(cache, &EndName::Pod(pod)).map(Named::Pods),
                true => Err(unknown_node(cache, node)),
            }
        }
        EndName::Pod(_) | EndName::Workload(_) | EndName::Labels(_) => pods(cache, name).map(Named::Pods),
    }
}

/// Returns the pods with the name, sorted. Not for nodes and addresses, which have none.
///
/// # Errors
/// See [`find`].
pub fn pods<'a>(cache: &'a Cache, name: &EndName) -> Result<Vec<&'a Arc<Pod>>, Unknown> {
    let of = |is_meant: &dyn Fn(&Pod) -> bool| -> Vec<&'a Arc<Pod>> {
        let mut pods: Vec<_> = cache.pods().map(|(_, pod)| pod).filter(|pod| is_meant(pod)).collect();
        pods.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        pods
    };
    let all = match name {
        EndName::Pod(exact) => match cache.pod_key(exact).and_then(|key| cache.pod(key)) {
            Some(pod) => vec![pod],
            None => of(&|pod| means(name, pod)),
        },
        _ => of(&|pod| means(name, pod)),
    };
    let running: Vec<_> = all.iter().copied().filter(|pod| !pod.finished).collect();
    match (all.is_empty(), running.is_empty()) {
        (_, false) => Ok(running),
        (false, true) => Err(Unknown {
            problem: format!("{} has terminated: its address may belong to another pod", told(name)),
            similar: None,
            missing: "name a running pod",
        }),
        (true, true) => Err(unknown_pods(cache, name)),
    }
}

/// Whether a name means a pod: by the pod's name, its workload's or its labels. Names of nodes and addresses mean none.
pub(crate) fn means(name: &EndName, pod: &Pod) -> bool {
    means_known(name, KnownEnd::of(pod, &pod.workload()))
}

/// What is known about an end of a connection. The state knows all of it about its pods; a running vswitch may know less.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownEnd<'a> {
    /// The end's address. `None` for a pod as a whole, which may have several or none.
    pub address: Option<IpAddr>,
    /// The name of the node. `None` if the end is not a node.
    pub node: Option<&'a str>,
    /// Namespace and name of the pod. `None` if the end is not a pod.
    pub name: Option<(&'a str, &'a str)>,
    /// The pod's labels. `None` if they are not known.
    pub labels: Option<&'a Labels>,
    /// The workload that created the pod. `None` if it is not known.
    pub workload: Option<&'a object::Workload>,
}

impl<'a> KnownEnd<'a> {
    /// Returns what the state knows about a pod of this workload.
    pub fn of(pod: &'a Pod, workload: &'a object::Workload) -> Self {
        let name = Some((&*pod.name.namespace, &*pod.name.name));
        Self { name, labels: Some(&pod.labels), workload: Some(workload), ..Self::default() }
    }
}

/// Whether a name means an end: its address, its node, its pod by name, its pod's workload, or its pod's labels. The name of a node is also
/// that of a pod of the namespace `node`. False if what the name asks for is not known of the end.
pub fn means_known(name: &EndName, end: KnownEnd<'_>) -> bool {
    match name {
        EndName::Address(address) => end.address == Some(*address),
        EndName::Node(name) => {
            end.node == Some(&**name) || means_pod(&EndName::Pod(EndName::of_namespace_node(name)), end)
        }
        EndName::Pod(_) | EndName::Workload(_) | EndName::Labels(_) => means_pod(name, end),
    }
}

/// Whether a name means the pod of this name, workload or labels. False for nodes and addresses, and for an end that is not a pod.
fn means_pod(name: &EndName, pod: KnownEnd<'_>) -> bool {
    let Some((namespace, own)) = pod.name else { return false };
    let is_of = |kind: Option<&str>, name: &PodName| {
        let is_one = |made: &object::Workload| made.name == name.name && kind.is_none_or(|kind| *made.kind == *kind);
        *name.namespace == *namespace && pod.workload.is_some_and(is_one)
    };
    match name {
        EndName::Pod(name) => (&*name.namespace, &*name.name) == (namespace, own) || is_of(None, name),
        EndName::Workload(Workload { kind, name }) => {
            is_of(Some(kind), name) || (*kind == "ReplicaSet" && is_of_replica_set(name, pod))
        }
        EndName::Labels(PodLabels { namespace: space, selector }) => {
            **space == *namespace && pod.labels.is_some_and(|labels| selector.matches(labels))
        }
        EndName::Node(_) | EndName::Address(_) => false,
    }
}

/// Whether the pod is of a Deployment's `ReplicaSet`, whose name is the Deployment's, `-` and the pod's template hash.
fn is_of_replica_set(set: &PodName, pod: KnownEnd<'_>) -> bool {
    let (Some((namespace, _)), Some(made), Some(labels)) = (pod.name, pod.workload, pod.labels) else { return false };
    let hash = set.name.strip_prefix(&*made.name).and_then(|rest| rest.strip_prefix('-'));
    *set.namespace == *namespace
        && *made.kind == *"Deployment"
        && hash.is_some_and(|hash| labels.get(TEMPLATE_HASH_LABEL).is_some_and(|own| **own == *hash))
}

/// Returns the name with the word for its kind: `pod shop/web`.
fn told(name: &EndName) -> String {
    match name {
        EndName::Pod(name) => format!("pod {name}"),
        EndName::Workload(Workload { kind, name }) => format!("{kind} {name}"),
        EndName::Labels(PodLabels { namespace, selector }) => format!("pod with {selector} in namespace {namespace}"),
        EndName::Node(name) => format!("node {name}"),
        EndName::Address(address) => address.to_string(),
    }
}

fn unknown_pods(cache: &Cache, name: &EndName) -> Unknown {
    let pods = || cache.pods().map(|(_, pod)| pod).filter(|pod| !pod.finished);
    let help = match name {
        EndName::Pod(wanted) => {
            let of_workload = |pod: &Pod| PodName::new(pod.name.namespace.clone(), pod.workload().name);
            let names = pods().flat_map(|pod| [pod.name.clone(), of_workload(pod)]);
            Some(similar(wanted, &names.collect(), "pod"))
        }
        EndName::Workload(Workload { kind, name }) => {
            let same = pods().filter(|pod| *pod.workload().kind == **kind);
            let names = same.map(|pod| PodName::new(pod.name.namespace.clone(), pod.workload().name));
            Some(similar(name, &names.collect(), kind))
        }
        EndName::Labels(wanted) => similar_label(cache, wanted),
        EndName::Node(_) | EndName::Address(_) => None,
    };
    let missing = "add the output of `kubectl get pods -A -o yaml` to --state";
    Unknown { problem: format!("no {} in the state", told(name)), similar: help, missing }
}

/// Suggests the nearest name of the namespace, or of a similar namespace. Without one, lists the names of the namespace, or the same names
/// in others.
pub(crate) fn similar(wanted: &PodName, known: &BTreeSet<PodName>, what: &str) -> String {
    let near_in = |space: &str| {
        let own = known.iter().filter(|name| *name.namespace == *space).map(|name| &*name.name);
        nearest_word(&wanted.name, own).map(|near| format!("{space}/{near}"))
    };
    let spaces: BTreeSet<&str> = known.iter().map(|name| &*name.namespace).collect();
    let near = near_in(&wanted.namespace).or_else(|| near_in(nearest_word(&wanted.namespace, spaces)?));
    let listed = |is_one: &dyn Fn(&PodName) -> bool| -> Vec<String> {
        known.iter().filter(|name| is_one(name)).map(ToString::to_string).collect()
    };
    let elsewhere = listed(&|name| name.name == wanted.name);
    let own = listed(&|name| name.namespace == wanted.namespace);
    match (near, &elsewhere[..], &own[..]) {
        (None, [near], _) => format!("did you mean {}?", output::printable(near)),
        (Some(near), ..) => format!("did you mean {}?", output::printable(&near)),
        (None, [], []) => {
            format!("the state has no {what} in namespace {} and no {what} named {}", wanted.namespace, wanted.name)
        }
        (None, [], names) | (None, names, _) => {
            format!("it has {}", output::some_of(&names.iter().map(String::as_str).collect::<Vec<_>>(), MAX_NAMED))
        }
    }
}

/// Suggests a value that pods of the namespace have for a label, or says which labels they have.
fn similar_label(cache: &Cache, wanted: &PodLabels) -> Option<String> {
    let pods = || cache.pods_in(&wanted.namespace).map(|(_, pod)| pod).filter(|pod| !pod.finished);
    if pods().next().is_none() {
        let known: BTreeSet<&str> = cache.pods().map(|(_, pod)| &*pod.name.namespace).collect();
        let near = suggestion(&wanted.namespace, &known.into_iter().collect::<Vec<_>>());
        return near.map(|near| format!("no pod is in this namespace; {near}"));
    }
    for requirement in wanted.selector.requirements() {
        let Condition::In(values) = &requirement.condition else { continue };
        let key = &requirement.key;
        let known: BTreeSet<&str> = pods().filter_map(|pod| pod.labels.get(key)).map(|value| &**value).collect();
        let is_known = values.iter().any(|value| known.contains(&**value));
        let near = values.iter().find_map(|value| nearest_word(value, known.iter().copied()));
        if let Some(near) = near.filter(|_| !is_known) {
            return Some(format!("did you mean {}={}?", output::printable(key), output::printable(near)));
        }
    }
    let labels: BTreeSet<String> =
        pods().flat_map(|pod| &pod.labels).map(|(key, value)| format!("{key}={value}")).collect();
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    Some(match labels.is_empty() {
        true => "the pods of this namespace have no labels".to_owned(),
        false => format!("its pods have {}", output::some_of(&labels, MAX_NAMED)),
    })
}

/// Returns the error for a node without an address in the state.
pub(crate) fn unknown_node(cache: &Cache, node: &str) -> Unknown {
    let hosting = cache.pods().filter_map(|(_, pod)| pod.node.as_ref());
    let known: BTreeSet<&str> = cache.nodes().keys().chain(hosting).map(|name| &**name).collect();
    if known.contains(node) {
        return Unknown {
            problem: format!("node {node} has no address in the state"),
            similar: None,
            missing: "add the output of `kubectl get nodes -o yaml` to --state",
        };
    }
    no_node(node, &known.into_iter().collect::<Vec<_>>())
}

/// Returns the error for a node that is not among these.
pub(crate) fn no_node(node: &str, known: &[&str]) -> Unknown {
    let node = output::printable(node);
    let problem = match known.is_empty() {
        false => format!("no node `{node}` in the state"),
        true => format!("no node `{node}`: the state has no Node and no pod with spec.nodeName"),
    };
    let missing = "add the output of `kubectl get nodes,pods -A -o yaml` to --state";
    Unknown { problem, similar: suggestion(&node, known), missing }
}

/// Lists these names, and suggests the nearest. `None` if there are none.
fn suggestion(wanted: &str, known: &[&str]) -> Option<String> {
    let all = output::some_of(known, MAX_NAMED);
    match (nearest_word(wanted, known.iter().copied()), known) {
        (_, []) => None,
        (Some(near), [_]) => Some(format!("did you mean {}?", output::printable(near))),
        (Some(near), _) => Some(format!("did you mean {}? The state has {all}", output::printable(near))),
        (None, _) => Some(format!("it has {all}")),
    }
}
