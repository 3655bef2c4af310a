//! The three machine-dependent steps of a lookup, and the only place of the crate with `unsafe`.
//!
//! A level of the CPU is a value ([`Scalar`], [`Avx2`], [`Avx512`]) that exists only if the running CPU has the
//! features: its constructor is the proof that the instructions may be used, so its methods are safe to call. The
//! engine is written once, generic over [`Simd`], and is compiled once per level: [`Simd::call`] enters a function
//! with the level's target features, into which everything below is inlined.
//!
//! ```text
//!   Level::detect() --> Level --dispatch--> simd.call(kernel) --#[target_feature]--> kernel.run(simd)
//! ```
//!
//! The invariant: every level gives the same answer to every step; `tests` holds each against plain loops.

#![allow(unsafe_code, reason = "CPU intrinsics; every block states what makes it sound")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod list;
mod scalar;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use list::List;
pub(crate) use scalar::Scalar;

/// How many separators a search node holds: 16 of 32 bits are one cache line and one AVX-512 register.
pub(crate) const NODE: usize = 16;

/// The place of the first bit of a chunk that has none: all of its eight words are passed, and all 64 bits of a ninth.
pub(crate) const NO_BIT: usize = 576;

/// 512 bits of a row: one cache line, one AVX-512 register.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk(pub(crate) [u64; 8]);

/// The separators of one search node, ascending, on a cache line of their own.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node<A>(pub(crate) [A; NODE]);

/// Work that is compiled once per level.
pub(crate) trait Kernel {
    /// Does the work. Must be `#[inline(always)]`, or it is compiled without the level's features.
    fn run<S: Simd>(self, simd: S);
}

/// The steps that differ between levels.
pub(crate) trait Simd: Copy {
    /// Runs the kernel with this level's instructions, as a function of its own: stages that are inlined into one
    /// large function fight for registers (measured: half of the time of a lookup was spills).
    fn call<K: Kernel>(self, kernel: K);

    /// How many of the ascending separators are below the point.
    fn rank(self, node: &Node<u32>, point: u32) -> u32;

    /// The same for several points, up to the shorter of the two slices.
    #[inline(always)]
    fn rank_all(self, node: &Node<u32>, points: &[u32], ranks: &mut [u32]) {
        for (rank, &point) in ranks.iter_mut().zip(points) {
            *rank = self.rank(node, point);
        }
    }

    /// Whether each of four points lies in its interval, given by its first number and its length less one.
    fn within(self, first: [u32; 4], width: [u32; 4], points: [u32; 4]) -> bool;

    /// The intersection of five chunks: those of its bits in the first word that `aside` has, and the place of its
    /// first other bit, [`NO_BIT`] when there is none.
    fn meet(self, rows: [&Chunk; 5], aside: u64) -> (u64, usize);
}

/// A level that this CPU has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Level {
    /// Plain Rust.
    Scalar(Scalar),
    /// AVX2, BMI and POPCNT.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 F, BW, DQ and VL beside the former.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Level {
    /// The best level of the running CPU.
    pub(crate) fn detect() -> Self {
        Self::available().pop().unwrap_or(Self::Scalar(Scalar))
    }

    /// Every level of the running CPU, the best one last.
    pub(crate) fn available() -> Vec<Self> {
        #[allow(unused_mut, reason = "nothing is added on other architectures")]
        let mut levels = vec![Self::Scalar(Scalar)];
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(Avx2::new().map(Self::Avx2));
            levels.extend(Avx512::new().map(Self::Avx512));
        }
        levels
    }

    /// The level's name in statistics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Scalar(_) => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
        }
    }

    /// Runs the kernel with this level's instructions.
    #[inline]
    pub(crate) fn call<K: Kernel>(self, kernel: K) {
        match self {
            Self::Scalar(simd) => simd.call(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) => simd.call(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => simd.call(kernel),
        }
    }
}

/// Asks for the cache line of `slice[at]`; an index out of bounds does nothing harmful.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = slice.as_ptr().wrapping_add(at).cast::<i8>();
        // SAFETY: a prefetch of any address is a hint that cannot fault; SSE is part of x86-64.
        unsafe { _mm_prefetch(address, _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, at);
}
