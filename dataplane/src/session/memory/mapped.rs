//! Memory from `mmap`.

use std::fs::File;
use std::io;

use memmap2::MmapOptions;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Column, PhantomData, SessionMemoryError};
use crate::io::map_file;

/// Mapped memory.
pub(super) use memmap2::MmapMut as Bytes;

/// Reserves zeroed bytes. The kernel allocates a page when it is first written.
///
/// # Errors
/// `mmap` fails.
pub(super) fn reserve(len: usize) -> io::Result<Bytes> {
    // Without swap reservation, unused memory does not count towards the machine's commit limit.
    MmapOptions::new().len(len).no_reserve_swap().map_anon()
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> Column<T> {
    /// Maps `len` records from byte `start` of a file on. Writes go to the file and outlive the process.
    ///
    /// # Errors
    /// As [`Column::new`].
    pub(in crate::session) fn in_file(
        file: &File,
        start: u64,
        len: usize,
        capacity: usize,
    ) -> Result<Self, SessionMemoryError> {
        let len = len.max(1).saturating_mul(size_of::<T>());
        let bytes = map_file(file, start, len);
        let bytes = bytes.map_err(|source| SessionMemoryError { bytes: len, capacity, source })?;
        Ok(Self { bytes, records: PhantomData })
    }
}
