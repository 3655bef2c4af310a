//! The node's session counts and limits, shared by the tables of all workers.
//!
//! Capacity and shares apply to the node. Each worker's table has room for the whole capacity and takes slots from this budget. So a pod
//! whose connections all belong to one worker has the same share as on a node with one core. Dividing the limits by the number of workers
//! would reduce a quarter of the table to a sixty-fourth for such a pod on 16 workers.
//!
//! The budget is written when an entry is created or ends, and when a connection is established or closed. Hits do not access it.
//!
//! ```text
//!   worker 0: make room -- below the limit? -> take
//!                       -- an entry of its own to end -> end it, take
//!                       -- the others may have one -> overdraw: take, and call      worker 1, in its next burst:
//!                                                                `--------------> over a limit? -> end own entries
//!                       -- overdrawn by a sixteenth already -> refuse
//! ```
//!
//! Without the overdraft, a flood whose entries all belong to one worker would keep a share full. Other workers could not evict them and
//! would refuse all new sessions.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicIsize, AtomicU32, Ordering};

use super::SessionConfig;
use super::class::Class;
use super::entry::NOWHERE;
use crate::{PortId, PortKind};

/// The fraction (1/n) by which a limit may be overdrawn until other workers have evicted entries. They do so in their next burst, after a
/// sleep of at most 150 ms. A sixteenth of a quarter of 500,000 covers 52,000 new sessions a second.
const OVERDRAFT: usize = 16;

/// Maximum number of entries of a table: 7 GiB of memory. Slot numbers would allow more.
pub(super) const MAX_CAPACITY: usize = 1 << 26;

/// Ports per page of accounts. A page is allocated when a snapshot has such a port.
const PAGE: usize = 256;

/// A port's role in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The session's first packet came in on the port.
    Starter,
    /// The session's first packet left through the port.
    Destination,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Starter, Self::Destination];
}

/// Whether a new entry may be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// The limit is not reached.
    Free,
    /// The limit is reached, but may be overdrawn if this table has no entry to evict.
    Overdraft,
    /// The limit and its overdraft are used up.
    None,
}

/// Entries of one port over all workers. Signed, and negative values count as zero: a worker that restarts after a panic may return one
/// entry more than it took.
#[derive(Debug, Default)]
struct Account {
    started: AtomicIsize,
    reached: AtomicIsize,
}

/// Sessions of a port by its role. A session of a port with itself counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSessions {
    /// Sessions whose first packet came in on the port.
    pub started: u64,
    /// Sessions whose first packet left through the port.
    pub reached: u64,
}

/// Counts of the node's sessions, and their limits.
#[derive(Debug)]
pub(crate) struct Budget {
    capacity: usize,
    half_open_limit: usize,
    pod_limit: usize,
    outside_limit: usize,
    is_shared: bool,
    used: AtomicIsize,
    half_open: AtomicIsize,
    ports: Box<[OnceLock<Box<[Account; PAGE]>>]>,
    /// Number of calls to evict entries, made when a limit was overdrawn or reached.
    calls: AtomicU32,
}

impl Budget {
    /// Creates the budget that this many workers share.
    pub(crate) fn new(config: &SessionConfig, workers: usize) -> Self {
        let capacity = config.capacity.min(MAX_CAPACITY);
        Self {
            capacity,
            half_open_limit: config.half_open.of(capacity),
            pod_limit: config.pod_share.of(capacity),
            outside_limit: config.outside_share.of(capacity),
            is_shared: workers > 1,
            used: AtomicIsize::new(0),
            half_open: AtomicIsize::new(0),
            ports: (0..=usize::from(u16::MAX) / PAGE).map(|_| OnceLock::new()).collect(),
            calls: AtomicU32::new(0),
        }
    }

    /// Maximum number of entries of one table: the capacity, and with several workers also its overdraft.
    pub(crate) const fn slots(&self) -> usize {
        if self.is_shared { self.overdrawn(self.capacity) } else { self.capacity }
    }

    pub(super) fn know_ports(&self, ports: usize) {
        (0..ports.div_ceil(PAGE)).for_each(|page| self.make_page(page));
    }

    /// Allocates the account of adopted entries, whose ports are not known yet.
    pub(super) fn know_nowhere(&self) {
        self.make_page(NOWHERE.index() / PAGE);
    }

    fn make_page(&self, page: usize) {
        self.ports[page].get_or_init(|| Box::new(std::array::from_fn(|_| Account::default())));
    }

    /// Counts a new entry.
    pub(super) fn enter(&self, ports: (PortId, PortId), class: Class) {
        self.add(&self.used, 1);
        self.enter_ports(ports);
        self.change(class.is_half_open(), 1);
    }

    /// Counts an ended entry.
    pub(super) fn leave(&self, ports: (PortId, PortId), class: Class) {
        self.add(&self.used, -1);
        self.leave_ports(ports);
        self.change(class.is_half_open(), -1);
    }

