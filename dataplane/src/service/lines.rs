//! Words that several workers read and write, in lines of eight: a cache line. A page of lines is made when one of them is
//! written first, so that what nobody uses takes no memory. They may lie in a file, which outlives the process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use crate::io::FileWords;

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
    File {
        file: File,
        /// Where the words begin.
        start: u64,
        words: FileWords,
        /// By page: whether there is memory for it.
        ready: Box<[OnceLock<bool>]>,
    },
}

impl Lines {
    /// So many lines, at least one.
    pub(super) fn new(len: usize) -> Self {
        let len = len.max(1);
        Self { pages: Pages::Memory((0..len.div_ceil(PAGE)).map(|_| OnceLock::new()).collect()), len }
    }

    /// So many lines, at least one, in a file that is long enough and zero from this byte on, a multiple of a page of memory.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub(super) fn in_file(file: File, start: u64, len: usize) -> io::Result<Self> {
        let len = len.max(1);
        let words = FileWords::map(&file, start, len * WORDS)?;
        let ready = (0..len.div_ceil(PAGE)).map(|_| OnceLock::new()).collect();
        Ok(Self { pages: Pages::File { file, start, words, ready }, len })
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
            Pages::File { words, ready, .. } => match ready.get(line / PAGE).and_then(OnceLock::get) {
                Some(true) => &words.words()[line * WORDS..][..WORDS],
                Some(false) | None => &[],
            },
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
            Pages::File { file, start, words, ready } => {
                // A page that cannot be had would be a signal in the middle of a packet, so it is written before it is used.
                let is_ready = ready[line / PAGE].get_or_init(|| {
                    let first = line / PAGE * PAGE;
                    let zeros = vec![0; PAGE.min(self.len - first) * WORDS * size_of::<u64>()];
                    file.write_all_at(&zeros, start + (first * WORDS * size_of::<u64>()) as u64).is_ok()
                });
                if *is_ready { &words.words()[line * WORDS..][..WORDS] } else { &[] }
            }
        }
    }
}
