//! Checks senders, before any policy is asked.
//!
//! Policies and sessions are based on addresses, which mean nothing if a pod can forge them. So a packet's source is first checked against
//! its receiving port.

use std::net::IpAddr;

use bulkhead_classifier::protocol;

use crate::{DropReason, Flow, PortConfig, PortId, PortKind, Snapshot};

/// A packet's receiving port, with the snapshot that describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) id: PortId,
    pub(super) port: &'a PortConfig,
}

impl<'a> Arrival<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, id: PortId) -> Result<Self, DropReason> {
        let port = snapshot.port(id).ok_or(DropReason::UnknownPort)?;
        Ok(Self { snapshot, id, port })
    }

    pub(super) fn is_pod(&self) -> bool {
        self.port.kind == PortKind::Pod
    }

    /// Whether the peer of the port may use an address. A pod may only use its own. The uplink and the node may use every address that is
    /// not assigned to another port of this node.
    ///
    /// The node's own addresses are not valid on the uplink: the node may reach every pod, and so could an attacker with its address.
    /// Source addresses for translated connections are never valid: packets with them are only sent, not received.
    pub(super) fn may_use(&self, address: IpAddr) -> bool {
        match self.snapshot.owner(address) {
            Some(owner) => owner == self.id,
            None => !self.is_pod() && !self.snapshot.services().is_some_and(|services| services.is_source(address)),
        }
    }

    /// Checks that a pod's frames carry its own MAC address, if both are known.
    pub(super) fn check_mac(&self, source: Option<[u8; 6]>) -> Result<(), DropReason> {
        match (self.port.kind, self.port.mac, source) {
            (PortKind::Pod, Some(own), Some(source)) if own != source => Err(DropReason::SpoofedSource),
            _ => Ok(()),
        }
    }

    /// Checks the addresses of a packet to be routed. Multicast is checked first: every IPv6 pod reports its groups from its link-local or
    /// the unspecified address, and "spoofed" or "martian" would be a false alarm.
    pub(super) fn check_addresses(&self, flow: &Flow) -> Result<(), DropReason> {
        if is_group(flow.dst) {
            return Err(DropReason::Multicast);
        }
        if is_martian_source(flow.src) {
            return Err(DropReason::MartianSource);
        }
        if is_martian_destination(flow.dst) {
            return Err(DropReason::MartianDestination);
        }
        if self.may_use(flow.src) { Ok(()) } else { Err(DropReason::SpoofedSource) }
    }
}

/// Checks whether a conversation that begins on a port of kind `from` may have this link-local source. Such an address belongs to a host on
/// the uplink's link, and routers do not forward from it (RFC 3927 §7, RFC 4291 §2.5.6). Pods are not on that link. The node is, and may be
/// contacted at its own link-local address, as routing daemons do.
///
/// Replies from link-local addresses belong to conversations started on this side and pass. So pods and node reach a cloud's metadata
/// service at 169.254.169.254.
///
/// # Errors
/// [`DropReason::LinkLocalSource`]
pub(super) fn check_link_local(
    snapshot: &Snapshot,
    from: PortKind,
    out: PortId,
    flow: &Flow,
) -> Result<(), DropReason> {
    if from != PortKind::Uplink || !is_link_local(flow.src) {
        return Ok(());
    }
    let is_on_link = snapshot.host() == Some(out) && is_link_local(flow.dst);
    if is_on_link { Ok(()) } else { Err(DropReason::LinkLocalSource) }
}

/// Refuses pods' datagrams to the UDP port of the tunnel between nodes that leave by a port other than a pod's. A node that masquerades pods would send
/// them with its own address, which the tunnels of other nodes believe. `from` is the kind of the port on which the conversation begins, and `out` the
/// port by which it leaves.
///
/// # Errors
/// [`DropReason::TunnelPort`] for such a datagram.
pub(super) fn check_tunnel_port(
    snapshot: &Snapshot,
    from: PortKind,
    out: PortId,
    flow: &Flow,
) -> Result<(), DropReason> {
    let is_to_tunnel = || {
        let leaves = snapshot.port(out).is_some_and(|port| port.kind != PortKind::Pod);
        from == PortKind::Pod && flow.protocol == protocol::UDP && leaves
    };
    match snapshot.tunnel_port() {
        Some(port) if port == flow.dport && is_to_tunnel() => Err(DropReason::TunnelPort),
        _ => Ok(()),
    }
}

/// Whether the address is in 169.254.0.0/16 (RFC 3927) or fe80::/10 (RFC 4291 §2.5.6).
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    }
}

/// Whether the address is multicast or the limited broadcast address.
pub(super) fn is_group(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_multicast() || a.is_broadcast(),
        IpAddr::V6(a) => a.is_multicast(),
    }
}

/// Whether routers must not forward from the address (RFC 1812 §5.3.7, RFC 4291 §2.5). Clusters use 240.0.0.0/4, so it is allowed.
fn is_martian_source(address: IpAddr) -> bool {
    is_group(address) || is_martian_destination(address)
}

/// Whether the address is in "this network", loopback, unspecified, or IPv4-mapped IPv6, which must not be on a wire (RFC 4942 §2.2) and
/// would evade IPv4 rules.
fn is_martian_destination(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.octets()[0] == 0 || a.is_loopback(),
        IpAddr::V6(a) => a.is_unspecified() || a.is_loopback() || a.to_ipv4_mapped().is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn martians_are_what_never_travels() {
        for address in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "::", "::1", "::ffff:10.0.0.1"] {
            assert!(is_martian_source(address.parse().unwrap()), "{address}");
            assert!(is_martian_destination(address.parse().unwrap()), "{address}");
        }
        for address in ["224.0.0.1", "255.255.255.255", "ff02::1"] {
            assert!(is_martian_source(address.parse().unwrap()), "{address}");
            assert!(is_group(address.parse().unwrap()), "{address}");
        }
        for address in ["10.0.0.1", "169.254.169.254", "240.1.2.3", "fe80::1", "2001:db8::1"] {
            let address = address.parse().unwrap();
            assert!(!is_martian_source(address) && !is_martian_destination(address) && !is_group(address), "{address}");
        }
    }
}
