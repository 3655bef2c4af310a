//! Divides the rules of bit vectors by their addresses, so that a lookup intersects one chunk instead of two.
//!
//! ```text
//!   destinations:  |---- side 0 ----|---- side 1 ----|-- side 2 --|     a rule has a bit on each side that it may cover
//!   row of a class of destinations: the chunk of its side. Rows of the other axes: a chunk for each side
//! ```
//!
//! A list of 513 to 1,024 rules takes two chunks of every row, eight cache lines per key. If few rules are on several sides, a chunk has
//! room for all rules of a side, and only the side of the key's address matters.

use std::collections::HashMap;

use ahash::RandomState;

use super::address::Address;
use super::axis::Axis;
use super::choice::{CHUNK_BITS, CHUNK_CODES};
use super::cover::Rows;
use super::rules::LiveRules;
use super::{Axes, Classes};
use crate::simd::{Chunk, Kernel, Simd};

/// Maximum of sides. With more, the rows of the other axes would take more than half as much memory again as undivided ones.
pub(super) const MOST: usize = 3;

/// Position of the side's number in the class number of the divided axis. The bits below it are the index of a row.
const SHIFT: u32 = 30;

/// A division of the source or destination addresses, and the rules of each side.
pub(super) struct Sides<A> {
    /// The divided axis: 0 for sources, 1 for destinations.
    pub(super) axis: usize,
    /// The first address of each side but the first, ascending. A rule's addresses begin there.
    begins: Vec<A>,
    /// Positions of each side's rules among the live rules, ascending.
    pub(super) rules: Vec<Vec<u32>>,
}

impl<A: Address> Sides<A> {
    /// Divides the axis that needs fewer sides. If both need the same number, divides the one with more distinct spans of addresses, because
    /// that saves more memory. `None` if both axes need more than [`MOST`] sides of at most `most` rules each, or if the rows could take more
    /// than half of `max_bytes`.
    pub(super) fn of(live: &LiveRules<'_, A>, direct: &[u32], most: usize, max_bytes: usize) -> Option<Self> {
        let rules = || direct.iter().map(|&at| &live.rules[at as usize]);
        // An interval ends one piece and begins another. Source ports are one interval.
        let intervals =
            rules().map(|rule| rule.src.len() + rule.dst.len() + live.services(rule).len() + 1).sum::<usize>();
        if intervals > max_bytes / 2 / (2 * MOST * size_of::<Chunk>()) {
            return None;
        }
        // The first and the last address. Rules without addresses are not live.
        let span = |intervals: &[(A, A)]| (intervals[0].0, intervals[intervals.len() - 1].1);
        let spans = [rules().map(|rule| span(rule.src)).collect(), rules().map(|rule| span(rule.dst)).collect()];
        let divided = spans.into_iter().enumerate().filter_map(|(axis, spans): (usize, Vec<(A, A)>)| {
            let mut sorted = spans.clone();
            sorted.sort_unstable();
            let same = sorted.windows(2).filter(|pair| pair[0] == pair[1]).count();
            divide(sorted, most).map(|begins| (begins.len(), same, axis, begins, spans))
        });
        let (.., axis, begins, spans) = divided.min_by_key(|&(sides, same, ..)| (sides, same))?;
        let mut rules = vec![Vec::new(); begins.len() + 1];
        for (&(first, last), &rule) in spans.iter().zip(direct) {
            rules[side(&begins, first)..=side(&begins, last)].iter_mut().for_each(|rules| rules.push(rule));
        }
        Some(Self { axis, begins, rules })
    }

    /// Returns the bit of each rule of each side, and the rule's position among the live rules.
    pub(super) fn bits(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let side = |(side, rules): (usize, &Vec<u32>)| (side * CHUNK_BITS..).zip(rules.clone());
        self.rules.iter().enumerate().flat_map(side)
    }

    /// Reduces each row of the divided axis to the chunk of its side. A class with pieces on several sides becomes several classes.
    pub(super) fn reduce(&self, axes: &mut Axes<A>, rows: &mut [Rows; 4]) {
        let rows = &mut rows[self.axis];
        let (mut known, mut bits) = (HashMap::<_, _, RandomState>::default(), Vec::new());
        self.divided(axes).renumber_pieces(|last, class| {
            let side = side(&self.begins, last);
            let next = u32::try_from(known.len()).expect("at most a class per piece");
            *known.entry((class, side)).or_insert_with(|| {
                bits.extend_from_slice(&rows.row(class as usize)[side * CHUNK_BITS / 64..][..CHUNK_BITS / 64]);
                next
            })
        });
        *rows = Rows { words: CHUNK_BITS / 64, bits };
    }

