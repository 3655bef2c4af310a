//! The pod networks of nodes (`state.node_ranges`), instead of those in their Node objects.

use std::collections::BTreeMap;

use bulkhead_control::object::{Node, Object};
use ipnet::IpNet;
use serde_saphyr::Spanned;

use super::faults::{Faults, line};

/// The field's name.
const FIELD: &str = "state.node_ranges";

/// The networks of nodes' pods, by the node's name. For clusters in which nobody assigns `spec.podCIDRs` (`--allocate-node-cidrs=false`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeRanges(BTreeMap<String, Vec<IpNet>>);

impl NodeRanges {
    /// Replaces the networks of a node that the configuration has: a kubelet can set empty podCIDRs of its own Node object once, to another node's.
    pub(crate) fn complete(&self, node: &mut Node) {
        if let Some(ranges) = self.0.get(&*node.name) {
            node.pod_cidrs.clone_from(ranges);
        }
    }

    /// Like [`complete`](Self::complete), for all nodes among these objects.
    pub(crate) fn complete_all(&self, objects: &mut [Object]) {
        for object in objects {
            if let Object::Node(node) = object {
                self.complete(node);
            }
        }
    }
}

/// The field as parsed.
pub(super) type Written = BTreeMap<String, Vec<Spanned<String>>>;

/// Checks the field: each range is a network, and no two nodes share addresses, as pods of both would get them.
pub(super) fn check(written: &Written, faults: &mut Faults<'_>) -> NodeRanges {
    let mut ranges: BTreeMap<String, Vec<IpNet>> = BTreeMap::new();
    for (node, texts) in written {
        let mut own = Vec::new();
        for text in texts {
            let Ok(range) = text.value.parse::<IpNet>() else {
                let problem = format!("`{}` of {node} is no network", text.value);
                faults.add(line(text), FIELD, problem, "write an address and a prefix length: 10.244.1.0/24");
                continue;
            };
            let overlaps = |other: &IpNet| other.contains(&range) || range.contains(other);
            let taken = ranges.iter().flat_map(|(name, ranges)| ranges.iter().map(move |range| (name, range)));
            if let Some((name, other)) = taken.into_iter().find(|(_, other)| overlaps(other)) {
                let problem = format!("{range} of {node} overlaps with {other} of {name}");
                faults.add(line(text), FIELD, problem, "give each node its own range");
            }
            own.push(range.trunc());
        }
        ranges.insert(node.clone(), own);
    }
    NodeRanges(ranges)
}
