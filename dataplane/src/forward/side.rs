//! What forwarding needs to know of a port, in one small value per port.

use super::fields;
use super::neighbours::Neighbours;
use super::rewrite;
use crate::wire::ethernet::{self, Mac, ethertype};
use crate::{DropReason, PortConfig, PortId, PortKind, Snapshot};

/// The source MAC address of frames that come in is not checked.
const ANY_SOURCE: u64 = 0;
/// No MAC address has this number: every frame has to be looked at.
const NO_SOURCE: u64 = u64::MAX;

/// A port, prepared.
#[derive(Clone, Copy, Debug)]
pub(super) struct Side {
    /// The other side's MAC address (zeros when it is not known, or on the uplink) and the vswitch's own.
    addresses: [u8; 12],
    /// The longest frame; 0 when there is no link.
    longest: usize,
    /// The source that incoming frames have, as [`fields::to_number`] has it, [`ANY_SOURCE`] or [`NO_SOURCE`].
    source: u64,
    /// The vswitch's own MAC address on the uplink as a number, if that has a link: what frames there are nearly always for.
    own: u64,
    pub(super) kind: PortKind,
    /// Whether the other side's MAC address is known. Never on the uplink, where there are many.
    pub(super) is_known: bool,
    /// Whether the control plane says what the MAC address is.
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
        if let Some(mac) = port.mac.or_else(|| neighbours.peer(id)).filter(|_| port.kind != PortKind::Uplink) {
            side.know(mac);
        }
        side
    }

    /// The other side has this MAC address.
    pub(super) fn know(&mut self, mac: Mac) {
        self.addresses[..6].copy_from_slice(&mac);
        self.is_known = true;
        // The node may send as it likes: it is not what policy guards against.
        let any = self.kind == PortKind::Host && self.is_configured;
        self.source = if any { ANY_SOURCE } else { fields::to_number(mac) };
    }

    /// The start of a frame to the other side; of use only when [`Side::is_known`].
    pub(super) const fn addresses(&self) -> &[u8; 12] {
        &self.addresses
    }

    /// The start of a frame to a machine on the link.
    pub(super) fn addresses_to(&self, mac: Mac) -> [u8; 12] {
        rewrite::addresses(mac, self.own_mac())
    }

    /// The other side's MAC address.
    pub(super) fn peer(&self) -> Option<Mac> {
        self.is_known.then(|| self.addresses[..6].try_into().expect("six bytes"))
    }

    /// The vswitch's own MAC address.
    pub(super) fn own_mac(&self) -> Mac {
        self.addresses[6..].try_into().expect("six bytes")
    }

    pub(super) const fn has_link(&self) -> bool {
        self.longest > 0
    }

    /// The longest frame; 0 when there is no link.
    pub(super) const fn longest(&self) -> usize {
        self.longest
    }

    /// The longest packet without its Ethernet header.
    pub(super) const fn mtu(&self) -> usize {
        self.longest.saturating_sub(ethernet::HEADER_LEN)
    }

    /// Whether a frame of this length fits the link, if there is one.
    #[inline]
    pub(super) const fn fits(&self, frame_len: usize) -> bool {
        frame_len <= self.longest
    }

    /// Whether the frame has the source that is known; then there is nothing to check or learn.
    #[inline]
    pub(super) fn has_sent(&self, frame: &[u8]) -> bool {
        self.source == ANY_SOURCE || fields::source_mac(frame).is_some_and(|mac| fields::to_number(mac) == self.source)
    }

    /// Whether frames with this source may come in: a pod's must have its MAC address where that is known, and one that
    /// a station can have where it is not.
    pub(super) fn may_send(&self, mac: Mac) -> bool {
        match (self.kind, self.peer()) {
            (PortKind::Pod, Some(peer)) => peer == mac,
            (PortKind::Pod, None) => ethernet::is_station(mac) && mac != self.own_mac(),
            _ => true,
        }
    }

    /// What is to be learned from a frame with this source: nothing where it is configured or known.
    pub(super) fn learns_from(&self, mac: Mac) -> bool {
        let may_change = match self.kind {
            PortKind::Pod => !self.is_known,
            PortKind::Host => !self.is_configured && self.peer() != Some(mac),
            PortKind::Uplink => false,
        };
        may_change && ethernet::is_station(mac) && mac != self.own_mac()
    }

    /// Whether a frame that comes in is for the vswitch and from whom it should be.
    #[inline]
    pub(super) fn admit(&self, frame: &[u8]) -> Result<(), DropReason> {
        let is_usual = match self.kind {
            PortKind::Uplink => fields::destination_mac(frame).is_some_and(|mac| fields::to_number(mac) == self.own),
            PortKind::Pod | PortKind::Host => self.has_sent(frame),
        };
        if is_usual { Ok(()) } else { self.admit_any(frame) }
    }

    /// Everything but a frame to the vswitch on the uplink, or from whoever is known to be behind the port.
    #[inline(never)]
    fn admit_any(&self, frame: &[u8]) -> Result<(), DropReason> {
        let (Some(destination), Some(source)) = (fields::destination_mac(frame), fields::source_mac(frame)) else {
            // The engine says what is wrong with it.
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
        // RFC 1812 §5.3.4: what the link broadcasts is not forwarded. ARP and multicast neighbour discovery go on.
        let is_unicast_inside = match fields::ethertype_of(frame) {
            Some(ethertype::IPV4) => true,
            Some(ethertype::IPV6) => frame.get(38).is_some_and(|&first| first != 0xff),
            _ => false,
        };
        if is_unicast_inside { Err(DropReason::Multicast) } else { Ok(()) }
    }
}

/// The sides of all ports of a snapshot, written over those of an older one.
pub(super) fn refresh(sides: &mut Vec<Side>, snapshot: &Snapshot, neighbours: &Neighbours) {
    sides.clear();
    sides.extend(snapshot.ids().zip(snapshot.ports()).map(|(id, port)| Side::new(port, id, neighbours)));
}
