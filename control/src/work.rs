//! What an event costs, in steps that do not depend on the machine.

/// Work done so far: what a batch costs is the difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Pods looked at, as peers or as subjects of policies.
    pub pods: u64,
    /// Intervals of address sets written for tables.
    pub intervals: u64,
    /// Policies compiled.
    pub policies: u64,
}
