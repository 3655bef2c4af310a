//! The resolved gateways of the routes, with one prepared MAC header each.
//!
//! Nearly all packets to the uplink go to a few gateways, so a packet needs a route lookup and an array access. A cache of headers by
//! destination was measured: it is no faster, needs memory per destination, and is slower if they exceed its size.

use super::neighbour_table::NeighbourId;
use super::neighbour_table::REACHABLE;
use super::neighbours::View;
use super::side::Side;
use crate::{NextHop, PortId, Snapshot};

/// A gateway with its MAC address, ready to be written to frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gateway {
    port: PortId,
    /// Time until which the gateway counts as reachable, in nanoseconds. 0 if it is unknown.
    until: u64,
    addresses: [u8; 12],
}

impl Gateway {
    /// Returns the MAC addresses of a frame to the gateway. `None` unless it is known to be reachable.
    #[inline]
    pub(super) fn addresses(&self, out: PortId, now: u64) -> Option<&[u8; 12]> {
        (self.port == out && now < self.until).then_some(&self.addresses)
    }

    fn new(to: &NextHop, sides: &[Side], view: &View) -> Option<Self> {
        let (port, address) = (to.port, to.gateway?);
        let resolved = view.get(&NeighbourId { port, address })?;
        let addresses = sides.get(port.index())?.addresses_to(resolved.mac);
        Some(Self { port, until: resolved.confirmed.saturating_add(REACHABLE), addresses })
    }
}

/// Replaces the gateways by those of a snapshot's routes.
pub(super) fn refresh(gateways: &mut Vec<Gateway>, snapshot: &Snapshot, sides: &[Side], view: &View) {
    let unknown = |port| Gateway { port, until: 0, addresses: [0; 12] };
    let all = snapshot.routes().gateways().iter();
    gateways.clear();
    gateways.extend(all.map(|to| Gateway::new(to, sides, view).unwrap_or(unknown(to.port))));
}
