//! Linux cooked captures, as written by `tcpdump -i any`: a pseudo header with the sender's address and an ethertype.
//! Source: tcpdump.org LINKTYPE_LINUX_SLL and LINKTYPE_LINUX_SLL2.

use super::Network;
use crate::DropReason;

/// Length in bytes of a header of version 1 (`LINKTYPE_LINUX_SLL`).
pub(super) const SLL_LEN: usize = 16;
/// Length in bytes of a header of version 2 (`LINKTYPE_LINUX_SLL2`).
pub(super) const SLL2_LEN: usize = 20;

mod field {
    /// Offsets of the fields of version 1: address length, address, protocol.
    pub(super) const SLL_ADDRESS_LEN: usize = 4;
    pub(super) const SLL_ADDRESS: usize = 6;
    pub(super) const SLL_PROTOCOL: usize = 14;
    /// Offsets of the fields of version 2: protocol, address length, address.
    pub(super) const SLL2_PROTOCOL: usize = 0;
    pub(super) const SLL2_ADDRESS_LEN: usize = 11;
    pub(super) const SLL2_ADDRESS: usize = 12;
}

/// Length of a MAC address. Addresses of other lengths are ignored.
const MAC_LEN: u16 = 6;

/// Parses a header of version 1. Sets `source_mac` if the sender has a MAC address.
pub(super) fn parse_sll(frame: &[u8], source_mac: &mut Option<[u8; 6]>) -> Result<Network, DropReason> {
    let header = frame.first_chunk::<SLL_LEN>().ok_or(DropReason::LinkTruncated)?;
    if u16::from_be_bytes([header[field::SLL_ADDRESS_LEN], header[field::SLL_ADDRESS_LEN + 1]]) == MAC_LEN {
        *source_mac = header[field::SLL_ADDRESS..][..6].try_into().ok();
    }
    Network::from_ethertype(u16::from_be_bytes([header[field::SLL_PROTOCOL], header[field::SLL_PROTOCOL + 1]]))
}

/// Parses a header of version 2. Sets `source_mac` if the sender has a MAC address.
pub(super) fn parse_sll2(frame: &[u8], source_mac: &mut Option<[u8; 6]>) -> Result<Network, DropReason> {
    let header = frame.first_chunk::<SLL2_LEN>().ok_or(DropReason::LinkTruncated)?;
    if u16::from(header[field::SLL2_ADDRESS_LEN]) == MAC_LEN {
        *source_mac = header[field::SLL2_ADDRESS..][..6].try_into().ok();
    }
    Network::from_ethertype(u16::from_be_bytes([header[field::SLL2_PROTOCOL], header[field::SLL2_PROTOCOL + 1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLL: [u8; SLL_LEN] = [0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 0x08, 0x00];
    const SLL2: [u8; SLL2_LEN] = [0x86, 0xdd, 0, 0, 0, 0, 0, 3, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0];

    #[test]
    fn both_versions_tell_the_type_and_the_sender() {
        let mut mac = None;
        assert_eq!(parse_sll(&SLL, &mut mac), Ok(Network::Ipv4));
        assert_eq!(mac.take(), Some([2, 0, 0, 0, 0, 1]));
        assert_eq!(parse_sll2(&SLL2, &mut mac), Ok(Network::Ipv6));
        assert_eq!(mac, Some([2, 0, 0, 0, 0, 1]));
    }

    #[test]
    fn an_address_of_another_length_is_no_mac() {
        let (mut sll, mut sll2, mut mac) = (SLL, SLL2, None);
        (sll[5], sll2[11]) = (4, 8);
        assert_eq!((parse_sll(&sll, &mut mac), parse_sll2(&sll2, &mut mac)), (Ok(Network::Ipv4), Ok(Network::Ipv6)));
        assert_eq!(mac, None);
    }

    #[test]
    fn a_short_header_is_truncated() {
        assert_eq!(parse_sll(&SLL[..15], &mut None), Err(DropReason::LinkTruncated));
        assert_eq!(parse_sll2(&SLL2[..19], &mut None), Err(DropReason::LinkTruncated));
    }
}
