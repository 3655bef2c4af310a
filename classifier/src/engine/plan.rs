//! The choice: which rules get a bit of their own in every row, and which are reached through a tuple.
//!
//! A **direct** rule is one bit: it costs nothing per lookup but lengthens every row. A **tuple** is one bit for all
//! rules whose prefixes have at least its two lengths; when the rows say that it may match, one hash probe finds the
//! few rules to verify. Rows prune tuples so well (1.0 to 2.3 probes per uniform ClassBench packet, unmerged) that
//! the number of tuples matters only through the width of a row; merging is what fits them into one word.
//!
//! 1. Short lists are direct throughout.
//! 2. Tuples of short prefixes are dissolved into direct bits: they would be probed by every packet. So are those that
//!    spare the most probes per bit, tried on sampled packets, as long as a row stays one chunk.
//! 3. The smallest tuples are merged into their nearest neighbours until [`MERGED_TUPLES`] are left.
//! 4. Rules that share one tuple's bucket with too many others move to a tuple that hashes the service too, or become
//!    direct. So a probe verifies at most [`MAX_RUN`] rules whatever the list: the bound on tuple space explosion.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use ahash::RandomState;

use super::address::Address;
use super::choice::{CHUNK_BITS, Choice, DISSOLVED, MAX_TUPLES};
use super::rules::{LiveRules, prefixes};
use crate::{BuildError, BuildOptions};

/// Tuples after merging. The rest of the word is for tuples that hash the service, made in the fourth step.
const MERGED_TUPLES: usize = 40;

/// The most rules that one probe verifies. TupleMerge allows 10 to 40; 16 packed rules are eight cache lines.
pub(crate) const MAX_RUN: usize = 16;

/// The most rules of one key, so that a bucket also has room for keys that collide.
const MAX_SHARING: usize = 8;

/// No larger shape is ever dissolved.
const MAX_DISSOLVED: usize = DISSOLVED;

/// Packets that the choice is tried on. It decides which rules are quick, not what is right; a hundred tell a shape
/// that every tenth packet reaches from one that none does.
const SAMPLES: usize = 128;

/// Room for what a second choice changes beside the number of dissolved rules: a few tuples.
const SLACK: usize = 16;

/// A rule that is reached through a tuple is copied once per pair of prefixes and service; beyond this it is direct.
const MAX_ENTRIES: usize = 16;

/// About what a copy takes in the end: itself and its buckets.
const ENTRY_BYTES: usize = 48;

/// One copy of a rule behind a tuple.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<A> {
    pub(crate) code: u32,
    pub(crate) tuple: u32,
    pub(crate) src: (A, u8),
    pub(crate) dst: (A, u8),
    pub(crate) service: (u32, u32),
    pub(crate) src_ports: (u32, u32),
    /// The rule's position among the live ones.
    pub(super) rule: u32,
}

/// What a tuple hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Shape {
    pub(crate) src: u8,
    pub(crate) dst: u8,
    pub(crate) service: bool,
}

/// The choice made.
#[derive(Clone, Debug)]
pub(crate) struct Plan<A> {
    /// Direct rules by their position among the live ones, ascending.
    pub(crate) direct: Vec<u32>,
    pub(crate) tuples: Vec<Shape>,
    pub(crate) entries: Vec<Entry<A>>,
}

impl<A: Address> Plan<A> {
    pub(crate) fn new(live: &LiveRules<'_, A>, choice: Choice, options: &BuildOptions<'_>) -> Result<Self, BuildError> {
        let count = u32::try_from(live.rules.len()).expect("at most MAX_RULES");
        if live.rules.len() <= choice.all_direct {
            return Ok(Self { direct: (0..count).collect(), tuples: Vec::new(), entries: Vec::new() });
        }
        let mut expanded = Self { direct: Vec::new(), tuples: Vec::new(), entries: Vec::new() };
        expanded.expand(live, options)?;
        let plan = expanded.clone().choose(choice.dissolved);
        // How many rules the buckets cannot take is known at the end only. If they make rows of a second chunk, which
        // doubles what is fetched per key, as many less are dissolved.
        let beyond = plan.bits().saturating_sub(CHUNK_BITS);
        if beyond == 0 || beyond + SLACK >= choice.dissolved {
            return Ok(plan);
        }
        let smaller = expanded.choose(choice.dissolved - beyond - SLACK);
        Ok(if smaller.bits() <= CHUNK_BITS { smaller } else { plan })
    }

    /// Parts the expanded rules into direct ones and tuples.
    fn choose(mut self, dissolved: usize) -> Self {
        let mut shapes = Shapes::new::<A>(&self.entries);
        shapes.dissolve(A::BITS, self.direct.len(), dissolved);
        shapes.merge(MERGED_TUPLES);
        self.assign(&shapes);
        self.relieve();
        self.direct.sort_unstable();
        self.direct.dedup();
        self.number();
        self
    }

    /// Bits of a row.
    fn bits(&self) -> usize {
        self.direct.len() + self.tuples.len()
    }

