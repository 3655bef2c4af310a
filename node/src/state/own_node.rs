//! This node: its Node object with the addresses of its interfaces.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bulkhead_control::cache::Event;
use bulkhead_control::claims::Holder;
use bulkhead_control::object::{Labels, Node, Object};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::acl::NodeTables;

use super::LiveState;
use crate::log;
use bulkhead_answers::run;

impl LiveState {
    /// Returns the Node object with the addresses of the node's interfaces, except those of known pods.
    pub(super) fn own_node(&self) -> Node {
        let cache = self.pipeline.cache();
        let contests = self.pipeline.contests();
        with_addresses(&self.own, &self.addresses, |address| {
            cache.pods_at(*address).any(|(_, pod)| pod.is_endpoint())
                || contests.iter().any(|contest| contest.address == *address && contest.holder == Holder::Nobody)
        })
    }

    /// Finds the node's primary address of each family: the first one in its object that an interface has too. Only such an address can be
    /// the source of packets from the node's kernel. Returns whether one of them changed.
    pub(super) fn find_primary(&mut self) -> bool {
        let has = |ipv4: bool| {
            let own = self.own.addresses.iter().copied();
            own.filter(|address| self.addresses.contains(address)).find(|address| address.is_ipv4() == ipv4)
        };
        let primary: Vec<IpAddr> = [true, false].into_iter().filter_map(has).collect();
        let is_other = *primary != *self.primary;
        self.primary = primary.into();
        is_other
    }

    /// Applies the addresses of the node's interfaces. Returns whether anything in force changed.
    pub(crate) fn renumber(&mut self, addresses: std::io::Result<BTreeSet<IpAddr>>) -> bool {
        let addresses = match addresses {
            Ok(addresses) if addresses == self.addresses => return false,
            Ok(addresses) => addresses,
            Err(error) => {
                log::error(&format!(
                    "cannot read the node's addresses from the kernel; the known ones stay in use: {error}"
                ));
                return false;
            }
        };
        self.addresses = addresses;
        match without_state(&self.node, &self.addresses) {
            Ok(without) => self.without = without,
            Err(error) => log::error(&format!(
                "cannot compile the node's new addresses into the tables for a node without a state\n{error:#}"
            )),
        }
        let has_other_primary = self.find_primary();
        let node = self.own_node();
        if let Some(services) = &mut self.services {
            services.set_more_addresses(more_addresses(&node, &self.own));
        }
        if self.counts.applied.load(Ordering::Relaxed) == 0 {
            self.follow_masquerade();
            return self.denied;
        }
        let event = Event::Apply(Object::Node(node));
        self.changes.note([&event]);
        let applied = self.pipeline.apply(event).map_err(anyhow::Error::from);
        // Masquerading excludes the nodes' addresses, so the new ones count.
        let is_masqueraded_otherwise = self.follow_masquerade();
        let tables = applied.and_then(|()| match self.kernel_revision() {
            None => run::node_tables(&self.pipeline, &self.node),
            // The kernel gets changes instead of tables.
            Some(_) => Ok(Arc::clone(&self.tables)),
        });
        match tables {
            // Without a state, the tables with the node's own addresses are in force.
            Ok(tables) if Arc::ptr_eq(&tables, &self.tables) => {
                self.denied || has_other_primary || is_masqueraded_otherwise
            }
            Ok(tables) => {
                self.origins.follow(self.pipeline.origins());
                self.tables = tables;
                self.tell(&run::refusals(&self.pipeline).into_iter().collect(), log::warn);
                self.counts.refused_tables.store(self.pipeline.refusals().len() as u64, Ordering::Relaxed);
                log::info("the node's addresses have changed");
                true
            }
            Err(error) => {
                log::error(&format!(
                    "cannot enforce the node's new addresses; the previous ones stay in force\n{error:#}"
                ));
                is_masqueraded_otherwise
            }
        }
    }
}

/// Returns the tables of a node of which only the addresses are known: they allow only its own traffic.
pub(super) fn without_state(node: &Arc<str>, addresses: &BTreeSet<IpAddr>) -> anyhow::Result<Arc<NodeTables>> {
    let mut pipeline = Pipeline::new(Scope::Node(node.clone()));
    pipeline.resync([Object::Node(with_addresses(&nameless(node), addresses, |_| false))])?;
    let tables = pipeline.node_tables(node);
    tables.ok_or_else(|| anyhow::anyhow!("an empty node has no tables: this is a bug in bulkhead"))
}

/// Creates a Node object with only a name.
pub(super) fn nameless(name: &Arc<str>) -> Node {
    Node { name: name.clone(), labels: Labels::new(), addresses: Vec::new(), pod_cidrs: Vec::new(), terminating: false }
}

/// Adds the addresses of the interfaces to the node, except those of pods: for them, the pods' policies count.
pub(super) fn with_addresses(own: &Node, addresses: &BTreeSet<IpAddr>, is_pods: impl Fn(&IpAddr) -> bool) -> Node {
    let mut node = own.clone();
    let more = addresses.iter().filter(|address| !own.addresses.contains(address) && !is_pods(address));
    node.addresses.extend(more.copied());
    node
}

/// Returns the addresses of `node` that its Kubernetes object does not have.
pub(super) fn more_addresses(node: &Node, object: &Node) -> BTreeSet<IpAddr> {
    node.addresses.iter().filter(|address| !object.addresses.contains(address)).copied().collect()
}

/// Returns an error if the state lacks this node. Its likely cause is a wrong or empty file, which would cut off all pods.
pub(super) fn check_node(objects: &[Object], node: &str) -> anyhow::Result<()> {
    let known = objects.iter().any(|object| match object {
        Object::Node(known) => &*known.name == node,
        Object::Pod(pod) => pod.node.as_deref() == Some(node),
        Object::Namespace(_)
        | Object::Policy(_)
        | Object::ClusterPolicy(_)
        | Object::Service(_)
        | Object::EndpointSlice(_)
        | Object::Foreign(_) => false,
    });
    anyhow::ensure!(known, "the state has neither node `{node}` nor a pod on it\n  help: was the file cut off?");
    Ok(())
}
