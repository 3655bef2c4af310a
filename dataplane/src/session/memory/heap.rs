//! Memory from the heap, for systems other than Linux. All of it is cleared at once.

use std::io::{self, ErrorKind};
use std::ops::{Deref, DerefMut};

use zerocopy::IntoBytes;

/// Bytes aligned to a word.
#[derive(Debug)]
pub(super) struct Bytes {
    words: Vec<u64>,
    len: usize,
}

/// Allocates zeroed bytes.
///
/// # Errors
/// Out of memory.
pub(super) fn reserve(len: usize) -> io::Result<Bytes> {
    let (mut words, count) = (Vec::new(), len.div_ceil(size_of::<u64>()));
    words.try_reserve_exact(count).map_err(|_| ErrorKind::OutOfMemory)?;
    words.resize(count, 0);
    Ok(Bytes { words, len })
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.words.as_bytes()[..self.len]
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.words.as_mut_bytes()[..self.len]
    }
}
