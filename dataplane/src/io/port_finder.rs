//! Finds the ingress port of a captured packet.
//!
//! The first match decides:
//!
//! 1. The capturing interface has a port's name.
//! 2. The source MAC address belongs to a pod. MAC precedes IP, so that spoofed IP addresses are detected.
//! 3. The source IP address belongs to a pod or the node.
//! 4. The uplink.
//!
//! Without interface names and configured MAC addresses, the result is a guess, and "not spoofed" means little. The finder then learns a
//! MAC for the pod whose IP address it first appears with, in a packet whose hop limit looks unrouted; a sender can forge both. A learned
//! MAC that appears with a second pod's IP address belongs to a router or bridge, or a packet is forged. The finder then ignores the MAC.

use std::collections::HashMap;
use std::net::IpAddr;

use ahash::RandomState;

use super::{CapturedPacket, Direction};
use crate::packet::{self, Sender};
use crate::{PortId, PortKind, Snapshot};

/// Maximum learned MAC addresses. A node has a few hundred pods; a crafted capture may contain more.
const MAX_LEARNED: usize = 65_536;

/// Finds ingress ports and learns pods' MAC addresses.
#[derive(Debug)]
pub struct PortFinder {
    names: HashMap<Box<str>, PortId, RandomState>,
    /// Ports by configured MAC address. `None` if two pods have the same one.
    configured: HashMap<[u8; 6], Option<PortId>, RandomState>,
    /// Ports by MAC address learned from unrouted packets; the MAC's first IP address counts. `None` if the MAC belongs to no pod or
    /// appeared with two pods' addresses.
    learned: HashMap<[u8; 6], Option<PortId>, RandomState>,
}

impl PortFinder {
    /// Creates a finder for the snapshot's ports.
    pub fn new(snapshot: &Snapshot) -> Self {
        let names = snapshot.ids().zip(snapshot.ports()).map(|(id, port)| ((*port.name).into(), id)).collect();
        let mut finder = Self { names, configured: HashMap::default(), learned: HashMap::default() };
        for (id, port) in snapshot.ids().zip(snapshot.ports()) {
            if let Some(mac) = port.mac.filter(|_| port.kind == PortKind::Pod) {
                finder.configured.entry(mac).and_modify(|known| *known = None).or_insert(Some(id));
            }
        }
        finder
    }

    /// Returns the packet's ingress port. `None` if nothing matches and the snapshot has no uplink.
    pub fn find(&mut self, snapshot: &Snapshot, packet: &CapturedPacket<'_>) -> Option<PortId> {
        // An outbound packet did not enter through the capturing interface.
        let came_in = packet.direction != Some(Direction::Outbound);
        let named = packet.interface.filter(|_| came_in).and_then(|name| self.names.get(&**name));
        if let Some(&port) = named {
            return Some(port);
        }
        let sender = packet::sender(packet.link, packet.data, packet.original_len);
        let owner = sender.address.and_then(|address| snapshot.owner(address));
        let by_mac = sender.mac.and_then(|mac| match self.configured.get(&mac) {
            Some(&configured) => configured,
            None => self.learn(snapshot, mac, &sender, owner),
        });
        by_mac.or(owner).or_else(|| snapshot.uplink())
    }

    /// Learns the pod of a MAC address if the packet is unrouted. Returns the MAC's pod, or `None` if unknown.
    fn learn(&mut self, snapshot: &Snapshot, mac: [u8; 6], sender: &Sender, owner: Option<PortId>) -> Option<PortId> {
        let known = self.learned.get(&mac).copied();
        let tells_whose = sender.is_unrouted && sender.address.is_some_and(|address| !is_no_address(address));
        if !tells_whose {
            return known.flatten();
        }
        let pod = owner.filter(|id| snapshot.port(*id).is_some_and(|port| port.kind == PortKind::Pod));
        let whose = match known {
            Some(known) if pod.is_some_and(|pod| known.is_some_and(|known| known != pod)) => None,
            Some(known) => return known,
            None if self.learned.len() >= MAX_LEARNED => return None,
            // The IP address belongs to no pod, so the MAC is recorded as no pod's.
            None => pod.filter(|id| snapshot.ports()[id.index()].mac.is_none()),
        };
        self.learned.insert(mac, whose);
        whose
    }
}

/// Whether the source address identifies no pod: unspecified (DHCP, duplicate address detection) or link-local.
fn is_no_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_unspecified(),
        IpAddr::V6(a) => a.is_unspecified() || a.is_unicast_link_local(),
    }
}
