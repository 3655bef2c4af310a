//! Lists the kernel's routes. Source: `include/uapi/linux/rtnetlink.h`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::netlink::{ask, attributes, next_hops, number};

/// Bytes of `struct rtmsg`.
const ROUTE: usize = 12;

/// A unicast route of any routing table except `local`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// The destination prefix.
    pub destination: IpNet,
    /// The routing table's number.
    pub table: u32,
    /// `rtm_protocol`: the number of the program that added the route.
    pub protocol: u8,
    /// Interface indexes of the route's next hops.
    pub interfaces: Vec<u32>,
    /// The source address of the node's own packets on this route. `None` if the kernel chooses it.
    pub source: Option<IpAddr>,
}

/// Returns the unicast routes of the calling thread's network namespace.
///
/// # Errors
/// If the netlink request fails.
pub fn kernel_routes() -> io::Result<Vec<KernelRoute>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut body = [0; ROUTE];
        body[0] = u8::try_from(family).map_err(io::Error::other)?;
        ask(libc::RTM_GETROUTE, true, &body, |message| found.extend(KernelRoute::of(message)))?;
    }
    Ok(found)
}

impl KernelRoute {
    /// Parses an rtnetlink message. `None` for other route types, cached routes and table `local`.
    fn of(message: &[u8]) -> Option<Self> {
        /// `RTM_F_CLONED`: a cached lookup result, not a configured route.
        const CLONED: u32 = 0x200;
        /// `RTA_TABLE`: the full table number, as the header has only 8 bits.
        const RTA_TABLE: u16 = 15;
        let &[family, length, _, _, table, protocol, _, kind] = message.first_chunk()?;
        let is_v4 = i32::from(family) == libc::AF_INET;
        if (!is_v4 && i32::from(family) != libc::AF_INET6)
            || kind != libc::RTN_UNICAST
            || table == libc::RT_TABLE_LOCAL
            || number(message, 8)? & CLONED != 0
        {
            return None;
        }
        let rest = message.get(ROUTE..)?;
        let (mut table, mut address, mut source) = (u32::from(table), None, None);
        for (kind, value) in attributes(rest) {
            match kind {
                libc::RTA_DST => address = ip(value),
                libc::RTA_PREFSRC => source = ip(value),
                RTA_TABLE => table = number(value, 0)?,
                _ => {}
            }
        }
        let unspecified: IpAddr = if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let destination = IpNet::new(address.unwrap_or(unspecified), length).ok()?;
        Some(Self { destination, table, protocol, interfaces: next_hops(rest), source })
    }
}

/// Parses an address of four or sixteen bytes.
fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(4 + value.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn route(family: i32, length: u8, table: u8, kind: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![u8::try_from(family).unwrap(), length, 0, 0, table, 3, 0, kind, 0, 0, 0, 0];
        bytes.extend(attributes.concat());
        bytes
    }

    #[test]
    fn a_route_is_told_with_its_destination_table_and_interfaces() {
        let over = attribute(libc::RTA_OIF, &7u32.to_ne_bytes());
        let to = attribute(libc::RTA_DST, &[10, 1, 0, 2]);
        let told = |length, table, kind, attributes: &[Vec<u8>]| {
            KernelRoute::of(&route(libc::AF_INET, length, table, kind, attributes))
        };
        let destination = "10.1.0.2/32".parse().unwrap();
        let expected = KernelRoute { destination, table: 254, protocol: 3, interfaces: vec![7], source: None };
        assert_eq!(told(32, 254, libc::RTN_UNICAST, &[to.clone(), over.clone()]), Some(expected.clone()));
        let source = attribute(libc::RTA_PREFSRC, &[192, 0, 2, 1]);
        let with_source = KernelRoute { source: Some("192.0.2.1".parse().unwrap()), ..expected };
        assert_eq!(told(32, 254, libc::RTN_UNICAST, &[to.clone(), over.clone(), source]), Some(with_source));
        let large = attribute(15, &1000u32.to_ne_bytes());
        let default = told(0, 252, libc::RTN_UNICAST, &[large, over.clone()]).unwrap();
        assert_eq!((default.table, default.destination), (1000, "0.0.0.0/0".parse().unwrap()));
        for (table, kind) in [(255, libc::RTN_UNICAST), (254, libc::RTN_BLACKHOLE), (254, libc::RTN_LOCAL)] {
            assert_eq!(told(32, table, kind, &[to.clone(), over.clone()]), None, "{table} {kind}");
        }
        let v6 = route(libc::AF_INET6, 64, 254, libc::RTN_UNICAST, &[attribute(libc::RTA_DST, &[0xfd; 16]), over]);
        assert_eq!(KernelRoute::of(&v6).unwrap().destination.prefix_len(), 64);
    }

    #[test]
    fn this_machines_routes_can_be_read() {
        kernel_routes().unwrap();
    }
}
