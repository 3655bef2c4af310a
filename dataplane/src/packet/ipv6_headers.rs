//! The fixed IPv6 header and the extension headers that follow it (RFC 8200 §3 and §4).

use std::net::Ipv6Addr;

use super::{Bytes, Fragment};
use crate::DropReason;
use crate::wire::ipv6::{HEADER_LEN, field};

/// Maximum number of extension headers. RFC 8504 §5.3 allows a limit, with 8 as its example. Real packets have at most three.
pub(super) const MAX_EXTENSIONS: usize = 8;

/// Next header values of extension headers. Source: IANA "IPv6 Extension Header Types".
pub(super) mod next_header {
    pub(in crate::packet) const HOP_BY_HOP: u8 = 0;
    pub(in crate::packet) const ROUTING: u8 = 43;
    pub(in crate::packet) const FRAGMENT: u8 = 44;
    pub(in crate::packet) const AUTHENTICATION: u8 = 51;
    pub(in crate::packet) const DESTINATION: u8 = 60;
}

/// The fixed header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) payload_len: usize,
    pub(super) next_header: u8,
    pub(super) hop_limit: u8,
    pub(super) src: Ipv6Addr,
    pub(super) dst: Ipv6Addr,
}

/// Reads the fixed header. `None` if it is truncated or has another version.
pub(super) fn header(bytes: &[u8]) -> Option<Header> {
    let fixed = bytes.first_chunk::<HEADER_LEN>()?;
    if fixed[0] >> 4 != 6 {
        return None;
    }
    let address = |at: usize| {
        let octets: [u8; 16] = fixed[at..at + 16].try_into().expect("the range is 16 bytes long");
        Ipv6Addr::from(octets)
    };
    Some(Header {
        payload_len: usize::from(u16::from_be_bytes([fixed[field::PAYLOAD_LEN], fixed[field::PAYLOAD_LEN + 1]])),
        next_header: fixed[field::NEXT_HEADER],
        hop_limit: fixed[field::HOP_LIMIT],
        src: address(8),
        dst: address(24),
    })
}

/// The result of walking a packet's extension headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain<'a> {
    /// Type of the first header that is not an extension header.
    pub(super) protocol: u8,
    /// The packet's bytes from that header on.
    pub(super) payload: Bytes<'a>,
    /// The packet's part of its datagram. `None` for a whole datagram.
    pub(super) fragment: Option<Fragment>,
    /// Whether the packet has a fragment header. Also true for an atomic fragment.
    pub(super) has_fragment_header: bool,
}

/// The reason why a chain of extension headers is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainError {
    /// A header is longer than the rest of the packet.
    CutShort {
        /// Whether the packet is a first fragment. The next fragment may then contain the rest of the chain.
        in_first_fragment: bool,
    },
    /// The chain is invalid for another reason.
    Refused(DropReason),
}

/// Walks the extension headers in `payload`. Its first header has type `next`.
pub(super) fn walk(mut next: u8, payload: Bytes<'_>) -> Result<Chain<'_>, ChainError> {
    let mut chain = Chain { protocol: next, payload, fragment: None, has_fragment_header: false };
    for position in 0..=MAX_EXTENSIONS {
        let cut_short = ChainError::CutShort { in_first_fragment: chain.fragment.is_some() };
        chain.protocol = next;
        let length_unit = match next {
            // RFC 8200 §4.1: hop-by-hop options must immediately follow the fixed header.
            next_header::HOP_BY_HOP if position > 0 => return Err(ChainError::Refused(DropReason::Ipv6Malformed)),
            next_header::HOP_BY_HOP | next_header::ROUTING | next_header::DESTINATION => 8,
            // RFC 4302 §2.2: the length counts words of 4 bytes, minus 2. The fixed fields are three words.
            next_header::AUTHENTICATION => 4,
            next_header::FRAGMENT => {
                next = chain.enter_fragment(cut_short)?;
                if chain.fragment.is_some_and(|part| !part.is_first()) {
                    // The rest is part of the datagram's payload, without a header.
                    chain.protocol = next;
                    return Ok(chain);
                }
                continue;
            }
            _ => return Ok(chain),
        };
        if position == MAX_EXTENSIONS {
            break;
        }
        let &[following, length, kind, left, ..] = chain.payload.seen else { return Err(cut_short) };
        if next == next_header::ROUTING && is_source_route(kind, left) {
            return Err(ChainError::Refused(DropReason::SourceRouted));
        }
        if next == next_header::AUTHENTICATION && length == 0 {
            return Err(ChainError::Refused(DropReason::Ipv6Malformed));
        }
        let len = if length_unit == 8 { (usize::from(length) + 1) * 8 } else { (usize::from(length) + 2) * 4 };
        chain.payload = chain.payload.skip(len).ok_or(cut_short)?;
        next = following;
    }
    Err(ChainError::Refused(DropReason::Ipv6ExtensionLimit))
}

/// Whether a routing header changes the packet's destination after policy has judged it. True for type 0 (RFC 5095), and for other types
/// with segments left.
fn is_source_route(kind: u8, segments_left: u8) -> bool {
    kind == 0 || segments_left > 0
}

impl Chain<'_> {
    /// Reads a fragment header and removes it from `payload`. Returns the type of the next header.
    fn enter_fragment(&mut self, cut_short: ChainError) -> Result<u8, ChainError> {
        const FRAGMENT_HEADER_LEN: usize = 8;
        let malformed = ChainError::Refused(DropReason::FragmentMalformed);
        if self.has_fragment_header {
            return Err(malformed);
        }
        let header = *self.payload.seen.first_chunk::<FRAGMENT_HEADER_LEN>().ok_or(cut_short)?;
        self.payload = self.payload.skip(FRAGMENT_HEADER_LEN).ok_or(cut_short)?;
        self.has_fragment_header = true;
        let offset_and_more = u16::from_be_bytes([header[2], header[3]]);
        let (start, more) = (u32::from(offset_and_more & !7), offset_and_more & 1 != 0);
        if start > 0 || more {
            let len = u32::try_from(self.payload.wire_len).map_err(|_| malformed)?;
            // As for IPv4: empty, not a multiple of 8 bytes and not last, or beyond the maximum payload.
            if len == 0 || (more && !len.is_multiple_of(8)) || start + len > u32::from(u16::MAX) {
                return Err(malformed);
            }
            let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
            self.fragment = Some(Fragment { id, start, end: start + len, more });
        }
        Ok(header[0])
    }
}
