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
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::error::XskError;
use super::kernel_routes::{KernelRoute, kernel_routes};
use super::link_status::{LinkStatus, links};
use super::netlink_write::{attribute, change, delete_link, make_veth, set_mtu, start};

/// `rtm_protocol` of the vswitch's routes. Unused in `include/uapi/linux/rtnetlink.h` and iproute2's `rt_protos`.
const PROTOCOL: u8 = 98;
/// `RT_TABLE_MAIN`.
const MAIN: u8 = 254;
/// The gateways of the routes, which are also the pods' default gateways.
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

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
        for end in [&near, &far] {
            if end.mtu != mtu {
                set_mtu(end.index, mtu).map_err(failed("set the MTU of the host port's interfaces"))?;
            }
            start(end.index).map_err(failed("set the host port's interfaces up"))?;
        }
        Ok(Self { second: far.index, name: second.to_owned() })
    }

    /// Replaces the vswitch's routes over the pair by these. Returns a message per failure, for the log.
    pub fn lead(&self, routes: impl IntoIterator<Item = HostRoute>) -> Vec<String> {
        let known = match self.routes() {
            Ok(known) => known,
            Err(error) => return vec![format!("cannot read the kernel's routes: {error}")],
        };
        let trunc = |route: HostRoute| HostRoute { destination: route.destination.trunc(), ..route };
        let wanted: BTreeSet<HostRoute> = routes.into_iter().map(trunc).collect();
        let mut failed = Vec::new();
        // Deletes first, as an old route with another source blocks its successor.
        for route in known.difference(&wanted) {
            if let Err(error) = self.change(libc::RTM_DELROUTE, 0, route) {
                failed.push(format!("cannot delete the route to {} over {}: {error}", route.destination, self.name));
            }
        }
        for route in wanted.difference(&known) {
            if let Err(error) = self.change(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_EXCL, route) {
                let why = match (error.raw_os_error(), route.source) {
                    (Some(libc::EEXIST), _) => "the kernel has another route to it; delete that route".to_owned(),
                    (Some(libc::EINVAL), Some(source)) => {
                        format!(
                            "the kernel refuses the source address {source}; it must be an address of the node ({error})"
                        )
                    }
                    _ => error.to_string(),
                };
                failed.push(format!("cannot add the route to {} over {}: {why}", route.destination, self.name));
            }
        }
        failed
    }

    /// Returns the routes over the pair that this process or a previous one added.
    ///
    /// # Errors
    /// If the netlink request fails.
    pub fn routes(&self) -> io::Result<BTreeSet<HostRoute>> {
        let is_ours = |route: &KernelRoute| route.protocol == PROTOCOL && route.interfaces == [self.second];
        let route = |route: KernelRoute| HostRoute { destination: route.destination, source: route.source };
        Ok(kernel_routes()?.into_iter().filter(is_ours).map(route).collect())
    }

    fn change(&self, kind: u16, flags: i32, of: &HostRoute) -> io::Result<()> {
        change(kind, flags, &route(of, self.second))
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

/// `struct rtmsg` with its attributes.
fn route(of: &HostRoute, interface: u32) -> Vec<u8> {
    /// `RTNH_F_ONLINK`: the gateway is on the link although no address covers it.
    const ONLINK: u32 = 4;
    let network = of.destination.trunc();
    let (family, gateway) = match network {
        IpNet::V4(_) => (libc::AF_INET, IpAddr::V4(GATEWAY_V4)),
        IpNet::V6(_) => (libc::AF_INET6, IpAddr::V6(GATEWAY_V6)),
    };
    let family = u8::try_from(family).expect("address families are small");
    // Family, lengths of destination and source, type of service, table, protocol, scope (everywhere), type.
    let mut body = vec![family, network.prefix_len(), 0, 0, MAIN, PROTOCOL, 0, libc::RTN_UNICAST];
    body.extend(ONLINK.to_ne_bytes());
    attribute(&mut body, libc::RTA_DST, &octets(network.network()));
    attribute(&mut body, libc::RTA_GATEWAY, &octets(gateway));
    attribute(&mut body, libc::RTA_OIF, &interface.to_ne_bytes());
    if let Some(source) = of.source {
        attribute(&mut body, libc::RTA_PREFSRC, &octets(source));
    }
    body
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::netlink::attributes;
    use super::*;

    #[test]
    fn a_route_is_written_with_its_gateway_and_interface() {
        let body = route(&HostRoute::to("10.1.2.3/24".parse().unwrap()), 7);
        assert_eq!(body[..8], [2, 24, 0, 0, 254, 98, 0, 1]);
        let written: Vec<_> = attributes(&body[12..]).collect();
        let interface = 7u32.to_ne_bytes();
        assert_eq!(written, [(1, &[10, 1, 2, 0][..]), (5, &[169, 254, 1, 1]), (4, &interface)]);
        let source = Some("fd00:1::1".parse().unwrap());
        let body = route(&HostRoute { source, ..HostRoute::to("fd00::/64".parse().unwrap()) }, 7);
        assert_eq!((body[0], body[1]), (10, 64));
        let last = attributes(&body[12..]).last().unwrap();
        assert_eq!(last, (7, &[0xfd, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1][..]));
    }
}
