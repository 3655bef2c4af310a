//! Where sessions cannot lie in files, because this is not Linux: what the table knows of such files, and never meets.

use super::entry::{Entry, Slot};
use super::links::Links;
use super::memory::Column;
use super::rewrite::Rewrite;

/// There is none.
#[derive(Debug)]
pub(crate) struct TableFile {
    pub(super) entries: Column<Entry>,
    pub(super) links: Column<Links>,
    pub(super) rewrites: Column<Rewrite>,
    pub(super) growth: Growth,
}

/// There is none.
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
