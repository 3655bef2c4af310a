//! TLS over TCP: finds the ClientHello in the records at a stream's start (RFC 8446 section 5.1).
//!
//! A record has at most 16,384 bytes of one or more handshake messages, and a message may continue in further records. The version in a
//! record's header says nothing; only its first byte is always 3.

use crate::client_hello::{self, Parsed};
use crate::cursor::Cursor;
use crate::gathering::{Gathering, Progress};
use crate::pieces::Pieces;
use crate::{MAX_HELLO, Reading};

/// Length of a record's header in bytes: a type, a version of 2 bytes and a length of 2 bytes.
const HEADER_LEN: usize = 5;
/// Types of records. Source: RFC 8446 section 5.1.
const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
/// The first byte of the version in a record's header.
const MAJOR_VERSION: u8 = 3;
/// Maximum number of bytes in a record.
const MAX_RECORD: usize = 1 << 14;

/// A server's message with its choices. A HelloRetryRequest is one whose random number is [`RETRY`]. Source: RFC 8446 section 4.1.3.
const SERVER_HELLO: u8 = 2;
const RETRY: [u8; 32] = *b"\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91\
    \xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c";
/// Where the random number starts in a server's first record, after the headers of record and message and the version.
const RANDOM_AT: usize = HEADER_LEN + 4 + 2;
/// Number of bytes that show whether an answer is a HelloRetryRequest.
const ANSWER_LEN: usize = RANDOM_AT + RETRY.len();

/// The direction of a TCP connection from the client to the server, and the start of the server's answer.
///
/// ```
/// use bulkhead_hello::{Reading, tls::Stream};
///
/// // A ClientHello of TLS 1.2 without extensions, in one record.
/// let hello = [&b"\x16\x03\x01\0\x2d\x01\0\0\x29\x03\x03"[..], &[7; 32], b"\0\0\x02\x13\x01\x01\0"].concat();
/// let (early, late) = hello.split_at(20);
/// let mut stream = Stream::default();
/// assert_eq!(stream.take(20, late), &Reading::NeedMore);
/// assert_eq!(stream.take(0, early), &Reading::NoName);
/// assert!(stream.end().is_none());
/// // The server's answer is no HelloRetryRequest, here an alert.
/// stream.answer(0, b"\x15\x03\x03\0\x02\x02\x28");
/// assert_eq!(stream.end(), Some(50));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Stream {
    hello: Gathering,
    /// The first bytes of the server.
    answer: Pieces,
    /// Number of hellos that the client sends: 2 after a HelloRetryRequest. `None` until the server has answered.
    expected: Option<usize>,
    /// Offset after the last hello of those that are expected. `None` until it is complete.
    end: Option<usize>,
}

impl Stream {
    /// Adds the payload of a client's segment and returns the reading of the stream. `offset` is the distance of the first byte from the
    /// stream's first byte (sequence number minus initial sequence number minus 1, modulo 2^32).
    ///
    /// Segments may arrive in any order, repeatedly and with overlaps. [`Reading::NotTls`], [`Reading::Malformed`] and [`Reading::TooLong`]
    /// are final. [`Reading::Name`] and [`Reading::NoName`] turn into one of these if a later segment has another byte inside the hello, or
    /// a second hello with another name.
    pub fn take(&mut self, offset: u32, payload: &[u8]) -> &Reading {
        let Self { hello, end, .. } = self;
        let expected = self.expected.unwrap_or(1);
        hello.take(offset.into(), payload, |prefix| parse(prefix, expected, end).unwrap_or(Progress::MALFORMED));
        self.settle()
    }

    /// Adds the payload of a server's segment and returns the reading of the client's stream. `offset` is the distance from the server's
    /// first byte. Only the first 43 bytes are read, which show whether the answer is a HelloRetryRequest.
    pub fn answer(&mut self, offset: u32, payload: &[u8]) -> &Reading {
        if self.expected.is_none() {
            // The server has no reason to deceive: of two values of a byte, the first one counts.
            let _ = self.answer.add(offset.into(), payload, ANSWER_LEN);
            self.expected = expected_hellos(self.answer.prefix());
            if self.expected == Some(2) {
                let Self { hello, end, .. } = self;
                *end = None;
                hello.parse(|prefix| parse(prefix, 2, end).unwrap_or(Progress::MALFORMED));
            }
        }
        self.settle()
    }

    /// Forgets what follows the last hello as soon as the server's answer shows which one is the last. Returns the reading.
    fn settle(&mut self) -> &Reading {
        if let Some(end) = self.end() {
            self.hello.truncate(end);
        }
        self.reading()
    }

