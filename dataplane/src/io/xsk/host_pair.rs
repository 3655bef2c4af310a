//! The veth pair between the vswitch and its node's kernel, if the vswitch creates it. One end is a port of the vswitch; the kernel
//! routes to pods over the other.
//!
//! ```text
//!   vswitch --[ first ~~ veth ~~ second ]-- the node's kernel: NETWORK via 169.254.1.1 dev second onlink
//!                                                              NETWORK via fe80::1    dev second
//! ```
//!
//! The second end has no address, so the kernel sends to pods from one of the node's other addresses, which policy knows as the node's.
//! A route may select the address. The gateway address belongs to no host; the vswitch answers ARP and neighbour discovery for it, as
//! it does for pods.
//!
//! The pair outlives the process, so that sessions between the node and its pods continue. The vswitch marks its routes with a protocol
//! number and leaves other routes alone.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;

use super::error::XskError;
use super::link_status::{LinkStatus, links};
use super::netlink_write::{delete_link, make_veth, set_mtu, start};
use super::own_routes::{OwnRoute, RouteRefused, own_routes, placeholder, replace_routes};

/// A route of the node's kernel to pods, over the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostRoute {
    /// The destination prefix; host bits are ignored.
    pub destination: IpNet,
    /// The node's source address for this destination. `None` if the kernel chooses it.
    pub source: Option<IpAddr>,
}

impl HostRoute {
    /// Creates a route without a source address.
    pub const fn to(destination: IpNet) -> Self {
        Self { destination, source: None }
    }
}

/// The veth pair between the vswitch and the node's kernel.
#[derive(Debug)]
pub struct HostPair {
    /// The interface index of the kernel's end.
    second: u32,
    name: String,
}

impl HostPair {
    /// Takes over or creates the pair in the calling thread's network namespace. The first name is the vswitch's end.
    ///
    /// # Errors
    /// If another interface has one of the names, or the kernel refuses.
    pub fn ensure(names: [&str; 2], mtu: u32) -> Result<Self, XskError> {
        let [first, second] = names;
        let failed = |operation| move |source| XskError::system(second, operation, source);
        if find(names)?.is_none() {
            make_veth(names, 0, 1, mtu).map_err(failed("make the host port's interfaces"))?;
            // Fails without IPv6, and in a container, where the file is read-only; the vswitch then drops the kernel's IPv6 packets
            // of this end.
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{first}/disable_ipv6"), "1");
        }
        let Some([near, far]) = find(names)? else {
            return Err(XskError::NoInterface { interface: second.to_owned() });
        };
        give_mtu([&near, &far], mtu, second)?;
        for end in [&near, &far] {
            start(end.index).map_err(failed("set the host port's interfaces up"))?;
        }
        Ok(Self { second: far.index, name: second.to_owned() })
    }

    /// Sets the MTU of both ends, in bytes.
    ///
    /// # Errors
    /// If the pair no longer exists, or the kernel refuses.
    pub fn resize(names: [&str; 2], mtu: u32) -> Result<(), XskError> {
        let found = find(names)?.ok_or_else(|| XskError::NoInterface { interface: names[1].to_owned() })?;
        give_mtu(found.each_ref(), mtu, names[1])
    }

    /// Replaces the vswitch's routes over the pair by these. Returns a message per failure, for the log.
    pub fn lead(&self, routes: impl IntoIterator<Item = HostRoute>) -> Vec<String> {
        let known = match self.own_routes() {
            Ok(known) => known,
            Err(error) => return vec![format!("cannot read the kernel's routes: {error}")],
        };
        let wanted = routes.into_iter().map(|route| self.route(route)).collect();
        replace_routes(&known, &wanted).iter().map(|refused| self.explain(refused)).collect()
    }

    /// Returns a message about a refused change, for the log.
    fn explain(&self, RouteRefused { route, is_new, source }: &RouteRefused) -> String {
        let (destination, name) = (route.destination, &self.name);
        if !is_new {
            return format!("cannot delete the route to {destination} over {name}: {source}");
        }
        let why = match (source.raw_os_error(), route.hop.source) {
            (Some(libc::EEXIST), _) => "the kernel has another route to it; delete that route".to_owned(),
            (Some(libc::EINVAL), Some(address)) => {
                format!("the kernel refuses the source address {address}; it must be an address of the node ({source})")
            }
            _ => source.to_string(),
        };
        format!("cannot add the route to {destination} over {name}: {why}")
    }

    /// Returns the routes over the pair that this process or a previous one added.
    ///
    /// # Errors
    /// If the netlink request fails.
    pub fn routes(&self) -> io::Result<BTreeSet<HostRoute>> {
        let host_route = |route: OwnRoute| HostRoute { destination: route.destination, source: route.hop.source };
        Ok(self.own_routes()?.into_iter().map(host_route).collect())
    }

    /// Returns the vswitch's routes whose gateway is the placeholder of this pair. Those to other nodes have the nodes' addresses.
    fn own_routes(&self) -> io::Result<BTreeSet<OwnRoute>> {
        let is_over_pair = |route: &OwnRoute| {
            let gateway = placeholder(&route.destination);
            route.hop.interface == self.second && route.hop.gateway == gateway
        };
        Ok(own_routes()?.into_iter().filter(is_over_pair).collect())
    }

    fn route(&self, HostRoute { destination, source }: HostRoute) -> OwnRoute {
        let destination = destination.trunc();
        OwnRoute::via(destination, placeholder(&destination), self.second, source)
    }

    /// Removes the pair with its routes. Returns whether it existed.
    ///
    /// # Errors
    /// If another interface has one of the names, or the kernel refuses.
    pub fn remove(names: [&str; 2]) -> Result<bool, XskError> {
        let Some([near, _]) = find(names)? else { return Ok(false) };
        let removed = delete_link(near.index);
        removed.map(|()| true).map_err(|source| XskError::system(names[0], "remove the host port's interfaces", source))
    }
}

/// Sets the MTU of those ends that have another one. `name` is that of the pair in errors.
fn give_mtu(ends: [&LinkStatus; 2], mtu: u32, name: &str) -> Result<(), XskError> {
    for end in ends.into_iter().filter(|end| end.mtu != mtu) {
        let set = set_mtu(end.index, mtu);
        set.map_err(|source| XskError::system(name, "set the MTU of the host port's interfaces", source))?;
    }
    Ok(())
}

/// Finds the pair. `None` if no interface has one of the names.
fn find(names: [&str; 2]) -> Result<Option<[LinkStatus; 2]>, XskError> {
    let all = links().map_err(|source| XskError::system(names[0], "list the interfaces", source))?;
    let named = |name: &str| all.iter().find(|link| link.names.iter().any(|known| known == name)).cloned();
    match names.map(named) {
        [None, None] => Ok(None),
        [Some(first), Some(second)] if first.related == Some(second.index) => Ok(Some([first, second])),
        [first, _] => {
            let name = if first.is_some() { names[0] } else { names[1] };
            let other = io::Error::other("another interface has this name; rename or delete it");
            Err(XskError::system(name, "use it for the host port", other))
        }
    }
}
