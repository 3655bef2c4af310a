//! The ACL renderer: compiled tables bound to the interfaces of one node.
//!
//! * A pod's interface gets the pod's table; interfaces of pods with the same table share it.
//! * The uplink and the host interface get the node-exit table.
//! * Reflection needs no list of interfaces: the dataplane makes a session of everything that a table let through, so
//!   that replies pass. Contiv reflected only at isolated pods, which drops the replies of a pod that is isolated after
//!   its first packet.
//!
//! Every interface has a table, an open one too: what is not bound is denied by the dataplane.

mod large;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use ahash::AHashMap;
use bulkhead_classifier::{OriginId, Tables};

pub use self::large::TableWork;
use self::large::{Beside, Compiled};
use super::cache::{Changes, LocalId, RendererCache};
use super::{PodConfig, RenderError, Renderer, Transaction};
use crate::object::{Node, PodName};
use crate::origin::{Origin, Origins};
use crate::pipeline::SharedOrigins;

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
    /// The table for packets that leave through it, by position in [`NodeTables::tables`].
    pub table: usize,
    /// The origin under which a pod's packets to itself are allowed.
    pub hairpin: Option<OriginId>,
}

/// A compiled table and its name in output.
#[derive(Clone, Debug)]
pub struct AclTable {
    /// `node-exit`, or `local:` and the first pod that uses it.
    pub name: Arc<str>,
    /// The rules, compiled.
    pub tables: Arc<Tables>,
}

/// All that the vswitch of one node enforces, whole and immutable.
#[derive(Clone, Debug)]
pub struct NodeTables {
    /// The node.
    pub node: Arc<str>,
    /// Counts the publications, from 1.
    pub generation: u64,
    /// Pods sorted by name, then uplink and host.
    pub interfaces: Arc<[Interface]>,
    /// The tables; the last one is the node-exit table.
    pub tables: Vec<AclTable>,
}

/// Where renderers put what they published and readers find it.
#[derive(Clone, Debug, Default)]
pub struct Published(Arc<Mutex<BTreeMap<Arc<str>, Arc<NodeTables>>>>);

impl Published {
    /// The latest tables of a node, none when nothing was published for it.
    pub fn node(&self, node: &str) -> Option<Arc<NodeTables>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(node).cloned()
    }

    /// The latest tables of all nodes, by name.
    pub fn all(&self) -> Vec<Arc<NodeTables>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn publish(&self, tables: NodeTables) {
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.insert(tables.node.clone(), Arc::new(tables));
    }
}

/// The renderer of one node.
#[derive(Debug)]
pub struct AclRenderer {
    node: Arc<str>,
    origins: SharedOrigins,
    published: Published,
    cache: RendererCache,
    node_addresses: Vec<IpAddr>,
    compiled: AHashMap<LocalId, Compiled>,
    /// The pods whose tables are large, with what decided them: the next tables follow those.
    large: AHashMap<PodName, LocalId>,
    beside: Beside,
    interfaces: Arc<[Interface]>,
    local_tables: Vec<AclTable>,
    global: Option<Compiled>,
    generation: u64,
    /// What has changed since the last publication.
    pending: Changes,
    /// Whether the compiled tables hold node addresses that are no longer the node's.
    stale: bool,
}

impl AclRenderer {
    /// A renderer that publishes the tables of `node`, at once those of a node without pods.
    pub fn new(node: Arc<str>, origins: SharedOrigins, published: Published) -> Self {
        Self::with(node, origins, published, false)
    }

    /// The same for one of the many nodes of a what-if, whose very large tables are scanned instead of compiled.
    pub(crate) fn of_many(node: Arc<str>, origins: SharedOrigins, published: Published) -> Self {
        Self::with(node, origins, published, true)
    }

    fn with(node: Arc<str>, origins: SharedOrigins, published: Published, scans: bool) -> Self {
        Self {
            node,
            origins,
            published,
            cache: RendererCache::default(),
            node_addresses: Vec::new(),
            compiled: AHashMap::new(),
            large: AHashMap::new(),
            beside: Beside::new(scans),
            interfaces: Arc::default(),
            local_tables: Vec::new(),
            global: None,
            generation: 0,
            pending: Changes::default(),
            stale: false,
        }
    }

    /// Sets what is known of the node. Returns whether that changed its addresses.
    pub(crate) fn set_node(&mut self, node: Option<&Node>) -> bool {
        self.node_addresses = node.map(|node| node.addresses.clone()).unwrap_or_default();
        self.cache.set_node_addresses(self.node_addresses.iter().copied().collect())
    }

    /// The work that large tables took so far.
    pub fn work(&self) -> TableWork {
        self.beside.work
    }

