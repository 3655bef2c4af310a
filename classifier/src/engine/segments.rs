//! A list in segments, for lists that no structure holds whole: one lookup after the other, until a segment decides.
//!
//! ```text
//!   rules 0..1023 --bit vectors--> a rule decides: done
//!                 `-> none: rules 1024..2047 --bit vectors--> ...   at most 64 of them
//! ```
//!
//! A list is too complex where the whole of it would take too many bits in a row, or too many bytes. A segment is short enough
//! that each of its rules has a bit of its own, whatever the rules are; so a lookup's work is bounded by the number of segments,
//! and the rows take linear space, because those of a segment have a thousand bits and not as many as the list. Verdicts
//! are exact: the first segment with a match has the first match.
//!
//! **What lost.** Tuple space search over all rules: rules that share their prefixes and differ in ranges fall into one bucket,
//! and those are what makes a list too complex, so that the work per probe would be the list again, or rules would have to be
//! left out. A tree that cuts the fields (HiCuts and its successors): a rule with wildcards is copied to both sides of each
//! cut, so that bounding the leaves takes unbounded memory, and bounding the memory unbounded leaves.

use super::address::{Address, Fields};
use super::choice::{ALL_DIRECT, Choice};
use super::rules::LiveRules;
use super::vectors::Vectors;
use super::{Axes, Block, Cost};
use crate::simd::{Chunk, Kernel, Simd};
use crate::{BuildError, BuildOptions};

/// Rules of a segment: rows of two chunks, which a lookup intersects in one go. Longer segments would be fewer, with rows that
/// take as much more memory.
pub(crate) const SEGMENT: usize = ALL_DIRECT;

/// As many segments as there may be tuples. A lookup that passes 40 of them takes 4 us in a burst and 12 alone, where the scan of
/// these 40,000 rules takes 280. A longer list is refused.
const MOST: usize = 64;

/// Chunks of a segment's row, and at most that of the last.
const CHUNKS: usize = 2;

#[derive(Clone, Debug)]
struct Segment<A> {
    axes: Axes<A>,
    vectors: Vectors<A>,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Segments<A> {
    segments: Vec<Segment<A>>,
}

impl<A: Address> Segments<A> {
    /// Of so many rules each, at most [`SEGMENT`].
    ///
    /// # Errors
    /// [`BuildError::TooComplex`] of a list of too many segments.
    pub(crate) fn build(live: &LiveRules<'_, A>, options: &BuildOptions<'_>, each: usize) -> Result<Self, BuildError> {
        if live.rules.len() > MOST * each {
            return Err(BuildError::TooComplex);
        }
        let choice = Choice { all_direct: each, ..Choice::default() };
        let (mut segments, mut left) = (Vec::new(), options.max_bytes);
        let too_large = || BuildError::TooLarge { max_bytes: options.max_bytes };
        for rules in live.rules.chunks(each) {
            // What the segments before have taken is not there for the others.
            let options = BuildOptions { max_bytes: left, ..*options };
            let (axes, vectors) = match Vectors::build(&live.with(rules), &options, choice) {
                Err(BuildError::TooLarge { .. }) => return Err(too_large()),
                built => built?,
            };
            left = left.checked_sub(axes.bytes() + vectors.bytes()).ok_or_else(too_large)?;
            segments.push(Segment { axes, vectors });
        }
        Ok(Self { segments })
    }

    /// Chunks that say which candidates of all segments are left.
    pub(crate) fn chunks(&self) -> usize {
        self.segments.len() * CHUNKS
    }

    #[inline(always)]
    pub(crate) fn decide<S: Simd, const N: usize>(&self, simd: S, block: &Block<A, N>, live: &[Chunk]) -> [u32; N] {
        let mut codes = [u32::MAX; N];
        // A function of its own: the structures that lists have otherwise should not share their registers with this one.
        simd.call(Decide { segments: self, block, live, codes: &mut codes });
        codes
    }

    #[inline(always)]
    pub(crate) fn decide_one<S: Simd>(&self, simd: S, packet: &Fields<A>, live: &[Chunk]) -> u32 {
        let decided = self.segments.iter().zip(live.chunks(CHUNKS)).map(|(Segment { axes, vectors }, live)| {
            vectors.decide_one(simd, axes.classes_of(simd, packet), packet, live, &[])
        });
        decided.into_iter().find(|&code| code != u32::MAX).unwrap_or(u32::MAX)
    }

    /// What one packet costs.
    pub(crate) fn cost<S: Simd>(&self, simd: S, packet: &Fields<A>, live: &[Chunk]) -> Cost {
        let mut cost = Cost::default();
        for (Segment { axes, vectors }, live) in self.segments.iter().zip(live.chunks(CHUNKS)) {
            let classes = axes.classes_of(simd, packet);
            cost = cost + Cost { steps: axes.depth(), ..vectors.cost(classes, packet) };
            if vectors.decide_one(simd, classes, packet, live, &[]) != u32::MAX {
                break;
            }
        }
        cost
    }

    /// The most that a packet costs.
    pub(crate) fn worst_case(&self) -> Cost {
        let cost = |Segment { axes, vectors }: &Segment<A>| Cost { steps: axes.depth(), ..vectors.worst_case() };
        self.segments.iter().map(cost).fold(Cost::default(), |sum, cost| sum + cost)
    }

    /// The place of a rule's bit among the chunks of all segments.
    pub(crate) fn place(&self, code: u32) -> Option<(usize, usize)> {
        let place = |(at, segment): (usize, &Segment<A>)| {
            segment.vectors.place(code).map(|(chunk, place)| (at * CHUNKS + chunk, place))
        };
        self.segments.iter().enumerate().find_map(place)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.segments.iter().map(|Segment { axes, vectors }| axes.bytes() + vectors.bytes()).sum()
    }

    pub(crate) fn describe(&self) -> String {
        format!("{} segments of at most {SEGMENT} rules as bit vectors", self.segments.len())
    }
}

/// Asks one segment after the other about the keys that are left.
struct Decide<'a, A, const N: usize> {
    segments: &'a Segments<A>,
    block: &'a Block<A, N>,
    live: &'a [Chunk],
    codes: &'a mut [u32; N],
}

impl<A: Address, const N: usize> Kernel for Decide<'_, A, N> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut block = self.block.clone();
        // Where each key of the block stood at first.
        let mut places: [usize; N] = std::array::from_fn(|at| at);
        for (Segment { axes, vectors }, live) in self.segments.segments.iter().zip(self.live.chunks(CHUNKS)) {
            let decided = vectors.decide(simd, &axes.classes(simd, &block), &block, live, &[]);
            let mut left = Block::new();
            for at in 0..block.len {
                if decided[at] == u32::MAX {
                    places[left.len] = places[at];
                    left.push(block.packet(at));
                } else {
                    self.codes[places[at]] = decided[at];
                }
            }
            block = left;
            if block.len == 0 {
                break;
            }
        }
    }
}
