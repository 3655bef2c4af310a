//! Netlink requests, and queries of routes and interfaces with rtnetlink. [`super::netlink_write`] has the changes.
//! Source: `include/uapi/linux/{netlink,rtnetlink,if_link}.h`.
//!
//! The alternative, `/proc/net/route`, contains only the main table, only the first next hop, and no bridges and bonds.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of a message's header.
const HEADER: usize = 16;
/// Bytes of `struct rtmsg`.
const ROUTE: usize = 12;
/// Bytes of `struct ifinfomsg`.
pub(super) const LINK: usize = 16;
/// Receive buffer in bytes. The kernel sends at most 32 KiB per message batch.
const BUFFER: usize = 1 << 16;
/// Tries to get a consistent dump. After that, a dump interrupted by changes is accepted.
const TRIES: u32 = 5;

/// `IFLA_LINK_NETNSID`: the interface in `IFLA_LINK` belongs to another namespace.
const IFLA_LINK_NETNSID: u16 = 37;
const IFLA_XDP: u16 = 43;
/// `IFLA_XDP_PROG_ID`, `IFLA_XDP_DRV_PROG_ID`, `IFLA_XDP_SKB_PROG_ID`.
const PROGRAM_IDS: std::ops::RangeInclusive<u16> = 4..=6;
pub(super) const IFLA_INFO_KIND: u16 = 1;

/// Returns the indexes of all interfaces that default routes of the calling thread's network namespace use: in all tables, with all next
/// hops and their lower interfaces (bridge ports, bond members, a VLAN's parent). Halves of a default route (`0.0.0.0/1`, `128.0.0.0/1`,
/// `::/1`, `8000::/1`) count too.
///
/// # Errors
/// If a netlink request fails.
pub fn default_route_interfaces() -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut body = [0; ROUTE];
        body[0] = u8::try_from(family).map_err(io::Error::other)?;
        ask(libc::RTM_GETROUTE, true, &body, |message| found.extend(way_out(message)))?;
    }
    // Lists all interfaces, thousands on a large node, so only if there is a default route.
    if !found.is_empty() {
        let mut links = Vec::new();
        ask(libc::RTM_GETLINK, true, &all_links(), |message| links.extend(Relation::of(message)))?;
        add_lower(&mut found, &links);
    }
    Ok(found)
}

/// Builds a `struct ifinfomsg` that requests all interfaces without counters, which are most of a message.
pub(super) fn all_links() -> Vec<u8> {
    /// `IFLA_EXT_MASK`, `RTEXT_FILTER_SKIP_STATS`.
    const EXT_MASK: u16 = 29;
    const SKIP_STATISTICS: u32 = 1 << 3;
    let mut body = vec![0; LINK];
    body.extend(8u16.to_ne_bytes());
    body.extend(EXT_MASK.to_ne_bytes());
    body.extend(SKIP_STATISTICS.to_ne_bytes());
    body
}

/// Returns the ids of the XDP programs on an interface of the calling thread's network namespace.
///
/// # Errors
/// If there is no such interface, or the netlink request fails.
pub fn xdp_programs(interface: u32) -> io::Result<Vec<u32>> {
    let mut body = [0; LINK];
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    let mut programs = Vec::new();
    ask(libc::RTM_GETLINK, false, &body, |message| {
        for (_, xdp) in attributes(message.get(LINK..).unwrap_or_default()).filter(|&(kind, _)| kind == IFLA_XDP) {
            let ids = attributes(xdp).filter(|(kind, _)| PROGRAM_IDS.contains(kind));
            programs.extend(ids.filter_map(|(_, value)| number(value, 0)).filter(|&id| id != 0));
        }
    })?;
    Ok(programs)
}

