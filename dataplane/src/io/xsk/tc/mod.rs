//! The tc data path: the kernel forwards established flows between interfaces with their offloads kept. All other packets go to the
//! workers over a trunk.
//!
//! ```text
//!   pod eth0 ~ veth --> tc ingress [ingress]: flow known, leased, this epoch? --yes--> rewritten, to the other port's interface
//!                                                 `no--> tag with the port's slot
//!                                                          |
//!                                             bh0 ~ bh1 (the trunk) --> XDP --> AF_XDP socket of the worker by hash
//!
//!   worker --> bh1 ~ bh0 --> tc ingress [deliver]: pop the tag --> the port's interface
//! ```
//!
//! Pods of other nodes are a port too, if the node's kernel keeps the network card. It shares the host port's interface ([`to_nodes`],
//! [`from_nodes`]):
//!
//! ```text
//!   pod --> [ingress], or worker --> [deliver] --hops[destination]--[encapsulation]--> card, with the kernel's neighbor --> other node
//!   pod <-- flow known <-- [from_nodes] at the card <--[decapsulation]--hops[source]-- other node
//!               `- a SYN: to a worker; else the node's kernel --> host port
//! ```
//!
//! [`TcDatapath`] owns the maps, the programs and the trunk; a [`TcAttachment`] is one attached interface. The programs contain no policy,
//! only flows that workers have added.
//!
//! The other attachment, AF_XDP sockets on each interface ([`super::Interface`]), disables a pod's segmentation and checksum offload and
//! needs packet memory and sockets per port. It is faster for single frames that are not the kernel's packets. Here, opening a port
//! attaches a filter and writes two values; an idle port costs nothing.
//!
//! **Invariant.** A packet of an attached port never reaches the node's network stack: the program redirects or drops it. A closed
//! port drops all packets. A worker has judged every forwarded packet, or has added its flow for a lease and the epochs of both ports.

mod abi;
mod attached;
mod attachment;
mod away;
mod checksum;
mod claim;
mod config;
mod decapsulation;
mod deliver;
mod encapsulation;
mod entrance;
mod filter;
mod from_nodes;
mod handshake;
mod heartbeat;
mod hop_key;
mod ingress;
mod next_hops;
mod paths;
mod pins;
mod port_slots;
mod qdiscs;
mod remains;
mod renewal;
mod sent;
mod slow_path;
mod taken_ports;
mod to_nodes;
mod trunk;
mod untranslated;
mod vips;
mod vxlan;
mod world;

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

pub use attachment::TcAttachment;
pub use config::{Away, SlowPathLimit, TcConfig};
pub(super) use filter::Filter;
pub use heartbeat::Absence;
pub use next_hops::{NodeHop, Outer, TunnelEnd};
pub use pins::{has_another_layout, pinned_links};
use remains::remove_filters;
pub use remains::{remove_node_programs, remove_tc_datapath};
pub use trunk::{claim as claim_trunk, claimant as trunk_claimant, is_claimed as is_trunk_claimed};

use super::bpf::{self, Hook};
use super::error::XskError;
use super::flow_layout::{cells, traffic};
use super::flow_table::FlowTable;
use super::instruction::Instruction;
use super::kernel_flows::HasFlows;
use super::port::XskPort;
use super::umem::Umem;
use super::{QueueConfig, namespace};
use crate::io::{FlowChange, FlowSlot};
use heartbeat::Heartbeat;
use next_hops::NextHops;
use paths::Paths;
use pins::{AttachPoint, Pins};
use port_slots::PortSlots;
use qdiscs::Qdiscs;
use trunk::Trunk;
use vips::Vips;

/// Numbers in the cells of a slot that tell the programs how to send packets out of the port's interface.
mod how {
    /// The port is closed; the programs send it no packets.
    pub(super) const CLOSED: u32 = 0;
    /// `bpf_redirect_peer`: into the network namespace of the veth's peer.
    pub(super) const PEER: u32 = 1;
    /// `bpf_redirect`: out of the interface.
    pub(super) const OUT: u32 = 2;
    /// To the next hop of the packet's destination ([`to_nodes`](super::to_nodes)), or out of the interface without one.
    pub(super) const NODES: u32 = 3;
}

