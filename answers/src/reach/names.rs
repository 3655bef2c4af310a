//! Names sets of ends by what they have in common.
//!
//! ```text
//!  all pods --> `all pods`; all pods of a namespace or workload --> `namespace dev`, `dev/web`
//!  all pods with a label, of namespaces with a label --> `app=web of namespaces team=shop`
//!  others --> parts of workloads, pods, addresses
//! ```

use std::collections::HashMap;

use bulkhead_control::cache::Cache;
use bulkhead_control::object::{NAMESPACE_NAME_LABEL, PodName};

use super::ends::{NamedEnd, Place};
use super::merged;
use crate::fabric::End;
use crate::output::some_of;
use crate::workload::{Workloads, is_stable};

type Label<'a> = (&'a str, &'a str);

/// The namespaces of a selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Namespaces<'a> {
    All,
    Labelled(Label<'a>),
    One(&'a str),
}

/// Maximum number of names on a side of a line, and in one name that excludes others.
pub(super) const SHOWN: usize = 6;

/// The name of all pods.
const ALL: &str = "all pods";

/// Namespaces, and a label of their pods. `None` for all their pods.
type Selector<'a> = (Namespaces<'a>, Option<Label<'a>>);

/// Names of ends, of which only the first [`SHOWN`] are written. A line about thousands of ends would otherwise take most of its time to name
/// those that it only counts.
#[derive(Clone, Debug, Default)]
pub(super) struct NameList {
    /// The first names, at most [`SHOWN`].
    first: Vec<String>,
    /// The number of all names.
    pub(super) count: usize,
}

impl NameList {
    pub(super) fn one(name: String) -> Self {
        Self { first: vec![name], count: 1 }
    }

    fn push(&mut self, name: impl FnOnce() -> String) {
        if self.first.len() < SHOWN {
            self.first.push(name());
        }
        self.count += 1;
    }

    fn append(&mut self, mut other: Self) {
        self.count += other.count;
        other.first.truncate(SHOWN - self.first.len());
        self.first.append(&mut other.first);
    }

    /// Puts a text before the first name. Without a name, the list gets `otherwise`.
    pub(super) fn prefix(&mut self, text: &str, otherwise: &str) {
        match self.first.first_mut() {
            Some(first) => first.insert_str(0, text),
            None => *self = Self::one(otherwise.to_owned()),
        }
    }

    /// Returns the first names separated by commas, and the number of the rest.
    pub(super) fn text(&self) -> String {
        let shown = some_of(&self.first.iter().map(String::as_str).collect::<Vec<_>>(), SHOWN);
        match self.count - self.first.len() {
            0 => shown,
            more => format!("{shown} and {more} more"),
        }
    }
}

/// A pod among the ends.
struct Known<'a> {
    name: &'a PodName,
    workload: usize,
    /// Labels of the pod and of its namespace that policies may select several of them by.
    labels: Vec<Label<'a>>,
    of_namespace: Vec<Label<'a>>,
}

impl<'a> Known<'a> {
    fn of(cache: &'a Cache, workloads: &Workloads, end: &'a NamedEnd) -> Option<Self> {
        let End::Pod { name, .. } = &end.end else { return None };
        let pod = cache.pod(cache.pod_key(name)?)?;
        let namespace = cache.namespaces().get(&name.namespace).into_iter().flat_map(|namespace| &namespace.labels);
        let namespace = namespace.filter(|(key, _)| &***key != NAMESPACE_NAME_LABEL);
        let labels = pod.labels.iter().filter(|(key, _)| is_stable(key));
        Some(Self {
            name,
            workload: workloads.of_pod(name)?,
            labels: labels.map(|(key, value)| (&**key, &**value)).collect(),
            of_namespace: namespace.map(|(key, value)| (&**key, &**value)).collect(),
        })
    }

    /// Returns the pod's namespace and workload.
    fn place(&self) -> (&'a str, usize) {
        (&self.name.namespace, self.workload)
    }

