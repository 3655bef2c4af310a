//! The XDP flow cache: kernel maps that the XDP programs of all ports share.
//!
//! A cached packet costs one program run on the sender's core and the delivery to the receiving pod: no copy to packet memory, no worker,
//! no system call. Workers add and renew the flows, see [`FlowCache`](crate::io::FlowCache).
//!
//! An XDP program in driver mode can send only to interfaces that accept redirected packets. A veth does while its peer has generic receive
//! offload on (`ethtool -K eth0 gro on` in the pod) or an XDP program; otherwise the kernel silently drops the packets. So the cache sends
//! to a port only while [`takes_xdp_frames`](super::takes_xdp_frames) returns true, or in generic mode, which works with every interface.
//! Two kinds of packets are counted as sent but lost: those that find the peer's queue full, as with any veth, and those sent between a
//! change of the peer and the next check.

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

/// The XDP flow cache, shared by a vswitch's interfaces and workers. The kernel frees the maps after the last owner.
#[derive(Debug)]
pub struct KernelFlowCache {
    table: FlowTable,
    interfaces: Map,
    /// By slot: whether the cache can send to the port.
    reached: Vec<AtomicBool>,
    /// Whether its programs support multi-buffer packets.
    pub(super) frags: bool,
}

impl KernelFlowCache {
    /// Creates an empty cache with all ports closed.
    ///
    /// # Errors
    /// If the kernel is older than 5.12, or the process lacks `CAP_BPF` or `CAP_PERFMON`.
    pub fn new() -> io::Result<Arc<Self>> {
        let slots = cells::SLOTS.cast_unsigned();
        let interfaces = Map::new(MAP_INTERFACES, "bulkhead_ports", small_size::<u32>(), slots)?;
        let reached = (0..slots).map(|_| AtomicBool::new(false)).collect();
        let cache = Self { table: FlowTable::new(None)?, interfaces, reached, frags: false };
        // Probes the program now, before any port needs it. The first program fixes whether all programs of a shared device map
        // support multi-buffer packets; the kernel refuses others.
        let sockets = Map::new(MAP_XSK, "bulkhead_probe", small_size::<u32>(), 1)?;
        let load = |flags| bpf::load_program(Hook::Xdp, "bulkhead_probe", &cache.program(&sockets, FlowSlot(0)), flags);
        let frags = match load(HAS_FRAGS) {
            Ok(_) => true,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => load(0).map(|_| false)?,
            Err(error) => return Err(error),
        };
        Ok(Arc::new(Self { frags, ..cache }))
    }

    /// Enables sending to a port through an interface of the calling thread's network namespace. `None` disables it.
    ///
    /// # Errors
    /// If the kernel refuses. Sending to the port is then disabled.
    pub fn reach(&self, slot: FlowSlot, interface: Option<u32>) -> io::Result<()> {
        let at = u32::from(slot.0);
        let set = match interface {
            Some(interface) => self.interfaces.set(at, &interface.to_ne_bytes()),
            None => self.interfaces.remove(&at.to_ne_bytes()),
        };
        self.reached[usize::from(slot.0)].store(interface.is_some() && set.is_ok(), Ordering::Relaxed);
        set
    }

    /// Builds the program of the port in a slot.
    pub(super) fn program(&self, sockets: &Map, slot: FlowSlot) -> Vec<Instruction> {
        let Self { table, interfaces, .. } = self;
        flow_program::instructions(flow_program::Maps { sockets, interfaces, table }, slot)
    }
}

impl HasFlows for KernelFlowCache {
    const FORWARDS_ANSWERS: bool = false;

    fn table(&self) -> &FlowTable {
        &self.table
    }

    fn sends_out_of(&self, out: FlowSlot) -> bool {
        self.reached.get(usize::from(out.0)).is_some_and(|reached| reached.load(Ordering::Relaxed))
    }
}

/// A slot of the cache that an interface holds until this is dropped.
#[derive(Debug)]
pub(super) struct HeldSlot {
    pub(super) cache: Arc<KernelFlowCache>,
    pub(super) slot: FlowSlot,
}

impl HeldSlot {
    /// Takes a free slot. `None` if all are in use.
    pub(super) fn take(cache: &Arc<KernelFlowCache>) -> Option<Self> {
        Some(Self { slot: cache.table.take_slot()?, cache: Arc::clone(cache) })
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        // Fails only if the interface is gone, and then the kernel has removed the entry.
        let _ = self.cache.reach(self.slot, None);
        self.cache.table.give_slot(self.slot);
    }
}
