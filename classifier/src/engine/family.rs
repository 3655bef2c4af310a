//! The compiled list of one family: its structure, and the rules removed since.

use std::sync::Arc;

use super::address::{Address, Fields};
use super::choice::Choice;
use super::cross::Cross;
use super::moves::Move;
use super::pruning::Pruned;
use super::rules::{LiveRules, Protocols, intervals};
use super::segments::{self, Segments};
use super::vectors::Vectors;
use super::{Axes, Block, Cost};
use crate::simd::{Chunk, Simd};
use crate::{BuildError, BuildOptions, Rule};

/// The compiled rules of one family. Clones share everything but the removals.
#[derive(Clone, Debug)]
pub(crate) struct Family<A> {
    matcher: Arc<Matcher<A>>,
    retracted: Retracted,
}

/// The rules that were removed after the build, in two forms.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retracted {
    /// Bits of the candidates that are not removed, chunk by chunk.
    live: Vec<Chunk>,
    /// The codes of removed rules, ascending.
    codes: Vec<u32>,
}

impl Retracted {
    /// Clears the bits of the direct rules with these codes. `places` maps a rule's code to the chunk and bit of each of its bits.
    fn clear<P: Iterator<Item = (usize, usize)>>(&mut self, codes: &[u32], places: impl Fn(u32) -> P) {
        for (chunk, at) in codes.iter().flat_map(|&code| places(code)) {
            self.live[chunk].0[at / 64] &= !(1 << (at % 64));
        }
    }
}

#[derive(Debug)]
enum Matcher<A> {
    Cross(Axes<A>, Cross),
    Pruned(Pruned<A>),
    Vectors(Axes<A>, Vectors<A>),
    Segments(Segments<A>),
}

impl<A: Address> Family<A> {
    pub(crate) fn build(
        rules: &[Rule],
        protocols: &Protocols,
        options: &BuildOptions<'_>,
        choice: Choice,
    ) -> Result<Self, BuildError> {
        Self::of(&LiveRules::new(rules, protocols, intervals, intervals), options, choice)
    }

    /// Compiles rules whose fields are intervals already, of addresses or of their numbers.
    ///
    /// # Errors
    /// As [`build`](Self::build): [`BuildError`] if the rules exceed a bound or `options.max_bytes`, or if the build was stopped.
    pub(super) fn of(live: &LiveRules<'_, A>, options: &BuildOptions<'_>, choice: Choice) -> Result<Self, BuildError> {
        options.proceed()?;
        let whole = match choice.segment {
            Some(_) => Err(BuildError::TooComplex),
            None => Self::whole(live, options, choice),
        };
        let is_short = live.rules.len() <= choice.segment.unwrap_or(segments::SEGMENT);
        match whole {
            Err(BuildError::TooComplex | BuildError::TooLarge { .. }) if choice.segment.is_some() || !is_short => {
                let segments = Segments::build(live, options, choice.segment.unwrap_or(segments::SEGMENT))?;
                let chunks = segments.chunks();
                Ok(Self::new(Matcher::Segments(segments), chunks))
            }
            built => built,
        }
    }

    fn new(matcher: Matcher<A>, chunks: usize) -> Self {
        let live = vec![Chunk([u64::MAX; 8]); chunks];
        Self { matcher: Arc::new(matcher), retracted: Retracted { live, codes: Vec::new() } }
    }

    /// Compiles the whole list into one structure.
    fn whole(live: &LiveRules<'_, A>, options: &BuildOptions<'_>, choice: Choice) -> Result<Self, BuildError> {
        let family = if let Some((axes, cross)) = Cross::build(live, options, choice.cells)? {
            Self::new(Matcher::Cross(axes, cross), 0)
        } else if let Some(pruned) = Pruned::build(live, options, choice)? {
            Self::new(Matcher::Pruned(pruned), 0)
        } else {
            let (axes, vectors) = Vectors::build(live, options, choice)?;
            let chunks = vectors.chunks();
            Self::new(Matcher::Vectors(axes, vectors), chunks)
        };
        let max_bytes = options.max_bytes;
        if family.bytes() > max_bytes { Err(BuildError::TooLarge { max_bytes }) } else { Ok(family) }
    }

