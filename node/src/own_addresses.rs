//! The addresses of the node's own interfaces: traffic between them and the node's pods is always allowed.
//!
//! The state names the node's addresses by its Node object, but not all that the node listens on: node-local DNS has 169.254.20.10 on an
//! interface of its own, a bridge the gateway of its network. So the kernel is asked, and tells of changes.
//!
//! What the node merely forwards for others is not its own: addresses that kube-proxy puts on an interface to take in packets for
//! Services, which go on to pods. If they counted, egress policy would not hold for them.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use bulkhead_dataplane::io::{self as kernel, AddressWatch};
use crossbeam_channel::{Receiver, never};

use super::log;

/// Interfaces that have the addresses of Services: of kube-proxy in mode ipvs, and of kube-router.
const OF_SERVICES: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];

/// The addresses now, in this thread's network namespace.
///
/// # Errors
/// When the kernel does not answer.
pub(super) fn read() -> io::Result<BTreeSet<IpAddr>> {
    // In this order: of an interface that comes in between there are no addresses yet.
    let all = kernel::addresses()?;
    let links = kernel::links()?;
    let is_of_services = |index: u32| {
        let link = links.iter().find(|link| link.index == index);
        // One that is gone already has no addresses either.
        link.is_none_or(|link| link.names.iter().any(|name| OF_SERVICES.contains(&name.as_str())))
    };
    let own = all.into_iter().filter(|found| !is_of_services(found.interface)).map(|found| found.address);
    Ok(own.filter(|&address| is_reachable(address)).collect())
}

/// Whether packets from pods can be for the address. Loopback addresses are in every pod its own, and IPv6 has link-local ones on
/// each link that no router passes on. (Those of IPv4 are routed to the node where somebody uses them, as node-local DNS does.)
fn is_reachable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_unspecified(),
        IpAddr::V6(address) => !address.is_loopback() && !address.is_unspecified() && !address.is_unicast_link_local(),
    }
}

/// Starts to listen, in this thread's network namespace. Never ready when the kernel tells nothing; then the addresses are those of
/// the last change of the state.
pub(super) fn changes() -> Receiver<()> {
    let (tell, told) = crossbeam_channel::bounded(1);
    let follow = move |watch: AddressWatch| {
        while watch.wait().is_ok() {
            // One that waits to be taken says the same.
            if let Err(crossbeam_channel::TrySendError::Disconnected(())) = tell.try_send(()) {
                return;
            }
        }
    };
    let started = AddressWatch::new()
        .and_then(|watch| std::thread::Builder::new().name("addresses".into()).spawn(move || follow(watch)));
    match started {
        Ok(_) => told,
        Err(error) => {
            log::warn(&format!("the kernel does not report changes of the node's addresses: {error}"));
            never()
        }
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
