//! Ports: what the vswitch forwards between.

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::OriginId;

/// A port's position in [`Snapshot::ports`](crate::Snapshot::ports).
///
/// A port should keep its id as long as it lives. When it does not, sessions find their ports again after the change
/// of generation: a pod's by its address, the uplink and the host by their kind. So no session moves between uplink
/// and host. The last id, 65535, is never a port's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortId(pub u16);

impl PortId {
    /// The id as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A table's position in [`Snapshot::tables`](crate::Snapshot::tables).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u32);

impl TableId {
    /// The id as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What is on the other side of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortKind {
    /// One pod.
    Pod,
    /// The rest of the cluster and the world.
    Uplink,
    /// The node itself: kubelet and pods on the host network.
    Host,
}

/// A port as the control plane describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// `namespace/pod`, `uplink` or `host`; unique in a snapshot.
    pub name: Arc<str>,
    /// What is on the other side.
    pub kind: PortKind,
    /// The addresses of the pod or of the node. A packet from a pod's port must have one of them as its source.
    pub addresses: Vec<IpAddr>,
    /// The MAC address on the other side, where it is known. A frame from a pod's port must have it as its source.
    pub mac: Option<[u8; 6]>,
    /// The table that packets must pass which leave the vswitch through this port. None drops them all
    /// ([`DropReason::TableMissing`](crate::DropReason::TableMissing)): a port whose policy is not there yet is closed.
    pub egress: Option<TableId>,
    /// The table that packets must pass which come in through this port, in place of that of the port which they leave
    /// through: where policy is judged at the source. None leaves it to the latter.
    pub ingress: Option<TableId>,
    /// The table in place of [`egress`](Self::egress) if all policies were enforced: what it denies and `egress` allows passes, and is
    /// counted. None where no policy is audited, or none that would change anything here.
    pub audit: Option<TableId>,
    /// A packet from the port's own address to the port's own address is allowed with this origin ("a pod always
    /// reaches itself"). None sends it through the egress table like any other.
    pub hairpin: Option<OriginId>,
    /// The link of a live port. None where packets only get verdicts, and for a port whose interface is not there.
    pub link: Option<Link>,
}

impl PortConfig {
    /// A port of which nothing else is known. It is closed: no table is its own.
    pub fn new(name: impl Into<Arc<str>>, kind: PortKind) -> Self {
        let (name, addresses) = (name.into(), Vec::new());
        Self { name, kind, addresses, mac: None, egress: None, ingress: None, audit: None, hairpin: None, link: None }
    }

    /// The table that is bound to the port, in whichever direction. None: the port is closed.
    pub const fn table(&self) -> Option<TableId> {
        match self.ingress {
            Some(table) => Some(table),
            None => self.egress,
        }
    }
}

/// What the vswitch needs to know of an interface to put frames on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The vswitch's own MAC address on this link: what the other side sends to.
    pub mac: [u8; 6],
    /// The longest packet that the link carries, in bytes without the Ethernet header.
    pub mtu: u16,
}
