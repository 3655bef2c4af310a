//! Memory for many small records, reserved at once and touched on use.
//!
//! A table that grows by copying stalls its worker: moving a million entries takes longer than an interface's ring can absorb. So each
//! column is reserved at full capacity at the start, and the kernel allocates pages when they are written. Records are plain integers for
//! which zero means empty, because fresh pages are zero.
//!
//! Huge pages are not used. With `bulkhead-bench pipeline` under a hypervisor they gained 3 to 5 percent at a million sessions and nothing
//! at a hundred thousand, because address translations of a burst overlap like its cache misses. And the first session on each huge page
//! would wait until two megabytes are cleared.

#[cfg_attr(not(target_os = "linux"), path = "memory/heap.rs")]
mod mapped;

use std::io;
use std::marker::PhantomData;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use mapped::Bytes;

/// The memory for sessions could not be reserved.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reserve {bytes} bytes of address space for {capacity} sessions: {source}\n  help: lower sessions.capacity, or \
     raise the limit on the process's memory (`ulimit -v`; vm.overcommit_memory=2 bounds it too)"
)]
pub struct SessionMemoryError {
    /// Size of the failed reservation in bytes.
    pub bytes: usize,
    /// Capacity in sessions of one worker.
    pub capacity: usize,
    /// The system's error.
    pub source: io::Error,
}

/// A fixed number of records, indexed by slot.
#[derive(Debug)]
pub(super) struct Column<T> {
    bytes: Bytes,
    records: PhantomData<T>,
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout> Column<T> {
    /// Reserves `len` zeroed records (at least one). `capacity` is for the error message.
    ///
    /// # Errors
    /// If the address space is limited for the process, or by the machine (`vm.overcommit_memory=2`).
    pub(super) fn new(len: usize, capacity: usize) -> Result<Self, SessionMemoryError> {
        let len = len.max(1).saturating_mul(size_of::<T>());
        let bytes = mapped::reserve(len).map_err(|source| SessionMemoryError { bytes: len, capacity, source })?;
        Ok(Self { bytes, records: PhantomData })
    }

    #[inline]
    pub(super) fn records(&self) -> &[T] {
        <[T]>::ref_from_bytes(&self.bytes)
            .expect("the memory is aligned to a word and its length is a multiple of a record's")
    }

    #[inline]
    pub(super) fn records_mut(&mut self) -> &mut [T] {
        <[T]>::mut_from_bytes(&mut self.bytes)
            .expect("the memory is aligned to a word and its length is a multiple of a record's")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_zeroed_and_keeps_what_is_written() {
        let mut column = Column::<[u64; 8]>::new(1000, 1000).unwrap();
        assert!(column.records().iter().all(|record| *record == [0; 8]));
        column.records_mut()[999][7] = 7;
        assert_eq!((column.records().len(), column.records()[999][7]), (1000, 7));
    }

    #[test]
    fn an_empty_column_has_a_place_that_nobody_uses() {
        assert_eq!(Column::<u32>::new(0, 0).unwrap().records().len(), 1);
    }

    #[test]
    fn what_is_not_touched_costs_nothing() {
        // 1 TiB, more memory than any test machine has.
        assert_eq!(Column::<[u64; 8]>::new(1 << 34, 1 << 34).unwrap().records().len(), 1 << 34);
    }

    #[test]
    fn more_than_there_is_is_an_error_that_names_the_setting_and_a_remedy() {
        for records in [1 << 55, usize::MAX] {
            let error = Column::<[u64; 8]>::new(records, 1 << 26).unwrap_err().to_string();
            assert!(error.contains("67108864 sessions") && error.contains("help: lower sessions.capacity"), "{error}");
        }
    }
}
