//! Per-hop rewriting of packets: TTL and MAC addresses.
//!
//! Plain functions without state, so that a bare forwarder and a benchmark do the same work as the vswitch.

use super::fields;
use crate::wire::ethernet::{self, ethertype};
use crate::wire::{ipv4, ipv6};

pub use crate::wire::ethernet::addresses;

/// Writes destination and source MAC address. Leaves a frame that is shorter than an Ethernet header unchanged.
#[inline]
pub fn ethernet(frame: &mut [u8], addresses: &[u8; 12]) {
    if let Some(head) = frame.first_chunk_mut::<{ ethernet::HEADER_LEN }>() {
        head[..ethernet::ADDRESSES_LEN].copy_from_slice(addresses);
    }
}

/// Decrements the TTL of an IPv4 packet and updates its checksum. Returns false, without changes, if the TTL is too low or the header is
/// incomplete.
///
/// The checksum is updated by equation 3 of RFC 1624, HC' = ~(~HC + ~m + m'). The TTL is the high byte of its word, so ~m + m' is always
/// ~0x0100. Equation 4 of RFC 1141 would turn 0xfeff into 0xffff, which no receiver computes.
#[inline]
pub fn decrement_ttl(packet: &mut [u8]) -> bool {
    let Some(header) = packet.first_chunk_mut::<{ ipv4::MIN_HEADER_LEN }>() else { return false };
    if header[ipv4::field::TTL] <= 1 {
        return false;
    }
    header[ipv4::field::TTL] -= 1;
    let checksum = u16::from_be_bytes([header[ipv4::field::CHECKSUM], header[ipv4::field::CHECKSUM + 1]]);
    let (sum, carry) = (!checksum).overflowing_add(!0x0100);
    let [high, low] = (!(sum + u16::from(carry))).to_be_bytes();
    (header[ipv4::field::CHECKSUM], header[ipv4::field::CHECKSUM + 1]) = (high, low);
    true
}

/// Decrements the hop limit of an IPv6 packet. Returns false, without changes, if it is too low or the header is incomplete.
#[inline]
pub fn decrement_hop_limit(packet: &mut [u8]) -> bool {
    let Some(header) = packet.first_chunk_mut::<{ ipv6::HEADER_LEN }>() else { return false };
    if header[ipv6::field::HOP_LIMIT] <= 1 {
        return false;
    }
    header[ipv6::field::HOP_LIMIT] -= 1;
    true
}

/// Forwards a frame by one hop: TTL or hop limit, checksum, MAC addresses. Returns false, without changes, if the frame is neither IPv4 nor
/// IPv6, or its TTL or hop limit is too low.
#[inline]
pub fn hop(frame: &mut [u8], addresses: &[u8; 12]) -> bool {
    let packet_goes_on = match fields::ethertype_of(frame) {
        Some(ethertype::IPV4) => decrement_ttl(&mut frame[ethernet::HEADER_LEN..]),
        Some(ethertype::IPV6) => decrement_hop_limit(&mut frame[ethernet::HEADER_LEN..]),
        _ => false,
    };
    if packet_goes_on {
        ethernet(frame, addresses);
    }
    packet_goes_on
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::checksum;
    use proptest::prelude::*;

    const ADDRESSES: [u8; 12] = [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8];

    fn with_checksum(mut header: [u8; 20]) -> [u8; 20] {
        header[10..12].fill(0);
        let sum = checksum::internet(&[&header]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn checksum_of(header: &[u8]) -> u16 {
        u16::from_be_bytes([header[10], header[11]])
    }

    proptest! {
        #[test]
        fn the_incremental_checksum_is_the_one_that_is_computed_anew(bytes in any::<[u8; 20]>()) {
            let mut header = bytes;
            header[0] = 0x45;
            let mut header = with_checksum(header);
            let before = header;
            if decrement_ttl(&mut header) {
                prop_assert_eq!(header[8], before[8] - 1);
                prop_assert_eq!(header, with_checksum(header));
            } else {
                prop_assert!(before[8] <= 1);
                prop_assert_eq!(header, before);
            }
        }
    }

    #[test]
    fn rfc_1624_every_checksum_that_a_header_can_have_is_updated_as_if_computed_anew() {
        let mut reached = [false; 2];
        for identification in 0..=u16::MAX {
            let mut header = [0u8; 20];
            header[0] = 0x45;
            header[8] = 64;
            header[4..6].copy_from_slice(&identification.to_be_bytes());
            let mut header = with_checksum(header);
            let before = checksum_of(&header);
            assert!(decrement_ttl(&mut header));
            assert_eq!(header, with_checksum(header), "checksum {before:#06x}");
            // The corner cases of RFC 1624: the old or the new checksum is 0.
            reached[0] |= before == 0;
            reached[1] |= before == 0xfeff && checksum_of(&header) == 0;
        }
        assert_eq!(reached, [true; 2]);
    }

    #[test]
    fn a_packet_at_its_last_hop_stays_as_it_is() {
        for ttl in [0, 1] {
            let mut four = [0; 34];
            four[12..15].copy_from_slice(&[8, 0, 0x45]);
            four[14 + 8] = ttl;
            let mut six = [0; 54];
            six[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
            six[14 + 7] = ttl;
            let before = (four, six);
            assert!(!hop(&mut four, &ADDRESSES) && !hop(&mut six, &ADDRESSES));
            assert_eq!((four, six), before);
        }
    }

    #[test]
    fn a_hop_changes_the_addresses_and_the_hop_limit_and_nothing_else() {
        let mut six = [7; 60];
        six[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
        let mut expected = six;
        expected[..12].copy_from_slice(&ADDRESSES);
        expected[21] = 6;
        assert!(hop(&mut six, &ADDRESSES));
        assert_eq!(six, expected);
    }

    #[test]
    fn short_frames_and_other_types_stay_as_they_are() {
        for len in 0..54 {
            let mut frame = vec![9; len];
            if len >= 14 {
                frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            }
            let before = frame.clone();
            assert!(!hop(&mut frame, &ADDRESSES));
            assert_eq!(frame, before);
        }
        let mut arp = [9; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        assert!(!hop(&mut arp, &ADDRESSES));
    }
}
