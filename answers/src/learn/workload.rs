//! Groups pods into workloads with a selector that matches exactly their pods.
//!
//! ```text
//!  pods --workload--> groups of one owner or the same labels --exact selector? yes--> a workload
//!                                                                   `-- no --> a workload for each labels
//! ```
//! An owner's pods are selected by their common labels, if those distinguish them from all other pods.
//!
//! **Invariant.** The selector of a workload matches its pods and no other pods of the namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::cache::Cache;
use bulkhead_control::object::{Labels, Pod, PodName};
use bulkhead_control::selector::{Condition, Requirement, Selector};

use crate::workload::{Alike, USUAL, alike, called, free, of_one_owner};

/// Maximum number of labels whose combinations are tried. More would be slow, and no shorter than all labels.
const MAX_TRIED: usize = 12;

/// Pods of one namespace with their selector.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub namespace: Arc<str>,
    /// Name of the workload: unique in its namespace, and valid as part of an object name.
    pub name: String,
    /// Selector that matches these pods and no others of the namespace.
    pub selector: Selector,
    pub pods: Vec<Arc<Pod>>,
}

impl Workload {
    /// Returns the workload's name as printed.
    pub(super) fn title(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// All workloads, and the workload of each pod and address.
#[derive(Debug, Default)]
pub(super) struct Workloads {
    pub all: Vec<Workload>,
    by_pod: BTreeMap<PodName, usize>,
    by_address: BTreeMap<IpAddr, usize>,
}

impl Workloads {
    /// Groups the pods that policies can select, now or once they have an address.
    pub(super) fn of(cache: &Cache) -> Self {
        // Include pods without an address: they will get one.
        let alike = alike(cache, |pod| !pod.host_network && !pod.finished);
        let mut workloads = Self::default();
        for namespace in alike.chunk_by(|one, other| one.namespace == other.namespace) {
            let mut taken = BTreeSet::new();
            for (selector, members) in told_apart(namespace) {
                workloads.add(namespace, selector, &members, &mut taken);
            }
        }
        workloads
    }

    /// Adds a workload of these groups under an unused name.
    fn add(&mut self, namespace: &[Alike], selector: Selector, members: &[usize], taken: &mut BTreeSet<String>) {
        let mut pods: Vec<Arc<Pod>> = members.iter().flat_map(|&at| namespace[at].pods.iter().cloned()).collect();
        pods.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for pod in &pods {
            self.by_pod.insert(pod.name.clone(), self.all.len());
            self.by_address.extend(pod.addresses.iter().map(|&address| (address, self.all.len())));
        }
        let free = free(&stem(&namespace[members[0]].labels, &pods), taken);
        let namespace = namespace[members[0]].namespace.clone();
        self.all.push(Workload { namespace, name: free, selector, pods });
    }

    /// Returns the workload of a pod. `None` if no policy can select the pod.
    pub(super) fn of_pod(&self, name: &PodName) -> Option<usize> {
        self.by_pod.get(name).copied()
    }

    /// Whether a pod has an address in the block.
    pub(super) fn any_in(&self, block: &ipnet::IpNet) -> bool {
        self.by_address.range(block.network()..=block.broadcast()).next().is_some()
    }
}

/// Splits the groups of a namespace into workloads with selectors, in the order of their labels.
fn told_apart(namespace: &[Alike]) -> Vec<(Selector, Vec<usize>)> {
    let selector = |members: &[usize]| {
        let is_member = |at: &usize| members.contains(at);
        let (own, others): (Vec<usize>, Vec<usize>) = (0..namespace.len()).partition(is_member);
        let labels = |places: Vec<usize>| places.into_iter().map(|at| &namespace[at].labels).collect::<Vec<_>>();
        exact(&labels(own), &labels(others))
    };
    let mut workloads = Vec::new();
    for group in of_one_owner(namespace) {
        match selector(&group) {
            Some(selector) => workloads.push((selector, group)),
            // The common labels also match other pods.
            None => workloads.extend(group.into_iter().filter_map(|at| Some((selector(&[at])?, vec![at])))),
        }
    }
    workloads
}

/// Returns the preference of a label. Lower is better.
fn rank(key: &str) -> usize {
    USUAL.iter().position(|usual| *usual == key).unwrap_or(USUAL.len())
}

/// Returns a name for objects: the usual name of the pods, else the first pod's.
fn stem(labels: &Labels, pods: &[Arc<Pod>]) -> String {
    let text = called(labels, pods).unwrap_or_else(|| pods[0].name.name.clone()).to_ascii_lowercase();
    // RFC 1123 label. 40 characters leave room for prefix and suffix.
    let name: String = text.chars().take(40).map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "pods".to_owned() } else { name.to_owned() }
}

fn is(key: &Arc<str>, condition: Condition) -> Requirement {
    Requirement { key: key.clone(), condition }
}

/// Returns the smallest selector of common labels that matches none of `others`. `None` if there is none. An empty selector would match all
/// future pods of the namespace, so others' labels are excluded if possible.
fn exact(own: &[&Labels], others: &[&Labels]) -> Option<Selector> {
    let (first, rest) = own.split_first()?;
    let in_common = |&(key, value): &(&Arc<str>, &Arc<str>)| rest.iter().all(|labels| labels.get(key) == Some(value));
    let mut pairs: Vec<(&Arc<str>, &Arc<str>)> = first.iter().filter(in_common).collect();
    pairs.sort_by_key(|(key, _)| (rank(key), (*key).clone()));
    let mut requirements: Vec<Requirement> =
        pairs.iter().map(|(key, value)| is(key, Condition::In(vec![(*value).clone()]))).collect();
    let mut left: Vec<&Labels> = others
        .iter()
        .filter(|other| pairs.iter().all(|(key, value)| other.get(*key) == Some(*value)))
        .copied()
        .collect();
    pairs.truncate(MAX_TRIED);
    let mut sets: Vec<u32> = (1u32..1 << pairs.len()).collect();
    // Prefer fewer labels, then more usual ones.
    sets.sort_by_key(|set| (set.count_ones(), set.reverse_bits().wrapping_neg()));
    let chosen = |set: u32| pairs.iter().enumerate().filter(move |(at, _)| set >> at & 1 == 1).map(|(_, pair)| *pair);
    let is_met = |set: u32, other: &Labels| chosen(set).all(|(key, value)| other.get(key) == Some(value));
    let of = |set: u32| chosen(set).map(|(key, value)| is(key, Condition::In(vec![value.clone()])));
    if left.is_empty()
        && let Some(set) = sets.into_iter().find(|&set| !others.iter().any(|other| is_met(set, other)))
    {
        return Some(Selector::new(of(set)));
    }
    // Other pods have all these labels and more, so exclude labels that only they have.
    while !left.is_empty() {
        let mut counts: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        let is_foreign = |key: &&Arc<str>| own.iter().all(|labels| !labels.contains_key(*key));
        left.iter().flat_map(|other| other.keys()).filter(is_foreign).for_each(|key| {
            *counts.entry(key).or_default() += 1;
        });
        let (key, _) = counts.into_iter().max_by_key(|&(key, count)| (count, std::cmp::Reverse(key)))?;
        requirements.push(is(key, Condition::DoesNotExist));
        left.retain(|other| !other.contains_key(key));
    }
    Some(Selector::new(requirements))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::{labels, state};

    fn chosen(own: &str, others: &[&str]) -> String {
        let others: Vec<Labels> = others.iter().map(|other| labels(other)).collect();
        let (own, others) = (labels(own), others.iter().collect::<Vec<_>>());
        let selector = exact(&[&own], &others).unwrap();
        assert!(selector.matches(&own) && !others.iter().any(|other| selector.matches(other)), "{selector}");
        selector.to_string()
    }

    #[test]
    fn the_smallest_selector_with_the_usual_labels_is_chosen_and_selects_nobody_else() {
        assert_eq!(chosen("app=web,zone=a", &["app=db,zone=a"]), "app=web");
        assert_eq!(chosen("app=web,zone=a", &["app=web,zone=b"]), "zone=a");
        assert_eq!(chosen("app=web,tier=x", &["app=web,tier=y", "app=db,tier=x"]), "app=web,tier=x");
        assert_eq!(chosen("app=web", &["app=web,canary=yes"]), "app=web,!canary");
        assert_eq!(chosen("", &["app=web", "run=x"]), "!app,!run");
        assert_eq!(chosen("app.kubernetes.io/name=web,app=web,b=c", &["app=db"]), "app.kubernetes.io/name=web");
    }

    /// Returns the workloads of pods given as `labels@owner`: each one's name, selector and pods by position.
    fn workloads(pods: &[&str]) -> Vec<String> {
        let pipeline = state(pods);
        let all = Workloads::of(pipeline.cache()).all;
        let shown = |of: &Workload| {
            let names: Vec<&str> = of.pods.iter().map(|pod| &*pod.name.name).collect();
            for (_, pod) in pipeline.cache().pods() {
                assert_eq!(of.selector.matches(&pod.labels), names.contains(&&*pod.name.name), "{}", of.selector);
            }
            format!("{} [{}] {}", of.name, of.selector, names.join(" "))
        };
        all.iter().map(shown).collect()
    }

    #[test]
    fn pods_of_one_owner_are_one_workload_by_the_labels_that_all_of_them_have() {
        let primary_and_replica = workloads(&["app=db,rank=primary@db", "app=db,rank=replica@db", "app=web@web"]);
        assert_eq!(primary_and_replica, ["db [app=db] p0 p1", "web [app=web] p2"]);
        // Other pods have these labels and one more.
        let canary = workloads(&["app=db,rank=a@db", "app=db,rank=b@db", "app=db,canary=c@canary"]);
        assert_eq!(canary, ["canary [canary=c] p2", "db [app=db,!canary] p0 p1"]);
    }

    #[test]
    fn pods_of_one_owner_whose_labels_in_common_are_others_as_well_are_told_by_all_labels() {
        let shared = workloads(&["app=x,rank=a@one", "app=x,rank=b@one", "app=x,rank=c@two"]);
        assert_eq!(shared, ["one [rank=a] p0", "one-2 [rank=b] p1", "two [rank=c] p2"]);
    }

    #[test]
    fn pods_with_the_same_labels_are_one_workload_whoever_owns_them() {
        assert_eq!(workloads(&["app=x@blue", "app=x@green", "app=x", "app=z"]), ["x [app=x] p0 p1 p2", "z [app=z] p3"]);
    }
}
