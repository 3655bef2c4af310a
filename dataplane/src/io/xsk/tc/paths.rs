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
use super::attached::Attached;
use super::entrance::{Entrance, Maps};
use super::filter::{self, Filter};
use super::from_nodes;
use super::next_hops::{NextHops, NodeHop, TunnelEnd};
use super::pins::{AttachPoint, Pins};
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
    /// This process's programs, by interface index. `None` until the first call of [`Paths::replace`] has detached what previous processes
    /// left.
    attached: Option<BTreeMap<u32, Attached>>,
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
        Ok(Self { at_links, at_tunnel, state: Mutex::new(State { hops, attached: None }) })
    }

    /// Replaces the next hops `others`, and attaches the program to their links and to the tunnel alone. `tunnel` is the index of the
    /// tunnel's interface, `None` without a tunnel. Attaches programs again that others have removed. The first call also detaches what
    /// previous processes left elsewhere.
    ///
    /// # Errors
    /// The first refusal of the kernel. Packets over an interface whose program could not be attached pass the node's kernel in both
    /// directions.
    pub(super) fn replace(
        &self,
        datapath: &TcDatapath,
        own: &[IpNet],
        node: &[IpAddr],
        others: &BTreeMap<IpNet, NodeHop>,
        tunnel: Option<u32>,
    ) -> io::Result<()> {
        let mut state = self.lock();
        let State { hops, attached } = &mut *state;
        let mut wanted: BTreeSet<u32> =
            others.values().flat_map(|hop| [hop.interface(), hop.arrival(), hop.masqueraded()]).flatten().collect();
        wanted.extend(tunnel);
        let pins = datapath.pins.as_ref();
        let attached = match attached {
            Some(attached) => attached,
            None => {
                remove_unwanted(pins, &wanted)?;
                attached.insert(BTreeMap::new())
            }
        };
        detach_where(pins, attached, |link, program| !program.is_at(AttachPoint::Nodes(link)));
        let mut failed = None;
        for &link in &wanted {
            if let Entry::Vacant(free) = attached.entry(link) {
                match self.attach(datapath, link, tunnel) {
                    Ok(program) => drop(free.insert(program)),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        // Packets must not leave past the kernel if it gets the answers.
        let mut served = others.clone();
        let is_served = |hop: &NodeHop| {
            hop.interface().is_some_and(|link| attached.contains_key(&link))
                && hop.masqueraded().is_none_or(|link| attached.contains_key(&link))
        };
        served.values_mut().filter(|hop| !is_served(hop)).for_each(|hop| *hop = NodeHop::Kernel);
        let replaced = hops.replace(own, node, &served);
        detach_where(pins, attached, |link, _| !wanted.contains(&link));
        replaced.and(failed.map_or(Ok(()), Err))
    }

    /// Attaches the program for this interface. At the tunnel, it becomes a filter, since the tunnel's guard is one and must run first.
    /// Elsewhere, the program is attached by a BPF link, which costs each packet less than a filter, or as a filter if that fails. `tunnel`
    /// is the index of the tunnel's interface, `None` without a tunnel.
    ///
    /// # Errors
    /// If the kernel refuses a filter too.
    fn attach(&self, datapath: &TcDatapath, interface: u32, tunnel: Option<u32>) -> io::Result<Attached> {
        let is_tunnel = Some(interface) == tunnel;
        let program = if is_tunnel { &self.at_tunnel } else { &self.at_links }.as_fd();
        let link = || Attached::by_link(datapath, AttachPoint::Nodes(interface), program);
        if let Some(link) = (!is_tunnel).then(link).flatten() {
            // A previous process without links has left it.
            filter::remove_left_behind(interface, NAME, Filter::detach_alone);
            return Ok(link);
        }
        let mut filter = Filter::attach_behind(Hook::TcIngress, program, NAME, interface)?;
        datapath.qdiscs.claim(&mut filter);
        Ok(Attached::Filter(filter))
    }

    /// Detaches the programs, and removes the pins of their links.
    pub(super) fn detach(&self, pins: Option<&Pins>) {
        for (&interface, program) in self.lock().attached.iter().flatten() {
            program.detach();
            forget(pins, interface);
        }
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
        self.paths.replace(self, own, node, others, tunnel.map(|end| end.interface))
    }
}

/// Detaches the programs for which `is_meant` returns true, given the index of their interface, and removes the pins of their links.
fn detach_where(
    pins: Option<&Pins>,
    attached: &mut BTreeMap<u32, Attached>,
    is_meant: impl Fn(u32, &Attached) -> bool,
) {
    for (interface, program) in attached.extract_if(.., |&interface, program| is_meant(interface, program)) {
        program.detach_alone();
        forget(pins, interface);
    }
}

/// Removes the pin of the link at an interface. Does nothing without pins, or if a filter is attached there.
fn forget(pins: Option<&Pins>, interface: u32) {
    if let Some(pins) = pins {
        pins.forget(AttachPoint::Nodes(interface));
    }
}

/// Detaches the programs of previous processes from the interfaces that are not in `wanted`.
///
/// # Errors
/// If the interfaces cannot be listed.
fn remove_unwanted(pins: Option<&Pins>, wanted: &BTreeSet<u32>) -> io::Result<()> {
    if let Some(pins) = pins {
        pins.retain_nodes(wanted);
    }
    for link in links()?.iter().filter(|link| !wanted.contains(&link.index)) {
        filter::remove_left_behind(link.index, NAME, Filter::detach_alone);
    }
    Ok(())
}

/// Removes the filters of previous processes from all interfaces of the calling thread's network namespace, by `detach`. Returns their number.
///
/// # Errors
/// If the interfaces cannot be listed.
pub(super) fn remove_left(detach: impl Fn(&Filter)) -> io::Result<usize> {
    Ok(links()?.iter().filter(|link| filter::remove_left_behind(link.index, NAME, &detach)).count())
}
