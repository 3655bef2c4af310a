//! The container's end: its addresses, its routes, and the gateway's neighbour entry.
//!
//! ```text
//!   eth0   10.1.0.7/32, fd00::7/128
//!          169.254.1.1 scope link; default via 169.254.1.1;  default via fe80::1
//!          169.254.1.1, fe80::1 lladdr <node's end> PERMANENT
//! ```
//!
//! A pod shares its link with the vswitch alone, so its addresses have no network around them and everything is reached by the gateway.
//! Its two addresses are link-local and the same for every pod: none of the node's network is spent on them, and nobody needs to know
//! them. The vswitch answers for them, but the entries are permanent: nobody has to ask, so nothing waits for an answer, such as the first
//! packet of a pod whose question was dropped because the port was not open yet.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::error::Error;
use super::link::Link;
use super::mac::Mac;
use super::netlink::Netlink;

/// The gateway of IPv4: the address that routed pod networks have by convention.
const GATEWAY_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1));
/// The gateway of IPv6.
const GATEWAY_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));

/// The gateway of a family, given by any of its addresses.
pub(super) const fn gateway(address: IpAddr) -> IpAddr {
    if address.is_ipv4() { GATEWAY_V4 } else { GATEWAY_V6 }
}

/// Everything, of a family that is given by any of its addresses.
pub(super) fn everything(address: IpAddr) -> IpNet {
    let none: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    IpNet::new(none, 0).expect("no prefix is shorter")
}

/// One address of each family that there is.
pub(super) fn families(addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let first = |of: fn(&IpAddr) -> bool| addresses.iter().copied().find(of);
    [first(IpAddr::is_ipv4), first(IpAddr::is_ipv6)].into_iter().flatten()
}

/// Sets up the interface `name` of the calling thread's namespace, the container's. `node` is the MAC address of the veth's other end.
///
/// # Errors
/// What the kernel refuses.
pub(super) fn set_up(name: &str, addresses: &[IpAddr], node: Mac) -> Result<(), Error> {
    let refused = |what: String| move |error: io::Error| Error::kernel(format!("{name}: {what}: {error}"));
    let mut kernel = Netlink::open().map_err(refused("open a netlink socket".into()))?;
    let link = kernel.link(name).map_err(refused("find it".into()))?;
    let index = link.ok_or_else(|| Error::kernel(format!("{name}: it is not in the container")))?.index;
    if addresses.iter().any(IpAddr::is_ipv6) {
        // Some runtimes turn IPv6 off for all interfaces of a new namespace.
        set(name, "disable_ipv6", "0").map_err(refused("turn IPv6 on".into()))?;
    }
    // The link-local address is nobody else's either, and the vswitch is the only router.
    for (key, value) in [("accept_dad", "0"), ("accept_ra", "0")] {
        match set(name, key, value) {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => outcome.map_err(refused(format!("set {key}")))?,
        }
    }
    for &address in addresses {
        kernel.add_address(index, address).map_err(refused(format!("add the address {address}")))?;
    }
    kernel.set_up(index, true).map_err(refused("set it up".into()))?;
    for family in families(addresses) {
        let gateway = gateway(family);
        kernel.add_neighbour(index, gateway, node).map_err(refused(format!("add the neighbour {gateway}")))?;
        if gateway.is_ipv4() {
            // IPv6 finds link-local gateways on the link without that.
            let refused = refused(format!("add the route to {gateway}"));
            kernel.add_route(index, IpNet::from(gateway), None).map_err(refused)?;
        }
        let refused = refused(format!("add the default route via {gateway}"));
        kernel.add_route(index, everything(family), Some(gateway)).map_err(refused)?;
    }
    Ok(())
}

