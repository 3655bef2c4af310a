//! The tables of one node.
//!
//! **Tables that do not fit** affect only their interface. A pod keeps its last tables, preceded by denials for all sources that are
//! restricted now and that those tables do not restrict. The node exit does likewise. An interface without previous tables is closed. The
//! same rules are not tried again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;
use bulkhead_classifier::{AddressSet, BuildError, Rule};

use super::large::{Beside, Compiled, Owner, TableWork};
use super::rules::{Changes, LocalId, NodeRules};
use super::{AclTable, Attachment, EnforcedAt, Interface, NodeTables, PodChanges};
use crate::object::{Node, PodName};
use crate::origin::Origins;
use crate::renderer::hairpin::Hairpins;
use crate::renderer::plain::{PlainList, PlainPod};
use crate::renderer::{Instead, Refusal};

/// A table for the interfaces of one or more pods.
#[derive(Clone, Debug)]
struct Local {
    compiled: Compiled,
    /// The ingress list at the end of the table. `None` if unknown.
    ingress: Option<Arc<PlainList>>,
}

#[derive(Debug)]
pub(super) struct NodeRenderer {
    node: Arc<str>,
    published: Option<Arc<NodeTables>>,
    rules: NodeRules,
    node_addresses: Vec<IpAddr>,
    compiled: AHashMap<LocalId, Local>,
    /// The pods with large tables, and each table's number. Later tables are derived from these.
    large: AHashMap<PodName, LocalId>,
    /// The number of the table bound to each pod.
    bound: BTreeMap<PodName, LocalId>,
    /// The sources that the node-exit table restricts or denies.
    exit_sources: AddressSet,
    /// The tables that exceed a limit of the classifier, by number, each with the reason.
    refused: AHashMap<LocalId, Refusal>,
    refused_exit: Option<Refusal>,
    beside: Beside,
    interfaces: Arc<[Interface]>,
    local_tables: Vec<AclTable>,
    hairpins: Hairpins,
    global: Option<Compiled>,
    generation: u64,
    /// Changes of tables and interfaces that are not yet published.
    pending: Changes,
    /// Whether the compiled tables contain outdated node addresses.
    stale: bool,
}

impl NodeRenderer {
    /// Creates the renderer of `node`. With `scans`, very large tables are scanned instead of compiled, as for the many nodes of a what-if
    /// query.
    pub(super) fn new(node: Arc<str>, scans: bool) -> Self {
        Self {
            node,
            published: None,
            rules: NodeRules::default(),
            node_addresses: Vec::new(),
            compiled: AHashMap::new(),
            large: AHashMap::new(),
            bound: BTreeMap::new(),
            exit_sources: AddressSet::default(),
            refused: AHashMap::new(),
            refused_exit: None,
            beside: Beside::new(scans),
            interfaces: Arc::default(),
            local_tables: Vec::new(),
            hairpins: Hairpins::default(),
            global: None,
            generation: 0,
            pending: Changes::default(),
            stale: false,
        }
    }

    /// Sets the node's addresses. Returns whether they changed.
    pub(super) fn set_node(&mut self, node: Option<&Node>) -> bool {
        self.node_addresses = node.map(|node| node.addresses.clone()).unwrap_or_default();
        self.rules.set_node_addresses(self.node_addresses.iter().copied().collect())
    }

    /// Whether the node has any pod.
    pub(super) fn has_pods(&self) -> bool {
        !self.rules.pods().is_empty()
    }

    /// Returns counts of the work on large tables since the renderer was created.
    pub(super) fn work(&self) -> TableWork {
        self.beside.work
    }

    /// Compiles new tables and keeps the others. A table that does not fit affects only its interface ([`refused`]).
    fn compile(&mut self) {
        let (large, compiled, global) = (&self.large, &mut self.compiled, &mut self.global);
        self.beside.collect(|owner| now(owner, large, compiled, global));
        let locals = self.pending.locals.then(|| self.locals());
        if self.pending.global {
            let rules = self.rules.global_rules();
            let built = Compiled::of(rules, || self.global.as_ref(), &mut self.beside);
            self.set_exit(built);
        }
        if let Some(locals) = locals {
            self.compiled = locals;
            let large = |id: &LocalId| self.compiled[id].compiled.is_large();
            self.large = self.rules.ids().iter().filter(|(_, id)| large(id)).map(|(k, id)| (k.clone(), *id)).collect();
            if self.pending.interfaces || !self.rebind() {
                self.bind();
            }
        }
        let locals = self.large.iter().map(|(name, id)| (Owner::Pod(name.clone()), &self.compiled[id].compiled));
        self.beside.begin(locals.chain(self.global.iter().map(|global| (Owner::Exit, global))));
    }

    /// Sets the node-exit table, or its replacement if the new one does not fit.
    fn set_exit(&mut self, built: Result<Compiled, BuildError>) {
        let tables = match built {
            Ok(tables) => {
                self.refused_exit = None;
                tables
            }
            Err(why) => {
                self.beside.work.refused += 1;
                let last = self.global.as_ref().filter(|_| !is_closed(self.refused_exit.as_ref()));
                let tables = instead(last, || self.rules.denied_at_exit(&self.exit_sources));
                let subject = format!("the exit of node {}", self.node);
                self.refused_exit = Some(Refusal { subject, ..refused(last.is_some(), &why) });
                tables
            }
        };
        self.global = Some(tables);
        self.exit_sources = self.rules.restricted();
    }

