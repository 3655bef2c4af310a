//! The engine: compiles the rules of one family (IPv4 or IPv6) and looks up keys.
//!
//! ```text
//!                 point -> class           row: class -> bits
//!   source      -- search tree --> 17  --> 0110 1000 ...  -.
//!   destination -- search tree --> 204 --> 0011 1001 ...   |  intersect   direct bit -> that rule
//!   service     -- table --------> 3   --> 1111 1100 ...   +------------> tuple bit  -> hash probe,
//!   source port -- table --------> 0   --> 1111 1111 ...  -'                            verify few
//!
//!   or, where the classes multiply to few:       cells[17, 204, 3, 0] -> rule
//!   or, where a class of sources has few rules:  its own tree over the destinations -> services of four rules -> rule
//!   or, where all of that is too much:           the same for 1,024 rules after the other
//! ```
//!
//! Five structures share the search ([`axis`], [`ports`], cut by [`cover`] and [`sweep`]). The compiler takes the first that fits:
//!
//! * the **cross product** of the classes ([`cross`]), if it fits a cache;
//! * **set pruning** ([`pruning`]), if no rule restricts source ports and classes share few rules;
//! * **bit vectors** ([`vectors`]) with one bit per rule, up to 1,024 rules, divided by their addresses if that saves a chunk ([`sides`]);
//! * bit vectors some of whose bits are **tuples** of rules ([`plan`], [`tuples`]), for longer lists;
//! * **segments** ([`segments`]): bit vectors of 1,024 rules each, searched one after the other.
//!
//! Keys are looked up in blocks of [`BLOCK`], stage by stage, with few branches: a misprediction costs as much as intersecting ten rows.
//!
//! **Invariant.** A direct rule's bit in a row is exact. A tuple's bit may be set needlessly but is never missing. So the smallest code
//! among the remaining direct bits and the verified entries belongs to the first rule that matches. A pruned list has every rule of its
//! class and piece, in order. A segment's rules precede those of the next.
//!
//! **Bounds for any rules** (tests count the steps): 4 searches of at most 8 nodes, 32 chunks of 4 rows, 64 probes, and 16 entries verified
//! per probe; or a pruned list of 32 services; or 64 segments of 4 searches and 2 chunks each. A list that exceeds these bounds or its
//! memory limit is an error. In addition, [`Exceptions`] list the addresses for which the compiled form is out of date, with at most 1,024
//! rules to verify. For very large sets, a [`Projection`] tests the membership in at most 4 sets per side, and searches once more.
//!
//! **IPv6** addresses become 32-bit numbers first, where the list allows it ([`narrow`]). Everything behind that is the same as for IPv4.
//!
//! **After the build** a cross product follows its list: addresses enter and leave sets ([`moves`]), and rules are removed ([`removal`]).
//! In the other structures, removed rules are marked.
//!
//! # Alternatives that lost
//!
//! Nanoseconds per key at burst 32, uniform traces, one thread of a shared machine, best of many passes. Runs differ by a tenth, and by a
//! third for lists that exceed the caches. Each alternative was measured when it lost.
//!
//! | shape | taken | against |
//! |---|---|---|
//! | tiny, 16 rules | cross product 6.3 | bit vectors 6.7 |
//! | one pod, 256 / 1,000 / 5,000 rules | cross product 6.7 / 7.2 / 8.4 | vectors (the last with tuples) 8.8 / 10.8 / 17.4; tuples 9.4 / 15.9 / 17.5 |
//! | nested prefixes times ranges, 8,193 rules | cross product 6.7 | vectors with the overfull buckets as direct bits 50 |
//! | node exit, 10,000 / 50,000 / 200,000 rules | set pruning 8.5 / 12 / 35 | vectors and tuples 20 / 22 / 55; vectors alone 75 (10,000) |
//! | acl1, 1k / 10k / 100k rules | set pruning 9.7 / 10 / 12 | vectors 12.7, vectors and tuples 23 / 22; vectors alone 68 (10k) |
//! | fw1, ipc1, 1k rules | vectors on sides 11.3 / 13.1 | undivided 12.9 / 14.8; tuples 17.1 / 19.9 |
//! | fw1, 10k rules | vectors and tuples 21 | vectors alone 68; no shape dissolved 36 |
//! | ipc1, 10k rules | vectors and tuples 31 (burst 1: 64) | class pairs 20 (burst 1: 38); vectors alone 70 |
//! | 40,000 rules of crossing ranges of both ports | segments 4,000 (burst 1: 12,000) | a scan 280,000 |
//!
//! The 31 ns of ipc1.10k with tuples are 17 for 1.9 probes and 3.7 verified rules, 6 for the search and 4 for the rows. **Class pairs**
//! took two thirds of that time but lost. They had the 1,024 widest rules as bits, and for each pair of a source and a destination class a
//! short list of the others, with source ports. They applied only to lists with source ports, which no policy has. Of the measured lists
//! they fitted only one. The other list of the same seed (pub_ipc_10k), all fw1 lists and the other ipc1 lists exceeded their bounds, and
//! compiled two to five times as long because of the attempt. Without class pairs, ipc1.10k is still 1.2 times as fast as rte_acl, and 2.2
//! times at burst 1. Set pruning with source ports would take 1.5 million lines, 97 MB.
//!
//! Changes within the structures, compared with the time before:
//!
//! * Services and ports in tables instead of search trees: 10 to 15 % faster on lists of 1k rules, 8 % on a pod's list.
//! * The tree's root compared with one point at a time instead of 16 in registers: 4 to 8 % faster.
//! * Prefetching the line of a pruned list as soon as it is known: 10 to 25 % faster. Prefetching the nodes and numbers before it was no
//!   clear gain. Prefetching rows of bits gained up to a tenth on fw1.100k and lost 3 % on lists of 1k rules.
//! * IPv6 addresses as 32-bit numbers: 1.1 to 1.45 times the time of IPv4 on the filter sets with addresses of one network, and 1.6 to 1.8 on
//!   lists of pods, whose numbers are gathered from two places. Nodes with separate halves of the addresses, which the other IPv6 lists have,
//!   took 1.5 to 2.5 times (2.4 to 3.6 on acl1.100k, whose nodes are four times as large), a binary search 2.4 to 3.8 times.
//! * Services and ports searched in functions of their own, so that the tables' addresses stay in registers, and classes and codes written
//!   where the next stage reads them: 10 % faster on lists of 1k rules, 25 % on a pod's list. A copy of a returned array waits until all of
//!   its numbers, which were written one by one, are in the cache.
//!
//! Not taken for rows of two chunks: a summary of each row, 64 bits, one for each 16 bits of the row. The intersection of the summaries
//! names the first word of the rows that may hold a match. That word held the matching rule of only half of ipc1.1k's packets, and of a tenth
//! of fw1.1k's; for the others a lookup has to read further words.
//!
//! Also tried: merging the tuples' intervals that are up to 256 or 4,096 addresses apart, for a smaller search tree. Node-exit lists
//! changed by less than 5 %; acl1.10k was 17 % slower and ipc1.10k up to 41 %, because rows allow more probes. Plain tuple space search
//! without rows probes 5 to 21 merged tuples per key on the same lists; with rows it is 1.0 to 2.0.