/// Names of the programs at ports' interfaces.
const INGRESS: &str = "bulkhead_in";
const GUARD: &str = "bulkhead_guard";
/// Name of the program at the trunk.
const DELIVER: &str = "bulkhead_out";

/// Returns the name of the program for this hook of a port's interface.
fn name_of(hook: Hook) -> &'static str {
    if hook == Hook::TcEgress { GUARD } else { INGRESS }
}

/// The tc data path, shared by a vswitch's attachments and workers. The kernel frees unpinned maps after the last owner.
pub struct TcDatapath {
    table: FlowTable,
    ports: PortSlots,
    programs: Programs,
    /// The queueing disciplines that this process and earlier ones have created for the filters of ports and paths.
    qdiscs: Qdiscs,
    /// The links and the tunnel over which packets of other nodes and of the world arrive.
    paths: Paths,
    /// The virtual addresses to which the programs at the paths take packets.
    vips: Vips,
    trunk: Trunk,
    /// Inode number of the network namespace of the trunk and the ports. `None` if it cannot be read.
    namespace: Option<u64>,
    pins: Option<Pins>,
    /// Whether dropping keeps maps, links and trunk for the next process.
    stays: AtomicBool,
    /// How long the programs forward flows after the last beat, in nanoseconds.
    grace: u64,
    /// The thread that beats. `None` inside if the system could not create it.
    heartbeat: OnceLock<Option<Heartbeat>>,
    /// Whether the heart beats no more.
    heart_rests: AtomicBool,
    /// Connections of the previous process whose handshakes ended without its knowledge.
    begun: Mutex<Vec<FlowChange>>,
}

/// The loaded programs that run at tc hooks of ports' interfaces.
struct Programs {
    ingress: OwnedFd,
    /// The program that drops packets which the node's kernel sends directly to a pod.
    guard: OwnedFd,
}

impl TcDatapath {
    /// Creates or adopts the maps and the trunk in the calling thread's network namespace, and loads the programs.
    ///
    /// # Errors
    /// [`XskError`] if the kernel is too old, the process lacks `CAP_BPF`, `CAP_PERFMON` or `CAP_NET_ADMIN`, or another vswitch runs in
    /// the namespace.
    pub fn new(config: &TcConfig) -> Result<Arc<Self>, XskError> {
        let name = &config.trunk[0];
        let failed = |operation| move |source| XskError::system(name, operation, source);
        super::interface::raise_limits();
        let claim = trunk::claim(name)?;
        let pins = config.pins.as_deref().map(Pins::new).transpose()?;
        let folder = pins.as_ref().map(Pins::path);
        let table = FlowTable::new(folder).map_err(failed("make the maps of the tc data path"))?;
        let ports = PortSlots::new(folder).map_err(failed("make the map of ports"))?;
        ports.left().values().for_each(|&slot| table.keep_slot(slot));
        let hops = NextHops::new(folder).map_err(failed("make the map of next hops to other nodes"))?;
        let records = untranslated::records().map_err(failed("make the map of datagrams from other nodes"))?;
        let sent = sent::records(folder).map_err(failed("make the map of masqueraded packets"))?;
        let ingress = ingress::instructions(&table, &ports.map, [&hops.map, &sent], &records);
        let ingress = load(name, Hook::TcIngress, INGRESS, &ingress)?;
        let guard = load(name, Hook::TcEgress, GUARD, &deliver::guard(&table, &ports.map))?;
        let deliver = load(name, Hook::TcIngress, DELIVER, &deliver::to_ports(&table, [&hops.map, &sent]))?;
        if hops.is_empty() {
            // Programs of a process with other maps would go on with its flows.
            remove_node_programs(config.pins.as_deref()).map_err(failed("remove programs at links to other nodes"))?;
        }
        let vips = Vips::new(folder).map_err(failed("make the map of virtual addresses"))?;
        let qdiscs = Qdiscs::new(folder).map_err(failed("make the map of queueing disciplines"))?;
        let paths = Paths::new(name, &table, hops, [&sent, &records, &vips.map])?;
        let known = table.half_cell(cells::TRUNK).load(Ordering::SeqCst);
        let trunk = Trunk::new(config, deliver.as_fd(), pins.as_ref(), known, claim)?;
        let (namespace, stays) = (namespace::network_namespace(), AtomicBool::new(false));
        let programs = Programs { ingress, guard };
        let grace = nanoseconds(config.away.grace);
        let (heartbeat, begun) = (OnceLock::new(), Mutex::new(table.begun()));
        let heart_rests = AtomicBool::new(false);
        let datapath = Self {
            table,
            ports,
            programs,
            qdiscs,
            paths,
            vips,
            trunk,
            namespace,
            pins,
            stays,
            grace,
            heartbeat,
            heart_rests,
            begun,
        };
        datapath.configure(config);
        Ok(Arc::new(datapath))
    }