    /// Returns the selectors that match the pod and perhaps others.
    fn selectors(&self) -> impl Iterator<Item = Selector<'a>> + '_ {
        let one = Namespaces::One(&self.name.namespace);
        let labelled = self.of_namespace.iter().map(|&label| Namespaces::Labelled(label));
        let namespaces = [Namespaces::All].into_iter().chain(labelled).chain([one]);
        namespaces.flat_map(|namespaces| {
            let labels = std::iter::once(None).chain(self.labels.iter().copied().map(Some));
            labels.map(move |label| (namespaces, label))
        })
    }

    fn is_selected_by(&self, (namespaces, label): &Selector<'a>) -> bool {
        let is_inside = match namespaces {
            Namespaces::All => true,
            Namespaces::Labelled(label) => self.of_namespace.contains(label),
            Namespaces::One(name) => *self.name.namespace == **name,
        };
        is_inside && label.is_none_or(|label| self.labels.contains(&label))
    }
}

/// The names of the ends of one family.
pub(super) struct Names<'a> {
    ends: &'a [&'a NamedEnd],
    /// The pod of each end. `None` for a node or an external address.
    pods: Vec<Option<Known<'a>>>,
    workloads: Workloads,
    /// Number of pods of each workload, at their own interfaces and on nodes' networks.
    of_workloads: HashMap<(Place, usize), usize>,
    of_places: HashMap<Place, usize>,
    /// Number of pods that each selector matches. Policies select no host-network pods.
    selected: HashMap<Selector<'a>, usize>,
}

impl<'a> Names<'a> {
    pub(super) fn of(cache: &'a Cache, ends: &'a [&'a NamedEnd]) -> Self {
        let workloads = Workloads::of(cache);
        let pods: Vec<_> = ends.iter().map(|end| Known::of(cache, &workloads, end)).collect();
        let (mut of_workloads, mut of_places, mut selected) = (HashMap::new(), HashMap::new(), HashMap::new());
        for (end, pod) in ends.iter().zip(&pods) {
            let Some(pod) = pod else { continue };
            *of_places.entry(end.place).or_default() += 1;
            *of_workloads.entry((end.place, pod.workload)).or_default() += 1;
            for selector in pod.selectors().filter(|_| end.place == Place::Pod) {
                *selected.entry(selector).or_default() += 1;
            }
        }
        Self { ends, pods, workloads, of_workloads, of_places, selected }
    }

    /// Returns names for these ends, given by ascending indexes.
    pub(super) fn told(&self, ends: &[usize]) -> NameList {
        if ends.len() > 1 && ends.len() == self.ends.len() {
            return NameList::one("everyone".into());
        }
        let of_place = |place| -> Vec<usize> {
            ends.iter().copied().filter(|&at| self.ends[at].place == place && self.pods[at].is_some()).collect()
        };
        let [pods, hosts] = [Place::Pod, Place::Host].map(of_place);
        let mut names = match hosts.len() {
            0 => self.of_pods(&pods, self.count(Place::Host) > 0),
            count if count == self.count(Place::Host) => {
                let mut pods = self.of_pods(&pods, false);
                match pods.first.first().filter(|name| name.starts_with(ALL)) {
                    Some(_) => {}
                    None if count > 1 => pods.push(|| "all host-network pods".to_owned()),
                    None => self.add_workloads(&hosts, &mut pods),
                }
                pods
            }
            _ => {
                let mut pods = self.of_pods(&pods, true);
                self.add_workloads(&hosts, &mut pods);
                pods
            }
        };
        for &at in ends.iter().filter(|&&at| self.pods[at].is_none()) {
            names.push(|| self.ends[at].name.clone());
        }
        names
    }

    fn count(&self, place: Place) -> usize {
        self.of_places.get(&place).copied().unwrap_or_default()
    }

    /// Names pods by what is shortest: their namespaces and workloads, one selector, or those that are missing. `without_hosts` is true if
    /// all pods would include host-network pods, which are not among these.
    fn of_pods(&self, pods: &[usize], without_hosts: bool) -> NameList {
        let names = self.by_namespaces(pods);
        if pods.len() < 2 || (names.count < 2 && pods.len() < self.count(Place::Pod)) {
            return names;
        }
        if let Some(selector) = self.selector(pods).filter(|_| pods.len() < self.count(Place::Pod)) {
            return NameList::one(text(&selector, pods.len()));
        }
        if self.count(Place::Pod) >= 2 * pods.len() {
            return names;
        }
        let missing = without(self.ends.len(), pods);
        let missing: Vec<usize> =
            missing.filter(|&at| self.ends[at].place == Place::Pod && self.pods[at].is_some()).collect();
        let mut except =
            if without_hosts { NameList::one("host-network ones".to_owned()) } else { NameList::default() };
        except.append(match self.selector(&missing) {
            Some(selector) if missing.len() > 1 => NameList::one(text(&selector, missing.len())),
            _ => self.by_namespaces(&missing),
        });
        match except.count {
            0 => NameList::one(ALL.to_owned()),
            count if count < names.count => NameList::one(format!("{ALL} except {}", except.text())),
            _ => names,
        }
    }

    fn by_namespaces(&self, pods: &[usize]) -> NameList {
        let mut names = NameList::default();
        let namespace = |at: usize| self.pods[at].as_ref().map(|pod| &*pod.name.namespace);
        // Ends are in the order of pods' names, so those of one namespace follow each other.
        for of_one in pods.chunk_by(|&one, &other| namespace(one) == namespace(other)) {
            let whole = namespace(of_one[0]).map(|name| (Namespaces::One(name), None));
            match whole.filter(|whole| of_one.len() > 1 && self.selected.get(whole) == Some(&of_one.len())) {
                Some(whole) => names.push(|| text(&whole, of_one.len())),
                None => self.add_workloads(of_one, &mut names),
            }
        }
        names
    }

    /// Returns a selector that matches exactly these pods. `None` if one label of pods and one of namespaces do not suffice.
    fn selector(&self, pods: &[usize]) -> Option<Selector<'a>> {
        let mut known = pods.iter().filter_map(|&at| self.pods[at].as_ref());
        let mut fitting: Vec<Selector<'a>> = known.next()?.selectors().collect();
        fitting.retain(|selector| self.selected.get(selector) == Some(&pods.len()));
        for pod in known {
            fitting.retain(|selector| pod.is_selected_by(selector));
            if fitting.is_empty() {
                return None;
            }
        }
        fitting.first().copied()
    }