    pub(super) fn enter_ports(&self, ports: (PortId, PortId)) {
        self.add(&self.account(ports.0).started, 1);
        self.add(&self.account(ports.1).reached, 1);
    }

    pub(super) fn leave_ports(&self, ports: (PortId, PortId)) {
        self.add(&self.account(ports.0).started, -1);
        self.add(&self.account(ports.1).reached, -1);
    }

    /// Counts an entry's change from one class to another.
    pub(super) fn turn(&self, from: Class, to: Class) {
        if from.is_half_open() != to.is_half_open() {
            self.change(true, if to.is_half_open() { 1 } else { -1 });
        }
    }

    fn change(&self, is_half_open: bool, by: isize) {
        if is_half_open {
            self.add(&self.half_open, by);
        }
    }

    /// Adds to a count. A single worker avoids atomic read-modify-writes, which cost about 5 ns each and eight per session.
    fn add(&self, number: &AtomicIsize, by: isize) {
        if self.is_shared {
            number.fetch_add(by, Ordering::Relaxed);
        } else {
            number.store(number.load(Ordering::Relaxed) + by, Ordering::Relaxed);
        }
    }

    /// Returns the session counts of all ports that have sessions, by port id. Does not block workers.
    pub(crate) fn ports(&self) -> Vec<(PortId, PortSessions)> {
        let pages = self.ports.iter().enumerate().filter_map(|(page, accounts)| Some((page * PAGE, accounts.get()?)));
        let accounts = pages.flat_map(|(first, accounts)| (first..).zip(accounts.iter()));
        let held = |number: &AtomicIsize| u64::try_from(number.load(Ordering::Relaxed)).unwrap_or(0);
        let ports = accounts.filter_map(|(at, account)| {
            let id = u16::try_from(at).map(PortId).ok().filter(|&id| id != NOWHERE)?;
            Some((id, PortSessions { started: held(&account.started), reached: held(&account.reached) }))
        });
        ports.filter(|(_, sessions)| *sessions != PortSessions::default()).collect()
    }

    fn used(&self) -> usize {
        usize::try_from(self.used.load(Ordering::Relaxed)).unwrap_or(0)
    }

    fn half_open(&self) -> usize {
        usize::try_from(self.half_open.load(Ordering::Relaxed)).unwrap_or(0)
    }

    /// Returns the number of entries that may be added below the capacity.
    pub(super) fn free(&self) -> usize {
        self.capacity.saturating_sub(self.used())
    }

    /// Returns the number of connections that may be added below the limit of half-open ones.
    pub(super) fn free_half_open(&self) -> usize {
        self.half_open_limit.saturating_sub(self.half_open())
    }

    /// Returns the number of entries that may be added below the limit of the port in this role. Uplink and host are not limited as
    /// destinations.
    pub(super) fn free_of(&self, side: Side, port: PortId, kind: PortKind) -> usize {
        self.limit(side, kind).saturating_sub(self.held(side, port))
    }

    /// Returns the number of entries of the port in this role.
    pub(super) fn held(&self, side: Side, port: PortId) -> usize {
        let account = self.account(port);
        let held = match side {
            Side::Starter => &account.started,
            Side::Destination => &account.reached,
        };
        usize::try_from(held.load(Ordering::Relaxed)).unwrap_or(0)
    }

    pub(super) const fn limit(&self, side: Side, kind: PortKind) -> usize {
        match (side, kind) {
            (_, PortKind::Pod) => self.pod_limit,
            (Side::Starter, PortKind::Uplink | PortKind::Host) => self.outside_limit,
            (Side::Destination, PortKind::Uplink | PortKind::Host) => usize::MAX,
        }
    }

    pub(super) fn room(&self) -> Room {
        self.within(self.used(), self.capacity)
    }

    pub(super) fn half_open_room(&self) -> Room {
        self.within(self.half_open(), self.half_open_limit)
    }

    pub(super) fn is_overdrawn(&self) -> bool {
        self.used() > self.capacity
    }

    pub(super) fn is_half_open_overdrawn(&self) -> bool {
        self.half_open() > self.half_open_limit
    }

    pub(super) fn room_of(&self, side: Side, port: PortId, kind: PortKind) -> Room {
        self.within(self.held(side, port), self.limit(side, kind))
    }

    /// Calls other workers to evict entries over a limit.
    pub(super) fn call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of calls to evict entries so far.
    pub(super) fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    const fn within(&self, used: usize, limit: usize) -> Room {
        if used < limit {
            Room::Free
        } else if self.is_shared && used < self.overdrawn(limit) {
            Room::Overdraft
        } else {
            Room::None
        }
    }

    const fn overdrawn(&self, limit: usize) -> usize {
        limit.saturating_add(limit / OVERDRAFT + 1)
    }

    /// Returns a known port's account. Panics if the port is unknown.
    fn account(&self, port: PortId) -> &Account {
        let page = self.ports[port.index() / PAGE].get().expect("the page was allocated when the port became known");
        &page[port.index() % PAGE]
    }
}
