//! The table: a slab of entries, a keyed index into it, and a list per class.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use ahash::RandomState;
use bulkhead_classifier::protocol;

use super::entry::{Class, Direction, Entry, Moment, NewSession, Slot};
use super::tcp::TcpState;
use super::{Key, SessionConfig};
use crate::packet::{Ports, TcpFlags};
use crate::{Decision, DropReason, PortId, SessionCounters};

/// No slot: the end of a list.
const NONE: Slot = Slot::MAX;

/// An entry is moved in its list at most this many times per timeout, so that most hits write to one entry and not to
/// its neighbours' links as well. The price: an expired entry is swept up to a sixteenth of its timeout late.
const MOVES_PER_TIMEOUT: u64 = 16;

/// What is ended early for a new session: refusals first, which cost nobody a connection; then half-open connections,
/// so that a flood of SYNs recycles its own and leaves established ones alone; then pings, which lose one reply.
const RECYCLED: [Class; 3] = [Class::Refused, Class::Transient, Class::Echo];

/// A list through the slab's links, least recently used entry first.
#[derive(Clone, Copy, Debug)]
struct List {
    first: Slot,
    last: Slot,
}

impl List {
    const EMPTY: Self = Self { first: NONE, last: NONE };
}

/// The index's keys are hashes already.
#[derive(Debug, Default)]
struct PassThrough(u64);

impl Hasher for PassThrough {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        debug_assert!(false, "{} bytes where a hash was expected", bytes.len());
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// All sessions of one worker.
#[derive(Debug)]
pub(crate) struct SessionTable {
    /// Keyed at random per table: nobody outside can make keys that collide.
    hasher: RandomState,
    /// From a key's 64-bit hash to its entry. The entry holds the key, so a bucket is 16 bytes instead of 56. Two keys
    /// with one hash (about once in 10^8 full tables) take each other's place; both stay correct.
    index: HashMap<u64, Slot, BuildHasherDefault<PassThrough>>,
    slab: Vec<Entry>,
    /// Slots that are free again.
    free: Vec<Slot>,
    /// How many entries are refusals.
    refusals: usize,
    lists: [List; Class::COUNT],
    config: SessionConfig,
    pub(crate) counts: SessionCounters,
}

impl SessionTable {
    pub(crate) fn new(config: SessionConfig, hasher: RandomState) -> Self {
        // A slot is 32 bits with the last value for "none".
        let capacity = config.capacity.min(NONE as usize);
        Self {
            hasher,
            index: HashMap::default(),
            slab: Vec::new(),
            free: Vec::new(),
            refusals: 0,
            lists: [List::EMPTY; Class::COUNT],
            config: SessionConfig { capacity, ..config },
            counts: SessionCounters::default(),
        }
    }

    /// How many sessions there are, expired ones included that were not swept yet.
    pub(crate) fn len(&self) -> usize {
        self.index.len() - self.refusals
    }

    /// How many more entries fit without ending another one.
    pub(crate) fn room(&self) -> usize {
        self.config.capacity.saturating_sub(self.index.len())
    }

    /// Ends all sessions. Costs what is in use, not the capacity; counters stay.
    pub(crate) fn clear(&mut self) {
        self.index.clear();
        self.slab.clear();
        self.free.clear();
        self.refusals = 0;
        self.lists = [List::EMPTY; Class::COUNT];
    }

