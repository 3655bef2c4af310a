//! SCTP (RFC 9260): the common header. Chunks are not looked at: a session ends when it is idle.

use super::Bytes;
use crate::DropReason;

/// Ports, verification tag, checksum.
pub(super) const HEADER_LEN: usize = 12;

/// The fields of a packet's common header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) sport: u16,
    pub(super) dport: u16,
}

/// Reads a common header.
pub(super) fn parse(packet: Bytes<'_>) -> Result<Header, DropReason> {
    let header = packet.seen.first_chunk::<HEADER_LEN>().ok_or(DropReason::L4Truncated)?;
    Ok(Header { sport: u16::from_be_bytes([header[0], header[1]]), dport: u16::from_be_bytes([header[2], header[3]]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read() {
        let bytes = [0x9c, 0x40, 0x0b, 0x59, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(parse(Bytes::new(&bytes, 12)), Ok(Header { sport: 40_000, dport: 2905 }));
    }

    #[test]
    fn a_short_header_is_truncated() {
        for len in 0..HEADER_LEN {
            assert_eq!(parse(Bytes::new(&[0; HEADER_LEN][..len], len)), Err(DropReason::L4Truncated));
        }
    }
}
