//! What the workers know in common about who is on the links.
//!
//! Reading is one atomic load per burst. Resolved neighbours are an immutable map that is replaced; the MAC addresses of
//! pods and host, of which there is one per port, are an array of atomics. Requests and answers go through a mutex:
//! they are rare and bounded ([`super::neighbour_table`]). Per-worker tables were not taken: an answer comes in on whatever worker
//! the interface's queue belongs to, which need not be the one that asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use ahash::RandomState;
use arc_swap::{ArcSwap, Cache};

use super::fields;
use super::neighbour_table::{NeighbourId, NeighbourTable, Request, Requested};
use crate::PortId;
use crate::io::FlowCache;
use crate::wire::ethernet::Mac;

/// The least time between two maps, so that a flood of answers does not make the workers copy maps all the time: at
/// most 4096 entries, some 50 µs, are copied.
const PUBLISH: u64 = 1_000_000;

/// The MAC addresses on the other sides of all ports, shared by the workers.
#[derive(Debug)]
pub struct Neighbours {
    /// By port: the MAC address of the pod or of the host, as [`fields::to_number`] has it; 0 when none is known.
    peers: Box<[AtomicU64]>,
    /// How often `peers` changed.
    peer_changes: AtomicU64,
    view: Arc<ArcSwap<View>>,
    /// Whether the table has changes that the view has not.
    is_behind: AtomicBool,
    state: Mutex<State>,
    /// Who keeps flows that go to neighbours.
    flow_cache: OnceLock<Arc<dyn FlowCache>>,
}

/// The resolved neighbours as the packet path sees them.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Differs from that of every other view.
    pub(super) version: u64,
    resolved: HashMap<NeighbourId, Resolved, RandomState>,
}

/// A resolved neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) mac: Mac,
    /// When it answered, in nanoseconds.
    pub(super) confirmed: u64,
}

/// A worker's end of the view.
pub(super) type ViewReader = Cache<Arc<ArcSwap<View>>, Arc<View>>;

#[derive(Debug, Default)]
struct State {
    table: NeighbourTable,
    published_at: u64,
    retransmitted_at: u64,
}

impl View {
    pub(super) fn get(&self, neighbour: &NeighbourId) -> Option<Resolved> {
        self.resolved.get(neighbour).copied()
    }
}

