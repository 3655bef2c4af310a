//! Forwards ARP and IPv6 neighbour discovery without policy and sessions, but checks that senders own the addresses they announce.
//!
//! Without these checks a pod could take over the traffic of its neighbours or the gateway (ARP and ND spoofing), or become the router of
//! the whole link (CVE-2020-10749 and similar). The gateway's link-local address belongs to the host port's addresses, so that no pod can
//! claim it.
//!
//! The vswitch is a router, not a bridge. It does not know pods' link-local addresses, so messages about or from one go to the node and
//! never to another pod. The uplink is a different link from the pods', so its messages go to the node only.

use std::net::{IpAddr, Ipv6Addr};

use super::admission::{Arrival, is_group};
use crate::packet::{Arp, Neighbour, Operation};
use crate::{DropReason, Flow, PortId, PortKind};

/// Returns where an ARP message goes: to the local owner of the requested address, otherwise to the uplink or host.
pub(super) fn forward_arp(arrival: &Arrival<'_>, arp: &Arp) -> Result<PortId, DropReason> {
    let is_probe = arp.sender.is_unspecified() && arp.operation == Operation::Request;
    if !is_probe && !arrival.may_use(arp.sender.into()) {
        return Err(DropReason::ArpSpoofed);
    }
    if arrival.is_pod() && arrival.port.mac.is_some_and(|own| own != arp.sender_mac) {
        return Err(DropReason::ArpSpoofed);
    }
    // An announcement from `0.0.0.0`, or for a group address, is invalid.
    if !is_probe && (arp.sender.is_unspecified() || is_group(arp.sender.into())) {
        return Err(DropReason::ArpMalformed);
    }
    owner_or_outside(arrival, arp.target.into())
}

/// Returns the port to which a neighbour discovery message is forwarded.
pub(super) fn forward_neighbour(arrival: &Arrival<'_>, message: Neighbour, flow: &Flow) -> Result<PortId, DropReason> {
    let router_message = matches!(message, Neighbour::RouterAdvertisement | Neighbour::Redirect);
    if router_message && arrival.is_pod() {
        return Err(DropReason::NdFromPod);
    }
    if !may_speak(arrival, flow.src) {
        return Err(DropReason::NdSpoofed);
    }
    match message {
        Neighbour::Solicitation(target) if concerns_the_link(arrival, flow.src, target) => outside(arrival),
        Neighbour::Solicitation(target) => owner_or_outside(arrival, target.into()),
        Neighbour::Advertisement(target) if !may_advertise(arrival, target) => Err(DropReason::NdSpoofed),
        Neighbour::Advertisement(target) if concerns_the_link(arrival, flow.src, target) => outside(arrival),
        Neighbour::Advertisement(_) => owner_or_outside(arrival, flow.dst),
        Neighbour::RouterSolicitation => outside(arrival),
        Neighbour::RouterAdvertisement | Neighbour::Redirect => match arrival.port.kind {
            PortKind::Host if is_group(flow.dst) => Err(DropReason::Multicast),
            PortKind::Host => owner_or_outside(arrival, flow.dst),
            _ => arrival.snapshot.host().ok_or(DropReason::NoRoute),
        },
    }
}

/// Whether the peer may send from this link-local or unspecified source. The vswitch does not know pods' link-local addresses, only those
/// assigned to other ports.
fn may_speak(arrival: &Arrival<'_>, source: IpAddr) -> bool {
    match source {
        IpAddr::V6(source) if source.is_unspecified() => true,
        IpAddr::V6(source) => may_advertise(arrival, source),
        IpAddr::V4(_) => false,
    }
}

fn may_advertise(arrival: &Arrival<'_>, address: Ipv6Addr) -> bool {
    arrival.may_use(address.into())
        || (address.is_unicast_link_local() && arrival.snapshot.owner(address.into()).is_none())
}

/// Whether a pod's message only concerns the link between pod and node, which the uplink does not share.
fn concerns_the_link(arrival: &Arrival<'_>, source: IpAddr, target: Ipv6Addr) -> bool {
    let from_link_local = matches!(source, IpAddr::V6(source) if source.is_unicast_link_local());
    arrival.is_pod() && (from_link_local || target.is_unicast_link_local())
}

/// Returns the port that owns the address, unless the message came from there or from the uplink. Otherwise the host or uplink port.
fn owner_or_outside(arrival: &Arrival<'_>, address: IpAddr) -> Result<PortId, DropReason> {
    match arrival.snapshot.owner(address) {
        _ if arrival.port.kind == PortKind::Uplink => outside(arrival),
        Some(owner) if owner != arrival.id => Ok(owner),
        _ => outside(arrival),
    }
}

/// Returns the host port, which answers for all addresses that are not a pod's. For messages of the host, returns the uplink.
fn outside(arrival: &Arrival<'_>) -> Result<PortId, DropReason> {
    let out = match arrival.port.kind {
        PortKind::Host => arrival.snapshot.uplink(),
        PortKind::Pod | PortKind::Uplink => arrival.snapshot.host(),
    };
    out.ok_or(DropReason::NoRoute)
}
