//! Collects what candidates cover on an axis, and cuts it ([`super::sweep`]) into classes, each with a row of bits or a list.
//!
//! ```text
//!   candidate's intervals --group of equal ones--> events --sweep--> pieces, classes --members of the groups--> rows, lists
//! ```
//!
//! Structures that intersect bits use rows; those that search each class separately use lists. If few of many rules cover a point, lists
//! are orders of magnitude smaller: 250 pods with 800 rules each take 200,000 numbers, or 251 rows of 200,000 bits.

use std::collections::HashMap;

use ahash::RandomState;

use super::Axes;
use super::address::Address;
use super::axis::{Axis, Classed};
use super::plan::Entry;
use super::ports::Ports;
use super::rules::{LiveRules, port_interval};
use super::sweep::{Bounds, Covering, Event, Lists, Pieces, Sets, Sweep};
use crate::simd::Chunk;
use crate::{BuildError, BuildOptions};

/// The rows of an axis: for each class, a bit for each candidate that covers it, in `words` words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) words: usize,
    pub(crate) bits: Vec<u64>,
}

impl Rows {
    pub(crate) fn classes(&self) -> usize {
        self.bits.len() / self.words
    }

    /// Returns the rows of all four axes, axis after axis, divided into chunks of 512 bits.
    pub(crate) fn chunks(all: &[Self; 4]) -> Vec<Chunk> {
        let chunk = |words: &[u64]| Chunk(words.try_into().expect("chunks of eight"));
        all.iter().flat_map(|rows| rows.bits.chunks_exact(8)).map(chunk).collect()
    }

    /// Replaces each class number by the index of its row's first chunk, or of its row's word if rows have one word. The rows of the four axes
    /// follow each other.
    pub(crate) fn number<A: Address>(all: &[Self; 4], axes: &mut Axes<A>) {
        let number = |count: usize| u32::try_from(count).expect("the bounds on bytes keep it small");
        let mut next = 0;
        let places = all.each_ref().map(|rows| {
            let (begin, each) = (next, rows.words.div_ceil(8));
            next += rows.classes() * each;
            (number(begin), number(each))
        });
        axes.renumber(places.map(|(begin, each)| move |class| begin + class * each));
    }

    pub(crate) fn row(&self, class: usize) -> &[u64] {
        &self.bits[class * self.words..][..self.words]
    }
}

/// The candidates of each group of equal intervals, ascending.
struct Members {
    /// Index of each group's first member in `candidates`, and the end of the last group.
    starts: Vec<usize>,
    candidates: Vec<u32>,
    /// Whether each candidate is its own group with the same number.
    is_each: bool,
}

impl Members {
    /// Makes the groups from pairs of a group's number and the number of a candidate in it.
    fn new(groups: usize, mut members: Vec<(u32, u32)>) -> Self {
        members.sort_unstable();
        let mut starts = vec![0; groups + 1];
        members.iter().for_each(|&(group, _)| starts[group as usize + 1] += 1);
        for group in 0..groups {
            starts[group + 1] += starts[group];
        }
        let is_each = members.len() == groups && members.iter().all(|(group, candidate)| group == candidate);
        Self { starts, candidates: members.into_iter().map(|(_, candidate)| candidate).collect(), is_each }
    }

    fn of(&self, group: u32) -> &[u32] {
        &self.candidates[self.starts[group as usize]..self.starts[group as usize + 1]]
    }

    /// Sets the bits of a group's candidates in a row.
    fn set(&self, group: u32, row: &mut [u64]) {
        self.of(group).iter().for_each(|&bit| row[bit as usize / 64] |= 1 << (bit % 64));
    }
}

/// Receives the sets that a sweep finds, and writes each as a row of bits.
struct ToRows {
    rows: Rows,
    /// The bits of the candidates that cover the whole axis, which the sweep leaves out: in every row.
    always: Vec<u64>,
    members: Members,
    max_classes: usize,
}

