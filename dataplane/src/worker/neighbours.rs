//! ARP and IPv6 neighbour discovery: no policy and no session, but nobody speaks for an address that is not theirs.
//!
//! Without the checks a pod could take over the traffic of its neighbours or of the gateway (ARP and ND spoofing), or
//! make itself the router of the whole link (CVE-2020-10749 and its siblings). The gateway's link-local address
//! belongs into the host port's addresses, so that no pod can claim it.
//!
//! The vswitch is a router, not a bridge. Link-local addresses of pods are not known to it, so what a pod says about
//! one, or in the name of one, is for the node and never for another pod. The uplink is another link than the pods':
//! whatever comes from there is for the node alone.

use std::net::{IpAddr, Ipv6Addr};

use super::admission::{Arrival, is_group};
use crate::packet::{Arp, Neighbour, Operation};
use crate::{DropReason, Flow, PortId, PortKind};

/// Where an ARP message goes: to the local owner of the address that it asks for, or else off the pods' side.
pub(super) fn forward_arp(arrival: &Arrival<'_>, arp: &Arp) -> Result<PortId, DropReason> {
    let is_probe = arp.sender.is_unspecified() && arp.operation == Operation::Request;
    if !is_probe && !arrival.may_use(arp.sender.into()) {
        return Err(DropReason::ArpSpoofed);
    }
    if arrival.is_pod() && arrival.port.mac.is_some_and(|own| own != arp.sender_mac) {
        return Err(DropReason::ArpSpoofed);
    }
    // An announcement that `0.0.0.0 is at`, or one for a group, is nobody's.
    if !is_probe && (arp.sender.is_unspecified() || is_group(arp.sender.into())) {
        return Err(DropReason::ArpMalformed);
    }
    owner_or_outside(arrival, arp.target.into())
}

/// Where a neighbour discovery message goes.
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

/// A link-local or unspecified source is fine for anybody whose it may be; the vswitch cannot know a pod's link-local
/// address, only that it is not one that somebody else has.
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

/// Whether a pod's message means something between the pod and the node only.
fn concerns_the_link(arrival: &Arrival<'_>, source: IpAddr, target: Ipv6Addr) -> bool {
    let from_link_local = matches!(source, IpAddr::V6(source) if source.is_unicast_link_local());
    arrival.is_pod() && (from_link_local || target.is_unicast_link_local())
}

/// The port that owns the address, unless the message came from there or from the uplink; else the way off the pods'
/// side.
fn owner_or_outside(arrival: &Arrival<'_>, address: IpAddr) -> Result<PortId, DropReason> {
    match arrival.snapshot.owner(address) {
        _ if arrival.port.kind == PortKind::Uplink => outside(arrival),
        Some(owner) if owner != arrival.id => Ok(owner),
        _ => outside(arrival),
    }
}

/// The node answers for everything that is not a pod; what the node itself asks goes to the uplink.
fn outside(arrival: &Arrival<'_>) -> Result<PortId, DropReason> {
    let out = match arrival.port.kind {
        PortKind::Host => arrival.snapshot.uplink(),
        PortKind::Pod | PortKind::Uplink => arrival.snapshot.host(),
    };
    out.ok_or(DropReason::NoRoute)
}
