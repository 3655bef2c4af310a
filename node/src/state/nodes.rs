//! Publishes the cluster's nodes for Hubble relays.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_control::object::Node;
use tokio::sync::watch;

use super::LiveState;

/// Addresses in the object of each node, internal ones first, by the node's name.
pub(crate) type Nodes = BTreeMap<Arc<str>, Vec<IpAddr>>;

impl LiveState {
    /// Subscribes to the nodes of this state and later ones. They are updated while a receiver exists.
    pub(crate) fn nodes(&self) -> watch::Receiver<Arc<Nodes>> {
        let nodes = self.nodes.subscribe();
        self.tell_nodes();
        nodes
    }

    /// Publishes the pipeline's nodes if they differ from the published ones.
    pub(super) fn tell_nodes(&self) {
        if self.nodes.receiver_count() == 0 {
            return;
        }
        let known = self.pipeline.cache().nodes();
        self.nodes.send_if_modified(|told| {
            let is_same = told.len() == known.len()
                && known
                    .iter()
                    .zip(&**told)
                    .all(|((name, node), was)| name == was.0 && *self.addresses_of_node(node) == **was.1);
            if !is_same {
                let now = known.iter().map(|(name, node)| (Arc::clone(name), self.addresses_of_node(node).to_vec()));
                *told = Arc::new(now.collect());
            }
            !is_same
        });
    }

    /// Returns the addresses in the node's object. For this node, the pipeline also has those of all interfaces, which other nodes cannot
    /// reach.
    fn addresses_of_node<'a>(&'a self, node: &'a Node) -> &'a [IpAddr] {
        if node.name == self.node { &self.own.addresses } else { &node.addresses }
    }
}
