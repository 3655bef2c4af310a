//! The vswitches of a cluster: judges flows with the tables that the pipelines published.
//! ```text
//!  source pod or node --> its node's vswitch: the destination's interface, else the uplink
//!                              | other node                       `- local: one table, done
//!                              v
//!                         the destination's node: the destination's interface
//! ```
//! If policy is enforced at the source, the source's interface counts, or the uplink for traffic from elsewhere.
#![allow(dead_code, reason = "each test file uses a part of this")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_classifier::{Action, Key, OriginId, Rule};
use bulkhead_control::cache::Event;
use bulkhead_control::object::{Enforcement, IngressIsolation, Object};
use bulkhead_control::origin::Origin;
use bulkhead_control::pipeline::{AuditTables, Engine, Pipeline, UNBOUND};
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::acl::{Attachment, EnforcedAt, Interface, NodeTables};

use crate::oracle::{Flow, Owner, State, name_of};

/// The pipelines of a cluster: one for all nodes, or one per node as in production.
pub(crate) struct Vswitches {
    pipelines: BTreeMap<Arc<str>, Pipeline>,
    /// The tables that were compiled for questions about the present state, by node.
    compiled: RefCell<BTreeMap<Arc<str>, Option<Compiled>>>,
}

/// The tables of a node, and its audit tables.
type Compiled = (Arc<NodeTables>, Option<AuditTables>);

/// The key of the pipeline for all nodes. No node has this name.
const ALL: &str = "*";

/// One table's verdict for a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    pub(crate) node: Arc<str>,
    pub(crate) exit: bool,
    pub(crate) action: Action,
    pub(crate) origin: Option<Origin>,
}

/// One interface: a text with node, attachment and addresses, and its rules with the meaning of their origins.
pub(crate) type Enforced = (String, Vec<(Rule, Option<Origin>)>);

impl Vswitches {
    pub(crate) fn cluster() -> Self {
        Self::cluster_where(IngressIsolation::ClusterDefault)
    }

    /// As [`Self::cluster`], with the isolation of namespaces without an annotation.
    pub(crate) fn cluster_where(isolation: IngressIsolation) -> Self {
        Self::of([(ALL.into(), Pipeline::with_default_isolation(Scope::Cluster, isolation))].into())
    }

    pub(crate) fn nodes(names: &[&str]) -> Self {
        Self::nodes_where(names, IngressIsolation::ClusterDefault)
    }

    /// As [`Self::nodes`], with the isolation of namespaces without an annotation.
    pub(crate) fn nodes_where(names: &[&str], isolation: IngressIsolation) -> Self {
        let of = |name: &str| Pipeline::with_default_isolation(Scope::Node(name.into()), isolation);
        Self::of(names.iter().map(|name| ((*name).into(), of(name))).collect())
    }

    /// One pipeline per node that enforces policy at the source.
    pub(crate) fn nodes_at_source(names: &[&str]) -> Self {
        Self::nodes_at_source_where(names, IngressIsolation::ClusterDefault)
    }

    /// As [`Self::nodes_at_source`], with the isolation of namespaces without an annotation.
    pub(crate) fn nodes_at_source_where(names: &[&str], isolation: IngressIsolation) -> Self {
        let of = |name: &str| Pipeline::at_source(name.into(), isolation);
        Self::of(names.iter().map(|name| ((*name).into(), of(name))).collect())
    }

    /// One pipeline per node, with a chosen engine.
    pub(crate) fn nodes_by(names: &[&str], isolation: IngressIsolation, engine: Engine) -> Self {
        let of = |name: &str| Pipeline::with_engine(Scope::Node(name.into()), isolation, engine);
        Self::of(names.iter().map(|name| ((*name).into(), of(name))).collect())
    }

    /// As [`Self::nodes_by`], with auditing. `default` applies to policies without an annotation.
    pub(crate) fn nodes_auditing(names: &[&str], engine: Engine, default: Enforcement) -> Self {
        let isolation = IngressIsolation::ClusterDefault;
        let of = |name: &str| Pipeline::with_engine(Scope::Node(name.into()), isolation, engine).auditing(default);
        Self::of(names.iter().map(|name| ((*name).into(), of(name))).collect())
    }

