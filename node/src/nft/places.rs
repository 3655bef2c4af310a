//! Finds each pod's interface: from the configuration, otherwise from the node's route to the pod's address.
//!
//! Network plugins that route (ptp, Calico, cloud plugins, Bulkhead's) add a host route over the pod's veth. Plugins that bridge do not,
//! and routed packets do not pass their pods' interfaces. Such pods are closed, and the log names them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bulkhead_control::object::PodName;

use crate::config::PortEntry;

/// A route with a gateway: the address is on another node. Source: Linux, `RTF_GATEWAY`.
const GATEWAY: u32 = 0x2;
/// A route to an address of the node itself. Source: Linux, `RTF_LOCAL`.
const LOCAL: u32 = 0x8000_0000;
/// A route that drops packets. Source: Linux, `RTF_REJECT`.
const REJECT: u32 = 0x200;

/// The interface of each route to a single address, by that address.
pub(super) type HostRoutes = BTreeMap<IpAddr, Arc<str>>;

/// Reads the node's routes to single addresses in this thread's network namespace. Without IPv6, returns IPv4 routes only.
///
/// # Errors
/// If a file in `/proc` cannot be read.
pub(super) fn host_routes() -> io::Result<HostRoutes> {
    let v4 = fs::read_to_string("/proc/thread-self/net/route")?;
    let v6 = match fs::read_to_string("/proc/thread-self/net/ipv6_route") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    Ok(v4.lines().skip(1).filter_map(v4_route).chain(v6.lines().filter_map(v6_route)).collect())
}

/// Parses `Iface Destination Gateway Flags RefCnt Use Metric Mask ..`. Addresses are hexadecimal in the machine's byte order.
fn v4_route(line: &str) -> Option<(IpAddr, Arc<str>)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok();
    let is_host = number(7)? == u32::MAX && number(3)? & (GATEWAY | REJECT) == 0;
    is_host.then_some((Ipv4Addr::from(number(1)?.to_ne_bytes()).into(), Arc::from(words[0])))
}

/// Parses `destination length source length gateway metric references use flags interface`.
fn v6_route(line: &str) -> Option<(IpAddr, Arc<str>)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let flags = u32::from_str_radix(words.get(8)?, 16).ok()?;
    let is_host = *words.get(1)? == "80" && flags & (GATEWAY | LOCAL | REJECT) == 0;
    let address = u128::from_str_radix(words.first()?, 16).ok()?;
    is_host.then_some((Ipv6Addr::from(address).into(), Arc::from(*words.get(9)?)))
}

/// Returns the known interfaces with their pods; `None` for interfaces of other ports. `pods` are the node's pods with their addresses.
pub(super) fn places<'a>(
    ports: &[PortEntry],
    routes: &HostRoutes,
    pods: impl Iterator<Item = (&'a PodName, &'a [IpAddr])>,
) -> BTreeMap<Arc<str>, Option<PodName>> {
    let mut places: BTreeMap<Arc<str>, Option<PodName>> =
        ports.iter().map(|port| (Arc::clone(&port.interface), port.pod.clone())).collect();
    let placed: BTreeSet<PodName> = places.values().flatten().cloned().collect();
    // An interface with two pods belongs to neither: the sender of a packet would be unknown.
    let mut found: BTreeMap<Arc<str>, BTreeSet<PodName>> = BTreeMap::new();
    for (pod, addresses) in pods.filter(|(pod, _)| !placed.contains(*pod)) {
        for interface in addresses.iter().filter_map(|address| routes.get(address)) {
            found.entry(Arc::clone(interface)).or_default().insert(pod.clone());
        }
    }
    for (interface, pods) in found {
        let mut pods = pods.into_iter();
        if let (Some(pod), None) = (pods.next(), pods.next()) {
            places.entry(interface).or_insert(Some(pod));
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_to_one_address_on_the_link_is_a_place_and_no_other_is() {
        let v4 = "eth0\t00000000\t010012AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                  cali1\t0501F40A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n\
                  eth0\t0502F40A\t010012AC\t0007\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n\
                  br0\t0003F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let found: Vec<_> = v4.lines().filter_map(v4_route).collect();
        assert_eq!(found, [("10.244.1.5".parse().unwrap(), Arc::from("cali1"))]);
        let v6 = "fd000244000100000000000000000005 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00000001 cali1\n\
                  fd000244000100000000000000000001 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000001 00000000 80200001 eth0\n\
                  fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0\n";
        let found: Vec<_> = v6.lines().filter_map(v6_route).collect();
        assert_eq!(found, [("fd00:244:1::5".parse().unwrap(), Arc::from("cali1"))]);
        assert_eq!(v4_route("nonsense"), None);
        assert_eq!(v6_route(""), None);
    }

    #[test]
    fn what_the_configuration_says_comes_first_and_an_interface_of_two_pods_is_nobodys() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| PodName::new("x", name));
        let routes: HostRoutes = [("10.0.0.1", "v1"), ("10.0.0.2", "v2"), ("10.0.0.3", "v2"), ("10.0.0.9", "v9")]
            .map(|(a, interface)| (address(a), Arc::from(interface)))
            .into();
        let pods = [(&a, [address("10.0.0.1")]), (&b, [address("10.0.0.2")]), (&c, [address("10.0.0.3")])];
        let places = |pods: &[(&PodName, [IpAddr; 1])]| {
            places(&[], &routes, pods.iter().map(|(pod, addresses)| (*pod, &addresses[..])))
        };
        assert_eq!(places(&pods), [(Arc::from("v1"), Some(a.clone()))].into());
        let two = [(Arc::from("v1"), Some(a.clone())), (Arc::from("v2"), Some(b.clone()))];
        assert_eq!(places(&pods[..2]), two.into());
    }
}
