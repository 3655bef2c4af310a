//! Memory from `mmap`.

use std::fs::File;
use std::io;

use memmap2::MmapOptions;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Column, PhantomData, SessionMemoryError};
use crate::io::map_file;

/// Mapped bytes.
pub(super) use memmap2::MmapMut as Bytes;

/// Zeroed bytes that take memory when they are touched.
///
/// # Errors
/// Those of `mmap`.
pub(super) fn reserve(len: usize) -> io::Result<Bytes> {
    // No reservation: memory that is not used yet shall not count against the machine's commit limit.
    MmapOptions::new().len(len).no_reserve_swap().map_anon()
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> Column<T> {
    /// The records that lie in a file from a byte on, shared with everybody who maps it: they outlive the process.
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
