//! Ethernet II (IEEE 802.3 with a type field).

use super::Network;
use crate::DropReason;
use crate::wire::ethernet::field;

pub(super) use crate::wire::ethernet::HEADER_LEN;

/// Reads the type and the source address, and ignores the destination. The vswitch routes and is the only receiver on a port. Tools that
/// craft packets often leave the broadcast address in it.
pub(super) fn parse(frame: &[u8], source_mac: &mut Option<[u8; 6]>) -> Result<Network, DropReason> {
    let header = frame.first_chunk::<HEADER_LEN>().ok_or(DropReason::LinkTruncated)?;
    *source_mac = header[field::SOURCE].try_into().ok();
    Network::from_ethertype(u16::from_be_bytes([header[field::ETHERTYPE], header[field::ETHERTYPE + 1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(ethertype: u16) -> [u8; HEADER_LEN] {
        let [high, low] = ethertype.to_be_bytes();
        [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, high, low]
    }

    #[test]
    fn the_type_and_the_source_are_read() {
        let mut mac = None;
        assert_eq!(parse(&frame(0x0800), &mut mac), Ok(Network::Ipv4));
        assert_eq!(mac, Some([2, 0, 0, 0, 0, 1]));
        assert_eq!(parse(&frame(0x86dd), &mut mac), Ok(Network::Ipv6));
        assert_eq!(parse(&frame(0x0806), &mut mac), Ok(Network::Arp));
    }

    #[test]
    fn tags_and_other_types_have_their_own_reasons() {
        for tag in [0x8100, 0x88a8, 0x9100] {
            assert_eq!(parse(&frame(tag), &mut None), Err(DropReason::VlanTagged));
        }
        // MPLS, PPPoE, an LLC length, zero.
        for other in [0x8847, 0x8864, 0x0026, 0] {
            assert_eq!(parse(&frame(other), &mut None), Err(DropReason::UnknownEthertype));
        }
    }

    #[test]
    fn a_short_header_is_truncated() {
        for len in 0..HEADER_LEN {
            assert_eq!(parse(&frame(0x0800)[..len], &mut None), Err(DropReason::LinkTruncated));
        }
    }
}
