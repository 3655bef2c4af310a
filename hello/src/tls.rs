//! TLS over TCP: finds the ClientHello in the records at a stream's start (RFC 8446 section 5.1).
//!
//! A record has at most 16,384 bytes of one or more handshake messages, and a message may continue in further records. The version in a
//! record's header says nothing; only its first byte is always 3.

use crate::client_hello;
use crate::cursor::Cursor;
use crate::gathering::{Gathering, Progress};
use crate::{MAX_HELLO, Reading};

/// Length of a record's header in bytes: a type, a version of 2 bytes and a length of 2 bytes.
const HEADER_LEN: usize = 5;
/// The type of records with handshake messages, and the first byte of their version.
const HANDSHAKE: u8 = 22;
const MAJOR_VERSION: u8 = 3;
/// Maximum number of bytes in a record.
const MAX_RECORD: usize = 1 << 14;

/// The direction of a TCP connection from the client to the server.
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
/// assert_eq!(stream.end(), Some(50));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Stream(Gathering);

impl Stream {
    /// Adds a segment's payload and returns the reading of the stream. `offset` is the distance of the first byte from the stream's first
    /// byte (sequence number minus initial sequence number minus 1, modulo 2^32).
    ///
    /// Segments may arrive in any order, repeatedly and with overlaps. [`Reading::NotTls`], [`Reading::Malformed`] and [`Reading::TooLong`]
    /// are final. [`Reading::Name`] and [`Reading::NoName`] turn into [`Reading::Malformed`] if a later segment has another byte inside
    /// the hello.
    pub fn take(&mut self, offset: u32, payload: &[u8]) -> &Reading {
        self.0.take(offset.into(), payload, parse)
    }

    /// Returns the reading of the segments up to now.
    pub const fn reading(&self) -> &Reading {
        self.0.reading()
    }

    /// Returns the offset after the hello's last byte. `None` unless the reading is [`Reading::Name`] or [`Reading::NoName`]. As soon as
    /// the server has acknowledged this offset, no segment can exchange bytes of the hello, and the stream may be dropped.
    pub const fn end(&self) -> Option<usize> {
        self.0.end()
    }

    /// Returns the number of bytes of memory behind the stream, at most [`MAX_HELLO`] and 1 KiB.
    pub const fn memory(&self) -> usize {
        self.0.memory()
    }
}

/// Parses the records at the start of a stream.
fn parse(prefix: &[u8]) -> Progress {
    if prefix.iter().zip([HANDSHAKE, MAJOR_VERSION]).any(|(byte, expected)| *byte != expected) {
        return Progress::Done(Reading::NotTls, 0);
    }
    let (mut cursor, mut handshake) = (Cursor(prefix), Vec::new());
    // Bytes of the last record that are not in the prefix.
    let mut outstanding = 0;
    loop {
        let missing = match client_hello::parse(&handshake) {
            // A surplus of bytes in the last record follows the hello.
            Progress::Done(reading, len) => {
                return Progress::Done(reading, prefix.len() - cursor.0.len() + len - handshake.len());
            }
            Progress::Needs(len) if len > MAX_HELLO => return Progress::Needs(len),
            Progress::Needs(len) => len - handshake.len(),
        };
        if outstanding >= missing {
            return Progress::Needs(prefix.len() + missing);
        }
        let Some(header) = cursor.bytes(HEADER_LEN).filter(|_| outstanding == 0) else {
            return Progress::Needs(prefix.len() - cursor.0.len() + HEADER_LEN + missing);
        };
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[0] != HANDSHAKE || header[1] != MAJOR_VERSION || !(1..=MAX_RECORD).contains(&len) {
            return Progress::Done(Reading::Malformed, 0);
        }
        let part = cursor.bytes(len.min(cursor.0.len())).unwrap_or_default();
        handshake.extend_from_slice(part);
        outstanding = len - part.len();
    }
}
