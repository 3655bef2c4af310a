//! Enforcement at the source: keeps a node's session rules in Bulkhead's own table, and compiles them for the dataplane.
//!
//! **Purpose.** Implements `enforce: source`: a pod's table judges what the pod sends, combined with the ingress policies of the node's
//! other pods. One further table judges what enters the node. A connection between two pods of the node is judged once, at its source.
//!
//! **Not its purpose.** It computes no rules: the [`SessionRenderer`] does, and this renderer follows the session table.
//!
//! ```text
//!  transaction --SessionRenderer--> requests --> SessionTable --> groups of a scope --changed ones--> lower --> Tables of each port
//!                    `--6-tuples that session rules cannot express-------^
//! ```
//!
//! **Invariant.** Every published snapshot is complete. If rules do not fit or a list cannot be compiled, the last tables stay in force and
//! the transaction fails. The next transaction tries again.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{Action, BuildError, BuildOptions, OriginId, Rule, Tables};

use super::grouped::ScopeGroups;
use super::lower::Ends;
use super::moved::Moved;
use super::table::ScopeChange;
use super::{SessionRenderer, SessionScope, SessionTable, SessionTarget};
use crate::contract::Transaction;
use crate::object::PodName;
use crate::origin::{Direction, Origins};
use crate::renderer::acl::{AclTable, Attachment, EnforcedAt, Interface, NodeTables};
use crate::renderer::contiv::renderer::TupleTables;
use crate::renderer::plain::PlainPod;
use crate::renderer::{BoxError, Refusal, Renderer};

/// The renderer of a node's session table.
#[derive(Debug)]
pub struct SourceRenderer {
    node: Arc<str>,
    sessions: SessionRenderer<SessionTable>,
    /// The pods from which the tables in force were compiled.
    pods: BTreeMap<PodName, Arc<PlainPod>>,
    /// Changes of the session table that the groups have not applied yet.
    changed: BTreeMap<SessionScope, ScopeChange>,
    groups: BTreeMap<SessionScope, ScopeGroups>,
    /// The pods and node addresses that the groups were updated to. They differ from those in force only if compiling failed.
    grouped_by: BTreeMap<PodName, Arc<PlainPod>>,
    grouped_at: Vec<IpAddr>,
    lowered: BTreeMap<SessionScope, Arc<Tables>>,
    /// The table of a pod without rules.
    open: Arc<Tables>,
    published: Option<Arc<NodeTables>>,
}

impl SourceRenderer {
    /// Creates a renderer of the pods of `node`, with an empty session table.
    pub fn new(node: Arc<str>) -> Self {
        Self::resume(node, SessionTable::default())
    }

    /// Resumes from an existing session table. The first transaction must be a resync. It dumps the table and changes what differs.
    pub fn resume(node: Arc<str>, table: SessionTable) -> Self {
        let sessions = SessionRenderer::new(node.clone(), table);
        Self::of(node, sessions)
    }

    /// Creates a renderer that refuses more than `limit` session rules ([`MAX_RULES`](super::MAX_RULES)).
    pub fn with_limit(node: Arc<str>, limit: usize) -> Self {
        let sessions = SessionRenderer::with_limit(node.clone(), SessionTable::default(), limit);
        Self::of(node, sessions)
    }

    fn of(node: Arc<str>, sessions: SessionRenderer<SessionTable>) -> Self {
        let rest = Rule::any(Action::Allow, Origins::not_isolated(Direction::Egress));
        let open = Tables::build(vec![rest]).expect("one rule is not too many");
        Self {
            node,
            sessions,
            pods: BTreeMap::new(),
            changed: BTreeMap::new(),
            groups: BTreeMap::new(),
            grouped_by: BTreeMap::new(),
            grouped_at: Vec::new(),
            lowered: BTreeMap::new(),
            open: Arc::new(open),
            published: None,
        }
    }

    /// Returns the session table.
    pub fn table(&self) -> &SessionTable {
        self.sessions.target()
    }

    /// Returns the latest tables. `None` before the first successful transaction.
    pub fn node_tables(&self) -> Option<&Arc<NodeTables>> {
        self.published.as_ref()
    }

    /// Returns the number of address intervals written to lists since the start.
    pub fn written(&self) -> u64 {
        self.sessions.tuples().written()
    }

    /// Updates the groups from the session table, the 6-tuples and the pods.
    fn regroup(&mut self, tuples: &TupleTables) {
        let (pods, node_addresses) = (self.sessions.tuples().pods(), self.sessions.tuples().node_addresses());
        let moved = Moved::between(&self.grouped_by, pods, *self.grouped_at != *node_addresses);
        let table = self.sessions.target();
        let mut changed = std::mem::take(&mut self.changed);
        let locals = tuples.locals.iter().filter_map(|(name, local)| {
            let (namespace, pod) = (table.namespace(name)?, pods.get(name)?);
            Some((SessionScope::Local { namespace }, local, Some((name, &**pod))))
        });
        let mut groups = BTreeMap::new();
        for (scope, tuples, owner) in std::iter::once((SessionScope::Global, &tuples.global, None)).chain(locals) {
            let of_scope = match (self.groups.remove(&scope), changed.remove(&scope).unwrap_or_default()) {
                (Some(mut known), ScopeChange::Requests(requests)) => {
                    known.follow(&requests);
                    known.follow_table(tuples);
                    known.doubt(&moved, owner);
                    known
                }
                _ => ScopeGroups::new(scope, table.of_scope(scope), tuples),
            };
            groups.insert(scope, of_scope);
        }
        self.groups = groups;
        (self.grouped_by, self.grouped_at) = (pods.clone(), node_addresses.to_vec());
    }

