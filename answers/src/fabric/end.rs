//! The ends of connections, and what is at an address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::cache::Cache;
use bulkhead_control::object::{Node, Pod, PodName};
use bulkhead_control::pipeline::UNBOUND;
use ipnet::IpNet;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// A pod with one of its addresses.
    Pod {
        /// Namespace and name.
        name: PodName,
        /// Node of the pod.
        node: Arc<str>,
        /// Whether the pod is on the host network.
        host_network: bool,
        /// IPv4 or IPv6 address.
        address: IpAddr,
    },
    /// A node: its kubelet, or any other process on the host network.
    Node {
        /// Name of the node.
        node: Arc<str>,
        /// IPv4 or IPv6 address.
        address: IpAddr,
    },
    /// An address outside the cluster.
    External(IpAddr),
}

impl End {
    /// Returns one end per address of a pod.
    pub fn of_pod(pod: &Pod) -> impl Iterator<Item = Self> + '_ {
        pod.addresses.iter().map(|&address| Self::Pod {
            name: pod.name.clone(),
            node: pod.node.clone().unwrap_or_else(|| UNBOUND.into()),
            host_network: pod.host_network,
            address,
        })
    }

    /// Returns the owner of an address: a pod, a node, or an external end.
    pub fn at(cache: &Cache, address: IpAddr) -> Self {
        let node = cache.nodes().values().find(|node| node.addresses.contains(&address));
        if let Some(node) = node {
            return Self::Node { node: node.name.clone(), address };
        }
        let mut pods = cache.pods_at(address).map(|(_, pod)| pod).filter(|pod| !pod.finished);
        let end = |pod: &Arc<Pod>| Self::of_pod(pod).find(|end| end.address() == address);
        pods.find_map(end).unwrap_or(Self::External(address))
    }

    /// Returns the IPv4 or IPv6 address of the end.
    pub fn address(&self) -> IpAddr {
        match self {
            Self::Pod { address, .. } | Self::Node { address, .. } | Self::External(address) => *address,
        }
    }

    /// Whether traffic between the two leaves neither pod nor node: a pod and itself, or two users of one node's network.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::External(one), Self::External(other)) => one == other,
            (Self::Pod { name: one, host_network: false, .. }, Self::Pod { name: other, host_network: false, .. }) => {
                one == other
            }
            _ => self.host().is_some() && self.host() == other.host(),
        }
    }

    /// Returns the node on whose network the end is. `None` for a pod with its own network, and an external address.
    pub fn host(&self) -> Option<&Arc<str>> {
        match self {
            Self::Pod { node, host_network: true, .. } | Self::Node { node, .. } => Some(node),
            Self::Pod { .. } | Self::External(_) => None,
        }
    }

    /// Returns the node of the end. `None` for an external address.
    pub fn node(&self) -> Option<&Arc<str>> {
        match self {
            Self::Pod { node, .. } | Self::Node { node, .. } => Some(node),
            Self::External(_) => None,
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pod { name, .. } => write!(f, "{name}"),
            Self::Node { node, .. } => write!(f, "node {node}"),
            Self::External(address) => write!(f, "{address}"),
        }
    }
}

/// The pod networks of all nodes (`spec.podCIDRs`) by their first address.
pub struct PodNetworks(BTreeMap<IpAddr, (IpNet, Arc<str>)>);

impl PodNetworks {
    /// Returns the pod networks of a state's nodes.
    pub fn of(cache: &Cache) -> Self {
        let of_node = |node: &Arc<Node>| {
            let node = node.clone();
            node.pod_cidrs.clone().into_iter().map(move |net| (net.network(), (net, node.name.clone())))
        };
        Self(cache.nodes().values().flat_map(of_node).collect())
    }

    /// Returns the node that has the network of an address. `None` if no node has it.
    pub fn node_of(&self, address: IpAddr) -> Option<&Arc<str>> {
        let (_, (net, node)) = self.0.range(..=address).next_back()?;
        net.contains(&address).then_some(node)
    }
}

/// Returns the addresses of a node and of its host-network pods, without duplicates. Empty if the state has no address of the node.
pub fn addresses_of_node(cache: &Cache, name: &Arc<str>) -> Vec<IpAddr> {
    let own = cache.nodes().get(name).into_iter().flat_map(|node| node.addresses.iter().copied());
    let of_pods = cache.host_network_pods(name).flat_map(|pod| pod.addresses.iter().copied());
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in own.chain(of_pods) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}
