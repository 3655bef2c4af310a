//! IPv4 (RFC 791).

use std::net::Ipv4Addr;

use super::{WireError, checksum, set_word, word};

/// Length in bytes of the header without options.
pub const MIN_HEADER_LEN: usize = 20;
/// Maximum length in bytes of the header with options.
pub const MAX_HEADER_LEN: usize = 60;

/// Byte offsets in the header.
pub(crate) mod field {
    use std::ops::Range;

    pub(crate) const VERSION_LEN: usize = 0;
    pub(crate) const TOS: usize = 1;
    pub(crate) const TOTAL_LEN: usize = 2;
    pub(crate) const ID: usize = 4;
    pub(crate) const FRAGMENT: usize = 6;
    pub(crate) const TTL: usize = 8;
    pub(crate) const PROTOCOL: usize = 9;
    pub(crate) const CHECKSUM: usize = 10;
    pub(crate) const SOURCE: Range<usize> = 12..16;
    pub(crate) const DESTINATION: Range<usize> = 16..20;
}

/// Bits of the flags and fragment offset field.
pub mod fragment {
    /// Reserved, must be zero (RFC 791). Forwarded unchanged.
    pub const RESERVED: u16 = 0x8000;
    /// The packet must not be fragmented.
    pub const DONT_FRAGMENT: u16 = 0x4000;
    /// More fragments follow.
    pub const MORE_FRAGMENTS: u16 = 0x2000;
    /// Fragment offset, in [`UNIT`]s.
    pub const OFFSET: u16 = 0x1fff;
    /// Unit of the fragment offset, in bytes.
    pub const UNIT: usize = 8;
}

/// Option types.
pub mod option {
    /// End of options.
    pub const END: u8 = 0;
    /// No operation. Like [`END`], it has no length byte.
    pub const NOP: u8 = 1;
    /// Flag of options that are copied to all fragments.
    pub const COPIED: u8 = 0x80;
}

/// A packet with a complete header.
#[derive(Clone, Copy, Debug)]
pub struct Packet<T>(T);

impl<T: AsRef<[u8]>> Packet<T> {
    /// Checks that the header with its options is complete, and that its lengths are consistent. The payload may be incomplete.
    ///
    /// # Errors
    /// [`WireError`]
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        let header = bytes.as_ref();
        if header.len() < MIN_HEADER_LEN {
            return Err(WireError::Truncated { protocol: "IPv4" });
        }
        let packet = Self(bytes);
        let (header_len, total_len) = (packet.header_len(), packet.total_len());
        let bytes = packet.0.as_ref();
        if bytes[field::VERSION_LEN] >> 4 != 4 || header_len < MIN_HEADER_LEN || total_len < header_len {
            return Err(WireError::Malformed { protocol: "IPv4" });
        }
        if bytes.len() < header_len {
            return Err(WireError::Truncated { protocol: "IPv4" });
        }
        Ok(packet)
    }

    /// Length in bytes of the header with options.
    pub fn header_len(&self) -> usize {
        usize::from(self.0.as_ref()[field::VERSION_LEN] & 0x0f) * 4
    }

    /// Returns the total length field: bytes of header and payload.
    pub fn total_len(&self) -> usize {
        usize::from(word(self.0.as_ref(), field::TOTAL_LEN))
    }

    /// Length in bytes of the payload by the header's length fields.
    pub fn payload_len(&self) -> usize {
        self.total_len() - self.header_len()
    }

    /// Flags and fragment offset, see [`fragment`].
    pub fn fragment_word(&self) -> u16 {
        word(self.0.as_ref(), field::FRAGMENT)
    }

    /// Protocol of the payload, see [`super::protocol`].
    pub fn protocol(&self) -> u8 {
        self.0.as_ref()[field::PROTOCOL]
    }

    /// TTL.
    pub fn hop_limit(&self) -> u8 {
        self.0.as_ref()[field::TTL]
    }

    fn address(&self, at: std::ops::Range<usize>) -> Ipv4Addr {
        <[u8; 4]>::try_from(&self.0.as_ref()[at]).expect("the range is four bytes long").into()
    }

    /// Source address.
    pub fn source(&self) -> Ipv4Addr {
        self.address(field::SOURCE)
    }

    /// Destination address.
    pub fn destination(&self) -> Ipv4Addr {
        self.address(field::DESTINATION)
    }

    /// Returns the header with options.
    pub fn header(&self) -> &[u8] {
        &self.0.as_ref()[..self.header_len()]
    }

    /// Returns the payload without padding. Shorter than [`payload_len`](Self::payload_len) if bytes are missing.
    pub fn payload(&self) -> &[u8] {
        let bytes = self.0.as_ref();
        &bytes[self.header_len()..self.total_len().min(bytes.len()).max(self.header_len())]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the total length.
    pub fn set_total_len(&mut self, len: u16) {
        set_word(self.0.as_mut(), field::TOTAL_LEN, len);
    }

    /// Sets flags and fragment offset, see [`fragment`].
    pub fn set_fragment_word(&mut self, word: u16) {
        set_word(self.0.as_mut(), field::FRAGMENT, word);
    }

    /// Computes and writes the header checksum.
    pub fn fill_checksum(&mut self) {
        let len = self.header_len();
        let header = &mut self.0.as_mut()[..len];
        set_word(header, field::CHECKSUM, 0);
        let sum = checksum::internet(&[header]);
        set_word(header, field::CHECKSUM, sum);
    }
}

