//! The container's end of the veth: addresses, routes and the gateway's neighbour entries.
//!
//! ```text
//!   eth0   10.1.0.7/32, fd00::7/128
//!          169.254.1.1 scope link; default via 169.254.1.1;  default via fe80::1
//!          169.254.1.1, fe80::1 lladdr <node's end> PERMANENT
//! ```
//!
//! A pod shares its link with the vswitch alone, so its addresses are /32 and /128, and the gateway is its only next hop. The two gateway
//! addresses are link-local and the same for all pods: they use up no pod address. The vswitch answers ARP and NDP for them, but the
//! neighbour entries are permanent. So no packet waits for resolution, such as the first one, whose request would be dropped while the port
//! is closed.

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

/// IPv4 gateway: the conventional address in routed pod networks.
const GATEWAY_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 1, 1));
/// IPv6 gateway: a link-local address.
const GATEWAY_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));

/// Returns the gateway of the address's family.
pub(super) const fn gateway(address: IpAddr) -> IpAddr {
    if address.is_ipv4() { GATEWAY_V4 } else { GATEWAY_V6 }
}

/// Returns the default route's destination in the address's family: `0.0.0.0/0` or `::/0`.
pub(super) fn everything(address: IpAddr) -> IpNet {
    let none: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    IpNet::new(none, 0).expect("a prefix of length 0 is valid")
}

/// Returns the first address of each family in the list, IPv4 first.
pub(super) fn families(addresses: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let first = |of: fn(&IpAddr) -> bool| addresses.iter().copied().find(of);
    [first(IpAddr::is_ipv4), first(IpAddr::is_ipv6)].into_iter().flatten()
}

/// Configures the container's interface `name`. The calling thread must be in the container's namespace. `node` is the MAC address of the
/// veth's node end.
///
/// # Errors
/// [`Error`] with the step that the kernel refused.
pub(super) fn set_up(name: &str, addresses: &[IpAddr], node: Mac) -> Result<(), Error> {
    let refused = |what: String| move |error: io::Error| Error::kernel(format!("{name}: cannot {what}: {error}"));
    let mut kernel = Netlink::open().map_err(refused("open a netlink socket".into()))?;
    let link = kernel.link(name).map_err(refused("find the interface".into()))?;
    let index = link.ok_or_else(|| Error::kernel(format!("the container has no interface {name}")))?.index;
    if addresses.iter().any(IpAddr::is_ipv6) {
        // Some runtimes disable IPv6 on all interfaces of a new namespace.
        set(name, "disable_ipv6", "0").map_err(refused("enable IPv6".into()))?;
    }
    // Duplicate address detection is needless on a point-to-point link, and the vswitch sends no router advertisements.
    for (key, value) in [("accept_dad", "0"), ("accept_ra", "0")] {
        match set(name, key, value) {
            // The kernel has no IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => outcome.map_err(refused(format!("set {key}")))?,
        }
    }
    for &address in addresses {
        kernel.add_address(index, address).map_err(refused(format!("add the address {address}")))?;
    }
    kernel.set_up(index, true).map_err(refused("set the interface up".into()))?;
    for family in families(addresses) {
        let gateway = gateway(family);
        kernel.add_neighbour(index, gateway, node).map_err(refused(format!("add the neighbour {gateway}")))?;
        if gateway.is_ipv4() {
            // IPv6 resolves a link-local gateway without a route to it.
            let refused = refused(format!("add the route to {gateway}"));
            kernel.add_route(index, IpNet::from(gateway), None).map_err(refused)?;
        }
        let refused = refused(format!("add the default route via {gateway}"));
        kernel.add_route(index, everything(family), Some(gateway)).map_err(refused)?;
    }
    Ok(())
}

/// Waits until the interface `name` in the calling thread's namespace can send.
///
/// The peer is already up, but the kernel propagates the carrier in deferred work, and drops what the pod sends before that. Newer kernels
/// do the work when the interface is queried.
///
/// # Errors
/// [`Error`] after two seconds, or if the kernel does not answer.
pub(super) fn wait_until_running(name: &str) -> Result<(), Error> {
    /// Time limit. The deferred work takes microseconds; on a node that changes many interfaces, about ten milliseconds.
    const PATIENCE: Duration = Duration::from_secs(2);
    const INTERVAL: Duration = Duration::from_micros(200);
    let refused = |error: io::Error| Error::kernel(format!("cannot read the state of {name}: {error}"));
    let mut kernel = Netlink::open().map_err(refused)?;
    let start = Instant::now();
    while !kernel.link(name).map_err(refused)?.is_some_and(|link| link.is_running) {
        if start.elapsed() > PATIENCE {
            return Err(Error::kernel(format!(
                "{name} has no carrier although its port is open; run the command again"
            )));
        }
        std::thread::sleep(INTERVAL);
    }
    Ok(())
}

/// Writes an IPv6 sysctl of an interface in the calling thread's namespace.
pub(super) fn set(interface: &str, key: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/{key}"), value)
}

/// Returns which addresses and routes of `ADD`'s result are missing in the calling thread's namespace, as text for an error.
///
/// # Errors
/// The kernel's error if it does not answer.
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
    /// Adds an address as /32 or /128, without duplicate address detection.
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

    /// Adds a route through an interface: via `gateway`, or on-link if that is `None`.
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

    /// Returns destination and gateway of each route through an interface. Omits on-link routes.
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
