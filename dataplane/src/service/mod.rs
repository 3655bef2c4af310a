//! Services: virtual addresses (VIPs), and the choice of a backend for new connections to them.
//!
//! **Purpose.** For the first packet of a connection to a [`Vip`], [`Services`] decides which backend it goes to and whether its source
//! must be rewritten, or why it is dropped. Each snapshot has one immutable value.
//!
//! **Not its purpose.** No Kubernetes: the caller decides which endpoints are usable and which list applies to which clients. No connection
//! state, which is in the session table. No policy, which is asked about the backend afterwards.
//!
//! ```text
//!   Vip --exact hash--> Entry { service port, list for clients inside, list for clients outside }
//!                                   |
//!                              ServicePort { cluster backends, local backends, source ranges, affinity }
//!                                   |
//!   5-tuple --keyed hash--> one of the list: rendezvous hashing, above 32 backends a Maglev table (choice.rs)
//! ```
//!
//! **Invariant.** Changing a service port copies that service port only. All else is shared with the previous value. The choice depends
//! only on the seed, the packet and the list, so that nodes with the same seed agree and a restart changes nothing.

mod affinity;
mod choice;
mod clients;
mod lines;
mod steering;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::AddressSet;
use ipnet::IpNet;

#[cfg(target_os = "linux")]
pub(crate) use affinity::Found as FoundClients;
pub(crate) use affinity::{ClientAffinity, Remembered};
pub use choice::Backends;
pub(crate) use clients::{Client, Node, Place};
#[cfg(target_os = "linux")]
pub(crate) use lines::{Form, Keys};
pub(crate) use lines::{Lines, WORDS};
pub(crate) use steering::Steering;

use crate::{DropReason, Flow};

/// Maximum number of clients stored for Services with session affinity.
pub const AFFINITY_CAPACITY: usize = ClientAffinity::capacity();

/// A virtual address, protocol and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vip {
    /// The virtual address.
    pub address: IpAddr,
    /// IANA protocol number.
    pub protocol: u8,
    /// The port, in host byte order.
    pub port: u16,
}

/// An endpoint of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Backend {
    /// Address and port.
    pub socket: SocketAddr,
    /// Whether the endpoint is on this node. Its answers then always pass the vswitch.
    pub is_local: bool,
}

/// Selects one of the two lists of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendList {
    /// The backends of all nodes.
    Cluster,
    /// The backends of this node.
    Local,
}

/// The service port and the policies of a [`Vip`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VipEntry {
    /// The number of the service port in [`Services::set_port`].
    pub port: u32,
    /// The list of backends for clients that are pods or the node itself.
    pub inside: BackendList,
    /// The list of backends for all other clients.
    pub outside: BackendList,
    /// Whether only clients in [`ServicePort::source_ranges`] may connect.
    pub is_ranged: bool,
    /// Whether the source is always rewritten, even if answers would return through this node without it.
    pub rewrites_all: bool,
}

/// A port of a Service in one address family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// Backends of all nodes for new connections. Empty if no endpoint is usable.
    pub cluster: Backends,
    /// Backends of this node.
    pub local: Backends,
    /// Sockets of all backends that still serve existing connections, in ascending order. UDP sessions with other backends end.
    pub serving: Arc<[SocketAddr]>,
    /// Session affinity timeout in seconds after the client's last new connection. `None` without affinity.
    pub affinity: Option<u32>,
    /// A hash that identifies the service port across restarts. Clients' affinity is stored by it.
    pub identity: u64,
    /// Allowed client ranges if [`VipEntry::is_ranged`]. `None` allows all clients, an empty list allows none.
    pub source_ranges: Option<Arc<[IpNet]>>,
}

