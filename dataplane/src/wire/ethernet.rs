//! Ethernet II (IEEE 802.3).

use super::{WireError, word};

/// Length in bytes of the header: destination, source, type.
pub const HEADER_LEN: usize = 14;
/// Length in bytes of destination and source.
pub const ADDRESSES_LEN: usize = 12;
/// Minimum length in bytes of a frame without its check sequence. Not every driver pads shorter frames.
pub const MIN_FRAME_LEN: usize = 60;

/// A MAC address.
pub type Mac = [u8; 6];

/// The broadcast address.
pub const BROADCAST: Mac = [0xff; 6];

pub(crate) mod field {
    use std::ops::Range;

    pub(crate) const DESTINATION: Range<usize> = 0..6;
    pub(crate) const SOURCE: Range<usize> = 6..12;
    pub(crate) const ETHERTYPE: usize = 12;
}

/// Values of the type field. Source: IANA "IEEE 802 Numbers".
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// VLAN tag (IEEE 802.1Q).
    pub const VLAN: u16 = 0x8100;
    /// Outer VLAN tag (IEEE 802.1ad).
    pub const SERVICE_VLAN: u16 = 0x88a8;
    /// Outer VLAN tag before IEEE 802.1ad.
    pub const OLD_SERVICE_VLAN: u16 = 0x9100;
}

/// Whether the address is multicast or broadcast.
pub const fn is_group(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

/// Whether the address is unicast and not zero.
pub fn is_station(mac: Mac) -> bool {
    !is_group(mac) && mac != [0; 6]
}

/// Returns destination and source as on the wire.
pub const fn addresses(destination: Mac, source: Mac) -> [u8; ADDRESSES_LEN] {
    let [a, b, c, d, e, f] = destination;
    let [g, h, i, j, k, l] = source;
    [a, b, c, d, e, f, g, h, i, j, k, l]
}

/// A frame with a complete header.
#[derive(Clone, Copy, Debug)]
pub struct Frame<T>(T);

impl<T: AsRef<[u8]>> Frame<T> {
    /// Checks that the header is complete.
    ///
    /// # Errors
    /// [`WireError::Truncated`]
    #[inline]
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        if bytes.as_ref().len() < HEADER_LEN {
            return Err(WireError::Truncated { protocol: "Ethernet" });
        }
        Ok(Self(bytes))
    }

    fn mac(&self, at: std::ops::Range<usize>) -> Mac {
        self.0.as_ref()[at].try_into().expect("the range is six bytes long")
    }

    /// Destination address.
    pub fn destination(&self) -> Mac {
        self.mac(field::DESTINATION)
    }

    /// Source address.
    pub fn source(&self) -> Mac {
        self.mac(field::SOURCE)
    }

    /// Type of the payload, see [`ethertype`].
    pub fn ethertype(&self) -> u16 {
        word(self.0.as_ref(), field::ETHERTYPE)
    }

    /// Returns the bytes after the header, with padding.
    pub fn payload(&self) -> &[u8] {
        &self.0.as_ref()[HEADER_LEN..]
    }
}

/// A header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Destination address.
    pub destination: Mac,
    /// Source address.
    pub source: Mac,
    /// Type of the payload, see [`ethertype`].
    pub ethertype: u16,
}

impl Repr {
    /// Reads the header.
    pub fn parse<T: AsRef<[u8]>>(frame: &Frame<T>) -> Self {
        Self { destination: frame.destination(), source: frame.source(), ethertype: frame.ethertype() }
    }

    /// Writes the header. Returns the bytes after it.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`HEADER_LEN`].
    pub fn emit<'a>(&self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let (header, payload) = bytes.split_at_mut(HEADER_LEN);
        header[..ADDRESSES_LEN].copy_from_slice(&addresses(self.destination, self.source));
        header[ADDRESSES_LEN..].copy_from_slice(&self.ethertype.to_be_bytes());
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{Ethernet2Header, Ethernet2Slice};

    const REPR: Repr = Repr { destination: [2, 0, 0, 0, 0, 1], source: [2, 0, 0, 0, 0, 2], ethertype: ethertype::IPV6 };

    #[test]
    fn what_is_written_is_read_again_here_and_by_etherparse() {
        let mut bytes = [0xaa; 20];
        assert_eq!(REPR.emit(&mut bytes), [0xaa; 6]);
        let frame = Frame::new_checked(&bytes).unwrap();
        assert_eq!((Repr::parse(&frame), frame.payload()), (REPR, &[0xaa; 6][..]));
        let header: Ethernet2Header = Ethernet2Slice::from_slice_without_fcs(&bytes).unwrap().to_header();
        assert_eq!((header.destination, header.source), (REPR.destination, REPR.source));
        assert_eq!(header.ether_type.0, REPR.ethertype);
    }

    #[test]
    fn a_header_that_is_cut_short_is_an_error() {
        for len in 0..HEADER_LEN {
            assert!(Frame::new_checked(vec![0; len]).is_err());
        }
    }

    #[test]
    fn only_a_single_machine_is_a_station() {
        assert!(is_station([2, 0, 0, 0, 0, 1]));
        for mac in [[0; 6], BROADCAST, [0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]] {
            assert!(!is_station(mac), "{mac:x?}");
        }
    }
}
