//! Counters of the work that events cause, independent of the machine.

/// Counts of the work since the pipeline was created. The cost of a batch is the difference before and after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of pods that policies and peers selected, or that were examined one by one.
    pub pods: u64,
    /// Number of intervals of address sets written for tables.
    pub intervals: u64,
    /// Number of policies compiled.
    pub policies: u64,
}
