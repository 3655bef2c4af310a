//! Names sets of ends by what they have in common.
//!
//! ```text
//!  all pods --> `all pods`; all pods of a namespace or workload --> `namespace dev`, `dev/web`
//!  all pods with a label, of namespaces with a label --> `app=web of namespaces team=shop`
//!  others --> parts of workloads, pods, addresses
//! ```

use std::collections::{BTreeMap, HashMap};

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
    pub(super) fn told(&self, ends: &[usize]) -> Vec<String> {
        if ends.len() > 1 && ends.len() == self.ends.len() {
            return vec!["everyone".into()];
        }
        let of_place = |place| -> Vec<usize> {
            ends.iter().copied().filter(|&at| self.ends[at].place == place && self.pods[at].is_some()).collect()
        };
        let [pods, hosts] = [Place::Pod, Place::Host].map(of_place);
        let mut names = match hosts.len() {
            0 => self.of_pods(&pods, self.count(Place::Host) > 0),
            count if count == self.count(Place::Host) => {
                let pods = self.of_pods(&pods, false);
                match pods.first().filter(|name| name.starts_with(ALL)) {
                    Some(_) => pods,
                    None if count > 1 => pods.into_iter().chain(["all host-network pods".to_owned()]).collect(),
                    None => pods.into_iter().chain(self.of_workloads(&hosts)).collect(),
                }
            }
            _ => self.of_pods(&pods, true).into_iter().chain(self.of_workloads(&hosts)).collect(),
        };
        let addresses = ends.iter().filter(|&&at| self.pods[at].is_none());
        names.extend(addresses.map(|&at| self.ends[at].name.clone()));
        names
    }

    fn count(&self, place: Place) -> usize {
        self.of_places.get(&place).copied().unwrap_or_default()
    }

    /// Names pods by what is shortest: their namespaces and workloads, one selector, or those that are missing. `without_hosts` is true if
    /// all pods would include host-network pods, which are not among these.
    fn of_pods(&self, pods: &[usize], without_hosts: bool) -> Vec<String> {
        let names = self.by_namespaces(pods);
        if pods.len() < 2 || (names.len() < 2 && pods.len() < self.count(Place::Pod)) {
            return names;
        }
        if let Some(selector) = self.selector(pods).filter(|_| pods.len() < self.count(Place::Pod)) {
            return vec![text(&selector, pods.len())];
        }
        let missing = (0..self.ends.len()).filter(|at| {
            self.ends[*at].place == Place::Pod && self.pods[*at].is_some() && pods.binary_search(at).is_err()
        });
        let missing: Vec<usize> = missing.collect();
        if missing.len() >= pods.len() {
            return names;
        }
        let mut except = if without_hosts { vec!["host-network ones".to_owned()] } else { Vec::new() };
        except.extend(match self.selector(&missing) {
            Some(selector) if missing.len() > 1 => vec![text(&selector, missing.len())],
            _ => self.by_namespaces(&missing),
        });
        match except.len() {
            0 => vec![ALL.to_owned()],
            count if count < names.len() => {
                let except: Vec<&str> = except.iter().map(String::as_str).collect();
                vec![format!("{ALL} except {}", some_of(&except, SHOWN))]
            }
            _ => names,
        }
    }

    fn by_namespaces(&self, pods: &[usize]) -> Vec<String> {
        let mut names = Vec::new();
        let namespace = |at: usize| self.pods[at].as_ref().map(|pod| &*pod.name.namespace);
        // Ends are in the order of pods' names, so those of one namespace follow each other.
        for of_one in pods.chunk_by(|&one, &other| namespace(one) == namespace(other)) {
            let whole = namespace(of_one[0]).map(|name| (Namespaces::One(name), None));
            match whole.filter(|whole| of_one.len() > 1 && self.selected.get(whole) == Some(&of_one.len())) {
                Some(whole) => names.push(text(&whole, of_one.len())),
                None => names.extend(self.of_workloads(of_one)),
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

    /// Names pods by their workloads, of which they may be a part.
    fn of_workloads(&self, pods: &[usize]) -> Vec<String> {
        let mut by_workload: BTreeMap<(&str, usize), Vec<&PodName>> = BTreeMap::new();
        for pod in pods.iter().filter_map(|&at| self.pods[at].as_ref()) {
            by_workload.entry((&pod.name.namespace, pod.workload)).or_default().push(pod.name);
        }
        let place = pods.first().map(|&at| self.ends[at].place);
        let of = |workload| self.of_workloads.get(&(place?, workload)).copied();
        let names = by_workload.into_iter().map(|((_, workload), members)| {
            let pods: Vec<PodName> = members.into_iter().cloned().collect();
            let of = of(workload).unwrap_or(pods.len());
            merged::End::of_pods(pods, self.workloads.name(workload), of).title()
        });
        names.collect()
    }
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
