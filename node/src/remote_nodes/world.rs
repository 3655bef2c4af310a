//! The ways to the world for packets that the vswitch translates, from the kernel's routes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bulkhead_dataplane::io::{KernelRoute, MAIN_TABLE, NodeHop, OwnRoute, Reach, TcDatapath, reach, reach_from};
use bulkhead_dataplane::{Services, SourcePorts};
use ipnet::IpNet;

use crate::host_port::Destinations;
use crate::own_addresses;
use crate::preflight::forwarding::WORLD;

/// Returns the source addresses and the source ports of masqueraded packets. `None` if no packets are masqueraded.
pub(super) fn masquerading(own: &Destinations) -> Option<(Vec<IpAddr>, SourcePorts)> {
    own.masquerade.as_ref().map(|one| (one.sources().to_vec(), one.ports().clone()))
}

/// Tells the kernel's programs the addresses of the node to which the world answers, and the source ports of masqueraded packets, if there are any.
pub(super) fn take_answers(tc: &TcDatapath, own: &Destinations) {
    match masquerading(own) {
        Some((sources, ports)) => tc.take_answers(&sources, Some(&ports)),
        None => tc.take_answers(&own.sources, None),
    }
}

/// Makes the kernel's programs take the packets to node ports, host ports, and load balancers' and external addresses. Returns a message if the kernel
/// refuses, else `None`.
pub(super) fn take_vips(tc: &TcDatapath, services: &Services) -> Option<String> {
    let taken = tc.take_vips(services.external_vips());
    taken.err().map(|error| format!("the kernel's programs cannot take packets to all node ports: {error}"))
}

/// Returns the ways to the world, and those of this node's own addresses ([`hops`], [`of_sources`]). Adds a message to `problems` if the node's
/// addresses cannot be read; their routing rules then have no effect.
pub(super) fn ways(
    routes: &[KernelRoute],
    host: u32,
    own: &Destinations,
    with_neighbours: impl Fn(u32) -> Option<u32> + Copy,
    problems: &mut Vec<String>,
) -> BTreeMap<IpNet, NodeHop> {
    let mut ways = hops(routes, host, with_neighbours);
    let unread = |error| problems.push(format!("cannot read the node's addresses and their routing rules: {error}"));
    let sources = of_sources(&own.pods, with_neighbours).map_err(unread).unwrap_or_default();
    let masqueraded = masquerading(own).map_or_else(|| own.sources.to_vec(), |(addresses, _)| addresses);
    follow_rules(&mut ways, &masqueraded, &sources);
    ways.extend(sources);
    ways
}

/// Returns the ways to all that the kernel's main table leads to over links, by network. `host` is the index of the host port's interface, whose
/// routes are the vswitch's own. `with_neighbours` returns the MTU in bytes of an interface with neighbors, else `None`: programs cannot send over
/// others, so that these networks, and those of routes that refuse packets, are the kernel's.
///
/// Of several routes to a network, the first one that the kernel uses counts. The kernel lists them by their metric.
fn hops(routes: &[KernelRoute], host: u32, with_neighbours: impl Fn(u32) -> Option<u32>) -> BTreeMap<IpNet, NodeHop> {
    let mut hops = BTreeMap::new();
    for route in routes.iter().filter(|route| route.table == MAIN_TABLE && OwnRoute::of(route).is_none()) {
        let is_of_a_link = matches!(route.destination, IpNet::V6(network) if network.addr().is_unicast_link_local());
        let is_dead = route.in_use.is_none() && !route.interfaces.is_empty();
        if is_of_a_link || is_dead || route.in_use == Some(host) {
            continue;
        }
        let interface = route.in_use.filter(|_| route.encapsulation.is_none());
        let over = |interface| {
            let mtu = with_neighbours(interface)?;
            Some(NodeHop::World { interface, masqueraded: interface, mtu })
        };
        let hop = interface.and_then(over);
        hops.entry(route.destination).or_insert(hop.unwrap_or(NodeHop::Kernel));
    }
    hops
}

/// Returns the links over which answers from this node's own addresses to the world leave, for the addresses that have a routing rule to another link
/// than the main table's. Addresses in `pods`, the node's own pod networks, have none. `with_neighbours` is as for [`hops`].
///
/// # Errors
/// If the kernel does not tell the addresses.
fn of_sources(
    pods: &[IpNet],
    with_neighbours: impl Fn(u32) -> Option<u32>,
) -> std::io::Result<BTreeMap<IpNet, NodeHop>> {
    let others =
        own_addresses::read()?.into_iter().filter(|address| !pods.iter().any(|network| network.contains(address)));
    let interface = |source: Option<IpAddr>, to| {
        let found = source.map_or_else(|| reach(to), |source| reach_from(source, to));
        match found {
            Ok(Reach::Link(interface) | Reach::Router(interface)) => Some(interface),
            Ok(Reach::Local | Reach::Nowhere) | Err(_) => None,
        }
    };
    Ok(links_of_sources(others, interface, with_neighbours))
}

