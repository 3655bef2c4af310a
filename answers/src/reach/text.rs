//! The matrix as text: pod by pod if all fit a screen, else by groups of pods that connect alike.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use bulkhead_control::cache::Cache;

use super::NAMED_COLUMNS;
use super::ends::{NamedEnd, askable, family};
use super::kinds::{Answer, Kinds, Table};
use super::merged::{Whos, remarks};
use super::names::{NameList, Names, without};
use crate::args::PortProtocol;
use crate::fabric::Reached;
use crate::output;

/// Spaces between columns of the matrix.
const LABEL_GAP: usize = 1;

/// Maximum number of ends that are shown one by one: that many rows and columns fit a screen.
const SCREEN: usize = 50;

/// Writes the answers at all ports, by family. With `all`, lists every pod.
pub(super) fn write(
    cache: &Cache,
    ends: &[NamedEnd],
    kinds: &Kinds<'_>,
    ports: &[PortProtocol],
    all: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut legend = Legend::default();
    let families = [true, false].map(|v4| -> (Vec<&NamedEnd>, Vec<usize>) {
        let of_family = ends.iter().enumerate().filter(|(_, end)| end.is_ipv4() == v4);
        of_family.map(|(at, end)| (end, kinds.of_end(at))).unzip()
    });
    let names = families.each_ref().map(|(ends, _)| (!all && ends.len() > SCREEN).then(|| Names::of(cache, ends)));
    for (at, &port) in ports.iter().enumerate() {
        let table = kinds.table(port);
        for ((ends, kinds_of), names) in families.iter().zip(&names).filter(|((ends, _), _)| is_asked(port, ends)) {
            if at > 0 || !ends[0].is_ipv4() {
                writeln!(out)?;
            }
            write!(out, "{} {} over {}", port.protocol, port.number(), family(ends[0].end.address()))?;
            match names {
                None => matrix((ends, kinds_of), &table, &mut legend, out)?,
                Some(names) => {
                    legend.has_groups = true;
                    groups(&Grouped::of((ends, kinds_of), kinds, &table), names, out)?;
                }
            }
        }
    }
    legend.write(out)
}

/// Whether there are ends of one family, and its packets can have the protocol.
fn is_asked(port: PortProtocol, ends: &[&NamedEnd]) -> bool {
    ends.first().is_some_and(|end| port.is_of_family(end.is_ipv4()))
}

/// What the answers need to be explained below them.
#[derive(Default)]
struct Legend {
    has_matrix: bool,
    has_audited: bool,
    has_unasked: bool,
    has_groups: bool,
}

impl Legend {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        if self.has_matrix {
            let audited =
                if self.has_audited { "   a allowed, because a policy is audited and not enforced" } else { "" };
            let unasked =
                if self.has_unasked { "   - neither is a pod, so that policy does not concern it" } else { "" };
            writeln!(out, "\n. allowed   X denied   # the same end{unasked}{audited}")?;
        }
        if self.has_groups {
            writeln!(
                out,
                "\nWhat a line does not name is denied. `-o csv` lists all workloads, `--all` draws the matrix of all pods."
            )?;
        }
        Ok(())
    }
}

/// Writes the matrix of one port. Ends are given with their kinds.
fn matrix(
    (ends, kinds): (&[&NamedEnd], &[usize]),
    table: &Table,
    legend: &mut Legend,
    out: &mut impl Write,
) -> io::Result<()> {
    legend.has_matrix = true;
    writeln!(out, ": rows connect to columns")?;
    let names: Vec<String> = ends.iter().map(|end| output::printable(&end.name)).collect();
    let label = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    // Put the names above the columns if they fit a screen. Otherwise columns have one character, in the order of the rows.
    let wide = names.len() <= NAMED_COLUMNS;
    if wide {
        write!(out, "{:label$}", "")?;
        for name in &names {
            write!(out, "{:LABEL_GAP$}{name}", "")?;
        }
        writeln!(out)?;
    } else {
        writeln!(out, "columns are in the same order as rows")?;
    }
    let mut row = String::with_capacity(ends.len() + 1);
    for ((from, &kind), name) in ends.iter().zip(kinds).zip(&names) {
        row.clear();
        for ((to, &of), column) in ends.iter().zip(kinds).zip(&names) {
            let cell = match askable(from, to).then(|| table.answer(kind, of).between(from, to)) {
                None if from.is_same(to) => '#',
                None => '-',
                Some(Reached::Yes) => '.',
                Some(Reached::Audited) => 'a',
                Some(Reached::No) => 'X',
            };
            legend.has_audited |= cell == 'a';
            legend.has_unasked |= cell == '-';
            if wide {
                row.push_str(&format!("{:LABEL_GAP$}{cell:^width$}", "", width = column.chars().count()));
            } else {
                row.push(cell);
            }
        }
        writeln!(out, "{name:<label$}{}{row}", if wide { "" } else { " " })?;
    }
    Ok(())
}

