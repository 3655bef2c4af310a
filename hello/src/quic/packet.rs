//! Packets with a long header, and the removal of their protection (RFC 9000 section 17.2, RFC 9001 section 5).

use std::ops::Range;

use super::keys::{Keys, Version};
use crate::Reading;
use crate::cursor::Cursor;

/// Maximum length of a connection id in bytes. Source: RFC 9000 section 17.2.
const MAX_ID: usize = 20;
/// Length in bytes of the sample from which the mask over the header is computed, and its distance from the packet number's start.
const SAMPLE_LEN: usize = 16;
const SAMPLE_AT: usize = 4;

/// Whether a packet's first byte belongs to a long header. The next bit is 1, unless a client sends it at random (RFC 9287).
pub(super) const fn is_long(byte: u8) -> bool {
    byte & 0x80 != 0
}

/// A packet with a long header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) version: Version,
    /// False for 0-RTT and Handshake packets.
    pub(super) is_initial: bool,
    /// The destination connection id.
    pub(super) id: &'a [u8],
    /// The whole packet.
    bytes: &'a [u8],
    /// Where in `bytes` the protected packet number starts.
    number_at: usize,
}

/// A decrypted packet.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub(super) number: u64,
    /// Where in the scratch memory the payload is.
    pub(super) payload: Range<usize>,
}

impl<'a> Packet<'a> {
    /// Parses the packet at the start of `rest` and removes it from there. The error is [`Reading::UnknownVersion`] or
    /// [`Reading::Malformed`].
    pub(super) fn parse(rest: &mut &'a [u8]) -> Result<Self, Reading> {
        let mut cursor = Cursor(rest);
        let (first, number) = cursor.bytes(1).zip(cursor.bytes(4)).ok_or(Reading::Malformed)?;
        let number = number.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let version = Version::of(number).ok_or(Reading::UnknownVersion(number))?;
        let packet = Self::known(rest, cursor, first[0], version).ok_or(Reading::Malformed)?;
        *rest = &rest[packet.bytes.len()..];
        Ok(packet)
    }

    /// Parses a packet of a known version. `cursor` is after the version. `None` if the packet is malformed, or a Retry, which only servers
    /// send.
    fn known(datagram: &'a [u8], mut cursor: Cursor<'a>, first: u8, version: Version) -> Option<Self> {
        let id = cursor.vector(1).filter(|id| id.len() <= MAX_ID)?;
        cursor.vector(1).filter(|id| id.len() <= MAX_ID)?;
        // Initial, 0-RTT, Handshake, Retry. Version 2 counts from Retry.
        let kind = match version {
            Version::V1 => first >> 4 & 3,
            Version::V2 => (first >> 4).wrapping_sub(1) & 3,
        };
        let is_initial = match kind {
            0 => {
                let _token = cursor.varint_vector()?;
                true
            }
            1 | 2 => false,
            _ => return None,
        };
        let len = usize::try_from(cursor.varint()?).ok()?;
        let number_at = datagram.len() - cursor.0.len();
        cursor.bytes(len)?;
        Some(Self { version, is_initial, id, bytes: &datagram[..number_at + len], number_at })
    }

    /// Decrypts the packet into `scratch`. `next_number` is one more than the largest packet number of the connection. `None` if the packet
    /// was protected with other keys.
    pub(super) fn open(&self, keys: &Keys, next_number: u64, scratch: &mut Vec<u8>) -> Option<Opened> {
        scratch.clear();
        scratch.extend_from_slice(self.bytes);
        let sample_at = self.number_at + SAMPLE_AT;
        let mask = keys.mask(self.bytes.get(sample_at..sample_at + SAMPLE_LEN)?)?;
        scratch[0] ^= mask[0] & 0x0f;
        let len = usize::from(scratch[0] & 3) + 1;
        let payload_at = self.number_at + len;
        let mut truncated = 0;
        for (byte, mask) in scratch[self.number_at..payload_at].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
            truncated = truncated << 8 | u64::from(*byte);
        }
        let number = full_number(next_number, truncated, 8 * len);
        let (header, payload) = scratch.split_at_mut(payload_at);
        let len = keys.open(number, header, payload)?.len();
        Some(Opened { number, payload: payload_at..payload_at + len })
    }
}

/// Returns the packet number nearest to `expected` that ends with the `bits` bits `truncated`. Source: RFC 9000 appendix A.3.
const fn full_number(expected: u64, truncated: u64, bits: usize) -> u64 {
    let window = 1 << bits;
    let number = expected & !(window - 1) | truncated;
    if number + window / 2 <= expected && number < (1 << 62) - window {
        number + window
    } else if number > expected + window / 2 && number >= window {
        number - window
    } else {
        number
    }
}
