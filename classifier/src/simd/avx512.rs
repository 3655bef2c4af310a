//! AVX-512: one register per cache line.

use std::arch::x86_64::*;

use super::{Avx2, Chunk, Kernel, NODE, Node, Services, Simd};

/// Proof that the CPU has AVX-512 F, BW, DQ and VL, and the features of [`Avx2`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// Detects whether the CPU has these instructions. `None` if it lacks any of them.
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

    #[inline(always)]
    fn child(self, node: &Node<u32>, point: u32) -> u32 {
        // SAFETY: an Avx512 exists, so the CPU has the features; a node is 64 readable bytes aligned to 64.
        let below = unsafe {
            let separators = _mm512_load_si512((&raw const node.0).cast());
            _mm512_mask_cmplt_epu32_mask(0x7fff, separators, _mm512_set1_epi32(point.cast_signed()))
        };
        below.count_ones() + node.0[NODE - 1]
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    fn below_wide(self, node: &Node<u128>, point: u128) -> u32 {
        let line = (&raw const node.0).cast::<__m512i>();
        let (high, low) = ((point >> 64) as u64, point as u64);
        // SAFETY: an Avx512 exists, so the CPU has the features; a node is 256 readable bytes aligned to 64.
        unsafe {
            let (high, low) = (_mm512_set1_epi64(high.cast_signed()), _mm512_set1_epi64(low.cast_signed()));
            let load = |at: usize| _mm512_load_si512(line.add(at));
            let eight = |at: usize| {
                let highs = load(at);
                let (below, equal) = (_mm512_cmplt_epu64_mask(highs, high), _mm512_cmpeq_epu64_mask(highs, high));
                below | _mm512_mask_cmplt_epu64_mask(equal, load(at + 2), low)
            };
            u32::from(eight(0)) | u32::from(eight(1)) << 8
        }
    }

    #[inline(always)]
    fn pick(self, line: &Services, service: u32) -> u32 {
        // SAFETY: an Avx512 exists, so the CPU has the features; each array is 16 readable bytes or more.
        let inside = unsafe {
            let load = |numbers: &[u32; 4]| _mm_loadu_si128((&raw const *numbers).cast());
            let above = _mm_sub_epi32(_mm_set1_epi32(service.cast_signed()), load(&line.first));
            _mm_cmple_epu32_mask(above, load(&line.width))
        };
        line.codes[(u32::from(inside) | 1 << Services::RULES).trailing_zeros() as usize]
    }

    #[inline(always)]
    fn within(self, first: [u32; 4], width: [u32; 4], points: [u32; 4]) -> bool {
        // SAFETY: an Avx512 exists, so the CPU has the features; each array is 16 readable bytes.
        unsafe {
            let load = |numbers: &[u32; 4]| _mm_loadu_si128((&raw const *numbers).cast());
            _mm_cmpgt_epu32_mask(_mm_sub_epi32(load(&points), load(&first)), load(&width)) == 0
        }
    }

    /// The first nonzero word is extracted by compressing the register. Going through memory, as on AVX2, would wait for the store.
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
            // If no word is set: word 8, and a word of 64 zero bits.
            let at = (u32::from(occupied) | 0x100).trailing_zeros() as usize;
            (first, at * 64 + word.trailing_zeros() as usize)
        }
    }
}
