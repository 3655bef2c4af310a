//! Session files are not supported on systems other than Linux. The table still needs these types.

use super::entry::{Entry, Slot};
use super::links::Links;
use super::memory::Column;
use super::rewrite::Rewrite;

/// A type without values, because [`Growth`] has none.
#[derive(Debug)]
pub(crate) struct TableFile {
    pub(super) entries: Column<Entry>,
    pub(super) links: Column<Links>,
    pub(super) rewrites: Column<Rewrite>,
    pub(super) growth: Growth,
}

/// A type without values: no file can grow.
#[derive(Debug)]
pub(super) enum Growth {}

impl Growth {
    pub(super) fn reach(&mut self, _slot: Slot) -> bool {
        match *self {}
    }

    pub(super) fn reach_rewrite(&mut self, _slot: Slot) -> bool {
        match *self {}
    }
}
