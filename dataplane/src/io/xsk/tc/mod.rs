//! The tc data path: established flows go from interface to interface in the kernel with their offloads kept, everything else
//! comes to the workers over one wire.
//!
//! ```text
//!   pod eth0 ~ veth --> tc ingress [ingress]: flow known, leased, this epoch? --yes--> rewritten, to the other port's interface
//!                                                 `no--> tag with the port's slot
//!                                                          |
//!                                             bh0 ~ bh1 (the trunk) --> XDP --> AF_XDP socket of the worker that the hash names
//!
//!   worker --> bh1 ~ bh0 --> tc ingress [deliver]: take the tag off --> the port's interface
//! ```
//!
//! **Purpose.** [`TcDatapath`] has the maps, the programs and the trunk; a [`TcAttachment`] is one interface whose packets come
//! here. **Not its purpose:** deciding anything. The programs hold flows that workers have added, and no policy.
//!
//! The other attachment, AF_XDP sockets on the interface itself ([`super::Interface`]), takes segmentation and checksum offload
//! away from a pod, needs packet memory and sockets for each port, and is faster for single frames that were never the
//! kernel's packets. Here opening a port is attaching a filter and filling in two values; an idle port costs nothing.
//!
//! **Invariant.** A packet of an attached interface reaches the node's own network stack never: the program sends it on or drops
//! it. While the port is closed, it drops all. What leaves is judged by a worker, or belongs to a flow that a worker has added
//! for a lease and for the epochs of both ports.

mod abi;
mod attached;
mod attachment;
mod checksum;
mod deliver;
mod filter;
mod ingress;
mod pins;
mod renewal;
mod slow_path;
mod trunk;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use attachment::TcAttachment;

use super::bpf::{self, Hook};
use super::error::XskError;
use super::flow_layout::{cells, traffic};
use super::flow_table::FlowTable;
use super::instruction::Instruction;
use super::kernel_flows::HasFlows;
use super::map::{MAP_HASH, Map, MapKind};
use super::port::XskPort;
use super::umem::Umem;
use super::{QueueConfig, namespace, small_size};
use crate::Affinity;
use crate::io::FlowSlot;
use pins::Pins;
use trunk::Trunk;

/// How packets leave through an interface.
mod how {
    /// Not at all.
    pub(super) const CLOSED: u32 = 0;
    /// `bpf_redirect_peer`: into the network namespace of a veth's other end.
    pub(super) const PEER: u32 = 1;
    /// `bpf_redirect`: out of the interface.
    pub(super) const OUT: u32 = 2;
}

/// What the programs of ports are called.
const INGRESS: &str = "bulkhead_in";
const GUARD: &str = "bulkhead_guard";
/// What the program at the trunk is called.
const DELIVER: &str = "bulkhead_out";

/// What the program for this hook of a port's interface is called.
fn name_of(hook: Hook) -> &'static str {
    if hook == Hook::TcEgress { GUARD } else { INGRESS }
}

/// What the data path is made with.
#[derive(Clone, Debug)]
pub struct TcConfig {
    /// The names of the trunk's two ends. The first is where programs send to, the second has the workers' sockets.
    pub trunk: [String; 2],
    /// How the workers of the vswitch share packets out among them; the same one as theirs.
    pub affinity: Affinity,
    /// How many workers there are; each has a queue of the trunk.
    pub workers: u32,
    /// What a port may send to the workers.
    pub slow_path: SlowPathLimit,
    /// Whether links (tcx) take the place of filters, where the kernel has them.
    pub links: bool,
    /// Where maps and links get names, in a BPF file system, by which they outlive the process; none when they shall not.
    pub pins: Option<PathBuf>,
}

/// What one port may send to the workers, counted in packets as they are on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPathLimit {
    /// Packets a second; 0 is no limit.
    pub rate: u32,
    /// How many it may send at once after a pause.
    pub burst: u32,
}

impl Default for SlowPathLimit {
    /// A worker takes some 400,000 packets a second off the trunk, so that three ports that flood at once leave room for others.
    /// The burst is a tenth of a second of it: a TCP flow of 1 Gb/s that comes back to the workers after a change of policy loses
    /// nothing until it is in the kernel again.
    fn default() -> Self {
        Self { rate: 100_000, burst: 10_000 }
    }
}

