//! The wiring: the only place that sees all three crates.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_classifier::Tables;
use bulkhead_control::object::{
    ClusterPolicyKind, ClusterPolicyName, ENFORCEMENT_ANNOTATION, Object, ObjectName, PodName, Position,
};
use bulkhead_control::origin::Origin;
use bulkhead_control::pipeline::{AuditTables, AuditedPolicy, Pipeline};
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::Refusal;
use bulkhead_control::renderer::acl::{Attachment, EnforcedAt, Interface, NodeTables};
use bulkhead_control::service::Settings;
use bulkhead_control::source::{self, Loaded, Options, ServiceKinds, SourceErrors};
use bulkhead_control::ties::{self, Tie};
use bulkhead_dataplane::{Decision, PortConfig, PortId, PortKind, Routes, Snapshot, TableId};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::args::{Planned, State};
use crate::services::Adapter;
use crate::{contests, output, services};

/// Reads the state and compiles it for the scope. Warnings go to standard error.
///
/// # Errors
/// Everything that is wrong with the files, and rules that do not fit, unless the user is lenient.
pub fn load(state: &State, scope: Scope) -> anyhow::Result<Pipeline> {
    load_by(state, &state.options()?, scope)
}

/// As [`load`] for the whole cluster, with a pod for each workload that has none: for questions, and for nothing that forwards or writes
/// rules, because nobody has these pods' addresses.
///
/// # Errors
/// As for [`load`].
pub fn load_planned(state: &State, planned: &Planned) -> anyhow::Result<Pipeline> {
    load_by(state, &planned.with(state.options()?), Scope::Cluster)
}

/// As [`load_planned`], without tables: for questions that rules and sets answer by themselves.
///
/// # Errors
/// As for [`load`], but for rules that do not fit: nothing is made of them.
pub(crate) fn load_without_tables(state: &State, planned: &Planned) -> anyhow::Result<Pipeline> {
    let options = planned.with(state.options()?);
    let loaded = source::load(&state.paths, options.clone())?;
    let empty = Pipeline::without_tables(options.semantics.default_isolation());
    Ok(compiled(state, empty, loaded)?.0)
}

/// A state for questions about its rules: none of them is left out because others leave it nothing to do.
pub(crate) struct Whole {
    /// The rules and sets, without tables.
    pub(crate) pipeline: Pipeline,
    /// The same with tables, for what was seen; only where that is asked for.
    pub(crate) tables: Option<Pipeline>,
    /// Services and endpoint slices.
    pub(crate) services: Vec<Object>,
    /// See [`Loaded::idle_rules`].
    pub(crate) idle_rules: SourceErrors,
    /// See [`Loaded::empty_lists`].
    pub(crate) empty_lists: SourceErrors,
}

/// Reads a state with its Services, and pods for workloads that have none. A fault of a Service is a warning, and then there are none.
///
/// # Errors
/// As for [`load`].
pub(crate) fn load_whole(state: &State, planned: &Planned, with_tables: bool) -> anyhow::Result<Whole> {
    let options = planned.with(state.options()?);
    let isolation = options.semantics.default_isolation();
    let mut loaded = read_with_services(state, &options, false)?;
    let (idle_rules, empty_lists) = (std::mem::take(&mut loaded.idle_rules), std::mem::take(&mut loaded.empty_lists));
    tell_loaded(&loaded, &idle_rules);
    let is_service = |object: &Object| matches!(object, Object::Service(_) | Object::EndpointSlice(_));
    let (services, objects): (Vec<_>, Vec<_>) = loaded.objects.into_iter().partition(is_service);
    let tables = if with_tables {
        let mut tables = Pipeline::with_default_isolation(Scope::Cluster, isolation);
        tables.resync(objects.clone()).context("the state does not compile")?;
        check_refusals(&tables, state.lenient)?;
        Some(tables)
    } else {
        None
    };
    let mut pipeline = Pipeline::with_every_rule(isolation);
    pipeline.resync(objects).context("the state does not compile")?;
    contests::check(&pipeline, state.lenient)?;
    warn_of_missing_namespaces(&pipeline);
    warn_of_missing_nodes(&pipeline);
    Ok(Whole { pipeline, tables, services, idle_rules, empty_lists })
}