/// Waits until the interface `name` of the calling thread's namespace sends what it is given.
///
/// The other end is up by now, but of that the kernel takes notice by a work of its own: until then it drops what the pod sends. Newer kernels
/// do that work when they are asked about the interface.
///
/// # Errors
/// When it does not, or the kernel does not answer.
pub(super) fn wait_until_running(name: &str) -> Result<(), Error> {
    /// The work takes microseconds, and on a node that is busy with interfaces some ten milliseconds.
    const PATIENCE: Duration = Duration::from_secs(2);
    const INTERVAL: Duration = Duration::from_micros(200);
    let refused = |error: io::Error| Error::kernel(format!("{name}: look at it: {error}"));
    let mut kernel = Netlink::open().map_err(refused)?;
    let start = Instant::now();
    while !kernel.link(name).map_err(refused)?.is_some_and(|link| link.is_running) {
        if start.elapsed() > PATIENCE {
            return Err(Error::kernel(format!("{name}: it sends nothing although its port is open")));
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

/// Writes a setting of IPv6 of an interface of the calling thread's namespace.
pub(super) fn set(interface: &str, key: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/{key}"), value)
}

/// What of `ADD`'s result is not there any more: addresses of the interface and routes of the calling thread's namespace.
///
/// # Errors
/// When the kernel does not answer.
pub(super) fn missing(link: &Link, addresses: &[IpNet], routes: &[(IpNet, IpAddr)]) -> io::Result<Vec<String>> {
    let mut kernel = Netlink::open()?;
    let has = kernel.addresses(link.index)?;
    let gone = addresses.iter().filter(|net| !has.contains(&net.addr()));
    let mut missing: Vec<String> = gone.map(|net| format!("the address {}", net.addr())).collect();
    let has = kernel.routes(link.index)?;
    let gone = routes.iter().filter(|route| !has.contains(route));
    missing.extend(gone.map(|(to, gateway)| format!("the route to {to} via {gateway}")));
    Ok(missing)
}

const fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

impl Netlink {
    /// Adds an address that has no network around it and of which nobody is asked whether it is free.
    fn add_address(&mut self, index: u32, address: IpAddr) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = IpNet::from(address).prefix_len();
        message.header.scope = AddressScope::Universe;
        message.header.index = index;
        message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        if address.is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    fn add_neighbour(&mut self, index: u32, address: IpAddr, mac: Mac) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        message.attributes =
            vec![NeighbourAttribute::Destination(address.into()), NeighbourAttribute::LinkLayerAddress(mac.0.to_vec())];
        self.change(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Adds a route over an interface, by a gateway or to what is on the link.
    fn add_route(&mut self, index: u32, to: IpNet, gateway: Option<IpAddr>) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(to.addr());
        message.header.destination_prefix_length = to.prefix_len();
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = if gateway.is_some() { RouteScope::Universe } else { RouteScope::Link };
        message.header.kind = RouteType::Unicast;
        message.attributes.push(RouteAttribute::Oif(index));
        if to.prefix_len() > 0 {
            message.attributes.push(RouteAttribute::Destination(to.addr().into()));
        }
        message.attributes.extend(gateway.map(|gateway| RouteAttribute::Gateway(gateway.into())));
        self.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    fn addresses(&mut self, index: u32) -> io::Result<Vec<IpAddr>> {
        let answers = self.list(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        let mut found = Vec::new();
        for answer in answers {
            let RouteNetlinkMessage::NewAddress(message) = answer else { continue };
            if message.header.index == index {
                found.extend(message.attributes.into_iter().filter_map(|attribute| match attribute {
                    AddressAttribute::Address(address) | AddressAttribute::Local(address) => Some(address),
                    _ => None,
                }));
            }
        }
        Ok(found)
    }

    /// Destinations and gateways of the routes over an interface.
    fn routes(&mut self, index: u32) -> io::Result<Vec<(IpNet, IpAddr)>> {
        let answers = self.list(RouteNetlinkMessage::GetRoute(RouteMessage::default()))?;
        Ok(answers.into_iter().filter_map(|answer| via(answer, index)).collect())
    }
}

fn via(answer: RouteNetlinkMessage, index: u32) -> Option<(IpNet, IpAddr)> {
    let RouteNetlinkMessage::NewRoute(message) = answer else { return None };
    if !message.attributes.contains(&RouteAttribute::Oif(index)) {
        return None;
    }
    let address = |address: &RouteAddress| match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    };
    let (mut to, mut gateway) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(found) => to = address(found),
            RouteAttribute::Gateway(found) => gateway = address(found),
            _ => {}
        }
    }
    let (gateway, length) = (gateway?, message.header.destination_prefix_length);
    let to = to.unwrap_or(everything(gateway).addr());
    Some((IpNet::new(to, length).ok()?, gateway))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_a_gateway_and_a_default_route_of_its_own() {
        let [v4, v6]: [IpAddr; 2] = ["10.1.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
        assert_eq!((gateway(v4).to_string(), gateway(v6).to_string()), ("169.254.1.1".into(), "fe80::1".into()));
        assert_eq!((everything(v4).to_string(), everything(v6).to_string()), ("0.0.0.0/0".into(), "::/0".into()));
        assert_eq!(families(&[v6, v4, v6]).collect::<Vec<_>>(), [v4, v6]);
        assert_eq!(families(&[v6]).collect::<Vec<_>>(), [v6]);
    }
}