    fn of(pipelines: BTreeMap<Arc<str>, Pipeline>) -> Self {
        Self { pipelines, compiled: RefCell::default() }
    }

    /// One pipeline without tables, with auditing. The tables of a node are compiled when a flow reaches it.
    pub(crate) fn questions_auditing(default: Enforcement) -> Self {
        Self::of([(ALL.into(), Pipeline::without_tables(IngressIsolation::ClusterDefault).auditing(default))].into())
    }

    /// One pipeline for all nodes, with auditing.
    pub(crate) fn cluster_auditing(default: Enforcement) -> Self {
        Self::of([(ALL.into(), Pipeline::new(Scope::Cluster).auditing(default))].into())
    }

    pub(crate) fn pipelines(&self) -> impl Iterator<Item = &Pipeline> {
        self.pipelines.values()
    }

    /// Whether pods without a node get rules.
    pub(crate) fn know_the_unbound(&self) -> bool {
        self.pipelines.contains_key(ALL)
    }

    /// Returns the tables of a node. `None` if the node is not known.
    fn tables(&self, node: &Arc<str>) -> Option<Compiled> {
        let pipeline = self.pipeline(node);
        let compile = || pipeline.compiled_node(node).map(|compiled| (compiled.tables, compiled.audit));
        match pipeline.mirror() {
            None => compile(),
            Some(_) => self.compiled.borrow_mut().entry(node.clone()).or_insert_with(compile).clone(),
        }
    }

    /// Applies one event to all pipelines.
    pub(crate) fn apply(&mut self, event: &Event) {
        self.compiled.borrow_mut().clear();
        for pipeline in self.pipelines.values_mut() {
            pipeline.apply(event.clone()).unwrap();
        }
    }

    /// Replaces the whole state of all pipelines.
    pub(crate) fn resync(&mut self, objects: &[Object]) {
        self.compiled.borrow_mut().clear();
        for pipeline in self.pipelines.values_mut() {
            pipeline.resync(objects.to_vec()).unwrap();
        }
    }

    fn pipeline(&self, node: &str) -> &Pipeline {
        self.pipelines.get(node).or_else(|| self.pipelines.get(ALL)).expect("the node is in the scope")
    }

    /// The decision about a connection of a pod to itself through a Service. `None` if no table judges it, so that it is allowed.
    ///
    /// # Panics
    /// If the pod's node has no interface with the address.
    pub(crate) fn hairpin(&self, node: &Arc<str>, flow: &Flow) -> Option<(Action, Option<Origin>)> {
        let pipeline = self.pipeline(node);
        let tables = pipeline.node_tables(node).expect("the node has a pod");
        let interface = tables.interfaces.iter().find(|interface| interface.addresses.contains(&flow.src));
        let table = &tables.tables[interface.expect("the pod has an interface").hairpin_table?].tables;
        let verdict = table.lookup(&Key::new(flow.src, flow.dst, flow.protocol, 40_000, flow.port));
        let origin = table.deciding_rule(verdict).and_then(|rule| pipeline.origins().get(rule.origin).cloned());
        Some((verdict.action(), origin))
    }

    /// The generation of each node's tables.
    pub(crate) fn generations(&self) -> Vec<(Arc<str>, u64)> {
        let all = self.pipelines.values().flat_map(Pipeline::all_node_tables);
        all.map(|tables| (tables.node.clone(), tables.generation)).collect()
    }

    /// The verdicts of the tables that judge the flow, in order, up to the first that denies it.
    pub(crate) fn hops(&self, state: &State, flow: &Flow, origins: bool) -> Vec<Hop> {
        self.hops_by(false, state, flow, origins)
    }

