//! The engine: one family's rules (IPv4 or IPv6), compiled.
//!
//! ```text
//!                 search tree: point -> class            row: class -> bits
//!   source      --------------------------------> 17 --> 0110 1000 ...  -.
//!   destination --------------------------------> 204 -> 0011 1001 ...   |  intersect   direct bit -> that rule
//!   service     --------------------------------> 3  --> 1111 1100 ...   +------------> tuple bit  -> hash probe,
//!   source port --------------------------------> 0  --> 1111 1111 ...  -'                            verify few
//!
//!   or, where the classes multiply to few: cells[17, 204, 3, 0] -> rule
//! ```
//!
//! Three structures share the search ([`axis`]): the **cross product** of the classes ([`cross`]), **bit vectors**
//! whose bits are rules, and bit vectors some of whose bits are **tuples** of rules ([`plan`], [`tuples`]). The
//! compiler takes the first if it fits a cache, the second up to 1,024 rules, else the third. Keys are worked on
//! in blocks of [`BLOCK`], stage by stage, with as few branches as can be: a wrongly predicted one costs as much as
//! intersecting ten rows.
//!
//! **Invariant.** A row's bit of a direct rule is exact; a tuple's bit may be set in vain but never missing. So the
//! smallest code among the direct bits left and the entries verified is the first rule that matches.
//!
//! **Bounds, whatever the rules** (asserted by counters in the tests): 4 searches of at most 8 nodes, 32 chunks of 4
//! rows, 64 probes, 16 entries verified per probe. A list that does not fit them, or its memory bound, is an error.
//!
//! # What lost, by how much
//!
//! Nanoseconds per key, burst 32, uniform traces, one thread of a shared machine; the first column is what is used.
//!
//! | shape | taken | against |
//! |---|---|---|
//! | tiny, 16 rules | cross product 6.1 | bit vectors 6.7 |
//! | one pod, 256 / 1,000 / 5,000 rules | cross product 7.3 / 7.5 / 8.6 | vectors (the last with tuples) 8.8 / 10.8 / 17.4; tuples 9.4 / 15.9 / 17.5 |
//! | nested prefixes times ranges, 8,193 rules | cross product 8.0 | vectors with the overfull buckets as direct bits 50 |
//! | ACL, 1k rules (acl1, fw1, ipc1) | vectors 12.6 / 13.4 / 14.7 | tuples 16.9 / 17.1 / 19.9 |
//! | ACL, 10k rules | vectors and tuples 22 / 21 / 35 | vectors alone 68 / 68 / 70; no shape dissolved 23 / 36 / 38 |
//! | node exit, 10,000 rules | vectors and tuples 19 | vectors alone 75; no shape dissolved 29 |
//!
//! Also tried: loosening the tuples' intervals by joining those up to 256 or 4,096 addresses apart, for a smaller
//! search tree: within 5 % on node-exit lists, 17 % slower on acl1.10k and up to 41 % on ipc1.10k, because rows let
//! more probes through. Plain tuple space search without rows has to probe 5 to 21 merged tuples per key on the same
//! lists; rows leave 1.0 to 2.0.

pub(crate) mod address;
mod axis;
mod cross;
mod plan;
mod rules;
mod tuples;
mod vectors;

use std::ops::Add;
use std::sync::Arc;

use address::{Address, Fields};
use axis::{Axis, Cover, Cut, Rows, Search};
pub(crate) use rules::Protocols;
use rules::{LiveRules, port_interval};

use crate::simd::{Chunk, Simd};
use crate::{BuildError, BuildOptions, Rule};
use cross::Cross;
use vectors::Vectors;

/// Keys that are searched together. 32 is the burst of AF_XDP and DPDK drivers; the misses of 32 keys overlap.
pub(crate) const BLOCK: usize = 32;

/// Up to `N` keys of one family, field by field.
#[derive(Clone, Debug)]
pub(crate) struct Block<A, const N: usize> {
    len: usize,
    src: [A; N],
    dst: [A; N],
    service: [u32; N],
    src_port: [u32; N],
}

impl<A: Address, const N: usize> Block<A, N> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self { len: 0, src: [A::ZERO; N], dst: [A::ZERO; N], service: [0; N], src_port: [0; N] }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, packet: Fields<A>) {
        let at = self.len;
        self.src[at] = packet.src;
        self.dst[at] = packet.dst;
        self.service[at] = packet.service;
        self.src_port[at] = packet.src_port;
        self.len = at + 1;
    }

    #[inline(always)]
    fn packet(&self, at: usize) -> Fields<A> {
        Fields { src: self.src[at], dst: self.dst[at], service: self.service[at], src_port: self.src_port[at] }
    }
}

/// The four axes of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axes<A> {
    src: Axis<A>,
    dst: Axis<A>,
    service: Axis<u32>,
    src_port: Axis<u32>,
}

/// The class of each key on each axis.
pub(crate) type Classes<const N: usize> = [[u32; N]; 4];

