//! The other nodes, and what each of them is believed to have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::object::Node;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_dataplane::io::TunnelPeer;
use ipnet::IpNet;

use super::MAX_NAMED;
use crate::host_port::Destinations;
use bulkhead_answers::output;

/// Another node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteNode {
    /// The node's name.
    pub name: Arc<str>,
    /// The node's addresses, internal ones first.
    pub addresses: Vec<IpAddr>,
    /// The networks of its pods (`spec.podCIDRs`, or `state.node_ranges` of the configuration).
    pub pod_networks: Vec<IpNet>,
}

impl RemoteNode {
    /// Returns what the Node object says.
    pub(crate) fn of(node: &Node) -> Self {
        Self {
            name: node.name.clone(),
            addresses: node.addresses.clone(),
            pod_networks: node.pod_cidrs.iter().map(IpNet::trunc).collect(),
        }
    }

    /// Returns the node's first address of each family, at most two. Further ones may be a load balancer's or a router's, which the node itself
    /// does not have.
    pub(super) fn first_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let first = |is_v4| self.addresses.iter().copied().find(|address| address.is_ipv4() == is_v4);
        [first(true), first(false)].into_iter().flatten()
    }

    /// Returns the outer and inner sources that the tunnel accepts from the node.
    pub(super) fn peer(&self) -> TunnelPeer {
        let own = self.first_addresses().map(IpNet::from);
        let sources = self.pod_networks.iter().copied().chain(own).collect();
        TunnelPeer { addresses: self.addresses.clone(), sources }
    }
}

/// Returns all nodes other than `own`.
pub(crate) fn remote_nodes(pipeline: &Pipeline, own: &str) -> Vec<RemoteNode> {
    let others = pipeline.cache().nodes().values().filter(|node| &*node.name != own);
    others.map(|node| RemoteNode::of(node)).collect()
}

/// Removes addresses and pod networks that several nodes claim, this one included: none of them is believed, as a node's kubelet writes its
/// addresses itself. Removes what lies within another node's network, too. Returns the nodes with what is left, and a message for each claim.
pub(super) fn uncontested(nodes: &[RemoteNode], own: &Destinations) -> (Vec<RemoteNode>, BTreeSet<String>) {
    let claims_of = |addresses: &[IpAddr], networks: &[IpNet]| -> BTreeSet<IpNet> {
        addresses.iter().copied().map(IpNet::from).chain(networks.iter().map(IpNet::trunc)).collect()
    };
    let mut claims: BTreeMap<IpNet, Vec<&str>> = BTreeMap::new();
    let others = nodes.iter().map(|node| (&*node.name, claims_of(&node.addresses, &node.pod_networks)));
    for (name, claimed) in others.chain([("this node", claims_of(&own.sources, &own.pods))]) {
        claimed.into_iter().for_each(|claim| claims.entry(claim).or_default().push(name));
    }
    let nested = nested(&claims);
    claims.retain(|_, names| names.len() > 1);
    let message = |(claim, names): (&IpNet, &Vec<&str>)| {
        let names = output::some_of(names, MAX_NAMED);
        format!(
            "several nodes claim {claim}, and the vswitch believes none of the others: {names}; correct the Node objects"
        )
    };
    let problems = claims.iter().map(message).chain(nested.iter().map(|(_, problem)| problem.clone())).collect();
    let mut refused: BTreeSet<IpNet> = claims.into_keys().collect();
    refused.extend(nested.into_iter().map(|(claim, _)| claim));
    let mut left = nodes.to_vec();
    for node in &mut left {
        node.addresses.retain(|&address| !refused.contains(&IpNet::from(address)));
        node.pod_networks.retain(|network| !refused.contains(network));
    }
    (left, problems)
}

/// Returns the claims that lie within a network of another node, each with a message. `claims` has the names of the nodes that claim an address or
/// network. The longer prefix would win, so a node could take over a part of another's pods.
fn nested(claims: &BTreeMap<IpNet, Vec<&str>>) -> Vec<(IpNet, String)> {
    let mut found = Vec::new();
    // A network comes before what is within it.
    let mut around: Vec<(&IpNet, &Vec<&str>)> = Vec::new();
    for (claim, names) in claims {
        while around.last().is_some_and(|(network, _)| !network.contains(claim)) {
            around.pop();
        }
        if let Some((network, holders)) = around.iter().find(|(_, holders)| *holders != names) {
            let [names, holders] = [names, *holders].map(|names| output::some_of(names, MAX_NAMED));
            let problem = format!(
                "{claim} of {names} lies within {network} of {holders}, and the vswitch believes only the latter; correct the Node objects"
            );
            found.push((*claim, problem));
        }
        around.push((claim, names));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_nodes_claim_is_nobodys() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let node = |name: &str, addresses: &[&str], network: &str| RemoteNode {
            name: name.into(),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            pod_networks: vec![net(network)],
        };
        let nodes = [
            node("a", &["192.0.2.1"], "10.1.0.0/24"),
            node("b", &["192.0.2.2", "192.0.2.1"], "10.2.0.0/24"),
            node("c", &["192.0.2.3", "198.51.100.3", "2001:db8::3"], "10.2.0.0/24"),
            node("d", &["192.0.2.4"], "10.3.0.0/24"),
        ];
        let own = Destinations { pods: [net("10.3.0.0/24")].into(), ..Destinations::default() };
        let (left, problems) = uncontested(&nodes, &own);
        assert_eq!(left[0], RemoteNode { addresses: vec![], ..nodes[0].clone() });
        assert_eq!((&left[1].addresses[..], &left[1].pod_networks[..]), (&nodes[1].addresses[..1], &[][..]));
        assert!(left[2].pod_networks.is_empty() && left[2].addresses == nodes[2].addresses);
        assert!(left[3].pod_networks.is_empty(), "it claims this node's pods");
        let nested = [
            node("a", &["192.0.2.1", "10.9.0.7"], "10.1.0.0/16"),
            // The last address also lies within the node's own claim.
            node("b", &["192.0.2.2", "10.1.0.5", "10.1.2.5"], "10.1.2.0/24"),
            node("c", &[], "10.9.0.0/16"),
        ];
        let (left, told) = uncontested(&nested, &Destinations::default());
        assert_eq!(
            (&left[0].addresses[..], &left[0].pod_networks),
            (&nested[0].addresses[..1], &nested[0].pod_networks)
        );
        assert_eq!((&left[1].addresses[..], &left[1].pod_networks[..]), (&nested[1].addresses[..1], &[][..]));
        assert!(told.len() == 4 && told.iter().all(|problem| problem.contains("lies within")), "{told:?}");
        let problems: Vec<String> = problems.into_iter().collect();
        for (problem, parts) in
            problems.iter().zip([["10.2.0.0/24", "b, c"], ["10.3.0.0/24", "d, this node"], ["192.0.2.1/32", "a, b"]])
        {
            assert!(parts.iter().all(|part| problem.contains(part)), "{problems:?}");
        }
        assert_eq!(problems.len(), 3);
        // Its second address of a family may be a router's, which the node may not use inside of the tunnel.
        let sources = nodes[2].peer().sources.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(sources, ["10.2.0.0/24", "192.0.2.3/32", "2001:db8::3/128"]);
        assert_eq!(nodes[2].peer().addresses.len(), 3);
    }
}
