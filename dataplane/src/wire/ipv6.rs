//! IPv6 (RFC 8200), without extension headers, and the addresses that are made of others.

use std::net::Ipv6Addr;

use super::ethernet::Mac;
use super::{WireError, set_word, word};

/// The header.
pub const HEADER_LEN: usize = 40;
/// What every link carries (RFC 8200 §5).
pub const MIN_MTU: usize = 1280;

/// All nodes on the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Positions in the header.
pub(crate) mod field {
    use std::ops::Range;

    pub(crate) const VERSION: usize = 0;
    pub(crate) const PAYLOAD_LEN: usize = 4;
    pub(crate) const NEXT_HEADER: usize = 6;
    pub(crate) const HOP_LIMIT: usize = 7;
    pub(crate) const SOURCE: Range<usize> = 8..24;
    pub(crate) const DESTINATION: Range<usize> = 24..40;
}

/// The link-local address that goes with a MAC address (RFC 4291 appendix A).
pub const fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// The group in which an address is solicited: ff02::1:ff and its last three bytes (RFC 4291 §2.7.1).
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let octets = address.octets();
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    (group[13], group[14], group[15]) = (octets[13], octets[14], octets[15]);
    Ipv6Addr::from_octets(group)
}

/// The MAC address of a group (RFC 2464 §7).
pub const fn group_mac(group: Ipv6Addr) -> Mac {
    let octets = group.octets();
    [0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]
}

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet<T>(T);

impl<T: AsRef<[u8]>> Packet<T> {
    /// A packet with a whole header. The payload need not be there.
    ///
    /// # Errors
    /// [`WireError`]
    pub fn new_checked(bytes: T) -> Result<Self, WireError> {
        let header = bytes.as_ref();
        if header.len() < HEADER_LEN {
            return Err(WireError::Truncated { protocol: "IPv6" });
        }
        if header[field::VERSION] >> 4 != 6 {
            return Err(WireError::Malformed { protocol: "IPv6" });
        }
        Ok(Self(bytes))
    }

    /// Bytes behind the header, as the packet says itself.
    pub fn payload_len(&self) -> usize {
        usize::from(word(self.0.as_ref(), field::PAYLOAD_LEN))
    }

    /// Bytes of the packet, header included, as it says itself.
    pub fn total_len(&self) -> usize {
        HEADER_LEN + self.payload_len()
    }

    /// What follows the header, see [`super::protocol`].
    pub fn next_header(&self) -> u8 {
        self.0.as_ref()[field::NEXT_HEADER]
    }

    /// How many hops it may still go.
    pub fn hop_limit(&self) -> u8 {
        self.0.as_ref()[field::HOP_LIMIT]
    }

    fn address(&self, at: std::ops::Range<usize>) -> Ipv6Addr {
        <[u8; 16]>::try_from(&self.0.as_ref()[at]).expect("the range is sixteen bytes long").into()
    }

    /// Who sent it.
    pub fn source(&self) -> Ipv6Addr {
        self.address(field::SOURCE)
    }

    /// Whom it is for.
    pub fn destination(&self) -> Ipv6Addr {
        self.address(field::DESTINATION)
    }

    /// The payload, as far as it is there, without padding.
    pub fn payload(&self) -> &[u8] {
        let bytes = self.0.as_ref();
        &bytes[HEADER_LEN..self.total_len().min(bytes.len())]
    }
}

/// A header; traffic class and flow label are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Who sent it.
    pub source: Ipv6Addr,
    /// Whom it is for.
    pub destination: Ipv6Addr,
    /// What follows the header, see [`super::protocol`].
    pub next_header: u8,
    /// How many hops it may go.
    pub hop_limit: u8,
    /// Bytes behind the header.
    pub payload_len: usize,
}

impl Repr {
    /// Writes the header. Returns the bytes behind it.
    ///
    /// # Panics
    /// When there are less than [`HEADER_LEN`] bytes, or the payload has more than 65,535.
    pub fn emit<'a>(&self, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let (header, payload) = bytes.split_at_mut(HEADER_LEN);
        header[..field::PAYLOAD_LEN].copy_from_slice(&[0x60, 0, 0, 0]);
        let payload_len = u16::try_from(self.payload_len).expect("a payload has at most 65,535 bytes");
        set_word(header, field::PAYLOAD_LEN, payload_len);
        header[field::NEXT_HEADER] = self.next_header;
        header[field::HOP_LIMIT] = self.hop_limit;
        header[field::SOURCE].copy_from_slice(&self.source.octets());
        header[field::DESTINATION].copy_from_slice(&self.destination.octets());
        payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::Ipv6HeaderSlice;

    #[test]
    fn what_is_written_is_read_again_here_and_by_etherparse() {
        let (source, destination) = ("fd00::1".parse().unwrap(), "2001:db8::2".parse().unwrap());
        let repr = Repr { source, destination, next_header: 17, hop_limit: 63, payload_len: 5 };
        let mut bytes = [0xaa; 50];
        repr.emit(&mut bytes);
        let packet = Packet::new_checked(&bytes).unwrap();
        assert_eq!((packet.source(), packet.destination()), (source, destination));
        assert_eq!((packet.next_header(), packet.hop_limit()), (17, 63));
        assert_eq!((packet.payload_len(), packet.total_len(), packet.payload()), (5, 45, &[0xaa; 5][..]));
        let header = Ipv6HeaderSlice::from_slice(&bytes).unwrap().to_header();
        assert_eq!((header.source_addr(), header.destination_addr()), (source, destination));
        assert_eq!((header.next_header.0, header.hop_limit, header.payload_length), (17, 63, 5));
        assert_eq!((header.traffic_class, header.flow_label.value()), (0, 0));
    }

    #[test]
    fn a_header_that_is_cut_short_or_of_another_version_is_an_error() {
        for len in 0..HEADER_LEN {
            assert_eq!(Packet::new_checked(vec![0x60; len]).unwrap_err(), WireError::Truncated { protocol: "IPv6" });
        }
        assert_eq!(Packet::new_checked([0x45; 60]).unwrap_err(), WireError::Malformed { protocol: "IPv6" });
    }

    #[test]
    fn derived_addresses_are_those_of_the_rfcs() {
        assert_eq!(link_local([0x02, 0x00, 0x5e, 0x10, 0x00, 0x01]).to_string(), "fe80::5eff:fe10:1");
        let group = solicited_node("fd00::12:3456".parse().unwrap());
        assert_eq!(group.to_string(), "ff02::1:ff12:3456");
        assert_eq!(group_mac(group), [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
    }
}