impl<A: Address> Axes<A> {
    /// The classes of one packet.
    #[inline(always)]
    fn classes_of<S: Simd>(&self, simd: S, packet: &Fields<A>) -> [u32; 4] {
        [
            self.src.class(simd, packet.src),
            self.dst.class(simd, packet.dst),
            self.service.class(simd, packet.service),
            self.src_port.class(simd, packet.src_port),
        ]
    }

    /// The classes of each packet of a block.
    #[inline(always)]
    fn classes<S: Simd, const N: usize>(&self, simd: S, block: &Block<A, N>) -> Classes<N> {
        let mut classes = [[0; N]; 4];
        let n = block.len;
        let [src, dst, service, src_port] = &mut classes;
        simd.call(Search { axis: &self.src, points: &block.src[..n], classes: &mut src[..n] });
        simd.call(Search { axis: &self.dst, points: &block.dst[..n], classes: &mut dst[..n] });
        simd.call(Search { axis: &self.service, points: &block.service[..n], classes: &mut service[..n] });
        simd.call(Search { axis: &self.src_port, points: &block.src_port[..n], classes: &mut src_port[..n] });
        classes
    }

    /// Replaces the classes of each axis by numbers derived from them.
    fn renumber(&mut self, [src, dst, service, src_port]: [impl Fn(u32) -> u32; 4]) {
        self.src.renumber(src);
        self.dst.renumber(dst);
        self.service.renumber(service);
        self.src_port.renumber(src_port);
    }

    fn bytes(&self) -> usize {
        self.src.bytes() + self.dst.bytes() + self.service.bytes() + self.src_port.bytes()
    }

    fn depth(&self) -> usize {
        self.src.depth() + self.dst.depth() + self.service.depth() + self.src_port.depth()
    }
}

/// The axes, and the rows of each one's classes.
type Pieces<A> = (Axes<A>, [Rows; 4]);

/// What candidates cover on the four axes.
struct Covers<A> {
    src: Cover<A>,
    dst: Cover<A>,
    service: Cover<u32>,
    src_port: Cover<u32>,
    words: usize,
}

impl<A: Address> Covers<A> {
    fn new(bits: usize, words: usize) -> Self {
        Self {
            src: Cover::new(bits),
            dst: Cover::new(bits),
            service: Cover::new(bits),
            src_port: Cover::new(bits),
            words,
        }
    }

    fn add_rule(&mut self, bit: u32, live: &LiveRules<'_, A>, rule: usize) {
        let rule = &live.rules[rule];
        rule.src.iter().for_each(|&(first, last)| self.src.add(bit, first, last));
        rule.dst.iter().for_each(|&(first, last)| self.dst.add(bit, first, last));
        live.services(rule).iter().for_each(|&(first, last)| self.service.add(bit, first, last));
        let (first, last) = port_interval(rule.src_ports);
        self.src_port.add(bit, first, last);
    }

    fn add_entry(&mut self, bit: u32, entry: &plan::Entry<A>) {
        let (src, dst) = (entry.src, entry.dst);
        self.src.add(bit, src.0, src.0.xor(A::mask(src.1).not()));
        self.dst.add(bit, dst.0, dst.0.xor(A::mask(dst.1).not()));
        self.service.add(bit, entry.service.0, entry.service.1);
        let (first, last) = port_interval(entry.src_ports);
        self.src_port.add(bit, first, last);
    }

    /// The axes and their rows; none when an axis has more classes than `max_classes`.
    fn cut(self, max_classes: usize, options: &BuildOptions<'_>) -> Result<Option<Pieces<A>>, BuildError> {
        let cut = Cut { words: self.words, max_classes, options };
        let Some((src, a)) = self.src.cut(&cut)? else { return Ok(None) };
        let Some((dst, b)) = self.dst.cut(&cut)? else { return Ok(None) };
        let Some((service, c)) = self.service.cut(&cut)? else { return Ok(None) };
        let Some((src_port, d)) = self.src_port.cut(&cut)? else { return Ok(None) };
        Ok(Some((Axes { src, dst, service, src_port }, [a, b, c, d])))
    }
}

/// What the lookup of one key costs at most, counted and not timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Search nodes visited on the four axes.
    pub steps: usize,
    /// Chunks of 512 candidates intersected.
    pub chunks: usize,
    /// Tuples probed.
    pub probes: usize,
    /// Rules verified one by one.
    pub entries: usize,
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            chunks: self.chunks + other.chunks,
            probes: self.probes + other.probes,
            entries: self.entries + other.entries,
        }
    }
}

/// The rules of one family, compiled. A copy shares everything but what was taken out since.
#[derive(Clone, Debug)]
pub(crate) struct Family<A> {
    shared: Arc<Shared<A>>,
    retracted: Retracted,
}

#[derive(Debug)]
struct Shared<A> {
    axes: Axes<A>,
    matcher: Matcher<A>,
}

/// Rules that were taken out after the build.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retracted {
    /// The bits of the candidates that are left, chunk by chunk.
    live: Vec<Chunk>,
    /// The codes that no longer count, ascending.
    codes: Vec<u32>,
}

