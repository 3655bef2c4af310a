//! Set pruning: each class of one address has its own search tree over the other address. Each leaf lists the few remaining rules in order.
//!
//! ```text
//!   source --search tree--> class --its own search tree--> destination's piece --> list: service -> rule
//! ```
//!
//! Designed for a node's exit table: a rule names one pod or a few, so the lists of all pods together are hardly longer than the rule list.
//! A lookup reads no rows or tuples and searches no service: one cache line has the services and codes of four rules. Rules of several
//! classes are copied to each, within bounds. Firewall lists with wildcards on either side exceed the bounds and use bit vectors.
//!
//! Source: set-pruning tries, Decasper et al., "Router Plugins", 1998, with classes for trie paths.

use super::address::{Address, Fields};
use super::axis::Axis;
use super::choice::Choice;
use super::cover::Cover;
use super::rules::{Live, LiveRules};
use super::sweep::{Bounds, Event, Lists, Pieces, Sweep};
use super::{Block, Cost};
use crate::simd::{BRANCHES, CONTINUED, Kernel, List, Node, Services, Simd, prefetch};
use crate::{BuildError, BuildOptions, PortRange};

/// Maximum number of services compared in one lookup: eight cache lines of four rules.
const LONGEST: usize = 32;

/// Maximum number of copies of rules, and of pieces, per rule of the list. Suitable lists have 1 to 2; acl1.10k has 7 and 12.
const COPIES: usize = 16;

/// [`COPIES`] does not limit lists to fewer copies or pieces than this: half a megabyte of separators and numbers.
const FEW: usize = 1 << 16;

/// Above this, the bound is two per rule. It admits acl1.100k (1.3 million pieces), which takes 12 ns per key alone on a core instead of 22
/// with bit vectors, at five times the memory (39 MB) and three times the build time. If other programs share the last-level cache, the
/// gain shrinks to a tenth.
const MANY: usize = 1 << 21;

/// Maximum of bytes per rule, counting at least `BYTES_RULES` rules: 45 MB for 100,000, within the 64 MB that such a list may take.
const BYTES: usize = 448;
const BYTES_RULES: usize = 1 << 12;

/// The search trees over the second address, one for each class of the first address, and the rule lists at their leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pruned<A> {
    /// Whether the first searched address is the packet's destination. Otherwise it is the source.
    destination_first: bool,
    /// Maps the first address to the index in `nodes` of the root of its class's tree.
    first: Axis<A>,
    /// Nodes of all trees, level by level, the roots first. A node's last number is the index of its first child.
    nodes: Vec<Node<A>>,
    /// The number of levels, equal in every tree, so that a lookup has no branch that depends on the class.
    depth: usize,
    /// For each leaf of the trees: the index in `services` of the first cache line of its rule list.
    lines: Vec<u32>,
    services: Vec<Services>,
    longest: usize,
}

impl<A: Address> Pruned<A> {
    /// Compiles a list. Returns `None` if it is unsuitable: rules restrict source ports, or too many classes share too many rules.
    pub(crate) fn build(
        live: &LiveRules<'_, A>,
        options: &BuildOptions<'_>,
        choice: Choice,
    ) -> Result<Option<Self>, BuildError> {
        let every = (u32::from(PortRange::ALL.first), u32::from(PortRange::ALL.last));
        if !choice.pruned || live.rules.iter().any(|rule| rule.src_ports != every) {
            return Ok(None);
        }
        let by_src = Trees::new(live, false, options)?;
        let by_dst = Trees::new(live, true, options)?;
        let trees = match (by_src, by_dst) {
            (Some(a), Some(b)) => Some(if b.second.lasts.len() < a.second.lasts.len() { b } else { a }),
            (a, b) => a.or(b),
        };
        Ok(trees
            .and_then(|trees| trees.compile(live))
            .filter(|pruned| pruned.bytes() <= options.max_bytes.min(BYTES * live.rules.len().max(BYTES_RULES))))
    }
}

/// The trees during a build, before they are laid out in memory.
struct Trees<A> {
    destination_first: bool,
    first: Pieces<A>,
    second: Pieces<A>,
    /// Index of each class's first piece in `second`, and the end of the last class.
    starts: Vec<usize>,
    lists: Lists,
}