    /// Returns the list without the rules of these codes, after these moves. `None` if only a full build can apply the changes.
    pub(crate) fn changed(&self, moves: &[Move], gone: &[u32]) -> Option<Self> {
        let mut family = self.clone();
        match &*self.matcher {
            Matcher::Cross(axes, cross) => {
                let mut cross = cross.clone();
                let axes = cross.follow(axes, moves)?;
                return cross.take_out(gone).then(|| Self { matcher: Arc::new(Matcher::Cross(axes, cross)), ..family });
            }
            _ if !moves.is_empty() => return None,
            Matcher::Pruned(_) => {}
            Matcher::Vectors(_, vectors) => family.retracted.clear(gone, |code| vectors.places(code)),
            Matcher::Segments(segments) => family.retracted.clear(gone, |code| segments.places(code)),
        }
        let codes = &mut family.retracted.codes;
        codes.extend(gone);
        codes.sort_unstable();
        Some(family)
    }

    /// Returns the number of address pieces if addresses can move between classes. `None` if the structure does not support moves.
    pub(crate) fn movable(&self) -> Option<usize> {
        match &*self.matcher {
            Matcher::Cross(axes, cross) => cross.rows.is_some().then(|| axes.src.pieces() + axes.dst.pieces()),
            Matcher::Pruned(_) | Matcher::Vectors(..) | Matcher::Segments(_) => None,
        }
    }

    /// Looks up a block of packets. Writes the code of each packet's first matching rule to the first elements of `codes`.
    #[inline(always)]
    pub(crate) fn decide<S: Simd, const N: usize>(&self, simd: S, block: &Block<A, N>, codes: &mut [u32; N]) {
        match &*self.matcher {
            Matcher::Cross(axes, cross) => {
                let mut classes = [[0; N]; 4];
                axes.classes(simd, block, &mut classes);
                cross.decide(&classes, &mut codes[..block.len]);
            }
            Matcher::Pruned(pruned) => pruned.decide(simd, block, &self.retracted.codes, codes),
            Matcher::Vectors(axes, vectors) => {
                let Retracted { live, codes: gone } = &self.retracted;
                let mut classes = [[0; N]; 4];
                axes.classes(simd, block, &mut classes);
                vectors.decide(simd, &classes, block, live, gone, codes);
            }
            Matcher::Segments(segments) => segments.decide(simd, block, &self.retracted.live, codes),
        }
    }

    /// Looks up one packet. A block of one would be slower: values in arrays in memory are stored before they are loaded, which took half
    /// of the time.
    #[inline(always)]
    pub(crate) fn decide_one<S: Simd>(&self, simd: S, packet: &Fields<A>) -> u32 {
        match &*self.matcher {
            Matcher::Cross(axes, cross) => cross.decide_one(axes.classes_of(simd, packet)),
            Matcher::Pruned(pruned) => pruned.decide_one(simd, packet, &self.retracted.codes),
            Matcher::Vectors(axes, vectors) => {
                let Retracted { live, codes } = &self.retracted;
                vectors.decide_one(simd, axes.classes_of(simd, packet), packet, live, codes)
            }
            Matcher::Segments(segments) => segments.decide_one(simd, packet, &self.retracted.live),
        }
    }

    pub(crate) fn cost<S: Simd>(&self, simd: S, packet: &Fields<A>) -> Cost {
        match &*self.matcher {
            Matcher::Cross(axes, _) => Cost { steps: axes.depth(), ..Cost::default() },
            Matcher::Pruned(pruned) => pruned.cost(simd, packet),
            Matcher::Vectors(axes, vectors) => {
                Cost { steps: axes.depth(), ..vectors.cost(axes.classes_of(simd, packet), packet) }
            }
            Matcher::Segments(segments) => segments.cost(simd, packet, &self.retracted.live),
        }
    }

    /// Returns the maximum cost of any lookup.
    pub(crate) fn worst_case(&self) -> Cost {
        match &*self.matcher {
            Matcher::Cross(axes, _) => Cost { steps: axes.depth(), ..Cost::default() },
            Matcher::Pruned(pruned) => pruned.worst_case(),
            Matcher::Vectors(axes, vectors) => Cost { steps: axes.depth(), ..vectors.worst_case() },
            Matcher::Segments(segments) => segments.worst_case(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match &*self.matcher {
            Matcher::Cross(axes, cross) => axes.bytes() + cross.bytes(),
            Matcher::Pruned(pruned) => pruned.bytes(),
            Matcher::Vectors(axes, vectors) => axes.bytes() + vectors.bytes(),
            Matcher::Segments(segments) => segments.bytes(),
        }
    }

    pub(crate) fn describe(&self) -> String {
        match &*self.matcher {
            Matcher::Cross(axes, cross) => {
                format!("cross product of {} cells, {} search steps", cross.cells(), axes.depth())
            }
            Matcher::Pruned(pruned) => pruned.describe(),
            Matcher::Vectors(axes, vectors) => format!("{}, {} search steps", vectors.describe(), axes.depth()),
            Matcher::Segments(segments) => segments.describe(),
        }
    }
}
