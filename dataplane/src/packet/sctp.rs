//! SCTP (RFC 9260): the common header and the type of the first chunk, which tells a packet that opens an association.
//! Later chunks are not looked at: a session ends when it is idle.

use super::Bytes;
use crate::DropReason;

/// Ports, verification tag, checksum.
pub(super) const HEADER_LEN: usize = 12;

/// The chunk that opens an association. It is the only one in its packet (RFC 9260 §4).
const INIT: u8 = 1;

/// The fields of a packet's common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) sport: u16,
    pub(super) dport: u16,
    /// Whether the packet may be an association's first: no other chunk than INIT is seen.
    pub(super) opens: bool,
}

/// Reads a common header.
pub(super) fn parse(packet: Bytes<'_>) -> Result<Header, DropReason> {
    let header = packet.seen.first_chunk::<HEADER_LEN>().ok_or(DropReason::L4Truncated)?;
    Ok(Header {
        sport: u16::from_be_bytes([header[0], header[1]]),
        dport: u16::from_be_bytes([header[2], header[3]]),
        // A capture may have cut the chunk off.
        opens: packet.seen.get(HEADER_LEN).is_none_or(|&chunk| chunk == INIT),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read() {
        let bytes = [0x9c, 0x40, 0x0b, 0x59, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(parse(Bytes::new(&bytes, 12)), Ok(Header { sport: 40_000, dport: 2905, opens: true }));
    }

    #[test]
    fn a_short_header_is_truncated() {
        for len in 0..HEADER_LEN {
            assert_eq!(parse(Bytes::new(&[0; HEADER_LEN][..len], len)), Err(DropReason::L4Truncated));
        }
    }
}
