//! How many sessions the node has, and whose they are: one account for the tables of all workers.
//!
//! The capacity and the shares are the node's. Each worker's table could hold all of it, and takes what it uses from here,
//! so that a pod whose connections all belong to one worker has the same share as on a node with one core.
//! Dividing everything by the number of workers was what came before: with 16 workers, a quarter of the table was
//! a sixty-fourth of it to such a pod.
//!
//! The account is written when an entry is made or ends, and when a connection opens or is over. A hit does not look at it.
//!
//! ```text
//!   worker 0: make room -- below the limit? -> take
//!                       -- an entry of its own to end -> end it, take
//!                       -- the others may have one -> overdraw: take, and call      worker 1, in its next burst:
//!                                                                `--------------> over a limit? -> end own entries
//!                       -- overdrawn by a sixteenth already -> refuse
//! ```
//!
//! Without the overdraft, a flood whose entries all lie with one worker would keep a share full, and other workers, who cannot end
//! them, would refuse everybody else.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicIsize, AtomicU32, Ordering};

use super::SessionConfig;
use super::class::Class;
use super::entry::NOWHERE;
use crate::{PortId, PortKind};

/// The part of a limit by which it may be overdrawn until other workers have ended entries. They do so in their next
/// burst, at the latest when they have slept for 150 ms; a sixteenth of a quarter of 500,000 is 52,000 new sessions a second.
const OVERDRAFT: usize = 16;

/// The most entries of one table, 7 GiB of memory. Slots would allow more; nothing needs it.
pub(super) const MAX_CAPACITY: usize = 1 << 26;

/// Ports in a page of accounts. A page is made when a snapshot has such a port.
const PAGE: usize = 256;

/// Which end of a session a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Its first packet came in here.
    Starter,
    /// Its first packet left here.
    Destination,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Starter, Self::Destination];
}

/// What a new entry may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// There is some.
    Free,
    /// There is none; if this table has nothing to end, the limit may be overdrawn.
    Overdraft,
    /// There is none.
    None,
}

/// Entries of one port, of all workers. Signed, and below zero as good as zero: a worker that is restarted after a fault gives back
/// what its table holds, which may be one entry more than it took.
#[derive(Debug, Default)]
struct Account {
    started: AtomicIsize,
    reached: AtomicIsize,
}

/// How many sessions have a port at one of their ends. One that it has with itself counts for both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSessions {
    /// Whose first packet came in there.
    pub started: u64,
    /// Whose first packet left there.
    pub reached: u64,
}

/// The account.
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
    /// How often somebody has overdrawn or was refused.
    calls: AtomicU32,
}

impl Budget {
    /// For so many workers.
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

    /// The most entries of one table: more than the capacity, as far as that can be overdrawn.
    pub(crate) const fn slots(&self) -> usize {
        if self.is_shared { self.overdrawn(self.capacity) } else { self.capacity }
    }

    pub(super) fn know_ports(&self, ports: usize) {
        (0..ports.div_ceil(PAGE)).for_each(|page| self.make_page(page));
    }

    /// Makes the account of entries whose ports are not known yet.
    pub(super) fn know_nowhere(&self) {
        self.make_page(NOWHERE.index() / PAGE);
    }

    fn make_page(&self, page: usize) {
        self.ports[page].get_or_init(|| Box::new(std::array::from_fn(|_| Account::default())));
    }

    /// An entry is made.
    pub(super) fn enter(&self, ports: (PortId, PortId), class: Class) {
        self.add(&self.used, 1);
        self.enter_ports(ports);
        self.change(class.is_half_open(), 1);
    }

    /// An entry ends.
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

    /// An entry is of another class now.
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

    /// A worker that is alone needs no locked instruction, some 5 ns each, of which a session in its life takes eight.
    fn add(&self, number: &AtomicIsize, by: isize) {
        if self.is_shared {
            number.fetch_add(by, Ordering::Relaxed);
        } else {
            number.store(number.load(Ordering::Relaxed) + by, Ordering::Relaxed);
        }
    }

    /// The sessions of each port that has some, by their ids. Whoever asks holds nobody back.
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

    /// How many more entries fit.
    pub(super) fn free(&self) -> usize {
        self.capacity.saturating_sub(self.used())
    }

    /// How many more connections fit that are not established.
    pub(super) fn free_half_open(&self) -> usize {
        self.half_open_limit.saturating_sub(self.half_open())
    }

    /// How many more entries fit of which the port is this end. What many are behind is not limited as a destination.
    pub(super) fn free_of(&self, side: Side, port: PortId, kind: PortKind) -> usize {
        self.limit(side, kind).saturating_sub(self.held(side, port))
    }

    /// How many entries there are of which the port is this end.
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

    /// Calls the other workers to end what they can of what is over a limit.
    pub(super) fn call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// How often they were called.
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

    /// Its page was made when the port became known.
    fn account(&self, port: PortId) -> &Account {
        let page = self.ports[port.index() / PAGE].get().expect("no session is about a port that was not made known");
        &page[port.index() % PAGE]
    }
}
