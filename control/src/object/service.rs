//! Services and the endpoints behind them: what translation needs of both.
//!
//! The Service of the API is called [`ClusterService`] here: a `Service` without more is the classifier's range of ports.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{ObjectName, Timestamp, Transport};

/// A Service's namespace and name.
pub type ServiceName = ObjectName;

/// The label of a node with the name of its zone. Source: Kubernetes "Well-Known Labels, Annotations and Taints".
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterService {
    /// Namespace and name.
    pub name: ServiceName,
    /// When its object was made; none where that does not say.
    pub created: Option<Timestamp>,
    /// The proxy that it is meant for (label `service.kubernetes.io/service-proxy-name`); none for the cluster's own.
    pub proxy: Option<Arc<str>>,
    /// Its addresses in the cluster, at most one of each family. Empty for a headless Service and for an ExternalName: nothing of these
    /// is translated.
    pub cluster_ips: Vec<IpAddr>,
    /// Further addresses at which it is reached (`spec.externalIPs`).
    pub external_ips: Vec<IpAddr>,
    /// The addresses of its load balancer that nodes bind: those without `ipMode: Proxy`.
    pub balancer_ips: Vec<IpAddr>,
    /// Its ports. No two have one name, and no two have one number and protocol.
    pub ports: Vec<ServicePort>,
    /// Which endpoints its cluster addresses lead to.
    pub internal_policy: TrafficPolicy,
    /// Which endpoints its external addresses, load balancer and node ports lead to.
    pub external_policy: TrafficPolicy,
    /// For how many seconds after its last new connection a client stays with its endpoint; none without session affinity.
    pub affinity: Option<u32>,
    /// Who may connect to the addresses of the load balancer; none for everybody.
    pub source_ranges: Option<Vec<IpNet>>,
    /// Where each node tells its load balancer whether it has endpoints; only with the external policy Local.
    pub health_check_port: Option<u16>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    /// Its name, by which endpoint slices refer to it; empty where the Service has one port only.
    pub name: Arc<str>,
    /// The protocol.
    pub transport: Transport,
    /// Its number at the addresses of the Service.
    pub port: u16,
    /// Its number at the addresses of nodes.
    pub node_port: Option<u16>,
}

/// Which endpoints may be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// Those of all nodes.
    #[default]
    Cluster,
    /// Those of the node that the packet is at.
    Local,
}

impl TrafficPolicy {
    /// As Kubernetes writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}

/// Some of the endpoints of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointSlice {
    /// Namespace and name.
    pub name: ObjectName,
    /// The name of its Service, in its namespace; none where it belongs to none.
    pub service: Option<Arc<str>>,
    /// Whether it is marked as one of a headless Service, which is not translated.
    pub headless: bool,
    /// The ports that each of its endpoints serves. Those without a name or a number are left out.
    pub ports: Vec<EndpointPort>,
    /// The endpoints, all of one family; those of a slice of domain names are left out.
    pub endpoints: Vec<Endpoint>,
}

impl EndpointSlice {
    /// The Service that it belongs to.
    pub fn service_name(&self) -> Option<ServiceName> {
        let service = self.service.clone()?;
        Some(ServiceName { namespace: self.name.namespace.clone(), name: service })
    }
}

/// A port of endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointPort {
    /// The name of the Service's port that it serves.
    pub name: Arc<str>,
    /// The protocol.
    pub transport: Transport,
    /// Its number at the endpoints, which may differ from the Service's and from that in another slice.
    pub port: u16,
}

/// One that serves: usually a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its address: the first one of the object's, since the others are alternatives.
    pub address: IpAddr,
    /// Its node; none where that is not told, which no node counts as its own.
    pub node: Option<Arc<str>>,
    /// Whether it takes new connections.
    pub ready: bool,
    /// Whether it still answers.
    pub serving: bool,
    /// Whether it is about to end.
    pub terminating: bool,
    /// From where it is to be used; none where every node may. Boxed, since few have hints.
    pub hints: Option<Box<Hints>>,
}

impl Endpoint {
    /// Whether it is of use when no endpoint is ready: it ends, and answers until then.
    pub const fn is_draining(&self) -> bool {
        !self.ready && self.serving && self.terminating
    }
}

/// From where an endpoint is to be used, as the controller of slices decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    /// From these nodes; empty where nodes are not told.
    pub nodes: Vec<Arc<str>>,
    /// From the nodes of these zones; empty where zones are not told.
    pub zones: Vec<Arc<str>>,
}
