//! The flow cache in the kernel: maps that the XDP programs of all ports share.
//!
//! What a packet costs is then one program on the sender's core and the way into the receiving pod; no copy into our memory,
//! no worker, no system call. What is in the maps is the workers' to say, and theirs to repeat: see [`FlowCache`].
//!
//! An XDP program in driver mode can only send to interfaces that take such packets. A veth does so as long as its other
//! end has generic receive offload on (`ethtool -K eth0 gro on` in the pod) or an XDP program; otherwise the kernel drops
//! what is sent there, and says nothing. So a port is only sent to while [`takes_xdp_frames`](super::takes_xdp_frames) says
//! so, or in generic mode, where any interface will do. A packet for which the other end has no room just then is lost, as with
//! any veth, and was counted as sent; and so is one that is sent before the next look at an interface that takes none any more.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead_classifier::OriginId;

use super::bpf::{self, HAS_FRAGS, MAP_ARRAY, MAP_INTERFACES, MAP_LRU_HASH, MAP_XSK, MAPPABLE, Map, MapKind};
use super::flow_layout::{cells, key, value};
use super::flow_program::Maps;
use super::instruction::Instruction;
use super::mapping::Mapping;
use super::{flow_program, small_size};
use crate::io::{CachedFlow, CachedTraffic, FlowCache, FlowGate, FlowSlot};

/// Flows that the kernel keeps, 12 MB of its memory when all are used. Two for each of 32,000 busy connections; what
/// finds no room goes through the workers.
const FLOWS: u32 = 1 << 16;

/// A map that the process maps takes whole pages, of 4 KiB at least.
const PAGE: usize = 4096;

const KEY_LEN: usize = key::LEN.cast_unsigned() as usize;
const VALUE_LEN: usize = value::LEN.cast_unsigned() as usize;
type FlowKey = [u8; KEY_LEN];
type FlowValue = [u8; VALUE_LEN];

/// A gate that is open.
const OPEN: u64 = 1 << cells::OPEN_BIT;

/// See the module. Shared by the interfaces and workers of a vswitch; the kernel forgets it with the last of them.
#[derive(Debug)]
pub struct KernelFlowCache {
    flows: Map,
    interfaces: Map,
    cells: Map,
    mapped: Mapping,
    slots: Mutex<Slots>,
    /// By slot: whether the port can be sent to.
    reached: Vec<AtomicBool>,
    added: AtomicU64,
    failed: AtomicU64,
    /// Whether its programs are for packets in several buffers.
    pub(super) frags: bool,
}

/// Which slots are in use. One that was given back is given out again after all others, so that nothing that is still
/// under way for the old port meets a new one.
#[derive(Debug)]
struct Slots {
    used: Vec<bool>,
    next: usize,
}

impl Slots {
    fn take(&mut self) -> Option<FlowSlot> {
        let count = self.used.len();
        let at = (0..count).map(|ahead| (self.next + ahead) % count).find(|&at| !self.used[at])?;
        self.used[at] = true;
        self.next = at + 1;
        u16::try_from(at).ok().map(FlowSlot)
    }
}

impl KernelFlowCache {
    /// An empty cache, in which no generation is in force.
    ///
    /// # Errors
    /// When the kernel refuses: it is older than 5.12, or the process lacks `CAP_BPF` or `CAP_PERFMON`.
    pub fn new() -> io::Result<Arc<Self>> {
        let flows = Map::of(&MapKind {
            kind: MAP_LRU_HASH,
            name: "bulkhead_flows",
            key_size: small_size::<FlowKey>(),
            value_size: small_size::<FlowValue>(),
            entries: FLOWS,
            flags: 0,
        })?;
        let slots = cells::SLOTS.cast_unsigned();
        let interfaces = Map::new(MAP_INTERFACES, "bulkhead_ports", small_size::<u32>(), slots)?;
        let cells = Map::of(&MapKind {
            kind: MAP_ARRAY,
            name: "bulkhead_cells",
            key_size: small_size::<u32>(),
            value_size: cells::LEN.cast_unsigned(),
            entries: 1,
            flags: MAPPABLE,
        })?;
        let mapped = Mapping::of(cells.as_fd(), 0, place(cells::LEN).next_multiple_of(PAGE))?;
        let cache = Self {
            flows,
            interfaces,
            cells,
            mapped,
            slots: Mutex::new(Slots { used: vec![false; slots as usize], next: 0 }),
            reached: (0..slots).map(|_| AtomicBool::new(false)).collect(),
            added: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            frags: false,
        };
        cache.pause();
        // Whether this kernel takes the program is better known now than when a port is opened. The first one decides whether
        // programs that share a map of interfaces are for packets in several buffers: the kernel refuses all others.
        let sockets = Map::new(MAP_XSK, "bulkhead_probe", small_size::<u32>(), 1)?;
        let load = |flags| bpf::load_program("bulkhead_probe", &cache.program(&sockets, FlowSlot(0)), flags);
        let frags = match load(HAS_FRAGS) {
            Ok(_) => true,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => load(0).map(|_| false)?,
            Err(error) => return Err(error),
        };
        Ok(Arc::new(Self { frags, ..cache }))
    }

