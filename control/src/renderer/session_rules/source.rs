//! Enforcement at the source: the session rules of a node in a table of our own, as tables that our dataplane looks up.
//!
//! **Purpose.** What `enforce: source` means: a pod's table judges what the pod sends, to pods of the node with their ingress policies
//! combined into it, and one table judges what enters the node. A connection between two pods of the node is judged once,
//! at its source.
//!
//! **Not its purpose.** It renders no rules of its own: the [`SessionRenderer`] does, and this follows the session table.
//!
//! ```text
//!  transaction --SessionRenderer--> requests --> SessionTable --scopes that have changed--> lower --> Tables of each port
//!                    `--6-tuples, what session rules cannot say-----------------------------^
//! ```
//!
//! **Invariant.** What is published is one whole state. When rules do not fit, or a list cannot be compiled, the last tables stay and the
//! transaction is an error; the next one tries again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{Action, BuildError, BuildOptions, OriginId, Rule, Tables};

use super::lower::Ends;
use super::{SessionRenderer, SessionScope, SessionTable, SessionTarget};
use crate::contract::Transaction;
use crate::object::PodName;
use crate::origin::{Direction, Origins};
use crate::renderer::acl::{AclTable, Attachment, EnforcedAt, Interface, NodeTables};
use crate::renderer::contiv::renderer::TupleTables;
use crate::renderer::contiv::table::Table;
use crate::renderer::plain::PlainPod;
use crate::renderer::{BoxError, Refusal, Renderer};

/// What a scope's tables were made of besides its session rules.
#[derive(Clone, Debug)]
struct Lowered {
    table: Arc<Table>,
    tables: Arc<Tables>,
}

/// See the module.
#[derive(Debug)]
pub struct SourceRenderer {
    node: Arc<str>,
    sessions: SessionRenderer<SessionTable>,
    /// The pods as the tables that are in force know them.
    pods: BTreeMap<PodName, Arc<PlainPod>>,
    node_addresses: Vec<IpAddr>,
    /// Scopes whose session rules have changed since they were lowered.
    changed: BTreeSet<SessionScope>,
    lowered: BTreeMap<SessionScope, Lowered>,
    /// What a pod without rules has.
    open: Arc<Tables>,
    published: Option<Arc<NodeTables>>,
}

impl SourceRenderer {
    /// A renderer of the pods of `node`, with an empty session table.
    pub fn new(node: Arc<str>) -> Self {
        Self::resume(node, SessionTable::default())
    }

    /// A renderer that goes on from a session table as it was found. The first transaction, which has to be a resync, dumps it and
    /// changes what differs.
    pub fn resume(node: Arc<str>, table: SessionTable) -> Self {
        let sessions = SessionRenderer::new(node.clone(), table);
        Self::of(node, sessions)
    }