    pub(crate) fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key)
    }

    /// The session or refusal with this key. One whose time is up ends here, so that it makes no difference when it is swept.
    pub(crate) fn find(&mut self, hash: u64, key: &Key, now: u64) -> Option<Slot> {
        let slot = *self.index.get(&hash)?;
        let entry = self.entry(slot);
        if entry.key != *key {
            return None;
        }
        if self.is_expired(entry, now) {
            self.expire(slot);
            return None;
        }
        Some(slot)
    }

    /// The entry in a slot that [`SessionTable::find`] or [`SessionTable::create`] gave.
    pub(crate) fn entry(&self, slot: Slot) -> &Entry {
        &self.slab[slot as usize]
    }

    fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.slab[slot as usize]
    }

    /// A packet of the session has passed, or one of the refused direction has not.
    pub(crate) fn touch(&mut self, slot: Slot, direction: Direction, flags: Option<TcpFlags>, now: Moment) {
        let entry = self.entry_mut(slot);
        entry.seen_at = now.time;
        let (old, queued_at) = (entry.class, entry.queued_at);
        if let Some(flags) = flags {
            entry.tcp.see(direction, flags);
            entry.class = tcp_class(entry.tcp);
        }
        let class = entry.class;
        if class != old || now.time.saturating_sub(queued_at.time) > self.timeout(class) / MOVES_PER_TIMEOUT {
            self.unlink(slot, old);
            self.link(slot, class, now);
        }
    }

    /// Newer tables allow the session too, perhaps through other ports.
    pub(crate) fn renew(&mut self, slot: Slot, generation: u64, decision: Decision, ports: (PortId, PortId)) {
        let entry = self.entry_mut(slot);
        (entry.generation, entry.decision) = (generation, decision);
        (entry.in_port, entry.out_port) = ports;
    }

    /// Newer tables do not allow the session: it becomes a refusal.
    pub(crate) fn revoke(&mut self, slot: Slot, generation: u64, decision: Decision, reason: DropReason, now: Moment) {
        let old = self.entry(slot).class;
        self.unlink(slot, old);
        let entry = self.entry_mut(slot);
        (entry.generation, entry.decision, entry.refused) = (generation, decision, Some(reason));
        (entry.class, entry.seen_at) = (Class::Refused, now.time);
        self.link(slot, Class::Refused, now);
        self.refusals += 1;
        self.counts.revoked += 1;
    }

    /// Remembers that a conversation was refused. It displaces expired entries and older refusals, and nothing that
    /// lives: a flood of refused packets must not end sessions, and a packet that is not remembered is dropped too.
    /// For the same reason an open session between the same endpoints stays.
    pub(crate) fn refuse(&mut self, new: &NewSession, reason: DropReason, now: Moment) {
        if !self.config.remember_refused {
            return;
        }
        if let Some(&slot) = self.index.get(&new.hash) {
            let old = self.entry(slot);
            let is_over = old.key == new.key && old.is_closed();
            if old.refused.is_none() && !is_over {
                return;
            }
            self.counts.replaced += u64::from(old.refused.is_none());
            self.remove(slot);
        } else if self.room() == 0 && !self.make_room(now.time, &[Class::Refused]) {
            return;
        }
        self.insert(new, Class::Refused, Some(reason), now);
        self.refusals += 1;
    }

    /// Creates a session, in place of one with the same key. None when there is no room and nothing may be recycled.
    pub(crate) fn create(&mut self, new: &NewSession, now: Moment) -> Option<Slot> {
        if let Some(&old) = self.index.get(&new.hash) {
            self.counts.replaced += u64::from(self.entry(old).refused.is_none());
            self.remove(old);
        } else if self.room() == 0 && !self.make_room(now.time, &RECYCLED) {
            self.counts.refused += 1;
            return None;
        }
        let class = match new.ports {
            Ports::EchoRequest(_) | Ports::EchoReply(_) => Class::Echo,
            // One segment establishes nothing.
            _ if new.protocol == protocol::TCP => Class::Transient,
            _ => Class::Idle,
        };
        self.counts.created += 1;
        Some(self.insert(new, class, None, now))
    }

    fn insert(&mut self, new: &NewSession, class: Class, refused: Option<DropReason>, now: Moment) -> Slot {
        let mut tcp = TcpState::default();
        if let Some(flags) = new.flags {
            tcp.see(new.direction, flags);
        }
        let slot = self.place(Entry {
            key: new.key,
            hash: new.hash,
            seen_at: now.time,
            queued_at: now,
            generation: new.generation,
            decision: new.decision,
            refused,
            in_port: new.in_port,
            in_kind: new.in_kind,
            out_port: new.out_port,
            previous: NONE,
            next: NONE,
            tcp,
            class,
            from_low: new.from_low,
        });
        self.index.insert(new.hash, slot);
        self.link(slot, class, now);
        slot
    }

    /// Ends at most `limit` sessions whose time is up.
    pub(crate) fn sweep(&mut self, now: u64, limit: usize) {
        let mut left = limit;
        for class in Class::ALL {
            while left > 0 {
                let first = self.lists[class as usize].first;
                if first == NONE || !self.is_expired(self.entry(first), now) {
                    break;
                }
                self.expire(first);
                left -= 1;
            }
        }
    }

    /// Ends one entry whose time is up, or else the one of the first of these classes that was idle for longest.
    fn make_room(&mut self, now: u64, classes: &[Class]) -> bool {
        self.sweep(now, 1);
        if self.room() > 0 {
            return true;
        }
        let oldest = classes.iter().map(|&class| self.lists[class as usize].first).find(|&first| first != NONE);
        let Some(oldest) = oldest else { return false };
        self.counts.recycled += u64::from(self.entry(oldest).refused.is_none());
        self.remove(oldest);
        self.room() > 0
    }

    const fn timeout(&self, class: Class) -> u64 {
        let timeouts = &self.config.timeouts;
        match class {
            Class::Refused => timeouts.refused,
            Class::Transient => timeouts.tcp_transient,
            Class::Established => timeouts.tcp_established,
            Class::Idle => timeouts.idle,
            Class::Echo => timeouts.icmp_echo,
        }
    }

    const fn is_expired(&self, entry: &Entry, now: u64) -> bool {
        now >= entry.seen_at.saturating_add(self.timeout(entry.class))
    }

    fn expire(&mut self, slot: Slot) {
        self.counts.expired += u64::from(self.entry(slot).refused.is_none());
        self.remove(slot);
    }

    fn place(&mut self, entry: Entry) -> Slot {
        if let Some(slot) = self.free.pop() {
            *self.entry_mut(slot) = entry;
            return slot;
        }
        let slot = Slot::try_from(self.slab.len()).expect("the capacity is below the largest slot");
        self.slab.push(entry);
        slot
    }

    fn remove(&mut self, slot: Slot) {
        let Entry { hash, class, refused, .. } = *self.entry(slot);
        self.refusals -= usize::from(refused.is_some());
        self.index.remove(&hash);
        self.unlink(slot, class);
        self.free.push(slot);
    }

    /// Puts an entry into its list, ordered by moment. That is nearly always the end: only packets that waited for the
    /// classifier come late, behind at most a burst of others.
    fn link(&mut self, slot: Slot, class: Class, now: Moment) {
        let (mut previous, mut next) = (self.lists[class as usize].last, NONE);
        while previous != NONE && self.entry(previous).queued_at > now {
            (previous, next) = (self.entry(previous).previous, previous);
        }
        let entry = self.entry_mut(slot);
        (entry.previous, entry.next, entry.queued_at) = (previous, next, now);
        match previous {
            NONE => self.lists[class as usize].first = slot,
            previous => self.entry_mut(previous).next = slot,
        }
        match next {
            NONE => self.lists[class as usize].last = slot,
            next => self.entry_mut(next).previous = slot,
        }
    }

    fn unlink(&mut self, slot: Slot, class: Class) {
        let Entry { previous, next, .. } = *self.entry(slot);
        match previous {
            NONE => self.lists[class as usize].first = next,
            previous => self.entry_mut(previous).next = next,
        }
        match next {
            NONE => self.lists[class as usize].last = previous,
            next => self.entry_mut(next).previous = previous,
        }
    }
}

const fn tcp_class(tcp: TcpState) -> Class {
    if tcp.is_established() && !tcp.is_closed() { Class::Established } else { Class::Transient }
}

#[cfg(test)]
mod tests;
