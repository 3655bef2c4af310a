//! The cluster whose policies are translated, and sets of its addresses that many rules need.

use std::cell::OnceCell;
use std::net::IpAddr;

use bulkhead_classifier::AddressSet;
use bulkhead_control::cache::Cache;
use ipnet::IpNet;

/// A cluster. Computes each set of addresses when it is first needed, and once.
#[derive(Debug)]
pub(super) struct Cluster<'a> {
    pub(super) cache: &'a Cache,
    /// The addresses of all pods, ascending.
    pods: OnceCell<Vec<IpAddr>>,
    every_pod: OnceCell<AddressSet>,
    every_node: OnceCell<AddressSet>,
}

impl<'a> Cluster<'a> {
    pub(super) const fn new(cache: &'a Cache) -> Self {
        Self { cache, pods: OnceCell::new(), every_pod: OnceCell::new(), every_node: OnceCell::new() }
    }

    /// Whether a pod has an address in one of the blocks.
    pub(super) fn has_pod_in(&self, blocks: &[IpNet]) -> bool {
        let pods = self.pods.get_or_init(|| {
            let mut all: Vec<IpAddr> = self.cache.pods().flat_map(|(_, pod)| pod.addresses.iter().copied()).collect();
            all.sort_unstable();
            all
        });
        let first_from = |address: IpAddr| pods.get(pods.partition_point(|pod| *pod < address));
        blocks.iter().any(|block| first_from(block.network()).is_some_and(|pod| block.contains(pod)))
    }

    /// Returns the addresses that pods have or may get: those of all endpoints, and the nodes' `podCIDRs`.
    pub(super) fn every_pod(&self) -> &AddressSet {
        self.every_pod.get_or_init(|| {
            let pods = self.cache.pods().map(|(_, pod)| pod).filter(|pod| pod.is_endpoint());
            let own: AddressSet = pods.flat_map(|pod| pod.addresses.iter().copied()).collect();
            own.union(&self.cache.nodes().values().flat_map(|node| node.pod_cidrs.iter().copied()).collect())
        })
    }

    /// Returns the addresses of all nodes.
    pub(super) fn every_node(&self) -> &AddressSet {
        self.every_node
            .get_or_init(|| self.cache.nodes().values().flat_map(|node| node.addresses.iter().copied()).collect())
    }
}
