//! Lines in a memory-mapped file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use super::{Lines, PAGE, Pages, WORDS};
use crate::io::FileWords;

/// Lines in a file. A page gets disk blocks at its first write.
#[derive(Debug)]
pub(super) struct FilePages {
    file: File,
    /// Byte offset of the first word in the file.
    start: u64,
    /// Number of lines.
    len: usize,
    words: FileWords,
    /// For each page: whether the file has space for it. Unset until the first write.
    ready: Box<[OnceLock<bool>]>,
}

impl Lines {
    /// Maps `len` lines, at least one, from byte `start` of a file on. `start` must be a multiple of the memory page size. The file must be
    /// long enough, and zero after `start`.
    ///
    /// # Errors
    /// The file cannot be mapped.
    pub(super) fn in_file(file: File, start: u64, len: usize) -> io::Result<Self> {
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
        // If the file system is full, a store to the mapping raises SIGBUS. A write before the first use returns an error instead.
        let is_ready = self.ready[line / PAGE].get_or_init(|| {
            let first = line / PAGE * PAGE;
            let zeros = vec![0; PAGE.min(self.len - first) * WORDS * size_of::<u64>()];
            self.file.write_all_at(&zeros, self.start + (first * WORDS * size_of::<u64>()) as u64).is_ok()
        });
        if *is_ready { &self.words.words()[line * WORDS..][..WORDS] } else { &[] }
    }
}