    /// Returns a generation for the first snapshot, higher than that of every adopted flow.
    pub fn next_generation(&self) -> u64 {
        self.table.next_generation()
    }

    /// Takes the connections of the previous process whose handshakes ended without its knowledge.
    pub fn take_begun(&self) -> Vec<FlowChange> {
        std::mem::take(&mut *self.begun.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of interfaces that a previous process left open and no attachment has adopted yet.
    pub fn left_open(&self) -> usize {
        self.ports.left().len()
    }

    /// Closes the interfaces that a previous process left open and no attachment has adopted, and detaches programs of processes with
    /// another map layout. Call it after attaching all ports.
    pub fn close_left(&self) {
        for (interface, slot) in self.ports.left().drain() {
            if interface == attachment::NODES {
                self.set_nodes_slot(FlowSlot(0));
            }
            self.set_way(slot, 0, how::CLOSED);
            // Removing a key of this map does not fail.
            let _ = self.ports.close(interface);
            if let Some(pins) = &self.pins {
                for hook in [Hook::TcIngress, Hook::TcEgress] {
                    pins.detach(AttachPoint::Port(hook, interface));
                }
            }
            self.table.give_slot(slot);
        }
        if let Some(pins) = &self.pins {
            // If this fails, leftover programs keep dropping packets.
            let _ = pins.remove_other_layouts();
        }
        let own = [&self.programs.ingress, &self.programs.guard].map(|program| bpf::program_id(program.as_fd()));
        if let [Ok(ingress), Ok(guard)] = own {
            // If this fails, leftover programs keep dropping packets.
            let _ = remove_filters(&[ingress, guard], Filter::detach);
        }
    }

    /// Whether to use links: the kernel has them and the settings want them, as for the trunk.
    const fn has_links(&self) -> bool {
        self.trunk.has_link()
    }

    /// Returns the path below which maps and links are pinned. `None` without pins.
    pub fn pins(&self) -> Option<&Path> {
        self.pins.as_ref()?.path().parent()
    }

    /// Keeps pinned maps, links and the trunk for the next process when this one ends. The programs then forward cached flows as [`Away`]
    /// says and drop all other packets. Does nothing without pins.
    pub fn stay(&self) {
        if self.pins.is_some() {
            self.stays.store(true, Ordering::SeqCst);
            self.trunk.stay();
            self.stop_beating();
        }
    }

    fn stays(&self) -> bool {
        self.stays.load(Ordering::SeqCst)
    }

    /// Writes the settings to the cells that the programs read.
    fn configure(&self, config: &TcConfig) {
        const SECOND: u64 = 1_000_000_000;
        let store = |offset: i32, value: u64| self.table.cell(offset).store(value, Ordering::SeqCst);
        self.table.half_cell(cells::TRUNK).store(self.trunk.first(), Ordering::SeqCst);
        self.table.half_cell(cells::WORKERS).store(config.workers, Ordering::SeqCst);
        for (at, key) in (0..).zip(config.affinity.keys()) {
            store(cells::HASH + at * 8, key);
        }
        let cost = SECOND.checked_div(u64::from(config.slow_path.rate)).unwrap_or(0);
        store(cells::SAVED, cost * u64::from(config.slow_path.burst));
        store(cells::COST, cost);
        store(cells::HALF_CLOSED, nanoseconds(config.away.half_closed));
        store(cells::CLOSED, nanoseconds(config.away.closed));
    }

    /// Opens the trunk's queues, one per worker, in order.
    ///
    /// # Errors
    /// [`XskError`] if memory is short.
    pub fn trunk_ports(&self, umem: &Arc<Umem>, config: QueueConfig) -> Result<Vec<XskPort>, XskError> {
        self.trunk.ports(umem, config)
    }

    /// Runs the ingress program once on a packet as if `interface` of the calling thread's network namespace had received it, without
    /// sending. Returns the packet as the program would send it. With `is_summed`, the kernel provides the sum over the packet
    /// (`CHECKSUM_COMPLETE`).
    ///
    /// # Errors
    /// `EBADMSG` if that sum is wrong after the program, `EINVAL` for `is_summed` before Linux 6.13, another error if the program drops the
    /// packet.
    #[cfg(feature = "bench")]
    pub fn run(&self, interface: u32, packet: &[u8], is_summed: bool) -> std::io::Result<Vec<u8>> {
        /// `TC_ACT_REDIRECT`.
        const REDIRECT: u32 = 7;
        match bpf::test_run_tc(self.programs.ingress.as_fd(), packet, interface, is_summed)? {
            (REDIRECT, packet) => Ok(packet),
            (action, _) => {
                Err(std::io::Error::other(format!("the program returned {action} instead of TC_ACT_REDIRECT (7)")))
            }
        }
    }

    /// Packets dropped because their interface's port was closed.
    pub fn closed_drops(&self) -> u64 {
        self.table.counted(FlowSlot(0), traffic::CLOSED)
    }

    /// Stores the interface to which the programs send packets for a slot, and `how`, a number of [`how`].
    fn set_way(&self, slot: FlowSlot, interface: u32, how: u32) {
        const { assert!(cells::WAY == 0 && cells::HOW == 4) };
        let way = [interface.to_ne_bytes(), how.to_ne_bytes()].concat();
        let way = u64::from_ne_bytes(way.try_into().expect("two times four bytes"));
        let offset = cells::SLOT + i32::from(slot.0) * cells::SLOT_LEN;
        self.table.cell(offset).store(way, Ordering::SeqCst);
    }

    fn has_way(&self, slot: FlowSlot) -> bool {
        let offset = cells::SLOT + i32::from(slot.0) * cells::SLOT_LEN + i32::from(cells::HOW);
        self.table.half_cell(offset).load(Ordering::SeqCst) != how::CLOSED
    }
}

impl Drop for TcDatapath {
    fn drop(&mut self) {
        if !self.stays() {
            self.paths.detach(self.pins.as_ref());
            self.qdiscs.remove();
        }
    }
}

/// Returns a duration in nanoseconds; `u64::MAX / 2` for longer ones, to which a time can be added.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 2)
}

impl fmt::Debug for TcDatapath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcDatapath").field("trunk", &self.trunk.first()).finish_non_exhaustive()
    }
}

fn load(name: &str, hook: Hook, title: &'static str, instructions: &[Instruction]) -> Result<OwnedFd, XskError> {
    bpf::load_program(hook, title, instructions, 0).map_err(|source| match source.raw_os_error() {
        Some(libc::EACCES | libc::EINVAL) => {
            XskError::Program { program: title, reason: bpf::refusal(hook, instructions, 0) }
        }
        _ => XskError::system(name, "load a tc program", source),
    })
}

impl HasFlows for TcDatapath {
    const FORWARDS_ANSWERS: bool = true;

    fn table(&self) -> &FlowTable {
        &self.table
    }

    fn sends_out_of(&self, out: FlowSlot) -> bool {
        self.has_way(out)
    }
}