    /// Adds the side to the class numbers of the divided axis, for [`SideLines::first`].
    pub(super) fn mark(&self, axes: &mut Axes<A>) {
        self.divided(axes).renumber_pieces(|last, row| {
            debug_assert!(row < 1 << SHIFT, "rows of 64 GiB");
            row | u32::try_from(side(&self.begins, last)).expect("below MOST") << SHIFT
        });
    }

    fn divided<'a>(&self, axes: &'a mut Axes<A>) -> &'a mut Axis<A> {
        if self.axis == 0 { &mut axes.src } else { &mut axes.dst }
    }
}

/// Returns the number of the side that an address is on.
fn side<A: Address>(begins: &[A], address: A) -> usize {
    begins.partition_point(|begin| *begin <= address)
}

/// Returns the first address of each side but the first, so that each side has at most `most` of the spans of addresses, which ascend.
/// `None` if that takes more than [`MOST`] sides.
fn divide<A: Address>(mut left: Vec<(A, A)>, most: usize) -> Option<Vec<A>> {
    let mut begins = Vec::new();
    while let Some(&(begin, _)) = left.get(most) {
        // The spans before this one begin earlier, except those of the same address, which leave room on the side.
        if begins.len() + 1 == MOST || begins.last().is_some_and(|&last| begin <= last) {
            return None;
        }
        begins.push(begin);
        left.retain(|&(_, last)| last >= begin);
    }
    Some(begins)
}

/// The operands of intersections on one side.
#[derive(Clone, Copy)]
pub(super) struct SideLines<'a> {
    pub(super) rows: &'a [Chunk],
    /// The divided axis: 0 for sources, 1 for destinations.
    pub(super) axis: usize,
    /// Bits of the rules not removed, a chunk for each side.
    pub(super) live: &'a [Chunk],
    /// The verdict code of each bit, [`CHUNK_CODES`] for each side.
    pub(super) codes: &'a [u32],
}

impl SideLines<'_> {
    /// Returns a pair of the sources' and the destinations' in the order that [`Self::first`] takes: the divided axis first.
    #[inline(always)]
    pub(super) const fn ordered<T: Copy>(&self, src: T, dst: T) -> (T, T) {
        if self.axis == 0 { (src, dst) } else { (dst, src) }
    }

    /// Returns the code of the first rule that matches a key of this class of the divided axis, and these of the others. `u32::MAX` if none
    /// does.
    #[inline(always)]
    pub(super) fn first<S: Simd>(&self, simd: S, divided: u32, [other, service, src_port]: [u32; 3]) -> u32 {
        let Self { rows, live, codes, .. } = self;
        let (side, at) = ((divided >> SHIFT) as usize, (divided & ((1 << SHIFT) - 1)) as usize);
        let row = |class: u32| &rows[class as usize + side];
        let place = simd.meet([&rows[at], row(other), row(service), row(src_port), &live[side]], 0).1;
        codes[side * CHUNK_CODES + place]
    }
}

/// Writes the code of each key's first matching rule to `best`, `u32::MAX` if none matches.
pub(super) struct MeetSide<'a, const N: usize> {
    pub(super) lines: SideLines<'a>,
    pub(super) classes: &'a Classes<N>,
    pub(super) best: &'a mut [u32],
}

impl<const N: usize> Kernel for MeetSide<'_, N> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { lines, classes: [src, dst, service, src_port], best } = self;
        let (divided, other) = lines.ordered(src, dst);
        let keys = divided.iter().zip(other).zip(service.iter().zip(src_port));
        for (((&divided, &other), (&service, &src_port)), best) in keys.zip(best) {
            *best = lines.first(simd, divided, [other, service, src_port]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn on(begins: &[u32], spans: &[(u32, u32)], wanted: usize) -> usize {
        spans.iter().filter(|&&(first, last)| (side(begins, first)..=side(begins, last)).contains(&wanted)).count()
    }

    proptest! {
        /// Two or three sides, whichever suffice: tries every pair of begins.
        #[test]
        fn sides_are_found_if_there_are_any(
            mut spans in prop::collection::vec((0u32..12, 0u32..12).prop_map(|(a, b)| (a.min(b), a.max(b))), 1..14),
            most in 1usize..9,
        ) {
            spans.sort_unstable();
            let fits = |begins: &[u32]| (0..=begins.len()).all(|side| on(begins, &spans, side) <= most);
            let possible = (0..13).any(|a| (a..13).any(|b| fits(&[a, b])));
            match divide(spans.clone(), most) {
                Some(begins) => prop_assert!(fits(&begins) && begins.is_sorted(), "{begins:?}"),
                None => prop_assert!(!possible),
            }
        }
    }
}
