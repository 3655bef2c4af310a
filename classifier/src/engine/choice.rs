//! Limits of the structures that the compiler chooses from.

use crate::simd::{Chunk, NO_BIT};

/// Bits of a chunk, the unit of a row.
pub(super) const CHUNK_BITS: usize = size_of::<Chunk>() * 8;

/// Codes per chunk: one per bit, and further ones up to [`NO_BIT`].
pub(super) const CHUNK_CODES: usize = NO_BIT + 1;

/// Maximum of cells in a cross product: a megabyte of 16-bit numbers. That fits the L2 cache of the machine where it was measured, and
/// bounds the memory of one pod's table.
pub(crate) const MAX_CELLS: usize = 1 << 19;

/// Maximum of tuples in a table. Their bits fill the first word of a row.
pub(crate) const MAX_TUPLES: usize = 64;

/// Number of rules up to which all are direct: two chunks per row. Measured on the 1k sets against tuples, see the engine's documentation.
pub(crate) const ALL_DIRECT: usize = 1024;

/// Maximum number of rules that get their own bit instead of a small tuple: those that fit one chunk besides the tuples.
pub(crate) const DISSOLVED: usize = CHUNK_BITS - MAX_TUPLES;

/// Minimum number of boundaries of IPv6 sets in a list that is compiled for numbers. Searching fewer addresses takes two nodes at most, and
/// no longer than finding their numbers. Lookups in lists of 500 boundaries take up to a tenth less time with numbers, of 20,000 a third less.
pub(crate) const NARROW: usize = 256;

/// Limits of one build. Tests lower them, so that the compiler takes the other structures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    /// Maximum of cells in a cross product. 0 disables it.
    pub(crate) cells: usize,
    /// Whether set pruning is allowed.
    pub(crate) pruned: bool,
    /// The longest list in which all rules are direct.
    pub(crate) all_direct: usize,
    /// Maximum number of rules that get their own bit instead of a small tuple. See [`DISSOLVED`].
    pub(crate) dissolved: usize,
    /// Maximum number of rules on a side: the bits of a chunk. A list of at most this many direct rules is not divided into sides.
    pub(crate) side: usize,
    /// If set, the list is compiled into segments of this many rules.
    pub(crate) segment: Option<usize>,
    /// Minimum number of boundaries of IPv6 sets in a list that is compiled for numbers. See [`NARROW`].
    pub(crate) narrow: usize,
}

impl Choice {
    /// Forces bit vectors with one bit for each of at most 64 rules.
    pub(crate) const BITS: Self =
        Self { cells: 0, pruned: false, all_direct: 64, dissolved: 0, side: CHUNK_BITS, segment: None, narrow: NARROW };
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            cells: MAX_CELLS,
            pruned: true,
            all_direct: ALL_DIRECT,
            dissolved: DISSOLVED,
            side: CHUNK_BITS,
            segment: None,
            narrow: NARROW,
        }
    }
}
