//! The ACL renderer: compiled tables bound to the interfaces of one node, or of each of all.
//!
//! * A pod's interface gets the pod's table; interfaces of pods with the same table share it.
//! * The uplink and the host interface get the node-exit table.
//! * Reflection needs no list of interfaces: the dataplane makes a session of everything that a table let through, so
//!   that replies pass. Contiv reflected only at isolated pods, which drops the replies of a pod that is isolated after
//!   its first packet.
//!
//! Every interface has a table, an open one too: what is not bound is denied by the dataplane.

mod allowance;
mod classes;
mod interned;
mod large;
mod node;
mod rules;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::{OriginId, Tables};

pub use self::large::TableWork;
use self::node::NodeRenderer;
use super::plain::{PlainLists, PlainPod, PlainTransaction};
use super::{BoxError, Refusal, Renderer};
use crate::contract::Transaction;
use crate::object::{Node, PodName};

/// What an interface connects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attachment {
    /// A pod of the node.
    Pod(PodName),
    /// The rest of the cluster and the world.
    Uplink,
    /// The node itself.
    Host,
}

/// One interface of the vswitch with what is enforced there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// What it connects.
    pub attachment: Attachment,
    /// The addresses behind it; none for the uplink, which has the rest.
    pub addresses: Vec<IpAddr>,
    /// The MAC address behind it where it is known.
    pub mac: Option<[u8; 6]>,
    /// The table for packets that leave through it, or come in through it: [`NodeTables::enforced_at`] says which. By position in
    /// [`NodeTables::tables`].
    pub table: usize,
    /// The origin under which a pod's packets to itself are allowed.
    pub hairpin: Option<OriginId>,
}

/// A compiled table and its name in output.
#[derive(Clone, Debug)]
pub struct AclTable {
    /// `node-exit` or `node-entry`, or `local:` and the first pod that uses it.
    pub name: Arc<str>,
    /// The rules, compiled.
    pub tables: Arc<Tables>,
}

/// At which end of a packet's way through the vswitch a table judges it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EnforcedAt {
    /// Where it leaves: at the receiving pod's port, at the uplink, at the host's.
    #[default]
    Destination,
    /// Where it comes in: at the sending pod's port, at the uplink, at the host's.
    Source,
}

impl EnforcedAt {
    /// `destination` or `source`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Destination => "destination",
            Self::Source => "source",
        }
    }
}

/// All that the vswitch of one node enforces, whole and immutable.
#[derive(Clone, Debug)]
pub struct NodeTables {
    /// The node.
    pub node: Arc<str>,
    /// Which packets the table of an interface is about.
    pub enforced_at: EnforcedAt,
    /// Counts the publications, from 1.
    pub generation: u64,
    /// Pods sorted by name, then uplink and host.
    pub interfaces: Arc<[Interface]>,
    /// The tables; the last one is that of uplink and host: `node-exit`, or `node-entry`. By identity there is one, for all interfaces.
    pub tables: Vec<AclTable>,
}

/// Pods of a node with their new lists, none for a pod that is gone.
type PodChanges = Vec<(PodName, Option<Arc<PlainPod>>)>;

/// The renderer of one node or of all.
#[derive(Debug)]
pub struct AclRenderer {
    /// The node whose tables are wanted; none for all.
    only: Option<Arc<str>>,
    lists: PlainLists,
    nodes: BTreeMap<Arc<str>, NodeRenderer>,
    /// The node of each pod.
    hosts: AHashMap<PodName, Arc<str>>,
    /// All nodes that are known, for those that get their first pod later.
    known: BTreeMap<Arc<str>, Arc<Node>>,
}

impl AclRenderer {
    /// A renderer of one node. Its first transaction gives it tables, whatever is known of the node.
    pub fn of_node(node: Arc<str>) -> Self {
        Self::new(Some(node))
    }

    /// A renderer of all nodes that there are. Very large tables are scanned instead of compiled: they are asked some questions.
    pub fn of_all_nodes() -> Self {
        Self::new(None)
    }

    fn new(only: Option<Arc<str>>) -> Self {
        Self {
            only,
            lists: PlainLists::default(),
            nodes: BTreeMap::new(),
            hosts: AHashMap::new(),
            known: BTreeMap::new(),
        }
    }

    /// The latest tables of a node, none when it is not wanted or nothing is known of it.
    pub fn node_tables(&self, node: &str) -> Option<&Arc<NodeTables>> {
        self.nodes.get(node)?.published()
    }