    /// Compiles the tables of the scopes whose groups changed.
    fn follow(&mut self, tuples: &TupleTables) -> Result<(), BuildError> {
        self.regroup(tuples);
        let ends = Ends::new(&self.grouped_by, &self.grouped_at);
        let table = self.sessions.target();
        let scoped = |(name, pod)| Some((SessionScope::Local { namespace: table.namespace(name)? }, pod));
        let owners: BTreeMap<SessionScope, &Arc<PlainPod>> = self.grouped_by.iter().filter_map(scoped).collect();
        let mut lowered = BTreeMap::new();
        for (scope, groups) in &mut self.groups {
            let known = self.lowered.get(scope);
            let tables = match known {
                Some(known) if !groups.is_stale() => known.clone(),
                _ => {
                    let rules = groups.list(|group, networks| match owners.get(scope) {
                        Some(pod) => ends.local(pod, group, networks),
                        None => ends.global(group, networks),
                    });
                    compiled(known, rules)?
                }
            };
            lowered.insert(*scope, tables);
        }
        // Only after all are compiled, so that a failed one is tried again.
        self.groups.values_mut().for_each(ScopeGroups::settle);
        self.lowered = lowered;
        self.pods = self.grouped_by.clone();
        Ok(())
    }

    /// Publishes the tables if they, or their assignment to ports, changed.
    fn publish(&mut self) {
        let (mut tables, mut interfaces): (Vec<AclTable>, Vec<Interface>) = (Vec::new(), Vec::new());
        let mut open = None;
        for (name, pod) in &self.pods {
            let namespace = self.sessions.target().namespace(name);
            let local = namespace.and_then(|namespace| self.lowered.get(&SessionScope::Local { namespace }));
            let mut add = |of_pod: &Arc<Tables>| {
                tables.push(AclTable { name: format!("local:{name}").into(), tables: of_pod.clone() });
                tables.len() - 1
            };
            let table = match local {
                Some(local) => add(local),
                None => *open.get_or_insert_with(|| add(&self.open)),
            };
            interfaces.push(Interface {
                attachment: Attachment::Pod(name.clone()),
                addresses: pod.addresses.clone(),
                mac: pod.mac,
                table,
                hairpin: Some(Origins::OWN_POD),
                hairpin_table: None,
                egress_table: None,
            });
        }
        let Some(global) = self.lowered.get(&SessionScope::Global) else { return };
        for (attachment, addresses) in [(Attachment::Uplink, Vec::new()), (Attachment::Host, self.grouped_at.clone())] {
            let (table, hairpin, hairpin_table) = (tables.len(), None, None);
            interfaces.push(Interface {
                attachment,
                addresses,
                mac: None,
                table,
                hairpin,
                hairpin_table,
                egress_table: None,
            });
        }
        tables.push(AclTable { name: "node-entry".into(), tables: global.clone() });
        let is_same = |published: &NodeTables| {
            let same =
                |(old, new): (&AclTable, &AclTable)| old.name == new.name && Arc::ptr_eq(&old.tables, &new.tables);
            *published.interfaces == *interfaces
                && published.tables.len() == tables.len()
                && published.tables.iter().zip(&tables).all(same)
        };
        if self.published.as_deref().is_some_and(is_same) {
            return;
        }
        self.published = Some(Arc::new(NodeTables {
            node: self.node.clone(),
            enforced_at: EnforcedAt::Source,
            generation: self.published.as_ref().map_or(0, |published| published.generation) + 1,
            interfaces: interfaces.into(),
            tables,
        }));
    }
}

/// Compiles a list, or returns the known tables if their rules are equal.
fn compiled(known: Option<&Arc<Tables>>, rules: Vec<Rule>) -> Result<Arc<Tables>, BuildError> {
    Ok(match known {
        Some(known) if known.rules().iter().eq(&rules) => known.clone(),
        Some(known) => Arc::new(known.changed_to(&rules, &BuildOptions::default())?),
        None => Arc::new(Tables::build(rules)?),
    })
}

impl Renderer for SourceRenderer {
    fn name(&self) -> String {
        format!("session table of node {}", self.node)
    }

    /// Fails with the [`SessionRenderer`]'s error, or with a [`BuildError`].
    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        for (name, _) in transaction
            .endpoints
            .iter()
            .filter(|(_, endpoint)| endpoint.as_ref().is_some_and(|endpoint| endpoint.node == self.node))
        {
            self.sessions.target_mut().attach(name);
        }
        let rendered = self.sessions.render(transaction);
        // Includes changes made before an error.
        for (scope, change) in self.sessions.target_mut().take_changed() {
            self.changed.entry(scope).or_default().append(change);
        }
        rendered?;
        let Some(tuples) = self.sessions.published() else { return Ok(()) };
        self.follow(&tuples)?;
        self.publish();
        let pods = &self.pods;
        self.sessions.target_mut().retain(|pod| pods.contains_key(pod));
        Ok(())
    }

    fn origins(&self) -> HashSet<OriginId> {
        let tables = self.published.iter().flat_map(|published| &published.tables);
        let in_force = tables.flat_map(|table| table.tables.rules().iter()).map(|rule| rule.origin);
        self.sessions.origins().into_iter().chain(in_force).collect()
    }

    fn refusals(&self) -> Vec<Refusal> {
        self.sessions.refusals()
    }
}