    /// Compiles the tables that are new and keeps the others.
    fn compile(&mut self) -> Result<(), RenderError> {
        self.beside.collect(self.compiled.values_mut().chain(&mut self.global));
        let locals = if self.pending.locals { Some(self.locals()?) } else { None };
        if self.pending.global {
            let rules = self.cache.global_rules(&mut self.origins.lock());
            let fail = |source| RenderError::Table { interface: "the node's exit".into(), source };
            self.global = Some(Compiled::of(rules, || self.global.as_ref(), &mut self.beside).map_err(fail)?);
        }
        if let Some(locals) = locals {
            self.compiled = locals;
            let large = |id: &LocalId| self.compiled[id].is_large();
            self.large = self.cache.ids().iter().filter(|(_, id)| large(id)).map(|(k, id)| (k.clone(), *id)).collect();
            self.bind();
        }
        self.beside.begin(self.compiled.values().chain(&self.global));
        Ok(())
    }

    /// The tables of the pods' interfaces.
    fn locals(&mut self) -> Result<AHashMap<LocalId, Compiled>, RenderError> {
        let mut origins = self.origins.lock();
        let mut compiled: AHashMap<LocalId, Compiled> = AHashMap::new();
        // The large tables that one of the pods had which now have the same.
        let (cache, large, known) = (&self.cache, &self.large, &self.compiled);
        let before = |id: LocalId| {
            let mut pods = cache.ids().iter().filter(|(_, of)| **of == id && !large.is_empty()).map(|(name, _)| name);
            pods.find_map(|name| known.get(large.get(name)?))
        };
        for (name, &id) in self.cache.ids() {
            if compiled.contains_key(&id) {
                continue;
            }
            let tables = match self.compiled.get(&id).filter(|_| !self.stale) {
                Some(tables) => tables.clone(),
                None => {
                    let rules = self.cache.local_rules(&self.cache.pods()[name], id, &mut origins);
                    let fail = |source| RenderError::Table { interface: name.to_string(), source };
                    Compiled::of(rules, || before(id), &mut self.beside).map_err(fail)?
                }
            };
            compiled.insert(id, tables);
        }
        Ok(compiled)
    }

    /// Waits for the build that goes on beside.
    #[cfg(test)]
    pub(crate) fn finish_build(&mut self) {
        self.beside.wait(self.compiled.values_mut().chain(&mut self.global));
    }

    /// Binds the interfaces to the compiled tables.
    fn bind(&mut self) {
        let hairpin = self.origins.lock().id(Origin::OwnPod);
        let (mut tables, mut interfaces) = (Vec::new(), Vec::new());
        let mut position = AHashMap::new();
        for ((name, config), id) in self.cache.pods().iter().zip(self.cache.ids().values()) {
            let table = *position.entry(id).or_insert_with(|| {
                tables
                    .push(AclTable { name: format!("local:{name}").into(), tables: self.compiled[id].tables.clone() });
                tables.len() - 1
            });
            interfaces.push(Interface {
                attachment: Attachment::Pod(name.clone()),
                addresses: config.addresses.clone(),
                mac: config.mac,
                table,
                hairpin: Some(hairpin),
            });
        }
        let exit = tables.len();
        for (attachment, addresses) in
            [(Attachment::Uplink, Vec::new()), (Attachment::Host, self.node_addresses.clone())]
        {
            interfaces.push(Interface { attachment, addresses, mac: None, table: exit, hairpin: None });
        }
        (self.interfaces, self.local_tables) = (interfaces.into(), tables);
    }

    fn publish(&mut self) {
        let Some(global) = self.global.as_ref().map(|global| global.tables.clone()) else { return };
        let mut tables = self.local_tables.clone();
        tables.push(AclTable { name: "node-exit".into(), tables: global });
        self.generation += 1;
        self.published.publish(NodeTables {
            node: self.node.clone(),
            generation: self.generation,
            interfaces: self.interfaces.clone(),
            tables,
        });
    }
}

impl Renderer for AclRenderer {
    fn render(&mut self, transaction: &Transaction) -> Result<(), RenderError> {
        let own = transaction.nodes.iter().rev().find(|(name, _)| *name == self.node);
        let node_changed = own.is_some_and(|(_, node)| self.set_node(node.as_deref()));
        let mine = Transaction {
            resync: transaction.resync,
            pods: transaction.pods.iter().filter_map(|(name, config)| self.own(name, config.as_ref())).collect(),
            nodes: Vec::new(),
        };
        let changes = self.cache.apply(&mine);
        // What a failed transaction left undone is done by the next one.
        self.pending.locals |= changes.locals || node_changed || self.generation == 0;
        self.pending.global |= changes.global || node_changed || self.generation == 0;
        self.stale |= node_changed;
        if self.pending.is_empty() {
            return Ok(());
        }
        self.compile()?;
        self.pending = Changes::default();
        self.stale = false;
        self.publish();
        Ok(())
    }
}

impl AclRenderer {
    /// What a pod's change means for this node: a pod that moved to another node is gone from here.
    fn own(&self, name: &PodName, config: Option<&Arc<PodConfig>>) -> Option<(PodName, Option<Arc<PodConfig>>)> {
        match config.filter(|config| config.node == self.node) {
            Some(config) => Some((name.clone(), Some(config.clone()))),
            None => self.cache.pods().contains_key(name).then(|| (name.clone(), None)),
        }
    }
}

/// Locks the origins for the length of one rendering.
pub(crate) type OriginsGuard<'a> = std::sync::MutexGuard<'a, Origins>;
