//! The holdings of one address: one table, or one table for each chunk of 64 holders.

use ahash::AHashMap;

use super::memory;
use super::table::Table;

/// Number of records above which an address gets one table per chunk. Addresses of large CDNs have thousands of names, and the names of one
/// holder must be found without reading those of all others. Addresses with fewer records save the memory of many small tables.
const SPLIT: usize = 64;

/// The holdings of one address.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    /// All holdings, of at most [`SPLIT`] records.
    Few(Table),
    /// The holdings of each chunk. No table is empty.
    Many(Box<AHashMap<u16, Table>>),
}

impl Default for Entry {
    fn default() -> Self {
        Self::Few(Table::default())
    }
}

impl Entry {
    /// Returns the table that contains a chunk's holdings, and perhaps those of other chunks. `None` if the chunk has no table, and so no
    /// holdings.
    pub(super) fn table(&self, chunk: u16) -> Option<&Table> {
        match self {
            Self::Few(table) => Some(table),
            Self::Many(tables) => tables.get(&chunk),
        }
    }

    /// Calls `change` with the table of a chunk, and returns its result. Creates a missing table and removes one that has become empty.
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

    /// Returns all tables, in no particular order.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Table> {
        let (few, many) = match self {
            Self::Few(table) => (Some(table), None),
            Self::Many(tables) => (None, Some(tables.values())),
        };
        few.into_iter().chain(many.into_iter().flatten())
    }

    /// Returns the estimated heap use in bytes.
    pub(super) fn bytes(&self) -> usize {
        let tables: usize = self.tables().map(Table::bytes).sum();
        match self {
            Self::Few(_) => tables,
            Self::Many(map) => tables + memory::map(map) + memory::allocation(size_of_val(&**map)),
        }
    }
}
