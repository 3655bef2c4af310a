//! The table: two columns of entries, a keyed index into them, and lists by last use.

mod room;

use ahash::RandomState;
use bulkhead_classifier::protocol;

use super::entry::{Class, Direction, Entry, Links, Moment, NONE, NewSession, Slot};
use super::flags::SeenFlags;
use super::index::{Glance, Index};
use super::key::KeyHasher;
use super::lists::Lists;
use super::memory::{Column, SessionMemoryError};
use super::{Key, SessionConfig};
use crate::packet::TcpFlags;
use crate::{Decision, DropReason, PortId, SessionCounters};

use room::Limits;

/// An entry is moved in its lists at most this many times per timeout, so that most hits write to one cache line and not
/// to its neighbours' links as well. The price: an expired entry is swept up to a sixteenth of its timeout late.
const MOVES_PER_TIMEOUT: u64 = 16;

/// The most entries of one table, 6 GiB of memory. Slots would allow more; nothing needs it.
const MAX_CAPACITY: usize = 1 << 26;

/// All sessions of one worker.
#[derive(Debug)]
pub(crate) struct SessionTable {
    /// Keyed at random per table: nobody outside can make keys that collide.
    hasher: KeyHasher,
    index: Index,
    /// What packets read, and what they do not.
    entries: Column<Entry>,
    links: Column<Links>,
    /// Slots from here on were never used.
    fresh: Slot,
    /// The first of those that are free again; they are chained through their links.
    free: Slot,
    lists: Lists,
    config: SessionConfig,
    limits: Limits,
    /// Per class; the rest of the eight places, which no class has, makes every number of three bits an index.
    timeouts: [u64; 8],
    /// Per class: time shifted right by this counts the periods in which an entry is moved once.
    periods: [u32; 8],
    pub(crate) counts: SessionCounters,
}

impl SessionTable {
    /// An empty table. Reserves memory for its capacity and touches none of it.
    ///
    /// # Errors
    /// When there is not so much address space.
    pub(crate) fn new(config: SessionConfig, hasher: &RandomState) -> Result<Self, SessionMemoryError> {
        let capacity = config.capacity.min(MAX_CAPACITY);
        let (mut timeouts, mut periods) = ([0; 8], [0; 8]);
        for class in Class::ALL {
            let timeout = config.timeouts.of(class);
            timeouts[class as usize] = timeout;
            periods[class as usize] = (timeout / MOVES_PER_TIMEOUT).checked_ilog2().unwrap_or(0);
        }
        Ok(Self {
            hasher: KeyHasher::new(hasher),
            index: Index::new(capacity)?,
            entries: Column::new(capacity, capacity)?,
            links: Column::new(capacity, capacity)?,
            fresh: 0,
            free: NONE,
            lists: Lists::new(),
            config: SessionConfig { capacity, ..config },
            limits: Limits::of(&config, capacity),
            timeouts,
            periods,
            counts: SessionCounters::default(),
        })
    }

    /// Makes room for the ports of a snapshot. No session is about a port that was not made known.
    pub(crate) fn know_ports(&mut self, ports: usize) {
        self.lists.know_ports(ports);
    }

    /// How many sessions there are, expired ones included that were not swept yet.
    pub(crate) const fn len(&self) -> usize {
        self.index.len() - self.lists.len(Class::Refused)
    }

    /// Bytes of memory: of the entries those that were ever used, of the index all.
    pub(crate) fn bytes(&self) -> usize {
        self.fresh as usize * (size_of::<Entry>() + size_of::<Links>()) + self.index.bytes()
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
    }