impl Neighbours {
    /// Nobody is known. One for all workers of a vswitch.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            peers: (0..=u16::MAX).map(|_| AtomicU64::new(0)).collect(),
            peer_changes: AtomicU64::new(0),
            view: Arc::default(),
            is_behind: AtomicBool::new(false),
            state: Mutex::default(),
            flow_cache: OnceLock::new(),
        })
    }

    /// Tells a flow cache from now on when a neighbour has another MAC address. The first one stays.
    pub fn report_moves_to(&self, flow_cache: Arc<dyn FlowCache>) {
        let _ = self.flow_cache.set(flow_cache);
    }

    /// Forgets who is on a port: to be called when its interface goes away, before another takes its place. Until then a
    /// pod's MAC address, once learned, stays the one that its frames must carry.
    pub fn forget(&self, port: PortId) {
        self.peers[port.index()].store(0, Ordering::Release);
        self.peer_changes.fetch_add(1, Ordering::Release);
        let mut state = self.lock();
        state.table.remove_port(port);
        self.replace_view(&mut state);
    }

    /// The neighbours that were asked for and answered, for operators. Pods and the host are not among them.
    pub fn list(&self) -> Vec<(NeighbourId, [u8; 6])> {
        let mut list: Vec<_> = self.lock().table.resolved().map(|(neighbour, mac, _)| (neighbour, mac)).collect();
        list.sort_unstable();
        list
    }

    /// The MAC address of the pod or host behind a port, where it was learned.
    pub fn peer(&self, port: PortId) -> Option<[u8; 6]> {
        fields::from_number(self.peers[port.index()].load(Ordering::Acquire))
    }

    pub(super) fn peer_changes(&self) -> u64 {
        self.peer_changes.load(Ordering::Acquire)
    }

    pub(super) fn reader(&self) -> ViewReader {
        Cache::new(Arc::clone(&self.view))
    }

    /// Learns the MAC address behind a port. The first one stays, unless `replace` says otherwise; returns the one that
    /// is known afterwards.
    pub(super) fn learn_peer(&self, port: PortId, mac: Mac, replace: bool) -> Mac {
        let (slot, number) = (&self.peers[port.index()], fields::to_number(mac));
        let before = if replace {
            slot.swap(number, Ordering::AcqRel)
        } else {
            match slot.compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire) {
                Ok(none) => none,
                Err(known) => return fields::from_number(known).unwrap_or(mac),
            }
        };
        if before != number {
            self.peer_changes.fetch_add(1, Ordering::Release);
            // Whatever was asked for on this port is answered now.
            self.lock().table.remove_port(port);
            if before != 0 {
                self.report_move(port);
            }
        }
        mac
    }

    /// Whether the neighbour must be asked for.
    pub(super) fn request(&self, neighbour: NeighbourId, now: u64) -> Requested {
        self.lock().table.request(neighbour, now)
    }

    /// Asks again for a neighbour that is known for long. None also when another worker has the table: there will be a
    /// next packet.
    pub(super) fn probe(&self, neighbour: NeighbourId, now: u64) -> Option<Request> {
        match self.try_lock()?.table.request(neighbour, now) {
            Requested::Send(request) => Some(request),
            Requested::InProgress | Requested::TableFull => None,
        }
    }

    /// Somebody answered. True when it was asked for.
    pub(super) fn confirm(&self, neighbour: &NeighbourId, mac: Mac, now: u64) -> bool {
        let mut state = self.lock();
        let accepted = state.table.confirm(neighbour, mac, now);
        if accepted {
            self.publish(&mut state, now);
        }
        accepted
    }

    /// Somebody spoke unasked.
    pub(super) fn reverify(&self, neighbour: NeighbourId, mac: Mac, now: u64) -> Option<Request> {
        self.lock().table.reverify(neighbour, mac, now)
    }

    /// Whether [`Neighbours::maintain`] has something to publish.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Repeats requests, gives up on neighbours, publishes what could not be published at once. Does nothing when another worker
    /// is at it. `interval` is how often the requests are gone through, by whatever worker.
    pub(super) fn maintain(&self, now: u64, interval: u64, send: impl FnMut(Request)) {
        let Some(mut state) = self.try_lock() else { return };
        let mut news = self.is_behind();
        if now >= state.retransmitted_at.saturating_add(interval) {
            state.retransmitted_at = now;
            news |= state.table.retransmit(now, send);
        }
        if news {
            self.publish(&mut state, now);
        }
    }

    fn publish(&self, state: &mut State, now: u64) {
        if now < state.published_at.saturating_add(PUBLISH) {
            self.is_behind.store(true, Ordering::Relaxed);
            return;
        }
        state.published_at = now;
        self.replace_view(state);
    }

    fn replace_view(&self, state: &mut State) {
        self.is_behind.store(false, Ordering::Relaxed);
        let known = state.table.resolved();
        let resolved = known.map(|(neighbour, mac, confirmed)| (neighbour, Resolved { mac, confirmed })).collect();
        let before = self.view.load_full();
        let new = Arc::new(View { version: before.version + 1, resolved });
        self.view.store(Arc::clone(&new));
        // Only now: a flow that is added from here on has the new address.
        for (neighbour, old) in &before.resolved {
            if new.get(neighbour).is_some_and(|new| new.mac != old.mac) {
                self.report_move(neighbour.port);
            }
        }
    }

    fn report_move(&self, port: PortId) {
        if let Some(cache) = self.flow_cache.get() {
            cache.moved(port);
        }
    }

    /// A resolved neighbour, as of now.
    pub(super) fn resolved(&self, neighbour: &NeighbourId) -> Option<Resolved> {
        self.view.load().get(neighbour)
    }

    /// None when another worker has it.
    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// A worker that panicked in here is a fault, but no reason for the others to stop: the table holds at worst a
    /// request too many.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
