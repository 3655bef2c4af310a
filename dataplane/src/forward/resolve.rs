//! Resolves a next hop to its MAC address, and holds packets meanwhile.

use std::net::IpAddr;
use std::sync::Arc;

use super::neighbour_table::{REACHABLE, RETRANSMIT, Requested, TRIES};
use super::pending::Queue;
use super::side::Side;
use super::{Forwarder, NeighbourId, Released, fields, is_hop};
use crate::flow::Translation;
use crate::{DropReason, PortId, PortKind, Snapshot};

/// The parameters for sending packets to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// The first 12 bytes of frames to the host: destination and source MAC address.
    pub(crate) addresses: [u8; 12],
    /// Maximum frame length of the link, in bytes.
    pub(crate) longest: usize,
    /// Whether the TTL of packets to the host is decremented.
    pub(crate) is_hop: bool,
    /// How long the parameters stay valid, in nanoseconds.
    pub(crate) good_for: u64,
}

/// How long a packet is held: as long as its neighbour is requested.
const HOLD: u64 = RETRANSMIT * TRIES as u64;
/// Interval of the checks of requests and held packets: a tenth of their waiting time.
const TICK: u64 = RETRANSMIT / 10;
/// Minimum time between two probes of stale neighbours by a worker, so that only one in a thousand packets takes the lock.
pub(super) const PROBE: u64 = 1_000_000;

impl<T> Forwarder<T> {
    /// Returns the MAC addresses of a frame to the destination, or the neighbour to be resolved first.
    pub(super) fn find(
        &mut self,
        snapshot: &Snapshot,
        to: &Side,
        out: PortId,
        destination: IpAddr,
    ) -> Result<[u8; 12], NeighbourId> {
        if to.is_known {
            return Ok(*to.addresses());
        }
        let neighbour = NeighbourId { port: out, address: next_hop(snapshot, to.kind, out, destination) };
        let resolved = self.view.load().get(&neighbour).ok_or(neighbour)?;
        let addresses = to.addresses_to(resolved.mac);
        if self.now >= resolved.confirmed.saturating_add(REACHABLE) && self.now >= self.next_probe {
            self.next_probe = self.now + PROBE;
            if let Some(request) = self.neighbours.probe(neighbour, self.now) {
                self.send_request(snapshot, request);
            }
        }
        Ok(addresses)
    }

    /// Returns the parameters for sending packets like this one. `None` if a MAC address is unknown or the frame's source is not the known
    /// one. `sent` is the packet's translation.
    pub(crate) fn way(
        &self,
        snapshot: &Snapshot,
        (from, out): (PortId, PortId),
        frame: &[u8],
        sent: Option<&Translation>,
    ) -> Option<Way> {
        let is_expected = self.sides.get(from.index())?.has_sent(frame);
        let destination = sent.map_or_else(|| fields::destination_of(frame), |sent| Some(sent.dst))?;
        self.way_to(snapshot, from, out, destination).filter(|_| is_expected)
    }

    /// Like [`way`](Self::way), for packets that were received with these MAC addresses, destination first.
    pub(crate) fn way_of(
        &self,
        snapshot: &Snapshot,
        (from, out): (PortId, PortId),
        received: &[u8; 12],
        destination: IpAddr,
    ) -> Option<Way> {
        let is_expected = self.sides.get(from.index())?.has_sent(received);
        self.way_to(snapshot, from, out, destination).filter(|_| is_expected)
    }

    /// Returns the parameters for sending packets to this address. `None` if its MAC address is unknown.
    pub(crate) fn way_to(&self, snapshot: &Snapshot, from: PortId, out: PortId, destination: IpAddr) -> Option<Way> {
        let (from, to) = (self.sides.get(from.index())?, self.sides.get(out.index())?);
        let (longest, is_hop) = (to.longest(), is_hop(from.kind, to.kind));
        if !to.has_link() {
            return None;
        }
        if to.is_known {
            return Some(Way { addresses: *to.addresses(), longest, is_hop, good_for: u64::MAX });
        }
        let neighbour = NeighbourId { port: out, address: next_hop(snapshot, to.kind, out, destination) };
        let resolved = self.neighbours.resolved(&neighbour)?;
        // Afterwards a packet comes to the worker, which probes the neighbour.
        let good_for = resolved.confirmed.saturating_add(REACHABLE).saturating_sub(self.now);
        Some(Way { addresses: to.addresses_to(resolved.mac), longest, is_hop, good_for })
    }

