//! The gateways of the routes, as far as they are resolved: one MAC header each.
//!
//! Nearly all packets to the uplink go to one of a few gateways, so a packet's way is a route lookup and an index here. A
//! cache of headers by destination was measured and not taken: it is no faster, needs memory for each destination, and
//! is slower where there are more of them than it has room for.

use super::neighbour_table::NeighbourId;
use super::neighbour_table::REACHABLE;
use super::neighbours::View;
use super::side::Side;
use crate::{NextHop, PortId, Snapshot};

/// A gateway, prepared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gateway {
    port: PortId,
    /// Until when it need not be asked whether it is still there, in nanoseconds; 0 when it is not known.
    until: u64,
    addresses: [u8; 12],
}

impl Gateway {
    /// The start of a frame to it, while it is known and known to be there.
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

/// The gateways of a snapshot's routes, written over those of an older one.
pub(super) fn refresh(gateways: &mut Vec<Gateway>, snapshot: &Snapshot, sides: &[Side], view: &View) {
    let unknown = |port| Gateway { port, until: 0, addresses: [0; 12] };
    let all = snapshot.routes().gateways().iter();
    gateways.clear();
    gateways.extend(all.map(|to| Gateway::new(to, sides, view).unwrap_or(unknown(to.port))));
}
