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
    /// Replaces the pod networks of a node that the configuration lists, and leaves other nodes as they are. Node objects are not believed here, as a
    /// kubelet can set the podCIDRs of its own object if nobody else has.
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

impl FromIterator<(String, Vec<IpNet>)> for NodeRanges {
    /// Collects nodes' names with their networks, which must not overlap.
    fn from_iter<T: IntoIterator<Item = (String, Vec<IpNet>)>>(nodes: T) -> Self {
        Self(nodes.into_iter().collect())
    }
}

/// The field as parsed.
pub(super) type Written = BTreeMap<String, Vec<Spanned<String>>>;

/// Returns the networks of the field. Adds a fault for each text that is no network, and for each network that shares addresses with another node's:
/// pods of both nodes would get them.
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
            let mut taken = ranges.iter().flat_map(|(name, ranges)| ranges.iter().map(move |range| (name, range)));
            if let Some((name, other)) = taken.find(|(_, other)| overlaps(other)) {
                let problem = format!("{range} of {node} overlaps with {other} of {name}");
                faults.add(line(text), FIELD, problem, "give each node its own range");
            }
            own.push(range.trunc());
        }
        ranges.insert(node.clone(), own);
    }
    ranges.into_iter().collect()
}
