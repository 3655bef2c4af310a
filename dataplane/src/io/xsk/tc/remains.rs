//! Removes what vswitches have left of the tc data path.

use std::io;
use std::path::Path;

use super::filter::{self, Filter};
use super::pins::Pins;
use super::{name_of, paths, qdiscs, trunk};
use crate::io::xsk::bpf::Hook;
use crate::io::xsk::error::XskError;
use crate::io::xsk::links;

/// Removes all remains of vswitches in the calling thread's network namespace: links and maps below `pins`, filters, the queueing disciplines that
/// they have created for these, and the trunk. Without a record of the latter, removes those that then have no filters. Returns whether it removed
/// any remains.
///
/// # Errors
/// [`XskError`] if a vswitch runs in the namespace, or the kernel refuses.
pub fn remove_tc_datapath(trunk: &[String; 2], pins: Option<&Path>) -> Result<bool, XskError> {
    let failed = |operation| move |source| XskError::system(&trunk[0], operation, source);
    let _claim = trunk::claim(&trunk[0])?;
    let created = pins.and_then(Pins::folder).and_then(|folder| qdiscs::recorded(&folder));
    let detach = if created.is_some() { Filter::detach_alone } else { Filter::detach };
    let links = pins.map_or(Ok(0), Pins::remove_all).map_err(failed("remove pinned links and maps"))?;
    let filters = remove_filters(&[], detach).and_then(|ports| Ok(ports + paths::remove_left(detach)?));
    created.iter().for_each(qdiscs::remove);
    let filters = filters.map_err(failed("ask for the interfaces"))?;
    let had_trunk = trunk::remove(&trunk[0])?;
    Ok(links + filters > 0 || had_trunk)
}

/// Removes the programs of previous processes at the links and the tunnel that lead to other nodes, in the calling thread's network namespace.
/// `pins` is the folder below which these have pinned links. The node's kernel then gets the packets. Leaves the queueing disciplines, as the interfaces
/// stay in use. Returns the number of programs.
///
/// # Errors
/// If the interfaces cannot be listed.
pub fn remove_node_programs(pins: Option<&Path>) -> io::Result<usize> {
    let links = pins.map_or(0, Pins::remove_nodes);
    paths::remove_left(Filter::detach_alone).map(|filters| links + filters)
}

/// Removes filters of previous processes from all interfaces of the calling thread's network namespace by `detach`, except those with program ids in
/// `own`. Returns their number.
pub(super) fn remove_filters(own: &[u32], detach: impl Fn(&Filter)) -> io::Result<usize> {
    let links = links()?;
    let hooks = links.iter().flat_map(|link| [Hook::TcIngress, Hook::TcEgress].map(|hook| (hook, link.index)));
    Ok(hooks.filter(|&(hook, interface)| filter::remove_left(hook, interface, name_of(hook), own, &detach)).count())
}
