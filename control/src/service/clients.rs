//! Locates a client by its address, for offline queries. A vswitch uses the packet's ingress port instead, which is exact.

use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use ipnet::IpNet;

use super::{Client, NodePortAddresses, Place, Settings};
use crate::object::{Node, Object, Pod, PodName};

/// The owners of addresses: nodes, pods and pod CIDRs.
#[derive(Clone, Debug, Default)]
pub struct Clients {
    node: Arc<str>,
    cluster_cidrs: Vec<IpNet>,
    node_port_blocks: Vec<IpNet>,
    /// Addresses of nodes and of their host-network pods.
    nodes: AHashMap<IpAddr, Arc<str>>,
    pods: AHashMap<IpAddr, (PodName, Option<Arc<str>>)>,
    pod_cidrs: Vec<(IpNet, Arc<str>)>,
}

impl Clients {
    /// Collects the addresses in these objects, as seen from `node`.
    pub fn new<'a>(node: &Arc<str>, settings: &Settings, objects: impl IntoIterator<Item = &'a Object>) -> Self {
        let node_port_blocks = match &settings.node_port_addresses {
            NodePortAddresses::Primary => Vec::new(),
            NodePortAddresses::In(blocks) => blocks.clone(),
        };
        let cluster_cidrs = settings.cluster_cidrs.clone();
        let mut clients = Self { node: node.clone(), cluster_cidrs, node_port_blocks, ..Self::default() };
        for object in objects {
            match object {
                Object::Node(node) => clients.add_node(node),
                Object::Pod(pod) if !pod.finished => clients.add_pod(pod),
                _ => {}
            }
        }
        clients
    }

    fn add_node(&mut self, node: &Node) {
        self.nodes.extend(node.addresses.iter().map(|&address| (address, node.name.clone())));
        self.pod_cidrs.extend(node.pod_cidrs.iter().map(|&block| (block, node.name.clone())));
    }

    fn add_pod(&mut self, pod: &Pod) {
        for &address in &pod.addresses {
            match &pod.node {
                Some(node) if pod.host_network => drop(self.nodes.entry(address).or_insert_with(|| node.clone())),
                _ => drop(self.pods.insert(address, (pod.name.clone(), pod.node.clone()))),
            }
        }
    }

    /// Returns the client at `address` that connects to `destination`. If both are equal, the client is this node, the only possible
    /// sender.
    pub fn at(&self, address: IpAddr, destination: IpAddr) -> Client {
        let of_pod = |node: Option<&Arc<str>>| match node {
            Some(node) if *node != self.node => Place::OtherPod,
            // An address without a known node counts as local to the queried node.
            _ => Place::Pod,
        };
        let block = self.pod_cidrs.iter().find(|(block, _)| block.contains(&address));
        let place = if let Some(node) = self.nodes.get(&address) {
            if *node == self.node { Place::Host } else { Place::Outside }
        } else if address == destination {
            Place::Host
        } else if let Some((_, node)) = self.pods.get(&address) {
            of_pod(node.as_ref())
        } else if let Some((_, node)) = block {
            of_pod(Some(node))
        } else if self.cluster_cidrs.iter().any(|block| block.contains(&address)) {
            Place::Pod
        } else {
            Place::Outside
        };
        Client { address, place }
    }

    /// Describes the owner of an address: `pod x/a`, `node n1`. `None` if the owner is unknown.
    pub fn told(&self, address: IpAddr) -> Option<String> {
        let pod = self.pods.get(&address).map(|(pod, _)| format!("pod {pod}"));
        self.nodes.get(&address).map(|node| format!("node {node}")).or(pod)
    }

    /// Whether this node may have the address although its object lacks it: `node_port_addresses` includes it, and it has no known owner.
    pub fn may_be_nodes(&self, address: IpAddr) -> bool {
        self.node_port_blocks.iter().any(|block| block.contains(&address))
            && !self.nodes.contains_key(&address)
            && !self.pods.contains_key(&address)
            && !self.pod_cidrs.iter().any(|(block, _)| block.contains(&address))
    }
}