/// Ends of one family, grouped by equal rows as sources and by equal columns as destinations.
pub(super) struct Grouped {
    pub(super) sources: Vec<Group>,
    destinations: Vec<Group>,
    /// The destination of each end, by the ends' indexes.
    destination_of: Vec<usize>,
    /// The answers between a source and a destination, by their indexes. `None` if both are outside or of one end.
    answers: Vec<Vec<Option<Answer>>>,
    /// Number of ends.
    count: usize,
}

pub(super) struct Group {
    /// Ascending indexes of the ends.
    pub(super) ends: Vec<usize>,
    /// One of their kinds.
    kind: usize,
    whos: Whos,
}

impl Grouped {
    pub(super) fn of((ends, kinds_of): (&[&NamedEnd], &[usize]), kinds: &Kinds<'_>, table: &Table) -> Self {
        let mut used: Vec<usize> = kinds_of.to_vec();
        used.sort_unstable();
        used.dedup();
        let answer = |from, to| kinds.are_askable(from, to).then(|| table.answer(from, to));
        let group = |look: &dyn Fn(usize) -> Vec<Option<Answer>>| -> Vec<Group> {
            let mut by_look: HashMap<Vec<Option<Answer>>, usize> = HashMap::new();
            let of_kinds: HashMap<usize, usize> = used
                .iter()
                .map(|&kind| {
                    let next = by_look.len();
                    (kind, *by_look.entry(look(kind)).or_insert(next))
                })
                .collect();
            let mut groups: BTreeMap<usize, Group> = BTreeMap::new();
            for (at, (end, &kind)) in ends.iter().zip(kinds_of).enumerate() {
                let whos = Whos::of(end);
                match groups.get_mut(&of_kinds[&kind]) {
                    Some(group) => {
                        group.ends.push(at);
                        group.whos.add(&whos);
                    }
                    None => drop(groups.insert(of_kinds[&kind], Group { ends: vec![at], kind, whos })),
                }
            }
            let mut groups: Vec<Group> = groups.into_values().collect();
            groups.sort_unstable_by_key(|group| group.ends[0]);
            groups
        };
        let destinations = group(&|to| used.iter().map(|&from| answer(from, to)).collect());
        // Destinations of one group have equal cells in every row.
        let sources = group(&|from| destinations.iter().map(|to| answer(from, to.kind)).collect());
        let answers = sources.iter().map(|from| {
            let given = |to: &Group| from.whos.given(&to.whos, answer(from.kind, to.kind)?);
            destinations.iter().map(given).collect()
        });
        let answers = answers.collect();
        let mut destination_of = vec![0; ends.len()];
        for (number, group) in destinations.iter().enumerate() {
            group.ends.iter().for_each(|&end| destination_of[end] = number);
        }
        Self { answers, sources, destinations, destination_of, count: ends.len() }
    }

    /// Returns the answers to a source, each with the ascending indexes of the ends that get it. `None` for those that connections of the source cannot concern.
    pub(super) fn by_answer(&self, source: usize) -> BTreeMap<Option<Answer>, Vec<usize>> {
        let mut ends: BTreeMap<Option<Answer>, Vec<usize>> = BTreeMap::new();
        for (end, &to) in self.destination_of.iter().enumerate() {
            ends.entry(self.answers[source][to]).or_default().push(end);
        }
        ends
    }
}

/// Writes one line per group of sources with equal rows.
fn groups(grouped: &Grouped, names: &Names<'_>, out: &mut impl Write) -> io::Result<()> {
    let (sources, destinations) = (grouped.sources.len(), grouped.destinations.len());
    writeln!(out, ": {} ends, {sources} groups of sources, {destinations} of destinations", grouped.count)?;
    for (at, group) in grouped.sources.iter().enumerate() {
        let by_answer = grouped.by_answer(at);
        let unasked = by_answer.get(&None).map_or(&[][..], Vec::as_slice);
        let told = by_answer.iter().rev().filter_map(|(&answer, ends)| {
            let remarks = remarks(answer?)?;
            let names = match remarks.is_empty() {
                true => shortest(names, ends, unasked, grouped.count),
                false => names.told(ends),
            };
            Some(if remarks.is_empty() { names.text() } else { format!("{} ({remarks})", names.text()) })
        });
        let told: Vec<String> = told.collect();
        let told = if told.is_empty() { "nobody".to_owned() } else { told.join("; ") };
        writeln!(out, "{} -> {told}", names.told(&group.ends).text())?;
    }
    Ok(())
}

/// Names ends, or all but those that are missing if these have fewer names. `unasked` may be among them or not.
fn shortest(names: &Names<'_>, ends: &[usize], unasked: &[usize], count: usize) -> NameList {
    let mut there: Vec<usize> = ends.iter().chain(unasked).copied().collect();
    there.sort_unstable();
    let missing: Vec<usize> = without(count, &there).collect();
    let mut forms = vec![names.told(ends)];
    if !unasked.is_empty() {
        forms.push(names.told(&there));
    }
    if missing.len() < ends.len() {
        let mut missing = names.told(&missing);
        missing.prefix("everyone except ", "everyone");
        forms.push(missing);
    }
    forms.into_iter().min_by_key(|names| names.count).unwrap_or_default()
}