/// All Services known to a node, as described at the module.
#[derive(Clone, Debug, Default)]
pub struct Services {
    epoch: u64,
    seed: u64,
    vips: Arc<AHashMap<Vip, VipEntry>>,
    ports: Vec<Option<Arc<ServicePort>>>,
    /// Cluster addresses of Services. True if this node translates the address and drops its other ports, false if another proxy does.
    cluster_addresses: Arc<AHashMap<IpAddr, bool>>,
    service_cidrs: Arc<[IpNet]>,
    pod_networks: AddressSet,
    /// The source addresses of connections whose source is rewritten, at most one per family.
    sources: Arc<[IpAddr]>,
}

/// The decision of Services about a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// The destination is not a Service's, or another proxy translates it.
    NotOurs,
    Drop(DropReason),
    /// The connection goes to one of these backends.
    Choose(Eligible<'a>),
}

/// The backends that may serve a connection, and how to choose among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Eligible<'a> {
    pub(crate) port: &'a ServicePort,
    pub(crate) list: &'a Backends,
    pub(crate) rewrites_all: bool,
}

impl Services {
    /// Returns an empty value. `seed` keys the hashes. All nodes of a cluster share it, and outsiders must not know it.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Returns a number that increases with every change. It is separate from the snapshot's generation, because sessions need not be
    /// judged again.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Sets the number that [`epoch`](Self::epoch) returns.
    pub const fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Sets or removes the service port with this number.
    pub fn set_port(&mut self, number: u32, port: Option<ServicePort>) {
        let at = number as usize;
        if self.ports.len() <= at {
            self.ports.resize(at + 1, None);
        }
        self.ports[at] = port.map(Arc::new);
    }

    /// Returns the service port with this number.
    pub fn port(&self, number: u32) -> Option<&ServicePort> {
        self.ports.get(number as usize)?.as_deref()
    }

    /// Sets or removes the entry of a VIP.
    pub fn set_vip(&mut self, vip: Vip, entry: Option<VipEntry>) {
        if self.vips.get(&vip) == entry.as_ref() {
            // Unchanged: the map stays shared.
            return;
        }
        let vips = Arc::make_mut(&mut self.vips);
        match entry {
            Some(entry) => drop(vips.insert(vip, entry)),
            None => drop(vips.remove(&vip)),
        }
    }

    /// Sets who translates a cluster address of Services. `Some(true)`: this node, which drops packets to undeclared ports. `Some(false)`:
    /// another proxy. `None` removes the address.
    pub fn set_cluster_address(&mut self, address: IpAddr, ours: Option<bool>) {
        if self.cluster_addresses.get(&address).copied() == ours {
            return;
        }
        let addresses = Arc::make_mut(&mut self.cluster_addresses);
        match ours {
            Some(ours) => drop(addresses.insert(address, ours)),
            None => drop(addresses.remove(&address)),
        }
    }

    /// Sets the service CIDRs. Packets to addresses in them that belong to no Service are dropped.
    pub fn set_service_cidrs(&mut self, blocks: impl IntoIterator<Item = IpNet>) {
        self.service_cidrs = blocks.into_iter().collect();
    }