    /// Makes the rules of these codes direct.
    pub(crate) fn make_direct(&mut self, codes: &[u32], live: &LiveRules<'_, A>) {
        let position =
            |&code: &u32| live.rules.binary_search_by_key(&code, |rule| rule.code).expect("codes are of live rules");
        let moved: Vec<u32> =
            codes.iter().map(position).map(|at| u32::try_from(at).expect("at most MAX_RULES")).collect();
        let gone: HashSet<u32, RandomState> = moved.iter().copied().collect();
        self.entries.retain(|entry| !gone.contains(&entry.rule));
        self.direct.extend(moved);
        self.direct.sort_unstable();
        self.direct.dedup();
    }

    /// Copies every rule per pair of prefixes and service; a rule of too many copies is direct.
    fn expand(&mut self, live: &LiveRules<'_, A>, options: &BuildOptions<'_>) -> Result<(), BuildError> {
        for (at, rule) in (0u32..).zip(&live.rules) {
            if self.entries.len() > options.max_bytes / ENTRY_BYTES {
                return Err(BuildError::TooLarge { max_bytes: options.max_bytes });
            }
            if at % 4096 == 0 {
                options.proceed()?;
            }
            let services = live.services(rule);
            let most = MAX_ENTRIES / services.len().max(1);
            let from = self.entries.len();
            if rule.src.len() * rule.dst.len() <= most {
                let (mut srcs, mut dsts) = (Vec::new(), Vec::new());
                rule.src.iter().for_each(|&interval| prefixes(interval, |first, length| srcs.push((first, length))));
                rule.dst.iter().for_each(|&interval| prefixes(interval, |first, length| dsts.push((first, length))));
                if srcs.len() * dsts.len() <= most {
                    for &src in &srcs {
                        for &dst in &dsts {
                            self.entries.extend(services.iter().map(|&service| Entry {
                                code: rule.code,
                                tuple: 0,
                                src,
                                dst,
                                service,
                                src_ports: rule.src_ports,
                                rule: at,
                            }));
                        }
                    }
                }
            }
            if self.entries.len() == from {
                self.direct.push(at);
            }
        }
        Ok(())
    }

    /// Gives each entry its tuple; entries of dissolved shapes become direct rules.
    fn assign(&mut self, shapes: &Shapes) {
        let mut number = HashMap::new();
        let mut kept = Vec::with_capacity(self.entries.len());
        for mut entry in std::mem::take(&mut self.entries) {
            match shapes.home(entry.src.1, entry.dst.1) {
                Some((src, dst)) => {
                    let shape = Shape { src, dst, service: false };
                    entry.tuple = *number.entry(shape).or_insert_with(|| {
                        self.tuples.push(shape);
                        u32::try_from(self.tuples.len() - 1).expect("few shapes")
                    });
                    kept.push(entry);
                }
                None => self.direct.push(entry.rule),
            }
        }
        self.entries = kept;
    }

    /// Empties buckets that hold more than [`MAX_SHARING`] entries of one key.
    fn relieve(&mut self) {
        let mut with_service: HashMap<u32, u32> = HashMap::new();
        for _ in 0..2 {
            for at in self.overfull() {
                let entry = &mut self.entries[at];
                let shape = self.tuples[entry.tuple as usize];
                if !shape.service && entry.service.0 == entry.service.1 && self.tuples.len() < MAX_TUPLES {
                    entry.tuple = *with_service.entry(entry.tuple).or_insert_with(|| {
                        self.tuples.push(Shape { service: true, ..shape });
                        u32::try_from(self.tuples.len() - 1).expect("at most 64")
                    });
                } else {
                    self.direct.push(entry.rule);
                    entry.code = u32::MAX;
                }
            }
            self.entries.retain(|entry| entry.code != u32::MAX);
        }
    }

    /// The entries whose key in their tuple is shared by more than [`MAX_SHARING`].
    fn overfull(&self) -> Vec<usize> {
        let key = |entry: &Entry<A>| {
            let shape = self.tuples[entry.tuple as usize];
            let service = if shape.service { entry.service.0 } else { 0 };
            (entry.tuple, entry.src.0 & A::mask(shape.src), entry.dst.0 & A::mask(shape.dst), service)
        };
        let mut sharing: HashMap<_, usize, _> =
            HashMap::with_capacity_and_hasher(self.entries.len(), RandomState::new());
        for entry in &self.entries {
            *sharing.entry(key(entry)).or_default() += 1;
        }
        (0..self.entries.len()).filter(|&at| sharing[&key(&self.entries[at])] > MAX_SHARING).collect()
    }

    /// Drops tuples that lost all entries and numbers the others by their best rule, so that early bits are good rules.
    fn number(&mut self) {
        let mut best = vec![u32::MAX; self.tuples.len()];
        for entry in &self.entries {
            let best = &mut best[entry.tuple as usize];
            *best = entry.code.min(*best);
        }
        let mut order: Vec<usize> = (0..self.tuples.len()).filter(|&at| best[at] != u32::MAX).collect();
        order.sort_unstable_by_key(|&at| best[at]);
        let mut number = vec![0; self.tuples.len()];
        for (new, &old) in (0u32..).zip(&order) {
            number[old] = new;
        }
        self.entries.iter_mut().for_each(|entry| entry.tuple = number[entry.tuple as usize]);
        self.tuples = order.iter().map(|&at| self.tuples[at]).collect();
    }
}