/// Whether an interface of the calling thread's network namespace is a veth whose peer is in another namespace.
///
/// # Errors
/// If there is no such interface, or the netlink request fails.
pub(super) fn has_peer_elsewhere(interface: u32) -> io::Result<bool> {
    let body = link(interface);
    let (mut is_veth, mut is_elsewhere) = (false, false);
    ask(libc::RTM_GETLINK, false, &body, |message| {
        for (kind, value) in attributes(message.get(LINK..).unwrap_or_default()) {
            match kind {
                IFLA_LINK_NETNSID => is_elsewhere = true,
                libc::IFLA_LINKINFO => is_veth |= is_veth_info(value),
                _ => {}
            }
        }
    })?;
    Ok(is_veth && is_elsewhere)
}

/// Returns the UDP port of a VXLAN device, and whether it takes the tunnel header of each packet from its route (`external`). `info` is its
/// `IFLA_LINKINFO`. `None` for interfaces of other kinds.
pub(super) fn vxlan_port(info: &[u8]) -> Option<(u16, bool)> {
    /// `IFLA_INFO_DATA`, `IFLA_VXLAN_PORT`, `IFLA_VXLAN_COLLECT_METADATA`.
    const INFO_DATA: u16 = 2;
    const PORT: u16 = 15;
    const EXTERNAL: u16 = 25;
    attributes(info).find(|&(kind, value)| kind == IFLA_INFO_KIND && value.starts_with(b"vxlan\0"))?;
    let (_, data) = attributes(info).find(|&(kind, _)| kind == INFO_DATA)?;
    let (mut port, mut is_external) = (None, false);
    for (kind, value) in attributes(data) {
        match kind {
            PORT => port = value.first_chunk().map(|bytes| u16::from_be_bytes(*bytes)),
            EXTERNAL => is_external = value.first() == Some(&1),
            _ => {}
        }
    }
    port.map(|port| (port, is_external))
}

/// Builds a `struct ifinfomsg` for an interface index.
pub(super) fn link(interface: u32) -> [u8; LINK] {
    let mut body = [0; LINK];
    body[4..8].copy_from_slice(&interface.to_ne_bytes());
    body
}

/// Whether `IFLA_LINKINFO` describes a veth.
pub(super) fn is_veth_info(info: &[u8]) -> bool {
    attributes(info).any(|(kind, value)| kind == IFLA_INFO_KIND && value.starts_with(b"veth"))
}

/// Returns the interfaces of a unicast default route, or of its half. Empty for other routes.
fn way_out(message: &[u8]) -> Vec<u32> {
    let Some((&[family, length, _, _, _, _, _, kind], rest)) = message.split_first_chunk::<8>() else {
        return Vec::new();
    };
    let is_ip = [libc::AF_INET, libc::AF_INET6].contains(&i32::from(family));
    if !is_ip || length > 1 || kind != libc::RTN_UNICAST {
        return Vec::new();
    }
    next_hops(rest.get(ROUTE - 8..).unwrap_or_default())
}

/// Returns the interface indexes of a route's next hops.
pub(super) fn next_hops(route: &[u8]) -> Vec<u32> {
    let mut found = Vec::new();
    for (kind, value) in attributes(route) {
        match kind {
            libc::RTA_OIF => found.extend(number(value, 0)),
            libc::RTA_MULTIPATH => found.extend(multipath(value).map(|(_, interface)| interface)),
            _ => {}
        }
    }
    found
}

/// Returns the flags and the interface indexes of the next hops in `RTA_MULTIPATH`.
pub(super) fn multipath(mut hops: &[u8]) -> impl Iterator<Item = (u8, u32)> {
    std::iter::from_fn(move || {
        // `struct rtnexthop`: length (16 bits), flags, hops, interface; then attributes.
        let (length, &flags, interface) = (short(hops, 0)?, hops.get(2)?, number(hops, 4)?);
        hops = hops.get(aligned(usize::from(length).max(8))..).unwrap_or_default();
        Some((flags, interface))
    })
}

/// The related interfaces of an interface, by their indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Relation {
    interface: u32,
    /// The bridge or bond to which the interface belongs. `None` without one.
    master: Option<u32>,
    /// The interface below this one, for example that of a VLAN. `None` without one.
    lower: Option<u32>,
}

