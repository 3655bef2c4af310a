//! Finds a packet's output port and the tables that judge it.

use std::net::IpAddr;

use bulkhead_classifier::OriginId;

use crate::route::Hop;
use crate::{DropReason, PortConfig, PortId, PortKind, Snapshot, TableId, Verdict};

/// The port through which a packet leaves, and the table that judges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) port: PortId,
    pub(super) check: Check,
    /// Whether no host has the destination: an allowed packet is dropped as [`DropReason::NoSuchPod`].
    pub(super) is_unreachable: bool,
}

/// The authority that decides about an outgoing packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// The ingress table of the receiving port if it has one, otherwise the egress table of the output port.
    Table(Bound),
    /// No table: the packet goes from a port's own address to itself, which the control plane allows.
    Hairpin(OriginId),
}

/// The tables that judge a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    /// The table in force.
    pub(super) table: TableId,
    /// The table that would be in force if all policies were enforced: see [`super::audit`]. `None` if it changes no verdict.
    pub(super) audit: Option<TableId>,
}

/// Finds the output port of a packet received on `in_port`.
///
/// A translated packet may return to its receiving port, because the backend does not see the client's address.
pub(super) fn find(
    snapshot: &Snapshot,
    in_port: PortId,
    (src, dst): (IpAddr, IpAddr),
    is_translated: bool,
) -> Result<Exit, DropReason> {
    let hop = hop(snapshot, in_port, dst).ok_or(DropReason::NoRoute)?;
    let out = hop.port;
    let port = snapshot.port(out).ok_or(DropReason::NoRoute)?;
    let is_unreachable = hop.is_unreachable() || port.is_gone;
    if out == in_port && !is_unreachable {
        if port.kind != PortKind::Pod && !is_translated {
            return Err(DropReason::BackToSender);
        }
        if let Some(origin) = hairpin(snapshot, out, (src, dst)) {
            let judged = port.hairpin_table.filter(|_| is_translated);
            let check = match judged {
                Some(table) => Check::Table(Bound { table, audit: None }),
                None => Check::Hairpin(origin),
            };
            return Ok(Exit { port: out, check, is_unreachable });
        }
    }
    let at_source = snapshot.port(in_port).and_then(|port| port.ingress);
    let table = at_source.or(port.egress).ok_or(DropReason::TableMissing)?;
    let bound = Bound { table, audit: port.audit };
    Ok(Exit { port: out, check: Check::Table(bound), is_unreachable })
}

/// Whether the tables of a connection's initiator with rules that name domains judge the connection, too. False from a port's own address to
/// itself. Not a part of [`Bound`], because waiting packets that carry more cost measurably more.
pub(super) fn is_named(snapshot: &Snapshot, (in_port, out): (PortId, PortId), ends: (IpAddr, IpAddr)) -> bool {
    let is_named = snapshot.port(in_port).is_some_and(PortConfig::is_named);
    is_named && (in_port != out || hairpin(snapshot, out, ends).is_none())
}

/// Returns the origin that allows packets from one of the port's own addresses to another. `None` for other addresses, and if the control
/// plane does not allow such packets.
fn hairpin(snapshot: &Snapshot, port: PortId, (src, dst): (IpAddr, IpAddr)) -> Option<OriginId> {
    let own = |address| snapshot.owner(address) == Some(port);
    snapshot.port(port)?.hairpin.filter(|_| own(src) && own(dst))
}

/// Returns the port towards the destination.
pub(super) fn route(snapshot: &Snapshot, in_port: PortId, dst: IpAddr) -> Option<PortId> {
    hop(snapshot, in_port, dst).map(|hop| hop.port)
}

/// Returns the next hop to the destination. Link-local addresses are only valid on one link (RFC 4291 §2.5.6), so routes do not apply to
/// them: they lead to the owning port, or between node and uplink, which share a link.
fn hop(snapshot: &Snapshot, in_port: PortId, dst: IpAddr) -> Option<Hop> {
    if !matches!(dst, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
        return snapshot.routes().find(dst).map(|hop| by_kernel(snapshot, in_port, dst, hop));
    }
    let port = match snapshot.port(in_port)?.kind {
        _ if snapshot.owner(dst).is_some() => snapshot.owner(dst),
        PortKind::Pod => None,
        PortKind::Host => snapshot.uplink(),
        PortKind::Uplink => snapshot.host(),
    };
    port.map(Hop::direct)
}

/// Returns the next hop of a packet received on `in_port`, given that of its destination, where host port and uplink share an interface. What the
/// node sends to the uplink returns to the node: the answers to its kernel's sockets come to its kernel. What a pod sends to the world by the node
/// leaves by the uplink if it is masqueraded: the node's kernel refuses packets with its own addresses.
fn by_kernel(snapshot: &Snapshot, in_port: PortId, dst: IpAddr, hop: Hop) -> Hop {
    let (Some(uplink), Some(host)) = (snapshot.shared_uplink(), snapshot.host()) else { return hop };
    if in_port == host {
        return if hop.port == uplink && !hop.is_unreachable() { Hop::direct(host) } else { hop };
    }
    let is_pods = || snapshot.port(in_port).is_some_and(|port| port.kind == PortKind::Pod);
    let is_to_world = || snapshot.masquerade().is_some_and(|masquerade| masquerade.is_for(dst));
    let is_masqueraded = hop.port == host && is_pods() && is_to_world() && snapshot.owner(dst).is_none();
    if is_masqueraded { Hop::direct(uplink) } else { hop }
}

/// Returns the verdict for a packet that policy allows. `is_unreachable` tells whether no host has its destination. Policy comes before
/// everything here: refused senders learn nothing about routes and pods, and a Time Exceeded about an allowed packet belongs to a session.
pub(super) fn verdict(
    snapshot: &Snapshot,
    hop_limit: u8,
    (in_port, out): (PortId, PortId),
    is_unreachable: bool,
) -> Verdict {
    if is_unreachable {
        return Verdict::Drop(DropReason::NoSuchPod);
    }
    check_hop_limit(snapshot, hop_limit, in_port, out).map_or_else(Verdict::Drop, |()| Verdict::Forward(out))
}

/// Checks the hop limit of a packet that is forwarded to another machine or pod. Vswitch and host stack are one router, so the node itself
/// is no hop ([`is_hop`](crate::forward::is_hop)).
pub(super) fn check_hop_limit(
    snapshot: &Snapshot,
    hop_limit: u8,
    in_port: PortId,
    out: PortId,
) -> Result<(), DropReason> {
    let is_the_nodes = snapshot.host().is_some_and(|host| host == in_port || host == out);
    if hop_limit > 1 || is_the_nodes { Ok(()) } else { Err(DropReason::TtlExpired) }
}
