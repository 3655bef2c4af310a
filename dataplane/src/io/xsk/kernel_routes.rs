//! Lists the kernel's routes, and asks how the kernel reaches an address. Source: `include/uapi/linux/{rtnetlink,lwtunnel}.h`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::netlink::{ask, attributes, family, multipath, next_hops, number, octets, short};
use super::netlink_write::attribute;

/// Bytes of `struct rtmsg`.
const ROUTE: usize = 12;
/// `RTA_TABLE`: the full table number, as the header has only 8 bits.
pub(super) const RTA_TABLE: u16 = 15;
/// `RTA_ENCAP_TYPE` and `RTA_ENCAP`: the kind of a route's tunnel, and its header.
pub(super) const RTA_ENCAP_TYPE: u16 = 21;
pub(super) const RTA_ENCAP: u16 = 22;
/// `LWTUNNEL_ENCAP_IP` and `LWTUNNEL_ENCAP_IP6`: a tunnel whose outer header is IPv4 or IPv6.
pub(super) const ENCAP_V4: u16 = 2;
pub(super) const ENCAP_V6: u16 = 4;
/// `LWTUNNEL_IP_ID`, `LWTUNNEL_IP_DST` and `LWTUNNEL_IP_SRC`, which IPv6 shares.
pub(super) const TUNNEL_ID: u16 = 1;
pub(super) const TUNNEL_REMOTE: u16 = 2;
pub(super) const TUNNEL_LOCAL: u16 = 3;

/// The tunnel header that the kernel adds to packets of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Encapsulation {
    /// The outer header's source. `None` if the kernel chooses it.
    pub local: Option<IpAddr>,
    /// The outer header's destination: the tunnel's other end.
    pub remote: IpAddr,
    /// VXLAN network identifier, 24 bits.
    pub vni: u32,
}

/// A route of any routing table except `local`: unicast, or one that refuses packets (`prohibit`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// The destination prefix.
    pub destination: IpNet,
    /// The routing table's number.
    pub table: u32,
    /// `rtm_protocol`: the number of the program that added the route.
    pub protocol: u8,
    /// Interface indexes of the route's next hops. Empty if the route refuses packets.
    pub interfaces: Vec<u32>,
    /// The interface index of the first next hop that the kernel uses. `None` if the route refuses packets, and if the kernel uses none of its next
    /// hops because their links are down.
    pub in_use: Option<u32>,
    /// The source address of the node's own packets on this route. `None` if the kernel chooses it.
    pub source: Option<IpAddr>,
    /// The next router. `None` if the destination is on the interface's link, and for a route with several next hops.
    pub gateway: Option<IpAddr>,
    /// The tunnel header that the kernel adds to packets. `None` if the route adds none, or one of another kind than IP.
    pub encapsulation: Option<Encapsulation>,
}

/// How the node's kernel reaches an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The address is the node's own.
    Local,
    /// The address is on the link of the interface with this index.
    Link(u32),
    /// A router leads to the address. It is on the link of the interface with this index.
    Router(u32),
    /// No route leads to the address, or one that refuses its packets.
    Nowhere,
}

/// Asks the kernel for its route to an address, in the calling thread's network namespace.
///
/// # Errors
/// If the netlink request fails.
pub fn reach(address: IpAddr) -> io::Result<Reach> {
    route_to(address, None)
}

/// Asks the kernel for its route to an address for packets from `source`, an address of the calling thread's network namespace and of the same
/// family. Unlike [`reach`], follows the routing rules of this source.
///
/// # Errors
/// If the netlink request fails.
pub fn reach_from(source: IpAddr, address: IpAddr) -> io::Result<Reach> {
    route_to(address, Some(source))
}

fn route_to(address: IpAddr, source: Option<IpAddr>) -> io::Result<Reach> {
    /// The kernel's errors for unreachable, prohibit, blackhole and throw routes, and for no route.
    const UNREACHED: [i32; 5] = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL, libc::EAGAIN];
    let mut body = vec![0; ROUTE];
    (body[0], body[1]) = (family(address), IpNet::from(address).prefix_len());
    attribute(&mut body, libc::RTA_DST, &octets(address));
    if let Some(source) = source {
        body[2] = IpNet::from(source).prefix_len();
        attribute(&mut body, libc::RTA_SRC, &octets(source));
    }
    let mut found = Reach::Nowhere;
    match ask(libc::RTM_GETROUTE, false, &body, |message| found = Reach::of(message)) {
        Err(error) if error.raw_os_error().is_some_and(|code| UNREACHED.contains(&code)) => Ok(Reach::Nowhere),
        asked => asked.map(|()| found),
    }
}

