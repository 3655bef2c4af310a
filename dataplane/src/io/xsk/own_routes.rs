//! The vswitch's own routes in the node's kernel, marked by their protocol number. Other routes are never changed.
//! Source: `include/uapi/linux/{rtnetlink,lwtunnel}.h`.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::kernel_routes::{
    ENCAP_V4, ENCAP_V6, Encapsulation, KernelRoute, RTA_ENCAP, RTA_ENCAP_TYPE, RTA_TABLE, TUNNEL_ID, TUNNEL_LOCAL,
    TUNNEL_REMOTE, kernel_routes,
};
use super::netlink::{family, octets};
use super::netlink_write::{attribute, change};

/// `rtm_protocol` of the vswitch's routes and rules. Unused in `include/uapi/linux/rtnetlink.h` and iproute2's `rt_protos`.
pub(super) const PROTOCOL: u8 = 98;
/// `RT_TABLE_MAIN`: the number of the routing table that `ip route` shows by default.
pub const MAIN_TABLE: u32 = 254;
/// Gateways that no host has, for routes over an interface whose other end takes every packet. Pods have them as default gateways.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Returns [`GATEWAY_V4`] or [`GATEWAY_V6`], by the destination's family.
pub(super) const fn placeholder(destination: &IpNet) -> IpAddr {
    match destination {
        IpNet::V4(_) => IpAddr::V4(GATEWAY_V4),
        IpNet::V6(_) => IpAddr::V6(GATEWAY_V6),
    }
}

/// A route that the vswitch adds to a routing table of the node's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnRoute {
    /// The destination prefix, without host bits.
    pub destination: IpNet,
    /// The routing table's number.
    pub table: u32,
    /// The next hop.
    pub hop: Hop,
}

/// The next hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hop {
    /// The router's address. The kernel takes it to be on the interface's link.
    pub gateway: IpAddr,
    /// The index of the interface over which the kernel sends.
    pub interface: u32,
    /// The source address of the node's own packets on this route. `None` if the kernel chooses it.
    pub source: Option<IpAddr>,
    /// The tunnel header that the kernel adds to packets. `None` if it adds none.
    pub encapsulation: Option<Encapsulation>,
}

/// An addition or removal of a route that the kernel has refused.
#[derive(Debug)]
pub struct RouteRefused {
    /// The route that the vswitch tried to add or to remove.
    pub route: OwnRoute,
    /// Whether the vswitch tried to add it.
    pub is_new: bool,
    /// The kernel's error. `AlreadyExists` if another program has a route to the destination.
    pub source: io::Error,
}

/// Returns the routes that this process or a previous one added, in the calling thread's network namespace.
///
/// # Errors
/// If the netlink request fails.
pub fn own_routes() -> io::Result<BTreeSet<OwnRoute>> {
    Ok(kernel_routes()?.iter().filter_map(OwnRoute::of).collect())
}

/// Changes the kernel's routes from `known` to `wanted`: removes routes to destinations that `wanted` does not have, and adds the missing ones.
/// If both have a route to a destination, the kernel replaces it in one step, so that no packet takes another way meanwhile. Each of the two
/// has at most one route to a destination of a table. Returns the changes that the kernel has refused; the others are made.
pub fn replace_routes(known: &BTreeSet<OwnRoute>, wanted: &BTreeSet<OwnRoute>) -> Vec<RouteRefused> {
    let key = |route: &OwnRoute| (route.destination, route.table);
    let [were, are] = [known, wanted].map(|routes| routes.iter().map(key).collect::<BTreeSet<_>>());
    let mut refused = Vec::new();
    let mut change = |kind, flags, route: &OwnRoute| {
        if let Err(source) = change(kind, flags, &route.message()) {
            refused.push(RouteRefused { route: *route, is_new: kind == libc::RTM_NEWROUTE, source });
        }
    };
    for route in known.difference(wanted).filter(|route| !are.contains(&key(route))) {
        change(libc::RTM_DELROUTE, 0, route);
    }
    for route in wanted.difference(known) {
        let flags = if were.contains(&key(route)) { libc::NLM_F_REPLACE } else { libc::NLM_F_EXCL };
        change(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | flags, route);
    }
    refused
}

impl OwnRoute {
    /// Creates a route of the main table over a router.
    pub const fn via(destination: IpNet, gateway: IpAddr, interface: u32, source: Option<IpAddr>) -> Self {
        let hop = Hop { gateway, interface, source, encapsulation: None };
        Self { destination, table: MAIN_TABLE, hop }
    }

    /// Creates a route through a tunnel's interface, which takes every packet without resolving a neighbour.
    pub const fn through(
        destination: IpNet,
        table: u32,
        interface: u32,
        source: Option<IpAddr>,
        encapsulation: Encapsulation,
    ) -> Self {
        let (gateway, encapsulation) = (placeholder(&destination), Some(encapsulation));
        Self { destination, table, hop: Hop { gateway, interface, source, encapsulation } }
    }

