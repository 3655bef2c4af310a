//! AVX2: two registers per cache line.

use std::arch::x86_64::*;

use super::{Chunk, Kernel, NO_BIT, NODE, Node, Services, Simd};

/// Proof that the CPU has AVX2, BMI1, BMI2, LZCNT and POPCNT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// Detects whether the CPU has these instructions. `None` if it lacks any of them.
    pub(crate) fn new() -> Option<Self> {
        let all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt");
        all.then_some(Self(()))
    }
}

impl Avx2 {
    /// Returns two bits per separator that is below the point.
    #[inline(always)]
    fn below(self, node: &Node<u32>, point: u32) -> i32 {
        let line = (&raw const node.0).cast::<__m256i>();
        // SAFETY: an Avx2 exists, so the CPU has the features; a node is 64 readable bytes aligned to 64.
        unsafe {
            // AVX2 compares only signed numbers. Flipping the top bit makes signed order equal unsigned order.
            let turn = _mm256_set1_epi32(i32::MIN);
            let point = _mm256_xor_si256(_mm256_set1_epi32(point.cast_signed()), turn);
            let low = _mm256_cmpgt_epi32(point, _mm256_xor_si256(_mm256_load_si256(line), turn));
            let high = _mm256_cmpgt_epi32(point, _mm256_xor_si256(_mm256_load_si256(line.add(1)), turn));
            // Lanes below the point are -1. Packing keeps a pair of bytes per lane, with the last lane's at the top.
            _mm256_movemask_epi8(_mm256_packs_epi32(low, high))
        }
    }
}

impl Simd for Avx2 {
    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        #[inline(never)]
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
        fn inner<K: Kernel>(simd: Avx2, kernel: K) {
            kernel.run(simd);
        }
        // SAFETY: an Avx2 exists, so the CPU has the features.
        unsafe { inner(self, kernel) }
    }

    #[inline(always)]
    fn rank(self, node: &Node<u32>, point: u32) -> u32 {
        self.below(node, point).count_ones() / 2
    }

    #[inline(always)]
    fn child(self, node: &Node<u32>, point: u32) -> u32 {
        // The highest pair of bits belongs to the last lane.
        (self.below(node, point) & 0x3fff_ffff).count_ones() / 2 + node.0[NODE - 1]
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    fn below_wide(self, node: &Node<u128>, point: u128) -> u32 {
        let line = (&raw const node.0).cast::<__m256i>();
        let (high, low) = ((point >> 64) as u64, point as u64);
        // SAFETY: an Avx2 exists, so the CPU has the features; a node is 256 readable bytes aligned to 64.
        unsafe {
            // Flips the top bits for signed comparison, as in `below`.
            let turn = _mm256_set1_epi64x(i64::MIN);
            let turned = |number: u64| _mm256_xor_si256(_mm256_set1_epi64x(number.cast_signed()), turn);
            let (high, low) = (turned(high), turned(low));
            let load = |at: usize| _mm256_xor_si256(_mm256_load_si256(line.add(at)), turn);
            let mut all = 0;
            for at in 0..4 {
                let highs = load(at);
                let low = _mm256_and_si256(_mm256_cmpeq_epi64(high, highs), _mm256_cmpgt_epi64(low, load(at + 4)));
                let below = _mm256_or_si256(_mm256_cmpgt_epi64(high, highs), low);
                all |= _mm256_movemask_pd(_mm256_castsi256_pd(below)) << (4 * at);
            }
            all.cast_unsigned()
        }
    }

    #[inline(always)]
    fn pick(self, line: &Services, service: u32) -> u32 {
        // SAFETY: an Avx2 exists, so the CPU has the features; each array is 16 readable bytes or more.
        let inside = unsafe {
            let load = |numbers: &[u32; 4]| _mm_loadu_si128((&raw const *numbers).cast());
            let above = _mm_sub_epi32(_mm_set1_epi32(service.cast_signed()), load(&line.first));
            // Unsigned `above <= width` holds if `above` is the minimum of both.
            let inside = _mm_cmpeq_epi32(_mm_min_epu32(above, load(&line.width)), above);
            _mm_movemask_ps(_mm_castsi128_ps(inside))
        };
        line.codes[(inside | 1 << Services::RULES).trailing_zeros() as usize]
    }

    #[inline(always)]
    fn within(self, first: [u32; 4], width: [u32; 4], points: [u32; 4]) -> bool {
        // SAFETY: an Avx2 exists, so the CPU has the features; each array is 16 readable bytes.
        unsafe {
            let load = |numbers: &[u32; 4]| _mm_loadu_si128((&raw const *numbers).cast());
            let (above, width) = (_mm_sub_epi32(load(&points), load(&first)), load(&width));
            // Unsigned `above <= width` holds if `above` is the minimum of both.
            _mm_movemask_epi8(_mm_cmpeq_epi32(_mm_min_epu32(above, width), above)) == 0xffff
        }
    }

    #[inline(always)]
    fn meet(self, [a, b, c, d, e]: [&Chunk; 5], aside: u64) -> (u64, usize) {
        let mut met = [0; 8];
        let mut occupied = 0;
        for half in 0..2 {
            let load = |chunk: &Chunk| {
                // SAFETY: an Avx2 exists; a chunk is 64 readable bytes aligned to 64, so each half is inside.
                unsafe { _mm256_load_si256((&raw const chunk.0).cast::<__m256i>().add(half)) }
            };
            // SAFETY: an Avx2 exists; the store covers one half of the 64 bytes of `met`.
            unsafe {
                let both = _mm256_and_si256(_mm256_and_si256(load(a), load(b)), _mm256_and_si256(load(c), load(d)));
                let both = _mm256_and_si256(both, load(e));
                _mm256_storeu_si256((&raw mut met).cast::<__m256i>().add(half), both);
                let empty = _mm256_cmpeq_epi64(both, _mm256_setzero_si256());
                occupied |= (!_mm256_movemask_pd(_mm256_castsi256_pd(empty)) & 0xf) << (4 * half);
            }
        }
        let first = met[0] & aside;
        met[0] &= !aside;
        occupied = occupied & !1 | i32::from(met[0] != 0);
        let place = |at: usize| at * 64 + met[at].trailing_zeros() as usize;
        (first, if occupied == 0 { NO_BIT } else { place(occupied.trailing_zeros() as usize) })
    }
}
