//! Cuts an axis where the set of candidates that cover it changes, and gives each set its row.
//!
//! ```text
//!   candidate's intervals --group of equal ones--> events --sorted--> sweep --> pieces, classes, rows
//! ```

use ahash::RandomState;
use std::collections::HashMap;

use super::Axes;
use super::address::Address;
use super::axis::{Axis, Classed};
use super::plan::Entry;
use super::ports::Ports;
use super::rules::{LiveRules, port_interval};
use crate::simd::Chunk;
use crate::{BuildError, BuildOptions};

/// "The group's candidates cover the points from here on", or no longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<A> {
    point: A,
    group: u32,
    begins: bool,
}

/// The rows of an axis: `words` words per class.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) words: usize,
    pub(crate) bits: Vec<u64>,
}

impl Rows {
    /// How many classes there are.
    pub(crate) fn classes(&self) -> usize {
        self.bits.len() / self.words
    }

    /// The rows of the four axes behind each other, in chunks.
    pub(crate) fn chunks(all: &[Self; 4]) -> Vec<Chunk> {
        let chunk = |words: &[u64]| Chunk(words.try_into().expect("chunks of eight"));
        all.iter().flat_map(|rows| rows.bits.chunks_exact(8)).map(chunk).collect()
    }

    /// Numbers each class by where its row begins, when the rows of the four axes lie behind each other and each takes so
    /// many chunks. Where the rows of each axis begin.
    pub(crate) fn number<A: Address>(all: &[Self; 4], axes: &mut Axes<A>, chunks: usize) -> [u32; 4] {
        let number = |count: usize| u32::try_from(count).expect("the bounds on bytes keep it small");
        let mut next = 0;
        let begins = all.each_ref().map(|rows| {
            next += rows.classes() * chunks;
            number(next - rows.classes() * chunks)
        });
        let chunks = number(chunks);
        axes.renumber(begins.map(|begin| move |class| begin + class * chunks));
        begins
    }

    /// The row of a class.
    pub(crate) fn row(&self, class: usize) -> &[u64] {
        &self.bits[class * self.words..][..self.words]
    }
}

/// The cover of an axis by candidates, collected before it is cut.
///
/// Candidates that share their intervals are one while it is cut: a hundred rules about the same 100,000 pods cost as
/// much as one.
#[derive(Clone, Debug)]
pub(crate) struct Cover<A> {
    events: Vec<Event<A>>,
    /// The candidates' bits, those of the same intervals one after the other: the group and the bit.
    members: Vec<(u32, u32)>,
    /// The group of what was added before.
    groups: HashMap<Shared<A>, u32, RandomState>,
    count: u32,
    /// Groups that cover the whole axis.
    always: Vec<u32>,
}

/// What candidates share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shared<A> {
    /// A slice of intervals, by where it is in memory.
    Slice(usize, usize),
    Interval(A, A),
    /// A tuple's bit, whose intervals come one by one.
    Bit(u32),
}

impl<A: Address> Cover<A> {
    /// No candidate covers anything yet.
    pub(crate) fn new() -> Self {
        let (events, members, always) = (Vec::new(), Vec::new(), Vec::new());
        Self { events, members, groups: HashMap::default(), count: 0, always }
    }

    /// The candidate covers these intervals, which neither overlap nor touch. The slice must live until the axis is cut.
    pub(crate) fn add_set(&mut self, bit: u32, intervals: &[(A, A)]) {
        let group = match intervals {
            &[(first, last)] => self.group(Shared::Interval(first, last)),
            _ => self.group(Shared::Slice(intervals.as_ptr().addr(), intervals.len())),
        };
        if group.1 {
            intervals.iter().for_each(|&interval| self.cover(group.0, interval));
        }
        self.members.push((group.0, bit));
    }

    /// The candidate covers an interval and maybe others, which may overlap.
    pub(crate) fn add(&mut self, bit: u32, first: A, last: A) {
        let (group, is_new) = self.group(Shared::Bit(bit));
        if is_new {
            self.members.push((group, bit));
        }
        self.cover(group, (first, last));
    }

