//! One family's compiled rules (IPv4 or IPv6).
pub(crate) mod address;
mod axis;
mod cross;
mod plan;
mod rules;
mod tuples;
mod vectors;

use address::Address;
use axis::{Axis, Cover, Rows};
use rules::{LiveRules, port_interval};
pub(crate) use rules::Protocols;
pub(crate) use tuples::Fields;

use crate::simd::Simd;
use cross::Cross;
use vectors::Vectors;

/// Keys that are searched together. 32 is the burst of AF_XDP and DPDK drivers; the misses of 32 keys overlap.
pub(crate) const BLOCK: usize = 32;

/// Up to `N` keys of one family, field by field.
#[derive(Clone, Debug)]
pub(crate) struct Block<A, const N: usize> {
    pub(crate) len: usize,
    pub(crate) src: [A; N],
    pub(crate) dst: [A; N],
    pub(crate) service: [u32; N],
    pub(crate) src_port: [u32; N],
}

impl<A: Address, const N: usize> Block<A, N> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self { len: 0, src: [A::ZERO; N], dst: [A::ZERO; N], service: [0; N], src_port: [0; N] }
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, fields: Fields<A>) {
        let at = self.len;
        self.src[at] = fields.src;
        self.dst[at] = fields.dst;
        self.service[at] = fields.service;
        self.src_port[at] = fields.src_port;
        self.len = at + 1;
    }

    #[inline(always)]
    pub(crate) fn fields(&self, at: usize) -> Fields<A> {
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
    #[inline(always)]
    fn classes<S: Simd, const N: usize>(&self, simd: S, block: &Block<A, N>) -> Classes<N> {
        let mut classes = [[0; N]; 4];
        let n = block.len;
        self.src.classes(simd, &block.src[..n], &mut classes[0][..n]);
        self.dst.classes(simd, &block.dst[..n], &mut classes[1][..n]);
        self.service.classes(simd, &block.service[..n], &mut classes[2][..n]);
        self.src_port.classes(simd, &block.src_port[..n], &mut classes[3][..n]);
        classes
    }

    fn bytes(&self) -> usize {
        self.src.bytes() + self.dst.bytes() + self.service.bytes() + self.src_port.bytes()
    }

    fn depth(&self) -> usize {
        self.src.depth() + self.dst.depth() + self.service.depth() + self.src_port.depth()
    }
}

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
        Self { src: Cover::new(bits), dst: Cover::new(bits), service: Cover::new(bits), src_port: Cover::new(bits), words }
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
    fn cut(self, max_classes: usize) -> Option<(Axes<A>, [Rows; 4])> {
        let (src, a) = self.src.cut(self.words, max_classes)?;
        let (dst, b) = self.dst.cut(self.words, max_classes)?;
        let (service, c) = self.service.cut(self.words, max_classes)?;
        let (src_port, d) = self.src_port.cut(self.words, max_classes)?;
        Some((Axes { src, dst, service, src_port }, [a, b, c, d]))
    }
}

/// The rules of one family, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Family<A> {
    axes: Axes<A>,
    matcher: Matcher<A>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Matcher<A> {
    Cross(Cross),
    Vectors(Vectors<A>),
}

impl<A: Address> Family<A> {
    pub(crate) fn build(rules: &[crate::Rule], protocols: &Protocols) -> Result<Self, crate::BuildError> {
        let live = LiveRules::new(rules, protocols);
        if let Some((axes, cross)) = Cross::build(&live) {
            return Ok(Self { axes, matcher: Matcher::Cross(cross) });
        }
        let (axes, vectors) = Vectors::build(&live)?;
        Ok(Self { axes, matcher: Matcher::Vectors(vectors) })
    }

    /// The verdict codes of a block.
    #[inline(always)]
    pub(crate) fn decide<S: Simd, const N: usize>(&self, simd: S, block: &Block<A, N>) -> [u32; N] {
        let classes = self.axes.classes(simd, block);
        match &self.matcher {
            Matcher::Cross(cross) => cross.decide(&classes, block.len),
            Matcher::Vectors(vectors) => vectors.decide(simd, &classes, block),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.axes.bytes()
            + match &self.matcher {
                Matcher::Cross(cross) => cross.bytes(),
                Matcher::Vectors(vectors) => vectors.bytes(),
            }
    }

    pub(crate) fn describe(&self) -> String {
        let depth = self.axes.depth();
        match &self.matcher {
            Matcher::Cross(cross) => format!("cross product of {} cells, {depth} search steps", cross.cells()),
            Matcher::Vectors(vectors) => format!("{}, {depth} search steps", vectors.describe()),
        }
    }
}
