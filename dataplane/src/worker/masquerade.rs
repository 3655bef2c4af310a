//! Decides which connections of pods leave with the node's address.

use std::net::IpAddr;

use super::{Worker, exit};
use crate::masquerade::Masquerade;
use crate::session::{Direction, Slot};
use crate::{DropReason, PortId, PortKind, Snapshot};

/// Returns the node's address if the connection is masqueraded, otherwise `None`.
///
/// # Errors
/// If the connection must be masqueraded and the node has no address of this family.
pub(super) fn source(
    snapshot: &Snapshot,
    (in_port, in_kind): (PortId, PortKind),
    destination: IpAddr,
) -> Result<Option<(IpAddr, &Masquerade)>, DropReason> {
    let is_meant = |masquerade: &&Masquerade| in_kind == PortKind::Pod && masquerade.is_for(destination);
    let Some(masquerade) = snapshot.masquerade().filter(is_meant) else { return Ok(None) };
    let leaves = exit::route(snapshot, in_port, destination);
    if leaves.is_none() || leaves != snapshot.uplink() {
        return Ok(None);
    }
    let source = masquerade.source_for(destination).filter(|&source| is_hosts(snapshot, source));
    source.map(|source| Some((source, masquerade))).ok_or(DropReason::NotMasqueraded)
}

/// Whether answers to this address reach the node: the address belongs to the host port.
fn is_hosts(snapshot: &Snapshot, address: IpAddr) -> bool {
    snapshot.owner(address).is_some_and(|owner| Some(owner) == snapshot.host())
}

impl Worker {
    /// Whether a pod's session of an older generation leaves with an address that is no longer valid: the pod's own, or one that the node
    /// has lost. Sessions that began before masquerading was enabled are an example.
    pub(super) fn is_unmasked(&self, snapshot: &Snapshot, slot: Slot) -> bool {
        let entry = self.sessions.entry(slot);
        if snapshot.masquerade().is_none() || entry.in_kind() != PortKind::Pod {
            return false;
        }
        let [(source, _), (destination, _)] = entry.endpoints(Direction::Forward);
        let client = self.sessions.rewrite(slot).map_or(source, |rewrite| rewrite.client().0);
        let Some(in_port) = snapshot.owner(client) else { return false };
        let is_masqueraded = !matches!(self::source(snapshot, (in_port, PortKind::Pod), destination), Ok(None));
        is_masqueraded && !is_hosts(snapshot, source)
    }
}