    /// The group, and whether it is new.
    fn group(&mut self, shared: Shared<A>) -> (u32, bool) {
        let group = *self.groups.entry(shared).or_insert(self.count);
        let is_new = group == self.count;
        self.count += u32::from(is_new);
        (group, is_new)
    }

    fn cover(&mut self, group: u32, (first, last): (A, A)) {
        if first == A::ZERO && last == A::LAST {
            self.always.push(group);
            return;
        }
        self.events.push(Event { point: first, group, begins: true });
        if let Some(point) = last.next() {
            self.events.push(Event { point, group, begins: false });
        }
    }

    /// Cuts the axis; none when it has more classes than it may have.
    pub(crate) fn cut(mut self, cut: &Cut<'_>) -> Result<Option<(Classed<A>, Rows)>, BuildError> {
        cut.options.proceed()?;
        // The stable sort, because it merges what is in order already: the intervals of each set are.
        self.events.sort_by_key(|event| event.point);
        let mut sweep = Sweep::new(self.count as usize, &self.always, cut.max_classes);
        let mut lasts = Vec::new();
        let mut class_of = Vec::new();
        let mut at = 0;
        loop {
            // The piece that ends before the next event.
            let end = self.events.get(at).map(|event| event.point);
            if end != Some(A::ZERO) {
                let Some(class) = sweep.class() else { return Ok(None) };
                if class_of.last() == Some(&class) {
                    lasts.pop();
                } else {
                    class_of.push(class);
                }
                let Some(last) = end.and_then(A::previous) else { break };
                lasts.push(last);
            }
            while let Some(event) = self.events.get(at).filter(|event| Some(event.point) == end) {
                sweep.apply(event.group, event.begins);
                at += 1;
                if at % PROCEED_EVERY == 0 {
                    cut.options.proceed()?;
                }
            }
        }
        let rows = Rows { words: sweep.row.len(), bits: sweep.rows };
        Ok(Some((Classed { lasts, class_of }, ungrouped(&rows, self.members, cut.words))))
    }
}

/// Rows of the candidates' bits from rows of their groups' bits.
fn ungrouped(groups: &Rows, mut members: Vec<(u32, u32)>, words: usize) -> Rows {
    members.sort_unstable();
    let mut bits = vec![0; groups.classes() * words];
    for (class, row) in bits.chunks_exact_mut(words).enumerate() {
        for (at, &word) in groups.row(class).iter().enumerate() {
            let mut left = word;
            while left != 0 {
                let group = u32::try_from(at * 64).expect("groups are below 2^32") + left.trailing_zeros();
                left &= left - 1;
                let first = members.partition_point(|&(other, _)| other < group);
                for &(_, bit) in members[first..].iter().take_while(|&&(other, _)| other == group) {
                    row[bit as usize / 64] |= 1 << (bit % 64);
                }
            }
        }
    }
    Rows { words, bits }
}

/// How an axis is cut.
#[derive(Clone, Copy)]
pub(crate) struct Cut<'a> {
    /// Words per row.
    pub(crate) words: usize,
    /// The most classes.
    pub(crate) max_classes: usize,
    pub(crate) options: &'a BuildOptions<'a>,
}

/// Events between two looks at whether the build was cancelled: less than a millisecond.
const PROCEED_EVERY: usize = 4096;

/// Rows that are remembered beside the map of all: enough for the combinations of a few sets.
const RECENT: usize = 64;

/// The set of groups at the sweep's point, and the classes met so far.
struct Sweep {
    row: Vec<u64>,
    /// How many intervals of a group cover the point; those of a tuple may overlap.
    depth: Vec<u32>,
    /// XOR of the keyed hashes of the bits of `row`: changing one bit costs one step however long rows are.
    hash: u64,
    hash_of: Vec<u64>,
    class_of_hash: HashMap<u64, u32, RandomState>,
    /// Classes of rows seen last, by their hash: a set of many addresses turns the same few bits on and off.
    recent: [(u64, u32); RECENT],
    current: Option<u32>,
    rows: Vec<u64>,
    max_classes: usize,
}

