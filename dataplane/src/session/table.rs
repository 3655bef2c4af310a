//! The table: two columns of entries, a keyed index into them, and lists by last use.

#[cfg(target_os = "linux")]
mod adoption;
mod changes;
mod endings;
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
use crate::service::Steering;
use crate::{Decision, PortId, PortKind, SessionCounters};

pub use endings::{SessionEnd, Tally};
pub(crate) use hit::{Hit, PlainHit};
pub use listing::{EndedSessions, SessionInfo, SessionPage, SessionSelector};
pub(crate) use tracking::{Belief, Evidence};
pub(crate) use translated::Match;

/// An entry is moved in its lists at most this many times per timeout, so that most hits write to one cache line and not
/// to its neighbours' links as well. The price: an expired entry is swept up to a sixteenth of its timeout late.
const MOVES_PER_TIMEOUT: u64 = 16;

/// And no more often than once in 2^33 ns, 8.6 s, or half of its timeout if that is shorter: with a million conversations that
/// are asked for 30 s, moves every 2 s would be one packet in ten.
const LONGEST_SHORT_PERIOD: u32 = 33;

/// How often a TCP session's sequence numbers are looked at while nothing happens to it: once in 2^33 ns, 8.6 s.
const SAMPLE_PERIOD: u32 = 33;

/// All sessions of one worker.
#[derive(Debug)]
pub(crate) struct SessionTable {
    /// Keyed at random per table: nobody outside can make keys that collide.
    hasher: KeyHasher,
    index: Index,
    /// What packets read, and what they do not.
    entries: Column<Entry>,
    links: Column<Links>,
    /// For entries over IPv6 that are [translated](Entry::is_translated).
    rewrites: Column<Rewrite>,
    /// How many places in the index are aliases of entries, and how many rewrites lie beside their entries.
    aliases: usize,
    records: usize,
    /// Where other workers find whose aliases these are, and the worker that this table is of; none for one alone.
    steering: Option<(Arc<Steering>, usize)>,
    /// How far both are there, when they lie in a file.
    growth: Option<Growth>,
    /// Slots from here on were never used.
    fresh: Slot,
    /// The first of those that are free again; they are chained through their links.
    free: Slot,
    lists: Lists,
    config: SessionConfig,
    /// What all tables have together.
    budget: Arc<Budget>,
    /// The calls to end entries that were followed.
    followed: u32,
    /// By port: what kind it is.
    kinds: Vec<PortKind>,
    /// Ports that are no more and whose entries are being ended.
    leaving: Vec<PortId>,
    /// Per class; the rest of the sixteen places, which no class has, makes every number of four bits an index.
    timeouts: [u64; 16],
    /// Per class: time shifted right by this counts the periods in which an entry is moved once.
    periods: [u32; 16],
    /// The same for hits that are to be looked at: where an entry is to be moved, or to be sampled.
    looks: [u32; 16],
    pub(crate) counts: SessionCounters,
    /// None while nobody listens.
    endings: Option<Box<endings::Endings>>,
}

