//! BSD loopback: four bytes of address family before the packet. Source: tcpdump.org LINKTYPE_NULL and LINKTYPE_LOOP.

use super::Network;
use crate::DropReason;

/// Length in bytes of the address family before the packet.
pub(super) const HEADER_LEN: usize = 4;

/// Reads the family in the capturing host's byte order. Families are at most 255, so only one byte order gives a valid number.
pub(super) fn parse_null(frame: &[u8]) -> Result<Network, DropReason> {
    let header = *frame.first_chunk::<HEADER_LEN>().ok_or(DropReason::LinkTruncated)?;
    let family = u32::from_le_bytes(header);
    network(if family > 255 { family.swap_bytes() } else { family })
}

/// Reads the family in network byte order.
pub(super) fn parse_loop(frame: &[u8]) -> Result<Network, DropReason> {
    let header = *frame.first_chunk::<HEADER_LEN>().ok_or(DropReason::LinkTruncated)?;
    network(u32::from_be_bytes(header))
}

fn network(family: u32) -> Result<Network, DropReason> {
    match family {
        2 => Ok(Network::Ipv4),
        // AF_INET6 of Linux, NetBSD and OpenBSD, FreeBSD, macOS.
        10 | 24 | 28 | 30 => Ok(Network::Ipv6),
        _ => Err(DropReason::UnknownEthertype),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_is_read_in_either_byte_order() {
        assert_eq!(parse_null(&[2, 0, 0, 0]), Ok(Network::Ipv4));
        assert_eq!(parse_null(&[0, 0, 0, 30]), Ok(Network::Ipv6));
        assert_eq!(parse_loop(&[0, 0, 0, 24]), Ok(Network::Ipv6));
        assert_eq!(parse_loop(&[2, 0, 0, 0]), Err(DropReason::UnknownEthertype));
    }

    #[test]
    fn other_families_and_short_headers_are_refused() {
        assert_eq!(parse_null(&[7, 0, 0, 0]), Err(DropReason::UnknownEthertype));
        assert_eq!(parse_null(&[2, 0, 0]), Err(DropReason::LinkTruncated));
    }
}