impl Sets for ToRows {
    fn keep(&mut self, covering: &Covering) -> Option<()> {
        let Self { rows: Rows { words, bits }, always, members, max_classes } = self;
        let begin = bits.len();
        if begin / *words == *max_classes {
            return None;
        }
        bits.extend_from_slice(always);
        let row = &mut bits[begin..];
        if members.is_each {
            row.iter_mut().zip(covering.words()).for_each(|(word, covering)| *word |= covering);
        } else {
            covering.each(|group| members.set(group, row));
        }
        Some(())
    }
}

/// Receives the sets that a sweep finds, and writes each as a list of candidates.
struct ToLists {
    lists: Lists,
    members: Members,
}

impl Sets for ToLists {
    fn keep(&mut self, covering: &Covering) -> Option<()> {
        let (members, mut len) = (&self.members, 0);
        covering.each(|group| len += members.of(group).len());
        self.lists.add(len, |items| {
            let begin = items.len();
            covering.each(|group| items.extend_from_slice(members.of(group)));
            items[begin..].sort_unstable();
        })
    }
}

/// The intervals that each candidate covers on one axis.
///
/// Candidates with the same intervals form one group: a hundred rules about the same 100,000 pods cost as much as one.
#[derive(Clone, Debug)]
pub(crate) struct Cover<A> {
    events: Vec<Event<A>>,
    /// For each candidate: the number of its group, and the candidate's own number.
    members: Vec<(u32, u32)>,
    /// Maps intervals that were added earlier to the number of their group.
    groups: HashMap<Shared<A>, u32, RandomState>,
    count: u32,
    /// The groups whose intervals cover the whole axis.
    always: Vec<u32>,
}

/// The property that makes candidates members of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shared<A> {
    /// The memory address and the length of the slice with their intervals.
    Slice(usize, usize),
    Interval(A, A),
    /// The number of a tuple, which is a group of its own because its intervals are added one by one.
    Tuple(u32),
}

impl<A: Address> Cover<A> {
    pub(crate) fn new() -> Self {
        let (events, members, always) = (Vec::new(), Vec::new(), Vec::new());
        Self { events, members, groups: HashMap::default(), count: 0, always }
    }

    /// Adds a candidate that covers these intervals, which neither overlap nor touch. The slice must stay in memory until the axis is cut.
    pub(crate) fn add_set(&mut self, candidate: u32, intervals: &[(A, A)]) {
        let group = match intervals {
            &[(first, last)] => self.group(Shared::Interval(first, last)),
            _ => self.group(Shared::Slice(intervals.as_ptr().addr(), intervals.len())),
        };
        if group.1 {
            intervals.iter().for_each(|&interval| self.cover(group.0, interval));
        }
        self.members.push((group.0, candidate));
    }

    /// Adds an interval of a candidate. Its intervals may overlap.
    pub(crate) fn add(&mut self, candidate: u32, first: A, last: A) {
        let (group, is_new) = self.group(Shared::Tuple(candidate));
        if is_new {
            self.members.push((group, candidate));
        }
        self.cover(group, (first, last));
    }

    /// Returns the number of the group with these intervals, and whether the group was created by this call.
    fn group(&mut self, shared: Shared<A>) -> (u32, bool) {
        let group = *self.groups.entry(shared).or_insert(self.count);
        let is_new = group == self.count;
        self.count += u32::from(is_new);
        (group, is_new)
    }

    fn cover(&mut self, group: u32, (first, last): (A, A)) {
        if first == A::ZERO && last == A::LAST {
            self.always.push(group);
        } else {
            self.events.extend(Event::of(group, (first, last)));
        }
    }

    /// Cuts the axis. `sets` may remove groups that it handles by itself from those that cover the whole axis.
    fn cut<S: Sets>(
        mut self,
        sets: impl FnOnce(Members, &mut Vec<u32>) -> S,
        options: &BuildOptions<'_>,
    ) -> Result<Option<(Pieces<A>, S)>, BuildError> {
        options.proceed()?;
        let sets = sets(Members::new(self.count as usize, self.members), &mut self.always);
        let mut sweep = Sweep::new(self.count as usize, sets);
        let mut pieces = Pieces::new();
        let is_whole = sweep.cut(&self.always, &mut self.events, &mut pieces, options)?;
        Ok(is_whole.then(|| (pieces, sweep.into_sets())))
    }

