//! Segments, for lists that fit no structure as a whole: parts that are searched one after the other until one decides.
//!
//! ```text
//!   rules 0..1023 --bit vectors--> a rule decides: done
//!                 `-> none: rules 1024..2047 --bit vectors--> ...   at most 64 of them
//! ```
//!
//! A list is too complex if its rows would have too many bits or bytes. In a segment every rule has its own bit, for any rules. So the
//! number of segments bounds a lookup, and rows take linear space: a row has a thousand bits instead of one per rule of the list. Verdicts
//! are exact: the first segment with a match has the first match.
//!
//! **Alternatives that lost.** Tuple space search over all rules: rules with equal prefixes and different ranges share a bucket. These are
//! the rules that make a list too complex, so a probe would verify the whole list. A tree that cuts the fields (HiCuts and its successors):
//! rules with wildcards are copied to both sides of each cut. Bounded leaves then take unbounded memory, and bounded memory has unbounded
//! leaves.

use super::address::{Address, Fields};
use super::choice::{ALL_DIRECT, CHUNK_BITS, Choice};
use super::rules::LiveRules;
use super::vectors::Vectors;
use super::{Axes, Block, Cost, sides};
use crate::simd::{Chunk, Kernel, Simd};
use crate::{BuildError, BuildOptions};

/// Rules per segment: rows of two chunks, which a lookup intersects at once. Longer segments would be fewer but take proportionally more
/// memory.
pub(crate) const SEGMENT: usize = ALL_DIRECT;

/// Maximum of segments. Passing 40 of them takes 4 us per key in a burst and 12 us alone, where scanning these 40,000 rules takes 280 us.
/// Longer lists are refused.
const MOST: usize = 64;

/// Maximum of chunks in a segment's row. A segment may have fewer.
const CHUNKS: usize = sides::MOST;
const _: () = assert!(SEGMENT <= CHUNKS * CHUNK_BITS);

#[derive(Clone, Debug)]
struct Segment<A> {
    axes: Axes<A>,
    vectors: Vectors<A>,
}

/// A rule list that is divided into consecutive segments, each compiled into bit vectors.
#[derive(Clone, Debug)]
pub(crate) struct Segments<A> {
    segments: Vec<Segment<A>>,
}

impl<A: Address> Segments<A> {
    /// Compiles a list into segments of `each` rules, at most [`SEGMENT`].
    ///
    /// # Errors
    /// [`BuildError::TooComplex`] if the list has more than [`MOST`] segments.
    pub(crate) fn build(live: &LiveRules<'_, A>, options: &BuildOptions<'_>, each: usize) -> Result<Self, BuildError> {
        if live.rules.len() > MOST * each {
            return Err(BuildError::TooComplex);
        }
        let choice = Choice { all_direct: each, ..Choice::default() };
        match Self::with(live, options, each, choice) {
            // Rows with sides may need half as much memory again.
            Err(BuildError::TooLarge { .. }) => Self::with(live, options, each, Choice { side: usize::MAX, ..choice }),
            built => built,
        }
    }

    /// Compiles the segments as `choice` says.
    ///
    /// # Errors
    /// [`BuildError::TooLarge`] if all segments together exceed `options.max_bytes`, and the errors of [`Vectors::build`].
    fn with(
        live: &LiveRules<'_, A>,
        options: &BuildOptions<'_>,
        each: usize,
        choice: Choice,
    ) -> Result<Self, BuildError> {
        let (mut segments, mut left) = (Vec::new(), options.max_bytes);
        let too_large = || BuildError::TooLarge { max_bytes: options.max_bytes };
        for rules in live.rules.chunks(each) {
            // Earlier segments have used up part of the memory limit.
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

    /// Returns the number of chunks for the candidates of all segments.
    pub(crate) fn chunks(&self) -> usize {
        self.segments.len() * CHUNKS
    }

    #[inline(always)]
    pub(crate) fn decide<S: Simd, const N: usize>(
        &self,
        simd: S,
        block: &Block<A, N>,
        live: &[Chunk],
        codes: &mut [u32; N],
    ) {
        *codes = [u32::MAX; N];
        // A separate function, so that the other structures' code does not share its registers.
        simd.call(Decide { segments: self, block, live, codes });
    }

    #[inline(always)]
    pub(crate) fn decide_one<S: Simd>(&self, simd: S, packet: &Fields<A>, live: &[Chunk]) -> u32 {
        let decided = self.segments.iter().zip(live.chunks(CHUNKS)).map(|(Segment { axes, vectors }, live)| {
            vectors.decide_one(simd, axes.classes_of(simd, packet), packet, live, &[])
        });
        decided.into_iter().find(|&code| code != u32::MAX).unwrap_or(u32::MAX)
    }

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

    /// Returns the maximum cost of any lookup.
    pub(crate) fn worst_case(&self) -> Cost {
        let cost = |Segment { axes, vectors }: &Segment<A>| Cost { steps: axes.depth(), ..vectors.worst_case() };
        self.segments.iter().map(cost).fold(Cost::default(), |sum, cost| sum + cost)
    }

    /// Returns the chunk and bit of each bit of a direct rule, among the chunks of all segments. Empty if no direct rule has the code.
    pub(crate) fn places(&self, code: u32) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.segments.iter().enumerate().flat_map(move |(at, segment)| {
            segment.vectors.places(code).map(move |(chunk, bit)| (at * CHUNKS + chunk, bit))
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.segments.iter().map(|Segment { axes, vectors }| axes.bytes() + vectors.bytes()).sum()
    }

    pub(crate) fn describe(&self) -> String {
        format!("{} segments of at most {SEGMENT} rules as bit vectors", self.segments.len())
    }
}

/// For a block of keys, searches the segments in order until each key has a verdict.
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
        // The index of each remaining key in the original block.
        let mut places: [usize; N] = std::array::from_fn(|at| at);
        for (Segment { axes, vectors }, live) in self.segments.segments.iter().zip(self.live.chunks(CHUNKS)) {
            let mut classes = [[0; N]; 4];
            axes.classes(simd, &block, &mut classes);
            let mut decided = [u32::MAX; N];
            vectors.decide(simd, &classes, &block, live, &[], &mut decided);
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
