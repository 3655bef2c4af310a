//! The holdings of one address: one table, or one for each chunk of holders.

use ahash::AHashMap;

use super::memory;
use super::table::Table;

/// Records above which an address is split by chunk. Addresses of large CDNs have thousands of names; a holder's own must be found without
/// looking at those of all others. Below, one list per address saves the memory of many small ones.
const SPLIT: usize = 64;

/// An address's tables. A chunk's holdings are all in one table.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    Few(Table),
    Many(Box<AHashMap<u16, Table>>),
}

impl Default for Entry {
    fn default() -> Self {
        Self::Few(Table::default())
    }
}

impl Entry {
    /// Returns the table in which a chunk's holdings would be. `None` if it does not exist.
    pub(super) fn table(&self, chunk: u16) -> Option<&Table> {
        match self {
            Self::Few(table) => Some(table),
            Self::Many(tables) => tables.get(&chunk),
        }
    }

    /// Changes a chunk's table, which is created or removed as needed.
    pub(super) fn change<T>(&mut self, chunk: u16, change: impl FnOnce(&mut Table) -> T) -> T {
        match self {
            Self::Few(table) => {
                let result = change(table);
                if table.len() > SPLIT {
                    *self = Self::Many(Box::new(std::mem::take(table).split()));
                }
                result
            }
            Self::Many(tables) => {
                let table = tables.entry(chunk).or_default();
                let result = change(table);
                if table.len() == 0 {
                    tables.remove(&chunk);
                }
                result
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Few(table) => table.len() == 0,
            Self::Many(tables) => tables.is_empty(),
        }
    }

    /// Returns all tables, in no order.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Table> {
        let (few, many) = match self {
            Self::Few(table) => (Some(table), None),
            Self::Many(tables) => (None, Some(tables.values())),
        };
        few.into_iter().chain(many.into_iter().flatten())
    }

    /// Estimated heap use in bytes.
    pub(super) fn bytes(&self) -> usize {
        let tables: usize = self.tables().map(Table::bytes).sum();
        match self {
            Self::Few(_) => tables,
            Self::Many(map) => tables + memory::map(map) + memory::allocation(size_of_val(&**map)),
        }
    }
}
