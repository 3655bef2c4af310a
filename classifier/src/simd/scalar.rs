//! The level that every CPU has.

use super::{Chunk, Kernel, NO_BIT, Node, Simd};

/// Plain Rust. The compiler may still use what the target guarantees (SSE2 on x86-64).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

impl Simd for Scalar {
    #[inline(never)]
    fn call<K: Kernel>(self, kernel: K) {
        kernel.run(self);
    }

    #[inline(always)]
    fn rank(self, node: &Node<u32>, point: u32) -> u32 {
        node.0.iter().map(|&separator| u32::from(separator < point)).sum()
    }

    #[inline(always)]
    fn within(self, first: [u32; 4], width: [u32; 4], points: [u32; 4]) -> bool {
        // No short cut: a branch per field is mispredicted more often than it saves work.
        (0..4).fold(true, |all, at| all & (points[at].wrapping_sub(first[at]) <= width[at]))
    }

    #[inline(always)]
    fn meet(self, [a, b, c, d, e]: [&Chunk; 5], aside: u64) -> (u64, usize) {
        let mut met: [u64; 8] = std::array::from_fn(|at| a.0[at] & b.0[at] & c.0[at] & d.0[at] & e.0[at]);
        let first = met[0] & aside;
        met[0] &= !aside;
        let word = met.iter().position(|&word| word != 0);
        (first, word.map_or(NO_BIT, |at| at * 64 + met[at].trailing_zeros() as usize))
    }
}