/// See the module. Shared by the attachments and the workers of a vswitch; the kernel forgets it with the last of them.
pub struct TcDatapath {
    table: FlowTable,
    ports: Map,
    programs: Programs,
    trunk: Trunk,
    /// The network namespace in which all this is.
    namespace: Option<u64>,
    pins: Option<Pins>,
    /// Interfaces that an earlier process has left open and that nobody has taken over yet, with their slots.
    left: Mutex<HashMap<u32, FlowSlot>>,
    /// Whether everything stays as it is when the process ends.
    stays: AtomicBool,
}

/// The programs at ports' interfaces.
struct Programs {
    ingress: OwnedFd,
    /// What drops packets that the node's kernel sends to a pod.
    guard: OwnedFd,
}

impl TcDatapath {
    /// Makes the maps and the trunk in the calling thread's network namespace, and loads the programs.
    ///
    /// # Errors
    /// [`XskError`] when the kernel is too old, the process lacks `CAP_BPF`, `CAP_PERFMON` or `CAP_NET_ADMIN`, or
    /// another vswitch runs in the namespace.
    pub fn new(config: &TcConfig) -> Result<Arc<Self>, XskError> {
        let name = &config.trunk[0];
        let failed = |operation| move |source| XskError::system(name, operation, source);
        super::interface::raise_limits();
        let claim = trunk::claim(name)?;
        let pins = config.pins.as_deref().map(Pins::new).transpose()?;
        let folder = pins.as_ref().map(Pins::path);
        let table = FlowTable::new(folder).map_err(failed("make the maps of the tc data path"))?;
        let ports = MapKind {
            kind: MAP_HASH,
            name: "bulkhead_ports",
            key_size: small_size::<u32>(),
            value_size: small_size::<u32>(),
            entries: cells::SLOTS.cast_unsigned(),
            flags: 0,
        };
        let ports = Map::at(&ports, folder.map(|folder| folder.join(ports.name)).as_deref());
        let ports = ports.map_err(failed("make the map of ports"))?;
        let left = left_open(&ports).map_err(failed("read the map of ports"))?;
        left.values().for_each(|&slot| table.keep_slot(slot));
        let ingress = load(name, Hook::TcIngress, INGRESS, &ingress::instructions(&table, &ports))?;
        let guard = load(name, Hook::TcEgress, GUARD, &deliver::guard(&table, &ports))?;
        let deliver = load(name, Hook::TcIngress, DELIVER, &deliver::to_ports(&table))?;
        let known = table.half_cell(cells::TRUNK).load(Ordering::SeqCst);
        let trunk = Trunk::new(config, deliver.as_fd(), pins.as_ref(), known, claim)?;
        let (namespace, stays) = (namespace::current(), AtomicBool::new(false));
        let programs = Programs { ingress, guard };
        let datapath = Self { table, ports, programs, trunk, namespace, pins, left: Mutex::new(left), stays };
        datapath.configure(config);
        Ok(Arc::new(datapath))
    }

    /// A generation for the first snapshot: no flow that was taken over has it, nor one that follows.
    pub fn next_generation(&self) -> u64 {
        self.table.next_generation()
    }

    /// How many interfaces an earlier process has left open that nobody has attached to yet.
    pub fn left_open(&self) -> usize {
        self.left().len()
    }

    /// Closes what an earlier process has left open and nobody has attached to, and detaches what processes with another layout of
    /// the maps have left: to be called when all ports are attached.
    pub fn close_left(&self) {
        for (interface, slot) in self.left().drain() {
            self.set_way(slot, 0, how::CLOSED);
            // Fails for no key.
            let _ = self.close_port(interface);
            if let Some(pins) = &self.pins {
                pins.detach(interface);
            }
            self.table.give_slot(slot);
        }
        if let Some(pins) = &self.pins {
            // Fails when the kernel does not answer; what is left goes on to drop packets then.
            let _ = pins.remove_other_layouts();
        }
        let own = [&self.programs.ingress, &self.programs.guard].map(|program| bpf::program_id(program.as_fd()));
        if let [Ok(ingress), Ok(guard)] = own {
            // Fails when the kernel does not answer; what is left goes on to drop packets then.
            let _ = remove_filters(&[ingress, guard]);
        }
    }

    /// Whether the kernel has links, and they are wanted: as for the trunk, so for the ports.
    const fn has_links(&self) -> bool {
        self.trunk.has_link()
    }

    /// Leaves maps, links and trunk to the next process when this one ends, if they have names: flows go on until their leases end,
    /// and nothing else passes.
    pub fn stay(&self) {
        if self.pins.is_some() {
            self.stays.store(true, Ordering::SeqCst);
            self.trunk.stay();
        }
    }

