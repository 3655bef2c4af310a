//! MAC addresses of neighbours and peers, shared by all workers.
//!
//! Reading costs one atomic load per burst. Resolved neighbours are in an immutable map that is replaced. MAC addresses of pods and the
//! host, one per port, are in an array of atomics. Requests and answers take a mutex, because they are rare and bounded
//! ([`super::neighbour_table`]). Per-worker tables were rejected: an answer arrives at the worker of the interface's queue, which may not
//! be the one that asked.

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

/// Minimum time between two published views in nanoseconds, so that a flood of answers does not make workers copy maps continuously. A copy
/// of 4096 entries takes about 50 µs.
const PUBLISH: u64 = 1_000_000;

/// MAC addresses behind all ports, shared by the workers.
#[derive(Debug)]
pub struct Neighbours {
    /// By port id: the peer's MAC address as [`fields::to_number`] encodes it. 0 if it is unknown.
    peers: Box<[AtomicU64]>,
    /// How often an element of `peers` has changed.
    peer_changes: AtomicU64,
    view: Arc<ArcSwap<View>>,
    /// Whether the table has changes that the published view lacks.
    is_behind: AtomicBool,
    state: Mutex<State>,
    /// The flow cache to notify when a neighbour's MAC address changes. Unset without a flow cache.
    flow_cache: OnceLock<Arc<dyn FlowCache>>,
}

/// The resolved neighbours at one time: an immutable map that workers read without a lock.
#[derive(Debug, Default)]
pub(super) struct View {
    /// A number that no other view has.
    pub(super) version: u64,
    resolved: HashMap<NeighbourId, Resolved, RandomState>,
}

/// A neighbour's MAC address, with the time of its last answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) mac: Mac,
    /// Time of the last answer, in nanoseconds.
    pub(super) confirmed: u64,
}

/// A worker's reader of the view.
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
    /// Creates tables without MAC addresses, to be shared by all workers of a vswitch.
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

    /// Notifies this flow cache of changed MAC addresses. Later calls have no effect.
    pub fn report_moves_to(&self, flow_cache: Arc<dyn FlowCache>) {
        let _ = self.flow_cache.set(flow_cache);
    }

    /// Forgets a port's peer and neighbours. Call it when the port's interface is removed. Until then the first learned MAC address of a
    /// pod stays, and its frames must carry it.
    pub fn forget(&self, port: PortId) {
        self.peers[port.index()].store(0, Ordering::Release);
        self.peer_changes.fetch_add(1, Ordering::Release);
        let mut state = self.lock();
        state.table.remove_port(port);
        self.replace_view(&mut state);
    }

    /// Resolved neighbours, without pods and the host, in ascending order.
    pub fn list(&self) -> Vec<(NeighbourId, [u8; 6])> {
        let mut list: Vec<_> = self.lock().table.resolved().map(|(neighbour, mac, _)| (neighbour, mac)).collect();
        list.sort_unstable();
        list
    }

    /// Returns the MAC address of the pod or host behind a port. `None` if it is unknown.
    pub fn peer(&self, port: PortId) -> Option<[u8; 6]> {
        fields::from_number(self.peers[port.index()].load(Ordering::Acquire))
    }

    pub(super) fn peer_changes(&self) -> u64 {
        self.peer_changes.load(Ordering::Acquire)
    }

    pub(super) fn reader(&self) -> ViewReader {
        Cache::new(Arc::clone(&self.view))
    }

    /// Learns the MAC address behind a port. Keeps the first one unless `replace` is set. Returns the address in force.
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
            // The peer answers all open requests on this port.
            self.lock().table.remove_port(port);
            if before != 0 {
                self.report_move(port);
            }
        }
        mac
    }

    /// Requests a neighbour unless a request is open or the neighbour was confirmed recently.
    pub(super) fn request(&self, neighbour: NeighbourId, now: u64) -> Requested {
        self.lock().table.request(neighbour, now)
    }

    /// Requests a neighbour that was confirmed long ago. Also returns `None` if another worker holds the table: a later packet will retry.
    pub(super) fn probe(&self, neighbour: NeighbourId, now: u64) -> Option<Request> {
        match self.try_lock()?.table.request(neighbour, now) {
            Requested::Send(request) => Some(request),
            Requested::InProgress | Requested::TableFull => None,
        }
    }

    /// Handles an answer. Returns true if a request was open.
    pub(super) fn confirm(&self, neighbour: &NeighbourId, mac: Mac, now: u64) -> bool {
        let mut state = self.lock();
        let accepted = state.table.confirm(neighbour, mac, now);
        if accepted {
            self.publish(&mut state, now);
        }
        accepted
    }

    /// Handles an unsolicited message. Returns the request to send if it contradicts the table. `None` otherwise.
    pub(super) fn reverify(&self, neighbour: NeighbourId, mac: Mac, now: u64) -> Option<Request> {
        self.lock().table.reverify(neighbour, mac, now)
    }

    /// Whether [`Neighbours::maintain`] must publish changes.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    /// Repeats requests, removes unreachable neighbours and publishes delayed changes. Does nothing if another worker is doing it.
    /// `interval` is the time between two passes over the requests, over all workers.
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
        // After publishing, so that flows added from now on have the new address.
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

    /// Returns a neighbour's MAC address and time of confirmation from the current view. `None` if it is not resolved.
    pub(super) fn resolved(&self, neighbour: &NeighbourId) -> Option<Resolved> {
        self.view.load().get(neighbour)
    }

    /// Locks the table. Returns `None` if another worker holds the lock.
    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks the table, even if a worker has panicked while holding the lock: the table then has at most one request too many, and the
    /// other workers continue.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
