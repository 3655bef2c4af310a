//! AVX-512: one register per cache line.

use std::arch::x86_64::*;

use super::{Avx2, Chunk, Kernel, Node, Simd};

/// Proof that the CPU has AVX-512 F, BW, DQ and VL beside what [`Avx2`] proves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The level, none when the CPU lacks it.
    pub(crate) fn new() -> Option<Self> {
        let all = Avx2::new().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        all.then_some(Self(()))
    }
}

impl Simd for Avx512 {
    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
        fn inner<K: Kernel>(simd: Avx512, kernel: K) {
            kernel.run(simd);
        }
        // SAFETY: an Avx512 exists, so the CPU has the features.
        unsafe { inner(self, kernel) }
    }

    #[inline(always)]
    fn rank(self, node: &Node<u32>, point: u32) -> u32 {
        // SAFETY: an Avx512 exists, so the CPU has the features; a node is 64 readable bytes aligned to 64.
        unsafe {
            let separators = _mm512_load_si512((&raw const node.0).cast());
            let below = _mm512_cmplt_epu32_mask(separators, _mm512_set1_epi32(point.cast_signed()));
            below.count_ones()
        }
    }

    /// A binary search of 16 points at a time with the node in a register: `vpermd` looks up one separator per lane.
    #[inline(always)]
    fn rank_all(self, node: &Node<u32>, points: &[u32], ranks: &mut [u32]) {
        let ((points, points_left), (ranks, ranks_left)) = (points.as_chunks::<16>(), ranks.as_chunks_mut::<16>());
        // SAFETY: an Avx512 exists; a node is 64 readable bytes aligned to 64; the chunks are 16 numbers each.
        unsafe {
            let separators = _mm512_load_si512((&raw const node.0).cast());
            for (points, ranks) in points.iter().zip(ranks) {
                let point = _mm512_loadu_si512(points.as_ptr().cast());
                let mut below = _mm512_setzero_si512();
                for step in [8, 4, 2, 1, 1] {
                    let at = _mm512_add_epi32(below, _mm512_set1_epi32(step - 1));
                    let passed = _mm512_cmplt_epu32_mask(_mm512_permutexvar_epi32(at, separators), point);
                    below = _mm512_mask_add_epi32(below, passed, below, _mm512_set1_epi32(step));
                }
                // Not a masked store for the rest: the loads that follow would have to wait for it.
                _mm512_storeu_si512(ranks.as_mut_ptr().cast(), below);
            }
        }
        for (rank, &point) in ranks_left.iter_mut().zip(points_left) {
            *rank = self.rank(node, point);
        }
    }

    #[inline(always)]
    fn within(self, first: [u32; 4], width: [u32; 4], points: [u32; 4]) -> bool {
        // SAFETY: an Avx512 exists, so the CPU has the features; each array is 16 readable bytes.
        unsafe {
            let load = |numbers: &[u32; 4]| _mm_loadu_si128((&raw const *numbers).cast());
            _mm_cmpgt_epu32_mask(_mm_sub_epi32(load(&points), load(&first)), load(&width)) == 0
        }
    }

    /// The first word that is not empty comes out of a register by compression; through memory, as on AVX2, it would
    /// have to wait for the store.
    #[inline(always)]
    fn meet(self, [a, b, c, d, e]: [&Chunk; 5], aside: u64) -> (u64, usize) {
        // SAFETY: an Avx512 exists; chunks are 64 readable bytes aligned to 64.
        unsafe {
            let load = |chunk: &Chunk| _mm512_load_si512((&raw const chunk.0).cast());
            let met = _mm512_and_si512(_mm512_and_si512(load(a), load(b)), _mm512_and_si512(load(c), load(d)));
            let met = _mm512_and_si512(met, load(e));
            let first = _mm_cvtsi128_si64(_mm512_castsi512_si128(met)).cast_unsigned() & aside;
            let rest = _mm512_andnot_si512(_mm512_maskz_set1_epi64(1, aside.cast_signed()), met);
            let occupied = _mm512_test_epi64_mask(rest, rest);
            let word = _mm_cvtsi128_si64(_mm512_castsi512_si128(_mm512_maskz_compress_epi64(occupied, rest)));
            // With nothing occupied: word 8, and 64 bits of zero.
            let at = (u32::from(occupied) | 0x100).trailing_zeros() as usize;
            (first, at * 64 + word.trailing_zeros() as usize)
        }
    }
}