/// As [`load_without_tables`], with the Services of the state.
///
/// # Errors
/// As for [`load_without_tables`].
pub(crate) fn load_without_tables_with_services(
    state: &State,
    planned: &Planned,
) -> anyhow::Result<(Pipeline, Vec<Object>)> {
    let options = planned.with(state.options()?);
    let empty = Pipeline::without_tables(options.semantics.default_isolation());
    let loaded = read_with_services(state, &options, false)?;
    compiled(state, empty, loaded)
}

fn load_by(state: &State, options: &Options, scope: Scope) -> anyhow::Result<Pipeline> {
    let loaded = source::load(&state.paths, options.clone())?;
    let empty = Pipeline::with_default_isolation(scope, options.semantics.default_isolation());
    Ok(compiled(state, empty, loaded)?.0)
}

/// As [`load`], with the Services and endpoint slices of the state. Where the question is not about Services, a fault of one is a warning
/// and there are none.
///
/// # Errors
/// As for [`load`].
pub(crate) fn load_with_services(
    state: &State,
    scope: Scope,
    is_about_services: bool,
) -> anyhow::Result<(Pipeline, Vec<Object>)> {
    load_with_services_by(state, &state.options()?, scope, is_about_services)
}

/// As [`load_planned`] and [`load_with_services`].
///
/// # Errors
/// As for [`load`].
pub(crate) fn load_planned_with_services(
    state: &State,
    planned: &Planned,
    is_about_services: bool,
) -> anyhow::Result<(Pipeline, Vec<Object>)> {
    load_with_services_by(state, &planned.with(state.options()?), Scope::Cluster, is_about_services)
}

fn load_with_services_by(
    state: &State,
    options: &Options,
    scope: Scope,
    is_about_services: bool,
) -> anyhow::Result<(Pipeline, Vec<Object>)> {
    let loaded = read_with_services(state, options, is_about_services)?;
    compiled(state, Pipeline::with_default_isolation(scope, options.semantics.default_isolation()), loaded)
}

/// Reads a state with its Services.
fn read_with_services(state: &State, options: &Options, is_about_services: bool) -> anyhow::Result<Loaded> {
    let with = Options { services: ServiceKinds::Read, ..options.clone() };
    match source::load(&state.paths, with) {
        // Standard input cannot be read again.
        Err(faults) if !is_about_services && state.paths.iter().all(|path| path.as_os_str() != "-") => {
            let without = source::load(&state.paths, options.clone())?;
            let fault = faults.shown().first().map(ToString::to_string).unwrap_or_default();
            output::warn(&format!("Services are left out, because not all can be read: {fault}"));
            Ok(without)
        }
        loaded => Ok(loaded?),
    }
}

/// Tells the warnings of what was read, and what of it does not count. What is in `told` is told elsewhere.
fn tell_loaded(loaded: &Loaded, told: &SourceErrors) {
    let untold = loaded.warnings.shown().iter().filter(|warning| !told.shown().contains(warning));
    untold.for_each(output::warn);
    match loaded.warnings.total() - loaded.warnings.shown().len() {
        0 => {}
        more => output::warn(&format!("{more} more of such")),
    }
    let kinds = [
        ("skipped, because policy does not depend on them", &loaded.skipped),
        ("ignored as asked, though they restrict traffic", &loaded.ignored),
    ];
    for (what, kinds) in kinds.into_iter().filter(|(_, kinds)| !kinds.is_empty()) {
        let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
        output::note(&format!("{what}: {}", output::some_of(&kinds, 8)));
    }
}