    /// Holds a packet and requests its neighbour. Returns a displaced packet: an older one, or the packet itself. Drop it as
    /// [`DropReason::NeighbourQueueFull`].
    pub fn hold(&mut self, snapshot: &Snapshot, neighbour: NeighbourId, in_port: PortId, packet: T) -> Option<T> {
        if !self.pending.contains(&neighbour) {
            if !self.pending.may_create(in_port) {
                return Some(packet);
            }
            match self.neighbours.request(neighbour, self.now) {
                Requested::Send(request) => self.send_request(snapshot, request),
                // The neighbour was just resolved, or another worker has requested it.
                Requested::InProgress => self.has_news = true,
                Requested::TableFull => return Some(packet),
            }
        }
        self.pending.push(neighbour, in_port, packet, self.now)
    }

    /// Returns how many packets are held, including those that are about to be released.
    pub fn held(&self) -> usize {
        self.pending.len() + self.released.len()
    }

    /// Repeats requests, announces gateways, and releases packets whose neighbours were resolved or timed out. Call it once per burst, and
    /// about ten times a second without packets.
    pub fn tick(&mut self, snapshot: &Snapshot) {
        if self.has_news {
            self.has_news = false;
            self.release_resolved();
        }
        let is_due = self.now >= self.next_tick;
        if is_due {
            self.next_tick = self.now + TICK;
            while let Some((neighbour, queue)) = self.pending.take_older(self.now.saturating_sub(HOLD)) {
                self.release(neighbour, queue, Err(DropReason::NoNeighbour));
            }
        }
        if is_due || self.neighbours.is_behind() {
            let neighbours = Arc::clone(&self.neighbours);
            neighbours.maintain(self.now, TICK, |request| self.send_request(snapshot, request));
        }
        self.announce_gateways();
    }

    /// Returns the next released packet. Call it until it returns `None`.
    pub fn next_released(&mut self) -> Option<Released<T>> {
        self.released.pop_front()
    }

    fn release_resolved(&mut self) {
        let ids: Vec<NeighbourId> = self.pending.neighbours().collect();
        for neighbour in ids {
            let Some(addresses) = self.resolution(&neighbour) else { continue };
            if let Some(queue) = self.pending.take(&neighbour) {
                self.release(neighbour, queue, addresses);
            }
        }
    }

    /// Returns the MAC addresses of frames to the neighbour, or the drop reason if its port has no link. `None` if it is not resolved.
    pub(super) fn resolution(&mut self, neighbour: &NeighbourId) -> Option<Result<[u8; 12], DropReason>> {
        let Some(side) = self.sides.get(neighbour.port.index()).filter(|side| side.has_link()) else {
            return Some(Err(DropReason::PortDown));
        };
        if side.is_known {
            return Some(Ok(*side.addresses()));
        }
        self.view.load().get(neighbour).map(|resolved| Ok(side.addresses_to(resolved.mac)))
    }

    pub(super) fn release(&mut self, neighbour: NeighbourId, queue: Queue<T>, addresses: Result<[u8; 12], DropReason>) {
        let out = neighbour.port;
        let packets = queue.packets.into_iter();
        self.released.extend(packets.map(|(in_port, packet)| Released { packet, in_port, out, addresses }));
    }
}

/// Returns the neighbour that a packet goes to: the route's gateway or the destination. A pod's or the host's port has one peer, which only
/// answers for its own addresses.
fn next_hop(snapshot: &Snapshot, kind: PortKind, out: PortId, destination: IpAddr) -> IpAddr {
    if fields::is_link_local(destination) {
        return destination;
    }
    let hop = snapshot.routes().next_hop(destination).filter(|hop| hop.port == out);
    if let Some(gateway) = hop.and_then(|hop| hop.gateway) {
        return gateway;
    }
    let is_own = kind == PortKind::Uplink || snapshot.owner(destination) == Some(out);
    let own = || snapshot.port(out)?.addresses.iter().find(|own| own.is_ipv4() == destination.is_ipv4()).copied();
    if is_own { destination } else { own().unwrap_or(destination) }
}