impl Sweep {
    fn new(groups: usize, always: &[u32], max_classes: usize) -> Self {
        let keyed = RandomState::new();
        let mut row = vec![0; groups.div_ceil(64).max(1)];
        always.iter().for_each(|&group| row[group as usize / 64] |= 1 << (group % 64));
        // What covers the whole axis has begun before it and never ends.
        let depth = (0..row.len() * 64).map(|bit| u32::from(row[bit / 64] >> (bit % 64) & 1 == 1)).collect();
        let hash_of = (0..row.len() * 64).map(|bit| keyed.hash_one(bit)).collect();
        let class_of_hash = HashMap::with_hasher(keyed);
        Self {
            row,
            depth,
            hash: 0,
            hash_of,
            class_of_hash,
            recent: [(0, u32::MAX); RECENT],
            current: None,
            rows: Vec::new(),
            max_classes,
        }
    }

    fn apply(&mut self, group: u32, begins: bool) {
        let (depth, mask) = (&mut self.depth[group as usize], 1 << (group % 64));
        // Events of one point come in any order, but an interval never ends where it begins: no count passes zero.
        *depth = if begins { *depth + 1 } else { *depth - 1 };
        let word = &mut self.row[group as usize / 64];
        let covered = *depth != 0;
        if covered != (*word & mask != 0) {
            *word ^= mask;
            self.hash ^= self.hash_of[group as usize];
            self.current = None;
        }
    }

    /// The class of the current row, none when it would be one too many.
    fn class(&mut self) -> Option<u32> {
        if let Some(class) = self.current {
            return Some(class);
        }
        let words = self.row.len();
        let classes = self.rows.len() / words;
        let recent = usize::try_from(self.hash % RECENT as u64).expect("below RECENT");
        let (hash, class) = self.recent[recent];
        let known = if hash == self.hash && class != u32::MAX {
            Some(class)
        } else {
            self.class_of_hash.get(&self.hash).copied()
        };
        // Two rows of the same hash cost a class that is not shared, never a wrong one.
        let class = match known.filter(|&class| self.rows[class as usize * words..][..words] == *self.row) {
            Some(class) => class,
            None if classes == self.max_classes => return None,
            None => {
                self.rows.extend_from_slice(&self.row);
                let class = u32::try_from(classes).expect("there are fewer classes than events, which are below 2^32");
                self.class_of_hash.insert(self.hash, class);
                class
            }
        };
        self.recent[recent] = (self.hash, class);
        self.current = Some(class);
        Some(class)
    }
}

/// The axes, and the rows of each one's classes.
type Pieces<A> = (Axes<A>, [Rows; 4]);

/// What candidates cover on the four axes.
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

    /// The axes and their rows; none when an axis has more classes than `max_classes`, or all have more combinations
    /// than `max_cells`.
    pub(crate) fn cut(
        self,
        max_classes: usize,
        max_cells: usize,
        options: &BuildOptions<'_>,
    ) -> Result<Option<Pieces<A>>, BuildError> {
        let mut cut = Cut { words: self.words, max_classes: max_classes.min(max_cells), options };
        let mut left = max_cells;
        let mut narrow = |cut: &mut Cut<'_>, rows: &Rows| {
            left /= rows.classes();
            cut.max_classes = max_classes.min(left);
        };
        let Some((src_port, d)) = self.src_port.cut(&cut)? else { return Ok(None) };
        narrow(&mut cut, &d);
        let Some((service, c)) = self.service.cut(&cut)? else { return Ok(None) };
        narrow(&mut cut, &c);
        let Some((src, a)) = self.src.cut(&cut)? else { return Ok(None) };
        narrow(&mut cut, &a);
        let Some((dst, b)) = self.dst.cut(&cut)? else { return Ok(None) };
        let axes = Axes {
            src: Axis::new(src),
            dst: Axis::new(dst),
            service: Ports::new(&service, self.last_service),
            src_port: Ports::new(&src_port, u32::from(u16::MAX)),
        };
        Ok(Some((axes, [a, b, c, d])))
    }
}