/// Gives a pipeline what was read. Services and slices are left over.
fn compiled(state: &State, pipeline: Pipeline, loaded: Loaded) -> anyhow::Result<(Pipeline, Vec<Object>)> {
    let mut pipeline = pipeline.auditing(state.enforcement.into());
    tell_loaded(&loaded, &SourceErrors::default());
    let is_service = |object: &Object| matches!(object, Object::Service(_) | Object::EndpointSlice(_));
    let (services, objects): (Vec<_>, Vec<_>) = loaded.objects.into_iter().partition(is_service);
    pipeline.resync(objects).context("the state does not compile")?;
    contests::check(&pipeline, state.lenient)?;
    check_refusals(&pipeline, state.lenient)?;
    warn_of_missing_namespaces(&pipeline);
    warn_of_missing_nodes(&pipeline);
    for warning in left_open(&pipeline) {
        output::warn(&warning);
    }
    let audited = audited_names(&pipeline.audited_policies());
    if !audited.is_empty() {
        let names: Vec<&str> = audited.iter().map(String::as_str).collect();
        output::note(&format!("audited and not enforced: {}", output::some_of(&names, MAX_AUDITED)));
    }
    Ok((pipeline, services))
}

/// Audited policies that are named one by one: a line of them.
const MAX_AUDITED: usize = 8;

fn audited_names(policies: &BTreeSet<AuditedPolicy>) -> Vec<String> {
    policies.iter().map(ToString::to_string).collect()
}

/// Has audited policies enforced, for what cannot audit, and warns of them.
///
/// # Errors
/// When what they say does not compile.
pub(crate) fn enforce_all(pipeline: &mut Pipeline, who: &str) -> anyhow::Result<()> {
    let audited = audited_names(&pipeline.audited_policies());
    pipeline.enforce(None)?;
    if !audited.is_empty() {
        let names: Vec<&str> = audited.iter().map(String::as_str).collect();
        output::warn(&format!(
            "{who}: these policies are taken as enforced, though they are to be audited: {}\n  \
             help: {ENFORCEMENT_ANNOTATION} has an effect in the vswitch with `enforce: destination` (docs/audit.md)",
            output::some_of(&names, MAX_AUDITED)
        ));
    }
    Ok(())
}

/// The policies that are enforced although they are to be audited, because where policy is enforced nothing can be audited: a line for
/// each with its place, and one with the remedy.
pub(crate) fn unaudited(pipeline: &Pipeline) -> Vec<String> {
    let unaudited = pipeline.unaudited_policies();
    let more = unaudited.len().saturating_sub(MAX_REFUSALS);
    let told = unaudited.iter().take(MAX_REFUSALS).map(|(policy, position)| {
        let place = position.as_ref().map(|position| format!("{position}: ")).unwrap_or_default();
        format!(
            "{place}{policy} is enforced, though its {ENFORCEMENT_ANNOTATION}, or its namespace's, says audit: with `enforce: source` and \
             `dataplane: nftables` nothing is audited\n  help: remove the annotation, or use the vswitch with `enforce: destination`"
        )
    });
    told.chain((more > 0).then(|| format!("and {more} more of such"))).collect()
}

/// Tells of rules that do not fit.
///
/// # Errors
/// When there are any, unless the user is `lenient`: what is asked about the state depends on them.
fn check_refusals(pipeline: &Pipeline, lenient: bool) -> anyhow::Result<()> {
    let refusals = refusals(pipeline);
    if !lenient && !refusals.is_empty() {
        bail!("{}", refusals.join("\n"));
    }
    refusals.iter().for_each(output::warn);
    Ok(())
}

/// The rules that do not fit, with what is in force in their place: a line, and one with the remedy.
pub(crate) fn refusals(pipeline: &Pipeline) -> Vec<String> {
    let refusals = pipeline.refusals();
    let more = refusals.len().saturating_sub(MAX_REFUSALS);
    let told = |refusal: &Refusal| {
        format!("{refusal}\n  help: write the policies of these pods with fewer rules, or fewer overlaps")
    };
    let told = refusals.iter().take(MAX_REFUSALS).map(told);
    told.chain((more > 0).then(|| format!("and {more} more of such"))).collect()
}

/// Refusals that are told one by one: as many as a person reads.
const MAX_REFUSALS: usize = 10;