/// A header without options of an unfragmented packet with "don't fragment". Its identification is 0 (RFC 6864 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Protocol of the payload, see [`super::protocol`].
    pub protocol: u8,
    /// TTL.
    pub hop_limit: u8,
    /// Type of service (RFC 791), now DSCP and ECN (RFC 2474, RFC 3168).
    pub tos: u8,
    /// Length in bytes of the payload.
    pub payload_len: usize,
}

impl Repr {
    /// Writes the header and its checksum. Returns the bytes after it.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`MIN_HEADER_LEN`], or the packet longer than 65,535 bytes.
    pub fn emit<'a>(&self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let (header, payload) = bytes.split_at_mut(MIN_HEADER_LEN);
        let total_len = u16::try_from(MIN_HEADER_LEN + self.payload_len).expect("a packet has at most 65,535 bytes");
        header[field::VERSION_LEN] = 0x45;
        header[field::TOS] = self.tos;
        set_word(header, field::TOTAL_LEN, total_len);
        set_word(header, field::ID, 0);
        set_word(header, field::FRAGMENT, fragment::DONT_FRAGMENT);
        header[field::TTL] = self.hop_limit;
        header[field::PROTOCOL] = self.protocol;
        header[field::SOURCE].copy_from_slice(&self.source.octets());
        header[field::DESTINATION].copy_from_slice(&self.destination.octets());
        Packet(header).fill_checksum();
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::Ipv4Slice;

    const REPR: Repr = Repr {
        source: Ipv4Addr::new(10, 0, 0, 1),
        destination: Ipv4Addr::new(192, 168, 255, 254),
        protocol: 17,
        hop_limit: 63,
        tos: 0xc0,
        payload_len: 5,
    };

    fn written() -> [u8; 30] {
        let mut bytes = [0xaa; 30];
        REPR.emit(&mut bytes);
        bytes
    }

    #[test]
    fn what_is_written_is_read_again_here_and_by_etherparse() {
        let bytes = written();
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!((packet.source(), packet.destination()), (REPR.source, REPR.destination));
        assert_eq!((packet.protocol(), packet.hop_limit()), (17, 63));
        assert_eq!((packet.header_len(), packet.total_len(), packet.payload_len()), (20, 25, 5));
        assert_eq!((packet.header(), packet.payload()), (&bytes[..20], &bytes[20..25]));
        assert_eq!(packet.fragment_word(), fragment::DONT_FRAGMENT);
        let slice = Ipv4Slice::from_slice(&bytes[..25]).unwrap();
        let header = slice.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        assert_eq!((header.source, header.destination), (REPR.source.octets(), REPR.destination.octets()));
        assert_eq!((header.protocol.0, header.time_to_live, header.total_len), (17, 63, 25));
        assert!(header.dont_fragment && !header.more_fragments);
        assert_eq!(
            (slice.header().dcp().value() << 2 | slice.header().ecn().value(), header.identification),
            (0xc0, 0)
        );
    }

    #[test]
    fn what_is_changed_has_a_right_checksum_again() {
        let mut bytes = written();
        let mut packet = Packet::new_checked(&mut bytes[..]).unwrap();
        packet.set_total_len(24);
        packet.set_fragment_word(fragment::MORE_FRAGMENTS | 7);
        packet.fill_checksum();
        let header = Ipv4Slice::from_slice(&bytes[..24]).unwrap().header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        assert_eq!((header.fragment_offset.value(), header.more_fragments, header.total_len), (7, true, 24));
    }

    #[test]
    fn a_header_that_is_cut_short_or_contradicts_itself_is_an_error() {
        let bytes = written();
        for len in 0..MIN_HEADER_LEN {
            assert_eq!(Packet::new_checked(&bytes[..len]).unwrap_err(), WireError::Truncated { protocol: "IPv4" });
        }
        for (at, value) in [(0, 0x65), (0, 0x44), (3, 19)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(Packet::new_checked(other).unwrap_err(), WireError::Malformed { protocol: "IPv4" });
        }
        let mut long = bytes;
        (long[0], long[3]) = (0x48, 40);
        assert_eq!(Packet::new_checked(long).unwrap_err(), WireError::Truncated { protocol: "IPv4" });
        // An incomplete payload does not make the header invalid.
        assert!(Packet::new_checked(&bytes[..20]).unwrap().payload().is_empty());
    }
}