    /// Cuts the axis. Returns its pieces and the row of each class. `None` if there are more classes than `max_classes`.
    pub(crate) fn rows(
        self,
        words: usize,
        max_classes: usize,
        options: &BuildOptions<'_>,
    ) -> Result<Option<(Classed<A>, Rows)>, BuildError> {
        let to_rows = |members: Members, groups: &mut Vec<u32>| {
            let mut always = vec![0; words];
            groups.drain(..).for_each(|group| members.set(group, &mut always));
            ToRows { rows: Rows { words, bits: Vec::new() }, always, members, max_classes }
        };
        Ok(self.cut(to_rows, options)?.map(|(pieces, sets)| (pieces.classed(), sets.rows)))
    }

    /// Cuts the axis. Returns its pieces and the list of each class's candidates. `None` if the lists exceed `bounds`.
    pub(crate) fn lists(
        self,
        bounds: Bounds,
        options: &BuildOptions<'_>,
    ) -> Result<Option<(Pieces<A>, Lists)>, BuildError> {
        let to_lists = |members, _: &mut Vec<u32>| ToLists { lists: Lists::new(bounds), members };
        Ok(self.cut(to_lists, options)?.map(|(pieces, sets)| (pieces, sets.lists)))
    }
}

/// The four axes, and for each axis the rows of its classes.
type Cut<A> = (Axes<A>, [Rows; 4]);

/// The intervals that each candidate covers on each of the four axes.
pub(crate) struct Covers<A> {
    src: Cover<A>,
    dst: Cover<A>,
    service: Cover<u32>,
    src_port: Cover<u32>,
    words: usize,
    last_service: u32,
}

impl<A: Address> Covers<A> {
    pub(crate) fn new(words: usize, last_service: u32) -> Self {
        Self {
            last_service,
            src: Cover::new(),
            dst: Cover::new(),
            service: Cover::new(),
            src_port: Cover::new(),
            words,
        }
    }

    pub(crate) fn add_rule(&mut self, bit: u32, live: &LiveRules<'_, A>, rule: usize) {
        let rule = &live.rules[rule];
        self.src.add_set(bit, rule.src);
        self.dst.add_set(bit, rule.dst);
        self.service.add_set(bit, live.services(rule));
        self.src_port.add_set(bit, &[port_interval(rule.src_ports)]);
    }

    pub(crate) fn add_entry(&mut self, bit: u32, entry: &Entry<A>) {
        let (src, dst) = (entry.src, entry.dst);
        self.src.add(bit, src.0, src.0 ^ !A::mask(src.1));
        self.dst.add(bit, dst.0, dst.0 ^ !A::mask(dst.1));
        self.service.add(bit, entry.service.0, entry.service.1);
        let (first, last) = port_interval(entry.src_ports);
        self.src_port.add(bit, first, last);
    }

    /// Returns the axes and their rows. `None` if an axis has more classes than `max_classes`, or the classes have more combinations than
    /// `max_cells`.
    pub(crate) fn cut(
        self,
        max_classes: usize,
        max_cells: usize,
        options: &BuildOptions<'_>,
    ) -> Result<Option<Cut<A>>, BuildError> {
        let words = self.words;
        let mut left = max_cells;
        let Some((src_port, d)) = self.src_port.rows(words, max_classes.min(left), options)? else { return Ok(None) };
        left /= d.classes();
        let Some((service, c)) = self.service.rows(words, max_classes.min(left), options)? else { return Ok(None) };
        left /= c.classes();
        let Some((src, a)) = self.src.rows(words, max_classes.min(left), options)? else { return Ok(None) };
        left /= a.classes();
        let Some((dst, b)) = self.dst.rows(words, max_classes.min(left), options)? else { return Ok(None) };
        let axes = Axes {
            src: Axis::new(src),
            dst: Axis::new(dst),
            service: Ports::new(&service, self.last_service),
            src_port: Ports::new(&src_port, u32::from(u16::MAX)),
        };
        Ok(Some((axes, [a, b, c, d])))
    }
}
