//! The connectivity matrix with identical pods of a workload merged.
//!
//! ```text
//!  pods --same workload, same kinds--> bundles --verdicts between kinds--> table --equal rows and columns--> ends
//!  addresses outside ------------------^                                                                      | --focus
//!                                                                                                  md, csv, dot, mermaid
//! ```

mod focus;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bulkhead_control::cache::Cache;
use bulkhead_control::object::PodName;

use super::ends::{NamedEnd, Place};
use super::kinds::{Answer, Kinds, Table};
use super::twins::Square;
use crate::args::PortProtocol;
use crate::fabric::{self, Reached};
use crate::output::some_of;
use crate::workload::Workloads;

/// A port, and whether the question is about IPv4.
type Question = (PortProtocol, bool);

/// Maximum number of pod names shown for a part of a workload.
const NAMED: usize = 3;

/// Pods of one workload with the same connections, or an external address.
#[derive(Clone, Debug, Default)]
pub(super) struct End {
    /// The pods' namespace. `None` for an external address.
    pub(super) namespace: Option<Arc<str>>,
    /// Name of the workload or pod, or the address.
    pub(super) name: String,
    /// The merged pods. Empty for an external address.
    pub(super) pods: Vec<PodName>,
    /// Whether `name` is the workload's name, not a pod's.
    is_workload: bool,
    /// Number of all pods of the workload, including those of other ends.
    of: usize,
}

impl End {
    /// Returns the end of these pods of a workload, which has `of` pods. Panics if there is no pod.
    pub(super) fn of_pods(mut pods: Vec<PodName>, workload: Option<&str>, of: usize) -> Self {
        pods.sort_unstable();
        let namespace = Some(pods[0].namespace.clone());
        // A single pod of several keeps its own name.
        let name = workload.filter(|_| pods.len() > 1 || of == 1);
        let is_workload = name.is_some();
        Self { namespace, name: name.unwrap_or(&pods[0].name).to_owned(), is_workload, pods, of }
    }

    /// Returns the name with its namespace.
    pub(super) fn path(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }

    /// Returns the number of merged pods, with pod names if `name` does not identify them. `None` for a single pod or an address.
    pub(super) fn count(&self) -> Option<String> {
        let count = match self.pods.len() {
            0 | 1 => return None,
            count if count == self.of => format!("{count} pods"),
            count => format!("{count} of {} pods", self.of),
        };
        if self.is_whole() {
            return Some(count);
        }
        let names: Vec<&str> = self.pods.iter().map(|pod| &*pod.name).collect();
        Some(format!("{count}: {}", some_of(&names, NAMED)))
    }

    /// Whether the end has all pods of its workload.
    fn is_whole(&self) -> bool {
        self.is_workload && self.pods.len() == self.of
    }

    pub(super) fn title(&self) -> String {
        match self.count() {
            Some(count) => format!("{} ({count})", self.path()),
            None => self.path(),
        }
    }

    /// Returns a name that identifies the end: `shop/web`, with the pods if these are not the whole workload.
    pub(super) fn unmistakable(&self) -> String {
        if self.is_whole() { self.path() } else { self.title() }
    }
}

/// Verdicts between two ends by port and family. `None` if the question does not apply, such as a missing family.
type Cell = [Option<Answer>];

/// The verdicts between all ends, by the indexes of source and destination. Thousands of ends have many millions of cells and few distinct
/// ones, so each distinct cell is stored once.
#[derive(Debug)]
struct Cells {
    table: Square,
    /// The distinct cells, by their number in `table`.
    distinct: Vec<Box<Cell>>,
}

impl Cells {
    /// Returns a table for this number of ends. `fill` appends the answers to all questions for one pair.
    fn new(ends: usize, mut fill: impl FnMut(usize, usize, &mut Vec<Option<Answer>>)) -> Self {
        let (mut distinct, mut numbers) = (Vec::<Box<Cell>>::new(), HashMap::<Box<Cell>, u32>::new());
        let (mut scratch, mut last) = (Vec::new(), 0);
        let table = Square::new(ends, |from, to| {
            scratch.clear();
            fill(from, to, &mut scratch);
            // Neighbors often have the same answers, and comparing is quicker than hashing.
            if distinct.get(last as usize).is_some_and(|cell| **cell == *scratch) {
                return last;
            }
            last = numbers.get(&*scratch).copied().unwrap_or_else(|| {
                let next = u32::try_from(distinct.len()).unwrap_or(u32::MAX);
                distinct.push(scratch.as_slice().into());
                numbers.insert(scratch.as_slice().into(), next);
                next
            });
            last
        });
        Self { table, distinct }
    }