impl Relation {
    fn of(message: &[u8]) -> Option<Self> {
        let mut relation = Self { interface: number(message, 4)?, master: None, lower: None };
        let mut is_below = true;
        for (kind, value) in attributes(message.get(LINK..)?) {
            match kind {
                libc::IFLA_MASTER => relation.master = number(value, 0),
                libc::IFLA_LINK => relation.lower = number(value, 0),
                IFLA_LINK_NETNSID => is_below = false,
                // A veth's `IFLA_LINK` is its peer.
                libc::IFLA_LINKINFO => is_below &= !is_veth_info(value),
                _ => {}
            }
        }
        relation.lower = relation.lower.filter(|_| is_below);
        Some(relation)
    }
}

fn add_lower(found: &mut BTreeSet<u32>, links: &[Relation]) {
    loop {
        let before = found.len();
        for link in links {
            if link.master.is_some_and(|master| found.contains(&master)) {
                found.insert(link.interface);
            }
            if let Some(lower) = link.lower.filter(|_| found.contains(&link.interface)) {
                found.insert(lower);
            }
        }
        if found.len() == before {
            return;
        }
    }
}

/// Sends one rtnetlink request and calls `each` with the body of every answer.
pub(super) fn ask(kind: u16, is_dump: bool, body: &[u8], each: impl FnMut(&[u8])) -> io::Result<()> {
    ask_of(libc::NETLINK_ROUTE, kind, is_dump, body, each)
}

/// Sends one request to a netlink protocol and calls `each` with the body of every answer.
pub(super) fn ask_of(part: i32, kind: u16, is_dump: bool, body: &[u8], each: impl FnMut(&[u8])) -> io::Result<()> {
    let flags = libc::NLM_F_REQUEST | if is_dump { libc::NLM_F_DUMP } else { 0 };
    request(part, kind, flags, body, each)
}

/// Sends a request with these flags and calls `each` with the body of every answer.
pub(super) fn request(part: i32, kind: u16, flags: i32, body: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut request = Vec::with_capacity(HEADER + body.len());
    request.extend(u32::try_from(HEADER + body.len()).map_err(io::Error::other)?.to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(u16::try_from(flags).map_err(io::Error::other)?.to_ne_bytes());
    // Sequence number and sender are 0, as each socket sends one request.
    request.extend([0; 8]);
    request.extend(body);
    for _ in 0..TRIES {
        if exchange(part, &request, &mut each)? {
            break;
        }
    }
    Ok(())
}

/// Opens a socket of a netlink protocol in the calling thread's network namespace.
pub(super) fn socket(part: i32) -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor and touches no memory.
    let socket = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, part) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just created, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Sends one request and receives its answers. Returns false if changes interrupted a dump.
fn exchange(part: i32, request: &[u8], each: &mut impl FnMut(&[u8])) -> io::Result<bool> {
    let socket = socket(part)?;
    // SAFETY: the bytes of the request, which outlive the call. Without an address it goes to the kernel.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut buffer, mut whole) = (vec![0; BUFFER], true);
    loop {
        // SAFETY: the kernel writes within the buffer.
        let length = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        let Ok(length) = usize::try_from(length) else {
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            }
        };
        if take(&buffer[..length.min(BUFFER)], each, &mut whole)? {
            return Ok(whole);
        }
    }
}

/// Parses the messages of one datagram. Returns whether it ends the answer. Clears `whole` if changes interrupted a dump.
fn take(mut answer: &[u8], each: &mut impl FnMut(&[u8]), whole: &mut bool) -> io::Result<bool> {
    /// `NLM_F_MULTI`, `NLM_F_DUMP_INTR`.
    const MULTI: u16 = 2;
    const INTERRUPTED: u16 = 0x10;
    /// `NLMSG_ERROR`, `NLMSG_DONE`: `libc` has them as `i32`.
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    let mut is_last = true;
    while let (Some(length), Some(kind), Some(flags)) = (number(answer, 0), short(answer, 4), short(answer, 6)) {
        let length = length as usize;
        let Some(body) = answer.get(HEADER..length) else { return Err(io::ErrorKind::InvalidData.into()) };
        *whole &= flags & INTERRUPTED == 0;
        match kind {
            ERROR | DONE => {
                return match number(body, 0).map_or(0, u32::cast_signed) {
                    code if code < 0 => Err(io::Error::from_raw_os_error(-code)),
                    _ => Ok(true),
                };
            }
            _ => each(body),
        }
        is_last = flags & MULTI == 0;
        answer = answer.get(aligned(length)..).unwrap_or_default();
    }
    Ok(is_last)
}