/// What the API of cluster policies leaves open in this state, and how it is decided here.
pub(crate) fn left_open(pipeline: &Pipeline) -> Vec<String> {
    let cache = pipeline.cache();
    let tie = |tie: &Tie| {
        format!(
            "{tie}: the API leaves open which is asked first; here it is the former, by its name\n  \
             help: give one of them another priority"
        )
    };
    let mut told: Vec<String> = ties::ties(cache).iter().take(MAX_TIES).map(tie).collect();
    let is_new = |name: &ClusterPolicyName| name.kind == ClusterPolicyKind::ClusterNetworkPolicy;
    let names = || cache.cluster_policies().keys();
    if names().any(is_new) && !names().all(is_new) {
        let text = "there are policies of policy.networking.k8s.io/v1alpha1 and v1alpha2: all of a tier are asked by priority, a \
                    BaselineAdminNetworkPolicy last\n  help: write them in one version";
        told.push(text.into());
    }
    told
}

/// Ties that are told: more than a screen of them helps nobody.
const MAX_TIES: usize = 10;

/// Pods of a namespace without an object match no namespace selector but one for everything or by name.
fn warn_of_missing_namespaces(pipeline: &Pipeline) {
    let cache = pipeline.cache();
    let used: BTreeSet<_> = cache.pods().map(|(_, pod)| &pod.name.namespace).collect();
    let missing: Vec<&str> =
        used.into_iter().filter(|name| !cache.namespaces().contains_key(*name)).map(|name| &**name).collect();
    let has_policies = !cache.policies().is_empty() || !cache.cluster_policies().is_empty();
    if !missing.is_empty() && has_policies {
        let names = output::some_of(&missing, 5);
        output::warn(&format!(
            "no Namespace object for {names}: a namespaceSelector by label does not match their pods\n  \
             help: add the output of `kubectl get namespaces -o yaml` to --state"
        ));
    }
}

/// What a node's own addresses are its object tells, and otherwise at most its host-network pods.
fn warn_of_missing_nodes(pipeline: &Pipeline) {
    let cache = pipeline.cache();
    let used: BTreeSet<_> = cache.pods().filter_map(|(_, pod)| pod.node.as_ref()).collect();
    let missing: Vec<&str> =
        used.into_iter().filter(|name| !cache.nodes().contains_key(*name)).map(|name| &**name).collect();
    if !missing.is_empty() && !cache.policies().is_empty() {
        let names = output::some_of(&missing, 5);
        output::warn(&format!(
            "no Node object for {names}: traffic between pods and their own node, which is always allowed, is not known as such\n  \
             help: add the output of `kubectl get nodes -o yaml` to --state"
        ));
    }
}

/// The tables of one node.
///
/// # Errors
/// When the state has no such node; the message names those that it has.
pub fn node_tables(pipeline: &Pipeline, node: &str) -> anyhow::Result<Arc<NodeTables>> {
    check_node(pipeline, node)?;
    pipeline.node_tables(node).with_context(|| format!("node `{node}` has no tables"))
}

/// That the state knows the node.
///
/// # Errors
/// When it does not; the message names the nodes that it has.
pub fn check_node(pipeline: &Pipeline, node: &str) -> anyhow::Result<()> {
    let cache = pipeline.cache();
    let hosting = || cache.pods().filter_map(|(_, pod)| pod.node.as_ref());
    // With each batch of changes: the names of all nodes are for the message alone.
    if cache.nodes().contains_key(node) || hosting().any(|name| **name == *node) {
        return Ok(());
    }
    let known: BTreeSet<&str> = cache.nodes().keys().chain(hosting()).map(|name| &**name).collect();
    if known.is_empty() {
        bail!(
            "no node `{node}`: the state has no Node and no pod with spec.nodeName\n  \
             help: add the output of `kubectl get nodes,pods -A -o yaml` to --state"
        );
    }
    let names: Vec<&str> = known.into_iter().collect();
    bail!("no node `{node}` in the state\n  help: it has {}", output::some_of(&names, 10))
}

/// What a port is called everywhere: `namespace/pod`, `uplink`, `host`.
pub fn port_name(attachment: &Attachment) -> Arc<str> {
    match attachment {
        Attachment::Pod(pod) => pod.to_string().into(),
        Attachment::Uplink => "uplink".into(),
        Attachment::Host => "host".into(),
    }
}

