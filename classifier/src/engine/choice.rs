//! What the compiler may choose from: which structures, up to which sizes.

use crate::simd::Chunk;

/// Bits of a row of one chunk.
pub(super) const CHUNK_BITS: usize = size_of::<Chunk>() * 8;

/// The most combinations that are written down: a megabyte of 16-bit numbers, the cache nearest to a core (L2) on the
/// machine that this was measured on, and the bound on one pod's table.
pub(crate) const MAX_CELLS: usize = 1 << 19;

/// Tuples of a table; their bits fill the first word of a row.
pub(crate) const MAX_TUPLES: usize = 64;

/// Lists up to this length are all direct: two chunks per row. Measured on the 1k sets against tuples of the same
/// rules: see the engine's doc.
pub(crate) const ALL_DIRECT: usize = 1024;

/// Direct rules that small tuples are dissolved into: as many as fit into one chunk beside the tuples.
pub(crate) const DISSOLVED: usize = CHUNK_BITS - MAX_TUPLES;

/// What the compiler may choose from. Tests forbid structures to see the others work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    /// The most cells of a cross product.
    pub(crate) cells: usize,
    /// Whether each class of an address may have a tree of its own.
    pub(crate) pruned: bool,
    /// The longest list whose rules are all direct.
    pub(crate) all_direct: usize,
    /// The most bits that small tuples are dissolved into.
    pub(crate) dissolved: usize,
    /// Forces segments of so many rules.
    pub(crate) segment: Option<usize>,
}

impl Choice {
    /// One bit for each of at most 64 rules.
    pub(crate) const BITS: Self = Self { cells: 0, pruned: false, all_direct: 64, dissolved: 0, segment: None };
}

impl Default for Choice {
    fn default() -> Self {
        Self { cells: MAX_CELLS, pruned: true, all_direct: ALL_DIRECT, dissolved: DISSOLVED, segment: None }
    }
}