impl<A: Address> Trees<A> {
    fn new<'a>(
        live: &LiveRules<'a, A>,
        destination_first: bool,
        options: &BuildOptions<'_>,
    ) -> Result<Option<Self>, BuildError> {
        options.proceed()?;
        let count = live.rules.len();
        let most = (count * COPIES).max(FEW).min(MANY + 2 * count).min(options.max_bytes / 8);
        let intervals = |rule: &Live<'a, A>| if destination_first { rule.dst } else { rule.src };
        if live.rules.iter().map(|rule| intervals(rule).len()).sum::<usize>() > most {
            return Ok(None);
        }
        let mut cover = Cover::new();
        (0u32..).zip(&live.rules).for_each(|(at, rule)| cover.add_set(at, intervals(rule)));
        let bounds = Bounds { longest: most, items: most };
        let Some((first, classes)) = cover.lists(bounds, options)? else { return Ok(None) };
        let (mut events, mut second) = (Vec::new(), Pieces::new());
        let mut sweep = Sweep::new(count, Lists::new(Bounds { longest: LONGEST, items: 4 * most }));
        let mut starts = vec![0];
        for class in 0..classes.len() {
            events.clear();
            for &at in classes.get(class) {
                let rule = &live.rules[at as usize];
                let intervals = if destination_first { rule.src } else { rule.dst };
                if events.len() + 2 * intervals.len() + second.lasts.len() > 2 * most {
                    return Ok(None);
                }
                events.extend(intervals.iter().flat_map(|&interval| Event::of(at, interval)));
            }
            if !sweep.cut(&[], &mut events, &mut second, options)? {
                return Ok(None);
            }
            starts.push(second.lasts.len());
        }
        Ok(Some(Self { destination_first, first, second, starts, lists: sweep.into_sets() }))
    }

    fn compile(self, live: &LiveRules<'_, A>) -> Option<Pruned<A>> {
        let (mut services, mut line_of, mut longest) = (Vec::new(), Vec::new(), 0);
        for list in 0..self.lists.len() {
            line_of.push(u32::try_from(services.len()).ok()?);
            let length = write(self.lists.get(list), live, &mut services);
            if length > LONGEST || services.len() > self.second.lasts.len().max(FEW) {
                return None;
            }
            longest = longest.max(length);
        }
        let lines: Vec<u32> = self.second.classes.iter().map(|&list| line_of[list as usize]).collect();
        let (nodes, depth) = forest(&self.second.lasts, &self.starts);
        let (destination_first, first) = (self.destination_first, Axis::new(self.first.classed()));
        Some(Pruned { destination_first, first, nodes, depth, lines, services, longest })
    }
}

/// Appends the cache lines that store a list of rules. Returns the number of services written.
fn write<A: Address>(list: &[u32], live: &LiveRules<'_, A>, lines: &mut Vec<Services>) -> usize {
    let rules = list.iter().map(|&at| &live.rules[at as usize]);
    let all: Vec<((u32, u32), u32)> =
        rules.flat_map(|rule| live.services(rule).iter().map(|&service| (service, rule.code))).collect();
    let mut left = &all[..];
    loop {
        let (line, rest) = left.split_at(left.len().min(Services::RULES));
        left = rest;
        let next = u32::try_from(lines.len() + 1).expect("lists are bounded");
        lines.push(Services::new(line, if left.is_empty() { u32::MAX } else { CONTINUED | next }));
        if left.is_empty() {
            return all.len();
        }
    }
}

/// Builds trees of equal depth over the pieces of each class, level by level. Returns the nodes and the depth.
fn forest<A: Address>(lasts: &[A], starts: &[usize]) -> (Vec<Node<A>>, usize) {
    let classes = || starts.windows(2).map(|pair| (pair[0], pair[1] - pair[0]));
    let most = classes().map(|(_, count)| count).max().unwrap_or(1);
    let mut depth = 0;
    while BRANCHES.pow(depth) < most {
        depth += 1;
    }
    let mut nodes = Vec::new();
    for level in 0..depth {
        // The number of pieces below a child, and below a node.
        let child = BRANCHES.pow(depth - 1 - level);
        let span = child * BRANCHES;
        // The next level's nodes follow this level's. At the last level, children are leaves.
        let mut children =
            if child == 1 { 0 } else { nodes.len() + classes().map(|(_, count)| count.div_ceil(span)).sum::<usize>() };
        for (start, count) in classes() {
            for node in 0..count.div_ceil(span) {
                let separator = |at: usize| {
                    let end = node * span + (at + 1) * child;
                    if end < count { lasts[start + end - 1] } else { A::LAST }
                };
                let first_child = u32::try_from(children + node * BRANCHES).expect("pieces are bounded");
                let mut separators: [A; BRANCHES] = std::array::from_fn(separator);
                separators[BRANCHES - 1] = first_child.into();
                nodes.push(A::node(separators));
            }
            children += count.div_ceil(child);
        }
    }
    (nodes, depth as usize)
}

impl<A: Address> Pruned<A> {
    /// Returns the address that is searched first, then the other.
    #[inline(always)]
    fn order<T>(&self, src: T, dst: T) -> (T, T) {
        if self.destination_first { (dst, src) } else { (src, dst) }
    }

    #[inline(always)]
    pub(crate) fn decide<S: Simd, const N: usize>(
        &self,
        simd: S,
        block: &Block<A, N>,
        gone: &[u32],
        codes: &mut [u32; N],
    ) {
        let n = block.len;
        let (first, second) = self.order(&block.src[..n], &block.dst[..n]);
        let mut at = [0; N];
        simd.call(super::axis::Search { axis: &self.first, points: first, classes: &mut at[..n] });
        simd.call(Descend { pruned: self, points: second, at: &mut at[..n] });
        simd.call(Pick { lines: &self.services, at: &at[..n], services: &block.service[..n], codes: &mut codes[..n] });
        if !gone.is_empty() {
            for (code, at) in
                codes.iter_mut().zip(at).zip(block.service).take(n).map(|((code, at), service)| (code, (at, service)))
            {
                if gone.binary_search(code).is_ok() {
                    *code = self.left(at.0, at.1, gone);
                }
            }
        }
    }

