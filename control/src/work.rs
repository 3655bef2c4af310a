//! Counters of the work that events cause, independent of the machine.

/// Work since the pipeline was made. The cost of a batch is the difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Pods examined, as peers or as subjects of policies.
    pub pods: u64,
    /// Intervals of address sets written for tables.
    pub intervals: u64,
    /// Policies compiled.
    pub policies: u64,
}