    /// Returns the tables of the pods' interfaces, by number.
    fn locals(&mut self) -> AHashMap<LocalId, Local> {
        let mut locals: AHashMap<LocalId, Local> = AHashMap::new();
        // For each new number: the number of a large table that one of its pods had before.
        let mut before: AHashMap<LocalId, LocalId> = AHashMap::new();
        for (name, &id) in self.rules.ids().iter().filter(|(_, id)| self.stale || !self.compiled.contains_key(*id)) {
            if let Some(&large) = self.large.get(name) {
                before.entry(id).or_insert(large);
            }
        }
        for (name, &id) in self.rules.ids() {
            if locals.contains_key(&id) {
                continue;
            }
            let local = match self.compiled.get(&id).filter(|_| !self.stale) {
                Some(known) => known.clone(),
                None => {
                    let before = before.get(&id).and_then(|before| Some((*before, self.compiled.get(before)?)));
                    match local(&self.rules, (id, &self.rules.pods()[name]), before, self.stale, &mut self.beside) {
                        Ok(local) => {
                            self.refused.remove(&id);
                            local
                        }
                        Err(why) => {
                            let (compiled, refusal) = self.instead_of_local(id, &why);
                            self.beside.work.refused += 1;
                            self.refused.insert(id, refusal);
                            Local { compiled, ingress: None }
                        }
                    }
                }
            };
            locals.insert(id, local);
        }
        self.refused.retain(|id, _| locals.contains_key(id));
        self.bound.clone_from(self.rules.ids());
        locals
    }

    /// Returns the replacement for the table of number `id`, which does not fit: the pods' last table, if all of them had the same.
    fn instead_of_local(&self, id: LocalId, why: &BuildError) -> (Compiled, Refusal) {
        let mut old =
            self.rules.ids().iter().filter(|(_, of)| **of == id).map(|(name, _)| self.bound.get(name).copied());
        let last = old.next().flatten().filter(|last| old.all(|old| old == Some(*last)));
        let last = last.filter(|last| !is_closed(self.refused.get(last)));
        let last = last.and_then(|last| Some((last, &self.compiled.get(&last)?.compiled)));
        let tables = instead(last.map(|(_, tables)| tables), || {
            last.map(|(old, _)| self.rules.denied_locally(id, old)).unwrap_or_default()
        });
        (tables, refused(last.is_some(), why))
    }