pub(crate) mod address;
mod axis;
mod choice;
mod cover;
mod cross;
mod exceptions;
mod family;
mod family_v6;
mod moves;
mod narrow;
mod plan;
mod ports;
mod prefix;
mod probe;
mod projection;
mod pruning;
mod removal;
mod rules;
mod segments;
mod sides;
mod sweep;
mod tuples;
mod vectors;

use std::ops::Add;

use address::{Address, Fields};
use axis::Search;
pub(crate) use axis::{Axis, Classed};
pub(crate) use choice::Choice;
pub(crate) use exceptions::{Changed, Exceptions};
pub(crate) use family::Family;
pub(crate) use family_v6::FamilyV6;
pub(crate) use moves::Move;
use ports::Ports;
pub(crate) use projection::{FamilyProjection, Projection, Reference, Replacements};
pub(crate) use rules::Protocols;

use crate::simd::Simd;

/// Keys looked up together. 32 is the burst of AF_XDP and DPDK drivers; the cache misses of 32 keys overlap.
pub(crate) const BLOCK: usize = 32;

/// Up to `N` keys of one family, stored by field.
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

/// The four axes of one family: source address, destination address, service and source port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axes<A> {
    src: Axis<A>,
    dst: Axis<A>,
    service: Ports,
    src_port: Ports,
}

/// The class of each key on each axis.
pub(crate) type Classes<const N: usize> = [[u32; N]; 4];

impl<A: Address> Axes<A> {
    /// Returns the packet's class on each of the four axes.
    #[inline(always)]
    fn classes_of<S: Simd>(&self, simd: S, packet: &Fields<A>) -> [u32; 4] {
        [
            self.src.class(simd, packet.src),
            self.dst.class(simd, packet.dst),
            self.service.class(packet.service),
            self.src_port.class(packet.src_port),
        ]
    }

    /// Writes the class of each packet of the block, for each axis, to the first elements of `classes`. It is no return value because a copy
    /// of an array waits for the writes of its elements.
    #[inline(always)]
    fn classes<S: Simd, const N: usize>(&self, simd: S, block: &Block<A, N>, classes: &mut Classes<N>) {
        let n = block.len;
        let [src, dst, service, src_port] = classes;
        simd.call(Search { axis: &self.src, points: &block.src[..n], classes: &mut src[..n] });
        simd.call(Search { axis: &self.dst, points: &block.dst[..n], classes: &mut dst[..n] });
        simd.call(ports::Search { ports: &self.service, points: &block.service[..n], classes: &mut service[..n] });
        simd.call(ports::Search { ports: &self.src_port, points: &block.src_port[..n], classes: &mut src_port[..n] });
    }

    /// Replaces the class numbers of each axis by the results of its function.
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

/// The cost of a lookup, in counted steps.
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

impl Cost {
    /// Returns the larger number of each step.
    pub(crate) fn most(self, other: Self) -> Self {
        Self {
            steps: self.steps.max(other.steps),
            chunks: self.chunks.max(other.chunks),
            probes: self.probes.max(other.probes),
            entries: self.entries.max(other.entries),
        }
    }
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
