//! UDP (RFC 768).

use std::net::IpAddr;

use super::{WireError, checksum, protocol, set_word, word};

/// Length in bytes of the header.
pub const HEADER_LEN: usize = 8;

/// Byte offsets in the header.
pub(crate) mod field {
    pub(crate) const SOURCE_PORT: usize = 0;
    pub(crate) const DESTINATION_PORT: usize = 2;
    pub(crate) const LEN: usize = 4;
    pub(crate) const CHECKSUM: usize = 6;
}

/// A datagram with a complete header.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<T>(T);

impl<T: AsRef<[u8]>> Datagram<T> {
    /// Checks that the header is complete, and that its length field is at least 8. The data may be incomplete.
    ///
    /// # Errors
    /// [`WireError`]
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        if bytes.as_ref().len() < HEADER_LEN {
            return Err(WireError::Truncated { protocol: "UDP" });
        }
        let datagram = Self(bytes);
        if datagram.total_len() < HEADER_LEN {
            return Err(WireError::Malformed { protocol: "UDP" });
        }
        Ok(datagram)
    }

    /// Source port.
    pub fn source_port(&self) -> u16 {
        word(self.0.as_ref(), field::SOURCE_PORT)
    }

    /// Destination port.
    pub fn destination_port(&self) -> u16 {
        word(self.0.as_ref(), field::DESTINATION_PORT)
    }

    /// Returns the length field: bytes of header and data.
    pub fn total_len(&self) -> usize {
        usize::from(word(self.0.as_ref(), field::LEN))
    }
}

/// A header's ports. [`Repr::emit`] computes length and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source port.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

impl Repr {
    /// Reads a header.
    pub fn parse<T: AsRef<[u8]>>(datagram: &Datagram<T>) -> Self {
        Self { source_port: datagram.source_port(), destination_port: datagram.destination_port() }
    }

    /// Writes the header, with the checksum of the whole `datagram`.
    ///
    /// # Panics
    /// If `datagram` is shorter than [`HEADER_LEN`] or longer than 65,535 bytes.
    pub fn emit(&self, source: IpAddr, destination: IpAddr, datagram: &mut [u8]) {
        let len = u16::try_from(datagram.len()).expect("a datagram has at most 65,535 bytes");
        set_word(datagram, field::SOURCE_PORT, self.source_port);
        set_word(datagram, field::DESTINATION_PORT, self.destination_port);
        set_word(datagram, field::LEN, len);
        set_word(datagram, field::CHECKSUM, 0);
        // A checksum of 0 is sent as 0xffff, because 0 means no checksum.
        let sum = match checksum::transport(source, destination, protocol::UDP, datagram) {
            0 => u16::MAX,
            sum => sum,
        };
        set_word(datagram, field::CHECKSUM, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::UdpSlice;

    const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

    #[test]
    fn what_is_written_is_read_again_here_and_by_etherparse() {
        let [source, destination] = ADDRESSES.map(|address| address.parse().unwrap());
        let repr = Repr { source_port: 40_000, destination_port: 53 };
        let mut bytes = [0xaa; HEADER_LEN + 3];
        repr.emit(source, destination, &mut bytes);
        let datagram = Datagram::new_checked(&bytes).unwrap();
        assert_eq!((Repr::parse(&datagram), datagram.total_len()), (repr, bytes.len()));
        let header = UdpSlice::from_slice(&bytes).unwrap().to_header();
        let sum = header.calc_checksum_ipv4_raw([10, 0, 0, 1], [10, 0, 0, 2], &[0xaa; 3]).unwrap();
        assert_eq!((header.checksum, header.length), (sum, 11));
        assert_eq!((header.source_port, header.destination_port), (40_000, 53));
    }

    #[test]
    fn rfc_768_a_checksum_of_zero_is_sent_as_all_ones() {
        let [source, destination] = ADDRESSES.map(|address| address.parse().unwrap());
        let zero = (0..=u16::MAX).find_map(|source_port| {
            let mut bytes = [0; HEADER_LEN];
            Repr { source_port, destination_port: 1 }.emit(source, destination, &mut bytes);
            (bytes[6..] == [0xff, 0xff]).then_some(bytes)
        });
        // The receiver accepts both forms of zero.
        assert_eq!(checksum::transport(source, destination, protocol::UDP, &zero.unwrap()), 0);
    }

    #[test]
    fn a_header_that_is_cut_short_or_says_so_is_an_error() {
        for len in 0..HEADER_LEN {
            assert_eq!(Datagram::new_checked(vec![9; len]).unwrap_err(), WireError::Truncated { protocol: "UDP" });
        }
        let short = [0, 1, 0, 2, 0, 7, 0, 0];
        assert_eq!(Datagram::new_checked(short).unwrap_err(), WireError::Malformed { protocol: "UDP" });
    }
}