impl SessionTable {
    /// An empty table that takes what it uses from a budget. Reserves memory for all of that and touches none of it.
    ///
    /// # Errors
    /// When there is not so much address space.
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
            leaving: Vec::new(),
            timeouts,
            periods,
            looks,
            counts: SessionCounters::default(),
            endings: None,
        })
    }

    /// What it takes room from.
    pub(crate) const fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Tells other workers of this one's sessions to Services' addresses. To be called while it has none.
    pub(crate) fn tell(&mut self, steering: Arc<Steering>, worker: usize) {
        self.steering = Some((steering, worker));
    }

    /// Another worker that has the session which a packet with this key belongs to. To be asked when this one has none.
    pub(crate) fn elsewhere(&self, key: &Key) -> Option<usize> {
        let (steering, own) = self.steering.as_ref()?;
        let worker = steering.find(key)?;
        if worker == *own {
            // What a fault has left behind: two workers would give each other the packet for ever.
            steering.remove(key, *own);
            return None;
        }
        Some(worker)
    }

    /// Learns the ports of a snapshot. No session is about a port that was not made known.
    pub(crate) fn know_ports(&mut self, kinds: impl Iterator<Item = PortKind>) {
        self.kinds.clear();
        self.kinds.extend(kinds);
        self.lists.know_ports(self.kinds.len());
        self.budget.know_ports(self.kinds.len());
    }

    /// What kind of port it is. One that is no more is like a pod's, which has the smallest share.
    fn kind(&self, port: PortId) -> PortKind {
        self.kinds.get(port.index()).copied().unwrap_or(PortKind::Pod)
    }

    /// How many sessions there are, expired ones included that were not swept yet.
    pub(crate) const fn len(&self) -> usize {
        self.index.len() - self.aliases - self.lists.len(Class::Refused)
    }

    /// How many entries are translated, refusals of connections to Services included.
    pub(crate) const fn translated(&self) -> usize {
        self.aliases
    }

    /// Bytes of memory: of the entries those that were ever used, of the rewrites beside them those that are in use, of the index
    /// all.
    pub(crate) fn bytes(&self) -> usize {
        let entries = self.fresh as usize * (size_of::<Entry>() + size_of::<Links>());
        entries + self.records * size_of::<Rewrite>() + self.index.bytes()
    }

    /// Ends all sessions. Costs what was in use, not the capacity; counters stay.
    pub(crate) fn clear(&mut self) {
        for class in Class::ALL {
            while self.lists.first(class) != NONE {
                self.remove(self.lists.first(class));
            }
        }
        (self.fresh, self.free) = (0, NONE);
        self.lists.clear();
        self.leaving.clear();
    }

    #[inline]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash(key)
    }

    /// A look at the index, for reading ahead.
    #[inline]
    pub(crate) fn prefetch(&self) -> Prefetch<'_> {
        self.index.prefetch()
    }

    /// All entries, for reading ahead and for [`SessionTable::hit`].
    #[inline]
    pub(crate) fn entries(&self) -> &[Entry] {
        self.entries.records()
    }

    /// The session or refusal with this key. One whose time is up ends here, so that it makes no difference when it is swept.
    pub(crate) fn find(&mut self, hash: u64, key: &Key, now: u64) -> Option<Slot> {
        let slot = self.lookup(hash, key)?;
        if self.is_expired(slot, now) {
            self.end(slot, now);
            return None;
        }
        Some(slot)
    }

    fn lookup(&self, hash: u64, key: &Key) -> Option<Slot> {
        let entries = self.entries();
        self.index.find(hash, |slot| entries[slot as usize].has_key(key) || self.has_alias(slot, key))
    }

    /// The session with this key, if its packets need not be looked at, and the shortest time that it may live without
    /// packets, whatever becomes of it. Ends nothing.
    pub(crate) fn established(&self, hash: u64, key: &Key) -> Option<(Slot, u64)> {
        let slot = self.lookup(hash, key)?;
        let class = self.entry(slot).class();
        let timeout = |class: Class| self.timeouts[class as usize];
        match class {
            Class::Established if self.config.tcp_window == TcpWindow::Strict => None,
            // One side may finish, and the other go on to send.
            Class::Established => Some((slot, timeout(class).min(timeout(Class::HalfClosed)))),
            Class::Unreplied | Class::Stream | Class::Idle => Some((slot, timeout(class))),
            Class::Refused | Class::New | Class::Closed | Class::Echo | Class::Doubtful | Class::HalfClosed => None,
        }
    }

    /// The session with this key, if it is a TCP connection that is not established, and how long that may last without packets.
    pub(crate) fn begun(&self, hash: u64, key: &Key) -> Option<(Slot, u64)> {
        let slot = self.lookup(hash, key)?;
        (self.entry(slot).class() == Class::New).then_some((slot, self.timeouts[Class::New as usize]))
    }

    /// The entry in a slot that [`SessionTable::find`] or [`SessionTable::create`] gave.
    pub(crate) fn entry(&self, slot: Slot) -> &Entry {
        &self.entries()[slot as usize]
    }

    fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.entries.records_mut()[slot as usize]
    }

    /// Whether the entry in a slot has this key.
    pub(crate) fn has_key(&self, slot: Slot, key: &Key) -> bool {
        self.entries().get(slot as usize).is_some_and(|entry| entry.has_key(key)) || self.has_alias_in(slot, key)
    }

    fn has_alias_in(&self, slot: Slot, key: &Key) -> bool {
        (slot as usize) < self.entries().len() && self.has_alias(slot, key)
    }

    /// What allowed or refused it.
    pub(crate) fn decision(&self, slot: Slot) -> Decision {
        self.links.records()[slot as usize].decision(self.entry(slot))
    }

    /// Whether the tables of all policies deny it: see [`crate::Audited`].
    pub(crate) fn is_audited(&self, slot: Slot) -> bool {
        self.links.records()[slot as usize].is_audited()
    }

    /// Marks it so, or not.
    pub(crate) fn set_audited(&mut self, slot: Slot, is_audited: bool) {
        let links = &mut self.links.records_mut()[slot as usize];
        if links.is_audited() != is_audited {
            links.set_audited(is_audited);
        }
    }

    /// Puts an entry at the end of the lists of its new class.
    fn move_to(&mut self, slot: Slot, old: Class, new: Class, now: Moment) {
        let ports = self.entry(slot).ports(Direction::Forward);
        self.lists.unlink(self.links.records_mut(), slot, old, ports);
        self.lists.link(self.links.records_mut(), slot, new, ports, now.number);
        self.budget.turn(old, new);
    }

    /// Whether there is an open session that the other side has begun.
    pub(crate) fn is_open_against(&self, new: &NewSession, now: u64) -> bool {
        self.lookup(new.hash, &new.key).is_some_and(|slot| {
            let entry = self.entry(slot);
            let is_open = entry.refused().is_none() && !entry.is_closed() && !self.is_expired(slot, now);
            is_open && entry.direction(new.from_low) != new.direction
        })
    }

    /// Whether packets that change a session must have right checksums.
    pub(crate) const fn verifies(&self) -> bool {
        self.config.verify_checksums
    }
}

/// Time shifted right by this counts the periods in which an entry with this timeout is moved once.
fn period(timeout: u64) -> u32 {
    let log = |time: u64| time.checked_ilog2().unwrap_or(0);
    log(timeout / MOVES_PER_TIMEOUT).max(LONGEST_SHORT_PERIOD.min(log(timeout / 2)))
}

#[cfg(test)]
mod tests;
