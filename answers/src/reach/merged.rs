//! The connectivity matrix with identical pods of a workload merged.
//!
//! ```text
//!  pods --same workload, same classes--> bundles --verdicts between samples--> table --equal rows and columns--> ends
//!  addresses outside --------------------^                                                                        | --focus
//!                                                                                                    md, csv, dot, mermaid
//! ```
//! Verdicts come from [`Reachability`](bulkhead_control::reachability::Reachability) and are computed once per pair of groups instead of
//! once per pair of pods. If policies are audited, a second [`Reachability`](bulkhead_control::reachability::Reachability) enforces them
//! all for comparison.

mod judge;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::bail;
use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::source::nearest_word;

use self::judge::{Bundle, Judge, Question, States, bundles};
use super::NamedEnd;
use crate::args::PortProtocol;
use crate::fabric::Reached;
use crate::output::some_of;
use crate::workload::Workloads;

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

    fn is_called(&self, name: &str) -> bool {
        self.namespace.as_deref() == Some(name)
            || self.path() == name
            || self.pods.iter().any(|pod| pod.to_string() == name)
    }
}

/// Verdicts between two ends by port and family. `None` if the question does not apply, such as a missing family.
type Cell = [Option<Reached>];

/// Cells by source, then destination. One allocation: a table of thousands of ends has many millions of cells.
#[derive(Debug)]
struct Table {
    ends: usize,
    questions: usize,
    cells: Vec<Option<Reached>>,
}

impl Table {
    /// Returns a table for these ends. `fill` appends the answers to all questions for one pair.
    fn new(ends: usize, questions: usize, mut fill: impl FnMut(usize, usize, &mut Vec<Option<Reached>>)) -> Self {
        let mut cells = Vec::with_capacity(ends * ends * questions);
        for from in 0..ends {
            for to in 0..ends {
                fill(from, to, &mut cells);
                debug_assert_eq!(cells.len(), (from * ends + to + 1) * questions, "an answer to each question");
            }
        }
        Self { ends, questions, cells }
    }

    fn cell(&self, from: usize, to: usize) -> &Cell {
        let first = (from * self.ends + to) * self.questions;
        &self.cells[first..first + self.questions]
    }
}

/// The merged connectivity matrix: ends, and the verdicts between them.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) ends: Vec<End>,
    questions: Vec<Question>,
    table: Table,
    /// Ends selected by --focus; all without --focus.
    in_focus: Vec<bool>,
}

#[cfg(test)]
impl Merged {
    /// Returns a table in which ends of these names reach each other at port 80.
    pub(super) fn of_names(names: &[&str]) -> Self {
        let port = PortProtocol { port: 80, transport: bulkhead_control::object::Transport::Tcp };
        let end = |name: &&str| End { namespace: Some((*name).into()), name: (*name).to_owned(), ..End::default() };
        let ends: Vec<End> = names.iter().map(end).collect();
        let table = Table::new(ends.len(), 1, |from, to, cells| cells.push((from != to).then_some(Reached::Yes)));
        Self { in_focus: vec![true; ends.len()], ends, questions: vec![(port, true)], table }
    }
}

/// One verdict of the matrix, on a pair of ends, a port and a family.
pub(super) struct Line<'a> {
    pub(super) from: &'a End,
    pub(super) to: &'a End,
    pub(super) family: &'static str,
    pub(super) port: PortProtocol,
    pub(super) reached: Reached,
}

impl Merged {
    /// Computes the matrix of these ends and ports. `pipeline` must make no tables: see [`Pipeline::without_tables`].
    pub(super) fn of(mut pipeline: Pipeline, ends: &[NamedEnd], ports: &[PortProtocol]) -> anyhow::Result<Self> {
        let states = States::of(&mut pipeline)?;
        let workloads = Workloads::of(pipeline.cache());
        let bundles = bundles(ends, &states, &workloads);
        let families = [true, false].into_iter().filter(|&v4| ends.iter().any(|end| end.end.address().is_ipv4() == v4));
        let families: Vec<bool> = families.collect();
        let questions: Vec<_> = ports.iter().flat_map(|&port| families.iter().map(move |&v4| (port, v4))).collect();
        let judge = Judge::new(&states, &questions);
        let table = Table::new(bundles.len(), questions.len(), |from, to, cells| {
            judge.fill(&bundles[from], &bundles[to], cells);
        });
        let groups = twins(&bundles, &table);
        let sizes = sizes(&bundles);
        let ends: Vec<End> = groups.iter().map(|group| told(group, &bundles, &sizes, &workloads)).collect();
        let table = Table::new(groups.len(), questions.len(), |from, to, cells| {
            let (from, to) = match (from == to, groups[from].as_slice()) {
                // Compare two pods: of one group if the first has two, else of two groups.
                (true, &[first, second, ..]) if bundles[first].units.len() < 2 => (first, second),
                _ => (groups[from][0], groups[to][0]),
            };
            cells.extend_from_slice(table.cell(from, to));
        });
        Ok(Self { in_focus: vec![true; ends.len()], ends, questions, table })
    }