    fn cell(&self, from: usize, to: usize) -> &Cell {
        &self.distinct[self.table.at(from, to) as usize]
    }
}

/// The merged connectivity matrix: ends, and the verdicts between them.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) ends: Vec<End>,
    questions: Vec<Question>,
    cells: Cells,
    /// Ends selected by --focus; all without --focus.
    in_focus: Vec<bool>,
}

#[cfg(test)]
impl Merged {
    /// Returns a table in which ends of these names reach each other at port 80.
    pub(super) fn of_names(names: &[&str]) -> Self {
        let port = PortProtocol::new(80, bulkhead_control::object::Transport::Tcp);
        let end = |name: &&str| End { namespace: Some((*name).into()), name: (*name).to_owned(), ..End::default() };
        let ends: Vec<End> = names.iter().map(end).collect();
        let yes = Answer::of(Reached::Yes);
        let cells = Cells::new(ends.len(), |from, to, answers| answers.push((from != to).then_some(yes)));
        Self { in_focus: vec![true; ends.len()], ends, questions: vec![(port, true)], cells }
    }
}

/// One verdict of the matrix, on a pair of ends, a port and a family.
pub(super) struct Line<'a> {
    pub(super) from: &'a End,
    pub(super) to: &'a End,
    pub(super) family: &'static str,
    pub(super) port: PortProtocol,
    pub(super) answer: Answer,
}

impl Merged {
    /// Computes the matrix of these ends and ports.
    pub(super) fn of(cache: &Cache, ends: &[NamedEnd], kinds: &Kinds<'_>, ports: &[PortProtocol]) -> Self {
        let workloads = Workloads::of(cache);
        let bundles = bundles(ends, kinds, &workloads);
        let families = [true, false].into_iter().filter(|&v4| ends.iter().any(|end| end.is_ipv4() == v4));
        let families: Vec<bool> = families.collect();
        let questions: Vec<_> = ports.iter().flat_map(|&port| families.iter().map(move |&v4| (port, v4))).collect();
        let tables = ports.iter().map(|&port| (port, kinds.table(port))).collect();
        let judge = Judge { kinds, tables, families };
        let cells = Cells::new(bundles.len(), |from, to, cells| judge.fill(&bundles[from], &bundles[to], cells));
        let groups = cells.table.twins(|at| bundles[at].workload, |at| bundles[at].whos.is_several);
        let sizes = sizes(&bundles);
        let ends: Vec<End> = groups.iter().map(|group| told(group, &bundles, &sizes, &workloads)).collect();
        let whos: Vec<Whos> =
            groups.iter().map(|group| Whos::of_all(group.iter().map(|&at| &bundles[at].whos))).collect();
        let cells = Cells::new(groups.len(), |from, to, answers| {
            let sample = match (from == to, groups[from].as_slice()) {
                (true, &[first, second, ..]) => cells.cell(first, second),
                _ => cells.cell(groups[from][0], groups[to][0]),
            };
            answers.extend(sample.iter().map(|answer| whos[from].given(&whos[to], (*answer)?)));
        });
        Self { in_focus: vec![true; ends.len()], ends, questions, cells }
    }

    /// Whether --focus selects only some ends.
    pub(super) fn is_focused(&self) -> bool {
        self.in_focus.contains(&false)
    }

    /// Whether the output contains connections between two ends.
    fn is_shown(&self, from: usize, to: usize) -> bool {
        self.in_focus[from] || self.in_focus[to]
    }

    /// Returns the requested ports as text, such as `80/TCP`, in the requested order.
    pub(super) fn ports(&self) -> Vec<String> {
        let mut ports: Vec<String> = self.questions.iter().map(|(port, _)| port.to_string()).collect();
        ports.dedup();
        ports
    }

    /// Whether the output contains a verdict between two ends.
    pub(super) fn is_asked(&self, from: usize, to: usize) -> bool {
        self.is_shown(from, to) && self.cells.cell(from, to).iter().any(Option::is_some)
    }