    /// Converts a route of the kernel. `None` if another program has added it, or if it has several next hops or no router.
    pub fn of(route: &KernelRoute) -> Option<Self> {
        let &KernelRoute { destination, table, source, gateway, encapsulation, .. } = route;
        let (&[interface], Some(gateway)) = (&route.interfaces[..], gateway) else { return None };
        let hop = Hop { gateway, interface, source, encapsulation };
        (route.protocol == PROTOCOL).then_some(Self { destination, table, hop })
    }

    /// Builds the `struct rtmsg` that adds or removes the route, with its attributes.
    pub(super) fn message(&self) -> Vec<u8> {
        /// `RTNH_F_ONLINK`: the gateway is on the link although no address covers it.
        const ONLINK: u32 = 4;
        let destination = self.destination.trunc();
        // Larger numbers are only in the attribute.
        let table = u8::try_from(self.table).unwrap_or_default();
        let (hop, family) = (&self.hop, family(destination.addr()));
        // Family, lengths of destination and source, type of service, table, protocol, scope (everywhere), type.
        let mut body = vec![family, destination.prefix_len(), 0, 0, table, PROTOCOL, 0, libc::RTN_UNICAST];
        body.extend(ONLINK.to_ne_bytes());
        attribute(&mut body, libc::RTA_DST, &octets(destination.network()));
        attribute(&mut body, RTA_TABLE, &self.table.to_ne_bytes());
        attribute(&mut body, libc::RTA_GATEWAY, &octets(hop.gateway));
        attribute(&mut body, libc::RTA_OIF, &hop.interface.to_ne_bytes());
        if let Some(source) = hop.source {
            attribute(&mut body, libc::RTA_PREFSRC, &octets(source));
        }
        if let Some(encapsulation) = &hop.encapsulation {
            let kind = if encapsulation.remote.is_ipv4() { ENCAP_V4 } else { ENCAP_V6 };
            attribute(&mut body, RTA_ENCAP_TYPE, &kind.to_ne_bytes());
            attribute(&mut body, RTA_ENCAP, &encapsulation.attributes());
        }
        body
    }
}

impl Encapsulation {
    /// Builds the attributes within `RTA_ENCAP`.
    fn attributes(&self) -> Vec<u8> {
        /// `LWTUNNEL_IP_FLAGS`, and `TUNNEL_CSUM` in network order: with a checksum in the outer UDP header, the receiver merges packets.
        const FLAGS: u16 = 6;
        const CHECKSUM: [u8; 2] = [0, 1];
        let mut body = Vec::new();
        attribute(&mut body, TUNNEL_ID, &u64::from(self.vni).to_be_bytes());
        attribute(&mut body, TUNNEL_REMOTE, &octets(self.remote));
        if let Some(local) = self.local {
            attribute(&mut body, TUNNEL_LOCAL, &octets(local));
        }
        attribute(&mut body, FLAGS, &CHECKSUM);
        body
    }
}

#[cfg(test)]
mod tests {
    use super::super::netlink::attributes;
    use super::*;

    fn route(destination: &str, source: Option<IpAddr>) -> OwnRoute {
        let destination: IpNet = destination.parse().unwrap();
        OwnRoute::via(destination, placeholder(&destination), 7, source)
    }

    #[test]
    fn a_route_is_written_with_its_gateway_and_interface() {
        let body = route("10.1.2.3/24", None).message();
        assert_eq!(body[..8], [2, 24, 0, 0, 254, 98, 0, 1]);
        let written: Vec<_> = attributes(&body[12..]).collect();
        let (interface, table) = (7u32.to_ne_bytes(), 254u32.to_ne_bytes());
        assert_eq!(written, [(1, &[10, 1, 2, 0][..]), (15, &table), (5, &[169, 254, 1, 1]), (4, &interface)]);
        let body = route("fd00::/64", Some("fd00:1::1".parse().unwrap())).message();
        assert_eq!((body[0], body[1]), (10, 64));
        let last = attributes(&body[12..]).last().unwrap();
        assert_eq!(last, (7, &[0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1][..]));
    }

    #[test]
    fn a_route_is_written_as_the_kernel_lists_it() {
        let check = |route: OwnRoute| {
            let listed = KernelRoute::of(&route.message()).unwrap();
            assert_eq!(OwnRoute::of(&listed), Some(route));
            assert_eq!(OwnRoute::of(&KernelRoute { protocol: 4, ..listed }), None, "another program's route");
        };
        check(route("10.1.2.0/24", None));
        for (destination, remote) in
            [("10.1.2.0/24", "192.0.2.2"), ("fd00::/64", "2001:db8::2"), ("fd00::/64", "192.0.2.2")]
        {
            let remote = remote.parse().unwrap();
            for local in [None, Some(remote)] {
                let encapsulation = Encapsulation { local, remote, vni: 0x00ab_cdef };
                check(OwnRoute::through(destination.parse().unwrap(), 1000, 7, None, encapsulation));
            }
        }
    }
}