    #[inline]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash(key)
    }

    /// A look at the index, for reading ahead.
    #[inline]
    pub(crate) fn glance(&self) -> Glance<'_> {
        self.index.glance()
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
        self.index.find(hash, |slot| entries[slot as usize].key == *key)
    }

    /// The session with this key, if it is established (UDP always is), and the shortest time that it may live without packets,
    /// whatever becomes of it. Ends nothing.
    pub(crate) fn established(&self, hash: u64, key: &Key) -> Option<(&Entry, u64)> {
        let entry = self.entry(self.lookup(hash, key)?);
        let class = entry.class();
        let timeout = |class: Class| self.timeouts[class as usize];
        match class {
            Class::Established => Some((entry, timeout(class).min(timeout(Class::Transient)))),
            Class::Idle => Some((entry, timeout(class))),
            Class::Refused | Class::Transient | Class::Echo => None,
        }
    }

    /// The entry in a slot that [`SessionTable::find`] or [`SessionTable::create`] gave.
    pub(crate) fn entry(&self, slot: Slot) -> &Entry {
        &self.entries()[slot as usize]
    }

    fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.entries.records_mut()[slot as usize]
    }

    /// What allowed or refused it.
    pub(crate) fn decision(&self, slot: Slot) -> Decision {
        self.links.records()[slot as usize].decision(self.entry(slot))
    }

    /// The common case of a hit in one step: the packet's session is in the guessed slot, of this epoch, alive, and open;
    /// the packet comes in on the right port, its addresses were checked before, and its flags tell nothing new.
    /// Then the packet is counted as one of the session. Anything else is left to the long way.
    #[inline]
    pub(crate) fn hit(&mut self, guess: Slot, packet: &PlainHit<'_>, now: Moment) -> Option<Hit> {
        let entry = self.entries.records_mut().get_mut(guess as usize)?;
        let direction = entry.direction(packet.from_low);
        let (comes_in, leaves) = entry.ports(direction);
        let class = entry.class_index();
        let good = entry.key == *packet.key
            && entry.is_session_of(packet.epoch)
            && entry.is_checked(direction)
            && comes_in == packet.in_port
            && now.time < entry.seen_at.saturating_add(self.timeouts[class])
            && !packet.flags.opens()
            && entry.seen.knows(direction, packet.flags);
        if !good {
            return None;
        }
        let hit = Hit { leaves, origin: entry.origin };
        let must_move = (entry.seen_at ^ now.time) >> self.periods[class] != 0;
        entry.seen_at = now.time;
        if must_move {
            self.requeue(guess, now);
        }
        Some(hit)
    }

    #[cold]
    #[inline(never)]
    fn requeue(&mut self, slot: Slot, now: Moment) {
        let entry = *self.entry(slot);
        self.lists.unlink(self.links.records_mut(), slot, entry.class(), entry.in_port());
        self.lists.link(self.links.records_mut(), slot, entry.class(), entry.in_port(), now.number);
    }

    /// A packet of the session has passed, or one of the refused direction has not.
    pub(crate) fn touch(&mut self, slot: Slot, direction: Direction, flags: Option<TcpFlags>, now: Moment) {
        let entry = &mut self.entries.records_mut()[slot as usize];
        let (old, last) = (entry.class(), entry.seen_at);
        entry.seen_at = now.time;
        let mut class = old;
        if let Some(flags) = flags {
            entry.seen.see(direction, flags);
            class = connection_class(entry.key.protocol(), entry.seen);
            entry.set_class(class);
        }
        if class != old || (last ^ now.time) >> self.periods[class as usize] != 0 {
            let in_port = entry.in_port();
            self.lists.unlink(self.links.records_mut(), slot, old, in_port);
            self.lists.link(self.links.records_mut(), slot, class, in_port, now.number);
        }
    }

    /// Whether a packet with these flags makes one more connection count as not established.
    pub(crate) fn would_close(&self, slot: Slot, direction: Direction, flags: Option<TcpFlags>) -> bool {
        let entry = self.entry(slot);
        let Some(flags) = flags.filter(|_| entry.class() != Class::Transient) else { return false };
        let mut seen = entry.seen;
        seen.see(direction, flags);
        connection_class(entry.key.protocol(), seen) == Class::Transient
    }

    /// A packet of this direction, on the port where such packets come in, has passed the checks of its addresses.
    pub(crate) fn set_checked(&mut self, slot: Slot, direction: Direction) {
        self.entry_mut(slot).set_checked(direction);
    }

    /// Newer tables allow the session too, perhaps through other ports.
    pub(crate) fn renew(&mut self, slot: Slot, epoch: u32, decision: &Decision, ports: (PortId, PortId), now: Moment) {
        let (class, old_port) = (self.entry(slot).class(), self.entry(slot).in_port());
        self.set_decision(slot, epoch, decision);
        let entry = self.entry_mut(slot);
        entry.set_ports(ports);
        entry.forget_checked();
        if ports.0 != old_port {
            self.lists.unlink(self.links.records_mut(), slot, class, old_port);
            self.lists.link(self.links.records_mut(), slot, class, ports.0, now.number);
        }
    }

    /// Newer tables do not allow the session: it becomes a refusal.
    pub(crate) fn revoke(&mut self, slot: Slot, epoch: u32, decision: &Decision, reason: DropReason, now: Moment) {
        let (old, in_port) = (self.entry(slot).class(), self.entry(slot).in_port());
        self.set_decision(slot, epoch, decision);
        let entry = self.entry_mut(slot);
        entry.set_refused(Some(reason));
        entry.set_class(Class::Refused);
        entry.seen_at = now.time;
        self.lists.unlink(self.links.records_mut(), slot, old, in_port);
        self.lists.link(self.links.records_mut(), slot, Class::Refused, in_port, now.number);
        self.counts.revoked += 1;
    }

    fn set_decision(&mut self, slot: Slot, epoch: u32, decision: &Decision) {
        self.links.records_mut()[slot as usize].set_decision(decision);
        self.entry_mut(slot).set_decided(epoch, decision.origin);
    }

    /// Remembers that a conversation was refused. It displaces expired entries and older refusals, and nothing that
    /// lives: a flood of refused packets must not end sessions, and a packet that is not remembered is dropped too.
    /// For the same reason an open session between the same endpoints stays.
    pub(crate) fn refuse(&mut self, new: &NewSession, reason: DropReason, now: Moment) {
        if !self.config.remember_refused {
            return;
        }
        if let Some(slot) = self.lookup(new.hash, &new.key) {
            let old = self.entry(slot);
            let is_session = old.refused().is_none();
            if is_session && !old.is_closed() {
                return;
            }
            self.counts.replaced += u64::from(is_session);
            self.remove(slot);
        }
        if self.make_room_for_refusal(new, now.time) {
            self.insert(new, Class::Refused, Some(reason), now);
        }
    }

    /// Creates a session, in place of one with the same key.
    ///
    /// # Errors
    /// Why there is no room: the port has used up its share, or the table is full, and nothing may be recycled.
    pub(crate) fn create(&mut self, new: &NewSession, now: Moment) -> Result<Slot, DropReason> {
        let (old, before) = (self.lookup(new.hash, &new.key), self.index.len());
        let made = self.make_room(new, old.is_some(), now.time).and_then(|()| {
            // Making room may have ended it.
            let old = if self.index.len() == before { old } else { self.lookup(new.hash, &new.key) };
            if let Some(old) = old {
                self.counts.replaced += u64::from(self.entry(old).refused().is_none());
                self.remove(old);
            }
            self.insert(new, class_of(&new.key), None, now).ok_or(DropReason::SessionTableFull)
        });
        self.counts.created += u64::from(made.is_ok());
        self.counts.refused += u64::from(made.is_err());
        made
    }

    fn insert(&mut self, new: &NewSession, class: Class, refused: Option<DropReason>, now: Moment) -> Option<Slot> {
        let slot = if self.free == NONE { self.fresh } else { self.free };
        if !self.index.insert(new.hash, slot) {
            return None;
        }
        let links = self.links.records_mut();
        if self.free == NONE {
            self.fresh += 1;
        } else {
            self.free = links[slot as usize].of_class.next;
        }
        links[slot as usize] = Links::new(&new.decision);
        self.lists.link(links, slot, class, new.in_port, now.number);
        *self.entry_mut(slot) = Entry::new(new, class, refused, now.time);
        Some(slot)
    }

    fn remove(&mut self, slot: Slot) {
        let entry = *self.entry(slot);
        self.index.remove(self.hasher.hash(&entry.key), slot);
        let links = self.links.records_mut();
        self.lists.unlink(links, slot, entry.class(), entry.in_port());
        links[slot as usize].of_class.next = self.free;
        self.free = slot;
        *self.entry_mut(slot) = Entry::FREE;
    }
}

/// A packet that is probably one of a session's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainHit<'a> {
    pub(crate) key: &'a Key,
    pub(crate) from_low: bool,
    pub(crate) flags: TcpFlags,
    pub(crate) in_port: PortId,
    pub(crate) epoch: u32,
}

/// What a session says about one of its packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    pub(crate) leaves: PortId,
    /// As in [`Entry::origin`].
    pub(crate) origin: u32,
}

/// The class that a session begins with.
fn class_of(key: &Key) -> Class {
    match key.protocol() {
        _ if key.is_echo() => Class::Echo,
        // One packet establishes nothing.
        protocol::TCP | protocol::SCTP => Class::Transient,
        _ => Class::Idle,
    }
}

/// The class of a TCP connection or an SCTP association. SCTP's peers send heartbeats every 30 seconds (RFC 9260 §16), so
/// an established association is in use or gone.
const fn connection_class(protocol: u8, seen: SeenFlags) -> Class {
    match seen.is_established() && !seen.is_closed() {
        true if protocol == protocol::TCP => Class::Established,
        true => Class::Idle,
        false => Class::Transient,
    }
}

#[cfg(test)]
mod tests;
