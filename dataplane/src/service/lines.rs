//! Words shared by several workers, in cache lines of eight. A page of lines is allocated on the first write to it. The lines may be in a
//! file that outlives the process.

#[cfg_attr(not(target_os = "linux"), path = "lines/nowhere.rs")]
mod file;
#[cfg(target_os = "linux")]
mod form;

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use file::FilePages;
#[cfg(target_os = "linux")]
pub(crate) use form::{Form, Keys};
#[cfg(all(test, target_os = "linux"))]
pub(super) use form::{Header, START};

/// Words per line of 64 bytes.
pub(crate) const WORDS: usize = 8;

/// Lines per page: 32 KiB, which takes a few microseconds to allocate.
const PAGE: usize = 512;

/// A fixed number of lines, initially zero.
#[derive(Debug)]
pub(crate) struct Lines {
    pages: Pages,
    len: usize,
}

#[derive(Debug)]
enum Pages {
    Memory(Box<[OnceLock<Box<[AtomicU64]>>]>),
    File(FilePages),
}

impl Lines {
    /// Creates this many lines, at least one.
    pub(super) fn new(len: usize) -> Self {
        let len = len.max(1);
        Self { pages: Pages::Memory((0..len.div_ceil(PAGE)).map(|_| OnceLock::new()).collect()), len }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the words of a line. Empty if its page was never written.
    pub(crate) fn read(&self, line: usize) -> &[AtomicU64] {
        match &self.pages {
            Pages::Memory(pages) => {
                let page = pages.get(line / PAGE).and_then(OnceLock::get);
                page.map_or(&[], |page| &page[line % PAGE * WORDS..][..WORDS])
            }
            Pages::File(pages) => pages.read(line),
        }
    }

    /// Returns the words of a line for writing. Empty if the file cannot grow.
    ///
    /// # Panics
    /// If there is no such line.
    pub(crate) fn write(&self, line: usize) -> &[AtomicU64] {
        match &self.pages {
            Pages::Memory(pages) => {
                let page = pages[line / PAGE].get_or_init(|| (0..PAGE * WORDS).map(|_| AtomicU64::new(0)).collect());
                &page[line % PAGE * WORDS..][..WORDS]
            }
            Pages::File(pages) => pages.write(line),
        }
    }
}
