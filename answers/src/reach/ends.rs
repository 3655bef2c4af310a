//! The ends of the matrix: all pods with an address, and the given external addresses.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::bail;
use bulkhead_control::object::Pod;
use bulkhead_control::pipeline::Pipeline;

use crate::fabric::{End, PodNetworks};
use crate::output;

/// The network on which an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// A pod's own network.
    Pod,
    /// A node's network. The end is the node or a host-network pod.
    Host,
    /// A network outside the cluster. The end is an external address.
    Outside,
    /// A node's pod network, on which no pod has the end's address: packets to it are dropped.
    Nowhere,
}

/// One address of an end, with the end's name.
#[derive(Debug)]
pub(super) struct NamedEnd {
    pub(super) name: String,
    pub(super) end: End,
    pub(super) place: Place,
    /// Identifies the pod, node or external address, counted from 0. All ends on the network of one node have the same number.
    pub(super) who: u32,
    /// Identifies the node of the pod, or the node itself, counted from 0. `None` for an address that no pod and no node has.
    pub(super) node: Option<u32>,
}

impl NamedEnd {
    pub(super) fn is_ipv4(&self) -> bool {
        self.end.address().is_ipv4()
    }

    pub(super) fn is_pod(&self) -> bool {
        matches!(self.end, End::Pod { .. })
    }

    /// Whether traffic between the two leaves neither pod nor node.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.who == other.who
    }
}

/// Whether policy can concern a connection between the ends.
pub(super) fn askable(from: &NamedEnd, to: &NamedEnd) -> bool {
    (from.is_pod() || to.is_pod()) && !from.is_same(to) && from.is_ipv4() == to.is_ipv4()
}

pub(super) fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// Returns the ends of all pods, by name, and of these external addresses.
///
/// # Errors
/// If no pod has an address, or an external address is a pod's.
pub(super) fn ends(pipeline: &Pipeline, external: &[IpAddr]) -> anyhow::Result<Vec<NamedEnd>> {
    let cache = pipeline.cache();
    let mut pods: Vec<_> = cache.pods().map(|(_, pod)| pod).filter(|pod| !pod.finished).collect();
    pods.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    // A pod on the host network is located by its node.
    let nowhere = |pod: &Pod| pod.addresses.is_empty() || (pod.host_network && pod.node.is_none());
    let waiting: Vec<String> = pods.iter().filter(|pod| nowhere(pod)).map(|pod| pod.name.to_string()).collect();
    if !waiting.is_empty() {
        let names: Vec<&str> = waiting.iter().map(String::as_str).collect();
        output::warn(&format!("skipped pods without an address or a node: {}", output::some_of(&names, 5)));
        pods.retain(|pod| !nowhere(pod));
    }
    if pods.is_empty() {
        bail!(
            "no pod with an address in the state\n  help: add the output of `kubectl get pods -A -o yaml` to --state"
        );
    }
    let mut numbers = Numbers { networks: PodNetworks::of(cache), ends: HashMap::new(), nodes: BTreeMap::new() };
    let mut ends: Vec<NamedEnd> =
        pods.into_iter().flat_map(|pod| End::of_pod(pod)).map(|end| numbers.named(end.to_string(), end)).collect();
    for address in super::distinct(external) {
        let end = End::at(pipeline.cache(), address);
        if let End::Pod { name, .. } = &end {
            bail!("--external {address} is the address of pod {name}\n  help: pass an address outside the cluster");
        }
        ends.push(numbers.named(address.to_string(), end));
    }
    Ok(ends)
}

/// The numbers of ends and nodes.
struct Numbers {
    networks: PodNetworks,
    ends: HashMap<String, u32>,
    nodes: BTreeMap<Arc<str>, u32>,
}

impl Numbers {
    fn named(&mut self, name: String, end: End) -> NamedEnd {
        let place = match &end {
            End::Pod { host_network: false, .. } => Place::Pod,
            End::Pod { .. } | End::Node { .. } => Place::Host,
            End::External(address) if self.networks.node_of(*address).is_some() => Place::Nowhere,
            End::External(_) => Place::Outside,
        };
        // No pod and no address is called like this.
        let who = match (place, end.node()) {
            (Place::Host, Some(node)) => format!("node {node}"),
            _ => name.clone(),
        };
        let next = u32::try_from(self.ends.len()).unwrap_or(u32::MAX);
        let who = *self.ends.entry(who).or_insert(next);
        let node = end.node().map(|node| {
            let next = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
            *self.nodes.entry(node.clone()).or_insert(next)
        });
        NamedEnd { name, end, place, who, node }
    }
}