    /// Restricts the output to connections of the named ends or namespaces.
    ///
    /// # Errors
    /// If a name matches no end.
    pub(super) fn focus(&mut self, names: &[String]) -> anyhow::Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            if !self.ends.iter().any(|end| end.is_called(name)) {
                bail!(
                    "--focus {name}: no namespace, workload, pod or address has this name\n  help: {}",
                    self.meant(name)
                );
            }
        }
        let in_focus: Vec<bool> = self.ends.iter().map(|end| names.iter().any(|name| end.is_called(name))).collect();
        let passes =
            |from: usize, to: usize| self.table.cell(from, to).iter().flatten().any(|reached| *reached != Reached::No);
        let talks = |at: usize| (0..self.ends.len()).any(|of| in_focus[of] && (passes(at, of) || passes(of, at)));
        let kept: Vec<usize> = (0..self.ends.len()).filter(|&at| in_focus[at] || talks(at)).collect();
        let table = Table::new(kept.len(), self.questions.len(), |from, to, cells| {
            cells.extend_from_slice(self.table.cell(kept[from], kept[to]));
        });
        *self = Self {
            ends: kept.iter().map(|&at| self.ends[at].clone()).collect(),
            in_focus: kept.iter().map(|&at| in_focus[at]).collect(),
            table,
            questions: std::mem::take(&mut self.questions),
        };
        Ok(())
    }

    /// Returns a hint for an unknown name: the most similar known name, else the expected form.
    fn meant(&self, name: &str) -> String {
        let namespaces = self.ends.iter().filter_map(|end| end.namespace.as_ref().map(ToString::to_string));
        let pods = self.ends.iter().flat_map(|end| end.pods.iter().map(ToString::to_string));
        let known: Vec<String> = namespaces.chain(self.ends.iter().map(End::path)).chain(pods).collect();
        match nearest_word(name, known.iter().map(String::as_str)) {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None => "write NAMESPACE, or NAMESPACE/NAME of a workload or pod".into(),
        }
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
        self.is_shown(from, to) && self.table.cell(from, to).iter().any(Option::is_some)
    }

    /// Returns the allowed ports: `80/TCP`, or `80/TCP (IPv4)` if only one of two families is allowed. Adds `denial not enforced` to ports
    /// that are open only because a policy is audited.
    pub(super) fn services(&self, from: usize, to: usize) -> String {
        if !self.is_shown(from, to) {
            return String::new();
        }
        let asked = self.questions.iter().zip(self.table.cell(from, to));
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
                let reached = self.table.cell(from, to)[at]?;
                Some(Line { from: &self.ends[from], to: &self.ends[to], family: family_name(v4), port, reached })
            })
        })
    }
}

/// Returns a port with its allowed families. `None` if no family is allowed.
fn service(answers: &[(&Question, Reached)]) -> Option<String> {
    const BESIDE: &str = "denial not enforced";
    let &((port, _), first) = answers.first()?;
    if answers.iter().all(|(_, reached)| *reached == first) {
        return match first {
            Reached::No => None,
            Reached::Audited => Some(format!("{port} ({BESIDE})")),
            Reached::Yes => Some(port.to_string()),
        };
    }
    let in_family = |((_, v4), reached): &(&Question, Reached)| match reached {
        Reached::No => None,
        Reached::Audited => Some(format!("{}: {BESIDE}", family_name(*v4))),
        Reached::Yes => Some(family_name(*v4).to_owned()),
    };
    let families: Vec<String> = answers.iter().filter_map(in_family).collect();
    Some(format!("{port} ({})", families.join(", ")))
}

const fn family_name(is_ipv4: bool) -> &'static str {
    if is_ipv4 { "IPv4" } else { "IPv6" }
}

/// Returns groups of bundle indexes of one workload with equal rows and columns. This is an equivalence relation, so the first of each
/// group represents all.
fn twins(bundles: &[Bundle<'_>], table: &Table) -> Vec<Vec<usize>> {
    let are_twins = |one: usize, other: usize| {
        let among = table.cell(one, other);
        let own = |at: usize| bundles[at].units.len() < 2 || table.cell(at, at) == among;
        let third = |at: &usize| *at != one && *at != other;
        among == table.cell(other, one)
            && own(one)
            && own(other)
            && (0..bundles.len())
                .filter(third)
                .all(|at| table.cell(one, at) == table.cell(other, at) && table.cell(at, one) == table.cell(at, other))
    };
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut of_workload: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, bundle) in bundles.iter().enumerate() {
        let Some(workload) = bundle.workload else {
            groups.push(vec![at]);
            continue;
        };
        let known = of_workload.entry(workload).or_default();
        match known.iter().find(|&&group| are_twins(groups[group][0], at)) {
            Some(&group) => groups[group].push(at),
            None => {
                known.push(groups.len());
                groups.push(vec![at]);
            }
        }
    }
    groups
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
    let mut pods: Vec<PodName> = units().filter_map(|unit| unit.pod().cloned()).collect();
    pods.sort_unstable();
    let Some(first) = pods.first() else {
        let name = units().next().map_or_else(String::new, |unit| unit.ends[0].0.name.clone());
        return End { name, ..End::default() };
    };
    let workload = bundles[group[0]].workload;
    let of = workload.and_then(|workload| sizes.get(&workload)).copied().unwrap_or(pods.len());
    let namespace = Some(first.namespace.clone());
    // A single pod of several keeps its own name.
    let name = workload.and_then(|at| workloads.name(at)).filter(|_| pods.len() > 1 || of == 1);
    let is_workload = name.is_some();
    End { namespace, name: name.unwrap_or(&first.name).to_owned(), is_workload, pods, of }
}
