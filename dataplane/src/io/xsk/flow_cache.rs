//! The flow cache in the kernel: maps that the XDP programs of all ports share.
//!
//! What a packet costs is then one program on the sender's core and the way into the receiving pod; no copy into our memory,
//! no worker, no system call. What is in the maps is the workers' to say, and theirs to repeat: see [`FlowCache`](crate::io::FlowCache).
//!
//! An XDP program in driver mode can only send to interfaces that take such packets. A veth does so as long as its other
//! end has generic receive offload on (`ethtool -K eth0 gro on` in the pod) or an XDP program; otherwise the kernel drops
//! what is sent there, and says nothing. So a port is only sent to while [`takes_xdp_frames`](super::takes_xdp_frames) says
//! so, or in generic mode, where any interface will do. A packet for which the other end has no room just then is lost, as with
//! any veth, and was counted as sent; and so is one that is sent before the next look at an interface that takes none any more.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::bpf::{self, HAS_FRAGS, Hook};
use super::flow_layout::cells;
use super::flow_table::FlowTable;
use super::instruction::Instruction;
use super::kernel_flows::HasFlows;
use super::map::{MAP_INTERFACES, MAP_XSK, Map};
use super::{flow_program, small_size};
use crate::io::FlowSlot;

/// See the module. Shared by the interfaces and workers of a vswitch; the kernel forgets it with the last of them.
#[derive(Debug)]
pub struct KernelFlowCache {
    table: FlowTable,
    interfaces: Map,
    /// By slot: whether the port can be sent to.
    reached: Vec<AtomicBool>,
    /// Whether its programs are for packets in several buffers.
    pub(super) frags: bool,
}

impl KernelFlowCache {
    /// An empty cache, in which all ports are closed.
    ///
    /// # Errors
    /// When the kernel refuses: it is older than 5.12, or the process lacks `CAP_BPF` or `CAP_PERFMON`.
    pub fn new() -> io::Result<Arc<Self>> {
        let slots = cells::SLOTS.cast_unsigned();
        let interfaces = Map::new(MAP_INTERFACES, "bulkhead_ports", small_size::<u32>(), slots)?;
        let reached = (0..slots).map(|_| AtomicBool::new(false)).collect();
        let cache = Self { table: FlowTable::new(None)?, interfaces, reached, frags: false };
        // Whether this kernel takes the program is better known now than when a port is opened. The first one decides whether
        // programs that share a map of interfaces are for packets in several buffers: the kernel refuses all others.
        let sockets = Map::new(MAP_XSK, "bulkhead_probe", small_size::<u32>(), 1)?;
        let load = |flags| bpf::load_program(Hook::Xdp, "bulkhead_probe", &cache.program(&sockets, FlowSlot(0)), flags);
        let frags = match load(HAS_FRAGS) {
            Ok(_) => true,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => load(0).map(|_| false)?,
            Err(error) => return Err(error),
        };
        Ok(Arc::new(Self { frags, ..cache }))
    }

    /// Lets packets be sent out of a port, or not any more. The interface is one of the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel refuses; then nothing is sent there.
    pub fn reach(&self, slot: FlowSlot, interface: Option<u32>) -> io::Result<()> {
        let at = u32::from(slot.0);
        let set = match interface {
            Some(interface) => self.interfaces.set(at, &interface.to_ne_bytes()),
            None => self.interfaces.remove(&at.to_ne_bytes()),
        };
        self.reached[usize::from(slot.0)].store(interface.is_some() && set.is_ok(), Ordering::Relaxed);
        set
    }

    /// The program of the port in a slot.
    pub(super) fn program(&self, sockets: &Map, slot: FlowSlot) -> Vec<Instruction> {
        let Self { table, interfaces, .. } = self;
        flow_program::instructions(flow_program::Maps { sockets, interfaces, table }, slot)
    }
}

impl HasFlows for KernelFlowCache {
    fn table(&self) -> &FlowTable {
        &self.table
    }

    fn sends_out_of(&self, out: FlowSlot) -> bool {
        self.reached.get(usize::from(out.0)).is_some_and(|reached| reached.load(Ordering::Relaxed))
    }
}

/// A slot that an interface has, until it is dropped.
#[derive(Debug)]
pub(super) struct HeldSlot {
    pub(super) cache: Arc<KernelFlowCache>,
    pub(super) slot: FlowSlot,
}

impl HeldSlot {
    /// None when all are in use.
    pub(super) fn take(cache: &Arc<KernelFlowCache>) -> Option<Self> {
        Some(Self { slot: cache.table.take_slot()?, cache: Arc::clone(cache) })
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        // Fails when the interface is gone, and then the kernel has removed it.
        let _ = self.cache.reach(self.slot, None);
        self.cache.table.give_slot(self.slot);
    }
}
