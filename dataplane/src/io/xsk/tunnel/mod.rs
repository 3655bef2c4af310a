//! The tunnel to nodes that are not on the same link: one VXLAN device of the node's kernel, and the program that guards it.
//! Source: RFC 7348, `include/uapi/linux/if_link.h`, `net/core/lwtunnel.c`.
//!
//! ```text
//!   kernel: 10.244.2.0/24 encap ip dst NODE-2 dev bh-vxlan ---> header added ---> NODE-2's link
//!   kernel: forwards, or delivers to the node <--- guard <--- header removed <--- UDP 4789
//!                                                   `- drops what its sender may not send
//! ```
//!
//! The route of a destination names the tunnel's other end, so the device has no forwarding table, learns nothing, and floods nothing. It
//! does not resolve neighbours either: packets carry the sender's MAC address, and the guard marks them as the receiver's.
//!
//! A device for each remote node was rejected: a thousand interfaces. So was a device with a forwarding table: it needs an entry for each
//! node and family beside the routes.
//!
//! **Invariant.** A packet leaves the device only if its outer source is a known node and its inner source belongs to that node. Without the
//! guard, the kernel drops packets of other vswitches, as their MAC address is another host's.

mod device;
mod guard;
mod rules;

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use ipnet::IpNet;

use super::error::XskError;
use super::netlink_write::{set_mtu, set_up};
use guard::Guard;
pub use guard::TunnelDrops;
use rules::Rule;

/// A node at the other end of the tunnel, with the addresses that its packets may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelPeer {
    /// The outer source addresses of its packets.
    pub addresses: Vec<IpAddr>,
    /// The inner source addresses of its packets: its pods' networks and its own addresses.
    pub sources: Vec<IpNet>,
}

/// The tunnel's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelConfig {
    /// The name of its interface.
    pub name: String,
    /// The name of the interface over which the kernel receives packets from pods.
    pub pods: String,
    /// The UDP port at which all nodes receive.
    pub port: u16,
    /// The VXLAN network identifier, 24 bits. Packets with another one are dropped.
    pub vni: u32,
}

/// The tunnel's device with its guard. Both stay when this is dropped and when the process ends; [`remove_tunnel`] removes them.
#[derive(Debug)]
pub struct Tunnel {
    config: TunnelConfig,
    interface: u32,
    guard: Guard,
}

impl Tunnel {
    /// Takes over or creates the device in the calling thread's network namespace, guards it and sets it up. `mtu` is in bytes, without the
    /// outer headers. `leads` tells whether any packets take the tunnel: without, packets only come out of it, and the vswitch needs no routing rules. A
    /// previous process's guard stays in force until the new one with these peers replaces it.
    ///
    /// # Errors
    /// If another interface has the name, or the kernel refuses, for example because it has no VXLAN.
    pub fn ensure(config: &TunnelConfig, mtu: u32, peers: &[TunnelPeer], leads: bool) -> Result<Self, XskError> {
        let (name, failed) = (&*config.name, config.failed());
        let interface = device::ensure(name, config.port, mtu)?;
        let mut guard = Guard::load(config.vni).map_err(|source| failed("load the tunnel's guard", source))?;
        guard.allow(peers).map_err(|source| failed("tell the tunnel's guard the other nodes", source))?;
        guard.attach(interface).map_err(|source| XskError::at_tc(name, source))?;
        set_up(interface).map_err(|source| failed("set the tunnel up", source))?;
        config.set_rules(leads)?;
        Ok(Self { config: config.clone(), interface, guard })
    }

    /// Returns the device's index.
    pub const fn interface(&self) -> u32 {
        self.interface
    }

    /// Whether the device exists.
    pub fn is_there(&self) -> bool {
        device::index(&self.config.name).is_ok_and(|index| index == Some(self.interface))
    }

    /// Replaces the MTU, in bytes, and the nodes from which packets are accepted. Attaches the guard, sets the device up and adds the routing
    /// rules again, in case another program has undone that. `leads` is as for [`ensure`](Self::ensure).
    ///
    /// # Errors
    /// If there are more nodes than the guard can hold, or the kernel refuses. Packets of some of these nodes are then dropped.
    pub fn update(&mut self, mtu: u32, peers: &[TunnelPeer], leads: bool) -> Result<(), XskError> {
        let failed = self.config.failed();
        set_mtu(self.interface, mtu).map_err(|source| failed("set the tunnel's MTU", source))?;
        self.guard.allow(peers).map_err(|source| failed("tell the tunnel's guard the other nodes", source))?;
        self.guard.attach(self.interface).map_err(|source| XskError::at_tc(&self.config.name, source))?;
        set_up(self.interface).map_err(|source| failed("set the tunnel up", source))?;
        self.config.set_rules(leads)
    }

    /// Returns the counter of packets that the guard drops.
    pub fn drops(&self) -> TunnelDrops {
        self.guard.drops()
    }
}

impl TunnelConfig {
    /// Returns the routing rules for packets from pods, and for the node's own packets that must take the tunnel: its probes.
    fn rules(&self) -> [Rule<'_>; 2] {
        let tunneled = Rule { interface: &self.pods, leaves: false, table: TUNNEL_TABLE };
        [tunneled, Rule { interface: &self.name, leaves: true, ..tunneled }]
    }

    /// Adds the routing rules that are missing, or removes all. A node without any rule spares the kernel a look-up for each received packet, so there
    /// are none before packets take the tunnel.
    fn set_rules(&self, leads: bool) -> Result<(), XskError> {
        let set = if leads { self.rules().into_iter().try_for_each(rules::add) } else { rules::remove_all() };
        set.map_err(|source| self.failed()("set the tunnel's routing rules", source))
    }

    /// Returns a constructor of errors that name the interface.
    fn failed(&self) -> impl Fn(&'static str, io::Error) -> XskError + use<'_> {
        |operation, source| XskError::system(&self.name, operation, source)
    }
}

/// The routing table with the tunnel's routes to other nodes' own addresses. Only packets from pods look into it, and the node's own packets
/// that must take the tunnel's interface. Other packets of the node, and the outer packets themselves, take the link.
pub const TUNNEL_TABLE: u32 = 98;

/// Removes the device of this name with its routes and guard, and all routing rules of the vswitch. Returns whether the device existed.
///
/// # Errors
/// If another kind of interface has the name, or the kernel refuses.
pub fn remove_tunnel(name: &str) -> Result<bool, XskError> {
    rules::remove_all().map_err(|source| XskError::system(name, "remove the tunnel's routing rules", source))?;
    device::remove(name)
}

/// Returns the pairs of outer source and inner prefix that packets of these nodes may have.
fn pairs(peers: &[TunnelPeer]) -> BTreeSet<(IpAddr, IpNet)> {
    let mut pairs = BTreeSet::new();
    for TunnelPeer { addresses, sources } in peers {
        for &address in addresses {
            pairs.extend(sources.iter().map(|source| (address, source.trunc())));
        }
    }
    pairs
}
