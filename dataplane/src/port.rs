//! Ports, between which the vswitch forwards packets.

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::OriginId;

/// A port's position in [`Snapshot::ports`](crate::Snapshot::ports).
///
/// A port should keep its id while it exists. If its id changes, sessions find their ports again at the change of generation: a pod's port
/// by its address, the uplink and host ports by their kind. Therefore no session moves between uplink and host. The last id, 65535, is
/// never assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

impl PortId {
    /// Returns the id as an index into vectors with one element per port.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A table's position in [`Snapshot::tables`](crate::Snapshot::tables).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u32);

impl TableId {
    /// Returns the id as an index into the snapshot's tables.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The kind of peer behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortKind {
    /// One pod.
    Pod,
    /// The other nodes of the cluster and external networks.
    Uplink,
    /// The node itself: kubelet and host-network pods.
    Host,
}

/// The control plane's description of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// `namespace/pod`, `uplink` or `host`. Unique in a snapshot.
    pub name: Arc<str>,
    /// The kind of peer.
    pub kind: PortKind,
    /// Addresses of the pod or of the node. A packet from a pod's port must have one of them as its source.
    pub addresses: Vec<IpAddr>,
    /// The peer's MAC address. A frame from a pod's port must have it as its source. `None` if it is not known.
    pub mac: Option<[u8; 6]>,
    /// The table that judges packets leaving the vswitch through this port. `None` drops all of them
    /// ([`DropReason::TableMissing`](crate::DropReason::TableMissing)), so a port is closed until its policy is there.
    pub egress: Option<TableId>,
    /// The table that judges packets entering the vswitch on this port, instead of the egress table of their output port. `None` unless
    /// policy is judged at the source.
    pub ingress: Option<TableId>,
    /// The table that would judge the port's packets if all policies were enforced. A packet that it denies and the table in force allows
    /// is forwarded and counted. `None` if no audited policy would change a verdict here.
    pub audit: Option<TableId>,
    /// The origin reported for packets from the port's own address to itself, which are always allowed ("a pod always reaches itself").
    /// `None` judges them by the egress table.
    pub hairpin: Option<OriginId>,
    /// The table that judges connections from the port's own address to itself through a Service. `None` allows them like all others to
    /// itself.
    pub hairpin_table: Option<TableId>,
    /// The table that judges, with the names of destinations, the connections that the port's pod initiates. Both this table and the
    /// `egress` or `ingress` table in force must allow them. `None` if none of the pod's rules names domains.
    pub named_table: Option<TableId>,
    /// The `named_table` that the port would have if all policies were enforced. `None` if no audited policy would change a verdict here,
    /// or if none of these rules names domains.
    pub named_audit: Option<TableId>,
    /// The link of a live port. `None` if packets are only judged and not forwarded, or if the port has no interface.
    pub link: Option<Link>,
    /// Whether the pod's interface is known not to exist, so that no host has the port's addresses. False while the port is only closed.
    pub is_gone: bool,
    /// Whether the uplink shares the host port's interface: packets of other nodes may also pass the node's kernel and arrive on the host port.
    /// Then `mac` is the kernel's, the only peer. Always false for other kinds.
    pub shares_host: bool,
}

impl PortConfig {
    /// Whether any rules of the port's pod, enforced or audited, name domains.
    pub(crate) const fn is_named(&self) -> bool {
        self.named_table.is_some() || self.named_audit.is_some()
    }

    /// Whether frames reach both ports' peers alike: the ports have the same name, kind, MAC addresses and link.
    pub(crate) fn is_reached_like(&self, other: &Self) -> bool {
        (&self.name, self.kind, self.mac, self.link) == (&other.name, other.kind, other.mac, other.link)
    }

    /// Returns a port without addresses, MAC address, tables and link. It is closed.
    pub fn new(name: impl Into<Arc<str>>, kind: PortKind) -> Self {
        let (name, addresses) = (name.into(), Vec::new());
        Self {
            name,
            kind,
            addresses,
            mac: None,
            egress: None,
            ingress: None,
            audit: None,
            hairpin: None,
            hairpin_table: None,
            named_table: None,
            named_audit: None,
            link: None,
            is_gone: false,
            shares_host: false,
        }
    }

    /// Returns the port's ingress or egress table. `None` if the port is closed.
    pub const fn table(&self) -> Option<TableId> {
        match self.ingress {
            Some(table) => Some(table),
            None => self.egress,
        }
    }
}

/// Properties of an interface that the vswitch needs to send frames on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The vswitch's own MAC address on this link: the destination of frames from the peer.
    pub mac: [u8; 6],
    /// MTU in bytes, without the Ethernet header.
    pub mtu: u16,
}