impl Reach {
    /// Parses the kernel's answer to a request for a route. [`Nowhere`](Self::Nowhere) if the answer is truncated.
    fn of(message: &[u8]) -> Self {
        /// `RTA_VIA`: a router of another address family.
        const VIA: u16 = 18;
        let (Some(&kind), Some(rest)) = (message.get(7), message.get(ROUTE..)) else { return Self::Nowhere };
        let (mut interface, mut is_routed) = (None, false);
        for (kind, value) in attributes(rest) {
            match kind {
                libc::RTA_OIF => interface = number(value, 0),
                libc::RTA_GATEWAY | VIA => is_routed = true,
                _ => {}
            }
        }
        match (kind, interface) {
            (libc::RTN_LOCAL, _) => Self::Local,
            (libc::RTN_UNICAST, Some(interface)) if is_routed => Self::Router(interface),
            (libc::RTN_UNICAST, Some(interface)) => Self::Link(interface),
            _ => Self::Nowhere,
        }
    }
}

/// Returns the routes of the calling thread's network namespace.
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
    pub(super) fn of(message: &[u8]) -> Option<Self> {
        /// `RTM_F_CLONED`: a cached lookup result, not a configured route.
        const CLONED: u32 = 0x200;
        let &[family, length, _, _, table, protocol, _, kind] = message.first_chunk()?;
        let is_v4 = i32::from(family) == libc::AF_INET;
        if (!is_v4 && i32::from(family) != libc::AF_INET6)
            || ![libc::RTN_UNICAST, libc::RTN_PROHIBIT].contains(&kind)
            || table == libc::RT_TABLE_LOCAL
            || number(message, 8)? & CLONED != 0
        {
            return None;
        }
        let rest = message.get(ROUTE..)?;
        let (mut table, mut address, mut source) = (u32::from(table), None, None);
        let (mut gateway, mut encap_type, mut encap) = (None, 0, None);
        for (kind, value) in attributes(rest) {
            match kind {
                libc::RTA_DST => address = ip(value),
                libc::RTA_PREFSRC => source = ip(value),
                libc::RTA_GATEWAY => gateway = ip(value),
                RTA_TABLE => table = number(value, 0)?,
                RTA_ENCAP_TYPE => encap_type = short(value, 0)?,
                RTA_ENCAP => encap = Some(value),
                _ => {}
            }
        }
        let unspecified: IpAddr = if is_v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let destination = IpNet::new(address.unwrap_or(unspecified), length).ok()?;
        let encapsulation = encap.filter(|_| [ENCAP_V4, ENCAP_V6].contains(&encap_type)).and_then(Encapsulation::of);
        let interfaces = if kind == libc::RTN_UNICAST { next_hops(rest) } else { Vec::new() };
        let in_use = if interfaces.is_empty() { None } else { next_hop_in_use(number(message, 8)?, rest) };
        Some(Self { destination, table, protocol, interfaces, in_use, source, gateway, encapsulation })
    }
}

impl Encapsulation {
    /// Parses the attributes within `RTA_ENCAP`. `None` if they name no destination.
    fn of(attribute: &[u8]) -> Option<Self> {
        let (mut local, mut remote, mut vni) = (None, None, 0);
        for (kind, value) in attributes(attribute) {
            match kind {
                // All zeros if the kernel chooses.
                TUNNEL_LOCAL => local = ip(value).filter(|address| !address.is_unspecified()),
                TUNNEL_REMOTE => remote = ip(value),
                // 64 bits in network order.
                TUNNEL_ID => vni = u32::from_be_bytes(*value.get(4..)?.first_chunk()?),
                _ => {}
            }
        }
        Some(Self { local, remote: remote?, vni })
    }
}

