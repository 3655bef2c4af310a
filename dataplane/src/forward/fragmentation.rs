//! Fragments IPv4 packets that exceed the MTU (RFC 791 §3.2, RFC 1812 §4.2.2.7).
//!
//! Only headers are created here. Each fragment's payload is a range of bytes, so the caller may store the packet in any number of buffers.
//!
//! A fragment may be fragmented again: its fragments keep its offset, and have the "more fragments" flag except for those at the datagram's
//! end. All options go into the first fragment. Later ones only have those whose type requires it.
//!
//! **Invariant.** Reassembly yields the packet: every byte of its payload is in exactly one fragment. No fragment exceeds the MTU, and all
//! but the last have a multiple of 8 bytes of payload.

use std::ops::Range;

use crate::io::Umem;
use crate::wire::ethernet;
use crate::wire::ipv4::fragment::{DONT_FRAGMENT, MORE_FRAGMENTS, OFFSET, RESERVED, UNIT};
use crate::wire::ipv4::{self, MAX_HEADER_LEN, MIN_HEADER_LEN, option};

/// Maximum number of fragments: as many as the fragment table stores per datagram, and enough for the largest datagram on any link with an
/// IPv6 MTU.
const MAX_FRAGMENTS: usize = 64;

/// A plan that divides a packet into fragments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragmentation {
    first: Header,
    later: Header,
    /// Bytes after the packet's header.
    payload_len: usize,
    /// Payload bytes of the first fragment, and of each later fragment except the last.
    first_len: usize,
    later_len: usize,
    /// The flags and offset field of the packet, which may be a fragment itself.
    word: u16,
}

/// One fragment of a packet: its header, and the part of the packet that it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    header: Header,
    /// The range of bytes of the packet's payload that the fragment carries.
    pub(crate) payload: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    bytes: [u8; MAX_HEADER_LEN],
    len: usize,
}

impl Fragmentation {
    /// Returns how to fragment a packet for this MTU in bytes, without the Ethernet header. `packet` begins with the IPv4 header and may
    /// end after it. `None` if fragmentation is not allowed, if it is no IPv4 packet, or if the MTU is too small.
    pub(crate) fn new(packet: &[u8], mtu: usize) -> Option<Self> {
        // A fragment is in one buffer, whatever the MTU.
        let mtu = mtu.min(Umem::ROOM - ethernet::HEADER_LEN);
        let packet = ipv4::Packet::new_checked(packet).ok()?;
        let (word, payload_len) = (packet.fragment_word(), packet.payload_len());
        if word & DONT_FRAGMENT != 0 {
            return None;
        }
        let first = Header::new(packet.header());
        let later = first.of_later_fragments()?;
        let room = |header: &Header| Some(mtu.checked_sub(header.len)? / UNIT * UNIT).filter(|room| *room > 0);
        let (first_len, later_len) = (room(&first)?, room(&later)?);
        let plan = Self { first, later, payload_len, first_len, later_len, word };
        (plan.count() <= MAX_FRAGMENTS).then_some(plan)
    }

    /// Length of the packet's header in bytes.
    pub(crate) const fn header_len(&self) -> usize {
        self.first.len
    }

    pub(crate) const fn count(&self) -> usize {
        1 + self.payload_len.saturating_sub(self.first_len).div_ceil(self.later_len)
    }

    /// Returns the fragment with this number, from 0.
    pub(crate) fn fragment(&self, number: usize) -> Fragment {
        let end_of = |number: usize| (self.first_len + number * self.later_len).min(self.payload_len);
        let (mut header, payload) = match number.checked_sub(1) {
            None => (self.first, 0..end_of(0)),
            Some(before) => (self.later, end_of(before)..end_of(number)),
        };
        let more = if payload.end < self.payload_len { MORE_FRAGMENTS } else { self.word & MORE_FRAGMENTS };
        // Fits 13 bits, because fragments beyond the largest datagram are dropped earlier.
        let offset = u16::try_from(usize::from(self.word & OFFSET) + payload.start / UNIT).unwrap_or(OFFSET) & OFFSET;
        header.finish(payload.len(), self.word & RESERVED | more | offset);
        Fragment { header, payload }
    }
}

impl Fragment {
    pub(crate) fn header(&self) -> &[u8] {
        &self.header.bytes[..self.header.len]
    }
}

impl Header {
    /// Copies a header. Panics if it has more than [`MAX_HEADER_LEN`] bytes.
    fn new(of: &[u8]) -> Self {
        let mut bytes = [0; MAX_HEADER_LEN];
        bytes[..of.len()].copy_from_slice(of);
        Self { bytes, len: of.len() }
    }

    /// Returns the header with only the options of later fragments. `None` if the options are inconsistent.
    fn of_later_fragments(&self) -> Option<Self> {
        let mut later = Self::new(&self.bytes[..MIN_HEADER_LEN]);
        let mut options = &self.bytes[MIN_HEADER_LEN..self.len];
        while let &[kind, ref rest @ ..] = options {
            let len = match kind {
                option::END => break,
                option::NOP => 1,
                // The length includes type and length byte.
                _ => usize::from(*rest.first()?),
            };
            if len == 0 || len > options.len() || (len == 1 && kind != option::NOP) {
                return None;
            }
            let (option, behind) = options.split_at(len);
            if kind & option::COPIED != 0 {
                later.bytes[later.len..later.len + len].copy_from_slice(option);
                later.len += len;
            }
            options = behind;
        }
        // Padded with zeros, which end the options.
        later.len = later.len.next_multiple_of(4);
        later.bytes[0] = 0x40 | u8::try_from(later.len / 4).ok()?;
        Some(later)
    }

    /// Sets the fields that differ between fragments.
    fn finish(&mut self, payload_len: usize, word: u16) {
        let total_len = u16::try_from(self.len + payload_len).expect("no longer than the packet");
        if let Ok(mut packet) = ipv4::Packet::new_checked(&mut self.bytes[..self.len]) {
            packet.set_total_len(total_len);
            packet.set_fragment_word(word);
            packet.fill_checksum();
        }
    }
}

#[cfg(test)]
mod tests;