/// The dataplane's view of a node's tables: the one place where the two meet.
///
/// # Errors
/// When two pods, or a pod and the node, have the same address.
pub fn snapshot(tables: &NodeTables) -> anyhow::Result<Snapshot> {
    snapshot_with(tables, None)
}

/// The same with what its audited policies would say if they were enforced.
///
/// # Errors
/// As for [`snapshot`].
pub(crate) fn snapshot_with(tables: &NodeTables, audit: Option<&AuditTables>) -> anyhow::Result<Snapshot> {
    check_addresses(tables)?;
    let mut ports = Vec::with_capacity(tables.interfaces.len());
    let mut routes: Vec<(IpNet, PortId)> = Vec::new();
    for (id, interface) in (0u16..).zip(tables.interfaces.iter()) {
        let mut port = port_config(tables.enforced_at, interface)?;
        port.audit = audit_table(tables, audit, &interface.attachment)?;
        routes.extend(port.addresses.iter().map(|&address| (IpNet::from(address), PortId(id))));
        if port.kind == PortKind::Uplink {
            routes.push((Ipv4Net::default().into(), PortId(id)));
            routes.push((Ipv6Net::default().into(), PortId(id)));
        }
        ports.push(port);
    }
    let compiled = compiled_tables(tables, audit);
    Ok(Snapshot::new(tables.generation, ports, compiled, Routes::new(routes)?)?)
}

/// The tables of a snapshot: those in force, then those of all policies.
pub(crate) fn compiled_tables(tables: &NodeTables, audit: Option<&AuditTables>) -> Vec<Arc<Tables>> {
    let audited = audit.into_iter().flat_map(|audit| &audit.tables.tables);
    tables.tables.iter().chain(audited).map(|table| table.tables.clone()).collect()
}

/// The table of all policies for an interface, among [`compiled_tables`]; none where it says what is in force.
///
/// # Errors
/// When there are more tables than can be numbered.
pub(crate) fn audit_table(
    tables: &NodeTables,
    audit: Option<&AuditTables>,
    attachment: &Attachment,
) -> anyhow::Result<Option<TableId>> {
    let Some(audit) = audit.filter(|audit| audit.differs_at(attachment)) else { return Ok(None) };
    let own = audit.tables.interfaces.iter().find(|interface| interface.attachment == *attachment);
    own.map(|own| Ok(TableId(u32::try_from(tables.tables.len() + own.table)?))).transpose()
}

/// What a node's vswitch has in force: [`snapshot`] of its tables, with the Services of the state. Besides, what is known of these;
/// none where the state has none.
///
/// # Errors
/// As for [`node_tables`] and [`snapshot`].
pub fn node_snapshot(
    pipeline: &Pipeline,
    services: &[Object],
    settings: &Settings,
    node: &str,
) -> anyhow::Result<(Snapshot, Option<Adapter>)> {
    let tables = node_tables(pipeline, node)?;
    let mut adapter = services::of_node(pipeline, services, settings, &tables.node);
    let services = adapter.as_mut().and_then(Adapter::take).map(|update| update.services);
    let audit = pipeline.audit_tables(node);
    Ok((snapshot_with(&tables, audit.as_ref())?.with_services(services), adapter))
}

/// An interface of a node as the dataplane's port, without a link.
///
/// # Errors
/// When there are more tables than can be numbered.
pub fn port_config(enforced_at: EnforcedAt, interface: &Interface) -> anyhow::Result<PortConfig> {
    let table = Some(TableId(u32::try_from(interface.table)?));
    let (egress, ingress) = match enforced_at {
        EnforcedAt::Destination => (table, None),
        EnforcedAt::Source => (None, table),
    };
    Ok(PortConfig {
        name: port_name(&interface.attachment),
        kind: match interface.attachment {
            Attachment::Pod(_) => PortKind::Pod,
            Attachment::Uplink => PortKind::Uplink,
            Attachment::Host => PortKind::Host,
        },
        addresses: interface.addresses.clone(),
        mac: interface.mac,
        egress,
        ingress,
        audit: None,
        hairpin: interface.hairpin,
        link: None,
    })
}

