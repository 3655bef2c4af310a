//! Decides what happens to the first packet of a connection. The command line and the dataplane's tests both use this implementation.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{BackendId, List, Resolver, ServicePortId, Vip, VipKind};
use crate::object::{ServiceName, TrafficPolicy, Transport};

/// A client's location relative to this node. A vswitch derives it from the packet's ingress port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A pod on this node.
    Pod,
    /// A pod on another node. Traffic policies treat it as a pod, but replies from other nodes' backends do not return through this node.
    OtherPod,
    /// This node, or a pod in its host network.
    Host,
    /// Any other host, including other nodes.
    Outside,
}

/// The host or pod that opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// The connection's source address.
    pub address: IpAddr,
    /// The client's location relative to this node.
    pub place: Place,
}

/// A backend for a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The backend's id.
    pub backend: BackendId,
    /// Whether to rewrite the source too, because replies would otherwise miss this node or the settings require it.
    pub rewrites_source: bool,
}

/// The treatment of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Sends the connection to a backend.
    Translate,
    /// Refuses the connection with a TCP reset or ICMP port unreachable.
    Reject,
    /// Drops the packet without a reply.
    Drop,
    /// Forwards the packet unchanged: no handled Service has the address.
    Pass,
}

/// The reason for a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The connection may use any of these backends. Sorted by address; never empty.
    Backends(Vec<Choice>),
    /// No node has a usable endpoint.
    NoEndpoint,
    /// Other nodes have usable endpoints, but this node has none. The load balancer may not have noticed yet.
    NoLocalEndpoint,
    /// The client is outside the load balancer's source ranges.
    SourceRange,
    /// The destination is the cluster address of a Service without this port.
    UnknownPort,
    /// The destination is in this service CIDR, but no Service has it. A forwarded packet would return over the default route.
    UnallocatedAddress(IpNet),
    /// The destination is the cluster address of a Service that another proxy handles.
    OtherProxy,
    /// The destination belongs to no Service.
    NotOurs,
}

impl Answer {
    /// Returns the treatment that follows from the reason.
    pub const fn action(&self) -> Action {
        match self {
            Self::Backends(_) => Action::Translate,
            Self::NoEndpoint | Self::UnknownPort => Action::Reject,
            Self::NoLocalEndpoint | Self::SourceRange | Self::UnallocatedAddress(_) => Action::Drop,
            Self::OtherProxy | Self::NotOurs => Action::Pass,
        }
    }
}

/// The service port that a connection reached, with the kind of address and the list in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The service port's id.
    pub port: ServicePortId,
    /// The kind of the destination address.
    pub kind: VipKind,
    /// The backend list for this client.
    pub list: List,
}

/// The decision about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The service port that the connection reached. `None` if no service port has the VIP.
    pub reached: Option<Reached>,
    /// The Service with the destination address. `None` if no Service has it, or if a pod has it as a host port.
    pub service: Option<ServiceName>,
    /// The treatment and its reason.
    pub answer: Answer,
}

impl Resolver {
    /// Decides about a client's new connection. `port` is `None` for protocols other than TCP, UDP and SCTP, such as a ping.
    ///
    /// Returns `None` until all objects are listed ([`Self::listed`]).
    pub fn decide(&self, client: Client, address: IpAddr, port: Option<(Transport, u16)>) -> Option<Decision> {
        if !self.is_listed() {
            return None;
        }
        let vip = port.map(|(transport, port)| Vip { address, transport, port });
        Some(match vip.and_then(|vip| self.vip(&vip)) {
            Some((port, kind)) => self.at_port(client, address, port, kind),
            None => self.without_port(address),
        })
    }