    /// Adds the names of pods' workloads, of which the pods may be a part.
    fn add_workloads(&self, pods: &[usize], names: &mut NameList) {
        let known = pods.iter().filter_map(|&at| self.pods[at].as_ref());
        let mut members: Vec<&Known<'_>> = known.collect();
        members.sort_by_key(|pod| pod.place());
        let place = pods.first().map(|&at| self.ends[at].place);
        for members in members.chunk_by(|one, other| one.place() == other.place()) {
            names.push(|| {
                let workload = members[0].workload;
                let of = place.and_then(|place| self.of_workloads.get(&(place, workload)).copied());
                let pods: Vec<PodName> = members.iter().map(|pod| pod.name.clone()).collect();
                let of = of.unwrap_or(pods.len());
                merged::End::of_pods(pods, self.workloads.name(workload), of).title()
            });
        }
    }
}

/// Returns the numbers below `count` that are not among these ascending ones.
pub(super) fn without(count: usize, among: &[usize]) -> impl Iterator<Item = usize> {
    let mut among = among.iter().copied().peekable();
    (0..count).filter(move |at| among.next_if_eq(at).is_none())
}

/// Returns a selector as text: `app=web of namespace shop (3 pods)`.
fn text((namespaces, label): &Selector<'_>, pods: usize) -> String {
    let label = label.map(|(key, value)| format!("{key}={value}"));
    let inside = match namespaces {
        Namespaces::All => None,
        Namespaces::Labelled((key, value)) => Some(format!("namespaces {key}={value}")),
        Namespaces::One(name) => Some(format!("namespace {name}")),
    };
    let told: Vec<String> = label.into_iter().chain(inside).collect();
    format!("{} ({pods} pods)", told.join(" of "))
}
