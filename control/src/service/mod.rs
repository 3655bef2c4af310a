//! # Services: the backends for a new connection to a virtual address
//!
//! **Purpose.** Joins Services with their EndpointSlices, as one node sees them. Maps each virtual address, protocol and port (VIP) to a
//! service port, and each service port to the backends for new connections. Reports what each event changed.
//!
//! **Not its purpose.** The dataplane chooses a backend, rewrites addresses and then judges policy on the backend.
//!
//! ```text
//!  Service, EndpointSlice, Node --events--> Resolver --Changes: service ports, VIPs, backends--> publisher
//!                                              |
//!    Vip --winning claim--> ServicePortId --> ResolvedPort { cluster list, local list, policies, affinity, ranges }
//!                                                                      |              |
//!                                                                 BackendId      BackendId --> Backend { address, incarnation, serving }
//!
//!    client, destination --decide--> translate to one of these | reject | drop | pass
//! ```
//! Each service port has one address family. A dual-stack Service has service ports of both ([`PortName::ipv4`]).
//!
//! **Invariant.** The result depends on the objects only, not on the order of events. Ids are an exception: a service port or backend keeps
//! its id while it exists, and a later one may reuse the id. To detect reuse of a [`BackendId`], store [`Backend::incarnation`] with it.
//!
//! **Conflicts.** If several service ports claim one VIP, the claim with the first kind of address wins ([`VipKind`]). The API server
//! assigns cluster addresses and node ports, but any author of a Service can set an external address. Ties go to the older Service, so a
//! new Service cannot take over an address, then to the first namespace and name. Pods' host ports are claims too.
//!
//! **Choices** where Kubernetes defines nothing, or its proxies differ:
//!
//! * A Service belongs to an address family if it has a cluster address of that family, as in kube-proxy.
//! * If `service_proxy_name` is set, only Services with that label are handled, as in Cilium and kpng.
//! * If slices disagree on an endpoint, the slice that finds it more usable wins. Refusing connections because of a stale slice is worse
//!   than a connection to a terminating endpoint.
//! * Packets to the cluster address of another proxy's Service pass, even inside a service CIDR.
//!
//! Source: Kubernetes "Virtual IPs and Service Proxies", "EndpointSlices", "Topology Aware Routing", and kube-proxy's behaviour.

mod backends;
mod claims;
mod clients;
mod decide;
mod health;
mod resolver;
mod select;
mod settings;
mod standing;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

pub use self::backends::Backend;
pub use self::clients::Clients;
pub use self::decide::{Action, Answer, Choice, Client, Decision, Place, Reached};
pub use self::health::{HealthAnswer, HealthBody, HealthCheck};
pub use self::resolver::Resolver;
pub use self::select::List;
pub use self::settings::{NodePortAddresses, Settings, SettingsError};
pub use self::standing::Unused;
use crate::object::{PodName, ServiceName, Timestamp, TrafficPolicy, Transport};

/// A virtual address, protocol and port at which clients reach a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vip {
    /// The virtual IP address.
    pub address: IpAddr,
    /// TCP, UDP or SCTP.
    pub transport: Transport,
    /// The destination port, in host byte order.
    pub port: u16,
}

impl fmt::Display for Vip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", SocketAddr::new(self.address, self.port), self.transport)
    }
}

/// The kind of a VIP's address. If several service ports claim a VIP, the first kind in this order wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VipKind {
    /// A cluster address of a Service (`spec.clusterIPs`).
    ClusterIp,
    /// A node's address with `spec.ports[].nodePort`.
    NodePort,
    /// A load balancer address of a Service (`status.loadBalancer.ingress`).
    LoadBalancer,
    /// A node's address with `hostPort` of a pod. Ranks before external addresses, so that no Service author can take a pod's port.
    HostPort,
    /// An external address of a Service (`spec.externalIPs`).
    ExternalIp,
}

impl VipKind {
    /// Returns the kind's name in Kubernetes, for output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterIp => "cluster IP",
            Self::NodePort => "node port",
            Self::LoadBalancer => "load balancer",
            Self::HostPort => "host port",
            Self::ExternalIp => "external IP",
        }
    }

    /// Whether Kubernetes permits rewriting the source even if replies would return without it. `policy` applies to this kind of address.
    pub fn may_rewrite(self, policy: TrafficPolicy) -> bool {
        self == Self::ClusterIp || self != Self::HostPort && policy == TrafficPolicy::Cluster
    }
}