#[derive(Debug)]
enum Matcher<A> {
    Cross(Cross),
    Vectors(Vectors<A>),
}

/// What the compiler may choose from. Tests forbid structures to see the others work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    /// The most cells of a cross product.
    pub(crate) cells: usize,
    /// The longest list whose rules are all direct.
    pub(crate) all_direct: usize,
    /// The most bits that small tuples are dissolved into.
    pub(crate) dissolved: usize,
}

impl Choice {
    /// One bit for each of at most 64 rules.
    pub(crate) const BITS: Self = Self { cells: 0, all_direct: 64, dissolved: 0 };
}

impl Default for Choice {
    fn default() -> Self {
        Self { cells: cross::MAX_CELLS, all_direct: plan::ALL_DIRECT, dissolved: plan::DISSOLVED }
    }
}

impl<A: Address> Family<A> {
    pub(crate) fn build(
        rules: &[Rule],
        protocols: &Protocols,
        options: &BuildOptions<'_>,
        choice: Choice,
    ) -> Result<Self, BuildError> {
        options.proceed()?;
        let live = LiveRules::new(rules, protocols);
        // A family of few rules in a long list is no cross product, so that it can change with the list.
        let cross = if rules.len() > cross::MAX_RULES { None } else { Cross::build(&live, options, choice.cells)? };
        let (shared, live) = match cross {
            Some((axes, cross)) => (Shared { axes, matcher: Matcher::Cross(cross) }, Vec::new()),
            None => {
                let (axes, vectors) = Vectors::build(&live, options, choice)?;
                let live = vec![Chunk([u64::MAX; 8]); vectors.chunks()];
                (Shared { axes, matcher: Matcher::Vectors(vectors) }, live)
            }
        };
        let family = Self { shared: Arc::new(shared), retracted: Retracted { live, codes: Vec::new() } };
        let max_bytes = options.max_bytes;
        if family.bytes() > max_bytes { Err(BuildError::TooLarge { max_bytes }) } else { Ok(family) }
    }

    /// The same rules without that of this code; none when only another build can do that.
    pub(crate) fn without(&self, code: u32) -> Option<Self> {
        let mut family = self.clone();
        let vectors = match &self.shared.matcher {
            Matcher::Vectors(vectors) => vectors,
            Matcher::Cross(cross) => return (!cross.holds(code)).then_some(family),
        };
        if let Some((chunk, at)) = vectors.place(code) {
            family.retracted.live[chunk].0[at / 64] &= !(1 << (at % 64));
        }
        let codes = &mut family.retracted.codes;
        codes.insert(codes.partition_point(|&gone| gone < code), code);
        Some(family)
    }

    /// The verdict codes of a block.
    #[inline(always)]
    pub(crate) fn decide<S: Simd, const N: usize>(&self, simd: S, block: &Block<A, N>) -> [u32; N] {
        let Shared { axes, matcher } = &*self.shared;
        let classes = axes.classes(simd, block);
        match matcher {
            Matcher::Cross(cross) => cross.decide(&classes, block.len),
            Matcher::Vectors(vectors) => vectors.decide(simd, &classes, block, &self.retracted),
        }
    }

    /// The verdict code of one packet. Not a block of one: what goes through an array in memory has to be stored before
    /// it is loaded, which took half of the time.
    #[inline(always)]
    pub(crate) fn decide_one<S: Simd>(&self, simd: S, packet: &Fields<A>) -> u32 {
        let Shared { axes, matcher } = &*self.shared;
        let classes = axes.classes_of(simd, packet);
        match matcher {
            Matcher::Cross(cross) => cross.decide_one(classes),
            Matcher::Vectors(vectors) => vectors.decide_one(simd, classes, packet, &self.retracted),
        }
    }

    /// What one packet costs.
    pub(crate) fn cost<S: Simd>(&self, simd: S, packet: &Fields<A>) -> Cost {
        let Shared { axes, matcher } = &*self.shared;
        let steps = axes.depth();
        match matcher {
            Matcher::Cross(_) => Cost { steps, ..Cost::default() },
            Matcher::Vectors(vectors) => Cost { steps, ..vectors.cost(axes.classes_of(simd, packet), packet) },
        }
    }

    /// The most that a packet costs.
    pub(crate) fn worst_case(&self) -> Cost {
        let steps = self.shared.axes.depth();
        match &self.shared.matcher {
            Matcher::Cross(_) => Cost { steps, ..Cost::default() },
            Matcher::Vectors(vectors) => Cost { steps, ..vectors.worst_case() },
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shared.axes.bytes()
            + match &self.shared.matcher {
                Matcher::Cross(cross) => cross.bytes(),
                Matcher::Vectors(vectors) => vectors.bytes(),
            }
    }

    pub(crate) fn describe(&self) -> String {
        let depth = self.shared.axes.depth();
        match &self.shared.matcher {
            Matcher::Cross(cross) => format!("cross product of {} cells, {depth} search steps", cross.cells()),
            Matcher::Vectors(vectors) => format!("{}, {depth} search steps", vectors.describe()),
        }
    }
}
