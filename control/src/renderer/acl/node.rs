//! The tables of one node.

use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;

use super::large::{Beside, Compiled, Owner, TableWork};
use super::rules::{Changes, LocalId, NodeRules};
use super::{AclTable, Attachment, Interface, NodeTables, PodChanges, TableError};
use crate::object::{Node, PodName};
use crate::origin::Origins;

/// The renderer of one node.
#[derive(Debug)]
pub(super) struct NodeRenderer {
    node: Arc<str>,
    published: Option<Arc<NodeTables>>,
    rules: NodeRules,
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

impl NodeRenderer {
    /// A renderer of `node`. With `scans` very large tables are scanned instead of compiled, as for one of the many nodes of
    /// a what-if.
    pub(super) fn new(node: Arc<str>, scans: bool) -> Self {
        Self {
            node,
            published: None,
            rules: NodeRules::default(),
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
    pub(super) fn set_node(&mut self, node: Option<&Node>) -> bool {
        self.node_addresses = node.map(|node| node.addresses.clone()).unwrap_or_default();
        self.rules.set_node_addresses(self.node_addresses.iter().copied().collect())
    }

    /// The work that large tables took so far.
    pub(super) fn work(&self) -> TableWork {
        self.beside.work
    }

    /// Compiles the tables that are new and keeps the others.
    fn compile(&mut self) -> Result<(), TableError> {
        let (large, compiled, global) = (&self.large, &mut self.compiled, &mut self.global);
        self.beside.collect(|owner| now(owner, large, compiled, global));
        let locals = if self.pending.locals { Some(self.locals()?) } else { None };
        if self.pending.global {
            let rules = self.rules.global_rules();
            let fail = |source| TableError { interface: "the node's exit".into(), source };
            self.global = Some(Compiled::of(rules, || self.global.as_ref(), &mut self.beside).map_err(fail)?);
        }
        if let Some(locals) = locals {
            self.compiled = locals;
            let large = |id: &LocalId| self.compiled[id].is_large();
            self.large = self.rules.ids().iter().filter(|(_, id)| large(id)).map(|(k, id)| (k.clone(), *id)).collect();
            self.bind();
        }
        let locals = self.large.iter().map(|(name, id)| (Owner::Pod(name.clone()), &self.compiled[id]));
        self.beside.begin(locals.chain(self.global.iter().map(|global| (Owner::Exit, global))));
        Ok(())
    }

    /// The tables of the pods' interfaces.
    fn locals(&mut self) -> Result<AHashMap<LocalId, Compiled>, TableError> {
        let mut compiled: AHashMap<LocalId, Compiled> = AHashMap::new();
        // The large tables that one of the pods had which now have the same.
        let (rules, large, known) = (&self.rules, &self.large, &self.compiled);
        let before = |id: LocalId| {
            let mut pods = rules.ids().iter().filter(|(_, of)| **of == id && !large.is_empty()).map(|(name, _)| name);
            pods.find_map(|name| known.get(large.get(name)?))
        };
        for (name, &id) in self.rules.ids() {
            if compiled.contains_key(&id) {
                continue;
            }
            let tables = match self.compiled.get(&id).filter(|_| !self.stale) {
                Some(tables) => tables.clone(),
                None => {
                    let rules = self.rules.local_rules(&self.rules.pods()[name], id);
                    let fail = |source| TableError { interface: name.to_string(), source };
                    Compiled::of(rules, || before(id), &mut self.beside).map_err(fail)?
                }
            };
            compiled.insert(id, tables);
        }
        Ok(compiled)
    }

    /// Waits for the build that goes on beside.
    #[cfg(test)]
    pub(super) fn finish_build(&mut self) {
        let (large, compiled, global) = (&self.large, &mut self.compiled, &mut self.global);
        self.beside.wait(|owner| now(owner, large, compiled, global));
    }

    /// Binds the interfaces to the compiled tables.
    fn bind(&mut self) {
        let (mut tables, mut interfaces) = (Vec::new(), Vec::new());
        let mut position = AHashMap::new();
        for ((name, config), id) in self.rules.pods().iter().zip(self.rules.ids().values()) {
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
                hairpin: Some(Origins::OWN_POD),
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
        self.published = Some(Arc::new(NodeTables {
            node: self.node.clone(),
            generation: self.generation,
            interfaces: self.interfaces.clone(),
            tables,
        }));
    }

    /// The latest tables, none before the first transaction.
    pub(super) fn published(&self) -> Option<&Arc<NodeTables>> {
        self.published.as_ref()
    }

    /// Takes in what a transaction says of the node and its pods, of all of them with `resync`. What an earlier one left undone
    /// because a table did not fit is tried again.
    pub(super) fn render(
        &mut self,
        resync: bool,
        pods: &PodChanges,
        node: Option<Option<&Node>>,
    ) -> Result<(), TableError> {
        let node_changed = node.is_some_and(|node| self.set_node(node));
        let changes = self.rules.apply(resync, pods);
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

/// The tables that somebody has now.
fn now<'a>(
    owner: &Owner,
    large: &AHashMap<PodName, LocalId>,
    compiled: &'a mut AHashMap<LocalId, Compiled>,
    global: &'a mut Option<Compiled>,
) -> Option<&'a mut Compiled> {
    match owner {
        Owner::Exit => global.as_mut(),
        Owner::Pod(name) => compiled.get_mut(large.get(name)?),
    }
}
