//! The session table: columns of entries, a keyed index into them, and lists by last use.

#[cfg(target_os = "linux")]
mod adoption;
mod changes;
mod endings;
mod gone;
mod hit;
mod listing;
mod lives;
mod room;
mod tracking;
mod translated;

use std::sync::Arc;

use ahash::RandomState;

use super::budget::Budget;
use super::class::Class;
use super::direction::Direction;
use super::entry::{Entry, Moment, NONE, NewSession, Slot};
use super::index::{Index, Prefetch};
use super::key::KeyHasher;
use super::links::Links;
use super::lists::Lists;
use super::memory::{Column, SessionMemoryError};
use super::store::{Growth, TableFile};
use super::{Key, Rewrite, SessionConfig, TcpWindow};
use crate::names::NameId;
use crate::service::Steering;
use crate::{Decision, PortId, PortKind, SessionCounters};

pub use endings::{SessionEnd, Tally};
pub(crate) use gone::Survivor;
pub(crate) use hit::{Hit, PlainHit};
pub use listing::{EndedSessions, SessionInfo, SessionPage, SessionSelector};
pub(crate) use tracking::{Belief, Evidence};
pub(crate) use translated::Match;

/// Maximum number of list moves of an entry per timeout. Most hits then write one cache line and not the links of neighbours. In return, an
/// expired entry is swept up to a sixteenth of its timeout late.
const MOVES_PER_TIMEOUT: u64 = 16;

/// Entries also move at most once in 2^33 ns (8.6 s), or in half their timeout if that is shorter. With a million sessions of 30 s, moves
/// every 2 s would affect one packet in ten.
const LONGEST_SHORT_PERIOD: u32 = 33;

/// How often the sequence numbers of an idle TCP session are sampled: once in 2^33 ns (8.6 s).
const SAMPLE_PERIOD: u32 = 33;

#[derive(Debug)]
pub(crate) struct SessionTable {
    /// Keyed at random per table, so that outsiders cannot create colliding keys.
    hasher: KeyHasher,
    index: Index,
    /// Data that every packet reads, and data that only new or ending sessions need.
    entries: Column<Entry>,
    links: Column<Links>,
    /// Rewrites of [translated](Entry::is_translated) IPv6 entries, indexed by slot.
    rewrites: Column<Rewrite>,
    /// Number of translated entries, whose aliases are in the index, and number of those with a separate rewrite.
    aliases: usize,
    records: usize,
    /// Publishes this worker's aliases to other workers, with this worker's number. `None` for a single worker.
    steering: Option<(Arc<Steering>, usize)>,
    /// The allocated part of the table's file. `None` if the table is not in a file.
    growth: Option<Growth>,
    /// The first slot that was never used.
    fresh: Slot,
    /// The first free slot of the chain of free slots, which is in their links.
    free: Slot,
    lists: Lists,
    config: SessionConfig,
    /// The budget shared by all tables.
    budget: Arc<Budget>,
    /// Number of the last call to evict entries that this table has obeyed; see [`Budget`].
    followed: u32,
    /// The kind of each port, indexed by port id.
    kinds: Vec<PortKind>,
    /// Ports whose pod is gone and whose sessions have not all been ended.
    gone: Vec<PortId>,
    /// Timeouts in nanoseconds, indexed by class. Unused elements make every 4-bit number a valid index.
    timeouts: [u64; 16],
    /// For each class, the length of a period as a power of two in nanoseconds. An entry moves in its lists at most once per period.
    periods: [u32; 16],
    /// For each class, how often a hit moves the entry or samples sequence numbers: once in this power of two of nanoseconds.
    looks: [u32; 16],
    pub(crate) counts: SessionCounters,
    /// Ended sessions and packet counts to report. `None` while no stream is attached.
    endings: Option<Box<endings::Endings>>,
}

impl SessionTable {
    /// Creates an empty table that takes its slots from a budget. Reserves its memory without touching it.
    ///
    /// # Errors
    /// If there is not enough address space.
    pub(crate) fn new(
        config: SessionConfig,
        budget: Arc<Budget>,
        hasher: &RandomState,
        file: Option<TableFile>,
    ) -> Result<Self, SessionMemoryError> {
        let capacity = budget.slots();
        let (entries, links, rewrites, growth) = match file {
            Some(TableFile { entries, links, rewrites, growth }) => (entries, links, rewrites, Some(growth)),
            None => (
                Column::new(capacity, capacity)?,
                Column::new(capacity, capacity)?,
                Column::new(capacity, capacity)?,
                None,
            ),
        };
        let (mut timeouts, mut periods) = ([0; 16], [0; 16]);
        for class in Class::ALL {
            let timeout = config.timeouts.of(class);
            timeouts[class as usize] = timeout;
            periods[class as usize] = period(timeout);
        }
        let mut looks = periods;
        looks[Class::Established as usize] = SAMPLE_PERIOD.min(periods[Class::Established as usize]);
        Ok(Self {
            hasher: KeyHasher::new(hasher),
            index: Index::new(capacity)?,
            entries,
            links,
            rewrites,
            aliases: 0,
            records: 0,
            steering: None,
            growth,
            fresh: 0,
            free: NONE,
            lists: Lists::new(),
            config,
            followed: budget.calls(),
            budget,
            kinds: Vec::new(),
            gone: Vec::new(),
            timeouts,
            periods,
            looks,
            counts: SessionCounters::default(),
            endings: None,
        })
    }