/// The id of a service port while it exists. A later service port may reuse the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePortId(u32);

impl ServicePortId {
    /// Returns a small array index, unique among existing service ports.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The id of a backend while it exists. A later backend may reuse the id ([`Backend::incarnation`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(u32);

impl BackendId {
    /// Returns a small array index, unique among existing backends.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The object that a service port belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// The Service that declares the port.
    Service(ServiceName),
    /// The pod that has the port as a host port.
    Pod(PodName),
}

impl Owner {
    /// Returns the Service's name. `None` for a host port.
    pub const fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::Service(name) => Some(name),
            Self::Pod(_) => None,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => name.fmt(f),
            Self::Pod(name) => write!(f, "pod {name}"),
        }
    }
}

/// The unique name of a service port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortName {
    /// The Service or pod that declares the port.
    pub owner: Owner,
    /// The port's name in the Service, which may be empty. For a host port: the number, after `hostIP:` if the pod sets one.
    pub port: Arc<str>,
    /// TCP, UDP or SCTP.
    pub transport: Transport,
    /// Whether the port's VIPs and backends are IPv4; otherwise IPv6.
    pub ipv4: bool,
}

/// A service port as this node sees it. Session affinity is per service port, for all its VIPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedPort {
    /// The service port's unique name.
    pub name: PortName,
    /// Backends on all nodes for new connections, sorted by address.
    pub cluster: Arc<[BackendId]>,
    /// Backends on this node for new connections, sorted by address. Used if the traffic policy is Local.
    pub local: Arc<[BackendId]>,
    /// The traffic policy for cluster addresses.
    pub internal_policy: TrafficPolicy,
    /// The traffic policy for all other addresses.
    pub external_policy: TrafficPolicy,
    /// How long a client keeps its backend after its last new connection, in seconds. `None` without session affinity.
    pub affinity: Option<u32>,
    /// Blocks of clients that may use load balancer addresses, of this family. `None` permits all clients; an empty list permits none.
    pub source_ranges: Option<Arc<[IpNet]>>,
    /// All backends, sorted by address, including those in neither `cluster` nor `local`.
    backends: Vec<BackendId>,
    /// The VIPs that the service port claims.
    vips: Vec<(Vip, VipKind)>,
    /// Creation time of its Service or pod. `None` if the object has none.
    created: Option<Timestamp>,
}

impl ResolvedPort {
    /// Returns all backends, sorted by address. Includes backends that get no new connections, because sessions may still use them.
    pub fn backends(&self) -> &[BackendId] {
        &self.backends
    }

    /// Returns the VIPs that the service port claims, including VIPs that another service port wins.
    pub fn vips(&self) -> &[(Vip, VipKind)] {
        &self.vips
    }

    /// Returns the ids of the list's backends, sorted by address.
    pub fn list(&self, list: List) -> &Arc<[BackendId]> {
        match list {
            List::Cluster => &self.cluster,
            List::Local => &self.local,
        }
    }

    /// Whether any node has a backend for new connections.
    pub fn is_usable(&self) -> bool {
        // Topology hints never empty the cluster list, and every local backend is usable.
        !self.cluster.is_empty()
    }
}

/// The ids, VIPs and addresses that an event changed. They may no longer exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Service ports whose lists, policies, affinity, ranges or VIPs changed.
    pub ports: BTreeSet<ServicePortId>,
    /// Backends that were added, removed or changed.
    pub backends: BTreeSet<BackendId>,
    /// The service ports of those backends, even if nothing else about the service port changed.
    pub backend_ports: BTreeSet<ServicePortId>,
    /// VIPs that now lead to another service port or to none.
    pub vips: BTreeSet<Vip>,
    /// Addresses that became or ceased to be cluster addresses, or belong to other Services than before.
    pub cluster_ips: BTreeSet<IpAddr>,
    /// Ports whose health check was added, removed or changed.
    pub health_checks: BTreeSet<u16>,
}

impl Changes {
    /// Whether the event changed nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add_backend(&mut self, id: BackendId, of: ServicePortId) {
        self.backends.insert(id);
        self.backend_ports.insert(of);
    }
}