    /// Returns the reading of the segments up to now.
    pub const fn reading(&self) -> &Reading {
        self.hello.reading()
    }

    /// Returns the offset after the last byte of the client's hellos. `None` unless the reading is [`Reading::Name`] or [`Reading::NoName`]
    /// and the server's answer shows that no other hello follows.
    ///
    /// As soon as the server has acknowledged this offset, no segment can exchange bytes of the hello, and the stream may be dropped.
    pub fn end(&self) -> Option<usize> {
        let is_read = matches!(self.reading(), Reading::Name { .. } | Reading::NoName);
        self.end.filter(|_| is_read && self.expected.is_some())
    }

    /// Returns the number of bytes of memory behind the stream, at most [`MAX_HELLO`] and 2 KiB.
    pub const fn memory(&self) -> usize {
        self.hello.memory() + self.answer.memory()
    }
}

/// Parses the start of a client's stream with `expected` hellos, 1 or 2. Sets `end` to the offset after the last one as soon as it is
/// complete. `None` if the stream is malformed.
fn parse(prefix: &[u8], expected: usize, end: &mut Option<usize>) -> Option<Progress> {
    if prefix.iter().zip([HANDSHAKE, MAJOR_VERSION]).any(|(byte, expected)| *byte != expected) {
        return Some(Progress { reading: Reading::NotTls, needs: None });
    }
    let (first, first_end) = match records(prefix, 0)? {
        Parsed::Complete(reading, end) => (reading, end),
        Parsed::Needs(len) => return Some(Progress { reading: Reading::NeedMore, needs: Some(len) }),
    };
    let last_end = match expected {
        1 => first_end,
        _ => match records(prefix, first_end)? {
            Parsed::Complete(second, end) if second == first => end,
            Parsed::Complete(..) => return None,
            Parsed::Needs(len) => return Some(Progress { reading: first, needs: Some(len) }),
        },
    };
    *end = Some(last_end);
    Some(Progress { reading: first, needs: None })
}

/// Parses the hello in the records from offset `start` of a prefix. The lengths in the result count from the prefix's start.
///
/// Before a second hello, skips records that may come between: early data, and the ChangeCipherSpec of RFC 8446 appendix D.4. `None` if the
/// records are malformed, or the last one has bytes after the hello.
fn records(prefix: &[u8], start: usize) -> Option<Parsed> {
    let (mut cursor, mut handshake) = (Cursor(prefix.get(start..)?), Vec::new());
    // Bytes of the last record that are not in the prefix.
    let mut outstanding = 0;
    loop {
        let missing = match client_hello::parse(&handshake)? {
            Parsed::Complete(reading, len) => {
                let is_aligned = len == handshake.len() && outstanding == 0;
                return is_aligned.then(|| Parsed::Complete(reading, prefix.len() - cursor.0.len()));
            }
            Parsed::Needs(len) if len > MAX_HELLO => return Some(Parsed::Needs(len)),
            Parsed::Needs(len) => len - handshake.len(),
        };
        let needs = if outstanding >= missing { missing } else { HEADER_LEN + missing };
        if outstanding > 0 {
            return Some(Parsed::Needs(prefix.len() + needs));
        }
        let Some(header) = cursor.bytes(HEADER_LEN) else {
            return Some(Parsed::Needs(prefix.len() - cursor.0.len() + needs));
        };
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let part = cursor.bytes(len.min(cursor.0.len()))?;
        outstanding = len - part.len();
        let is_between =
            start > 0 && handshake.is_empty() && matches!(header[0], CHANGE_CIPHER_SPEC | APPLICATION_DATA);
        match header[0] {
            HANDSHAKE if (1..=MAX_RECORD).contains(&len) && header[1] == MAJOR_VERSION => handshake.extend(part),
            _ if is_between && outstanding == 0 => {}
            _ if is_between => return Some(Parsed::Needs(prefix.len() + outstanding + HEADER_LEN + missing)),
            _ => return None,
        }
    }
}

/// Returns the number of hellos that a client sends to a server that answers with these bytes. `None` if they are too few to know.
fn expected_hellos(answer: &[u8]) -> Option<usize> {
    let header = [(0, HANDSHAKE), (1, MAJOR_VERSION), (5, SERVER_HELLO), (9, 3), (10, 3)];
    let differs = |(at, byte): (usize, u8)| answer.get(at).is_some_and(|answered| *answered != byte);
    match header.into_iter().chain((RANDOM_AT..).zip(RETRY)).any(differs) {
        true => Some(1),
        false => (answer.len() >= ANSWER_LEN).then_some(2),
    }
}
