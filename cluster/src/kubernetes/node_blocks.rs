//! Asks the API server once for a node's podCIDRs.

use bulkhead_control::object::Object;
use ipnet::IpNet;

use super::connection::{Connection, Fault};
use super::kinds::{Form, Kind};
use super::list_watch::escaped;
use super::page;
use super::settings::Timing;
use crate::client::Access;

/// Returns `spec.podCIDRs` of a node. Empty if the server does not have the node, or the node has no podCIDRs yet.
///
/// # Errors
/// The server's or the connection's problem, with its remedy, as text for the user.
pub fn node_blocks(access: Access, node: &str) -> Result<Vec<IpNet>, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let connection = Connection::new(access, Timing::default());
    let name: String = node.bytes().map(escaped).collect();
    // A list of one object, because the vswitch's RBAC rules grant `list` and not `get`.
    let form = Form::preferred(Kind::Node);
    let path = format!("{}?fieldSelector=metadata.name%3D{name}", form.path());
    let told = |fault: Fault| fault.told(Kind::Node);
    let text = runtime.block_on(connection.page(&path)).map_err(told)?;
    let page = page::page(form, &text).map_err(|text| Fault::Other(text).told(Kind::Node))?;
    let blocks = page.items.into_iter().filter_map(|item| match item.read.object {
        Some(Object::Node(found)) if *found.name == *node && !item.read.has_problems() => Some(found.pod_cidrs),
        _ => None,
    });
    Ok(blocks.flatten().collect())
}
