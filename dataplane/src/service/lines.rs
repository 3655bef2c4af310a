//! Words that several workers read and write, in lines of eight: a cache line. A page of lines is made when one of them is
//! written first, so that what nobody uses takes no memory. They may lie in a file, which outlives the process.

#[cfg_attr(not(target_os = "linux"), path = "lines/nowhere.rs")]
mod file;

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use file::FilePages;

/// Words in a line of 64 bytes.
pub(super) const WORDS: usize = 8;

/// Lines in a page: 32 KiB, a few microseconds to make.
const PAGE: usize = 512;

/// A fixed number of lines, all zero at first.
#[derive(Debug)]
pub(super) struct Lines {
    pages: Pages,
    len: usize,
}

#[derive(Debug)]
enum Pages {
    Memory(Box<[OnceLock<Box<[AtomicU64]>>]>),
    File(FilePages),
}

impl Lines {
    /// So many lines, at least one.
    pub(super) fn new(len: usize) -> Self {
        let len = len.max(1);
        Self { pages: Pages::Memory((0..len.div_ceil(PAGE)).map(|_| OnceLock::new()).collect()), len }
    }

    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The words of a line; none while nobody has written to its page.
    pub(super) fn read(&self, line: usize) -> &[AtomicU64] {
        match &self.pages {
            Pages::Memory(pages) => {
                let page = pages.get(line / PAGE).and_then(OnceLock::get);
                page.map_or(&[], |page| &page[line % PAGE * WORDS..][..WORDS])
            }
            Pages::File(pages) => pages.read(line),
        }
    }

    /// The words of a line, to be written; none where the file has no memory for them.
    ///
    /// # Panics
    /// When there is no such line.
    pub(super) fn write(&self, line: usize) -> &[AtomicU64] {
        match &self.pages {
            Pages::Memory(pages) => {
                let page = pages[line / PAGE].get_or_init(|| (0..PAGE * WORDS).map(|_| AtomicU64::new(0)).collect());
                &page[line % PAGE * WORDS..][..WORDS]
            }
            Pages::File(pages) => pages.write(line),
        }
    }
}