    /// Returns the allowed ports: `80/TCP`, or `80/TCP (IPv4)` if only one of two families is allowed. Adds `denial not enforced` to ports
    /// that are open only because a policy is audited, and `own node only` to ports that are open only between a pod and its own node.
    pub(super) fn services(&self, from: usize, to: usize) -> String {
        if !self.is_shown(from, to) {
            return String::new();
        }
        let asked = self.questions.iter().zip(self.cells.cell(from, to));
        let asked: Vec<_> = asked.filter_map(|(question, answer)| Some((question, (*answer)?))).collect();
        let of_ports = asked.chunk_by(|((one, _), _), ((other, _), _)| one == other);
        let services: Vec<String> = of_ports.filter_map(service).collect();
        services.join(", ")
    }

    /// Returns all verdicts: by port and family, then source, then destination.
    pub(super) fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let places = move || (0..self.ends.len()).flat_map(|from| (0..self.ends.len()).map(move |to| (from, to)));
        self.questions.iter().enumerate().flat_map(move |(at, &(port, v4))| {
            let shown = places().filter(|&(from, to)| self.is_shown(from, to));
            shown.filter_map(move |(from, to)| {
                let answer = self.cells.cell(from, to)[at]?;
                Some(Line { from: &self.ends[from], to: &self.ends[to], family: family_name(v4), port, answer })
            })
        })
    }
}

/// Returns a port with its allowed families. `None` if no family is allowed.
fn service(answers: &[(&Question, Answer)]) -> Option<String> {
    let &((port, _), first) = answers.first()?;
    if answers.iter().all(|(_, answer)| *answer == first) {
        return match remarks(first)?.as_str() {
            "" => Some(port.to_string()),
            remarks => Some(format!("{port} ({remarks})")),
        };
    }
    let in_family = |((_, v4), answer): &(&Question, Answer)| match remarks(*answer)?.as_str() {
        "" => Some(family_name(*v4).to_owned()),
        remarks => Some(format!("{}: {remarks}", family_name(*v4))),
    };
    let families: Vec<String> = answers.iter().filter_map(in_family).collect();
    Some(format!("{port} ({})", families.join(", ")))
}

/// Returns what limits an allowed connection: empty, `own node only` or `denial not enforced`. `None` if the connection is denied.
pub(super) fn remarks(Answer { elsewhere, own_node }: Answer) -> Option<String> {
    const AUDITED: &str = "denial not enforced";
    let audited = |reached| if reached == Reached::Audited { AUDITED } else { "" };
    match (elsewhere, own_node) {
        (Reached::No, Reached::No) => None,
        (Reached::No, Reached::Audited) => Some(format!("own node only, {AUDITED}")),
        (Reached::No, Reached::Yes) => Some("own node only".into()),
        (elsewhere, _) => Some(audited(elsewhere).into()),
    }
}

const fn family_name(is_ipv4: bool) -> &'static str {
    if is_ipv4 { "IPv4" } else { "IPv6" }
}

/// A pod or an external address, with all its addresses.
struct Unit<'a> {
    /// The end of the first address.
    end: &'a NamedEnd,
    /// The kinds of all addresses.
    kinds: Vec<usize>,
}

impl Unit<'_> {
    fn pod(&self) -> Option<&PodName> {
        match &self.end.end {
            fabric::End::Pod { name, .. } => Some(name),
            fabric::End::Node { .. } | fabric::End::External(_) => None,
        }
    }
}

/// Pods of one workload that no rule distinguishes, or one external address.
struct Bundle<'a> {
    workload: Option<usize>,
    units: Vec<Unit<'a>>,
    whos: Whos,
}

/// The identities of a group's ends. They decide which pairs of two groups are pairs of different ends.
pub(super) struct Whos {
    place: Place,
    /// Number of one of the ends, see [`NamedEnd::who`].
    first: u32,
    /// Whether the group has different ends.
    is_several: bool,
    /// The nodes of the ends. Empty for an external address.
    nodes: BTreeSet<u32>,
}

impl Whos {
    pub(super) fn of(end: &NamedEnd) -> Self {
        Self { place: end.place, first: end.who, is_several: false, nodes: end.node.into_iter().collect() }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.is_several |= other.is_several || other.first != self.first;
        self.nodes.extend(&other.nodes);
    }