    /// Ends all flows of other generations. To be called before a snapshot of the generation is published: what workers
    /// add by the old one then is not used any more.
    pub fn enter(&self, generation: u64) {
        self.cell(cells::GENERATION).store(generation, Ordering::SeqCst);
    }

    /// Ends all flows until the next [`enter`](Self::enter): what they were allowed by is about to change.
    pub fn pause(&self) {
        self.enter(u64::MAX);
    }

    /// The generation that was entered last, if it was not paused since.
    pub fn entered(&self) -> u64 {
        self.cell(cells::GENERATION).load(Ordering::SeqCst)
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

    /// What the cache has forwarded from and to the port that has the slot, since it has it.
    pub fn traffic(&self, slot: FlowSlot) -> CachedTraffic {
        let first = cells::TRAFFIC + i32::from(slot.0) * cells::TRAFFIC_LEN;
        let count = |at: i32| self.cell(first + at).load(Ordering::Relaxed);
        CachedTraffic { received: count(0), received_bytes: count(8), sent: count(16), sent_bytes: count(24) }
    }

    /// Packets of sessions that the rule with this origin has allowed. Of origins beyond the first 65,534 of a process, which
    /// is days of new policies at ten a minute, it does not know.
    pub fn allowed_by(&self, origin: OriginId) -> u64 {
        match origin_number(Some(origin)) {
            at if at == cells::ORIGINS - 1 => 0,
            at => self.cell(cells::DECISIONS + at * 8).load(Ordering::Relaxed),
        }
    }

    /// How many times a flow was added or renewed.
    pub fn added(&self) -> u64 {
        self.added.load(Ordering::Relaxed)
    }

    /// How many times the kernel refused one; its packets go through the workers.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// The program of the port in a slot.
    pub(super) fn program(&self, sockets: &Map, slot: FlowSlot) -> Vec<Instruction> {
        let Self { flows, interfaces, cells, .. } = self;
        flow_program::instructions(Maps { sockets, flows, interfaces, cells }, slot)
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, Slots> {
        // A panic cannot leave it half changed.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gate(&self, gate: FlowGate) -> &AtomicU64 {
        self.cell(cells::GATES + i32::from(gate.0) * 8)
    }

    fn cell(&self, offset: i32) -> &AtomicU64 {
        let offset = place(offset);
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.mapped.len(), "a cell is in the map");
        // SAFETY: within the mapping, which lives as long as self, and aligned: it begins with a page. The kernel's programs
        // and other threads access it by atomic operations or by whole words only.
        unsafe { self.mapped.start().add(offset).cast::<AtomicU64>().as_ref() }
    }
}

impl FlowCache for KernelFlowCache {
    fn reaches(&self, out: FlowSlot) -> bool {
        self.reached.get(usize::from(out.0)).is_some_and(|reached| reached.load(Ordering::Relaxed))
    }

    fn add(&self, flow: &CachedFlow) {
        let Some((key, value)) = encode(flow, coarse_time()) else { return };
        // Before the program can find the flow.
        self.gate(flow.gate).store(0, Ordering::SeqCst);
        match self.flows.insert(&key, &value) {
            Ok(()) => self.added.fetch_add(1, Ordering::Relaxed),
            Err(_) => self.failed.fetch_add(1, Ordering::Relaxed),
        };
    }

    fn passed(&self, gate: FlowGate) -> u64 {
        self.gate(gate).load(Ordering::SeqCst) & !OPEN
    }

