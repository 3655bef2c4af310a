//! UDP (RFC 768).

use super::Bytes;
use crate::DropReason;
use crate::wire::udp::field;

pub(super) use crate::wire::udp::HEADER_LEN;

/// The fields of a datagram's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) sport: u16,
    pub(super) dport: u16,
}

/// Parses a header. `whole` is false for a first fragment, whose length may exceed the packet.
pub(super) fn parse(datagram: Bytes<'_>, whole: bool) -> Result<Header, DropReason> {
    let header = datagram.seen.first_chunk::<HEADER_LEN>().ok_or(DropReason::L4Truncated)?;
    let length = usize::from(u16::from_be_bytes([header[field::LEN], header[field::LEN + 1]]));
    if length < HEADER_LEN || (whole && length > datagram.wire_len) {
        return Err(DropReason::L4Malformed);
    }
    Ok(Header { sport: u16::from_be_bytes([header[0], header[1]]), dport: u16::from_be_bytes([header[2], header[3]]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_and_a_datagram_without_data_is_fine() {
        let header = parse(Bytes::new(&[0x9c, 0x40, 0, 53, 0, 8, 0, 0], 8), true).unwrap();
        assert_eq!(header, Header { sport: 40_000, dport: 53 });
    }

    #[test]
    fn a_short_header_is_truncated() {
        for len in 0..HEADER_LEN {
            assert_eq!(parse(Bytes::new(&[0; HEADER_LEN][..len], len), true), Err(DropReason::L4Truncated));
        }
    }

    #[test]
    fn a_length_that_cannot_be_is_malformed() {
        assert_eq!(parse(Bytes::new(&[0, 1, 0, 2, 0, 7, 0, 0], 8), true), Err(DropReason::L4Malformed));
        let longer = [0, 1, 0, 2, 0, 9, 0, 0];
        assert_eq!(parse(Bytes::new(&longer, 8), true), Err(DropReason::L4Malformed));
        assert!(parse(Bytes::new(&longer, 8), false).is_ok(), "the rest is in later fragments");
        assert!(parse(Bytes::new(&longer, 9), true).is_ok(), "the rest was not captured");
    }
}
