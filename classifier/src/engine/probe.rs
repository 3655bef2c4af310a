//! Probes the tuples of a block's keys: finds the rules that may match in hash tables, and verifies them.

use super::Block;
use super::address::{Address, Fields};
use super::plan::MAX_RUN;
use super::tuples::{Tuples, lanes};
use crate::simd::{Kernel, List, Simd};

/// Probes whose cache misses overlap: four per key of a block, and room for a key with 64.
const PROBES: usize = 192;

/// Maximum number of entries that are verified together.
const ENTRIES: usize = 256;

/// For each key, probes the hash bucket of every tuple that may match.
pub(super) struct Probe<'a, A, const N: usize> {
    pub(super) tables: &'a Tuples<A>,
    /// The codes of removed rules, ascending.
    pub(super) gone: &'a [u32],
    /// The bits of each key's tuples.
    pub(super) tuples: &'a [u64],
    pub(super) block: &'a Block<A, N>,
    /// The smallest code of each key so far.
    pub(super) best: &'a mut [u32; N],
}

impl<A: Address, const N: usize> Kernel for Probe<'_, A, N> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { tables, gone, tuples, block, best } = self;
        // Branch prediction cannot guess the number of a key's tuples and of a bucket's entries. So both are written to lists, a few items
        // at once whether they exist or not, and then processed.
        let mut keys = [lanes(block.packet(0)); N];
        let mut probes = List::<PROBES>::new();
        for (at, &tuples) in (0u32..).zip(tuples) {
            keys[at as usize % N] = lanes(block.packet(at as usize % N));
            let left = tuples & tuples.wrapping_sub(1);
            probes.push_some([(at, tuples.trailing_zeros()), (at, left.trailing_zeros())], tuples.count_ones());
            for tuple in bits(left & left.wrapping_sub(1)) {
                probes.push((at, tuple));
            }
            if probes.len() > PROBES - 66 {
                probe(simd, tables, gone, &mut probes, block, &keys, best);
            }
        }
        probe(simd, tables, gone, &mut probes, block, &keys, best);
    }
}

/// Probes (key, tuple) pairs in rounds, so that the cache misses of a round overlap.
#[inline(always)]
fn probe<A: Address, S: Simd, const N: usize>(
    simd: S,
    tables: &Tuples<A>,
    gone: &[u32],
    probes: &mut List<PROBES>,
    block: &Block<A, N>,
    keys: &[Fields<A>; N],
    best: &mut [u32; N],
) {
    for (at, tuple) in probes.items() {
        *tuple = tables.bucket(*tuple, &block.packet(*at as usize % N));
        tables.prefetch_bucket(*tuple);
    }
    let mut entries = List::<ENTRIES>::new();
    for &mut (at, bucket) in probes.items() {
        let (first, end) = tables.run(bucket);
        tables.prefetch_run((first, end));
        entries.push_some([(at, first), (at, first + 1), (at, first + 2), (at, first + 3)], end - first);
        for entry in first + 4..end {
            entries.push((at, entry));
        }
        if entries.len() > ENTRIES - MAX_RUN - 4 {
            verify(simd, tables, gone, &mut entries, keys, best);
        }
    }
    verify(simd, tables, gone, &mut entries, keys, best);
    probes.clear();
}

/// Compares keys with the entries of their buckets, given as pairs of key and entry, and keeps each key's smallest matching code.
#[inline(always)]
fn verify<A: Address, S: Simd, const N: usize>(
    simd: S,
    tables: &Tuples<A>,
    gone: &[u32],
    entries: &mut List<ENTRIES>,
    keys: &[Fields<A>; N],
    best: &mut [u32; N],
) {
    for &mut (at, entry) in entries.items() {
        let best = &mut best[at as usize % N];
        *best = tables.verify(simd, entry, &keys[at as usize % N], gone).min(*best);
    }
    entries.clear();
}

/// Returns the positions of the set bits.
#[inline(always)]
pub(super) fn bits(mut left: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let at = left.trailing_zeros();
        (left != 0).then(|| {
            left &= left - 1;
            at
        })
    })
}