    fn stays(&self) -> bool {
        self.stays.load(Ordering::SeqCst)
    }

    fn left(&self) -> MutexGuard<'_, HashMap<u32, FlowSlot>> {
        // A panic cannot leave it half changed.
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the programs what they are made with.
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
    }

    /// Opens the trunk's queues, one for each worker, in their order.
    ///
    /// # Errors
    /// [`XskError`] when there is no memory for them.
    pub fn trunk_ports(&self, umem: &Arc<Umem>, config: QueueConfig) -> Result<Vec<XskPort>, XskError> {
        self.trunk.ports(umem, config)
    }

    /// Runs the program of ports once on a packet, as if an interface of the calling thread's network namespace had received it, and
    /// sends nothing. Returns the packet as it would be sent: to another port, or into the trunk with a tag beside it. With
    /// `is_summed` the sum over the packet comes with it, as from some network cards.
    ///
    /// # Errors
    /// `EBADMSG` when that sum is wrong behind the program, `EINVAL` for `is_summed` before Linux 6.13; another error when the program
    /// drops the packet.
    #[cfg(feature = "bench")]
    pub fn run(&self, interface: u32, packet: &[u8], is_summed: bool) -> io::Result<Vec<u8>> {
        /// `TC_ACT_REDIRECT`.
        const REDIRECT: u32 = 7;
        match bpf::test_run_tc(self.programs.ingress.as_fd(), packet, interface, is_summed)? {
            (REDIRECT, packet) => Ok(packet),
            (action, _) => Err(io::Error::other(format!("the program's answer is {action}"))),
        }
    }

    /// Packets that interfaces sent whose ports were closed.
    pub fn closed_drops(&self) -> u64 {
        self.table.counted(FlowSlot(0), traffic::CLOSED)
    }

    /// Where a slot's packets leave.
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

    /// Packets of an interface of the calling thread's network namespace are the port's that has the slot.
    fn open_port(&self, interface: u32, slot: FlowSlot) -> io::Result<()> {
        self.ports.insert(&interface.to_ne_bytes(), &u32::from(slot.0).to_ne_bytes())
    }

    fn close_port(&self, interface: u32) -> io::Result<()> {
        self.ports.remove(&interface.to_ne_bytes())
    }
}

impl fmt::Debug for TcDatapath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcDatapath").field("trunk", &self.trunk.first()).finish_non_exhaustive()
    }
}

/// Removes what vswitches of the calling thread's network namespace have left: links and maps below `pins`, filters, and the trunk. Returns
/// whether there was something.
///
/// # Errors
/// [`XskError`] when a vswitch runs in the namespace, or the kernel refuses.
pub fn remove_tc_datapath(trunk: &[String; 2], pins: Option<&Path>) -> Result<bool, XskError> {
    let failed = |operation| move |source| XskError::system(&trunk[0], operation, source);
    let _claim = trunk::claim(&trunk[0])?;
    let links = pins.map_or(Ok(0), Pins::remove_all).map_err(failed("remove pinned links and maps"))?;
    let filters = remove_filters(&[]).map_err(failed("ask for the interfaces"))?;
    let had_trunk = trunk::remove(&trunk[0])?;
    Ok(links + filters > 0 || had_trunk)
}

/// Removes the filters of earlier processes from all interfaces of the calling thread's network namespace, but for those with the
/// programs of this one. Returns how many there were.
fn remove_filters(own: &[u32]) -> io::Result<usize> {
    let links = super::links()?;
    let hooks = links.iter().flat_map(|link| [Hook::TcIngress, Hook::TcEgress].map(|hook| (hook, link.index)));
    Ok(hooks.filter(|&(hook, interface)| filter::remove_left(hook, interface, name_of(hook), own)).count())
}

/// Whether a vswitch of the calling thread's network namespace has the trunk with this first end.
pub fn is_trunk_in_use(first: &str) -> bool {
    trunk::is_claimed(first)
}

/// Which interfaces are open in the map, with their slots.
fn left_open(ports: &Map) -> io::Result<HashMap<u32, FlowSlot>> {
    let number = |bytes: &[u8]| bytes.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let of = |(key, value): (Vec<u8>, Vec<u8>)| Some((number(&key)?, FlowSlot(u16::try_from(number(&value)?).ok()?)));
    Ok(ports.entries()?.into_iter().filter_map(of).collect())
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
    fn table(&self) -> &FlowTable {
        &self.table
    }

    fn sends_out_of(&self, out: FlowSlot) -> bool {
        self.has_way(out)
    }
}
