//! The bytes of a journal: in memory, or in a file that is read piece by piece.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// The bytes of a journal.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// The whole journal in memory, as its recorder has it.
    Memory(&'a [u8]),
    /// A file, whose position reading changes. A process may write to the file meanwhile.
    File(&'a File),
}

impl<'a> From<&'a [u8]> for Input<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Memory(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Input<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Memory(bytes)
    }
}

impl<'a> From<&'a File> for Input<'a> {
    fn from(file: &'a File) -> Self {
        Self::File(file)
    }
}

impl Input<'_> {
    /// Returns the length in bytes.
    pub(super) fn length(self) -> io::Result<usize> {
        match self {
            Self::Memory(bytes) => Ok(bytes.len()),
            Self::File(file) => Ok(usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX)),
        }
    }

    /// Copies bytes from this offset on. Returns their number, which is smaller than `into` only at the end of the input.
    pub(super) fn read(self, at: usize, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Memory(bytes) => {
                let rest = bytes.get(at..).unwrap_or_default();
                let length = rest.len().min(into.len());
                into[..length].copy_from_slice(&rest[..length]);
                Ok(length)
            }
            Self::File(mut file) => {
                file.seek(SeekFrom::Start(at as u64))?;
                let mut length = 0;
                while length < into.len() {
                    match file.read(&mut into[length..]) {
                        Ok(0) => break,
                        Ok(read) => length += read,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(length)
            }
        }
    }
}
