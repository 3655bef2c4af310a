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
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
        fn inner<K: Kernel>(simd: Avx512, kernel: K) {
            kernel.run(simd);
        }
        // SAFETY: an Avx512 exists, so the CPU has the features.
        unsafe { inner(self, kernel) }
    }

    #[inline(always)]
    fn rank(self, node: &Node<u32>, point: u32) -> usize {
        // SAFETY: an Avx512 exists, so the CPU has the features; a node is 64 readable bytes aligned to 64.
        unsafe {
            let separators = _mm512_load_si512((&raw const node.0).cast());
            let below = _mm512_cmplt_epu32_mask(separators, _mm512_set1_epi32(point.cast_signed()));
            below.count_ones() as usize
        }
    }

    #[inline(always)]
    fn intersect(self, rows: [&Chunk; 4], both: &mut Chunk) -> u8 {
        // SAFETY: an Avx512 exists; chunks are 64 readable (`both`: writable) bytes aligned to 64.
        unsafe {
            let [a, b, c, d] = rows.map(|chunk| _mm512_load_si512((&raw const chunk.0).cast()));
            let met = _mm512_and_si512(_mm512_and_si512(a, b), _mm512_and_si512(c, d));
            _mm512_store_si512((&raw mut both.0).cast(), met);
            _mm512_test_epi64_mask(met, met)
        }
    }
}
