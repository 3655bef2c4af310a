//! The fixed fields of an IPv4 header (RFC 791 §3.1).

use std::net::Ipv4Addr;

use crate::wire::ipv4::{MIN_HEADER_LEN, field, fragment as bits};

/// The fixed fields of a header with a valid version and header length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) header_len: usize,
    pub(super) total_len: usize,
    pub(super) id: u16,
    /// Offset in bytes of the packet's payload in its datagram. 0 unless the packet is a later fragment.
    pub(super) fragment_offset: u32,
    pub(super) more_fragments: bool,
    pub(super) ttl: u8,
    pub(super) protocol: u8,
    pub(super) src: Ipv4Addr,
    pub(super) dst: Ipv4Addr,
}

/// Reads the fixed fields. `None` if they are truncated, or if version or header length is invalid. The lengths are not compared with the
/// packet, because a packet in an ICMP error is incomplete.
pub(super) fn header(bytes: &[u8]) -> Option<Header> {
    let fixed = bytes.first_chunk::<MIN_HEADER_LEN>()?;
    let header_len = usize::from(fixed[0] & 0x0f) * 4;
    if fixed[0] >> 4 != 4 || header_len < MIN_HEADER_LEN {
        return None;
    }
    let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let address = |at: usize| Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]);
    let fragment = word(field::FRAGMENT);
    Some(Header {
        header_len,
        total_len: usize::from(word(field::TOTAL_LEN)),
        id: word(field::ID),
        fragment_offset: u32::from(fragment & bits::OFFSET) * 8,
        more_fragments: fragment & bits::MORE_FRAGMENTS != 0,
        ttl: fixed[field::TTL],
        protocol: fixed[field::PROTOCOL],
        src: address(field::SOURCE.start),
        dst: address(field::DESTINATION.start),
    })
}