    /// Panics if there are none.
    fn of_all<'a>(mut all: impl Iterator<Item = &'a Self>) -> Self {
        let Self { place, first, is_several, nodes } = all.next().expect("a group has a member");
        let mut whos = Self { place: *place, first: *first, is_several: *is_several, nodes: nodes.clone() };
        all.for_each(|other| whos.add(other));
        whos
    }

    /// Returns what the answer says about the pairs of two groups that exist. `None` if both are the same end.
    pub(super) fn given(&self, other: &Self, answer: Answer) -> Option<Answer> {
        if !self.is_several && !other.is_several && self.first == other.first {
            return None;
        }
        if answer.own_node == answer.elsewhere {
            return Some(answer);
        }
        let is_elsewhere = self.nodes.len() > 1 || self.nodes != other.nodes;
        let is_own = self.nodes.intersection(&other.nodes).next().is_some();
        Some(match (is_elsewhere, is_own) {
            (true, true) => answer,
            (true, false) => Answer::of(answer.elsewhere),
            (false, _) => Answer::of(answer.own_node),
        })
    }
}

fn bundles<'a>(ends: &'a [NamedEnd], kinds: &Kinds<'_>, workloads: &Workloads) -> Vec<Bundle<'a>> {
    let mut places: HashMap<(usize, Vec<usize>), usize> = HashMap::new();
    let mut bundles: Vec<Bundle<'a>> = Vec::new();
    let mut first = 0;
    for of_one in ends.chunk_by(|one, other| one.name == other.name) {
        let mut its: Vec<usize> = (first..first + of_one.len()).map(|at| kinds.of_end(at)).collect();
        its.sort_unstable();
        first += of_one.len();
        let unit = Unit { end: &of_one[0], kinds: its };
        let workload = unit.pod().and_then(|pod| workloads.of_pod(pod));
        let next = bundles.len();
        let at = workload.map_or(next, |workload| *places.entry((workload, unit.kinds.clone())).or_insert(next));
        let whos = Whos::of(unit.end);
        match bundles.get_mut(at) {
            Some(bundle) => {
                bundle.whos.add(&whos);
                bundle.units.push(unit);
            }
            None => bundles.push(Bundle { workload, units: vec![unit], whos }),
        }
    }
    bundles
}

/// Answers the questions about pairs of bundles.
struct Judge<'a> {
    kinds: &'a Kinds<'a>,
    /// The answers at each port.
    tables: Vec<(PortProtocol, Table)>,
    /// The families in question, IPv4 first.
    families: Vec<bool>,
}

impl Judge<'_> {
    /// Appends the answers to all questions.
    fn fill(&self, from: &Bundle<'_>, to: &Bundle<'_>, answers: &mut Vec<Option<Answer>>) {
        for (port, table) in &self.tables {
            let answer = |&v4: &bool| self.answer(table, v4, from, to).filter(|_| port.is_of_family(v4));
            answers.extend(self.families.iter().map(answer));
        }
    }

    /// Returns the lowest answer over the address pairs of a family. `None` if there is no such pair.
    fn answer(&self, table: &Table, v4: bool, from: &Bundle<'_>, to: &Bundle<'_>) -> Option<Answer> {
        let pairs =
            from.units[0].kinds.iter().flat_map(|&one| to.units[0].kinds.iter().map(move |&other| (one, other)));
        let asked = pairs.filter(|&(one, other)| self.kinds.is_ipv4(one) == v4 && self.kinds.are_askable(one, other));
        asked.map(|(one, other)| table.answer(one, other)).reduce(Answer::min)
    }
}

/// Returns the number of pods by workload.
fn sizes(bundles: &[Bundle<'_>]) -> HashMap<usize, usize> {
    let mut sizes = HashMap::new();
    for bundle in bundles {
        if let Some(workload) = bundle.workload {
            *sizes.entry(workload).or_default() += bundle.units.len();
        }
    }
    sizes
}

fn told(group: &[usize], bundles: &[Bundle<'_>], sizes: &HashMap<usize, usize>, workloads: &Workloads) -> End {
    let units = || group.iter().flat_map(|&at| &bundles[at].units);
    let pods: Vec<PodName> = units().filter_map(|unit| unit.pod().cloned()).collect();
    if pods.is_empty() {
        let name = units().next().map_or_else(String::new, |unit| unit.end.name.clone());
        return End { name, ..End::default() };
    }
    let workload = bundles[group[0]].workload;
    let of = workload.and_then(|workload| sizes.get(&workload)).copied().unwrap_or(pods.len());
    End::of_pods(pods, workload.and_then(|at| workloads.name(at)), of)
}
