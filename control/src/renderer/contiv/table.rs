//! Tables of 6-tuples, and the changes that a transaction makes to them.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::rules::Rules;
use crate::object::PodName;

/// A table's name. It is derived from the rules, so tables that a stack kept over a restart can be recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName(pub(super) u64);

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl TableName {
    /// Returns the name of these rules. The cache renames a table if different rules have the same name.
    pub(super) const fn of(rules: &Rules) -> Self {
        Self(rules.fingerprint())
    }
}

/// Named, sorted rules. A table without rules is not applied and allows everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The name, unique in the cache.
    pub id: TableName,
    /// The rules. The first match decides.
    pub rules: Rules,
}

impl Table {
    /// Creates a table with the name derived from its rules.
    pub(super) fn of(rules: Rules) -> Self {
        Self { id: TableName::of(&rules), rules }
    }
}

/// A step from the previous tables to the new ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// A local table was added (no previous pods), removed (no pods), or assigned to other pods.
    Local {
        /// The local table, which has at least one rule.
        table: Arc<Table>,
        /// The pods that used the table before.
        previous: BTreeSet<PodName>,
        /// The pods that use the table now.
        pods: BTreeSet<PodName>,
    },
    /// The rules of the node's exit or entrance changed.
    Global {
        /// The new table. Without rules if no pod is restricted any more.
        table: Arc<Table>,
    },
}