    /// Cluster addresses of the Services translated by this node, in no order.
    pub fn own_cluster_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.cluster_addresses.iter().filter(|(_, ours)| **ours).map(|(address, _)| *address)
    }

    /// Whether both values share one map of cluster addresses. False does not imply that they differ.
    pub fn shares_cluster_addresses(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cluster_addresses, &other.cluster_addresses)
    }

    /// Virtual addresses other than Services' cluster addresses, in no order: node ports, load balancers' and external addresses, host ports.
    pub fn external_vips(&self) -> impl Iterator<Item = Vip> + '_ {
        self.vips.keys().filter(|vip| !self.cluster_addresses.contains_key(&vip.address)).copied()
    }

    /// Whether both values share one map of virtual addresses. False does not imply that they differ.
    pub fn shares_vips(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.vips, &other.vips)
    }

    /// Sets the pod networks of all nodes.
    pub fn set_pod_networks(&mut self, networks: impl IntoIterator<Item = IpNet>) {
        self.pod_networks = networks.into_iter().collect();
    }

    /// Sets the source addresses for rewritten connections, one per family. They must be in the node's own pod network, so that answers
    /// return to this node, and must be unassigned.
    pub fn set_sources(&mut self, sources: impl IntoIterator<Item = IpAddr>) {
        self.sources = sources.into_iter().collect();
    }

    /// Returns the rewritten source address of the given address's family. `None` if there is none.
    pub fn source_for(&self, address: IpAddr) -> Option<IpAddr> {
        self.sources.iter().copied().find(|source| source.is_ipv4() == address.is_ipv4())
    }

    /// Returns the source addresses set by [`Self::set_sources`].
    pub fn sources(&self) -> &[IpAddr] {
        &self.sources
    }

    /// Whether the address is one of [`Self::set_sources`].
    pub fn is_source(&self, address: IpAddr) -> bool {
        self.sources.contains(&address)
    }

    /// Returns the entry of a VIP and its service port. `None` if either is missing.
    pub fn vip(&self, vip: &Vip) -> Option<(&VipEntry, &ServicePort)> {
        let entry = self.vips.get(vip)?;
        Some((entry, self.port(entry.port)?))
    }

    /// Whether there are no VIPs, no cluster addresses and no service CIDRs.
    pub(crate) fn is_empty(&self) -> bool {
        self.vips.is_empty() && self.cluster_addresses.is_empty() && self.service_cidrs.is_empty()
    }

    /// Decides about a new connection. `has_ports` tells whether the protocol is TCP, UDP or SCTP.
    pub(crate) fn answer(&self, client: &Client, flow: &Flow, has_ports: bool) -> Answer<'_> {
        let vip = Vip { address: flow.dst, protocol: flow.protocol, port: flow.dport };
        match self.vip(&vip).filter(|_| has_ports) {
            Some((entry, port)) => self.at_port(client, flow.dst, entry, port),
            None => self.without_port(flow.dst),
        }
    }

    fn at_port<'a>(&self, client: &Client, vip: IpAddr, entry: &VipEntry, port: &'a ServicePort) -> Answer<'a> {
        let is_outside = client.place == Place::Outside;
        let list = match if is_outside { entry.outside } else { entry.inside } {
            BackendList::Cluster => &port.cluster,
            BackendList::Local => &port.local,
        };
        if entry.is_ranged && !client.is_in(port.source_ranges.as_deref(), vip) {
            Answer::Drop(DropReason::ServiceSourceRange)
        } else if port.cluster.is_empty() {
            Answer::Drop(DropReason::NoEndpoint)
        } else if list.is_empty() {
            Answer::Drop(DropReason::NoLocalEndpoint)
        } else {
            Answer::Choose(Eligible { port, list, rewrites_all: entry.rewrites_all })
        }
    }

    fn without_port(&self, address: IpAddr) -> Answer<'_> {
        match self.cluster_addresses.get(&address) {
            Some(true) => Answer::Drop(DropReason::UnknownServicePort),
            Some(false) => Answer::NotOurs,
            None if self.service_cidrs.iter().any(|block| block.contains(&address)) => {
                Answer::Drop(DropReason::UnknownServiceAddress)
            }
            None => Answer::NotOurs,
        }
    }
}

impl Eligible<'_> {
    pub(crate) fn choose(&self, services: &Services, flow: &Flow) -> Backend {
        self.list.choose(services.seed, flow)
    }

    /// Returns the first backend that satisfies the predicate.
    pub(crate) fn find(&self, is_wanted: impl Fn(&Backend) -> bool) -> Option<Backend> {
        self.list.as_slice().iter().copied().find(is_wanted)
    }
}

impl ServicePort {
    /// Whether the backend still serves existing connections.
    pub(crate) fn is_serving(&self, socket: &SocketAddr) -> bool {
        self.serving.binary_search(socket).is_ok()
    }
}

#[cfg(test)]
mod tests;
