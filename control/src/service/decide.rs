//! What becomes of the first packet of a connection: the semantics in one place, asked by the command line as by the dataplane's tests.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{BackendId, List, Resolver, ServicePortId, Vip, VipKind};
use crate::object::{ServiceName, TrafficPolicy, Transport};

/// Where a client is, seen from the node: to a vswitch the port that its packet came in on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A pod of this node.
    Pod,
    /// A pod of another node: to traffic policies a pod, but answers of other nodes' backends do not come back through here.
    OtherPod,
    /// This node itself.
    Host,
    /// Anything else, other nodes among them.
    Outside,
}

/// Who opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its address.
    pub address: IpAddr,
    /// Where it is.
    pub place: Place,
}

/// A backend that may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The backend.
    pub backend: BackendId,
    /// Whether the client's address has to be rewritten too, or its answer would miss this node.
    pub rewrites_source: bool,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// It goes to a backend.
    Translate,
    /// Its sender is told that there is nothing: a TCP reset, or ICMP port unreachable.
    Reject,
    /// It is dropped, and nobody is told.
    Drop,
    /// It is none of ours and goes on unchanged.
    Pass,
}

/// Why that becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is given one of these, sorted by address; never empty.
    Backends(Vec<Choice>),
    /// No endpoint is usable on any node.
    NoEndpoint,
    /// Endpoints are usable, but none on this node: its load balancer may not know yet.
    NoLocalEndpoint,
    /// The client is in none of the load balancer's source ranges.
    SourceRange,
    /// It is the cluster address of a Service that has no such port.
    UnknownPort,
    /// It is in this service CIDR, and no Service has it: it would come back over the default route.
    UnallocatedAddress(IpNet),
    /// It is the cluster address of a Service that is left to another proxy.
    OtherProxy,
    /// No Service is reached by it.
    NotOurs,
}

impl Answer {
    /// What becomes of the connection.
    pub const fn action(&self) -> Action {
        match self {
            Self::Backends(_) => Action::Translate,
            Self::NoEndpoint | Self::UnknownPort => Action::Reject,
            Self::NoLocalEndpoint | Self::SourceRange | Self::UnallocatedAddress(_) => Action::Drop,
            Self::OtherProxy | Self::NotOurs => Action::Pass,
        }
    }
}

/// The service port that was reached, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The service port.
    pub port: ServicePortId,
    /// What kind of address was used.
    pub kind: VipKind,
    /// The list that counts for this client.
    pub list: List,
}

/// What becomes of a connection, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The service port that was reached; none where none was.
    pub reached: Option<Reached>,
    /// The Service whose address was used; none where it is no Service's.
    pub service: Option<ServiceName>,
    /// What becomes of it.
    pub answer: Answer,
}

impl Resolver {
    /// What becomes of a new connection of this client. `port` is none for what is neither TCP nor UDP nor SCTP, such as a ping.
    ///
    /// None before all is listed.
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
            // As if it had gone to the load balancer and come back at a node that has endpoints.
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
            // Where the source is promised to be kept, or never rewritten by Kubernetes, the option does not change that.
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

    /// Whether the answer would not come back to this node, or not to the client, with the client's own address.
    fn needs_rewrite(&self, client: Client, vip: IpAddr, backend: BackendId) -> bool {
        let backend = self.backend(backend);
        match client.place {
            // It would talk to itself.
            _ if backend.address == client.address => true,
            Place::Pod => false,
            Place::OtherPod | Place::Outside => !backend.local,
            // An address of its own is behind the host's port; a VIP as the source may be another node's too.
            Place::Host => {
                let is_own = |address: IpAddr| self.node_addresses().any(|own| own == address);
                is_own(backend.address) || client.address == vip && !is_own(vip)
            }
        }
    }

    /// Whether the client may use the load balancer's address. Where the ranges hold an address of the node, its own packets may also
    /// come with the VIP as their source.
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
            Self::OtherProxy => f.write_str("the Service is left to another proxy"),
            Self::NotOurs => f.write_str("no Service is reached by this address, protocol and port"),
        }
    }
}