/// That an address is one pod's or the node's, and that the ports can be numbered.
///
/// # Errors
/// When it is not, with the names.
pub(crate) fn check_addresses(tables: &NodeTables) -> anyhow::Result<()> {
    let mut owners: BTreeMap<IpAddr, Arc<str>> = BTreeMap::new();
    for interface in tables.interfaces.iter() {
        let name = port_name(&interface.attachment);
        for &address in &interface.addresses {
            if let Some(other) = owners.insert(address, name.clone()) {
                bail!(
                    "node {}: both {other} and {name} have the address {address}\n  \
                     help: an address belongs to one pod; remove the pod that has ended from the state",
                    tables.node
                );
            }
        }
    }
    if tables.interfaces.len() > usize::from(u16::MAX) {
        bail!("node {}: {} interfaces; a node can have {} at most", tables.node, tables.interfaces.len(), u16::MAX);
    }
    Ok(())
}

/// What a verdict rests on, in the user's terms.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Attribution {
    /// The policy rule that decided.
    pub policy: Option<PolicyRef>,
    /// The rule of a cluster policy that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_policy: Option<ClusterPolicyRef>,
    /// For a default deny: the policies that isolate the pod.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub isolated_by: Vec<PolicyRef>,
    /// For traffic that no policy may forbid: `own_node`, `own_pod`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exempt: Option<Cow<'static, str>>,
}

/// A policy, or one of its rules.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PolicyRef {
    /// The policy's namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Which of its lists.
    pub direction: Cow<'static, str>,
    /// The rule's position in that list, from 0; none where the whole policy is meant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
}

impl PolicyRef {
    fn new(policy: &ObjectName, direction: &'static str, rule: Option<usize>) -> Self {
        Self { namespace: policy.namespace.clone(), name: policy.name.clone(), direction: direction.into(), rule }
    }
}

/// A rule of a cluster policy.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ClusterPolicyRef {
    /// `Admin` or `Baseline`.
    pub tier: Cow<'static, str>,
    /// The policy's kind.
    pub kind: Cow<'static, str>,
    /// Its name.
    pub name: Arc<str>,
    /// Which of its lists.
    pub direction: Cow<'static, str>,
    /// The rule's position in that list, from 0.
    pub rule: usize,
    /// The rule's name where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule_name: Option<Arc<str>>,
}

/// What the origin of a decision means to the user.
pub fn attribution(origin: Option<&Origin>) -> Attribution {
    match origin {
        Some(Origin::Policy { policy, direction, rule }) => Attribution {
            policy: Some(PolicyRef::new(policy, direction.name(), Some(*rule))),
            ..Attribution::default()
        },
        Some(Origin::Isolation { policies, direction }) => Attribution {
            isolated_by: policies.iter().map(|policy| PolicyRef::new(policy, direction.name(), None)).collect(),
            ..Attribution::default()
        },
        Some(Origin::ClusterPolicy { tier, policy, direction, rule, rule_name }) => Attribution {
            cluster_policy: Some(ClusterPolicyRef {
                tier: tier.name().into(),
                kind: policy.kind.name().into(),
                name: policy.name.clone(),
                direction: direction.name().into(),
                rule: *rule,
                rule_name: rule_name.clone(),
            }),
            ..Attribution::default()
        },
        Some(Origin::OwnNode) => Attribution { exempt: Some("own_node".into()), ..Attribution::default() },
        Some(Origin::OwnPod) => Attribution { exempt: Some("own_pod".into()), ..Attribution::default() },
        Some(Origin::NotIsolated(_)) | None => Attribution::default(),
    }
}

/// The origin of a decision, none when no rule took part in it.
pub fn origin(pipeline: &Pipeline, decision: Option<Decision>) -> Option<Origin> {
    pipeline.origins().get(decision?.origin?).cloned()
}

/// Where a policy was read, none when it is gone or came from elsewhere.
pub fn position<'a>(pipeline: &'a Pipeline, policy: &PodName) -> Option<&'a Position> {
    pipeline.cache().policies().get(policy)?.position.as_ref()
}
