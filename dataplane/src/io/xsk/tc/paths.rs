//! The paths between pods of this node and of other nodes: the next hops, and the programs where packets of other nodes arrive.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;

use super::TcDatapath;
use super::entrance::{Entrance, Maps};
use super::filter::{self, Filter};
use super::from_nodes;
use super::next_hops::{NextHops, NodeHop, TunnelEnd};
use super::qdiscs::Qdiscs;
use crate::io::FlowSlot;
use crate::io::xsk::bpf::Hook;
use crate::io::xsk::error::XskError;
use crate::io::xsk::flow_layout::cells;
use crate::io::xsk::flow_table::FlowTable;
use crate::io::xsk::links;
use crate::io::xsk::map::Map;

/// The name of the programs and filters.
const NAME: &str = "bulkhead_nodes";

/// The next hops, and the programs at links and tunnel.
#[derive(Debug)]
pub(super) struct Paths {
    at_links: OwnedFd,
    at_tunnel: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    hops: NextHops,
    /// The filters of this process, by interface index. `None` until those of a previous process have been removed where they are not wanted.
    filters: Option<BTreeMap<u32, Filter>>,
}

impl Paths {
    /// Loads the programs, and attaches none. Errors name the interface `name`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn new(
        name: &str,
        table: &FlowTable,
        hops: NextHops,
        [sent, records, vips]: [&Map; 3],
    ) -> Result<Self, XskError> {
        let maps = Maps { hops: &hops.map, sent, records, vips };
        let load =
            |entrance| super::load(name, Hook::TcIngress, NAME, &from_nodes::instructions(table, &maps, entrance));
        let (at_links, at_tunnel) = (load(Entrance::Link)?, load(Entrance::Tunnel)?);
        Ok(Self { at_links, at_tunnel, state: Mutex::new(State { hops, filters: None }) })
    }

    /// Replaces the next hops and the interfaces with a program: the links of the hops, and the tunnel's. Attaches programs again that others have
    /// removed. `qdiscs` records the queueing disciplines for them.
    ///
    /// # Errors
    /// The first refusal of the kernel. Packets over an interface whose program could not be attached pass the node's kernel in both
    /// directions.
    pub(super) fn replace(
        &self,
        qdiscs: &Qdiscs,
        own: &[IpNet],
        node: &[IpAddr],
        others: &BTreeMap<IpNet, NodeHop>,
        tunnel: Option<u32>,
    ) -> io::Result<()> {
        let mut state = self.lock();
        let State { hops, filters } = &mut *state;
        let mut wanted: BTreeSet<u32> =
            others.values().flat_map(|hop| [hop.interface(), hop.arrival(), hop.masqueraded()]).flatten().collect();
        wanted.extend(tunnel);
        let filters = match filters {
            Some(filters) => filters,
            None => {
                let unwanted = |link: &u32| !wanted.contains(link);
                for link in links()?.iter().map(|link| link.index).filter(unwanted) {
                    filter::remove_left_behind(link, NAME, Filter::detach_alone);
                }
                filters.insert(BTreeMap::new())
            }
        };
        filters.retain(|_, filter| filter.interface().is_some());
        let mut failed = None;
        for &link in &wanted {
            if let Entry::Vacant(free) = filters.entry(link) {
                let program = if Some(link) == tunnel { &self.at_tunnel } else { &self.at_links };
                match Filter::attach_behind(Hook::TcIngress, program.as_fd(), NAME, link) {
                    Ok(mut filter) => {
                        qdiscs.claim(&mut filter);
                        free.insert(filter);
                    }
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        // Packets must not leave past the kernel if it gets the answers.
        let mut served = others.clone();
        let is_served = |hop: &NodeHop| {
            hop.interface().is_some_and(|link| filters.contains_key(&link))
                && hop.masqueraded().is_none_or(|link| filters.contains_key(&link))
        };
        served.values_mut().filter(|hop| !is_served(hop)).for_each(|hop| *hop = NodeHop::Kernel);
        let replaced = hops.replace(own, node, &served);
        let unwanted = |link: &u32, _: &mut Filter| !wanted.contains(link);
        filters.extract_if(.., unwanted).for_each(|(_, filter)| filter.detach_alone());
        replaced.and(failed.map_or(Ok(()), Err))
    }

    /// Detaches the programs.
    pub(super) fn detach(&self) {
        self.lock().filters.iter().flat_map(BTreeMap::values).for_each(Filter::detach);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is atomic with respect to panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TcDatapath {
    /// Stores the slot of the port to other nodes. 0 closes it.
    pub(super) fn set_nodes_slot(&self, slot: FlowSlot) {
        self.table.half_cell(cells::NODES_SLOT).store(slot.0.into(), Ordering::SeqCst);
    }

    /// Stores the MAC addresses of frames from the node's kernel to the host port, destination first.
    pub(super) fn set_nodes_addresses(&self, addresses: [u8; 12]) {
        let [first @ .., a, b, c, d] = addresses;
        self.table.cell(cells::NODES_ADDRESSES).store(u64::from_ne_bytes(first), Ordering::SeqCst);
        self.table.half_cell(cells::NODES_ADDRESSES + 8).store(u32::from_ne_bytes([a, b, c, d]), Ordering::SeqCst);
    }

    /// Replaces the ways to the pods of other nodes and to the world, past the node's network stack. `own` are the networks of this node's pods, and
    /// `node` the node's own addresses in them. `tunnel` is this node's end of the tunnel, `None` if it has none. Attaches programs to the links of
    /// the next hops and to the tunnel, behind its guard.
    ///
    /// # Errors
    /// If there are more than 32,768 networks, or the kernel refuses. The node's kernel then forwards what the programs do not.
    pub fn lead_to_nodes(
        &self,
        own: &[IpNet],
        node: &[IpAddr],
        others: &BTreeMap<IpNet, NodeHop>,
        tunnel: Option<TunnelEnd>,
    ) -> io::Result<()> {
        let port = tunnel.map_or(0, |end| end.port);
        self.table.half_cell(cells::TUNNEL_PORT).store(port.into(), Ordering::SeqCst);
        self.paths.replace(&self.qdiscs, own, node, others, tunnel.map(|end| end.interface))
    }
}

/// Removes the programs of previous processes from all interfaces of the calling thread's network namespace, by `detach`. Returns their number.
///
/// # Errors
/// If the interfaces cannot be listed.
pub(super) fn remove_left(detach: impl Fn(&Filter)) -> io::Result<usize> {
    Ok(links()?.iter().filter(|link| filter::remove_left_behind(link.index, NAME, &detach)).count())
}
