//! Reading from a stream with a position, for error messages, and with byte orders.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::sync::Arc;

use super::CaptureError;

/// The order of the bytes of a number in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    pub(super) const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    pub(super) const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    /// The number at a position; none past the end.
    pub(super) fn u16_at(self, bytes: &[u8], at: usize) -> Option<u16> {
        Some(self.u16(*bytes.get(at..)?.first_chunk()?))
    }

    /// The number at a position; none past the end.
    pub(super) fn u32_at(self, bytes: &[u8], at: usize) -> Option<u32> {
        Some(self.u32(*bytes.get(at..)?.first_chunk()?))
    }
}

/// A stream that knows where it is.
#[derive(Debug)]
pub(super) struct Source<R> {
    read: BufReader<R>,
    file: Arc<str>,
    /// How many bytes were read.
    offset: u64,
    /// Where the current record begins.
    record: u64,
    /// How many packets were delivered.
    pub(super) packets: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(file: &str, read: R) -> Self {
        Self { read: BufReader::with_capacity(1 << 16, read), file: file.into(), offset: 0, record: 0, packets: 0 }
    }

    pub(super) fn file(&self) -> Arc<str> {
        Arc::clone(&self.file)
    }

    /// A new record begins here. False when the stream is at its end.
    pub(super) fn begin_record(&mut self) -> Result<bool, CaptureError> {
        self.record = self.offset;
        loop {
            match self.read.fill_buf() {
                Ok(bytes) => return Ok(!bytes.is_empty()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.io(error)),
            }
        }
    }

    /// Fills the buffer. The end of the stream is in the middle of a record here.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), CaptureError> {
        match self.read.read_exact(bytes) {
            Ok(()) => {
                self.offset += bytes.len() as u64;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(self.truncated()),
            Err(error) => Err(self.io(error)),
        }
    }

    /// Fills an array.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], CaptureError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads over bytes that are of no interest, without keeping them.
    pub(super) fn skip(&mut self, count: u64) -> Result<(), CaptureError> {
        match std::io::copy(&mut self.read.by_ref().take(count), &mut std::io::sink()) {
            Ok(skipped) => {
                self.offset += skipped;
                if skipped == count { Ok(()) } else { Err(self.truncated()) }
            }
            Err(error) => Err(self.io(error)),
        }
    }

    pub(super) fn corrupt(&self, what: &'static str) -> CaptureError {
        CaptureError::Corrupt { file: self.file(), packets: self.packets, offset: self.record, what }
    }

    fn truncated(&self) -> CaptureError {
        CaptureError::Truncated { file: self.file(), packets: self.packets, offset: self.record }
    }

    fn io(&self, source: std::io::Error) -> CaptureError {
        CaptureError::Io { file: self.file(), packets: self.packets, offset: self.offset, source }
    }
}