    fn open(&self, gate: FlowGate, passed: Option<u64>) -> bool {
        let gate = self.gate(gate);
        match passed {
            Some(passed) => {
                let opened = gate.compare_exchange(passed, passed | OPEN, Ordering::SeqCst, Ordering::SeqCst);
                opened.is_ok() || gate.load(Ordering::SeqCst) & OPEN != 0
            }
            None => {
                gate.fetch_or(OPEN, Ordering::SeqCst);
                true
            }
        }
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
        let slot = cache.slots().take()?;
        let first = cells::TRAFFIC + i32::from(slot.0) * cells::TRAFFIC_LEN;
        (0..4).for_each(|at| cache.cell(first + at * 8).store(0, Ordering::Relaxed));
        Some(Self { cache: Arc::clone(cache), slot })
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        // Fails when the interface is gone, and then the kernel has removed it.
        let _ = self.cache.reach(self.slot, None);
        self.cache.slots().used[usize::from(self.slot.0)] = false;
    }
}

/// A flow as the map has it. None for what the program does not know.
fn encode(flow: &CachedFlow, now: u64) -> Option<(FlowKey, FlowValue)> {
    let CachedFlow { from, to, flow: who, received, sent, longest, origin, generation, lease, gate } = flow;
    let mut key = [0; KEY_LEN];
    let version = match (who.src, who.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            put(&mut key, key::SOURCE, &src.octets());
            put(&mut key, key::DESTINATION, &dst.octets());
            4
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            put(&mut key, key::SOURCE, &src.octets());
            put(&mut key, key::DESTINATION, &dst.octets());
            6
        }
        _ => return None,
    };
    put(&mut key, key::SLOT, &u32::from(from.0).to_ne_bytes());
    put(&mut key, key::KIND, &(u32::from(who.protocol) | version << 8).to_ne_bytes());
    put(&mut key, key::PORTS, &who.sport.to_be_bytes());
    put(&mut key, key::PORTS + 2, &who.dport.to_be_bytes());
    let mut value = [0; VALUE_LEN];
    put(&mut value, value::GENERATION, &generation.to_ne_bytes());
    put(&mut value, value::EXPIRES, &now.saturating_add(*lease).to_ne_bytes());
    put(&mut value, value::OUT, &u32::from(to.0).to_ne_bytes());
    put(&mut value, value::ORIGIN, &origin_number(*origin).to_ne_bytes());
    put(&mut value, value::RECEIVED, received);
    put(&mut value, value::LONGEST, &longest.to_ne_bytes());
    put(&mut value, value::SENT, sent);
    put(&mut value, value::GATE, &gate.0.to_ne_bytes());
    Some((key, value))
}

fn put(bytes: &mut [u8], offset: i16, part: &[u8]) {
    bytes[place(offset.into())..][..part.len()].copy_from_slice(part);
}

/// Where the packets of an origin are counted; 0 for none. Those that have no place of their own share the last one.
fn origin_number(origin: Option<OriginId>) -> i32 {
    const SHARED: i32 = cells::ORIGINS - 1;
    let number = |origin: OriginId| i32::try_from(origin.0).unwrap_or(SHARED).saturating_add(1).min(SHARED);
    origin.map_or(0, number)
}

fn place(offset: i32) -> usize {
    usize::try_from(offset).expect("offsets are not negative")
}

/// `CLOCK_MONOTONIC_COARSE` in nanoseconds, the program's clock.
fn coarse_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the time and touches no other memory.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    let [seconds, nanoseconds] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * 1_000_000_000 + nanoseconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Flow;

    fn flow() -> CachedFlow {
        let flow = Flow {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 2].into(),
            protocol: 17,
            sport: 0x1234,
            dport: 53,
            icmp: None,
        };
        CachedFlow {
            from: FlowSlot(3),
            to: FlowSlot(5),
            flow,
            received: *b"abcdefghijkl",
            sent: *b"ABCDEFGHIJKL",
            longest: 1514,
            origin: Some(OriginId(7)),
            generation: 9,
            lease: 100,
            gate: FlowGate(0x4321),
        }
    }

    #[test]
    fn a_flow_is_encoded_as_the_program_reads_it() {
        let (key, value) = encode(&flow(), 1000).unwrap();
        let word = |bytes: &[u8], at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap());
        assert_eq!((word(&key, 0), word(&key, 4)), (3, 17 | 4 << 8));
        assert_eq!(key[8..12], [0x12, 0x34, 0, 53]);
        assert_eq!((&key[16..20], &key[32..36]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
        assert_eq!(
            (value[..8].to_vec(), value[8..16].to_vec()),
            (9u64.to_ne_bytes().into(), 1100u64.to_ne_bytes().into())
        );
        assert_eq!((word(&value, 16), word(&value, 20)), (5, 8));
        assert_eq!((&value[24..36], &value[40..52]), (&b"abcdefghijkl"[..], &b"ABCDEFGHIJKL"[..]));
        assert_eq!((&value[36..38], &value[52..54]), (&1514u16.to_ne_bytes()[..], &0x4321u16.to_ne_bytes()[..]));
    }

    #[test]
    fn origins_without_a_place_of_their_own_share_the_last_one() {
        let last = u32::try_from(cells::ORIGINS - 3).unwrap();
        assert_eq!([None, Some(OriginId(0)), Some(OriginId(last))].map(origin_number), [0, 1, cells::ORIGINS - 2]);
        assert_eq!([last + 1, last + 2, u32::MAX].map(|at| origin_number(Some(OriginId(at)))), [cells::ORIGINS - 1; 3]);
    }

    #[test]
    fn a_slot_that_was_given_back_is_given_out_last() {
        let mut slots = Slots { used: vec![false; 3], next: 0 };
        assert_eq!(slots.take(), Some(FlowSlot(0)));
        slots.used[0] = false;
        assert_eq!(
            [slots.take(), slots.take(), slots.take(), slots.take()],
            [Some(FlowSlot(1)), Some(FlowSlot(2)), Some(FlowSlot(0)), None]
        );
    }
}
