//! The fast path's parser. It reads whole TCP segments and UDP datagrams over IPv4 without options or IPv6 without extension headers,
//! which are nearly all packets.
//!
//! For these it returns the same as the general parser, which a test verifies. For all other packets, and for invalid ones, it returns
//! `None`, and the caller uses the general parser. That one alone is too slow for bursts, because its result has room for every kind of
//! packet.

use bulkhead_classifier::protocol;

use super::{Bytes, TcpFlags, ipv4, ipv6, tcp, udp};

/// The fields of a packet that a session lookup needs. `A` is an address: `u32` for IPv4, `[u64; 2]` for IPv6. The type differs by family,
/// because an enum of both would be passed through memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plain<A> {
    pub(crate) src: A,
    pub(crate) dst: A,
    pub(crate) protocol: u8,
    pub(crate) sport: u16,
    pub(crate) dport: u16,
    /// The control bits of a TCP segment. No bits are set for UDP.
    pub(crate) flags: TcpFlags,
    pub(crate) hop_limit: u8,
}

/// Reads an IPv4 packet. `None` if it has options, is a fragment, is invalid, or is neither TCP nor UDP.
#[inline(always)]
pub(crate) fn parse_v4(packet: Bytes<'_>) -> Option<Plain<u32>> {
    const HEADER: usize = ipv4::MIN_HEADER_LEN;
    let header = packet.seen.first_chunk::<HEADER>()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let total_len = usize::from(word(2));
    // Version 4 and a header of five words, not a fragment, and not longer than the frame on the wire.
    let is_plain = header[0] == 0x45 && word(6) & 0x3fff == 0 && total_len <= packet.wire_len;
    let (&first, rest) = packet.seen[HEADER..].split_first_chunk::<{ udp::HEADER_LEN }>()?;
    let segment_len = total_len.checked_sub(HEADER).filter(|_| is_plain)?;
    let protocol = header[9];
    let flags = transport(protocol, &first, rest, segment_len)?;
    let address = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (sport, dport) = ports(&first);
    Some(Plain { src: address(12), dst: address(16), protocol, sport, dport, flags, hop_limit: header[8] })
}

/// Reads an IPv6 packet. `None` if it has extension headers, is invalid, or is neither TCP nor UDP. Addresses have their high half first.
#[inline(always)]
pub(crate) fn parse_v6(packet: Bytes<'_>) -> Option<Plain<[u64; 2]>> {
    const HEADER: usize = ipv6::HEADER_LEN;
    let header = packet.seen.first_chunk::<HEADER>()?;
    let segment_len = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let is_plain = header[0] >> 4 == 6 && segment_len + HEADER <= packet.wire_len;
    let (&first, rest) = packet.seen[HEADER..].split_first_chunk::<{ udp::HEADER_LEN }>().filter(|_| is_plain)?;
    let protocol = header[6];
    let flags = transport(protocol, &first, rest, segment_len)?;
    let half = |at: usize| {
        let octets = header[at..at + 8].first_chunk().expect("the range is eight bytes long");
        u64::from_be_bytes(*octets)
    };
    let (sport, dport) = ports(&first);
    let (src, dst) = ([half(8), half(16)], [half(24), half(32)]);
    Some(Plain { src, dst, protocol, sport, dport, flags, hop_limit: header[7] })
}

/// Reads source and destination port, the first four bytes of TCP and UDP.
#[inline(always)]
const fn ports(first: &[u8; udp::HEADER_LEN]) -> (u16, u16) {
    (u16::from_be_bytes([first[0], first[1]]), u16::from_be_bytes([first[2], first[3]]))
}

/// Returns a TCP segment's flags, or no bits for a UDP datagram. `None` for invalid headers and other protocols. `len` is the payload's
/// length by the IP header. `rest` may be longer because of padding, or shorter in a truncated capture.
#[inline(always)]
fn transport(protocol: u8, first: &[u8; udp::HEADER_LEN], rest: &[u8], len: usize) -> Option<TcpFlags> {
    match protocol {
        protocol::UDP => {
            let udp_len = usize::from(u16::from_be_bytes([first[4], first[5]]));
            (udp_len >= udp::HEADER_LEN && udp_len <= len).then_some(TcpFlags(0))
        }
        protocol::TCP => {
            let &[_, _, _, _, offset, flags, ..] = rest.first_chunk::<{ tcp::MIN_HEADER_LEN - udp::HEADER_LEN }>()?;
            let header_len = usize::from(offset >> 4) * 4;
            (header_len >= tcp::MIN_HEADER_LEN && header_len <= len).then_some(TcpFlags(flags))
        }
        _ => None,
    }
}
