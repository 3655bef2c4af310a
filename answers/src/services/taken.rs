//! Source addresses that belong to a pod or node, which translated connections must not use.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::service::Settings;

use super::{Adapter, first_address};

/// Withholds source addresses that a pod or node has. Returns these addresses with their owners.
pub fn withhold_taken(adapter: &mut Adapter, pipeline: &Pipeline) -> BTreeMap<IpAddr, String> {
    let sources = adapter.source_addresses().into_iter();
    let taken: BTreeMap<IpAddr, String> =
        sources.filter_map(|address| Some((address, holder(pipeline, address)?))).collect();
    adapter.withhold(taken.keys().copied().collect());
    taken
}

/// Returns all nodes' source addresses that belong to a pod or node.
pub fn taken_sources(pipeline: &Pipeline, settings: &Settings) -> BTreeSet<IpAddr> {
    let blocks = pipeline.cache().nodes().values().flat_map(|node| &node.pod_cidrs);
    let all = blocks.filter_map(first_address).chain(settings.source_addresses.iter().copied());
    all.filter(|&address| holder(pipeline, address).is_some()).collect()
}

/// Returns the owner of an address. `None` if no pod or node has the address.
fn holder(pipeline: &Pipeline, address: IpAddr) -> Option<String> {
    let cache = pipeline.cache();
    let node = cache.nodes().values().find(|node| node.addresses.contains(&address));
    let node = node.map(|node| format!("node {}", node.name));
    let pod = || cache.pods_at(address).find(|(_, pod)| !pod.finished).map(|(_, pod)| format!("pod {}", pod.name));
    node.or_else(pod)
}
