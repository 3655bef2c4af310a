//! The XDP program: every packet goes to the AF_XDP socket of the queue that it came in on, or nowhere.
//!
//! ```text
//!   r2 = ctx->rx_queue_index
//!   r1 = sockets                            the map from queue to socket
//!   r3 = XDP_DROP                           what to do when the queue has no socket
//!   return bpf_redirect_map(r1, r2, r3)
//! ```
//!
//! Usual samples return `XDP_PASS` when there is no socket. Then a queue whose worker is not there yet, or was closed,
//! hands packets to the host's stack, which forwards them without any policy. Here they are dropped.
//!
//! With a flow cache the program asks that first: see [`super::flow_program`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::bpf::{self, HAS_FRAGS, Hook};
use super::flow_cache::HeldSlot;
use super::instruction::{Assembler, Instruction, Width};
use super::map::{MAP_XSK, Map};

/// `XDP_DROP`.
const XDP_DROP: i32 = 1;
/// Where `struct xdp_md` has the queue, in bytes.
const RX_QUEUE_INDEX: i16 = 16;
/// `bpf_redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// The name by which libbpf finds the map of a program that is attached already, and adds its sockets to it.
const MAP_NAME: &str = "xsks_map";

/// The program with its map from queue to socket. Not attached yet.
#[derive(Debug)]
pub(super) struct Program {
    descriptor: OwnedFd,
    sockets: Map,
    /// Whether it takes packets in several buffers.
    pub(super) frags: bool,
    /// The port in a flow cache, for programs with one.
    pub(super) slot: Option<Arc<HeldSlot>>,
}

impl Program {
    /// Loads it, for packets in several buffers where the kernel can (5.18).
    pub(super) fn load(queues: u32, slot: Option<&Arc<HeldSlot>>) -> io::Result<Self> {
        Self::load_with(queues, slot, true).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => Self::load_with(queues, slot, false),
            _ => Err(error),
        })
    }

    /// Loads it with or without packets in several buffers. If the cache's programs are otherwise, it goes without.
    pub(super) fn load_with(queues: u32, slot: Option<&Arc<HeldSlot>>, frags: bool) -> io::Result<Self> {
        let sockets = Map::new(MAP_XSK, MAP_NAME, 4, queues)?;
        let slot = slot.filter(|held| held.cache.frags == frags).cloned();
        Ok(Self { descriptor: load(&sockets, slot.as_deref(), frags)?, sockets, frags, slot })
    }

    /// Puts a copy of it, with the same map, in its place, which makes the driver set all its queues up anew. The kernel
    /// does nothing when it is the very same program.
    pub(super) fn renew(&mut self, link: BorrowedFd<'_>) -> io::Result<()> {
        let copy = load(&self.sockets, self.slot.as_deref(), self.frags)?;
        bpf::replace(link, copy.as_fd())?;
        self.descriptor = copy;
        Ok(())
    }

    /// Sends the packets of a queue to a socket. The kernel forgets it when the socket is closed.
    pub(super) fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.sockets.set(queue, &socket.as_raw_fd().to_ne_bytes())
    }

    /// Attaches it to an interface until the descriptor is closed; `flags` are `XDP_FLAGS_*`.
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
