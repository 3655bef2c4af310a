//! The CPU level without special instructions, which every CPU supports.

use super::{Chunk, Kernel, NO_BIT, NODE, Node, Services, Simd};

/// The level that uses plain Rust only. The compiler may use what the target guarantees (SSE2 on x86-64).
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
    fn child(self, node: &Node<u32>, point: u32) -> u32 {
        let [separators @ .., first] = &node.0;
        let separators: &[u32; NODE - 1] = separators;
        first + separators.iter().map(|&separator| u32::from(separator < point)).sum::<u32>()
    }

    /// A binary search, since comparing 128 bits takes two instructions. The separators ascend, except that a branch's last one is an
    /// index: the search reaches it last, where it only adds a bit.
    #[inline(always)]
    fn below_wide(self, node: &Node<u128>, point: u128) -> u32 {
        let mut rank = 0;
        for step in [8, 4, 2, 1] {
            rank += if node.separator(rank + step - 1) < point { step } else { 0 };
        }
        let last = u32::from(node.separator(NODE - 1) < point) << (NODE - 1);
        ((1 << rank) - 1) | last
    }

    #[inline(always)]
    fn pick(self, line: &Services, service: u32) -> u32 {
        let inside = |at: usize| u32::from(service.wrapping_sub(line.first[at]) <= line.width[at]) << at;
        let inside = inside(0) | inside(1) | inside(2) | inside(3) | 1 << Services::RULES;
        line.codes[inside.trailing_zeros() as usize]
    }

    #[inline(always)]
    fn within(self, first: [u32; 4], width: [u32; 4], points: [u32; 4]) -> bool {
        // Without short-circuiting: a branch per field costs more in mispredictions than it saves.
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