    /// Returns the tables that do not fit, with the replacement in force.
    pub(super) fn refusals(&self) -> impl Iterator<Item = Refusal> + '_ {
        let locals = self.rules.ids().iter().filter_map(|(name, id)| {
            let refusal = self.refused.get(id)?;
            Some(Refusal { subject: name.to_string(), ..refusal.clone() })
        });
        locals.chain(self.refused_exit.clone())
    }

    /// Returns the number of values stored by number, to test that unused ones are removed.
    #[cfg(test)]
    pub(super) fn interned(&self) -> usize {
        self.rules.interned()
    }

    /// Waits for the running background build.
    #[cfg(test)]
    pub(super) fn finish_build(&mut self) {
        let (large, compiled, global) = (&self.large, &mut self.compiled, &mut self.global);
        self.beside.wait(|owner| now(owner, large, compiled, global));
    }

    /// Replaces the tables of the interfaces if the same pods still share tables. Returns whether that was the case and no rebinding is
    /// needed.
    fn rebind(&mut self) -> bool {
        let pods = self.interfaces.len().saturating_sub(2);
        let mut now: Vec<Option<LocalId>> = vec![None; self.local_tables.len()];
        for (interface, &id) in self.interfaces[..pods].iter().zip(self.rules.ids().values()) {
            match now.get_mut(interface.table) {
                Some(table @ None) => *table = Some(id),
                Some(table) if *table == Some(id) => {}
                _ => return false,
            }
        }
        let mut different: Vec<_> = now.iter().flatten().collect();
        different.sort_unstable();
        different.dedup();
        if different.len() < now.len() {
            return false;
        }
        for (table, id) in self.local_tables.iter_mut().zip(now.iter().flatten()) {
            table.tables = self.compiled[id].compiled.tables.clone();
        }
        true
    }

    /// Binds each interface to its compiled table.
    fn bind(&mut self) {
        let (mut tables, mut interfaces) = (Vec::new(), Vec::new());
        let mut position = AHashMap::new();
        for ((name, config), id) in self.rules.pods().iter().zip(self.rules.ids().values()) {
            let table = *position.entry(id).or_insert_with(|| {
                tables.push(AclTable {
                    name: format!("local:{name}").into(),
                    tables: self.compiled[id].compiled.tables.clone(),
                });
                tables.len() - 1
            });
            interfaces.push(Interface {
                attachment: Attachment::Pod(name.clone()),
                addresses: config.addresses.clone(),
                mac: config.mac,
                table,
                hairpin: Some(Origins::OWN_POD),
                hairpin_table: None,
                egress_table: None,
            });
        }
        let (hairpins, positions) = self.hairpins.tables();
        for (interface, name) in interfaces.iter_mut().zip(self.rules.pods().keys()) {
            interface.hairpin_table = positions.get(name).map(|at| tables.len() + at);
        }
        let exit = tables.len() + hairpins.len();
        for (attachment, addresses) in
            [(Attachment::Uplink, Vec::new()), (Attachment::Host, self.node_addresses.clone())]
        {
            let (hairpin, hairpin_table) = (None, None);
            interfaces.push(Interface {
                attachment,
                addresses,
                mac: None,
                table: exit,
                hairpin,
                hairpin_table,
                egress_table: None,
            });
        }
        (self.interfaces, self.local_tables) = (interfaces.into(), tables);
    }

    fn publish(&mut self) {
        let Some(global) = self.global.as_ref().map(|global| global.tables.clone()) else { return };
        let mut tables = self.local_tables.clone();
        let (hairpins, _) = self.hairpins.tables();
        tables.extend(hairpins.into_iter().map(|(name, tables)| AclTable { name, tables }));
        tables.push(AclTable { name: "node-exit".into(), tables: global });
        self.generation += 1;
        self.published = Some(Arc::new(NodeTables {
            node: self.node.clone(),
            enforced_at: EnforcedAt::Destination,
            generation: self.generation,
            interfaces: self.interfaces.clone(),
            tables,
        }));
    }

    /// Compiles the hairpin tables of these pods. Returns whether any changed.
    fn set_hairpins(&mut self, pods: &PodChanges) -> bool {
        let mut changed = self.hairpins.retain(|pod| self.rules.pods().contains_key(pod));
        for (name, pod) in pods {
            changed |= self.hairpins.set(name, pod.as_ref().and_then(|pod| pod.hairpin.as_deref()));
        }
        changed
    }

    /// Returns the latest tables. `None` before the first transaction.
    pub(super) fn published(&self) -> Option<&Arc<NodeTables>> {
        self.published.as_ref()
    }

    /// Applies a transaction's changes of the node and its pods. With `resync`, other pods are removed.
    pub(super) fn render(&mut self, resync: bool, pods: &PodChanges, node: Option<Option<&Node>>) {
        let node_changed = node.is_some_and(|node| self.set_node(node));
        let changes = self.rules.apply(resync, pods);
        let all = node_changed || self.generation == 0;
        let interfaces = self.set_hairpins(pods) || changes.interfaces || all;
        self.pending = Changes { locals: changes.locals || interfaces, interfaces, global: changes.global || all };
        self.stale = node_changed;
        if !self.pending.is_empty() {
            self.compile();
            self.publish();
        }
    }
}

/// Compiles the table of number `id`. Derives it from the pod's previous table if that was large. `stale` is set if the node's addresses
/// changed.
fn local(
    rules: &NodeRules,
    (id, pod): (LocalId, &PlainPod),
    before: Option<(LocalId, &Local)>,
    stale: bool,
    beside: &mut Beside,
) -> Result<Local, BuildError> {
    let replaced = before.filter(|_| !stale).and_then(|(old, local)| {
        let len = local.compiled.tables.rules().len();
        let changes = rules.replaced((old, local.ingress.as_ref()?), (id, pod.ingress.as_ref()?), len)?;
        local.compiled.replaced(&changes, beside)
    });
    let compiled = match replaced {
        Some(compiled) => compiled,
        None => Compiled::of(rules.local_rules(pod, id), || Some(&before?.1.compiled), beside)?,
    };
    Ok(Local { compiled, ingress: pod.ingress.clone() })
}

/// Returns the refusal for tables that do not fit. The interface keeps its last tables and denies classes of sources that were not
/// restricted there or had other rules. Without previous tables, it is closed.
fn refused(had_tables: bool, why: &BuildError) -> Refusal {
    let instead = if had_tables { Instead::LastGood } else { Instead::Closed };
    Refusal { subject: String::new(), instead, why: why.to_string() }
}

fn is_closed(refusal: Option<&Refusal>) -> bool {
    refusal.is_some_and(|refusal| refusal.instead == Instead::Closed)
}

/// Returns the replacement for tables that do not fit: the last tables preceded by `denied`, or tables that deny everything.
fn instead(last: Option<&Compiled>, denied: impl FnOnce() -> Vec<Rule>) -> Compiled {
    let behind = last.and_then(|last| last.behind(denied()).ok());
    behind.unwrap_or_else(Compiled::closed)
}

/// Returns the current tables of a build's owner.
fn now<'a>(
    owner: &Owner,
    large: &AHashMap<PodName, LocalId>,
    compiled: &'a mut AHashMap<LocalId, Local>,
    global: &'a mut Option<Compiled>,
) -> Option<&'a mut Compiled> {
    match owner {
        Owner::Exit => global.as_mut(),
        Owner::Pod(name) => Some(&mut compiled.get_mut(large.get(name)?)?.compiled),
    }
}

#[cfg(test)]
mod tests;
