//! The ways to the world for packets that the vswitch translates, from the kernel's routes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bulkhead_dataplane::io::{KernelRoute, MAIN_TABLE, NodeHop, OwnRoute, TcDatapath};
use bulkhead_dataplane::{Services, SourcePorts};
use ipnet::IpNet;

use crate::host_port::Destinations;

/// Returns the sources and the source ports of masqueraded packets. `None` if no packets are masqueraded.
pub(super) fn told(own: &Destinations) -> Option<(Vec<IpAddr>, SourcePorts)> {
    own.masquerade.as_ref().map(|one| (one.sources().to_vec(), one.ports().clone()))
}

/// Makes the kernel's programs take the answers to masqueraded packets, if there are any, and tells them the node's addresses.
pub(super) fn take_answers(tc: &TcDatapath, own: &Destinations) {
    match told(own) {
        Some((sources, ports)) => tc.take_answers(&sources, Some(&ports)),
        None => tc.take_answers(&own.sources, None),
    }
}

/// Makes the kernel's programs take the packets to node ports, host ports, and load balancers' and external addresses. Returns a message if the kernel
/// refuses.
pub(super) fn take_vips(tc: &TcDatapath, services: &Services) -> Option<String> {
    let taken = tc.take_vips(services.external_vips());
    taken.err().map(|error| format!("the kernel's programs cannot take packets to all node ports: {error}"))
}

/// Returns the ways to all that the kernel's main table leads to over links, by network. `host` is the index of the host port's interface, whose
/// routes are the vswitch's own. `with_neighbours` returns the MTU in bytes of an interface with neighbors, else `None`: programs cannot send over
/// others, so that these networks, and those of routes that refuse packets, are the kernel's.
///
/// Of several routes to a network, the first one counts. The kernel lists them by their metric.
pub(super) fn hops(
    routes: &[KernelRoute],
    host: u32,
    with_neighbours: impl Fn(u32) -> Option<u32>,
) -> BTreeMap<IpNet, NodeHop> {
    let mut hops = BTreeMap::new();
    for route in routes.iter().filter(|route| route.table == MAIN_TABLE && OwnRoute::of(route).is_none()) {
        let is_of_a_link = matches!(route.destination, IpNet::V6(network) if network.addr().is_unicast_link_local());
        if is_of_a_link || route.interfaces.first() == Some(&host) {
            continue;
        }
        let interface = route.interfaces.first().copied().filter(|_| route.encapsulation.is_none());
        let hop = interface.and_then(|interface| Some(NodeHop::World { interface, mtu: with_neighbours(interface)? }));
        hops.entry(route.destination).or_insert(hop.unwrap_or(NodeHop::Kernel));
    }
    hops
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
            source: None,
            gateway: None,
            encapsulation: None,
        }
    }

    #[test]
    fn the_first_route_to_a_network_over_a_link_with_neighbours_is_the_way() {
        let other_table = KernelRoute { table: 100, ..route("10.9.0.0/16", 2) };
        let routes = [
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
        let world = |interface| NodeHop::World { interface, mtu: 1500 + interface };
        let expected = [("0.0.0.0/0", world(2)), ("::/0", world(3)), ("10.2.0.0/24", NodeHop::Kernel)];
        assert_eq!(hops, expected.map(|(to, hop)| (to.parse().unwrap(), hop)).into());
    }
}
