//! Names the ends of a change.
//!
//! ```text
//!  pods: all of both states --> `all pods`; all of a namespace --> `namespace dev`; all of a workload --> `dev/web`; others by name
//!  addresses: nodes by name; placeholders as `name www.example.com`
//!  ranges of addresses: as prefixes, for people with what is left out of them: `192.0.2.0/24 except 192.0.2.7/32`
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::AddressSet;
use bulkhead_control::object::{PodName, Workload};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::reachability::difference::{Difference, Unit};
use ipnet::IpNet;

use super::ranges::{hull_of, prefixes};
use super::units::together;
use crate::output::some_of;
use crate::run::Placeholders;

/// Maximum number of exceptions named in one range.
const LEFT_OUT: usize = 4;

/// The names of the ends on one side of a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ends {
    /// Names for programs: pods, workloads, prefixes or fixed words.
    pub(super) exact: Vec<String>,
    /// Names for people: shorter, with exceptions of ranges.
    pub(super) told: Vec<String>,
}

impl Ends {
    pub(super) fn exactly(names: Vec<String>) -> Self {
        Self { told: names.clone(), exact: names }
    }
}

/// A pod that exists in both states.
struct Known<'a> {
    pod: &'a PodName,
    /// Index into the namespaces of its [`Family`]; `workload` is one into the workloads.
    namespace: usize,
    workload: usize,
}

/// Compared pods of one address family. Sets of pods are indexes into `pods`, because comparing names is slow and a change may affect all
/// pods.
#[derive(Default)]
struct Family<'a> {
    /// The pods, ordered by name.
    pods: Vec<Known<'a>>,
    /// Namespaces with their number of pods.
    namespaces: Vec<(Arc<str>, usize)>,
    /// Workloads according to the new state, with their number of pods.
    workloads: Vec<(Workload, usize)>,
}

impl<'a> Family<'a> {
    fn of(pods: &BTreeSet<&'a PodName>, states: [&Pipeline; 2]) -> Self {
        let mut family = Self::default();
        let mut places: BTreeMap<Workload, usize> = BTreeMap::new();
        for &pod in pods {
            if family.namespaces.last().is_none_or(|(name, _)| *name != pod.namespace) {
                family.namespaces.push((pod.namespace.clone(), 0));
                // Two namespaces may have workloads of the same name.
                places.clear();
            }
            let namespace = family.namespaces.len() - 1;
            family.namespaces[namespace].1 += 1;
            let own = workload(states, pod);
            let next = family.workloads.len();
            let at = *places.entry(own.clone()).or_insert(next);
            if at == next {
                family.workloads.push((own, 0));
            }
            family.workloads[at].1 += 1;
            family.pods.push(Known { pod, namespace, workload: at });
        }
        family
    }

    fn place(&self, pod: &PodName) -> Option<usize> {
        self.pods.binary_search_by(|known| known.pod.cmp(pod)).ok()
    }
}

/// All known ends, to recognise complete groups.
pub(super) struct Names<'a> {
    difference: &'a Difference,
    placeholders: &'a Placeholders,
    /// The addresses that ranges may include though they are no external addresses: those of pods, and placeholders.
    free: AddressSet,
    /// The pods of IPv4, then those of IPv6.
    families: [Family<'a>; 2],
    /// The pods of each joint, as indexes into their family's list.
    places: Vec<Vec<usize>>,
    /// Names shared by several workloads of a namespace, or by a workload and a foreign pod.
    ambiguous: BTreeSet<(Arc<str>, Arc<str>)>,
    /// Node names by address. The new state takes precedence.
    nodes: BTreeMap<IpAddr, Arc<str>>,
}

impl<'a> Names<'a> {
    pub(super) fn new(difference: &'a Difference, placeholders: &'a Placeholders, states: [&Pipeline; 2]) -> Self {
        let mut pods: [BTreeSet<&PodName>; 2] = Default::default();
        for unit in difference.joints().iter().flat_map(|joint| &joint.units) {
            pods[usize::from(unit.before.is_ipv6())].insert(&unit.pod);
        }
        let families = pods.map(|pods| Family::of(&pods, states));
        let place = |unit: &Unit| families[usize::from(unit.before.is_ipv6())].place(&unit.pod);
        let places = difference.joints().iter().map(|joint| joint.units.iter().filter_map(place).collect()).collect();
        let ambiguous = ambiguous(&families);
        let mut nodes = BTreeMap::new();
        for node in states.iter().filter_map(|state| state.mirror()).flat_map(|mirror| mirror.nodes().values()) {
            nodes.extend(node.addresses.iter().map(|&address| (address, node.name.clone())));
        }
        let free = difference.pods().union(&placeholders.addresses());
        Self { difference, placeholders, free, families, places, ambiguous, nodes }
    }

    pub(super) fn is_v6(&self, joint: usize) -> bool {
        let joint = &self.difference.joints()[joint];
        joint.units.first().map_or_else(|| joint.addresses.v4_intervals().is_empty(), |unit| unit.before.is_ipv6())
    }

