//! SCTP (RFC 9260): the common header and the type of the first chunk, which indicates the association's state. Later chunks are ignored:
//! the relevant ones are the only or the first chunk of a packet (RFC 9260 §4, §5.1).

use super::Bytes;
use super::tcp::Flags;
use crate::DropReason;

/// Length of the common header: ports, verification tag, checksum.
pub(super) const HEADER_LEN: usize = 12;

/// Chunk types that change an association's state. Source: RFC 9260 §3.2.
mod chunk {
    /// Opens an association. It is the only chunk in its packet (RFC 9260 §4).
    pub(super) const INIT: u8 = 1;
    pub(super) const INIT_ACK: u8 = 2;
    pub(super) const ABORT: u8 = 6;
    pub(super) const SHUTDOWN: u8 = 7;
    pub(super) const SHUTDOWN_ACK: u8 = 8;
    /// An error in the association. During the handshake: the cookie has expired.
    pub(super) const ERROR: u8 = 9;
    pub(super) const SHUTDOWN_COMPLETE: u8 = 14;
}

/// The fields of a packet's common header, and the meaning of its first chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) sport: u16,
    pub(super) dport: u16,
    /// The TCP flags that correspond to the first chunk. INIT is SYN; INIT ACK and ERROR have no flags; SHUTDOWN and SHUTDOWN ACK are FIN;
    /// ABORT and SHUTDOWN COMPLETE are RST. All others are ACK, because only a peer that has received the other side's cookie or COOKIE ACK
    /// sends them.
    pub(super) flags: Flags,
}

pub(super) fn parse(packet: Bytes<'_>) -> Result<Header, DropReason> {
    let header = packet.seen.first_chunk::<HEADER_LEN>().ok_or(DropReason::L4Truncated)?;
    let flags = match packet.seen.get(HEADER_LEN).copied() {
        // A truncated capture may lack the chunk.
        None | Some(chunk::INIT) => Flags::SYN,
        Some(chunk::INIT_ACK | chunk::ERROR) => 0,
        Some(chunk::SHUTDOWN | chunk::SHUTDOWN_ACK) => Flags::FIN,
        Some(chunk::ABORT | chunk::SHUTDOWN_COMPLETE) => Flags::RST,
        Some(_) => Flags::ACK,
    };
    Ok(Header {
        sport: u16::from_be_bytes([header[0], header[1]]),
        dport: u16::from_be_bytes([header[2], header[3]]),
        flags: Flags(flags),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read() {
        let bytes = [0x9c, 0x40, 0x0b, 0x59, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(parse(Bytes::new(&bytes, 12)), Ok(Header { sport: 40_000, dport: 2905, flags: Flags(Flags::SYN) }));
    }

    #[test]
    fn a_short_header_is_truncated() {
        for len in 0..HEADER_LEN {
            assert_eq!(parse(Bytes::new(&[0; HEADER_LEN][..len], len)), Err(DropReason::L4Truncated));
        }
    }

    #[test]
    fn chunks_count_as_the_flags_that_mean_the_same() {
        let flags = |chunk: u8| {
            let bytes = [0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, chunk];
            parse(Bytes::new(&bytes, 13)).unwrap().flags
        };
        for (kind, expected) in
            [(0, Flags::ACK), (1, Flags::SYN), (2, 0), (6, Flags::RST), (7, Flags::FIN), (8, Flags::FIN), (9, 0)]
        {
            assert_eq!(flags(kind), Flags(expected), "chunk {kind}");
        }
        for (kind, expected) in [(10, Flags::ACK), (11, Flags::ACK), (14, Flags::RST), (255, Flags::ACK)] {
            assert_eq!(flags(kind), Flags(expected), "chunk {kind}");
        }
        assert!((0..=255).all(|kind| flags(kind).opens() == (kind == 1)));
    }
}
