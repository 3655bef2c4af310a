//! Gathers the bytes of one hello until it can be read, and compares all further copies of its bytes.

use crate::pieces::{Pieces, Refusal};
use crate::{MAX_HELLO, Reading};

/// What a parser says about the known bytes at a stream's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The hello is incomplete, and no shorter prefix than this completes it. Always longer than the prefix that was parsed.
    Needs(usize),
    /// The reading, and the length of the prefix that it depends on.
    Done(Reading, usize),
}

/// The bytes of one hello.
#[derive(Clone, Debug)]
pub(crate) struct Gathering {
    pieces: Pieces,
    /// Length of the prefix that is worth parsing. A client that sends byte by byte causes few parses.
    needs: usize,
    reading: Reading,
    /// Length of the hello. `None` until it is complete.
    end: Option<usize>,
}

impl Default for Gathering {
    fn default() -> Self {
        Self { pieces: Pieces::default(), needs: 1, reading: Reading::NeedMore, end: None }
    }
}

impl Gathering {
    /// Adds bytes that start at `offset`, and parses the stream's start with `parse` if it has become long enough.
    pub(crate) fn take(&mut self, offset: u64, data: &[u8], parse: impl FnOnce(&[u8]) -> Progress) -> &Reading {
        if matches!(self.reading, Reading::NotTls | Reading::Malformed | Reading::TooLong) {
            return &self.reading;
        }
        match self.pieces.add(offset, data, self.end.unwrap_or(MAX_HELLO)) {
            Ok(()) => {}
            Err(Refusal::Differs) => return self.fail(Reading::Malformed),
            Err(Refusal::TooMany) => return self.fail(Reading::TooLong),
        }
        if self.end.is_some() || self.pieces.prefix().len() < self.needs {
            return &self.reading;
        }
        match parse(self.pieces.prefix()) {
            Progress::Needs(len) if len > MAX_HELLO => self.fail(Reading::TooLong),
            Progress::Needs(len) => {
                self.needs = len;
                &self.reading
            }
            Progress::Done(reading @ (Reading::Name { .. } | Reading::NoName), end) => {
                self.pieces.truncate(end);
                self.end = Some(end);
                self.reading = reading;
                &self.reading
            }
            Progress::Done(reading, _) => self.fail(reading),
        }
    }

    /// Ends the reading for good: no bytes change it, and none are kept.
    pub(crate) fn fail(&mut self, reading: Reading) -> &Reading {
        *self = Self { reading, ..Self::default() };
        &self.reading
    }

    pub(crate) const fn reading(&self) -> &Reading {
        &self.reading
    }

    /// Returns the hello's length. `None` unless the reading is a name or [`Reading::NoName`].
    pub(crate) const fn end(&self) -> Option<usize> {
        self.end
    }

    /// Returns the number of bytes on the heap.
    pub(crate) const fn memory(&self) -> usize {
        self.pieces.memory()
    }
}