    /// A renderer that refuses what makes more than `limit` session rules, see [`MAX_RULES`](super::MAX_RULES).
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
            node_addresses: Vec::new(),
            changed: BTreeSet::new(),
            lowered: BTreeMap::new(),
            open: Arc::new(open),
            published: None,
        }
    }

    /// The session table.
    pub fn table(&self) -> &SessionTable {
        self.sessions.target()
    }

    /// The latest tables, none before the first transaction that could be rendered.
    pub fn node_tables(&self) -> Option<&Arc<NodeTables>> {
        self.published.as_ref()
    }

    /// Intervals of address sets written for lists so far.
    pub fn written(&self) -> u64 {
        self.sessions.tuples().written()
    }

    /// Brings the tables to what the session table holds.
    fn follow(&mut self, tuples: &TupleTables) -> Result<(), BuildError> {
        let pods = self.sessions.tuples().pods();
        let node_addresses = self.sessions.tuples().node_addresses();
        let is_renumbered = *self.node_addresses != *node_addresses;
        let moved = Moved::between(&self.pods, pods);
        let ends = Ends::new(pods, node_addresses);
        let table = self.sessions.target();
        let mut lowered = BTreeMap::new();
        let kept = |scope: SessionScope, table: &Arc<Table>| {
            let known = self.lowered.get(&scope)?;
            let is_same = Arc::ptr_eq(&known.table, table) && !self.changed.contains(&scope) && !is_renumbered;
            is_same.then(|| known.clone())
        };
        let global = match kept(SessionScope::Global, &tuples.global).filter(|_| !moved.ingress) {
            Some(known) => known,
            None => {
                let rules = ends.global(table.of_scope(SessionScope::Global), &tuples.global.rules);
                self.compiled(SessionScope::Global, &tuples.global, rules)?
            }
        };
        lowered.insert(SessionScope::Global, global);
        for (name, local) in &tuples.locals {
            let (Some(namespace), Some(pod)) = (table.namespace(name), pods.get(name)) else { continue };
            let scope = SessionScope::Local { namespace };
            let known = kept(scope, local).filter(|_| !moved.pods.contains(name) && !moved.meets(local));
            let of_pod = match known {
                Some(known) => known,
                None => self.compiled(scope, local, ends.local(pod, table.of_scope(scope), &local.rules))?,
            };
            lowered.insert(scope, of_pod);
        }
        (self.pods, self.node_addresses) = (pods.clone(), node_addresses.to_vec());
        self.lowered = lowered;
        self.changed.clear();
        Ok(())
    }

    /// The tables of a list, the same ones where the scope has this list already.
    fn compiled(&self, scope: SessionScope, table: &Arc<Table>, rules: Vec<Rule>) -> Result<Lowered, BuildError> {
        let tables = match self.lowered.get(&scope) {
            Some(known) if known.tables.rules().iter().eq(&rules) => known.tables.clone(),
            Some(known) => Arc::new(known.tables.changed_to(&rules, &BuildOptions::default())?),
            None => Arc::new(Tables::build(rules)?),
        };
        Ok(Lowered { table: table.clone(), tables })
    }

    /// Publishes the tables where they, or the ports that have them, are others than before.
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
                Some(local) => add(&local.tables),
                None => *open.get_or_insert_with(|| add(&self.open)),
            };
            interfaces.push(Interface {
                attachment: Attachment::Pod(name.clone()),
                addresses: pod.addresses.clone(),
                mac: pod.mac,
                table,
                hairpin: Some(Origins::OWN_POD),
            });
        }
        let Some(global) = self.lowered.get(&SessionScope::Global) else { return };
        for (attachment, addresses) in
            [(Attachment::Uplink, Vec::new()), (Attachment::Host, self.node_addresses.clone())]
        {
            interfaces.push(Interface { attachment, addresses, mac: None, table: tables.len(), hairpin: None });
        }
        tables.push(AclTable { name: "node-entry".into(), tables: global.tables.clone() });
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

/// Pods whose lists are others than those that the tables in force rest on.
#[derive(Debug, Default)]
struct Moved {
    pods: BTreeSet<PodName>,
    /// The addresses of those whose ingress list is another: tables of other pods name its rules.
    addresses: BTreeSet<IpAddr>,
    /// Whether there is any such pod.
    ingress: bool,
}

impl Moved {
    fn between(old: &BTreeMap<PodName, Arc<PlainPod>>, new: &BTreeMap<PodName, Arc<PlainPod>>) -> Self {
        let mut moved = Self::default();
        for (name, pod) in new {
            let before = old.get(name);
            if before.is_some_and(|before| Arc::ptr_eq(before, pod)) {
                continue;
            }
            moved.pods.insert(name.clone());
            if before.is_none_or(|before| before.ingress != pod.ingress || before.addresses != pod.addresses) {
                moved.ingress = true;
                moved.addresses.extend(&pod.addresses);
            }
        }
        for gone in old.iter().filter(|(name, _)| !new.contains_key(*name)).map(|(_, pod)| pod) {
            moved.ingress = true;
            moved.addresses.extend(&gone.addresses);
        }
        moved
    }

    /// Whether the table has rules for one of the addresses alone.
    fn meets(&self, table: &Table) -> bool {
        let hosts = table.rules.iter().filter_map(|rule| rule.dst);
        let hosts = hosts.filter(|network| network.prefix_len() == network.max_prefix_len());
        !self.addresses.is_empty() && hosts.into_iter().any(|host| self.addresses.contains(&host.addr()))
    }
}

impl Renderer for SourceRenderer {
    fn name(&self) -> String {
        format!("session table of node {}", self.node)
    }

    /// The error is one of the [`SessionRenderer`], or a [`BuildError`].
    fn render(&mut self, transaction: &Transaction) -> Result<(), BoxError> {
        for (name, _) in transaction
            .endpoints
            .iter()
            .filter(|(_, endpoint)| endpoint.as_ref().is_some_and(|endpoint| endpoint.node == self.node))
        {
            self.sessions.target_mut().attach(name);
        }
        let rendered = self.sessions.render(transaction);
        // What was changed before an error, too.
        self.changed.append(&mut self.sessions.target_mut().take_changed());
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
