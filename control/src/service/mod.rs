//! # Services: which backends a new connection to a virtual address may be given
//!
//! **Purpose.** Joins Services with their endpoint slices as one node sees them: for each virtual address, protocol and port (VIP) the
//! service port behind it, and for each service port the backends of a new connection. Says what changed with each event.
//!
//! **Not its purpose.** It sees no packets: which of the backends one is given, and how its addresses are rewritten, is the
//! dataplane's. It knows no policy, which is judged on the backend afterwards.
//!
//! ```text
//!  Service, EndpointSlice, Node --events--> Resolver --Changes: service ports, VIPs, backends--> whoever publishes
//!                                              |
//!    Vip --the claim that wins--> ServicePortId --> ResolvedPort { cluster list, local list, policies, affinity, ranges }
//!                                                                      |              |
//!                                                                 BackendId      BackendId --> Backend { address, incarnation, serving }
//!
//!    client, destination --decide--> translate to one of these | reject | drop | pass
//! ```
//! The two address families are apart: a Service with both has service ports of each ([`PortName::ipv4`]).
//!
//! **Invariant.** What is known is a function of the objects alone, not of the order in which they came. The ids are not: one stays with
//! its service port or backend for as long as that exists, and goes to another one afterwards. Whoever keeps a [`BackendId`] keeps the
//! [`Backend::incarnation`] with it, by which a later one is told apart.
//!
//! **Conflicts.** Where several service ports claim one VIP, the kind of the address decides first ([`VipKind`]: the API server hands
//! out cluster addresses and node ports, anybody may write an external address into a Service), then the age of the Service, so that
//! nobody takes an address away from another one by a new Service, then its namespace and name. Pods' host ports are such claims too.
//!
//! **Choices** where Kubernetes says nothing, or its proxies differ:
//!
//! * A Service is of a family when it has a cluster address of it, as in kube-proxy.
//! * With `service_proxy_name` set only the Services labelled so are ours, as in Cilium and kpng.
//! * Of slices that disagree on one endpoint the one counts that finds it more usable: a refusal for the sake of a stale slice is
//!   worse than a connection to an endpoint that ends.
//! * The cluster address of a Service that is another proxy's passes, though it lies in a service CIDR.
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

/// A virtual address, protocol and port: what a Service is reached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Vip {
    /// The address.
    pub address: IpAddr,
    /// The protocol.
    pub transport: Transport,
    /// The port.
    pub port: u16,
}

impl fmt::Display for Vip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", SocketAddr::new(self.address, self.port), self.transport)
    }
}

/// What kind of address a VIP is of; of several claims the one of the first kind wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VipKind {
    /// `spec.clusterIPs`.
    ClusterIp,
    /// A node's address with `spec.ports[].nodePort`.
    NodePort,
    /// `status.loadBalancer.ingress`.
    LoadBalancer,
    /// A node's address with `spec.containers[].ports[].hostPort` of a pod. Before external addresses: who may write a Service takes it
    /// away from no pod.
    HostPort,
    /// `spec.externalIPs`.
    ExternalIp,
}

impl VipKind {
    /// As Kubernetes calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterIp => "cluster IP",
            Self::NodePort => "node port",
            Self::LoadBalancer => "load balancer",
            Self::HostPort => "host port",
            Self::ExternalIp => "external IP",
        }
    }

    /// Whether Kubernetes permits to rewrite the source also where the answer would come back without that. `policy` is the one for
    /// addresses of this kind.
    pub fn may_rewrite(self, policy: TrafficPolicy) -> bool {
        self == Self::ClusterIp || self != Self::HostPort && policy == TrafficPolicy::Cluster
    }
}

/// A service port, for as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePortId(u32);

impl ServicePortId {
    /// A small number, of which no two service ports have the same at a time.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A backend of a service port, for as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BackendId(u32);

impl BackendId {
    /// A small number, of which no two backends have the same at a time.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whose a service port is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A Service's.
    Service(ServiceName),
    /// A pod's: it is one of its host ports.
    Pod(PodName),
}

impl Owner {
    /// The Service, none for a host port.
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

/// What a service port is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortName {
    /// Whose it is.
    pub owner: Owner,
    /// The name of a Service's port, which may be empty; of a host port its number, with the address where the pod names one.
    pub port: Arc<str>,
    /// The protocol.
    pub transport: Transport,
    /// Whether it is the one of the IPv4 addresses, or of the IPv6 addresses.
    pub ipv4: bool,
}

/// A service port as the node sees it. Clients' affinity is to it, whatever VIP they used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedPort {
    /// What it is known by.
    pub name: PortName,
    /// The backends of all nodes that a new connection may be given, sorted by address.
    pub cluster: Arc<[BackendId]>,
    /// Those of this node, for where the policy is Local, sorted by address.
    pub local: Arc<[BackendId]>,
    /// The policy for cluster addresses.
    pub internal_policy: TrafficPolicy,
    /// The policy for all other addresses.
    pub external_policy: TrafficPolicy,
    /// For how many seconds after its last new connection a client stays with its backend; none without affinity.
    pub affinity: Option<u32>,
    /// Who may connect to the load balancer's addresses, of this family; none for everybody, empty for nobody.
    pub source_ranges: Option<Arc<[IpNet]>>,
    /// All its backends, in use or not, sorted by address.
    backends: Vec<BackendId>,
    /// What it claims.
    vips: Vec<(Vip, VipKind)>,
    /// When its Service or pod was made.
    created: Option<Timestamp>,
}

impl ResolvedPort {
    /// All its backends, in use or not, sorted by address: a session may be with any of them.
    pub fn backends(&self) -> &[BackendId] {
        &self.backends
    }

    /// The VIPs that it claims, also those that another service port has.
    pub fn vips(&self) -> &[(Vip, VipKind)] {
        &self.vips
    }

    /// The backends of a list.
    pub fn list(&self, list: List) -> &Arc<[BackendId]> {
        match list {
            List::Cluster => &self.cluster,
            List::Local => &self.local,
        }
    }

    /// Whether there is a backend on any node that a new connection could be given.
    pub fn is_usable(&self) -> bool {
        // Topology narrows to some of what is usable, never to none; and what is local is usable.
        !self.cluster.is_empty()
    }
}

/// What differs from before; what is named may also be gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Service ports: their lists, policies, affinity, ranges or VIPs.
    pub ports: BTreeSet<ServicePortId>,
    /// Backends.
    pub backends: BTreeSet<BackendId>,
    /// The service ports whose backends these are or were: also those of which nothing else differs.
    pub backend_ports: BTreeSet<ServicePortId>,
    /// VIPs that lead to another service port, or to none.
    pub vips: BTreeSet<Vip>,
    /// Addresses of which it differs whether they are cluster addresses of Services, or whose.
    pub cluster_ips: BTreeSet<IpAddr>,
    /// Health-check ports that answer otherwise.
    pub health_checks: BTreeSet<u16>,
}

impl Changes {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn add_backend(&mut self, id: BackendId, of: ServicePortId) {
        self.backends.insert(id);
        self.backend_ports.insert(of);
    }
}