    /// Names the ends of joints, which have one family.
    pub(super) fn of_joints(&self, joints: &[usize]) -> Ends {
        let Some(&first) = joints.first() else { return Ends::exactly(Vec::new()) };
        let places = joints.iter().flat_map(|&joint| &self.places[joint]).copied().collect();
        let mut ends = Ends::exactly(self.of_places(places, self.is_v6(first)));
        let (names, set) = self.placeholders.divide(&together(self.difference, joints));
        ends.exact.extend(names.clone());
        ends.told.extend(names);
        if set.is_empty() {
            return ends;
        }
        if let Some(nodes) = self.all_nodes(&set) {
            ends.exact.extend(nodes.clone());
            ends.told.extend(nodes);
            return ends;
        }
        let exact = prefixes(&set, &self.free);
        ends.told.extend(self.told(&set, &exact));
        ends.exact.extend(exact.iter().map(ToString::to_string));
        ends
    }

    /// Returns the names of the nodes with these addresses. `None` unless all addresses belong to nodes.
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

    /// Returns ranges for people: the smallest enclosing prefix with its exceptions, if that is shorter.
    fn told(&self, set: &AddressSet, exact: &[IpNet]) -> Vec<String> {
        let word = |prefix: &IpNet| {
            let whole = prefix.prefix_len() == prefix.max_prefix_len();
            let node = whole.then(|| self.nodes.get(&prefix.addr())).flatten();
            node.map_or_else(|| prefix.to_string(), |node| format!("node {node}"))
        };
        let plain = || exact.iter().map(word).collect();
        let Some(hull) = hull_of(exact).filter(|_| exact.len() > 1) else { return plain() };
        let around: AddressSet = [hull].into_iter().collect();
        let left_out = prefixes(&around.subtract(set).subtract(&self.free), &self.free);
        if left_out.len() >= exact.len() {
            return plain();
        }
        let mut words: Vec<String> = left_out.iter().map(word).collect();
        words.dedup();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        vec![format!("{hull} except {}", some_of(&words, LEFT_OUT))]
    }

    /// Names pods of one family.
    pub(super) fn of_pods(&self, pods: &BTreeSet<&PodName>, v6: bool) -> Vec<String> {
        self.of_places(pods.iter().filter_map(|pod| self.families[usize::from(v6)].place(pod)).collect(), v6)
    }

    /// Names pods by namespace or workload if complete, or as `all pods`.
    fn of_places(&self, mut places: Vec<usize>, v6: bool) -> Vec<String> {
        let family = &self.families[usize::from(v6)];
        places.sort_unstable();
        places.dedup();
        if places.len() > 1 && places.len() == family.pods.len() && family.namespaces.len() > 1 {
            return vec!["all pods".into()];
        }
        let namespace = |place: usize| family.pods[place].namespace;
        let mut names = Vec::new();
        for places in places.chunk_by(|&one, &other| namespace(one) == namespace(other)) {
            let (name, count) = &family.namespaces[namespace(places[0])];
            match places.len() > 1 && places.len() == *count {
                true => names.push(format!("namespace {name}")),
                false => names.extend(self.by_workload(family, name, places)),
            }
        }
        names
    }

    fn by_workload(&self, family: &Family<'_>, namespace: &Arc<str>, places: &[usize]) -> Vec<String> {
        let mut by_workload: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &place in places {
            by_workload.entry(family.pods[place].workload).or_default().push(place);
        }
        let of = |(workload, places): (usize, Vec<usize>)| -> Vec<String> {
            let (workload, count) = &family.workloads[workload];
            match &*workload.kind != POD && places.len() == *count {
                true => vec![self.of_workload(namespace, workload)],
                false => places.into_iter().map(|place| family.pods[place].pod.to_string()).collect(),
            }
        };
        let mut names: Vec<String> = by_workload.into_iter().flat_map(of).collect();
        names.sort_unstable();
        names
    }

    /// Returns a workload's name: `dev/web`, or `dev/deployment/web` if that is ambiguous.
    fn of_workload(&self, namespace: &Arc<str>, Workload { kind, name }: &Workload) -> String {
        match self.ambiguous.contains(&(namespace.clone(), name.clone())) {
            true => format!("{namespace}/{}/{name}", kind.to_ascii_lowercase()),
            false => format!("{namespace}/{name}"),
        }
    }
}

/// Returns the ambiguous names, see [`Names`].
fn ambiguous(families: &[Family<'_>; 2]) -> BTreeSet<(Arc<str>, Arc<str>)> {
    let mut meant: BTreeMap<(Arc<str>, Arc<str>), BTreeSet<&Workload>> = BTreeMap::new();
    for family in families {
        for known in &family.pods {
            let (workload, _) = &family.workloads[known.workload];
            for name in [&workload.name, &known.pod.name] {
                meant.entry((known.pod.namespace.clone(), name.clone())).or_default().insert(workload);
            }
        }
    }
    meant.into_iter().filter(|(_, of)| of.len() > 1).map(|(name, _)| name).collect()
}

/// Kind of a pod without an owner.
const POD: &str = "Pod";

/// Returns the workload of a pod. The new state takes precedence.
fn workload(states: [&Pipeline; 2], name: &PodName) -> Workload {
    let of = |state: &&Pipeline| state.cache().pod(state.cache().pod_key(name)?).map(|pod| pod.workload());
    states.iter().rev().find_map(of).unwrap_or_else(|| Workload { kind: POD.into(), name: name.name.clone() })
}
