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

/// How many separators a search node holds: 16 of 32 bits are one cache line and one AVX-512 register.
pub(crate) const NODE: usize = 16;

/// Children of a branch: the last number of its node says where they begin, the others part them.
pub(crate) const BRANCHES: usize = NODE;

/// The place of the first bit of a chunk that has none: all of its eight words are passed, and all 64 bits of a ninth.
pub(crate) const NO_BIT: usize = 576;

/// No packet's service: those are below 2^24, the class of a protocol and a port.
const NO_SERVICE: u32 = u32::MAX;

/// 512 bits of a row: one cache line, one AVX-512 register.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk(pub(crate) [u64; 8]);

/// The separators of one search node, ascending, on cache lines of their own.
///
/// Those of 128 bits lie in halves, so that one comparison takes eight of a kind: the high halves first.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node<A>([A; NODE]);

impl Node<u32> {
    pub(crate) fn narrow(separators: [u32; NODE]) -> Self {
        Self(separators)
    }

    /// The separator at a place.
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

    /// The separator at a place.
    #[inline(always)]
    pub(crate) fn separator(&self, at: usize) -> u128 {
        let half = |at: usize| self.0[at / 2 % NODE] >> (at % 2 * 64);
        half(at) << 64 | half(at + NODE) & u128::from(u64::MAX)
    }
}

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

    /// The child of a branch that holds the point: the node's last number and how many of the others, which are
    /// ascending, are below the point.
    fn child(self, node: &Node<u32>, point: u32) -> u32;

    /// Which of the separators of 128 bits are below the point, a bit each.
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

    /// The code of the first of the line's rules that holds the service, the line's last number when none does.
    fn pick(self, line: &Services, service: u32) -> u32;

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
        // So that tests see what a CPU without the others does.
        #[cfg(test)]
        if let Ok(asked) = std::env::var("BULKHEAD_LEVELS") {
            levels.retain(|level| asked.split(',').any(|name| name == level.name()));
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
