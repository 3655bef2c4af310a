//! Positions and numbers of the headers that are written here.

use std::net::{IpAddr, Ipv6Addr};

/// Destination, source, type.
pub(super) const ETHERNET_LEN: usize = 14;

/// A MAC address.
pub(super) type Mac = [u8; 6];

/// Everybody on the link.
pub(super) const BROADCAST: Mac = [0xff; 6];

/// Source: IANA "IEEE 802 Numbers".
pub(super) mod ethertype {
    pub(in crate::forward) const IPV4: u16 = 0x0800;
    pub(in crate::forward) const ARP: u16 = 0x0806;
    pub(in crate::forward) const IPV6: u16 = 0x86dd;
}

/// The type field; none when the header is cut short.
#[inline]
pub(super) fn ethertype_of(frame: &[u8]) -> Option<u16> {
    frame.first_chunk::<ETHERNET_LEN>().map(|head| u16::from_be_bytes([head[12], head[13]]))
}

/// The destination address; none when the header is cut short.
#[inline]
pub(super) fn destination_mac(frame: &[u8]) -> Option<Mac> {
    frame.first_chunk::<6>().copied()
}

/// The source address; none when the header is cut short.
#[inline]
pub(super) fn source_mac(frame: &[u8]) -> Option<Mac> {
    frame.get(6..12)?.try_into().ok()
}

/// Whether the address is a group's (or everybody's): the first bit on the wire.
pub(super) const fn is_group(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

/// Whether a station can have the address.
pub(super) fn is_station(mac: Mac) -> bool {
    !is_group(mac) && mac != [0; 6]
}

/// The MAC address as a number that is never 0, so that 0 can stand for none. In the byte order in which it is read from a
/// frame the quickest.
#[inline]
pub(super) const fn to_number(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 1, 0])
}

/// The way back.
pub(super) const fn from_number(number: u64) -> Option<Mac> {
    let [a, b, c, d, e, f, ..] = number.to_le_bytes();
    if number == 0 { None } else { Some([a, b, c, d, e, f]) }
}

/// The link-local address that goes with a MAC address (RFC 4291 appendix A). It is the vswitch's own on each link:
/// what neighbour discovery is sent from.
pub(super) const fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from_octets([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// Where an address is asked for: ff02::1:ff and its last three bytes (RFC 4291 §2.7.1).
pub(super) const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let octets = address.octets();
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    (group[13], group[14], group[15]) = (octets[13], octets[14], octets[15]);
    Ipv6Addr::from_octets(group)
}

/// The MAC address of an IPv6 group (RFC 2464 §7).
pub(super) const fn group_mac(group: Ipv6Addr) -> Mac {
    let octets = group.octets();
    [0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]
}

/// Multicast, the limited broadcast, unspecified, loopback, "this network": what no packet is routed to or from.
pub(super) fn is_routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => !(a.is_multicast() || a.is_broadcast() || a.is_loopback() || a.octets()[0] == 0),
        IpAddr::V6(a) => !(a.is_multicast() || a.is_loopback() || a.is_unspecified()),
    }
}

/// Whether the address means something on one link only (RFC 4291 §2.5.6): then no route has a say in it, and the engine
/// has chosen the link.
#[inline]
pub(super) fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Whether the frame is certainly neither ARP nor neighbour discovery.
#[inline]
pub(super) fn is_plain(frame: &[u8]) -> bool {
    match ethertype_of(frame) {
        Some(ethertype::IPV4) => true,
        // Behind an extension header may be anything; those are rare.
        Some(ethertype::IPV6) => match frame.get(20) {
            Some(0 | 43 | 44 | 51 | 60) | None => false,
            Some(58) => frame.get(54).is_some_and(|kind| !matches!(kind, 133..=137)),
            Some(_) => true,
        },
        _ => false,
    }
}

/// The destination of an IP packet; none when it is cut short.
#[inline]
pub(super) fn destination_of(frame: &[u8]) -> Option<IpAddr> {
    match ethertype_of(frame)? {
        ethertype::IPV4 => Some(<[u8; 4]>::try_from(frame.get(30..34)?).ok()?.into()),
        ethertype::IPV6 => Some(<[u8; 16]>::try_from(frame.get(38..54)?).ok()?.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_is_a_number_and_back_and_none_is_zero() {
        for mac in [[0; 6], [2, 0, 0, 0, 0, 1], BROADCAST] {
            assert_eq!(from_number(to_number(mac)), Some(mac));
        }
        assert_eq!(from_number(0), None);
    }

    #[test]
    fn derived_addresses_are_those_of_the_rfcs() {
        assert_eq!(link_local([0x02, 0x00, 0x5e, 0x10, 0x00, 0x01]).to_string(), "fe80::5eff:fe10:1");
        let group = solicited_node("fd00::12:3456".parse().unwrap());
        assert_eq!(group.to_string(), "ff02::1:ff12:3456");
        assert_eq!(group_mac(group), [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
    }

    #[test]
    fn only_a_single_machine_is_a_station() {
        assert!(is_station([2, 0, 0, 0, 0, 1]));
        for mac in [[0; 6], BROADCAST, [0x33, 0x33, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]] {
            assert!(!is_station(mac), "{mac:x?}");
        }
    }
}