/// Returns the interface index of the first next hop that is not dead. `flags` are those of a route with one next hop.
fn next_hop_in_use(flags: u32, attributes_of_route: &[u8]) -> Option<u32> {
    /// `RTNH_F_DEAD`, of `rtm_flags` and `rtnh_flags`.
    const DEAD: u32 = 1;
    let mut in_use = None;
    for (kind, value) in attributes(attributes_of_route) {
        match kind {
            libc::RTA_OIF if flags & DEAD == 0 => in_use = in_use.or(number(value, 0)),
            libc::RTA_MULTIPATH => {
                let mut live = multipath(value).filter(|&(flags, _)| u32::from(flags) & DEAD == 0);
                in_use = in_use.or(live.next().map(|(_, interface)| interface));
            }
            _ => {}
        }
    }
    in_use
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
        let expected = KernelRoute {
            destination,
            table: 254,
            protocol: 3,
            interfaces: vec![7],
            in_use: Some(7),
            source: None,
            gateway: None,
            encapsulation: None,
        };
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
    fn a_next_hop_whose_link_is_down_is_not_in_use() {
        let over = attribute(libc::RTA_OIF, &7u32.to_ne_bytes());
        let mut message = route(libc::AF_INET, 0, 254, libc::RTN_UNICAST, &[over]);
        assert_eq!(KernelRoute::of(&message).unwrap().in_use, Some(7));
        // `RTNH_F_DEAD`, `RTNH_F_LINKDOWN`.
        message[8] = 1 | 16;
        let dead = KernelRoute::of(&message).unwrap();
        assert_eq!((dead.in_use, dead.interfaces), (None, vec![7]));
        let hop = |flags: u8, interface: u32| [&[8, 0, flags, 0][..], &interface.to_ne_bytes()].concat();
        let hops = attribute(libc::RTA_MULTIPATH, &[hop(1, 7), hop(0, 8), hop(0, 9)].concat());
        let both = KernelRoute::of(&route(libc::AF_INET, 0, 254, libc::RTN_UNICAST, &[hops])).unwrap();
        assert_eq!((both.in_use, both.interfaces), (Some(8), vec![7, 8, 9]));
    }

    #[test]
    fn a_route_is_told_with_its_router_and_tunnel() {
        let id = attribute(TUNNEL_ID, &[0, 0, 0, 0, 0, 0, 1, 2]);
        let encap = attribute(RTA_ENCAP, &[id, attribute(TUNNEL_REMOTE, &[192, 0, 2, 2])].concat());
        let told = |kind: u16| {
            let via = attribute(libc::RTA_GATEWAY, &[169, 254, 1, 1]);
            let parts = [via, attribute(RTA_ENCAP_TYPE, &kind.to_ne_bytes()), encap.clone()];
            KernelRoute::of(&route(libc::AF_INET, 24, 254, libc::RTN_UNICAST, &parts)).unwrap()
        };
        let expected = Encapsulation { local: None, remote: "192.0.2.2".parse().unwrap(), vni: 258 };
        let gateway = Some("169.254.1.1".parse().unwrap());
        assert_eq!((told(ENCAP_V4).gateway, told(ENCAP_V4).encapsulation), (gateway, Some(expected)));
        assert_eq!(told(1).encapsulation, None, "MPLS");
    }

    #[test]
    fn the_kernels_answer_tells_neighbours_from_what_is_behind_a_router() {
        let over = attribute(libc::RTA_OIF, &7u32.to_ne_bytes());
        let told = |kind, parts: &[Vec<u8>]| Reach::of(&route(libc::AF_INET, 32, 254, kind, parts));
        assert_eq!(told(libc::RTN_UNICAST, std::slice::from_ref(&over)), Reach::Link(7));
        let router = attribute(libc::RTA_GATEWAY, &[192, 0, 2, 254]);
        assert_eq!(told(libc::RTN_UNICAST, &[over.clone(), router]), Reach::Router(7));
        let other_family = attribute(18, &[10, 0, 1]);
        assert_eq!(told(libc::RTN_UNICAST, &[over.clone(), other_family]), Reach::Router(7));
        assert_eq!(told(libc::RTN_LOCAL, &[over]), Reach::Local);
        assert_eq!((told(libc::RTN_BLACKHOLE, &[]), Reach::of(&[])), (Reach::Nowhere, Reach::Nowhere));
    }

    #[test]
    fn this_machines_routes_can_be_read() {
        kernel_routes().unwrap();
        assert_eq!(reach("127.0.0.1".parse().unwrap()).unwrap(), Reach::Local);
    }
}
