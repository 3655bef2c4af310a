//! Files of lines beside the session files, normally on a tmpfs. Each change is in the file at once and survives the process. The next
//! process reads the file and copies what still counts to a new one.
//!
//! ```text
//!   header (kind, version, keys of the hashes, boot, check) | at 4096: lines, as in memory
//! ```
//! Files contain hashes. Two processes can share them only if they have the same keys and the same hash function. The header's `proof`, the
//! hash of known input, verifies that.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use ahash::RandomState;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{Lines, WORDS};
use crate::wire::checksum::crc32c;

/// Offset of the lines: one page, so that they can be mapped.
pub(in crate::service) const START: u64 = 4096;

/// Lines read at once: 64 KiB.
const STEP: usize = 1024;

/// A kind of files.
#[derive(Debug)]
pub(crate) struct Form {
    /// The first bytes of each file.
    pub(crate) magic: [u8; 8],
    /// Version of the format. Increase it with any change of the layout or meaning.
    pub(crate) version: u32,
    /// Number of lines.
    pub(crate) lines: usize,
    /// The reason why a file of another kind is rejected.
    pub(crate) foreign: &'static str,
    /// Returns a hash of constant values, by which a file of a program or CPU that hashes differently is detected.
    pub(crate) proof: fn(&RandomState) -> u64,
}

/// The start of a file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(in crate::service) struct Header {
    magic: [u8; 8],
    /// The number of pairs of words in the lines.
    pub(in crate::service) pairs: u64,
    keys: [u64; 4],
    pub(in crate::service) proof: u64,
    /// The kernel's boot id when the file was written.
    boot: [u8; 16],
    version: u32,
    /// CRC-32C of the header's bytes before this field.
    pub(in crate::service) check: u32,
}

impl Header {
    pub(in crate::service) fn sum(&self) -> u32 {
        crc32c(&self.as_bytes()[..std::mem::offset_of!(Self, check)])
    }
}

/// The random keys of a file's hashes, so that outsiders cannot choose values that share lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys([u64; 4]);

impl Keys {
    /// Returns new keys.
    pub(crate) fn random() -> Self {
        Self(std::array::from_fn(|at| RandomState::new().hash_one(at)))
    }

    pub(crate) const fn hasher(self) -> RandomState {
        let Self([a, b, c, d]) = self;
        RandomState::with_seeds(a, b, c, d)
    }
}

impl Form {
    /// Length of a file in bytes. Pages that were never written take no memory.
    pub(in crate::service) const fn len(&self) -> u64 {
        START + (self.lines * WORDS * size_of::<u64>()) as u64
    }

    const fn pairs(&self) -> u64 {
        (self.lines * WORDS / 2) as u64
    }

    /// Creates a file whose lines are zero. `boot` is the kernel's boot id.
    ///
    /// # Errors
    /// If the file exists, or cannot be created, written or mapped.
    pub(crate) fn create(&self, path: &Path, boot: [u8; 16], keys: Keys) -> io::Result<Lines> {
        let Self { magic, version, .. } = *self;
        let (pairs, proof) = (self.pairs(), (self.proof)(&keys.hasher()));
        let mut header = Header { magic, pairs, keys: keys.0, proof, boot, version, check: 0 };
        header.check = header.sum();
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        file.set_len(self.len())?;
        file.write_all_at(header.as_bytes(), 0)?;
        Lines::in_file(file, START, self.lines)
    }

    /// Reads a file. Calls `each` with the number and the words of every line, or of none if no line was ever written. Returns the keys.
    ///
    /// # Errors
    /// The reason why the file is rejected, as a clause without a full stop.
    pub(crate) fn read(
        &self,
        path: &Path,
        boot: [u8; 16],
        mut each: impl FnMut(usize, &[u64; WORDS]),
    ) -> Result<Keys, String> {
        let unreadable = |error: io::Error| format!("it cannot be read: {error}");
        let mut file = File::open(path).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        let mut header = Header::new_zeroed();
        if !about.is_file() || file.read_exact(header.as_mut_bytes()).is_err() {
            return Err(self.foreign.to_owned());
        }
        if let Some(fault) = self.fault(&header, boot, about.len()) {
            return Err(fault.to_owned());
        }
        // Without lines, only the header has a block.
        let count = if about.blocks() * 512 <= START { 0 } else { self.lines };
        let mut read = vec![[0u64; WORDS]; STEP];
        for first in (0..count).step_by(STEP) {
            let read = &mut read[..STEP.min(count - first)];
            let offset = START + (first * size_of_val(&read[0])) as u64;
            file.read_exact_at(read.as_mut_bytes(), offset).map_err(unreadable)?;
            (first..).zip(read.iter()).for_each(|(line, words)| each(line, words));
        }
        Ok(Keys(header.keys))
    }

    /// Returns why a file with this header and length in bytes is rejected, or `None` if it is valid.
    fn fault(&self, header: &Header, boot: [u8; 16], len: u64) -> Option<&'static str> {
        if header.magic != self.magic {
            Some(self.foreign)
        } else if header.version != self.version {
            Some("its format version is not supported")
        } else if header.check != header.sum() {
            Some("its header is damaged")
        } else if header.boot != boot {
            Some("it was written before the last boot")
        } else if header.pairs != self.pairs() || header.proof != (self.proof)(&Keys(header.keys).hasher()) {
            Some("another program wrote it")
        } else if len != self.len() {
            Some("its length differs from its header")
        } else {
            None
        }
    }
}
