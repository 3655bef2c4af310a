//! Memory mapped with `mmap`, unmapped when its owner is dropped.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use memmap2::{MmapMut, MmapOptions, MmapRaw};

/// Maps a part of a file, shared: written bytes reach the file even if the process crashes. `start` must be a multiple of the page size.
///
/// The caller must own the file: no other process may write to or truncate it while it is mapped. This function cannot verify that. Readers
/// of a previous process's file must expect any bytes.
///
/// # Errors
/// If `mmap` fails.
pub(crate) fn map_file(file: &File, start: u64, len: usize) -> io::Result<MmapMut> {
    // SAFETY: the mapping is private to the caller as long as the file is, which the caller promises: it lies in a folder of mode 0700
    // that is locked against other processes of this program.
    unsafe { MmapOptions::new().offset(start).len(len).map_mut(file) }
}

/// 64-bit words of a mapped file, which several threads read and write. Shared like [`map_file`].
#[derive(Debug)]
pub(crate) struct FileWords(MmapRaw);

impl FileWords {
    /// Maps `words` words from byte `start`, a multiple of the page size. The requirements of [`map_file`] apply.
    ///
    /// # Errors
    /// If `mmap` fails.
    pub(crate) fn map(file: &File, start: u64, words: usize) -> io::Result<Self> {
        MmapOptions::new().offset(start).len(words * size_of::<AtomicU64>()).map_raw(file).map(Self)
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        let words = self.0.as_mut_ptr().cast::<AtomicU64>();
        // SAFETY: the mapping begins at a page, is this long, can be written, and stays as long as `self`. Any bytes are a word. Nobody has
        // another kind of reference to it: it is private to this value, and the file to this process, as for `map_file`.
        unsafe { std::slice::from_raw_parts(words, self.0.len() / size_of::<AtomicU64>()) }
    }
}

/// A whole file, locked by this process and mapped shared: written bytes reach the file even if the process crashes.
///
/// Touching a page for which the file system has no space raises a signal. So [reserve](Self::reserve) a part before writing to it.
#[derive(Debug)]
pub struct MappedFile {
    /// Holds the lock while the memory is mapped.
    file: File,
    bytes: MmapMut,
}

impl MappedFile {
    /// Maps a file of this length in bytes. Keeps an existing file's bytes; creates a missing file with zeros and mode 0600.
    ///
    /// # Errors
    /// `ResourceBusy` if another process has locked the file, `InvalidData` if it has another length, or a system error.
    pub fn open(path: &Path, len: usize) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::from(io::ErrorKind::ResourceBusy),
            TryLockError::Error(error) => error,
        })?;
        let (found, wanted) = (file.metadata()?.len(), len as u64);
        if found == 0 {
            file.set_len(wanted)?;
        } else if found != wanted {
            let why = format!("the file has {found} bytes instead of {wanted}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let bytes = map_file(&file, 0, len)?;
        Ok(Self { file, bytes })
    }

    /// Allocates the file system's space for a part of the file.
    ///
    /// # Errors
    /// If the file system is full.
    pub fn reserve(&self, part: Range<usize>) -> io::Result<()> {
        let small = |number: usize| libc::off_t::try_from(number).map_err(io::Error::other);
        let (start, len) = (small(part.start)?, small(part.len())?);
        // SAFETY: the call takes numbers alone. It makes room in the file and changes none of its bytes.
        let error = unsafe { libc::posix_fallocate(self.file.as_raw_fd(), start, len) };
        if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
    }

    /// Returns the file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the file's mutable bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// A mapped memory range. Its owner decides who may access the bytes.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the range stays mapped until the last owner drops it, on whatever thread. Access goes through raw pointers,
// whose users say why they may.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed memory.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// Maps the memory of a kernel object: a socket's ring or a BPF map.
    pub(super) fn of(descriptor: BorrowedFd<'_>, offset: libc::off_t, len: usize) -> io::Result<Self> {
        // MAP_POPULATE avoids page faults on the first burst.
        Self::map(len, libc::MAP_SHARED | libc::MAP_POPULATE, descriptor.as_raw_fd(), offset)
    }

    fn map(len: usize, flags: i32, descriptor: i32, offset: libc::off_t) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the place, so no memory that exists is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, descriptor, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, len })
    }

    pub(super) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Excludes the memory from child processes. Otherwise the kernel copies pinned memory at `fork`, up to gigabytes.
    pub(super) fn keep_from_children(&self) {
        // SAFETY: the range is mapped, and children of this process do not use it.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, libc::MADV_DONTFORK) };
    }

    /// Requests huge pages of 2 MiB. Only a hint.
    pub(super) fn prefer_huge_pages(&self) {
        // SAFETY: the range is mapped, and the hint changes no bytes.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this start and length, and this is the only owner.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_is_one_process_s_and_keeps_what_is_written() {
        let path = std::env::temp_dir().join(format!("bulkhead-mapped-{}", std::process::id()));
        let len = 8192;
        let mut mapped = MappedFile::open(&path, len).unwrap();
        mapped.reserve(0..4096).unwrap();
        mapped.bytes_mut()[..4].copy_from_slice(b"kept");
        assert_eq!(MappedFile::open(&path, len).unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        // The kernel was not asked to write the file.
        assert_eq!(std::fs::read(&path).unwrap()[..5], *b"kept\0");
        drop(mapped);
        assert_eq!(MappedFile::open(&path, 4096).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(MappedFile::open(&path, len).unwrap().bytes()[..4], *b"kept");
        std::fs::remove_file(&path).unwrap();
    }
}
