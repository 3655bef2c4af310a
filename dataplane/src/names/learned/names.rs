//! Interned names: their ids and texts, the addresses of each, and the choice of a name to evict.
//!
//! Names come and go under the world's exclusive lock. All else changes under the shared one, with atomics and two kinds of locks: those of
//! the addresses of each name, then that of the rooms.

use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ahash::AHashMap;

use super::texts::Texts;
use super::{Holder, Limits, NameId, lock, memory};

/// Number of names to evict that are chosen at once, the least recently learned of all. A choice looks at all 65,536 names, which takes a
/// tenth of a millisecond; divided among 512 new names, that is little.
const VICTIMS: usize = 512;

/// Maximum number of stored [`Room`]s, one for each holder and crowded name. Beyond it, all are dropped and counted again: 2 MB.
const ROOMS: usize = 1 << 16;

/// Number of bits of a slot in an id.
const SLOT_BITS: u32 = 16;

impl NameId {
    /// Mask of the bits above the slot: how often the slot was reused, modulo 32,768. A slot is reused once all addresses of its name have
    /// ended. With a grace of 30 seconds, an id therefore recurs after 11 days of an attack at the earliest.
    const USES: u32 = (1 << 31 >> SLOT_BITS) - 1;

    /// Returns the id of a name in an unused slot.
    fn first(slot: usize) -> Option<Self> {
        u16::try_from(slot).ok().map(|slot| Self(u32::from(slot)))
    }

    /// Returns the id of the next name in this slot.
    const fn next(self) -> Self {
        let uses = ((self.0 >> SLOT_BITS) + 1) & Self::USES;
        Self(uses << SLOT_BITS | self.0 & 0xffff)
    }

    /// Returns the slot of the name, below [`NAMES`](super::NAMES).
    pub(super) const fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// What the choice of a name to evict depends on. Changes under a shared lock.
#[derive(Debug, Default)]
struct Mark {
    /// Time of the last answer in nanoseconds since 1970.
    learned: AtomicU64,
    /// The second from which on no address of the name is valid. May be later than true: an answer counts even if its address is refused.
    latest: AtomicU32,
    /// Number of the name's addresses, expired or not.
    addresses: AtomicU32,
}

/// The current name of a slot.
#[derive(Debug)]
struct Slot {
    id: NameId,
    addresses: Mutex<Addresses>,
}

/// The addresses of a name.
#[derive(Debug, Default)]
struct Addresses {
    /// The addresses, expired or not, each with its number of chunks of holders.
    chunks: AHashMap<IpAddr, u16>,
    /// The current or the latest crowd.
    crowd: Crowd,
}

/// A period in which a name has at least as many addresses as one holder may have. Only then do holders claim room, so
/// what is counted in one crowd does not apply to the next. Counts a name's crowds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Crowd(u32);

/// How many further addresses a holder may learn under a crowded name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) crowd: Crowd,
    pub(super) left: usize,
    /// The second before which none of the holder's addresses ends. Counting again before cannot find room.
    pub(super) until: u32,
}

/// The answer to a request for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    Granted,
    Refused,
    /// Unknown until the holder's addresses are counted.
    Uncounted,
}

/// All known names.
#[derive(Debug)]
pub(super) struct Names {
    limits: Limits,
    ids: AHashMap<Arc<str>, NameId>,
    /// One for each slot. Apart from the slots, because each choice of victims reads all of them.
    marks: Vec<Mark>,
    slots: Vec<Slot>,
    texts: Texts,
    /// Slots to evict, with their [`Mark::learned`] when they were chosen. The next one is last.
    victims: Vec<(u64, usize)>,
    /// No name is evictable before this second.
    barren_until: AtomicU32,
    rooms: Mutex<AHashMap<(NameId, Holder), Room>>,
    evicted: u64,
    /// Heap use of the texts.
    text_bytes: usize,
}

