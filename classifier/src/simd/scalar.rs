//! The level that every CPU has.

use super::{Chunk, Kernel, Node, Simd};

/// Plain Rust. The compiler may still use what the target guarantees (SSE2 on x86-64).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

impl Simd for Scalar {
    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        kernel.run(self);
    }

    #[inline(always)]
    fn rank(self, node: &Node<u32>, point: u32) -> usize {
        node.0.iter().map(|&separator| u32::from(separator < point)).sum::<u32>() as usize
    }

    #[inline(always)]
    fn intersect(self, [a, b, c, d]: [&Chunk; 4], both: &mut Chunk) -> u8 {
        let mut occupied = 0;
        for at in 0..both.0.len() {
            both.0[at] = a.0[at] & b.0[at] & c.0[at] & d.0[at];
            occupied |= u8::from(both.0[at] != 0) << at;
        }
        occupied
    }
}
