//! Gathers the bytes of a hello until it can be read, and compares all further copies of its bytes.

use crate::pieces::{Pieces, Refusal};
use crate::{MAX_HELLO, Reading};

/// What a parser says about the known bytes at a stream's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) reading: Reading,
    /// Length of the shortest prefix that may change the reading. Longer than the prefix that was parsed. `None` if no byte changes it.
    pub(crate) needs: Option<usize>,
}

impl Progress {
    /// The progress if the stream's start cannot be continued to a hello.
    pub(crate) const MALFORMED: Self = Self { reading: Reading::Malformed, needs: None };
}

/// The bytes of a hello.
#[derive(Clone, Debug)]
pub(crate) struct Gathering {
    pieces: Pieces,
    /// The offset from which bytes are ignored. 0 if the reading is final.
    limit: usize,
    /// Length of the prefix that is worth parsing. A client that sends byte by byte causes few parses.
    needs: Option<usize>,
    reading: Reading,
}

impl Default for Gathering {
    fn default() -> Self {
        Self { pieces: Pieces::default(), limit: MAX_HELLO, needs: Some(1), reading: Reading::NeedMore }
    }
}

impl Gathering {
    /// Adds bytes that start at `offset`, and parses the stream's start with `parse` if it has become long enough.
    pub(crate) fn take(&mut self, offset: u64, data: &[u8], parse: impl FnOnce(&[u8]) -> Progress) {
        match self.pieces.add(offset, data, self.limit) {
            Ok(()) if self.needs.is_some_and(|len| self.pieces.prefix().len() >= len) => self.parse(parse),
            Ok(()) => {}
            Err(Refusal::Differs) => self.end(Reading::Malformed),
            Err(Refusal::TooMany) => self.end(Reading::TooLong),
        }
    }

    /// Parses the stream's start, unless the reading is final.
    pub(crate) fn parse(&mut self, parse: impl FnOnce(&[u8]) -> Progress) {
        if self.limit == 0 {
            return;
        }
        let Progress { reading, needs } = parse(self.pieces.prefix());
        match reading {
            Reading::NeedMore | Reading::Name { .. } | Reading::NoName => {
                (self.reading, self.needs) = (reading, needs);
                if needs.is_some_and(|len| len > MAX_HELLO) {
                    self.end(Reading::TooLong);
                }
            }
            reading => self.end(reading),
        }
    }

    /// Ends the reading for good: no bytes change it, and none are kept.
    pub(crate) fn end(&mut self, reading: Reading) {
        *self = Self { pieces: Pieces::default(), limit: 0, needs: None, reading };
    }

    /// Ignores bytes from `limit` on, and forgets those there are. All before it must be known.
    pub(crate) fn truncate(&mut self, limit: usize) {
        if limit < self.limit {
            self.pieces.truncate(limit);
            (self.limit, self.needs) = (limit, None);
        }
    }

    pub(crate) const fn reading(&self) -> &Reading {
        &self.reading
    }

    /// Returns the number of bytes on the heap.
    pub(crate) const fn memory(&self) -> usize {
        self.pieces.memory()
    }
}
