//! Reads the addresses of the node's own interfaces. Traffic between them and the node's pods is always allowed.
//!
//! The Node object does not have all addresses on which the node listens: node-local DNS has 169.254.20.10 on a separate interface, and a
//! bridge has the gateway of its network. Hence the kernel is the source.
//!
//! Addresses of Services, which kube-proxy adds to an interface, are left out: the node forwards their packets to pods, and egress policy
//! must apply to them.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use bulkhead_dataplane::io as kernel;

/// Interfaces with addresses of Services: of kube-proxy in mode ipvs, and of kube-router.
const OF_SERVICES: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];

/// Reads the addresses in this thread's network namespace.
///
/// # Errors
/// If the kernel does not answer.
pub(super) fn read() -> io::Result<BTreeSet<IpAddr>> {
    // In this order: an interface that is added in between has no addresses in `all`.
    let all = kernel::addresses()?;
    let links = kernel::links()?;
    let is_of_services = |index: u32| {
        let link = links.iter().find(|link| link.index == index);
        // An interface that was removed meanwhile has no addresses either.
        link.is_none_or(|link| link.names.iter().any(|name| OF_SERVICES.contains(&name.as_str())))
    };
    let own = all.into_iter().filter(|found| !is_of_services(found.interface)).map(|found| found.address);
    Ok(own.filter(|&address| is_reachable(address)).collect())
}

/// Reads the addresses in this thread's network namespace that other hosts cannot reach, because each interface with the address is set down.
///
/// # Errors
/// If the kernel does not answer.
pub(super) fn read_down() -> io::Result<BTreeSet<IpAddr>> {
    let all = kernel::addresses()?;
    let up: BTreeSet<u32> = kernel::links()?.iter().filter(|link| link.up).map(|link| link.index).collect();
    let addresses = |is_up: bool| -> BTreeSet<IpAddr> {
        all.iter().filter(|found| up.contains(&found.interface) == is_up).map(|found| found.address).collect()
    };
    Ok(&addresses(false) - &addresses(true))
}

/// Whether packets from pods can reach the address. Loopback addresses are local to each pod. IPv6 link-local addresses are not routed;
/// those of IPv4 are, for node-local DNS.
fn is_reachable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_unspecified(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unspecified() && !address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_link_local_addresses_are_no_ways_to_the_node_but_those_of_ipv4_are() {
        for (address, expected) in [
            ("127.0.0.1", false),
            ("::1", false),
            ("fe80::1", false),
            ("0.0.0.0", false),
            ("169.254.20.10", true),
            ("192.0.2.1", true),
            ("fd00::1", true),
        ] {
            assert_eq!(is_reachable(address.parse().unwrap()), expected, "{address}");
        }
        assert!(read().unwrap().into_iter().all(is_reachable));
    }
}