    pub(crate) const fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Publishes this worker's translated sessions to other workers. `worker` is its number. Call it while the table is empty.
    pub(crate) fn tell(&mut self, steering: Arc<Steering>, worker: usize) {
        self.steering = Some((steering, worker));
    }

    /// Returns the number of another worker that owns the session of this key. This table must have no session with the key.
    pub(crate) fn elsewhere(&self, key: &Key) -> Option<usize> {
        let (steering, own) = self.steering.as_ref()?;
        let worker = steering.find(key)?;
        if worker == *own {
            // Left over after a panic. Otherwise two workers would pass the packet back and forth forever.
            steering.remove(key, *own);
            return None;
        }
        Some(worker)
    }

    /// Sets the ports of a snapshot. Sessions only refer to known ports.
    pub(crate) fn know_ports(&mut self, kinds: impl Iterator<Item = PortKind>) {
        self.kinds.clear();
        self.kinds.extend(kinds);
        self.lists.know_ports(self.kinds.len());
        self.budget.know_ports(self.kinds.len());
    }

    /// Returns the port's kind. A removed port counts as a pod's, which has the smallest share.
    fn kind(&self, port: PortId) -> PortKind {
        self.kinds.get(port.index()).copied().unwrap_or(PortKind::Pod)
    }

    /// Returns the number of sessions, including expired ones that were not swept yet.
    pub(crate) const fn len(&self) -> usize {
        self.index.len() - self.aliases - self.lists.len(Class::Refused)
    }

    /// Returns the number of translated entries, including refusals.
    pub(crate) const fn translated(&self) -> usize {
        self.aliases
    }

    /// Memory in bytes: entries that were ever used, rewrites in use, and the whole index.
    pub(crate) fn bytes(&self) -> usize {
        let entries = self.fresh as usize * (size_of::<Entry>() + size_of::<Links>());
        entries + self.records * size_of::<Rewrite>() + self.index.bytes()
    }

    /// Ends all sessions. The cost is proportional to the number of sessions. Counters stay.
    pub(crate) fn clear(&mut self) {
        for class in Class::ALL {
            while self.lists.first(class) != NONE {
                self.remove(self.lists.first(class));
            }
        }
        (self.fresh, self.free) = (0, NONE);
        self.lists.clear();
        self.gone.clear();
    }

