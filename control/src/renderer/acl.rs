//! The ACL renderer compiles policy into tables for the interfaces of one node or of all nodes.
//!
//! * A pod's interface gets the pod's table. Pods with equal tables share one.
//! * The uplink and the host interface get the node-exit table.
//! * Replies need no table: the dataplane creates a session for each packet that a table allows. Contiv did so only at isolated pods and
//!   dropped the replies of a pod that became isolated after its first packet.
//!
//! Every interface has a table, even a pod without policies: the dataplane denies traffic at an interface without one.

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

/// The network behind an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attachment {
    /// A pod of the node.
    Pod(PodName),
    /// Other nodes, their pods, and addresses outside the cluster.
    Uplink,
    /// The node itself.
    Host,
}

/// An interface of the vswitch and its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The network behind the interface.
    pub attachment: Attachment,
    /// The addresses behind the interface. Empty for the uplink, which reaches all others.
    pub addresses: Vec<IpAddr>,
    /// The MAC address behind the interface. `None` if unknown.
    pub mac: Option<[u8; 6]>,
    /// The index in [`NodeTables::tables`]. [`NodeTables::enforced_at`] says whether the table judges received or sent packets.
    pub table: usize,
    /// The origin under which a pod's packets to itself are allowed. `None` for the uplink and the host.
    pub hairpin: Option<OriginId>,
    /// The index in [`NodeTables::tables`] of the table for a pod's connections to itself through a Service. `None` if all are allowed.
    pub hairpin_table: Option<usize>,
    /// The index in [`NodeTables::tables`] of the table with all egress rules of a pod, if some of them name domains. This table judges the
    /// pod's packets first, then the table that [`NodeTables::enforced_at`] selects. `None` if only the latter judges them.
    pub egress_table: Option<usize>,
}

/// A compiled table with its name.
#[derive(Clone, Debug)]
pub struct AclTable {
    /// `node-exit`, `node-entry`, or `local:`, `hairpin:` or `egress:` with the name of the first pod that uses the table.
    pub name: Arc<str>,
    /// The rules, compiled for the classifier.
    pub tables: Arc<Tables>,
}

/// The port whose table judges a packet: the egress port or the ingress port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EnforcedAt {
    /// The egress port: that of the receiving pod, the uplink or the host.
    #[default]
    Destination,
    /// The ingress port: that of the sending pod, the uplink or the host.
    Source,
}

impl EnforcedAt {
    /// Returns the name in the configuration: `destination` or `source`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Destination => "destination",
            Self::Source => "source",
        }
    }
}

/// An immutable snapshot of all that the vswitch of one node enforces.
#[derive(Clone, Debug)]
pub struct NodeTables {
    /// The node's name.
    pub node: Arc<str>,
    /// Whether an interface's table judges packets that leave or that enter the vswitch there.
    pub enforced_at: EnforcedAt,
    /// Number of the publication, from 1.
    pub generation: u64,
    /// The pods' interfaces, sorted by name, then the uplink's and the host's.
    pub interfaces: Arc<[Interface]>,
    /// The tables of pods, then that of uplink and host (`node-exit` or `node-entry`), then egress tables. With identity tables, the first
    /// serves all interfaces.
    pub tables: Vec<AclTable>,
}

/// Pods of a node with their new lists. `None` for a removed pod.
type PodChanges = Vec<(PodName, Option<Arc<PlainPod>>)>;

/// The renderer of one node or of all nodes.
#[derive(Debug)]
pub struct AclRenderer {
    /// The node to render. `None` for all nodes.
    only: Option<Arc<str>>,
    /// Whether very large tables are scanned instead of compiled.
    scans: bool,
    lists: PlainLists,
    nodes: BTreeMap<Arc<str>, NodeRenderer>,
    /// The node on which each pod runs.
    hosts: AHashMap<PodName, Arc<str>>,
    /// All known nodes, also those without pods.
    known: BTreeMap<Arc<str>, Arc<Node>>,
}

impl AclRenderer {
    /// Creates a renderer of one node. The first transaction publishes tables, even if the node is not known yet.
    pub fn of_node(node: Arc<str>) -> Self {
        Self::new(Some(node), false)
    }

    /// Creates a renderer of one node for questions. Very large tables are not compiled but scanned, because they answer few lookups.
    pub(crate) fn of_questions(node: Arc<str>) -> Self {
        Self::new(Some(node), true)
    }

    /// Creates a renderer of all known nodes, for questions as in [`Self::of_questions`].
    pub fn of_all_nodes() -> Self {
        Self::new(None, true)
    }

    fn new(only: Option<Arc<str>>, scans: bool) -> Self {
        Self {
            only,
            scans,
            lists: PlainLists::default(),
            nodes: BTreeMap::new(),
            hosts: AHashMap::new(),
            known: BTreeMap::new(),
        }
    }

    /// Returns the latest tables of a node. `None` if the node is not rendered or not known.
    pub fn node_tables(&self, node: &str) -> Option<&Arc<NodeTables>> {
        self.nodes.get(node)?.published()
    }

    /// Returns the latest tables of all nodes, sorted by node name.
    pub fn all_node_tables(&self) -> impl Iterator<Item = &Arc<NodeTables>> {
        self.nodes.values().filter_map(NodeRenderer::published)
    }

    /// Returns counts of the work on large tables since the renderer was created.
    pub fn work(&self) -> TableWork {
        self.nodes.values().map(NodeRenderer::work).fold(TableWork::default(), TableWork::plus)
    }

    /// Returns the number of address intervals written to tables since the start.
    pub fn written(&self) -> u64 {
        self.lists.written()
    }

    /// Whether the renderer holds no set, list or pod.
    #[cfg(test)]
    pub(crate) fn holds_nothing(&self) -> bool {
        self.lists.is_empty() && self.hosts.is_empty()
    }

    /// Returns the number of sets, lists, interned values, shared sets and nodes that the renderer holds.
    #[cfg(test)]
    pub(crate) fn held(&self) -> (usize, usize, usize, usize, usize) {
        let (sets, lists, shared) = self.lists.held();
        let interned = self.nodes.values().map(NodeRenderer::interned).sum();
        (sets, lists, interned, shared, self.nodes.len())
    }

    /// Waits for background builds, so that the next transaction uses their tables.
    #[cfg(test)]
    pub(crate) fn finish_builds(&mut self) {
        self.nodes.values_mut().for_each(NodeRenderer::finish_build);
    }

    /// Splits the transaction by node. A pod that moved is removed from its previous node.
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

    /// Creates a renderer for each rendered node that has none.
    fn add_nodes(&mut self, transaction: &PlainTransaction) {
        let named = transaction.nodes.iter().map(|(name, _)| name);
        let hosting = transaction.pods.iter().filter_map(|(_, pod)| Some(&pod.as_ref()?.node));
        let nodes: HashSet<Arc<str>> = match &self.only {
            Some(node) => [node.clone()].into(),
            None => named.chain(hosting).cloned().collect(),
        };
        for name in nodes {
            if !self.nodes.contains_key(&name) {
                let mut renderer = NodeRenderer::new(name.clone(), self.scans);
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

    /// Returns the lists and tables that exceed a limit. Each refusal affects only its interface.
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
