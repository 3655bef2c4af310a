//! IPv6 neighbour discovery (RFC 4861). The parser makes all checks that the RFC requires of a receiver.

use std::net::{IpAddr, Ipv6Addr};

use super::Bytes;
use crate::wire::icmpv6::{kind, ndisc};
use crate::{DropReason, Flow};

/// Length of each type's fixed part, which the options follow.
mod fixed_len {
    pub(super) const ROUTER_SOLICITATION: usize = 8;
    pub(super) const ROUTER_ADVERTISEMENT: usize = 16;
    pub(super) const NEIGHBOUR: usize = 24;
    pub(super) const REDIRECT: usize = 40;
}

/// A neighbour discovery message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Neighbour {
    /// A request for the owner of this address. With an unspecified source, duplicate address detection.
    Solicitation(Ipv6Addr),
    /// Announces that the sender owns this address.
    Advertisement(Ipv6Addr),
    /// A request for routers.
    RouterSolicitation,
    /// Announces that the sender is a router.
    RouterAdvertisement,
    /// Names a better router for a destination.
    Redirect,
}

impl Neighbour {
    /// Whether an ICMPv6 type is neighbour discovery.
    pub(super) const fn is_kind(kind: u8) -> bool {
        matches!(kind, kind::ROUTER_SOLICITATION..=kind::REDIRECT)
    }
}

/// Parses a message whose type passes [`Neighbour::is_kind`].
pub(super) fn parse(message: Bytes<'_>, hop_limit: u8, flow: &Flow) -> Result<Neighbour, DropReason> {
    let bytes = message.seen;
    // A truncated message cannot be verified.
    if hop_limit != ndisc::HOP_LIMIT || bytes.len() != message.wire_len {
        return Err(DropReason::NdMalformed);
    }
    let &[kind, 0, ..] = bytes else { return Err(DropReason::NdMalformed) };
    let (neighbour, fixed_len) = match kind {
        kind::ROUTER_SOLICITATION => (Neighbour::RouterSolicitation, fixed_len::ROUTER_SOLICITATION),
        kind::ROUTER_ADVERTISEMENT => (Neighbour::RouterAdvertisement, fixed_len::ROUTER_ADVERTISEMENT),
        kind::NEIGHBOUR_SOLICITATION => (Neighbour::Solicitation(target(bytes)?), fixed_len::NEIGHBOUR),
        kind::NEIGHBOUR_ADVERTISEMENT => (Neighbour::Advertisement(target(bytes)?), fixed_len::NEIGHBOUR),
        kind::REDIRECT => (Neighbour::Redirect, fixed_len::REDIRECT),
        _ => return Err(DropReason::NdMalformed),
    };
    let names_its_link_layer = check_options(bytes.get(fixed_len..).ok_or(DropReason::NdMalformed)?)?;
    check_addresses(neighbour, flow, names_its_link_layer)?;
    Ok(neighbour)
}

/// Returns the target address. An error if it is multicast (RFC 4861 §7.1).
fn target(bytes: &[u8]) -> Result<Ipv6Addr, DropReason> {
    let octets: [u8; 16] = bytes.get(8..24).and_then(|slice| slice.try_into().ok()).ok_or(DropReason::NdMalformed)?;
    let target = Ipv6Addr::from(octets);
    if target.is_multicast() { Err(DropReason::NdMalformed) } else { Ok(target) }
}

/// Checks that each option has a length of at least 1, in units of 8 bytes. Returns whether one is a source link-layer address.
fn check_options(mut options: &[u8]) -> Result<bool, DropReason> {
    let mut names_its_link_layer = false;
    while !options.is_empty() {
        let &[kind, length, ..] = options else { return Err(DropReason::NdMalformed) };
        if length == 0 {
            return Err(DropReason::NdMalformed);
        }
        // Invalid if the source address is unspecified (RFC 4861 §7.1.1).
        names_its_link_layer |= kind == ndisc::SOURCE_LINK_LAYER;
        options = options.get(usize::from(length) * 8..).ok_or(DropReason::NdMalformed)?;
    }
    Ok(names_its_link_layer)
}

