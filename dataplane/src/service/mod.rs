//! Services: virtual addresses, and the backends that new connections to them are given.
//!
//! **Purpose.** [`Services`] says what becomes of the first packet of a connection to a virtual address, protocol and port
//! ([`Vip`]): which backend it goes to and whether its source has to change, or why it is refused. One immutable value in each
//! snapshot.
//!
//! **Not its purpose.** It knows no Kubernetes: which endpoints are usable, and which list counts for whom, is decided by
//! whoever builds it. It remembers nothing of connections: that is the session table's. It judges no policy, which is asked
//! about the backend afterwards.
//!
//! ```text
//!   Vip --exact hash--> Entry { service port, list for clients inside, list for clients outside }
//!                                   |
//!                              ServicePort { cluster backends, local backends, source ranges, affinity }
//!                                   |
//!   5-tuple --keyed hash--> one of the list: rendezvous hashing, above 32 backends a Maglev table (choice.rs)
//! ```
//!
//! **Invariant.** A change of one service port copies one service port; the rest is shared with the value before. The choice
//! depends on the seed, the packet and the list alone, so that nodes with one seed agree and a restart changes nothing.

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
pub(crate) use steering::Steering;

use crate::{DropReason, Flow};

/// How many clients of Services with affinity are remembered at most.
pub const AFFINITY_CAPACITY: usize = ClientAffinity::capacity();

/// A virtual address, protocol and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vip {
    /// The address.
    pub address: IpAddr,
    /// The IANA protocol number.
    pub protocol: u8,
    /// The port.
    pub port: u16,
}

/// An endpoint that a connection may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Backend {
    /// Its address and port.
    pub socket: SocketAddr,
    /// Whether it is on this node, so that its answers come back through here whatever the source is.
    pub is_local: bool,
}

/// One of the two lists of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendList {
    /// The backends of all nodes.
    Cluster,
    /// Those of this node.
    Local,
}

/// Where a [`Vip`] leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VipEntry {
    /// The service port, by the number that it was [set](Services::set_port) with.
    pub port: u32,
    /// The list that counts for pods and for the node itself.
    pub inside: BackendList,
    /// The list that counts for everybody else.
    pub outside: BackendList,
    /// Whether [`ServicePort::source_ranges`] say who may connect here.
    pub is_ranged: bool,
    /// Whether the source is rewritten also where the answer would come back without that.
    pub rewrites_all: bool,
}

/// A port of a Service, of one address family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// The backends of all nodes that a new connection may be given; empty when none is usable on any node.
    pub cluster: Backends,
    /// Those of this node.
    pub local: Backends,
    /// Sockets of all backends that still answer, in use or not, in ascending order. A UDP session with another one ends.
    pub serving: Arc<[SocketAddr]>,
    /// For how many seconds after its last new connection a client stays with its backend; none without affinity.
    pub affinity: Option<u32>,
    /// A hash of what it is known by for as long as it exists, over restarts too: clients' affinity is kept under it.
    pub identity: u64,
    /// Who may connect where [`VipEntry::is_ranged`]; none for everybody, empty for nobody.
    pub source_ranges: Option<Arc<[IpNet]>>,
}

/// What a node knows of Services. See the module.
#[derive(Clone, Debug, Default)]
pub struct Services {
    epoch: u64,
    seed: u64,
    vips: Arc<AHashMap<Vip, VipEntry>>,
    ports: Vec<Option<Arc<ServicePort>>>,
    /// Cluster addresses of Services, and whether other ports of them are refused here; else they are another proxy's.
    cluster_addresses: Arc<AHashMap<IpAddr, bool>>,
    service_cidrs: Arc<[IpNet]>,
    /// Where pods of the cluster have their addresses.
    pod_networks: AddressSet,
    /// The addresses, one per family, that connections have as their source where theirs has to change.
    sources: Arc<[IpAddr]>,
}

/// What becomes of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer<'a> {
    /// It is none of theirs.
    NotOurs,
    /// It goes nowhere.
    Drop(DropReason),
    /// It goes to one of these.
    Choose(Eligible<'a>),
}

