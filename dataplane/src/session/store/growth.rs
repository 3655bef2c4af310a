//! A worker's file on a tmpfs, whose memory is allocated in steps before use.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::super::entry::{Entry, Slot};
use super::super::links::Links;
use super::super::memory::Column;
use super::super::rewrite::Rewrite;
use super::STEP;
use super::header::{Header, START};

/// A worker's mapped file.
#[derive(Debug)]
pub(crate) struct TableFile {
    pub(in crate::session) entries: Column<Entry>,
    pub(in crate::session) links: Column<Links>,
    pub(in crate::session) rewrites: Column<Rewrite>,
    pub(in crate::session) growth: Growth,
}

/// The part of a session file whose memory is allocated, and that can therefore be written.
#[derive(Debug)]
pub(in crate::session) struct Growth {
    file: File,
    header: Header,
    /// Number of entries that can be written.
    ready: usize,
    /// For each step of the file, whether its rewrites are writable. On most nodes they never are.
    rewrites: Vec<bool>,
}

impl Growth {
    /// Creates the state of a file with only its header written.
    pub(super) const fn new(file: File, header: Header) -> Self {
        Self { file, header, ready: 0, rewrites: Vec::new() }
    }

    /// Ensures that an entry is writable. Returns false if memory is short.
    pub(in crate::session) fn reach(&mut self, slot: Slot) -> bool {
        (slot as usize) < self.ready || self.grow()
    }

    /// Ensures that an entry's rewrite is writable. Returns false if memory is short.
    pub(in crate::session) fn reach_rewrite(&mut self, slot: Slot) -> bool {
        let step = slot as usize / STEP;
        self.rewrites.get(step).copied().unwrap_or(false) || self.grow_rewrites(step)
    }

    #[cold]
    #[inline(never)]
    fn grow_rewrites(&mut self, step: usize) -> bool {
        let slots = usize::try_from(self.header.slots).unwrap_or(usize::MAX);
        let count = STEP.min(slots.saturating_sub(step * STEP));
        let zeros = vec![0; count * size_of::<Rewrite>()];
        let at = self.header.rewrites_start() + (step * STEP * size_of::<Rewrite>()) as u64;
        let is_done = self.file.write_all_at(&zeros, at).is_ok();
        if self.rewrites.len() <= step {
            self.rewrites.resize(step + 1, false);
        }
        self.rewrites[step] = is_done;
        is_done
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> bool {
        let slots = usize::try_from(self.header.slots).unwrap_or(usize::MAX);
        let count = STEP.min(slots - self.ready);
        let zeros = vec![0; count * size_of::<Entry>()];
        let at = |start: u64, size: usize| start + (self.ready * size) as u64;
        let entries = self.file.write_all_at(&zeros, at(START, size_of::<Entry>()));
        let of_links = &zeros[..count * size_of::<Links>()];
        let links = self.file.write_all_at(of_links, at(self.header.links_start(), size_of::<Links>()));
        let is_done = count > 0 && entries.is_ok() && links.is_ok();
        self.ready += if is_done { count } else { 0 };
        is_done
    }
}