    /// As [`Self::hops`]. With `is_full`, by the tables of all policies, audited ones included.
    pub(crate) fn hops_by(&self, is_full: bool, state: &State, flow: &Flow, origins: bool) -> Vec<Hop> {
        let node_of = |owner: Owner<'_>| match owner {
            Owner::Pod(pod) => Some(pod.node.clone().unwrap_or_else(|| UNBOUND.into())),
            Owner::Node(node) => Some(node),
            Owner::Nobody | Owner::Several => None,
        };
        let (from, to) = (node_of(state.owner(flow.src)), node_of(state.owner(flow.dst)));
        let names: Vec<&str> = name_of(flow.dst).filter(|_| state.learned).into_iter().collect();
        let hop = |node| self.hop(is_full, node, (flow, &names), origins);
        let mut hops: Vec<Hop> = from.iter().filter_map(hop).collect();
        let passes = hops.iter().all(|hop| hop.action == Action::Allow);
        if let Some(to) = to.filter(|_| passes).filter(|to| Some(to) != from.as_ref()) {
            hops.extend(hop(&to));
        }
        hops
    }

    /// `None` if nothing was ever published for the node, which then has no pods.
    fn hop(&self, is_full: bool, node: &Arc<str>, (flow, names): (&Flow, &[&str]), origins: bool) -> Option<Hop> {
        let pipeline = self.pipeline(node);
        let (tables, audit) = self.tables(node)?;
        let end = match tables.enforced_at {
            EnforcedAt::Destination => flow.dst,
            EnforcedAt::Source => flow.src,
        };
        let of = |address| move |interface: &&Interface| interface.addresses.contains(&address);
        let uplink = |interface: &&Interface| interface.attachment == Attachment::Uplink;
        let owner = tables.interfaces.iter().find(of(end)).or_else(|| tables.interfaces.iter().find(uplink));
        let attachment = owner.expect("every node has an uplink").attachment.clone();
        // Audit tables have the same interfaces.
        let audit = audit.filter(|audit| is_full && audit.differs_at(&attachment));
        let tables = audit.map_or(tables, |audit| audit.tables);
        let interface = tables.interfaces.iter().find(|interface| interface.attachment == attachment);
        let mut table = &tables.tables[interface.expect("the same interfaces").table].tables;
        // Any source port must give the same verdict. This one depends on the flow.
        let src_port = flow.port.wrapping_mul(40_503) ^ u16::from(flow.protocol);
        let key = Key::new(flow.src, flow.dst, flow.protocol, src_port, flow.port);
        let mut verdict = table.lookup(&key);
        let exit = !matches!(attachment, Attachment::Pod(_));
        let sender = tables.interfaces.iter().find(of(flow.src));
        if let Some(egress) = sender.and_then(|sender| sender.egress_table) {
            let egress = &tables.tables[egress].tables;
            let by_name = names.iter().map(|name| egress.lookup_name(&key, name));
            let named =
                by_name.fold(egress.lookup(&key), |first, next| if next.precedes(first) { next } else { first });
            let leaves = exit || tables.enforced_at == EnforcedAt::Source;
            let by_name = egress.deciding_rule(named).is_some_and(|rule| rule.names.is_some());
            if !named.is_allow() || (leaves || by_name) && verdict.is_allow() {
                (table, verdict) = (egress, named);
            }
        }
        let origin = match origins {
            true => table.deciding_rule(verdict).and_then(|rule| pipeline.origins().get(rule.origin).cloned()),
            false => None,
        };
        Some(Hop { node: node.clone(), exit, action: verdict.action(), origin })
    }

    /// Whether every table that judges the flow allows it.
    pub(crate) fn allow(&self, state: &State, flow: &Flow) -> bool {
        self.hops(state, flow, false).iter().all(|hop| hop.action == Action::Allow)
    }

    /// The rules of all interfaces, with the origins' meanings instead of their numbers, which depend on the history. Nodes without pods
    /// are omitted, because whether they are known also depends on the history.
    pub(crate) fn enforced(&self) -> Vec<Enforced> {
        let mut all = Vec::new();
        for pipeline in self.pipelines.values() {
            for tables in pipeline.all_node_tables() {
                if !tables.interfaces.iter().any(|interface| matches!(interface.attachment, Attachment::Pod(_))) {
                    continue;
                }
                all.extend(tables.interfaces.iter().map(|interface| {
                    let meaning = |rule: &Rule| {
                        (Rule { origin: OriginId(0), ..rule.clone() }, pipeline.origins().get(rule.origin).cloned())
                    };
                    let judging = [interface.egress_table, Some(interface.table)].into_iter().flatten();
                    let rules = judging.flat_map(|table| tables.tables[table].tables.rules().iter().map(meaning));
                    let rules = rules.collect();
                    (format!("{} {:?} {:?}", tables.node, interface.attachment, interface.addresses), rules)
                }));
            }
        }
        all
    }
}