impl Names {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ids: AHashMap::new(),
            marks: Vec::new(),
            slots: Vec::new(),
            texts: Texts::default(),
            victims: Vec::new(),
            barren_until: AtomicU32::new(0),
            rooms: Mutex::default(),
            evicted: 0,
            text_bytes: 0,
        }
    }

    /// Returns the id of a name. `None` if it is unknown.
    pub(super) fn id(&self, text: &str) -> Option<NameId> {
        self.ids.get(text).copied()
    }

    /// Returns whether no further name can be stored at `now`, in seconds.
    pub(super) fn is_full(&self, now: u32) -> bool {
        let is_barren = self.victims.is_empty() && now < self.barren_until.load(Ordering::Relaxed);
        self.slots.len() >= self.limits.names && is_barren
    }

    /// Returns the id of a name, which is stored if it is unknown. `None` if the limit is reached and no name is evictable. The new name is
    /// evictable until it is [held](Self::hold). `now` is in seconds.
    pub(super) fn intern(&mut self, text: &str, now: u32) -> Option<NameId> {
        if let Some(id) = self.id(text) {
            return Some(id);
        }
        let at = if self.slots.len() < self.limits.names {
            let id = NameId::first(self.slots.len())?;
            self.slots.push(Slot { id, addresses: Mutex::default() });
            self.marks.push(Mark::default());
            self.slots.len() - 1
        } else {
            let at = self.victim(now)?;
            self.evict(at);
            at
        };
        let (id, text) = (self.slots[at].id, Arc::from(text));
        self.text_bytes += text_bytes(&text);
        self.texts.set(id, Arc::clone(&text));
        self.ids.insert(text, id);
        Some(id)
    }

    /// Notes an answer for the name at `time`, in nanoseconds, whose address is valid until the second `end`. The caller has locked the
    /// address's shard, and the name holds the address: no other thread can release the name's last address and reset its end.
    pub(super) fn renew(&self, id: NameId, time: u64, end: u32) {
        let mark = &self.marks[id.slot()];
        mark.learned.store(time, Ordering::Relaxed);
        if mark.latest.load(Ordering::Relaxed) < end {
            mark.latest.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// Returns the name's current crowd. `None` if no holder can have reached the limit, so none needs to claim room.
    pub(super) fn crowd(&self, id: NameId) -> Option<Crowd> {
        let may_be_crowded = self.marks[id.slot()].addresses.load(Ordering::Relaxed) as usize >= self.limits.addresses;
        may_be_crowded.then(|| self.crowd_of(&lock(&self.slots[id.slot()].addresses))).flatten()
    }

    /// Notes another chunk of holders of an address. Returns the name's crowd before, as [`Names::crowd`] does. The caller has locked the
    /// address's shard and calls [`Names::renew`] before it unlocks the shard.
    pub(super) fn hold(&self, id: NameId, address: IpAddr) -> Option<Crowd> {
        let mut addresses = lock(&self.slots[id.slot()].addresses);
        let before = self.crowd_of(&addresses);
        let chunks = addresses.chunks.entry(address).or_default();
        *chunks = chunks.saturating_add(1);
        if before.is_none() && self.crowd_of(&addresses).is_some() {
            addresses.crowd.0 = addresses.crowd.0.wrapping_add(1);
        }
        self.note_addresses(id, &addresses);
        before
    }

    /// Notes that a chunk no longer holds an address. Has no effect if the name has been evicted. The caller has locked the address's shard.
    pub(super) fn release(&self, id: NameId, address: IpAddr) {
        let Some(slot) = self.slots.get(id.slot()).filter(|slot| slot.id == id) else { return };
        let mut addresses = lock(&slot.addresses);
        let Some(chunks) = addresses.chunks.get_mut(&address) else { return };
        *chunks = chunks.saturating_sub(1);
        if *chunks > 0 {
            return;
        }
        addresses.chunks.remove(&address);
        memory::trim_map(&mut addresses.chunks);
        self.note_addresses(id, &addresses);
        if addresses.chunks.is_empty() {
            self.marks[id.slot()].latest.store(0, Ordering::Relaxed);
            self.barren_until.store(0, Ordering::Relaxed);
        }
    }

    /// Claims room for another address of a holder in a crowd, which is valid until `end`. Times are in seconds.
    pub(super) fn claim(&self, id: NameId, holder: Holder, crowd: Crowd, now: u32, end: u32) -> Claim {
        match lock(&self.rooms).get_mut(&(id, holder)) {
            Some(room) if room.crowd != crowd => Claim::Uncounted,
            Some(room) if room.left > 0 => {
                (room.left, room.until) = (room.left - 1, room.until.min(end));
                Claim::Granted
            }
            Some(room) if now < room.until => Claim::Refused,
            _ => Claim::Uncounted,
        }
    }

    /// Returns the name's crowd and all addresses, of which the holder's must be counted. `None` if a claim need not wait for a count.
    pub(super) fn uncounted(&self, id: NameId, holder: Holder, now: u32) -> Option<(Crowd, Vec<IpAddr>)> {
        let slot = self.slots.get(id.slot()).filter(|slot| slot.id == id)?;
        let addresses = lock(&slot.addresses);
        let crowd = self.crowd_of(&addresses)?;
        let is_counted = |room: &Room| room.crowd == crowd && (room.left > 0 || now < room.until);
        if lock(&self.rooms).get(&(id, holder)).is_some_and(is_counted) {
            return None;
        }
        Some((crowd, addresses.chunks.keys().copied().collect()))
    }

    /// Stores the result of counting a holder's addresses.
    pub(super) fn set_room(&self, id: NameId, holder: Holder, room: Room) {
        let mut rooms = lock(&self.rooms);
        if rooms.len() >= ROOMS {
            rooms.clear();
        }
        rooms.insert((id, holder), room);
    }

    /// Releases the counts of a holder that leaves.
    pub(super) fn leave(&self, holder: Holder) {
        lock(&self.rooms).retain(|key, _| key.1 != holder);
    }

    /// Releases the counts of crowded names. They are made again on demand.
    pub(super) fn forget_rooms(&self) {
        *lock(&self.rooms) = AHashMap::new();
    }

    /// Returns all texts.
    pub(super) const fn texts(&self) -> &Texts {
        &self.texts
    }

    /// Returns the number of names, of different (name, address), and of evicted names.
    pub(super) fn counts(&self) -> (usize, usize, u64) {
        let addresses = self.marks.iter().map(|mark| mark.addresses.load(Ordering::Relaxed) as usize).sum();
        (self.ids.len(), addresses, self.evicted)
    }

    /// Estimated heap use in bytes.
    pub(super) fn bytes(&self) -> usize {
        let addresses: usize = self.slots.iter().map(|slot| memory::map(&lock(&slot.addresses).chunks)).sum();
        let lists = memory::vec(&self.marks) + memory::vec(&self.slots) + memory::vec(&self.victims);
        let maps = memory::map(&self.ids) + memory::map(&lock(&self.rooms));
        self.text_bytes + self.texts.bytes() + lists + maps + addresses
    }

    fn crowd_of(&self, addresses: &Addresses) -> Option<Crowd> {
        (addresses.chunks.len() >= self.limits.addresses).then_some(addresses.crowd)
    }

    fn note_addresses(&self, id: NameId, addresses: &Addresses) {
        let count = u32::try_from(addresses.chunks.len()).unwrap_or(u32::MAX);
        self.marks[id.slot()].addresses.store(count, Ordering::Relaxed);
    }

    /// Forgets the name of a slot, which gets its next id. The text stays until the next one replaces it.
    fn evict(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        if let Some(text) = self.texts.get(slot.id) {
            self.text_bytes -= text_bytes(text);
            self.ids.remove(text);
        }
        *slot = Slot { id: slot.id.next(), addresses: Mutex::default() };
        self.marks[at] = Mark::default();
        self.evicted += 1;
    }

    /// Returns the slot of a name without valid addresses, the least recently learned first. `None` if no name is evictable.
    fn victim(&mut self, now: u32) -> Option<usize> {
        if let Some(at) = self.next_victim(now) {
            return Some(at);
        }
        if now < *self.barren_until.get_mut() {
            return None;
        }
        let mut oldest = BinaryHeap::with_capacity(VICTIMS);
        let mut earliest = u32::MAX;
        for (at, mark) in self.marks.iter_mut().enumerate() {
            let (learned, latest) = (*mark.learned.get_mut(), *mark.latest.get_mut());
            if latest > now {
                earliest = earliest.min(latest);
            } else if oldest.len() < VICTIMS {
                oldest.push((learned, at));
            } else if let Some(mut newest) = oldest.peek_mut().filter(|newest| **newest > (learned, at)) {
                *newest = (learned, at);
            }
        }
        if oldest.is_empty() {
            *self.barren_until.get_mut() = earliest;
        }
        self.victims = oldest.into_sorted_vec();
        self.victims.reverse();
        self.next_victim(now)
    }

    /// Removes victims from the list until one has not been learned again and is still evictable.
    fn next_victim(&mut self, now: u32) -> Option<usize> {
        while let Some((learned, at)) = self.victims.pop() {
            let mark = &mut self.marks[at];
            if *mark.learned.get_mut() == learned && *mark.latest.get_mut() <= now {
                return Some(at);
            }
        }
        None
    }
}

fn text_bytes(text: &Arc<str>) -> usize {
    memory::allocation(text.len() + 16)
}
