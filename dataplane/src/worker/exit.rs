//! Where a packet leaves, and what it must pass there.

use std::net::IpAddr;

use bulkhead_classifier::OriginId;

use crate::{DropReason, PortId, PortKind, Snapshot, TableId, Verdict};

/// The way out of the vswitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) port: PortId,
    pub(super) check: Check,
}

/// What decides about a packet on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// The table that is bound to the port where the packet came in, else to the port where it leaves.
    Table(Bound),
    /// Nothing: it goes from a port's own address to the port's own address, and the control plane allows that.
    Hairpin(OriginId),
}

/// The tables that are bound to the port that judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    /// The one that decides.
    pub(super) table: TableId,
    /// The one that says what would be denied: see [`super::audit`].
    pub(super) audit: Option<TableId>,
}

/// Finds the way out for a packet that came in on `in_port`.
///
/// What is translated on its way may go back to where it came from: the client's address is not the one that the backend sees.
pub(super) fn find(
    snapshot: &Snapshot,
    in_port: PortId,
    (src, dst): (IpAddr, IpAddr),
    is_translated: bool,
) -> Result<Exit, DropReason> {
    let out = route(snapshot, in_port, dst).ok_or(DropReason::NoRoute)?;
    let port = snapshot.port(out).ok_or(DropReason::NoRoute)?;
    if out == in_port {
        if port.kind != PortKind::Pod && !is_translated {
            return Err(DropReason::BackToSender);
        }
        let own = |address| snapshot.owner(address) == Some(out);
        if let Some(origin) = port.hairpin.filter(|_| own(src) && own(dst)) {
            return Ok(Exit { port: out, check: Check::Hairpin(origin) });
        }
    }
    let at_source = snapshot.port(in_port).and_then(|port| port.ingress);
    let table = at_source.or(port.egress).ok_or(DropReason::TableMissing)?;
    Ok(Exit { port: out, check: Check::Table(Bound { table, audit: port.audit }) })
}

/// The port that leads to the destination. Link-local addresses mean something on one link only (RFC 4291 §2.5.6), so
/// the routes have no say in them: they go to the port that owns them, or between node and uplink, which share one.
pub(super) fn route(snapshot: &Snapshot, in_port: PortId, dst: IpAddr) -> Option<PortId> {
    let IpAddr::V6(v6) = dst else { return snapshot.routes().lookup(dst) };
    if !v6.is_unicast_link_local() {
        return snapshot.routes().lookup(dst);
    }
    match snapshot.port(in_port)?.kind {
        _ if snapshot.owner(dst).is_some() => snapshot.owner(dst),
        PortKind::Pod => None,
        PortKind::Host => snapshot.uplink(),
        PortKind::Uplink => snapshot.host(),
    }
}

/// What becomes of a packet that policy allows. Policy comes before the hop limit: who is refused learns nothing about
/// routes, and the node's Time Exceeded about a packet that is allowed belongs to a session.
pub(super) fn verdict(snapshot: &Snapshot, hop_limit: u8, in_port: PortId, out: PortId) -> Verdict {
    check_hop_limit(snapshot, hop_limit, in_port, out).map_or_else(Verdict::Drop, |()| Verdict::Forward(out))
}

/// A packet that goes on to another machine or pod needs a hop more. The node itself is where it begins or ends: vswitch
/// and host stack are one router ([`is_hop`](crate::forward::is_hop)).
pub(super) fn check_hop_limit(
    snapshot: &Snapshot,
    hop_limit: u8,
    in_port: PortId,
    out: PortId,
) -> Result<(), DropReason> {
    let is_the_nodes = snapshot.host().is_some_and(|host| host == in_port || host == out);
    if hop_limit > 1 || is_the_nodes { Ok(()) } else { Err(DropReason::TtlExpired) }
}
