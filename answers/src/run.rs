//! Connects the three engines: converts compiled tables to the dataplane's snapshot.

mod attribution;
mod known_names;
mod load;
mod names;
mod placeholders;
mod warnings;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use bulkhead_classifier::Tables;
use bulkhead_control::object::Object;
use bulkhead_control::pipeline::{AuditTables, Pipeline};
use bulkhead_control::renderer::acl::{Attachment, EnforcedAt, Interface, NodeTables};
use bulkhead_control::service::Settings;
use bulkhead_dataplane::{Holder, NextHop, PortConfig, PortId, PortKind, Routes, Snapshot, TableId};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::services::Adapter;
use crate::{named, services};
pub use attribution::{Attribution, ClusterPolicyRef, PolicyRef, attribution, origin, position};
pub use known_names::KnownNames;
pub use load::{
    Input, Whole, check_refusals, enforce_all, load, load_node, load_whole, load_with_ports, load_with_services,
};
pub use names::{NameSettings, dns_servers, has_names, names};
pub use placeholders::Placeholders;
pub use warnings::{left_open, refusals, unaudited, unknown_names, unlearned};

/// Returns the tables of a node.
///
/// # Errors
/// If the state has no such node; the message lists the known nodes.
pub fn node_tables(pipeline: &Pipeline, node: &str) -> anyhow::Result<Arc<NodeTables>> {
    check_node(pipeline, node)?;
    pipeline.node_tables(node).with_context(|| format!("node `{node}` has no tables"))
}

/// Checks that the state has the node.
///
/// # Errors
/// If it does not; the message lists the known nodes.
pub fn check_node(pipeline: &Pipeline, node: &str) -> anyhow::Result<()> {
    let cache = pipeline.cache();
    let hosting = || cache.pods().filter_map(|(_, pod)| pod.node.as_ref());
    // Runs with each batch of changes, so collect the names of all nodes only for the error.
    if cache.nodes().contains_key(node) || hosting().any(|name| **name == *node) {
        return Ok(());
    }
    let known: BTreeSet<&str> = cache.nodes().keys().chain(hosting()).map(|name| &**name).collect();
    Err(named::no_node(node, &known.into_iter().collect::<Vec<_>>()).into())
}

/// Returns the name of a port: `namespace/pod`, `uplink` or `host`.
pub fn port_name(attachment: &Attachment) -> Arc<str> {
    match attachment {
        Attachment::Pod(pod) => pod.to_string().into(),
        Attachment::Uplink => "uplink".into(),
        Attachment::Host => "host".into(),
    }
}

/// Converts a node's tables to a dataplane snapshot. Packets to addresses that no pod has leave through the uplink.
///
/// # Errors
/// If two pods, or a pod and the node, have the same address.
pub fn snapshot(tables: &NodeTables) -> anyhow::Result<Snapshot> {
    snapshot_with(tables, None, &[])
}

/// Returns a node's own pod networks (`spec.podCIDRs`). Empty if the state does not have the node.
pub fn pod_networks<'a>(pipeline: &'a Pipeline, node: &str) -> &'a [IpNet] {
    pipeline.cache().nodes().get(node).map_or(&[], |node| &node.pod_cidrs)
}

/// Like [`snapshot`], with the tables that would apply if audited policies were enforced. Addresses of the node's `pod_networks` that no pod
/// has are unreachable.
///
/// # Errors
/// See [`snapshot`].
pub fn snapshot_with(
    tables: &NodeTables,
    audit: Option<&AuditTables>,
    pod_networks: &[IpNet],
) -> anyhow::Result<Snapshot> {
    check_addresses(tables)?;
    let mut ports = Vec::with_capacity(tables.interfaces.len());
    let mut routes: BTreeMap<IpNet, NextHop> = BTreeMap::new();
    for (id, interface) in (0u16..).zip(tables.interfaces.iter()) {
        let mut port = port_config(tables.enforced_at, interface)?;
        set_audit_tables(&mut port, tables, audit, &interface.attachment)?;
        let id = PortId(id);
        routes.extend(port.addresses.iter().map(|&address| (IpNet::from(address), id.into())));
        if port.kind == PortKind::Uplink {
            for network in pod_networks {
                routes.entry(network.trunc()).or_insert(NextHop::unreachable(id));
            }
            for all in [Ipv4Net::default().into(), Ipv6Net::default().into()] {
                routes.entry(all).or_insert(id.into());
            }
        }
        ports.push(port);
    }
    let compiled = compiled_tables(tables, audit);
    Ok(Snapshot::new(tables.generation, ports, compiled, Routes::new(routes)?)?)
}

