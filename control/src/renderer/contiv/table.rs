//! Tables of 6-tuples, and what a transaction did to them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::rules::Rules;
use crate::object::PodName;

/// A table's name: a function of its rules, so that a stack that kept its tables over a restart knows them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName(pub(super) u64);

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl TableName {
    /// The name of these rules. Equal names of different rules are told apart by the cache.
    pub(super) const fn of(rules: &Rules) -> Self {
        Self(rules.fingerprint())
    }
}

/// Sorted rules under a name. One without rules is not applied: it allows everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The name, different from that of every other table of the cache.
    pub id: TableName,
    /// The rules; the first that matches decides.
    pub rules: Rules,
}

impl Table {
    /// A table under the name of its rules.
    pub(super) fn of(rules: Rules) -> Self {
        Self { id: TableName::of(&rules), rules }
    }
}

/// One step from the previous tables to the new ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// A local table is new (no previous pods), is gone (no pods), or has other pods.
    Local {
        /// The table; never one without rules.
        table: Arc<Table>,
        /// Who had it.
        previous: BTreeSet<PodName>,
        /// Who has it.
        pods: BTreeSet<PodName>,
    },
    /// The node's exit has other rules.
    Global {
        /// The table; one without rules when nobody is restricted any more.
        table: Arc<Table>,
    },
}