    #[inline(always)]
    pub(crate) fn decide_one<S: Simd>(&self, simd: S, packet: &Fields<A>, gone: &[u32]) -> u32 {
        let line = self.line(simd, packet);
        let mut code = simd.pick(&self.services[line as usize], packet.service);
        while code >= CONTINUED && code != u32::MAX {
            code = simd.pick(&self.services[(code & !CONTINUED) as usize], packet.service);
        }
        if !gone.is_empty() && gone.binary_search(&code).is_ok() { self.left(line, packet.service, gone) } else { code }
    }

    /// Returns the index of the first cache line of the rule list for a packet.
    #[inline(always)]
    fn line<S: Simd>(&self, simd: S, packet: &Fields<A>) -> u32 {
        let (first, second) = self.order(packet.src, packet.dst);
        let mut at = self.first.class(simd, first);
        for _ in 0..self.depth {
            at = A::child(simd, &self.nodes[at as usize], second);
        }
        self.lines[at as usize]
    }

    /// Searches the list that begins at `line`. Returns the code of the first matching rule that is not in `gone`, the removed rules.
    #[cold]
    fn left(&self, line: u32, service: u32, gone: &[u32]) -> u32 {
        self.list(line)
            .filter(|&(first, width, _)| service.wrapping_sub(first) <= width)
            .map(|(.., code)| code)
            .find(|code| gone.binary_search(code).is_err())
            .unwrap_or(u32::MAX)
    }

    /// Returns for each rule of the list that begins at `line`: its first service, its number of services minus one, and its code.
    fn list(&self, line: u32) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
        let next = |line: &u32| self.services[*line as usize].next();
        std::iter::successors(Some(line), next).flat_map(|line| self.services[line as usize].rules())
    }

    pub(crate) fn cost<S: Simd>(&self, simd: S, packet: &Fields<A>) -> Cost {
        let entries = self.list(self.line(simd, packet)).count();
        Cost { entries, ..self.worst_case() }
    }

    /// Returns the maximum cost of any lookup.
    pub(crate) fn worst_case(&self) -> Cost {
        Cost { steps: self.first.depth() + self.depth, chunks: 0, probes: 0, entries: self.longest }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.first.bytes()
            + size_of_val(&self.nodes[..])
            + size_of_val(&self.lines[..])
            + size_of_val(&self.services[..])
    }

    pub(crate) fn describe(&self) -> String {
        let (first, second) = self.order("source", "destination");
        format!(
            "set pruning: {} {second} pieces of the {first}'s classes, {} lines of services (at most {} in a list), {} search \
             steps",
            self.lines.len(),
            self.services.len(),
            self.longest,
            self.worst_case().steps,
        )
    }
}

/// Searches the trees for a block of keys, from each class's root to the first cache line of each key's rule list.
struct Descend<'a, A> {
    pruned: &'a Pruned<A>,
    points: &'a [A],
    at: &'a mut [u32],
}

impl<A: Address> Kernel for Descend<'_, A> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { pruned, points, at } = self;
        let nodes = &pruned.nodes[..];
        for _ in 0..pruned.depth {
            for (at, &point) in at.iter_mut().zip(points) {
                *at = A::child(simd, &nodes[*at as usize], point);
            }
        }
        for at in at {
            *at = pruned.lines[*at as usize];
            // The largest part, which exceeds the caches: prefetching it saves a tenth to a quarter of a lookup.
            prefetch(&pruned.services, *at as usize);
        }
    }
}

/// Searches one cache line for each key, and replaces the line's index by the code of the first match.
struct Pick<'a> {
    lines: &'a [Services],
    at: &'a [u32],
    services: &'a [u32],
    codes: &'a mut [u32],
}

/// Keys of a block whose lists continue, and one spare element.
const CONTINUING: usize = super::BLOCK + 1;

impl Kernel for Pick<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { lines, at, services, codes } = self;
        // Branch prediction cannot guess which lists continue after the first line.
        let mut more = List::<CONTINUING>::new();
        for (key, ((&at, &service), code)) in (0u32..).zip(at.iter().zip(services).zip(&mut *codes)) {
            *code = simd.pick(&lines[at as usize], service);
            more.push_some([(key, 0)], u32::from(goes_on(*code)));
        }
        while more.len() > 0 {
            let mut again = List::<CONTINUING>::new();
            for &mut (key, _) in more.items() {
                let code = &mut codes[key as usize];
                *code = simd.pick(&lines[(*code & !CONTINUED) as usize], services[key as usize]);
                again.push_some([(key, 0)], u32::from(goes_on(*code)));
            }
            more = again;
        }
    }
}

/// Whether a code is no rule's but the index of the list's next cache line.
#[inline(always)]
fn goes_on(code: u32) -> bool {
    code >= CONTINUED && code != u32::MAX
}