    /// The latest tables of all nodes, by name.
    pub fn all_node_tables(&self) -> impl Iterator<Item = &Arc<NodeTables>> {
        self.nodes.values().filter_map(NodeRenderer::published)
    }

    /// The work that large tables took so far.
    pub fn work(&self) -> TableWork {
        self.nodes.values().map(NodeRenderer::work).fold(TableWork::default(), TableWork::plus)
    }

    /// Intervals of address sets written for tables so far.
    pub fn written(&self) -> u64 {
        self.lists.written()
    }

    /// Whether it remembers no set, list or pod.
    #[cfg(test)]
    pub(crate) fn holds_nothing(&self) -> bool {
        self.lists.is_empty() && self.hosts.is_empty()
    }

    /// How many sets, lists, interned values, shared sets and nodes it remembers.
    #[cfg(test)]
    pub(crate) fn held(&self) -> (usize, usize, usize, usize, usize) {
        let (sets, lists, shared) = self.lists.held();
        let interned = self.nodes.values().map(NodeRenderer::interned).sum();
        (sets, lists, interned, shared, self.nodes.len())
    }

    /// Waits for the tables that are compiled beside, so that the next transaction goes on from them.
    #[cfg(test)]
    pub(crate) fn finish_builds(&mut self) {
        self.nodes.values_mut().for_each(NodeRenderer::finish_build);
    }

    /// What the transaction says of each node's pods: one that moved to another node is gone from the first.
    fn by_node(&mut self, transaction: &PlainTransaction) -> AHashMap<Arc<str>, PodChanges> {
        let mut by_node: AHashMap<Arc<str>, PodChanges> = AHashMap::new();
        for (name, pod) in &transaction.pods {
            let new = pod.as_ref().map(|pod| &pod.node);
            let old = match new {
                Some(new) => self.hosts.insert(name.clone(), new.clone()),
                None => self.hosts.remove(name),
            };
            if let Some(left) = old.filter(|old| new != Some(old)) {
                by_node.entry(left).or_default().push((name.clone(), None));
            }
            if let Some(pod) = pod {
                by_node.entry(pod.node.clone()).or_default().push((name.clone(), Some(pod.clone())));
            }
        }
        by_node
    }

    /// Makes a renderer for each wanted node that has none yet.
    fn add_nodes(&mut self, transaction: &PlainTransaction) {
        let named = transaction.nodes.iter().map(|(name, _)| name);
        let hosting = transaction.pods.iter().filter_map(|(_, pod)| Some(&pod.as_ref()?.node));
        let nodes: HashSet<Arc<str>> = match &self.only {
            Some(node) => [node.clone()].into(),
            None => named.chain(hosting).cloned().collect(),
        };
        for name in nodes {
            if !self.nodes.contains_key(&name) {
                let mut renderer = NodeRenderer::new(name.clone(), self.only.is_none());
                renderer.set_node(self.known.get(&name).map(|node| &**node));
                self.nodes.insert(name, renderer);
            }
        }
    }
}

impl Renderer for AclRenderer {
    fn name(&self) -> String {
        "acl".into()
    }

    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        let transaction = &self.lists.follow(transaction);
        if transaction.resync {
            self.known.clear();
        }
        for (name, node) in &transaction.nodes {
            match node {
                Some(node) => self.known.insert(name.clone(), node.clone()),
                None => self.known.remove(name),
            };
        }
        self.add_nodes(transaction);
        let mut pods = self.by_node(transaction);
        for (name, node) in &mut self.nodes {
            let pods = pods.remove(name).unwrap_or_default();
            node.render(transaction.resync, &pods, transaction.node(name));
        }
        if self.only.is_none() {
            let known = &self.known;
            self.nodes.retain(|name, node| known.contains_key(name) || node.has_pods());
        }
        Ok(())
    }

    /// Lists and tables that do not fit concern their interface alone.
    fn refusals(&self) -> Vec<Refusal> {
        let mut refusals = self.lists.refusals();
        refusals.extend(self.nodes.values().flat_map(NodeRenderer::refusals));
        refusals
    }

    fn origins(&self) -> HashSet<OriginId> {
        let tables = self.all_node_tables().flat_map(|node| &node.tables);
        tables.flat_map(|table| table.tables.rules().iter()).map(|rule| rule.origin).collect()
    }
}

#[cfg(test)]
pub(super) mod tests;
