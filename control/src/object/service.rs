//! Services and their endpoints, reduced to what address translation needs.
//!
//! A Service of the API is called [`ClusterService`] here, because `Service` is the classifier's range of ports.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Labels, ObjectName, Timestamp, Transport};

/// A Service's namespace and name.
pub type ServiceName = ObjectName;

/// The node label with the zone's name. Source: Kubernetes "Well-Known Labels, Annotations and Taints".
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterService {
    /// The Service's namespace and name.
    pub name: ServiceName,
    /// Creation time of the Service. `None` if unknown.
    pub created: Option<Timestamp>,
    /// The label `service.kubernetes.io/service-proxy-name`. `None` if absent: the cluster's default proxy handles the Service.
    pub proxy: Option<Arc<str>>,
    /// The Service's labels, by which policies of other products select it.
    #[serde(default)]
    pub labels: Labels,
    /// The labels of the pods that are its endpoints. Empty if the Service selects no pods: others write its endpoints.
    #[serde(default)]
    pub selector: Labels,
    /// Cluster addresses, at most one per family. Empty for a headless Service or an ExternalName, which are not translated.
    pub cluster_ips: Vec<IpAddr>,
    /// External addresses (`spec.externalIPs`).
    pub external_ips: Vec<IpAddr>,
    /// Load balancer addresses that nodes translate: those without `ipMode: Proxy`.
    pub balancer_ips: Vec<IpAddr>,
    /// The ports. Names are unique, and so are pairs of number and protocol.
    pub ports: Vec<ServicePort>,
    /// The traffic policy for cluster addresses.
    pub internal_policy: TrafficPolicy,
    /// The traffic policy for external addresses, load balancer addresses and node ports.
    pub external_policy: TrafficPolicy,
    /// How long a client keeps its endpoint after its last new connection, in seconds. `None` without session affinity.
    pub affinity: Option<u32>,
    /// Blocks of clients that may connect to load balancer addresses. `None` permits all clients.
    pub source_ranges: Option<Vec<IpNet>>,
    /// The port at which each node answers health checks. `None` unless the external policy is Local.
    pub health_check_port: Option<u16>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    /// The name by which EndpointSlices refer to the port. May be empty if the Service has only one port.
    pub name: Arc<str>,
    /// The port's protocol.
    pub transport: Transport,
    /// The port's number at the Service's addresses.
    pub port: u16,
    /// The port's number at node addresses. `None` without a node port.
    pub node_port: Option<u16>,
}

/// The endpoints that new connections may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// Endpoints on all nodes.
    #[default]
    Cluster,
    /// Endpoints on the node that handles the packet.
    Local,
}

impl TrafficPolicy {
    /// Returns the policy's name in Kubernetes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}

/// A subset of a Service's endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointSlice {
    /// The slice's namespace and name.
    pub name: ObjectName,
    /// The name of its Service, in the same namespace. `None` if the slice belongs to no Service.
    pub service: Option<Arc<str>>,
    /// Whether the slice is labelled as that of a headless Service, which is not translated.
    pub headless: bool,
    /// The ports that each endpoint serves. Ports without a name or number are omitted.
    pub ports: Vec<EndpointPort>,
    /// The endpoints, all of one family. Empty for slices of domain names.
    pub endpoints: Vec<Endpoint>,
}

impl EndpointSlice {
    /// Returns the namespace and name of its Service. `None` if the slice belongs to no Service.
    pub fn service_name(&self) -> Option<ServiceName> {
        let service = self.service.clone()?;
        Some(ServiceName { namespace: self.name.namespace.clone(), name: service })
    }
}

/// A port of all endpoints of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointPort {
    /// The name of the Service port.
    pub name: Arc<str>,
    /// The port's protocol.
    pub transport: Transport,
    /// The port's number at the endpoints. May differ from the Service's number and between slices.
    pub port: u16,
}

/// An endpoint of a Service, usually a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The first address of the endpoint in the object; the others are alternatives.
    pub address: IpAddr,
    /// The endpoint's node. `None` if unknown: no node treats such an endpoint as local.
    pub node: Option<Arc<str>>,
    /// Whether the endpoint accepts new connections.
    pub ready: bool,
    /// Whether the endpoint still answers.
    pub serving: bool,
    /// Whether the endpoint is terminating.
    pub terminating: bool,
    /// The nodes and zones that should use the endpoint. `None` for all nodes. Boxed, because few endpoints have hints.
    pub hints: Option<Box<Hints>>,
}

impl Endpoint {
    /// Whether the endpoint is terminating but still serves, so that it may be used if no endpoint is ready.
    pub const fn is_draining(&self) -> bool {
        !self.ready && self.serving && self.terminating
    }
}

/// The nodes and zones that should use an endpoint, as the EndpointSlice controller decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    /// Names of nodes. Empty if the controller gives no hints for nodes.
    pub nodes: Vec<Arc<str>>,
    /// Names of zones. Empty if the controller gives no hints for zones.
    pub zones: Vec<Arc<str>>,
}
