//! A byte stream that tracks its position for error messages, and byte orders.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::sync::Arc;

use super::CaptureError;

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

    /// Returns the 16-bit number at this byte offset. `None` if it lies past the end.
    pub(super) fn u16_at(self, bytes: &[u8], at: usize) -> Option<u16> {
        Some(self.u16(*bytes.get(at..)?.first_chunk()?))
    }

    /// Returns the 32-bit number at this byte offset. `None` if it lies past the end.
    pub(super) fn u32_at(self, bytes: &[u8], at: usize) -> Option<u32> {
        Some(self.u32(*bytes.get(at..)?.first_chunk()?))
    }
}

/// A buffered stream that tracks its position.
#[derive(Debug)]
pub(super) struct Source<R> {
    read: BufReader<R>,
    file: Arc<str>,
    /// Bytes read so far.
    offset: u64,
    /// Position in the stream of the current record's first byte.
    record: u64,
    /// Number of packets read so far.
    pub(super) packets: u64,
}

impl<R: Read> Source<R> {
    pub(super) fn new(file: &str, read: R) -> Self {
        Self { read: BufReader::with_capacity(1 << 16, read), file: file.into(), offset: 0, record: 0, packets: 0 }
    }

    pub(super) fn file(&self) -> Arc<str> {
        Arc::clone(&self.file)
    }

    /// Marks the current position as the start of a record. Returns false at the end of the stream.
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

    /// Fills the buffer with bytes of the current record. Fails with [`CaptureError::Truncated`] at the end of the stream.
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

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], CaptureError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Skips bytes of the current record.
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
