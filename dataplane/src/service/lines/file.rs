//! Lines that lie in a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use super::{Lines, PAGE, Pages, WORDS};
use crate::io::FileWords;

/// The lines of a file, page by page.
#[derive(Debug)]
pub(super) struct FilePages {
    file: File,
    /// Where the words begin.
    start: u64,
    /// How many lines there are.
    len: usize,
    words: FileWords,
    /// By page: whether there is memory for it.
    ready: Box<[OnceLock<bool>]>,
}

impl Lines {
    /// So many lines, at least one, in a file that is long enough and zero from this byte on, a multiple of a page of memory.
    ///
    /// # Errors
    /// When it cannot be mapped.
    pub(in crate::service) fn in_file(file: File, start: u64, len: usize) -> io::Result<Self> {
        let len = len.max(1);
        let words = FileWords::map(&file, start, len * WORDS)?;
        let ready = (0..len.div_ceil(PAGE)).map(|_| OnceLock::new()).collect();
        Ok(Self { pages: Pages::File(FilePages { file, start, len, words, ready }), len })
    }
}

impl FilePages {
    pub(super) fn read(&self, line: usize) -> &[AtomicU64] {
        match self.ready.get(line / PAGE).and_then(OnceLock::get) {
            Some(true) => &self.words.words()[line * WORDS..][..WORDS],
            Some(false) | None => &[],
        }
    }

    pub(super) fn write(&self, line: usize) -> &[AtomicU64] {
        // A page that cannot be had would be a signal in the middle of a packet, so it is written before it is used.
        let is_ready = self.ready[line / PAGE].get_or_init(|| {
            let first = line / PAGE * PAGE;
            let zeros = vec![0; PAGE.min(self.len - first) * WORDS * size_of::<u64>()];
            self.file.write_all_at(&zeros, self.start + (first * WORDS * size_of::<u64>()) as u64).is_ok()
        });
        if *is_ready { &self.words.words()[line * WORDS..][..WORDS] } else { &[] }
    }
}