/// The backends that a connection may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Eligible<'a> {
    pub(crate) port: &'a ServicePort,
    pub(crate) list: &'a Backends,
    pub(crate) rewrites_all: bool,
}

impl Services {
    /// No Services. `seed` is what hashes are keyed with: the same on all nodes of a cluster, and not known outside.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Moves on whenever something has changed. Not the snapshot's generation: sessions are not judged again for it.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Says how old this value is.
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

    /// The service port with this number.
    pub fn port(&self, number: u32) -> Option<&ServicePort> {
        self.ports.get(number as usize)?.as_deref()
    }

    /// Sets where a VIP leads, or removes it.
    pub fn set_vip(&mut self, vip: Vip, entry: Option<VipEntry>) {
        if self.vips.get(&vip) == entry.as_ref() {
            // Whoever has the map as well goes on sharing it.
            return;
        }
        let vips = Arc::make_mut(&mut self.vips);
        match entry {
            Some(entry) => drop(vips.insert(vip, entry)),
            None => drop(vips.remove(&vip)),
        }
    }

    /// Says that an address is a cluster address of Services: of which other ports are refused (`Some(true)`), of another proxy
    /// (`Some(false)`), or not any more.
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

    /// Says where Services have their cluster addresses: what is none of theirs in there is dropped.
    pub fn set_service_cidrs(&mut self, blocks: impl IntoIterator<Item = IpNet>) {
        self.service_cidrs = blocks.into_iter().collect();
    }

    /// The cluster addresses of Services that are translated here, in no order.
    pub fn own_cluster_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.cluster_addresses.iter().filter(|(_, ours)| **ours).map(|(address, _)| *address)
    }

    /// Whether both have the same cluster addresses, as far as that can be told without comparing them.
    pub fn shares_cluster_addresses(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.cluster_addresses, &other.cluster_addresses)
    }

    /// Says where pods of the cluster have their addresses, those of other nodes included.
    pub fn set_pod_networks(&mut self, networks: impl IntoIterator<Item = IpNet>) {
        self.pod_networks = networks.into_iter().collect();
    }

    /// Sets the addresses, one per family, that connections have as their source where theirs has to change. They lie in the
    /// node's own pod network, so that answers come back here, and nobody else has them.
    pub fn set_sources(&mut self, sources: impl IntoIterator<Item = IpAddr>) {
        self.sources = sources.into_iter().collect();
    }

    /// The address that connections of the other one's family have as their source where theirs has to change.
    pub fn source_for(&self, address: IpAddr) -> Option<IpAddr> {
        self.sources.iter().copied().find(|source| source.is_ipv4() == address.is_ipv4())
    }

    /// The addresses of [`Self::set_sources`].
    pub fn sources(&self) -> &[IpAddr] {
        &self.sources
    }

    /// Whether an address is one of [`Self::set_sources`].
    pub fn is_source(&self, address: IpAddr) -> bool {
        self.sources.contains(&address)
    }

    /// Where a VIP leads.
    pub fn vip(&self, vip: &Vip) -> Option<(&VipEntry, &ServicePort)> {
        let entry = self.vips.get(vip)?;
        Some((entry, self.port(entry.port)?))
    }

    /// Whether there is nothing to ask.
    pub(crate) fn is_empty(&self) -> bool {
        self.vips.is_empty() && self.cluster_addresses.is_empty() && self.service_cidrs.is_empty()
    }

    /// What becomes of a new connection. `has_ports` says whether the protocol has ports that Services know.
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
    /// The backend for a connection.
    pub(crate) fn choose(&self, services: &Services, flow: &Flow) -> Backend {
        self.list.choose(services.seed, flow)
    }

    /// Whether a connection may be given this one.
    pub(crate) fn find(&self, is_wanted: impl Fn(&Backend) -> bool) -> Option<Backend> {
        self.list.as_slice().iter().copied().find(is_wanted)
    }
}

impl ServicePort {
    /// Whether the backend still answers.
    pub(crate) fn is_serving(&self, socket: &SocketAddr) -> bool {
        self.serving.binary_search(socket).is_ok()
    }
}

#[cfg(test)]
mod tests;
