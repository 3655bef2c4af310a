//! How people call the ends of a change.
//!
//! ```text
//!  pods: all of both states --> `all pods`; all of a namespace --> `namespace dev`; all of a workload --> `dev/web`; others by name
//!  addresses: nodes by name; ranges as prefixes, for people with what is left out of them: `192.0.2.0/24 except 192.0.2.7/32`
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::AddressSet;
use bulkhead_control::object::{PodName, Workload};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::difference::Difference;
use ipnet::IpNet;

use super::ranges::{hull_of, prefixes};
use super::units::together;
use crate::output::some_of;

/// Ranges that a person is told are left out of another one.
const LEFT_OUT: usize = 4;

/// The ends of one side.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ends {
    /// For programs: each is a pod, a workload, a prefix, or one of a few words.
    pub(super) exact: Vec<String>,
    /// For people.
    pub(super) told: Vec<String>,
}

impl Ends {
    pub(super) fn exactly(names: Vec<String>) -> Self {
        Self { told: names.clone(), exact: names }
    }
}

/// Pods of one family by their namespace.
type ByNamespace<'a> = BTreeMap<Arc<str>, BTreeSet<&'a PodName>>;

/// Who there is, to tell whether all of them are meant.
pub(super) struct Names<'a> {
    difference: &'a Difference,
    /// The compared pods of each family.
    pods: [ByNamespace<'a>; 2],
    /// The workload of each compared pod, as the new state knows it.
    workloads: BTreeMap<&'a PodName, Workload>,
    /// The compared pods of each workload, by family and namespace.
    members: [BTreeMap<(Arc<str>, Workload), BTreeSet<&'a PodName>>; 2],
    /// Names that several workloads of one namespace have, or a workload and a pod of another one.
    ambiguous: BTreeSet<(Arc<str>, Arc<str>)>,
    /// The names of nodes by address, of the new state where both know it.
    nodes: BTreeMap<IpAddr, Arc<str>>,
}

impl<'a> Names<'a> {
    pub(super) fn new(difference: &'a Difference, states: [&Pipeline; 2]) -> Self {
        let mut names = Self {
            difference,
            pods: Default::default(),
            workloads: BTreeMap::new(),
            members: Default::default(),
            ambiguous: BTreeSet::new(),
            nodes: BTreeMap::new(),
        };
        for unit in difference.joints().iter().flat_map(|joint| &joint.units) {
            let (family, pod) = (usize::from(unit.before.is_ipv6()), &unit.pod);
            names.pods[family].entry(pod.namespace.clone()).or_default().insert(pod);
            let workload = names.workloads.entry(pod).or_insert_with(|| workload(states, pod)).clone();
            names.members[family].entry((pod.namespace.clone(), workload)).or_default().insert(pod);
        }
        names.ambiguous = names.ambiguous();
        for node in states.iter().filter_map(|state| state.mirror()).flat_map(|mirror| mirror.nodes().values()) {
            names.nodes.extend(node.addresses.iter().map(|&address| (address, node.name.clone())));
        }
        names
    }

    fn ambiguous(&self) -> BTreeSet<(Arc<str>, Arc<str>)> {
        let mut kinds: BTreeMap<(Arc<str>, Arc<str>), BTreeSet<&Workload>> = BTreeMap::new();
        for (pod, workload) in &self.workloads {
            for name in [&workload.name, &pod.name] {
                kinds.entry((pod.namespace.clone(), name.clone())).or_default().insert(workload);
            }
        }
        kinds.into_iter().filter(|(_, of)| of.len() > 1).map(|(name, _)| name).collect()
    }

    pub(super) fn is_v6(&self, joint: usize) -> bool {
        let joint = &self.difference.joints()[joint];
        joint.units.first().map_or_else(|| joint.addresses.v4_intervals().is_empty(), |unit| unit.before.is_ipv6())
    }

    /// The ends of joints of one family.
    pub(super) fn of_joints(&self, joints: &[usize]) -> Ends {
        let Some(&first) = joints.first() else { return Ends::exactly(Vec::new()) };
        let units = joints.iter().flat_map(|&joint| &self.difference.joints()[joint].units);
        let pods: BTreeSet<&PodName> = units.map(|unit| &unit.pod).collect();
        let mut ends = Ends::exactly(self.of_pods(&pods, self.is_v6(first)));
        let set = together(self.difference, joints);
        if set.is_empty() {
            return ends;
        }
        if let Some(nodes) = self.all_nodes(&set) {
            ends.exact.extend(nodes.clone());
            ends.told.extend(nodes);
            return ends;
        }
        let exact = prefixes(&set, self.difference.pods());
        ends.told.extend(self.told(&set, &exact));
        ends.exact.extend(exact.iter().map(ToString::to_string));
        ends
    }

    /// Nodes by name, where the addresses are theirs and nobody else's.
    fn all_nodes(&self, set: &AddressSet) -> Option<Vec<String>> {
        let node = |prefix: IpNet| {
            (prefix.prefix_len() == prefix.max_prefix_len()).then(|| self.nodes.get(&prefix.addr())).flatten()
        };
        let mut single = set.prefixes();
        let nodes: BTreeSet<&Arc<str>> = single.by_ref().map(node).collect::<Option<_>>()?;
        let all = self.nodes.values().collect::<BTreeSet<_>>().len();
        Some(match nodes.len() > 1 && nodes.len() == all {
            true => vec!["all nodes".to_owned()],
            false => nodes.into_iter().map(|name| format!("node {name}")).collect(),
        })
    }

    /// Ranges for people: the smallest prefix around all of them with what is left out, where that takes fewer words.
    fn told(&self, set: &AddressSet, exact: &[IpNet]) -> Vec<String> {
        let word = |prefix: &IpNet| {
            let whole = prefix.prefix_len() == prefix.max_prefix_len();
            let node = whole.then(|| self.nodes.get(&prefix.addr())).flatten();
            node.map_or_else(|| prefix.to_string(), |node| format!("node {node}"))
        };
        let plain = || exact.iter().map(word).collect();
        let Some(hull) = hull_of(exact).filter(|_| exact.len() > 1) else { return plain() };
        let free = self.difference.pods();
        let around: AddressSet = [hull].into_iter().collect();
        let left_out = prefixes(&around.subtract(set).subtract(free), free);
        if left_out.len() >= exact.len() {
            return plain();
        }
        let mut words: Vec<String> = left_out.iter().map(word).collect();
        words.dedup();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        vec![format!("{hull} except {}", some_of(&words, LEFT_OUT))]
    }

    /// Pods by namespace or workload where all of it are meant, and all of them where that is everybody.
    pub(super) fn of_pods(&self, pods: &BTreeSet<&PodName>, v6: bool) -> Vec<String> {
        let all = &self.pods[usize::from(v6)];
        let count: usize = all.values().map(BTreeSet::len).sum();
        if pods.len() > 1 && pods.len() == count && all.len() > 1 {
            return vec!["all pods".into()];
        }
        let mut by_namespace: BTreeMap<&Arc<str>, Vec<&PodName>> = BTreeMap::new();
        for pod in pods {
            by_namespace.entry(&pod.namespace).or_default().push(pod);
        }
        let of = |(namespace, pods): (&Arc<str>, Vec<&PodName>)| -> Vec<String> {
            let known = all.get(namespace).map_or(0, BTreeSet::len);
            match pods.len() > 1 && pods.len() == known {
                true => vec![format!("namespace {namespace}")],
                false => self.by_workload(namespace, &pods, v6),
            }
        };
        by_namespace.into_iter().flat_map(of).collect()
    }

    fn by_workload(&self, namespace: &Arc<str>, pods: &[&PodName], v6: bool) -> Vec<String> {
        let mut by_workload: BTreeMap<&Workload, Vec<&PodName>> = BTreeMap::new();
        for pod in pods {
            by_workload.entry(&self.workloads[*pod]).or_default().push(pod);
        }
        let of = |(workload, pods): (&Workload, Vec<&PodName>)| -> Vec<String> {
            let known = self.members[usize::from(v6)].get(&(namespace.clone(), workload.clone()));
            let is_all = &*workload.kind != POD && known.is_some_and(|known| known.len() == pods.len());
            match is_all {
                true => vec![self.of_workload(namespace, workload)],
                false => pods.into_iter().map(ToString::to_string).collect(),
            }
        };
        let mut names: Vec<String> = by_workload.into_iter().flat_map(of).collect();
        names.sort_unstable();
        names
    }

    /// `dev/web`; `dev/deployment/web` where something else is called so as well.
    fn of_workload(&self, namespace: &Arc<str>, Workload { kind, name }: &Workload) -> String {
        match self.ambiguous.contains(&(namespace.clone(), name.clone())) {
            true => format!("{namespace}/{}/{name}", kind.to_ascii_lowercase()),
            false => format!("{namespace}/{name}"),
        }
    }
}

/// The kind of a pod that nothing has made.
const POD: &str = "Pod";

/// What has made a pod, as the new state has it.
fn workload(states: [&Pipeline; 2], name: &PodName) -> Workload {
    let of = |state: &&Pipeline| state.cache().pod(state.cache().pod_key(name)?).map(|pod| pod.workload());
    states.iter().rev().find_map(of).unwrap_or_else(|| Workload { kind: POD.into(), name: name.name.clone() })
}