/// Returns the address family in a message's header: `AF_INET` or `AF_INET6`.
pub(super) const fn family(address: IpAddr) -> u8 {
    const INET: u8 = 2;
    const INET6: u8 = 10;
    const { assert!(libc::AF_INET == INET as i32 && libc::AF_INET6 == INET6 as i32) };
    if address.is_ipv4() { INET } else { INET6 }
}

/// Returns the bytes of an address in network order: 4 or 16.
pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Returns the bytes of an IPv6 address, or of an IPv4 address in its mapped form.
pub(super) fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Iterates over attributes: type and value. Stops at a truncated one.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    /// The bits of an attribute's type. The upper two bits are flags.
    const TYPE: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(short(bytes, 0)?), short(bytes, 2)? & TYPE);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(super) const fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

pub(super) fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn route(length: u8, kind: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![2, length, 0, 0, 100, 0, 0, kind, 0, 0, 0, 0];
        bytes.extend(attributes.concat());
        bytes
    }

    #[test]
    fn every_next_hop_of_a_default_route_and_of_its_halves_is_told() {
        let over = |interface: u32| attribute(libc::RTA_OIF, &interface.to_ne_bytes());
        assert_eq!(way_out(&route(0, libc::RTN_UNICAST, &[over(7)])), [7]);
        assert_eq!(way_out(&route(1, libc::RTN_UNICAST, &[over(8)])), [8]);
        assert!(way_out(&route(2, libc::RTN_UNICAST, &[over(9)])).is_empty());
        assert!(way_out(&route(0, libc::RTN_UNREACHABLE, &[over(1)])).is_empty());
        let hop = |interface: u32| {
            let gateway = attribute(5, &[10, 0, 0, 1]);
            let length = u16::try_from(8 + gateway.len()).unwrap();
            [&length.to_ne_bytes()[..], &[0, 0], &interface.to_ne_bytes(), &gateway].concat()
        };
        let hops = attribute(libc::RTA_MULTIPATH, &[hop(3), hop(4)].concat());
        assert_eq!(way_out(&route(0, libc::RTN_UNICAST, &[hops])), [3, 4]);
    }

    #[test]
    fn what_is_below_a_bridge_or_a_vlan_carries_its_default_route_too() {
        let link = |interface, master, lower| Relation { interface, master, lower };
        // A VLAN (5) on a bridge (4) with the ports 2 and 3; 6 is unrelated.
        let links = [
            link(2, Some(4), None),
            link(3, Some(4), None),
            link(4, None, None),
            link(5, None, Some(4)),
            link(6, None, None),
        ];
        let mut found = [5].into();
        add_lower(&mut found, &links);
        assert_eq!(found, [2, 3, 4, 5].into());
    }

    #[test]
    fn a_message_that_is_cut_off_or_refused_is_an_error_and_no_answer() {
        let mut none = |_: &[u8]| panic!("there is no message");
        let header = |length: u32, kind: u16| [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10]].concat();
        assert!(take(&header(64, 24), &mut none, &mut true).is_err());
        let refused = [header(20, 2), (-1i32).to_ne_bytes().to_vec()].concat();
        assert_eq!(take(&refused, &mut none, &mut true).unwrap_err().raw_os_error(), Some(libc::EPERM));
        let done = [header(20, 3), 0i32.to_ne_bytes().to_vec()].concat();
        assert!(take(&done, &mut none, &mut true).unwrap());
    }

    #[test]
    fn the_loopback_interface_has_no_program_and_a_missing_one_is_an_error() {
        assert!(xdp_programs(1).unwrap().is_empty());
        assert!(xdp_programs(u32::MAX >> 1).is_err());
        default_route_interfaces().unwrap();
    }
}