/// Returns the tables of a snapshot: the enforced ones, then those of all policies.
pub fn compiled_tables(tables: &NodeTables, audit: Option<&AuditTables>) -> Vec<Arc<Tables>> {
    let audited = audit.into_iter().flat_map(|audit| &audit.tables.tables);
    tables.tables.iter().chain(audited).map(|table| table.tables.clone()).collect()
}

/// Sets a port's `audit` and `named_audit`: the tables of all policies, including audited ones, by their indices in [`compiled_tables`].
/// Changes nothing if they cannot differ from the enforced tables.
///
/// # Errors
/// If a table index exceeds 32 bits.
pub fn set_audit_tables(
    port: &mut PortConfig,
    tables: &NodeTables,
    audit: Option<&AuditTables>,
    attachment: &Attachment,
) -> anyhow::Result<()> {
    let Some(audit) = audit.filter(|audit| audit.differs_at(attachment)) else { return Ok(()) };
    let own = audit.tables.interfaces.iter().find(|interface| interface.attachment == *attachment);
    let index = |table: usize| anyhow::Ok(TableId(u32::try_from(tables.tables.len() + table)?));
    port.audit = own.map(|own| index(own.table)).transpose()?;
    port.named_audit = own.and_then(|own| own.egress_table).map(index).transpose()?;
    Ok(())
}

/// Returns a node's [`snapshot`] with the state's Services, and the [`Adapter`] that resolved them. `None` if the state has no Services.
///
/// # Errors
/// See [`node_tables`] and [`snapshot`].
pub fn node_snapshot(
    pipeline: &Pipeline,
    services: &[Object],
    settings: &Settings,
    node: &str,
    name_settings: &NameSettings,
) -> anyhow::Result<(Snapshot, Option<Adapter>)> {
    let tables = node_tables(pipeline, node)?;
    let mut adapter = services::of_node(pipeline, services, settings, &tables.node);
    let services = adapter.as_mut().and_then(Adapter::take).map(|update| update.services);
    let audit = pipeline.audit_tables(node);
    let snapshot = snapshot_with(&tables, audit.as_ref(), pod_networks(pipeline, node))?;
    let names_of = |snapshot: &Snapshot| {
        let servers = dns_servers(pipeline, adapter.as_ref().map(Adapter::resolver), node, name_settings);
        // A replay has the same pods from begin to end, so their positions identify them.
        let holder = |at: usize, _: &PortConfig| Holder(u32::try_from(at).unwrap_or(u32::MAX));
        names(servers, name_settings, snapshot.ports(), holder)
    };
    let names = has_names(&tables, audit.as_ref()).then(|| names_of(&snapshot)).flatten();
    Ok((snapshot.with_services(services).with_names(names), adapter))
}

/// Converts an interface to a dataplane port without a link.
///
/// # Errors
/// If the table index exceeds 32 bits.
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
        hairpin_table: interface.hairpin_table.map(u32::try_from).transpose()?.map(TableId),
        named_table: interface.egress_table.map(u32::try_from).transpose()?.map(TableId),
        named_audit: None,
        link: None,
        is_gone: false,
        shares_host: false,
    })
}

/// Checks that each address belongs to one pod or the node, and that the port numbers suffice.
///
/// # Errors
/// If not; the message names the owners.
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
