//! The wiring: the only place that sees all three crates.

mod attribution;
mod load;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_classifier::Tables;
use bulkhead_control::object::Object;
use bulkhead_control::pipeline::{AuditTables, Pipeline};
use bulkhead_control::renderer::acl::{Attachment, EnforcedAt, Interface, NodeTables};
use bulkhead_control::service::Settings;
use bulkhead_dataplane::{PortConfig, PortId, PortKind, Routes, Snapshot, TableId};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::services::Adapter;
use crate::{output, services};
pub use attribution::{Attribution, ClusterPolicyRef, PolicyRef, attribution, origin, position};
pub use load::{
    Whole, enforce_all, left_open, load_planned_with_services, load_whole, load_with_services, load_without_tables,
    load_without_tables_with_services, refusals, unaudited,
};
pub use load::{load, load_planned};

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
pub fn snapshot_with(tables: &NodeTables, audit: Option<&AuditTables>) -> anyhow::Result<Snapshot> {
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
pub fn compiled_tables(tables: &NodeTables, audit: Option<&AuditTables>) -> Vec<Arc<Tables>> {
    let audited = audit.into_iter().flat_map(|audit| &audit.tables.tables);
    tables.tables.iter().chain(audited).map(|table| table.tables.clone()).collect()
}

/// The table of all policies for an interface, among [`compiled_tables`]; none where it says what is in force.
///
/// # Errors
/// When there are more tables than can be numbered.
pub fn audit_table(
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
pub fn check_addresses(tables: &NodeTables) -> anyhow::Result<()> {
    let mut owners: BTreeMap<IpAddr, Arc<str>> = BTreeMap::new();
    for interface in tables.interfaces.iter() {
        let name = port_name(&interface.attachment);
        for &address in &interface.addresses {
            if let Some(other) = owners.insert(address, name.clone()) {
                bail!(
                    "node {}: both {other} and {name} have the address {address}\n  \
                     help: an address belongs to one pod; remove the terminated pod from the state",
                    tables.node
                );
            }
        }
    }
    if tables.interfaces.len() > usize::from(u16::MAX) {
        bail!("node {}: {} interfaces, but a node can have at most {}", tables.node, tables.interfaces.len(), u16::MAX);
    }
    Ok(())
}