/// Sets the links over which masqueraded packets leave for the world: those that `sources` has for their source addresses, `own`, of which the first one
/// of each family counts. Without a link there, the next hop's own one remains.
fn follow_rules(hops: &mut BTreeMap<IpNet, NodeHop>, own: &[IpAddr], sources: &BTreeMap<IpNet, NodeHop>) {
    for (to, hop) in hops {
        let source = own.iter().find(|source| source.is_ipv4() == to.addr().is_ipv4());
        let link = source.and_then(|&source| sources.get(&source.into()));
        if let (NodeHop::World { masqueraded, mtu, .. }, Some(NodeHop::Source { interface, mtu: least })) = (hop, link)
        {
            (*masqueraded, *mtu) = (*interface, *least.min(mtu));
        }
    }
}

/// As [`of_sources`], for these addresses. `interface` returns the index of the interface over which packets with this source leave to this address, or
/// `None` if no route leads there. If it gets no source, the kernel chooses one.
fn links_of_sources(
    addresses: impl Iterator<Item = IpAddr>,
    interface: impl Fn(Option<IpAddr>, IpAddr) -> Option<u32>,
    with_neighbours: impl Fn(u32) -> Option<u32>,
) -> BTreeMap<IpNet, NodeHop> {
    let usual = WORLD.map(|to| interface(None, to));
    let link = |address: IpAddr| {
        let family = usize::from(address.is_ipv6());
        let interface = interface(Some(address), WORLD[family]).filter(|&own| Some(own) != usual[family])?;
        Some((address.into(), NodeHop::Source { interface, mtu: with_neighbours(interface)? }))
    };
    addresses.filter_map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(destination: &str, interface: u32) -> KernelRoute {
        KernelRoute {
            destination: destination.parse().unwrap(),
            table: MAIN_TABLE,
            protocol: 3,
            interfaces: vec![interface],
            in_use: Some(interface),
            source: None,
            gateway: None,
            encapsulation: None,
        }
    }

    #[test]
    fn only_an_address_with_a_rule_to_another_link_has_its_own() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let addresses = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "2001:db8::2"].map(ip);
        let interface = |source: Option<IpAddr>, to: IpAddr| match source {
            Some(source) if source == addresses[1] => Some(3),
            // A point-to-point link.
            Some(source) if source == addresses[2] => Some(4),
            Some(source) if source == addresses[3] => None,
            Some(source) if source == addresses[4] => Some(5),
            _ => to.is_ipv4().then_some(2),
        };
        let links = links_of_sources(addresses.into_iter(), interface, |link| (link != 4).then_some(1500));
        let link = |address: IpAddr, interface| (address.into(), NodeHop::Source { interface, mtu: 1500 });
        assert_eq!(links, [link(addresses[1], 3), link(addresses[4], 5)].into());
    }

    #[test]
    fn masqueraded_packets_follow_the_rule_of_their_source() {
        let hop = |to: &str, hop| (to.parse::<IpNet>().unwrap(), hop);
        let world = |masqueraded, mtu| NodeHop::World { interface: 2, masqueraded, mtu };
        let mut hops =
            [hop("0.0.0.0/0", world(2, 1500)), hop("::/0", world(2, 1500)), hop("10.0.0.0/8", NodeHop::Kernel)].into();
        let source = hop("192.0.2.1/32", NodeHop::Source { interface: 3, mtu: 1400 });
        follow_rules(&mut hops, &["192.0.2.1", "2001:db8::1"].map(|own| own.parse().unwrap()), &[source].into());
        let expected =
            [hop("0.0.0.0/0", world(3, 1400)), hop("::/0", world(2, 1500)), hop("10.0.0.0/8", NodeHop::Kernel)];
        assert_eq!(hops, expected.into());
    }

    #[test]
    fn the_first_route_to_a_network_over_a_link_with_neighbours_is_the_way() {
        let other_table = KernelRoute { table: 100, ..route("10.9.0.0/16", 2) };
        let dead = KernelRoute { in_use: None, ..route("0.0.0.0/0", 6) };
        let routes = [
            dead,
            route("0.0.0.0/0", 2),
            route("0.0.0.0/0", 3),
            route("10.1.0.0/24", 7),
            route("10.2.0.0/24", 4),
            route("fe80::/64", 2),
            route("::/0", 3),
            other_table,
        ];
        // 7 is the host port, and 4 a point-to-point link.
        let hops = hops(&routes, 7, |interface| (interface != 4).then_some(1500 + interface));
        let world = |interface| NodeHop::World { interface, masqueraded: interface, mtu: 1500 + interface };
        let expected = [("0.0.0.0/0", world(2)), ("::/0", world(3)), ("10.2.0.0/24", NodeHop::Kernel)];
        assert_eq!(hops, expected.map(|(to, hop)| (to.parse().unwrap(), hop)).into());
    }
}
