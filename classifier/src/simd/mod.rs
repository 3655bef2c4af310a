//! The machine-dependent steps of a lookup, and the crate's only `unsafe` code.
//!
//! A CPU level is a value ([`Scalar`], [`Avx2`], [`Avx512`]) that exists only if the running CPU supports it. The constructor proves that
//! the instructions may be used, so the methods are safe. The engine is generic over [`Simd`] and compiled once per level: [`Simd::call`]
//! enters a function with the level's target features, and all code below is inlined into it.
//!
//! ```text
//!   Level::detect() --> Level --dispatch--> simd.call(kernel) --#[target_feature]--> kernel.run(simd)
//! ```
//!
//! **Invariant.** Every level gives the same result for every step; `tests` compares each with plain loops.

#![allow(unsafe_code, reason = "CPU intrinsics; every block states what makes it sound")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod list;
mod scalar;
mod services;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use list::List;
pub(crate) use scalar::Scalar;
pub(crate) use services::{CONTINUED, Services};

/// Separators of a search node: 16 of 32 bits fill one cache line and one AVX-512 register.
pub(crate) const NODE: usize = 16;

/// Children of a branch node. Its last number is the index of the first child; the others separate the children.
pub(crate) const BRANCHES: usize = NODE;

/// Position of the first bit of an empty chunk: behind its eight words and the 64 bits of a ninth.
pub(crate) const NO_BIT: usize = 576;

/// A service that no packet has. Packets' services, a protocol class and a port, are below 2^24.
const NO_SERVICE: u32 = u32::MAX;

/// 512 bits of a row: one cache line, and one AVX-512 register.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk(pub(crate) [u64; 8]);

/// The ascending separators of one search node, aligned to cache lines.
///
/// 128-bit separators are stored in halves, all high halves first, so that one comparison handles eight of them.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node<A>([A; NODE]);

impl Node<u32> {
    pub(crate) fn narrow(separators: [u32; NODE]) -> Self {
        Self(separators)
    }

    /// Returns one separator.
    pub(crate) fn number(&self, at: usize) -> u32 {
        self.0[at]
    }
}

impl Node<u128> {
    #[expect(clippy::cast_possible_truncation, reason = "the low half")]
    pub(crate) fn wide(separators: [u128; NODE]) -> Self {
        let half = |at: usize| {
            let separator = separators[at % NODE];
            if at < NODE { (separator >> 64) as u64 } else { separator as u64 }
        };
        Self(std::array::from_fn(|at| u128::from(half(2 * at)) | u128::from(half(2 * at + 1)) << 64))
    }

    #[inline(always)]
    pub(crate) fn separator(&self, at: usize) -> u128 {
        let half = |at: usize| self.0[at / 2 % NODE] >> (at % 2 * 64);
        half(at) << 64 | half(at + NODE) & u128::from(u64::MAX)
    }
}

/// Code that is compiled once per CPU level: scalar, AVX2 and AVX-512.
pub(crate) trait Kernel {
    /// Runs the code. Must be `#[inline(always)]`, or it is compiled without the level's features.
    fn run<S: Simd>(self, simd: S);
}

/// The steps of a lookup that differ between CPU levels.
pub(crate) trait Simd: Copy {
    /// Runs the kernel with this level's instructions, in a separate function. Inlining all stages into one function caused register
    /// spills, half of a lookup's time.
    fn call<K: Kernel>(self, kernel: K);

    /// Returns how many of the ascending separators are below the point.
    fn rank(self, node: &Node<u32>, point: u32) -> u32;

    /// Returns the index of a branch's child for the point: the node's last number plus how many of the others are below the point.
    fn child(self, node: &Node<u32>, point: u32) -> u32;

    /// Returns a bit for each 128-bit separator that is below the point.
    fn below_wide(self, node: &Node<u128>, point: u128) -> u32;

    /// [`Simd::rank`] for 128 bits.
    #[inline(always)]
    fn rank_wide(self, node: &Node<u128>, point: u128) -> u32 {
        self.below_wide(node, point).count_ones()
    }

    /// [`Simd::child`] for 128 bits.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "made of a u32")]
    fn child_wide(self, node: &Node<u128>, point: u128) -> u32 {
        let others = (1 << (NODE - 1)) - 1;
        (self.below_wide(node, point) & others).count_ones() + node.separator(NODE - 1) as u32
    }

    /// Returns the code of the line's first rule that has the service. If none has, returns the line's last code.
    fn pick(self, line: &Services, service: u32) -> u32;

    /// Whether each of four points is in its interval, given by its first number and its length minus one.
    fn within(self, first: [u32; 4], width: [u32; 4], points: [u32; 4]) -> bool;

    /// Intersects five chunks. Returns the bits of the first word that `aside` selects, and the position of the first other bit, or
    /// [`NO_BIT`].
    fn meet(self, rows: [&Chunk; 5], aside: u64) -> (u64, usize);
}

/// The CPU level of the machine: the instructions that lookups use.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Level {
    /// Plain Rust.
    Scalar(Scalar),
    /// AVX2, BMI and POPCNT.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 F, BW, DQ and VL, in addition to AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Level {
    /// Returns the CPU's best level.
    pub(crate) fn detect() -> Self {
        Self::available().pop().unwrap_or(Self::Scalar(Scalar))
    }

    /// Returns all levels of the CPU, the best last.
    pub(crate) fn available() -> Vec<Self> {
        #[allow(unused_mut, reason = "nothing is added on other architectures")]
        let mut levels = vec![Self::Scalar(Scalar)];
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(Avx2::new().map(Self::Avx2));
            levels.extend(Avx512::new().map(Self::Avx512));
        }
        // Tests of this crate can select levels.
        #[cfg(test)]
        if let Ok(asked) = std::env::var("BULKHEAD_LEVELS") {
            levels.retain(|level| asked.split(',').any(|name| name == level.name()));
        }
        levels
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Scalar(_) => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
        }
    }

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

/// Prefetches the cache line of `slice[at]`. An index out of bounds is harmless.
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