/// Checks source and destination as required by RFC 4861 §6.1 and §7.1.
fn check_addresses(neighbour: Neighbour, flow: &Flow, names_its_link_layer: bool) -> Result<(), DropReason> {
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (flow.src, flow.dst) else { return Err(DropReason::NdMalformed) };
    let good = match neighbour {
        Neighbour::Solicitation(_) if src.is_unspecified() => is_solicited_node(dst) && !names_its_link_layer,
        Neighbour::RouterSolicitation if src.is_unspecified() => !names_its_link_layer,
        Neighbour::Solicitation(_) | Neighbour::RouterSolicitation => true,
        Neighbour::Advertisement(_) => !src.is_unspecified(),
        Neighbour::RouterAdvertisement | Neighbour::Redirect => src.is_unicast_link_local(),
    };
    if good && !src.is_multicast() { Ok(()) } else { Err(DropReason::NdMalformed) }
}

/// Whether the address is in ff02::1:ff00:0/104 (RFC 4291 §2.7.1).
fn is_solicited_node(address: Ipv6Addr) -> bool {
    matches!(address.segments(), [0xff02, 0, 0, 0, 0, 1, 0xff00..=0xffff, _])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn solicitation() -> Vec<u8> {
        let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
        message.extend("fd00::2".parse::<Ipv6Addr>().unwrap().octets());
        message.extend([1, 1, 2, 0, 0, 0, 0, 1]);
        message
    }

    fn flow(src: &str, dst: &str) -> Flow {
        let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
        Flow { src, dst, protocol: 58, sport: 0, dport: 0, icmp: None }
    }

    fn parse_bytes(bytes: &[u8]) -> Result<Neighbour, DropReason> {
        parse(Bytes::new(bytes, bytes.len()), 255, &flow("fd00::1", "ff02::1:ff00:2"))
    }

    #[test]
    fn a_solicitation_tells_its_target() {
        assert_eq!(parse_bytes(&solicitation()), Ok(Neighbour::Solicitation("fd00::2".parse().unwrap())));
    }

    #[test]
    fn a_message_that_a_router_has_forwarded_is_refused() {
        for hop_limit in 0..255 {
            let message = solicitation();
            let seen = Bytes::new(&message, message.len());
            assert_eq!(parse(seen, hop_limit, &flow("fd00::1", "fd00::2")), Err(DropReason::NdMalformed));
        }
    }

    #[test]
    fn the_code_the_length_and_the_options_are_checked() {
        for len in 0..24 {
            assert_eq!(parse_bytes(&solicitation()[..len]), Err(DropReason::NdMalformed), "{len} bytes");
        }
        for (at, value) in [(1, 1), (25, 0), (25, 2), (8, 0xff)] {
            let mut bad = solicitation();
            bad[at] = value;
            assert_eq!(parse_bytes(&bad), Err(DropReason::NdMalformed), "byte {at} = {value}");
        }
    }

    #[test]
    fn duplicate_address_detection_goes_to_a_solicited_node_address_and_names_no_link_layer() {
        let message = solicitation();
        let probe = |bytes: &[u8], dst| parse(Bytes::new(bytes, bytes.len()), 255, &flow("::", dst));
        assert!(probe(&message[..24], "ff02::1:ff00:2").is_ok());
        assert_eq!(probe(&message, "ff02::1:ff00:2"), Err(DropReason::NdMalformed));
        assert_eq!(probe(&message[..24], "fd00::2"), Err(DropReason::NdMalformed));
    }

    #[test]
    fn routers_speak_from_link_local_addresses() {
        let advertisement = [134, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let from = |src| parse(Bytes::new(&advertisement, 16), 255, &flow(src, "ff02::1"));
        assert_eq!(from("fe80::1"), Ok(Neighbour::RouterAdvertisement));
        assert_eq!(from("fd00::1"), Err(DropReason::NdMalformed));
    }
}
