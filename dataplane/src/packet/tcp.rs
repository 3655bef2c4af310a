//! TCP (RFC 9293): ports and flags. [`super::segment`] reads sequence numbers.

use super::Bytes;
use crate::DropReason;
use crate::wire::tcp::{field, flags};

pub(super) use crate::wire::tcp::MIN_HEADER_LEN;

/// The control bits of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(pub(crate) u8);

impl Flags {
    /// The sender has no more data.
    pub(crate) const FIN: u8 = flags::FIN;
    /// Opens a connection.
    pub(crate) const SYN: u8 = flags::SYN;
    /// Aborts a connection.
    pub(crate) const RST: u8 = flags::RST;
    /// The acknowledgement number is valid.
    pub(crate) const ACK: u8 = flags::ACK;
    /// The segment points at urgent data.
    pub(crate) const URG: u8 = flags::URG;

    /// Whether any of these bits is set.
    pub(crate) const fn has(self, bits: u8) -> bool {
        self.0 & bits != 0
    }

    /// Whether the segment opens, ends or resets a connection.
    pub(crate) const fn is_control(self) -> bool {
        self.has(Self::SYN | Self::FIN | Self::RST)
    }

    /// Whether the segment requests a new connection: SYN without ACK, RST and FIN.
    pub(crate) const fn opens(self) -> bool {
        self.0 & (Self::SYN | Self::ACK | Self::RST | Self::FIN) == Self::SYN
    }

    /// Whether the segment can belong to an established connection: ACK without SYN and RST. A SYN-ACK does not qualify: if its SYN created
    /// no session, the SYN-ACK must not create one in the opposite direction.
    pub(crate) const fn continues(self) -> bool {
        self.has(Self::ACK) && !self.has(Self::RST | Self::SYN)
    }
}

/// The fields of a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) sport: u16,
    pub(super) dport: u16,
    pub(super) flags: Flags,
}

/// Parses a header. The options must fit the wire length, but need not be captured.
pub(super) fn parse(segment: Bytes<'_>) -> Result<Header, DropReason> {
    let header = segment.seen.first_chunk::<MIN_HEADER_LEN>().ok_or(DropReason::L4Truncated)?;
    let header_len = usize::from(header[field::DATA_OFFSET] >> 4) * 4;
    if header_len < MIN_HEADER_LEN {
        return Err(DropReason::L4Malformed);
    }
    if header_len > segment.wire_len {
        return Err(DropReason::L4Truncated);
    }
    Ok(Header {
        sport: u16::from_be_bytes([header[0], header[1]]),
        dport: u16::from_be_bytes([header[2], header[3]]),
        flags: Flags(header[field::FLAGS]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(offset: u8, flags: u8) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&[0x9c, 0x40, 0, 80]);
        bytes[12..14].copy_from_slice(&[offset << 4, flags]);
        bytes
    }

    #[test]
    fn ports_and_flags_are_read() {
        let bytes = segment(6, Flags::SYN);
        let header = parse(Bytes::new(&bytes, 24)).unwrap();
        assert_eq!((header.sport, header.dport), (40_000, 80));
        assert!(header.flags.opens());
    }

    #[test]
    fn a_data_offset_below_five_words_is_malformed() {
        for offset in 0..5 {
            assert_eq!(parse(Bytes::new(&segment(offset, 0), 24)), Err(DropReason::L4Malformed));
        }
    }

    #[test]
    fn a_header_that_the_packet_does_not_hold_is_truncated() {
        for len in 0..MIN_HEADER_LEN {
            assert_eq!(parse(Bytes::new(&segment(5, 0)[..len], len)), Err(DropReason::L4Truncated));
        }
        assert_eq!(parse(Bytes::new(&segment(7, 0), 24)), Err(DropReason::L4Truncated));
        assert!(parse(Bytes::new(&segment(7, 0), 28)).is_ok(), "the capture lacks the options");
    }

    #[test]
    fn opening_and_continuing_exclude_each_other() {
        for bits in 0..=u8::MAX {
            let flags = Flags(bits);
            assert!(!(flags.opens() && flags.continues()), "{bits:#x}");
            assert!(!(flags.has(Flags::RST) && (flags.opens() || flags.continues())), "{bits:#x}");
        }
        assert!(Flags(Flags::ACK).continues() && !Flags(Flags::SYN | Flags::ACK).continues());
        assert!(!Flags(Flags::SYN | Flags::FIN | Flags::ACK).continues());
        assert!(!Flags(0).continues() && !Flags(Flags::FIN).opens());
    }
}
