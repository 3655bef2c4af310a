//! Which port did a captured packet come in on?
//!
//! A capture knows interfaces at best, and often not even those. In this order: an interface that has a port's name;
//! a source MAC address that is a pod's; a source address that is a pod's or the node's; else the uplink. MAC comes
//! before the address, so that a pod that sends with a stranger's address is found out and not believed.
//!
//! Without interface names and without configured MAC addresses the answer is a guess. A MAC is then tied to the pod
//! whose address it is first seen with, in a packet whose hop limit looks untouched; a sender can set both. So "not
//! spoofed" means little in such a capture. A learned MAC that is seen with a second pod's address belongs to a
//! router or a bridge, or one of the two packets is forged: it tells nothing any more, and addresses count.

use std::collections::HashMap;
use std::net::IpAddr;

use ahash::RandomState;

use super::{CapturedPacket, Direction};
use crate::packet::{self, Sender};
use crate::{PortId, PortKind, Snapshot};

/// The most MAC addresses that are learned: a node has a few hundred pods, and a capture may be made to hold more.
const MAX_LEARNED: usize = 65_536;

/// Finds ports, and learns which MAC addresses are pods'.
#[derive(Debug)]
pub struct PortFinder {
    names: HashMap<Box<str>, PortId, RandomState>,
    /// None: two pods are configured with it.
    configured: HashMap<[u8; 6], Option<PortId>, RandomState>,
    /// From packets that no router has touched: the first address that a MAC is seen with counts. None: it is no pod's,
    /// or it was seen with the addresses of two.
    learned: HashMap<[u8; 6], Option<PortId>, RandomState>,
}

impl PortFinder {
    /// A finder for the ports of this snapshot.
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

    /// The port that the packet came in on; none when nothing tells and the snapshot has no uplink.
    pub fn find(&mut self, snapshot: &Snapshot, packet: &CapturedPacket<'_>) -> Option<PortId> {
        // What an interface sent out did not come in through it.
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

    /// Ties a MAC address to the pod whose address a packet has, if the packet comes straight from there. Returns the
    /// pod that the MAC stands for.
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
            // Somebody else's address: the MAC is not a pod's, and stays so.
            None => pod.filter(|id| snapshot.ports()[id.index()].mac.is_none()),
        };
        self.learned.insert(mac, whose);
        whose
    }
}

/// Unspecified (a DHCP client, a probe) and link-local sources do not tell whose a MAC is.
fn is_no_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_unspecified(),
        IpAddr::V6(a) => a.is_unspecified() || a.is_unicast_link_local(),
    }
}
