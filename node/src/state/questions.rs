//! Answers other threads' questions about pods and nodes.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use bulkhead_control::attachments::Standing;
use bulkhead_control::object::{Pod, PodName};
use bulkhead_control::renderer::acl;
use ipnet::IpNet;

use super::LiveState;
use crate::end_facts::EndFacts;
use crate::stream::Selector;
use bulkhead_answers::args::EndName;
use bulkhead_answers::named::{self, KnownEnd, Named, Unknown};
use bulkhead_answers::run;

impl LiveState {
    /// Returns for each attached pod whether policy knows it, or why not.
    pub(crate) fn standings(&self) -> BTreeMap<PodName, Standing> {
        self.pipeline.standings()
    }

    /// Returns the addresses of each pod that a name means, or those of its node, or why the state has none. A pod may have none.
    pub(crate) fn addresses_of(&self, name: &EndName) -> Result<Vec<Vec<IpAddr>>, Unknown> {
        Ok(match named::find(self.pipeline.cache(), name)? {
            Named::Pods(pods) => pods.iter().map(|pod| pod.addresses.to_vec()).collect(),
            Named::Node(addresses) => vec![addresses],
            Named::Address(address) => vec![vec![address]],
        })
    }

    /// Returns the pod or node that has the address.
    pub(crate) fn end_at(&self, address: IpAddr) -> EndFacts {
        let cache = self.pipeline.cache();
        // A pod with the node's address is reported as the node.
        let pods = cache.pods_at(address).map(|(_, pod)| pod).filter(|pod| !pod.finished && !pod.host_network);
        let pod = pods.last().cloned();
        let node = || cache.nodes().values().find(|node| node.addresses.contains(&address));
        EndFacts { node: if pod.is_none() { node().map(|node| node.name.clone()) } else { None }, pod }
    }

    /// Returns the parts of the selector that select no pod, node or address, as the user wrote them and with the nearest name: `--pod shop/wep (did you
    /// mean shop/web?)`. Returns all parts if only together they select none.
    pub(crate) fn selecting_nobody(&self, selector: &Selector) -> Vec<String> {
        let cache = self.pipeline.cache();
        let is_node = |name| KnownEnd { node: Some(name), ..KnownEnd::default() };
        // A selected pod or node may have no address yet.
        let selects = |selector: &Selector| {
            cache.pods().any(|(_, pod)| !pod.finished && selector.selects(pod))
                || cache.nodes().keys().any(|name| selector.selects_known(is_node(name)))
                || !self.addresses_selected(selector).is_empty()
        };
        let told = |(text, part): (String, Selector)| match part.similar(cache) {
            Some(similar) => format!("{text} ({similar})"),
            None => text,
        };
        let alone: Vec<String> = selector.parts().filter(|(_, part)| !selects(part)).map(told).collect();
        match alone.is_empty() && !selects(selector) {
            true => vec![selector.parts().map(|(text, _)| text).collect::<Vec<_>>().join(" ")],
            false => alone,
        }
    }

    /// Returns the selected addresses: of pods that have not ended, of nodes, and those that the selector itself names.
    pub(crate) fn addresses_selected(&self, selector: &Selector) -> HashSet<IpAddr> {
        let cache = self.pipeline.cache();
        let mut selected = HashSet::new();
        let mut select = |end: KnownEnd<'_>, addresses: &[IpAddr]| {
            let at = |address| KnownEnd { address: Some(address), ..end };
            selected.extend(addresses.iter().copied().filter(|&address| selector.selects_known(at(address))));
        };
        for (_, pod) in cache.pods().filter(|(_, pod)| !pod.finished) {
            select(KnownEnd::of(pod, &pod.workload()), &pod.addresses);
        }
        for node in cache.nodes().values() {
            select(KnownEnd { node: Some(&node.name), ..KnownEnd::default() }, &node.addresses);
        }
        select(KnownEnd::default(), &selector.addresses());
        selected
    }

    /// Returns the name of each address's owner: a pod's workload, or a node. For an unassigned address, the address as text.
    pub(crate) fn owners_of(&self, addresses: &[IpAddr]) -> Vec<String> {
        let cache = self.pipeline.cache();
        let owner = |&address: &IpAddr| {
            let node = cache.nodes().values().find(|node| node.addresses.contains(&address));
            let pod = || cache.pods_at(address).map(|(_, pod)| pod).find(|pod| !pod.finished);
            match (node, pod) {
                (Some(node), _) => format!("node {}", node.name),
                (None, pod) => pod().map_or_else(|| address.to_string(), |pod| owner_name(pod)),
            }
        };
        addresses.iter().map(owner).collect()
    }

    /// Returns the node's pod CIDRs, and the addresses of its pods.
    pub(crate) fn pod_networks(&self) -> Vec<IpNet> {
        let blocks = run::pod_networks(&self.pipeline, &self.node).iter().copied();
        let pods =
            self.tables.interfaces.iter().filter(|interface| matches!(interface.attachment, acl::Attachment::Pod(_)));
        blocks.chain(pods.flat_map(|pod| pod.addresses.iter().copied().map(IpNet::from))).collect()
    }
}

/// Formats the pod's owner as `shop/web (Deployment)`, or the pod's name if it has no owner. Owners outlive their pods.
fn owner_name(pod: &Pod) -> String {
    match &pod.owner {
        Some(owner) => format!("{}/{} ({})", pod.name.namespace, owner.name, owner.kind),
        None => pod.name.to_string(),
    }
}
