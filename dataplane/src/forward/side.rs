//! The forwarder's view of a port: one small value per port.

use super::fields;
use super::neighbours::Neighbours;
use super::rewrite;
use crate::wire::ethernet::{self, Mac, ethertype};
use crate::{DropReason, PortConfig, PortId, PortKind, Snapshot};

/// A value of [`Side::source`]: every source MAC address is accepted without a check.
const ANY_SOURCE: u64 = 0;
/// A value of [`Side::source`] that no MAC address has, so that every frame takes the slow path.
const NO_SOURCE: u64 = u64::MAX;

/// The properties of a port that the forwarder reads for each packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    /// The first 12 bytes of frames to the peer: the peer's MAC address (zeros if unknown, or on the uplink) and the vswitch's own.
    addresses: [u8; 12],
    /// Maximum frame length in bytes. 0 without a link.
    longest: usize,
    /// The expected source of received frames, encoded by [`fields::to_number`], or [`ANY_SOURCE`] or [`NO_SOURCE`].
    source: u64,
    /// The vswitch's own MAC address on the uplink, as a number: the destination of nearly all frames there.
    own: u64,
    pub(super) kind: PortKind,
    /// Whether the peer's MAC address is known. Always false on an uplink with many peers.
    pub(super) is_known: bool,
    /// Whether the control plane has set the peer's MAC address.
    is_configured: bool,
}

impl Side {
    pub(super) fn new(port: &PortConfig, id: PortId, neighbours: &Neighbours) -> Self {
        let (own, longest) =
            port.link.map_or(([0; 6], 0), |link| (link.mac, ethernet::HEADER_LEN + usize::from(link.mtu)));
        let mut side = Self {
            addresses: rewrite::addresses([0; 6], own),
            longest,
            source: if port.kind == PortKind::Uplink { ANY_SOURCE } else { NO_SOURCE },
            own: port
                .link
                .filter(|_| port.kind == PortKind::Uplink)
                .map_or(NO_SOURCE, |link| fields::to_number(link.mac)),
            kind: port.kind,
            is_known: false,
            is_configured: port.mac.is_some(),
        };
        if let Some(mac) =
            port.mac.or_else(|| neighbours.peer(id)).filter(|_| port.kind != PortKind::Uplink || port.shares_host)
        {
            side.know(mac);
        }
        side
    }

    /// Records the peer's MAC address as known.
    pub(super) fn know(&mut self, mac: Mac) {
        self.addresses[..6].copy_from_slice(&mac);
        self.is_known = true;
        // The node may send from any MAC address: policy does not protect against the node.
        let any = self.kind == PortKind::Host && self.is_configured;
        self.source = if any { ANY_SOURCE } else { fields::to_number(mac) };
    }

    /// MAC addresses of a frame to the peer. Only valid if [`Side::is_known`].
    pub(super) const fn addresses(&self) -> &[u8; 12] {
        &self.addresses
    }

    /// Returns the MAC addresses of a frame to a host on the link.
    pub(super) fn addresses_to(&self, mac: Mac) -> [u8; 12] {
        rewrite::addresses(mac, self.own_mac())
    }

    /// Returns the peer's MAC address. `None` if it is unknown.
    pub(super) fn peer(&self) -> Option<Mac> {
        self.is_known.then(|| self.addresses[..6].try_into().expect("six bytes"))
    }

    /// Returns the vswitch's own MAC address.
    pub(super) fn own_mac(&self) -> Mac {
        self.addresses[6..].try_into().expect("six bytes")
    }

    pub(super) const fn has_link(&self) -> bool {
        self.longest > 0
    }

    /// Maximum frame length in bytes. 0 without a link.
    pub(super) const fn longest(&self) -> usize {
        self.longest
    }

    /// MTU in bytes, without the Ethernet header.
    pub(super) const fn mtu(&self) -> usize {
        self.longest.saturating_sub(ethernet::HEADER_LEN)
    }

    /// Whether a frame of this length fits the link. False without a link.
    #[inline]
    pub(super) const fn fits(&self, frame_len: usize) -> bool {
        frame_len <= self.longest
    }

    /// Whether the frame's source is the expected one, so that nothing must be checked or learned.
    #[inline]
    pub(super) fn has_sent(&self, frame: &[u8]) -> bool {
        self.source == ANY_SOURCE || fields::source_mac(frame).is_some_and(|mac| fields::to_number(mac) == self.source)
    }

    /// Whether frames with this source may come in: it must be the pod's MAC address if that is known, otherwise a valid unicast address.
    pub(super) fn may_send(&self, mac: Mac) -> bool {
        match (self.kind, self.peer()) {
            (PortKind::Pod, Some(peer)) => peer == mac,
            (PortKind::Pod, None) => ethernet::is_station(mac) && mac != self.own_mac(),
            _ => true,
        }
    }

    /// Whether to learn this source MAC address of a frame. False if the peer's address is configured or known.
    pub(super) fn learns_from(&self, mac: Mac) -> bool {
        let may_change = match self.kind {
            PortKind::Pod => !self.is_known,
            PortKind::Host => !self.is_configured && self.peer() != Some(mac),
            PortKind::Uplink => false,
        };
        may_change && ethernet::is_station(mac) && mac != self.own_mac()
    }

    /// Checks a received frame's destination and source MAC addresses.
    #[inline]
    pub(super) fn admit(&self, frame: &[u8]) -> Result<(), DropReason> {
        let is_usual = match self.kind {
            PortKind::Uplink => fields::destination_mac(frame).is_some_and(|mac| fields::to_number(mac) == self.own),
            PortKind::Pod | PortKind::Host => self.has_sent(frame),
        };
        if is_usual { Ok(()) } else { self.admit_any(frame) }
    }

    /// Handles all frames except those to the vswitch on the uplink or from the known peer.
    #[inline(never)]
    fn admit_any(&self, frame: &[u8]) -> Result<(), DropReason> {
        let (Some(destination), Some(source)) = (fields::destination_mac(frame), fields::source_mac(frame)) else {
            // The engine reports the reason.
            return Ok(());
        };
        if !self.may_send(source) {
            return Err(DropReason::SpoofedSource);
        }
        if self.kind != PortKind::Uplink || !self.has_link() || destination == self.own_mac() {
            return Ok(());
        }
        if !ethernet::is_group(destination) {
            return Err(DropReason::OtherHost);
        }
        // RFC 1812 §5.3.4: link broadcasts are not forwarded. ARP and multicast neighbour discovery are handled.
        let is_unicast_inside = match fields::ethertype_of(frame) {
            Some(ethertype::IPV4) => true,
            Some(ethertype::IPV6) => frame.get(38).is_some_and(|&first| first != 0xff),
            _ => false,
        };
        if is_unicast_inside { Err(DropReason::Multicast) } else { Ok(()) }
    }
}

/// Replaces the sides by those of a snapshot's ports.
pub(super) fn refresh(sides: &mut Vec<Side>, snapshot: &Snapshot, neighbours: &Neighbours) {
    sides.clear();
    sides.extend(snapshot.ids().zip(snapshot.ports()).map(|(id, port)| Side::new(port, id, neighbours)));
}
