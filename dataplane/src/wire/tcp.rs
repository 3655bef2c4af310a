//! TCP (RFC 9293).

use std::net::IpAddr;

use super::{WireError, checksum, double_word, protocol, set_double_word, set_word, word};

/// Length in bytes of the header without options.
pub const MIN_HEADER_LEN: usize = 20;

/// Byte offsets in the header.
pub(crate) mod field {
    pub(crate) const SOURCE_PORT: usize = 0;
    pub(crate) const DESTINATION_PORT: usize = 2;
    pub(crate) const SEQUENCE: usize = 4;
    pub(crate) const ACKNOWLEDGEMENT: usize = 8;
    pub(crate) const DATA_OFFSET: usize = 12;
    pub(crate) const FLAGS: usize = 13;
    pub(crate) const WINDOW: usize = 14;
    pub(crate) const CHECKSUM: usize = 16;
    pub(crate) const URGENT: usize = 18;
}

/// Control bits.
pub mod flags {
    /// The sender has no more data.
    pub const FIN: u8 = 0x01;
    /// Opens a connection.
    pub const SYN: u8 = 0x02;
    /// Aborts a connection.
    pub const RST: u8 = 0x04;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 0x10;
    /// The segment points at urgent data.
    pub const URG: u8 = 0x20;
}

/// A segment with a complete header, except for options.
#[derive(Clone, Copy, Debug)]
pub struct Segment<T>(T);

impl<T: AsRef<[u8]>> Segment<T> {
    /// Checks that the fixed header is complete, and that its data offset is at least 20 bytes. Options may be incomplete.
    ///
    /// # Errors
    /// [`WireError`]
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        if bytes.as_ref().len() < MIN_HEADER_LEN {
            return Err(WireError::Truncated { protocol: "TCP" });
        }
        let segment = Self(bytes);
        if segment.header_len() < MIN_HEADER_LEN {
            return Err(WireError::Malformed { protocol: "TCP" });
        }
        Ok(segment)
    }

    /// Source port.
    pub fn source_port(&self) -> u16 {
        word(self.0.as_ref(), field::SOURCE_PORT)
    }

    /// Destination port.
    pub fn destination_port(&self) -> u16 {
        word(self.0.as_ref(), field::DESTINATION_PORT)
    }

    /// Sequence number of the first byte of data, or of the SYN.
    pub fn sequence(&self) -> u32 {
        double_word(self.0.as_ref(), field::SEQUENCE)
    }

    /// Sequence number of the next byte that the sender expects.
    pub fn acknowledgement(&self) -> u32 {
        double_word(self.0.as_ref(), field::ACKNOWLEDGEMENT)
    }

    /// Length in bytes of the header with options.
    pub fn header_len(&self) -> usize {
        usize::from(self.0.as_ref()[field::DATA_OFFSET] >> 4) * 4
    }

    /// Returns the control bits, see [`flags`].
    pub fn flags(&self) -> u8 {
        self.0.as_ref()[field::FLAGS]
    }

    /// Receive window, not scaled.
    pub fn window(&self) -> u16 {
        word(self.0.as_ref(), field::WINDOW)
    }
}

/// A header without options and urgent pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
    /// Sequence number of the first byte of data, or of the SYN.
    pub sequence: u32,
    /// Sequence number of the next byte that the sender expects.
    pub acknowledgement: u32,
    /// The control bits, see [`flags`].
    pub flags: u8,
    /// Receive window, not scaled.
    pub window: u16,
}

impl Repr {
    /// Reads the header without its options.
    pub fn parse<T: AsRef<[u8]>>(segment: &Segment<T>) -> Self {
        Self {
            source_port: segment.source_port(),
            destination_port: segment.destination_port(),
            sequence: segment.sequence(),
            acknowledgement: segment.acknowledgement(),
            flags: segment.flags(),
            window: segment.window(),
        }
    }

    /// Writes the header, with the checksum of the whole `segment`.
    ///
    /// # Panics
    /// If `segment` is shorter than [`MIN_HEADER_LEN`].
    pub fn emit(&self, source: IpAddr, destination: IpAddr, segment: &mut [u8]) {
        set_word(segment, field::SOURCE_PORT, self.source_port);
        set_word(segment, field::DESTINATION_PORT, self.destination_port);
        set_double_word(segment, field::SEQUENCE, self.sequence);
        set_double_word(segment, field::ACKNOWLEDGEMENT, self.acknowledgement);
        // The upper four bits count words of four bytes.
        segment[field::DATA_OFFSET] = 5 << 4;
        segment[field::FLAGS] = self.flags;
        set_word(segment, field::WINDOW, self.window);
        set_word(segment, field::CHECKSUM, 0);
        set_word(segment, field::URGENT, 0);
        let sum = checksum::transport(source, destination, protocol::TCP, segment);
        set_word(segment, field::CHECKSUM, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::TcpSlice;

    #[test]
    fn what_is_written_is_read_again_here_and_by_etherparse() {
        let repr = Repr {
            source_port: 40_000,
            destination_port: 80,
            sequence: 0x0102_0304,
            acknowledgement: 0xffff_fffe,
            flags: flags::SYN | flags::ACK,
            window: 0x1234,
        };
        for (source, destination) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let (source, destination): (IpAddr, IpAddr) = (source.parse().unwrap(), destination.parse().unwrap());
            let mut bytes = [0xaa; MIN_HEADER_LEN + 3];
            repr.emit(source, destination, &mut bytes);
            assert_eq!(Repr::parse(&Segment::new_checked(&bytes).unwrap()), repr);
            assert_eq!(checksum::transport(source, destination, protocol::TCP, &bytes), 0);
            let slice = TcpSlice::from_slice(&bytes).unwrap();
            let header = slice.to_header();
            let sum = match (source, destination) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => slice.calc_checksum_ipv4(src.octets(), dst.octets()).unwrap(),
                (IpAddr::V6(src), IpAddr::V6(dst)) => slice.calc_checksum_ipv6(src.octets(), dst.octets()).unwrap(),
                _ => panic!("two families"),
            };
            assert_eq!((header.checksum, slice.payload()), (sum, &[0xaa; 3][..]));
            assert_eq!((header.sequence_number, header.acknowledgment_number), (repr.sequence, repr.acknowledgement));
            assert!(header.syn && header.ack && !header.rst && !header.fin);
            assert_eq!((header.window_size, header.urgent_pointer), (0x1234, 0));
        }
    }

    #[test]
    fn a_header_that_is_cut_short_or_too_short_is_an_error() {
        for len in 0..MIN_HEADER_LEN {
            assert_eq!(Segment::new_checked(vec![0x50; len]).unwrap_err(), WireError::Truncated { protocol: "TCP" });
        }
        assert_eq!(Segment::new_checked([0x40; 20]).unwrap_err(), WireError::Malformed { protocol: "TCP" });
    }
}
