//! The XDP program: it redirects every packet to the AF_XDP socket of its receive queue, or drops it.
//!
//! ```text
//!   r2 = ctx->rx_queue_index
//!   r1 = sockets                            the map from queue to socket
//!   r3 = XDP_DROP                           the action if the queue has no socket
//!   return bpf_redirect_map(r1, r2, r3)
//! ```
//!
//! Common samples return `XDP_PASS` without a socket. The host's stack would then forward packets of a queue without a worker, past policy.
//! This program drops them.
//!
//! With a flow cache, the program looks packets up in the cache first: see [`super::flow_program`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::bpf::{self, HAS_FRAGS, Hook};
use super::flow_cache::HeldSlot;
use super::instruction::{Assembler, Instruction, Width};
use super::map::{MAP_XSK, Map};

const XDP_DROP: i32 = 1;
/// Offset of the queue in `struct xdp_md`, in bytes.
const RX_QUEUE_INDEX: i16 = 16;
/// `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// The name by which libbpf finds the map of an attached program, to add sockets.
const MAP_NAME: &str = "xsks_map";

/// A loaded program with its map from queue to socket.
#[derive(Debug)]
pub(super) struct Program {
    descriptor: OwnedFd,
    sockets: Map,
    /// Whether the program supports multi-buffer packets.
    pub(super) frags: bool,
    /// The port's slot in the flow cache, held while the program is loaded. `None` without a cache.
    pub(super) slot: Option<Arc<HeldSlot>>,
}

impl Program {
    /// Loads the program, with multi-buffer support if the kernel has it (5.18).
    pub(super) fn load(queues: u32, slot: Option<&Arc<HeldSlot>>) -> io::Result<Self> {
        Self::load_with(queues, slot, true).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => Self::load_with(queues, slot, false),
            _ => Err(error),
        })
    }

    /// Loads the program with or without multi-buffer support. Omits the cache if its programs differ in that.
    pub(super) fn load_with(queues: u32, slot: Option<&Arc<HeldSlot>>, frags: bool) -> io::Result<Self> {
        let sockets = Map::new(MAP_XSK, MAP_NAME, 4, queues)?;
        let slot = slot.filter(|held| held.cache.frags == frags).cloned();
        Ok(Self { descriptor: load(&sockets, slot.as_deref(), frags)?, sockets, frags, slot })
    }

    /// Replaces the program by a copy with the same map, so that the driver reconfigures its queues. The kernel ignores a replacement by
    /// the same program.
    pub(super) fn renew(&mut self, link: BorrowedFd<'_>) -> io::Result<()> {
        let copy = load(&self.sockets, self.slot.as_deref(), self.frags)?;
        bpf::replace(link, copy.as_fd())?;
        self.descriptor = copy;
        Ok(())
    }

    /// Redirects a queue's packets to a socket. Closing the socket removes the entry.
    pub(super) fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.sockets.set(queue, &socket.as_raw_fd().to_ne_bytes())
    }

    /// Attaches the program to an interface until the returned descriptor is closed. `flags` are `XDP_FLAGS_*`.
    pub(super) fn attach(&self, interface: u32, flags: u32) -> io::Result<OwnedFd> {
        bpf::attach(Hook::Xdp, self.descriptor.as_fd(), interface, flags)
    }
}

fn load(sockets: &Map, slot: Option<&HeldSlot>, frags: bool) -> io::Result<OwnedFd> {
    let instructions = match slot {
        Some(HeldSlot { cache, slot }) => cache.program(sockets, *slot),
        None => to_sockets(sockets),
    };
    bpf::load_program(Hook::Xdp, "bulkhead", &instructions, if frags { HAS_FRAGS } else { 0 })
}

fn to_sockets(sockets: &Map) -> Vec<Instruction> {
    let mut program = Assembler::<()>::new();
    program.load(Width::Word, 2, 1, RX_QUEUE_INDEX);
    program.push(Instruction::map(1, sockets));
    program.push([Instruction::set(3, XDP_DROP), Instruction::call(REDIRECT_MAP), Instruction::exit()]);
    program.finish()
}
