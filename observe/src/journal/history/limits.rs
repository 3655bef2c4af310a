//! Limits of what is kept of a journal.

use bulkhead_answers::bundle::weight;

/// Maximum total size of decompressed changes in bytes: ten times the largest cluster. Bounds the time, because a small file can decompress
/// to any size.
pub(super) const MOST_UNPACKED: u64 = 1 << 30;

/// Limits of memory use: a file may be damaged or hostile.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Limits {
    /// Maximum number of changes of the state in memory. If a journal has more, the oldest are dropped.
    pub(in super::super) changes: usize,
    /// Maximum number of starts and stops of the vswitch in memory. If a journal has more, the oldest are dropped.
    pub(in super::super) runs: usize,
    /// Maximum estimated memory of a change and of a state, in bytes.
    pub(in super::super) weight: u64,
}

impl Limits {
    /// Returns the maximum weight of what has this compressed size in bytes.
    pub(super) fn of(self, packed: u64) -> u64 {
        self.weight.min(weight::most(packed))
    }

    /// Limits for a vswitch's journal. Half a million changes need about 25 MB; the default size holds fewer. 65,536 runs are a restart
    /// per minute for six weeks.
    pub(in super::super) const OF_A_VSWITCH: Self =
        Self { changes: 1 << 19, runs: 1 << 16, weight: weight::MOST_WEIGHT };
}

/// Drops the older half of a list that has reached `most` elements. Adds the number of dropped ones to `forgotten`.
pub(super) fn forget<T>(all: &mut Vec<T>, most: usize, forgotten: &mut usize) {
    if all.len() >= most {
        *forgotten += most / 2;
        all.drain(..most / 2);
    }
}