    fn at_port(&self, client: Client, vip: IpAddr, id: ServicePortId, kind: VipKind) -> Decision {
        let port = self.ports[id.index()].as_ref().expect("a VIP leads to a service port that exists");
        let is_outside = client.place == Place::Outside;
        let policy = if kind == VipKind::ClusterIp { port.internal_policy } else { port.external_policy };
        let list = match policy {
            TrafficPolicy::Cluster => List::Cluster,
            TrafficPolicy::Local if kind == VipKind::ClusterIp || is_outside => List::Local,
            // Treated as if the load balancer had sent the packet to a node with endpoints.
            TrafficPolicy::Local => List::Cluster,
        };
        let ids = port.list(list);
        let answer = if kind == VipKind::LoadBalancer && !self.is_in_ranges(port.source_ranges.as_deref(), client, vip)
        {
            Answer::SourceRange
        } else if !port.is_usable() {
            Answer::NoEndpoint
        } else if ids.is_empty() {
            Answer::NoLocalEndpoint
        } else {
            // `masquerade_all` rewrites no source that Kubernetes promises to keep or never rewrites.
            let may_rewrite = kind.may_rewrite(policy);
            let rewrites_all = self.settings.masquerade_all && may_rewrite;
            let choice = |&backend: &BackendId| Choice {
                backend,
                rewrites_source: rewrites_all || self.needs_rewrite(client, vip, backend),
            };
            Answer::Backends(ids.iter().map(choice).collect())
        };
        Decision {
            reached: Some(Reached { port: id, kind, list }),
            service: port.name.owner.service().cloned(),
            answer,
        }
    }

    /// Whether replies to the client's own address would miss this node or the client.
    fn needs_rewrite(&self, client: Client, vip: IpAddr, backend: BackendId) -> bool {
        let backend = self.backend(backend);
        match client.place {
            // The client would connect to itself.
            _ if backend.address == client.address => true,
            Place::Pod => false,
            Place::OtherPod | Place::Outside => !backend.local,
            // The host's own addresses are behind its port. If the source is the VIP, another node may have the same address.
            Place::Host => {
                let is_own = |address: IpAddr| self.node_addresses().any(|own| own == address);
                is_own(backend.address) || client.address == vip && !is_own(vip)
            }
        }
    }

    /// Whether the client is in the source ranges. If they hold an address of this node, its packets may also have the VIP as source.
    fn is_in_ranges(&self, ranges: Option<&[IpNet]>, client: Client, vip: IpAddr) -> bool {
        let Some(ranges) = ranges else { return true };
        let holds = |address: IpAddr| ranges.iter().any(|range| range.contains(&address));
        holds(client.address) || client.address == vip && self.node_addresses().any(holds)
    }

    fn without_port(&self, address: IpAddr) -> Decision {
        let services = self.cluster_ips.get(&address);
        let first = |ours: bool| services.and_then(|all| all.iter().find(|(_, is_ours)| **is_ours == ours));
        let (service, answer) = if let Some((service, _)) = first(true) {
            (Some(service.clone()), Answer::UnknownPort)
        } else if let Some((service, _)) = first(false) {
            (Some(service.clone()), Answer::OtherProxy)
        } else if let Some(block) = self.settings.service_cidrs.iter().find(|block| block.contains(&address)) {
            (None, Answer::UnallocatedAddress(*block))
        } else {
            (None, Answer::NotOurs)
        };
        Decision { reached: None, service, answer }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backends(_) => f.write_str("any of the backends may be chosen"),
            Self::NoEndpoint => f.write_str("no endpoint is usable on any node"),
            Self::NoLocalEndpoint => f.write_str("endpoints are usable, but none on this node"),
            Self::SourceRange => f.write_str("the client is in none of the loadBalancerSourceRanges"),
            Self::UnknownPort => f.write_str("the Service has no such port"),
            Self::UnallocatedAddress(block) => write!(f, "no Service has this address of the service CIDR {block}"),
            Self::OtherProxy => f.write_str("another proxy handles the Service"),
            Self::NotOurs => f.write_str("no Service has this address, protocol and port"),
        }
    }
}