/// How many of [`SAMPLES`] packets, one inside each of as many rules, are in the reach of each small shape: a prefix
/// of the shape holds the source, and one the destination.
fn reached<A: Address>(entries: &[Entry<A>], population: &HashMap<(u8, u8), usize>) -> HashMap<(u8, u8), usize> {
    let small = |shape: &(u8, u8)| population[shape] <= MAX_DISSOLVED;
    let mut prefixes: HashSet<((u8, u8), bool, A), RandomState> = HashSet::default();
    for entry in entries.iter().filter(|entry| small(&(entry.src.1, entry.dst.1))) {
        let shape = (entry.src.1, entry.dst.1);
        prefixes.insert((shape, false, entry.src.0));
        prefixes.insert((shape, true, entry.dst.0));
    }
    let mut reached = HashMap::new();
    for packet in entries.iter().step_by((entries.len() / SAMPLES).max(1)).take(SAMPLES) {
        for &shape in population.keys().filter(|shape| small(shape)) {
            let (src, dst) = (packet.src.0 & A::mask(shape.0), packet.dst.0 & A::mask(shape.1));
            if prefixes.contains(&(shape, false, src)) && prefixes.contains(&(shape, true, dst)) {
                *reached.entry(shape).or_insert(0) += 1;
            }
        }
    }
    reached
}

/// The pairs of prefix lengths that occur, how many entries each has, and where they end up.
struct Shapes {
    population: HashMap<(u8, u8), usize>,
    /// How many of the sampled packets have to look into a shape; of shapes that are small enough to be dissolved.
    reached: HashMap<(u8, u8), usize>,
    moved: HashMap<(u8, u8), Option<(u8, u8)>>,
}

impl Shapes {
    fn new<A: Address>(entries: &[Entry<A>]) -> Self {
        let mut population = HashMap::new();
        for entry in entries {
            *population.entry((entry.src.1, entry.dst.1)).or_insert(0) += 1;
        }
        let reached = reached(entries, &population);
        Self { population, reached, moved: HashMap::new() }
    }

    /// Turns shapes into direct rules: those of short prefixes up to two chunks, then the smallest up to one.
    fn dissolve(&mut self, bits: u8, mut direct: usize, most: usize) {
        let mut shapes: Vec<_> = self.population.iter().map(|(&shape, &count)| (shape, count)).collect();
        shapes.sort_unstable_by_key(|&((src, dst), count)| (u16::from(src) + u16::from(dst), count));
        let short = u16::from(bits) * 3 / 8;
        for &((src, dst), count) in &shapes {
            if u16::from(src) + u16::from(dst) < short && most > 0 {
                direct += count;
                self.population.remove(&(src, dst));
                self.moved.insert((src, dst), None);
            }
        }
        // Then what spares the most probes per bit: a pod's own "deny the rest" is in the reach of all its packets.
        let value = |shape, count| (self.reached.get(&shape).unwrap_or(&0) + 1) * SAMPLES * MAX_DISSOLVED / count;
        shapes.sort_unstable_by_key(|&(shape, count)| (Reverse(value(shape, count)), shape));
        for ((src, dst), count) in shapes {
            if direct + count <= most && self.population.remove(&(src, dst)).is_some() {
                direct += count;
                self.moved.insert((src, dst), None);
            }
        }
    }

    /// Joins the smallest shape with the one that loses the fewest bits by it, until `most` are left.
    fn merge(&mut self, most: usize) {
        while self.population.len() > most {
            let (&small, &count) =
                self.population.iter().min_by_key(|&(&shape, &count)| (count, shape)).expect("more than `most` shapes");
            let join = |other: (u8, u8)| (small.0.min(other.0), small.1.min(other.1));
            let lost = |from: (u8, u8), to: (u8, u8)| usize::from(from.0 - to.0) + usize::from(from.1 - to.1);
            let (&other, &others) = self
                .population
                .iter()
                .filter(|&(&other, _)| other != small)
                .min_by_key(|&(&other, &others)| {
                    (count * lost(small, join(other)) + others * lost(other, join(other)), other)
                })
                .expect("more than `most` shapes");
            let joined = join(other);
            for (from, population) in [(small, count), (other, others)] {
                self.population.remove(&from);
                if from != joined {
                    self.moved.insert(from, Some(joined));
                }
                *self.population.entry(joined).or_insert(0) += population;
                // A shape that was emptied before is in use again.
                self.moved.remove(&joined);
            }
        }
    }

    /// Where entries of these lengths live; none when they are direct.
    fn home(&self, src: u8, dst: u8) -> Option<(u8, u8)> {
        let mut at = (src, dst);
        while let Some(&next) = self.moved.get(&at) {
            at = next?;
        }
        Some(at)
    }
}
