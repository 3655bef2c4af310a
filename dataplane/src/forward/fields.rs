//! Reads single fields of possibly truncated frames, and classifies addresses.

use std::net::IpAddr;
use std::ops::Range;

use crate::wire::ethernet::{self, Mac, ethertype};
use crate::wire::icmpv6::kind;
use crate::wire::{ipv4, ipv6, protocol};

/// Offset of the IP header in an Ethernet frame.
const IP: usize = ethernet::HEADER_LEN;
const DESTINATION_V4: Range<usize> = IP + ipv4::field::DESTINATION.start..IP + ipv4::field::DESTINATION.end;
const DESTINATION_V6: Range<usize> = IP + ipv6::field::DESTINATION.start..IP + ipv6::field::DESTINATION.end;

/// Returns the ethertype. `None` if the header is truncated.
#[inline]
pub(super) fn ethertype_of(frame: &[u8]) -> Option<u16> {
    frame.first_chunk::<{ ethernet::HEADER_LEN }>().map(|head| u16::from_be_bytes([head[12], head[13]]))
}

/// Returns the destination MAC address. `None` if the header is truncated.
#[inline]
pub(super) fn destination_mac(frame: &[u8]) -> Option<Mac> {
    frame.first_chunk::<6>().copied()
}

/// Returns the source MAC address. `None` if the header is truncated.
#[inline]
pub(super) fn source_mac(frame: &[u8]) -> Option<Mac> {
    frame.get(6..12)?.try_into().ok()
}

/// Encodes a MAC address as a non-zero number, so that 0 means none. Uses the byte order that is read fastest from a frame.
#[inline]
pub(super) const fn to_number(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 1, 0])
}

/// Decodes a number of [`to_number`]. `None` for 0.
pub(super) const fn from_number(number: u64) -> Option<Mac> {
    let [a, b, c, d, e, f, ..] = number.to_le_bytes();
    if number == 0 { None } else { Some([a, b, c, d, e, f]) }
}

/// Whether packets may be routed to or from the address. False for multicast, limited broadcast, unspecified, loopback and "this network"
/// addresses.
pub(super) fn is_routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => !(a.is_multicast() || a.is_broadcast() || a.is_loopback() || a.octets()[0] == 0),
        IpAddr::V6(a) => !(a.is_multicast() || a.is_loopback() || a.is_unspecified()),
    }
}

/// Whether the address is only valid on one link (RFC 4291 §2.5.6). Then no route applies, and the engine has chosen the link.
#[inline]
pub(super) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Whether the frame is certainly neither ARP nor neighbour discovery.
#[inline]
pub(super) fn is_plain(frame: &[u8]) -> bool {
    match ethertype_of(frame) {
        Some(ethertype::IPV4) => true,
        // Packets with extension headers take the slow path; they are rare.
        Some(ethertype::IPV6) => match frame.get(IP + ipv6::field::NEXT_HEADER) {
            Some(0 | 43 | 44 | 51 | 60) | None => false,
            Some(&protocol::ICMPV6) => frame
                .get(IP + ipv6::HEADER_LEN)
                .is_some_and(|kind| !(kind::ROUTER_SOLICITATION..=kind::REDIRECT).contains(kind)),
            Some(_) => true,
        },
        _ => false,
    }
}

/// Returns the destination of an IP packet. `None` if the header is truncated.
#[inline]
pub(super) fn destination_of(frame: &[u8]) -> Option<IpAddr> {
    match ethertype_of(frame)? {
        ethertype::IPV4 => Some(<[u8; 4]>::try_from(frame.get(DESTINATION_V4)?).ok()?.into()),
        ethertype::IPV6 => Some(<[u8; 16]>::try_from(frame.get(DESTINATION_V6)?).ok()?.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_is_a_number_and_back_and_none_is_zero() {
        for mac in [[0; 6], [2, 0, 0, 0, 0, 1], ethernet::BROADCAST] {
            assert_eq!(from_number(to_number(mac)), Some(mac));
        }
        assert_eq!(from_number(0), None);
    }
}
