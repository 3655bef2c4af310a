//! Plans bit vectors: which rules get their own bit in every row, and which are reached through a tuple.
//!
//! A **direct** rule has its own bit. It costs nothing per lookup but lengthens every row. A **tuple** is one bit for all rules whose
//! prefixes have at least its two lengths. If the rows show that it may match, one hash probe finds the few rules to verify. Rows prune
//! tuples well (1.0 to 2.3 probes per uniform ClassBench packet without merging). So the number of tuples matters only for the row's width,
//! and merging reduces it to one word.
//!
//! 1. In short lists all rules are direct.
//! 2. Tuples of short prefixes are dissolved into direct bits, because every packet would probe them. So are the tuples that save the most
//!    probes per bit, measured on sampled packets, while a row stays one chunk.
//! 3. The smallest tuples are merged into their nearest neighbours until [`MERGED_TUPLES`] are left.
//! 4. Rules that share a bucket with too many others move to a tuple that also hashes the service, or become direct. So a probe verifies at
//!    most [`MAX_RUN`] rules for any list, which bounds tuple space explosion.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use ahash::RandomState;

use super::address::Address;
use super::choice::{CHUNK_BITS, Choice, DISSOLVED, MAX_TUPLES};
use super::rules::{LiveRules, prefixes};
use crate::{BuildError, BuildOptions};

/// Maximum number of tuples after merging. The other bits of the word are for tuples that hash the service (step 4).
const MERGED_TUPLES: usize = 40;

/// Maximum of rules verified per probe. TupleMerge allows 10 to 40; 16 packed rules fill eight cache lines.
pub(crate) const MAX_RUN: usize = 16;

/// Maximum of rules with the same key, so that a bucket has room for colliding keys.
const MAX_SHARING: usize = 8;

/// Shapes (pairs of prefix lengths) with more entries than this are never dissolved into direct rules.
const MAX_DISSOLVED: usize = DISSOLVED;

/// Number of sampled packets. They affect only speed. A hundred distinguish a shape that every tenth packet reaches from one that none
/// does.
const SAMPLES: usize = 128;

/// Additional row bits allowed for a second plan with fewer dissolved rules, because it has a few more tuples.
const SLACK: usize = 16;

/// Maximum of copies of a rule behind tuples, one per pair of prefixes and service. Beyond that a rule is direct.
const MAX_ENTRIES: usize = 16;

/// Approximate memory of a copy with its buckets, in bytes.
const ENTRY_BYTES: usize = 48;

/// A rule as an entry of a tuple's hash table: one pair of prefixes, and one interval of services.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<A> {
    pub(crate) code: u32,
    pub(crate) tuple: u32,
    pub(crate) src: (A, u8),
    pub(crate) dst: (A, u8),
    pub(crate) service: (u32, u32),
    pub(crate) src_ports: (u32, u32),
    /// The rule's position among the live rules.
    pub(super) rule: u32,
}

/// The fields that a tuple hashes: prefix lengths, and whether the service is included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Shape {
    pub(crate) src: u8,
    pub(crate) dst: u8,
    pub(crate) service: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan<A> {
    /// Positions of the direct rules among the live rules, ascending.
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
        // How many rules overflow their buckets is known only now. If they extend the rows to a second chunk, which doubles the memory
        // accesses per key, that many fewer are dissolved.
        let beyond = plan.bits().saturating_sub(CHUNK_BITS);
        if beyond == 0 || beyond + SLACK >= choice.dissolved {
            return Ok(plan);
        }
        let smaller = expanded.choose(choice.dissolved - beyond - SLACK);
        Ok(if smaller.bits() <= CHUNK_BITS { smaller } else { plan })
    }

    /// Decides for each expanded rule whether it is direct or belongs to a tuple. `dissolved` limits the rules from dissolved tuples.
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

    /// Returns the number of bits in a row: direct rules and tuples.
    fn bits(&self) -> usize {
        self.direct.len() + self.tuples.len()
    }

    /// Turns the rules with these codes into direct rules, which have their own bit in each row.
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

    /// Copies every rule for each pair of prefixes and service. Rules of too many copies become direct.
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

    /// Assigns each entry its tuple. Entries of dissolved shapes become direct rules.
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

    /// Relieves buckets with more than [`MAX_SHARING`] entries of one key.
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

    /// Returns the entries that share their key in a tuple with more than [`MAX_SHARING`].
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

    /// Removes empty tuples and renumbers the others by their first rule, so that early bits are early rules.
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

/// Counts, for each small shape, how many of [`SAMPLES`] packets it matches. Each packet is inside a different rule. A shape matches if a
/// source prefix and a destination prefix of it contain the packet's addresses.
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

/// The shapes (pairs of prefix lengths): the number of entries of each, and the shape that replaces it (`None`: direct bits).
struct Shapes {
    population: HashMap<(u8, u8), usize>,
    /// The number of sampled packets that probe each shape, for shapes that are small enough to dissolve.
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

    /// Dissolves shapes into direct rules: first those of short prefixes up to two chunks, then the most valuable up to one.
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
        // Value: probes saved per bit. All packets of a pod reach its own "deny the rest", for example.
        let value = |shape, count| (self.reached.get(&shape).unwrap_or(&0) + 1) * SAMPLES * MAX_DISSOLVED / count;
        shapes.sort_unstable_by_key(|&(shape, count)| (Reverse(value(shape, count)), shape));
        for ((src, dst), count) in shapes {
            if direct + count <= most && self.population.remove(&(src, dst)).is_some() {
                direct += count;
                self.moved.insert((src, dst), None);
            }
        }
    }

    /// Merges the smallest shape with the one that loses the fewest prefix bits, until `most` are left.
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
                // A shape that was emptied before is used again.
                self.moved.remove(&joined);
            }
        }
    }

    /// Returns the shape that entries of these lengths move to. `None` if they become direct.
    fn home(&self, src: u8, dst: u8) -> Option<(u8, u8)> {
        let mut at = (src, dst);
        while let Some(&next) = self.moved.get(&at) {
            at = next?;
        }
        Some(at)
    }
}