    #[inline]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash(key)
    }

    /// Returns a view of the index for prefetching.
    #[inline]
    pub(crate) fn prefetch(&self) -> Prefetch<'_> {
        self.index.prefetch()
    }

    /// Returns all entries, for prefetching and for [`SessionTable::hit`].
    #[inline]
    pub(crate) fn entries(&self) -> &[Entry] {
        self.entries.records()
    }

    /// Returns the slot of the session or refusal with this key, or `None`. Ends an expired one, even if no sweep has reached it.
    pub(crate) fn find(&mut self, hash: u64, key: &Key, now: u64) -> Option<Slot> {
        let slot = self.lookup(hash, key)?;
        if self.is_expired(slot, now) {
            self.end(slot, now);
            return None;
        }
        Some(slot)
    }

    /// Returns the slot of the session or refusal with this key, also if it has expired.
    pub(crate) fn lookup(&self, hash: u64, key: &Key) -> Option<Slot> {
        let entries = self.entries();
        self.index.find(hash, |slot| entries[slot as usize].has_key(key) || self.has_alias(slot, key))
    }

    /// Returns the session with this key and its shortest possible timeout, in nanoseconds. `None` if workers must see its packets.
    pub(crate) fn established(&self, hash: u64, key: &Key) -> Option<(Slot, u64)> {
        let slot = self.lookup(hash, key)?;
        let class = self.entry(slot).class();
        let timeout = |class: Class| self.timeouts[class as usize];
        match class {
            Class::Established if self.config.tcp_window == TcpWindow::Strict => None,
            // One side may close while the other keeps sending.
            Class::Established => Some((slot, timeout(class).min(timeout(Class::HalfClosed)))),
            Class::Unreplied | Class::Stream | Class::Idle => Some((slot, timeout(class))),
            Class::Refused | Class::New | Class::Closed | Class::Echo | Class::Doubtful | Class::HalfClosed => None,
        }
    }

    /// Returns the idle timeout of an established TCP session, in nanoseconds.
    pub(crate) const fn established_timeout(&self) -> u64 {
        self.timeouts[Class::Established as usize]
    }

    /// Returns the idle timeout of the session in a slot, in nanoseconds.
    pub(crate) fn timeout(&self, slot: Slot) -> u64 {
        self.timeouts[self.entry(slot).class() as usize]
    }

    /// Returns the slot of a TCP session that is not established, and its timeout in nanoseconds. `None` for any other session, and if
    /// workers must see all segments.
    pub(crate) fn begun(&self, hash: u64, key: &Key) -> Option<(Slot, u64)> {
        let slot = self.lookup(hash, key)?;
        let is_begun = self.entry(slot).class() == Class::New && self.config.tcp_window != TcpWindow::Strict;
        is_begun.then_some((slot, self.timeouts[Class::New as usize]))
    }

    /// Whether the slot has a session or refusal with this key that has not expired.
    pub(crate) fn is_alive(&self, slot: Slot, key: &Key, now: u64) -> bool {
        self.has_key(slot, key) && !self.is_expired(slot, now)
    }

    /// Returns the entry in a slot returned by [`SessionTable::find`] or [`SessionTable::create`].
    pub(crate) fn entry(&self, slot: Slot) -> &Entry {
        &self.entries()[slot as usize]
    }

    fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.entries.records_mut()[slot as usize]
    }

    /// Whether the entry in a slot has this key or alias.
    pub(crate) fn has_key(&self, slot: Slot, key: &Key) -> bool {
        self.entries().get(slot as usize).is_some_and(|entry| entry.has_key(key)) || self.has_alias_in(slot, key)
    }

    fn has_alias_in(&self, slot: Slot, key: &Key) -> bool {
        (slot as usize) < self.entries().len() && self.has_alias(slot, key)
    }

    /// Returns the decision that allowed the session or caused the refusal.
    pub(crate) fn decision(&self, slot: Slot) -> Decision {
        self.links.records()[slot as usize].decision(self.entry(slot))
    }

    /// Returns the name by which the session, or the session before policy cut it, was allowed. `None` if it was not allowed by name.
    pub(crate) fn name(&self, slot: Slot) -> Option<NameId> {
        self.links.records()[slot as usize].name()
    }

    /// Whether the session has an audit mark: see [`crate::Audited`].
    pub(crate) fn is_audited(&self, slot: Slot) -> bool {
        self.links.records()[slot as usize].is_audited()
    }

    /// Sets or clears the audit mark.
    pub(crate) fn set_audited(&mut self, slot: Slot, is_audited: bool) {
        let links = &mut self.links.records_mut()[slot as usize];
        if links.is_audited() != is_audited {
            links.set_audited(is_audited);
        }
    }

    /// Whether the session was allowed by name and the server name that its client sends is not compared yet.
    pub(crate) fn is_unchecked(&self, slot: Slot) -> bool {
        self.links.records()[slot as usize].is_unchecked()
    }

    /// Sets or clears the mark of a session whose server name is not compared yet.
    pub(crate) fn set_unchecked(&mut self, slot: Slot, is_unchecked: bool) {
        self.links.records_mut()[slot as usize].set_unchecked(is_unchecked);
    }

    /// Moves an entry to the end of its new class's lists.
    fn move_to(&mut self, slot: Slot, old: Class, new: Class, now: Moment) {
        let ports = self.entry(slot).ports(Direction::Forward);
        self.lists.unlink(self.links.records_mut(), slot, old, ports);
        self.lists.link(self.links.records_mut(), slot, new, ports, now.number);
        self.budget.turn(old, new);
    }

    /// Whether the opposite side has opened a session with the same key, which has not ended.
    pub(crate) fn is_open_against(&self, new: &NewSession, now: u64) -> bool {
        self.lookup(new.hash, &new.key).is_some_and(|slot| {
            let entry = self.entry(slot);
            let is_open = entry.refused().is_none() && !entry.is_closed() && !self.is_expired(slot, now);
            is_open && entry.direction(new.from_low) != new.direction
        })
    }

    /// Whether packets that change a session need a correct transport checksum.
    pub(crate) const fn verifies(&self) -> bool {
        self.config.verify_checksums
    }
}

/// Returns the shift that converts time to list periods for this timeout.
fn period(timeout: u64) -> u32 {
    let log = |time: u64| time.checked_ilog2().unwrap_or(0);
    log(timeout / MOVES_PER_TIMEOUT).max(LONGEST_SHORT_PERIOD.min(log(timeout / 2)))
}

#[cfg(test)]
mod tests;
