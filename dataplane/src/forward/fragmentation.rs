//! Fragmentation: IPv4 packets that are too big for their way out and may be cut (RFC 791 §3.2, RFC 1812 §4.2.2.7).
//!
//! Only the headers are made here. Which bytes of the payload go behind each is said as a range, so the caller may have the
//! packet in as many buffers as it likes.
//!
//! A fragment may be cut again: its fragments keep its place in the datagram, and all but those of the last one say that
//! more follow. Options go into the first fragment as they are, and into the others where their type says so.
//!
//! **Invariant.** Whoever puts the fragments of a packet together again has the packet: every byte of its payload is in
//! exactly one. No fragment is longer than the MTU, and all but the last have a multiple of 8 bytes of payload.

use std::ops::Range;

use crate::io::Umem;
use crate::wire::ethernet;
use crate::wire::ipv4::fragment::{DONT_FRAGMENT, MORE_FRAGMENTS, OFFSET, RESERVED, UNIT};
use crate::wire::ipv4::{self, MAX_HEADER_LEN, MIN_HEADER_LEN, option};

/// The most fragments of a packet: as many as the vswitch remembers of a datagram that comes in, and enough for the largest
/// datagram over any link that can carry IPv6 too.
const MAX_FRAGMENTS: usize = 64;

/// How a packet is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragmentation {
    first: Header,
    later: Header,
    /// Bytes behind the packet's header.
    payload_len: usize,
    /// Bytes behind the header of the first fragment, and of the later ones but the last.
    first_len: usize,
    later_len: usize,
    /// The packet's own word of flags and offset.
    word: u16,
}

/// One fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    header: Header,
    /// Which bytes of the packet's payload follow the header.
    pub(crate) payload: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    bytes: [u8; MAX_HEADER_LEN],
    len: usize,
}

impl Fragmentation {
    /// How to cut a packet for a link of this MTU, in bytes without the Ethernet header. `packet` begins with the IPv4
    /// header and need not hold more than that. None when it may not be cut, when it is no IPv4 packet, and when the link
    /// is too narrow for it.
    pub(crate) fn new(packet: &[u8], mtu: usize) -> Option<Self> {
        // A fragment lies in one buffer, whatever the link carries.
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

    /// Bytes of the packet's own header.
    pub(crate) const fn header_len(&self) -> usize {
        self.first.len
    }

    /// How many fragments there are.
    pub(crate) const fn count(&self) -> usize {
        1 + self.payload_len.saturating_sub(self.first_len).div_ceil(self.later_len)
    }

    /// The fragment with this number, from 0.
    pub(crate) fn fragment(&self, number: usize) -> Fragment {
        let end_of = |number: usize| (self.first_len + number * self.later_len).min(self.payload_len);
        let (mut header, payload) = match number.checked_sub(1) {
            None => (self.first, 0..end_of(0)),
            Some(before) => (self.later, end_of(before)..end_of(number)),
        };
        let more = if payload.end < self.payload_len { MORE_FRAGMENTS } else { self.word & MORE_FRAGMENTS };
        // Within 13 bits: no fragment that reaches past the largest datagram comes in.
        let offset = u16::try_from(usize::from(self.word & OFFSET) + payload.start / UNIT).unwrap_or(OFFSET) & OFFSET;
        header.finish(payload.len(), self.word & RESERVED | more | offset);
        Fragment { header, payload }
    }
}

impl Fragment {
    /// The IPv4 header.
    pub(crate) fn header(&self) -> &[u8] {
        &self.header.bytes[..self.header.len]
    }
}

impl Header {
    /// # Panics
    /// When there are more than [`MAX_HEADER_LEN`] bytes.
    fn new(of: &[u8]) -> Self {
        let mut bytes = [0; MAX_HEADER_LEN];
        bytes[..of.len()].copy_from_slice(of);
        Self { bytes, len: of.len() }
    }

    /// The same with the options only that all fragments have. None when the options contradict themselves.
    fn of_later_fragments(&self) -> Option<Self> {
        let mut later = Self::new(&self.bytes[..MIN_HEADER_LEN]);
        let mut options = &self.bytes[MIN_HEADER_LEN..self.len];
        while let &[kind, ref rest @ ..] = options {
            let len = match kind {
                option::END => break,
                option::NOP => 1,
                // The length counts the type and itself.
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
        // What is behind the last option is zeros, the end of options.
        later.len = later.len.next_multiple_of(4);
        later.bytes[0] = 0x40 | u8::try_from(later.len / 4).ok()?;
        Some(later)
    }

    /// Fills in what differs from fragment to fragment.
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
