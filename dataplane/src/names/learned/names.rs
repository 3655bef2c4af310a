//! Interned names: their ids and texts, the addresses of each, and the choice of a name to evict.
//!
//! Names are added and evicted under the world's exclusive lock. All else changes under its shared lock, with atomics and two kinds of
//! locks: one for the addresses of each name, then one for all rooms or all shares.

use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ahash::AHashMap;

use super::limits::{Full, Limits};
use super::shares::Shares;
use super::texts::Texts;
use super::{Holder, NameId, lock, memory};

/// Number of names that are chosen for eviction at once: the least recently learned ones. A choice reads the marks of all 65,536 names in a
/// tenth of a millisecond. Divided among 512 new names, that is little.
const VICTIMS: usize = 512;

/// Maximum number of stored [`Room`]s, one for each holder and crowded name: 2 MB. The next one drops all others, whose addresses are then
/// counted again.
const ROOMS: usize = 1 << 16;

/// Number of low bits of an id that are the number of the name's slot.
const SLOT_BITS: u32 = 16;

impl NameId {
    /// Mask of an id's bits above the slot, which count how often the slot was reused, modulo 32,768. A slot is reused once all addresses
    /// of its name have ended. With a grace of 30 seconds, an id therefore recurs after 11 days of an attack at the earliest.
    const USES: u32 = (1 << 31 >> SLOT_BITS) - 1;

    /// Returns the id of the first name in a slot. `None` if the slot's number has more than 16 bits.
    fn first(slot: usize) -> Option<Self> {
        u16::try_from(slot).ok().map(|slot| Self(u32::from(slot)))
    }

    /// Returns the id of the next name in the same slot.
    const fn next(self) -> Self {
        let uses = ((self.0 >> SLOT_BITS) + 1) & Self::USES;
        Self(uses << SLOT_BITS | self.0 & 0xffff)
    }

    /// Returns the number of the name's slot, below [`NAMES`](super::NAMES).
    pub(super) const fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// The state of a name on which its eviction depends. Changes under a shared lock.
#[derive(Debug, Default)]
struct Mark {
    /// Time of the last answer in nanoseconds since 1970.
    learned: AtomicU64,
    /// The second since 1970 from which on no address of the name is valid. 0 without addresses. May be too late, because refused addresses
    /// count as well.
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
    /// The number of chunks of holders that hold each address, expired or not.
    chunks: AHashMap<IpAddr, u16>,
    /// The holder that has learned the first of the addresses, whose share of names has this one. `None` without addresses.
    owner: Option<Holder>,
    /// The number of the current crowd, or of the last one.
    crowd: Crowd,
}

/// The number of a period in which a name is crowded: it has at least as many addresses as one holder may have. Holders' addresses are
/// counted only in such periods, so a [`Room`] of one period does not apply to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Crowd(u32);

/// The number of further addresses that a holder may learn under a crowded name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// The period in which the holder's addresses were counted.
    pub(super) crowd: Crowd,
    /// The number of further addresses. 0 if the limit is reached.
    pub(super) left: usize,
    /// The second since 1970 before which none of the holder's addresses ends, so that another count cannot find room.
    pub(super) until: u32,
}

/// The result of [`Names::claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claim {
    Granted,
    Refused,
    /// Not known before the holder's addresses are counted.
    Uncounted,
}

/// All known names.
#[derive(Debug)]
pub(super) struct Names {
    limits: Limits,
    ids: AHashMap<Arc<str>, NameId>,
    /// The mark of each slot. Stored apart from the slots, because each choice of victims reads all marks.
    marks: Vec<Mark>,
    slots: Vec<Slot>,
    texts: Texts,
    /// Slots to evict, with their [`Mark::learned`] when they were chosen. The next one is last.
    victims: Vec<(u64, usize)>,
    /// No name is evictable before this second since 1970. 0 if unknown.
    barren_until: AtomicU32,
    rooms: Mutex<AHashMap<(NameId, Holder), Room>>,
    pub(super) shares: Shares,
    /// Number of keys: of the calls of [`Names::hold`] without one of [`Names::release`].
    pub(super) keys: AtomicUsize,
    evicted: u64,
    /// Heap use of the texts in bytes.
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
            shares: Shares::default(),
            keys: AtomicUsize::new(0),
            evicted: 0,
            text_bytes: 0,
        }
    }

    /// Returns the id of a name. `None` if it is unknown.
    pub(super) fn id(&self, text: &str) -> Option<NameId> {
        self.ids.get(text).copied()
    }

    /// Returns the limit because of which a holder cannot learn an address under another new name at `now`, in seconds since 1970. If
    /// `None`, storing the name may still fail.
    pub(super) fn limit(&self, holder: Holder, now: u32) -> Option<Full> {
        let is_barren = self.victims.is_empty() && now < self.barren_until.load(Ordering::Relaxed);
        let has_share = || self.shares.has_room(holder, self.limits.names_per_holder);
        if self.keys.load(Ordering::Relaxed) >= self.limits.keys {
            Some(Full::Holdings)
        } else if self.slots.len() >= self.limits.names && is_barren || !has_share() {
            Some(Full::Names)
        } else {
            None
        }
    }

    /// Returns the id of a name. Stores an unknown name, which is evictable until a holder [holds](Self::hold) an address under it. `None`
    /// if the limit is reached and no name is evictable. `now` is in seconds since 1970.
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

    /// Records that a name was learned at `time`, in nanoseconds since 1970, with an address that is valid until `end`, in seconds since
    /// 1970. The name [holds](Self::hold) the address, and the caller has locked the address's shard. So no other thread can release the
    /// name's last address and reset its end.
    pub(super) fn renew(&self, id: NameId, time: u64, end: u32) {
        let mark = &self.marks[id.slot()];
        mark.learned.store(time, Ordering::Relaxed);
        if mark.latest.load(Ordering::Relaxed) < end {
            mark.latest.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// Records that a name was used at `time`, in nanoseconds since 1970. Does nothing if the name has been evicted.
    pub(super) fn touch(&self, id: NameId, time: u64) {
        if self.slots.get(id.slot()).is_some_and(|slot| slot.id == id) {
            self.marks[id.slot()].learned.fetch_max(time, Ordering::Relaxed);
        }
    }

    /// Returns the current crowd of a name. `None` if the name is not crowded, so that no holder can have reached the limit or needs room.
    pub(super) fn crowd(&self, id: NameId) -> Option<Crowd> {
        let may_be_crowded = self.marks[id.slot()].addresses.load(Ordering::Relaxed) as usize >= self.limits.addresses;
        may_be_crowded.then(|| self.crowd_of(&lock(&self.slots[id.slot()].addresses))).flatten()
    }

    /// Records that another chunk of holders, that of `holder`, holds an address under a name. Returns the crowd in which the name was
    /// before. `None` if the name was not crowded. The caller has locked the address's shard, and calls [`Names::renew`] before it unlocks
    /// the shard.
    ///
    /// # Errors
    /// The limit of the node, of the name or of the holder's share that does not allow this. Nothing is recorded then.
    pub(super) fn hold(&self, id: NameId, address: IpAddr, holder: Holder) -> Result<Option<Crowd>, Full> {
        let mut addresses = lock(&self.slots[id.slot()].addresses);
        if self.keys.load(Ordering::Relaxed) >= self.limits.keys {
            return Err(Full::Holdings);
        }
        let has_room = addresses.chunks.len() < self.limits.addresses_per_node;
        if !has_room && !addresses.chunks.contains_key(&address) {
            return Err(Full::Addresses);
        }
        if addresses.chunks.is_empty() {
            if !self.shares.add(holder, self.limits.names_per_holder) {
                return Err(Full::Names);
            }
            addresses.owner = Some(holder);
        }
        self.keys.fetch_add(1, Ordering::Relaxed);
        let before = self.crowd_of(&addresses);
        let chunks = addresses.chunks.entry(address).or_default();
        *chunks = chunks.saturating_add(1);
        if before.is_none() && self.crowd_of(&addresses).is_some() {
            addresses.crowd.0 = addresses.crowd.0.wrapping_add(1);
        }
        self.note_addresses(id, &addresses);
        Ok(before)
    }

    /// Records that a chunk of holders no longer holds an address under a name, which may have been evicted. The caller has
    /// locked the address's shard.
    pub(super) fn release(&self, id: NameId, address: IpAddr) {
        self.keys.fetch_sub(1, Ordering::Relaxed);
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
            addresses.owner.take().into_iter().for_each(|owner| self.shares.remove(owner));
            self.marks[id.slot()].latest.store(0, Ordering::Relaxed);
            self.barren_until.store(0, Ordering::Relaxed);
        }
    }

    /// Claims room for another address of a holder under a crowded name. The address is valid until `end`. Times are in seconds since 1970.
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

    /// Returns the crowd and all addresses of a name, among which the caller must count those of the holder. `None` if no count is needed:
    /// the name is not crowded or was evicted, or the holder's room is known at `now`, in seconds since 1970.
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

    /// Stores the room that a count of a holder's addresses under a name has found.
    pub(super) fn set_room(&self, id: NameId, holder: Holder, room: Room) {
        let mut rooms = lock(&self.rooms);
        if rooms.len() >= ROOMS {
            rooms.clear();
        }
        rooms.insert((id, holder), room);
    }

    /// Removes all rooms and the share of a holder that leaves.
    pub(super) fn leave(&self, holder: Holder) {
        lock(&self.rooms).retain(|key, _| key.1 != holder);
        self.shares.leave(holder);
    }

    /// Removes all rooms. Holders' addresses are counted again when they are needed.
    pub(super) fn forget_rooms(&self) {
        *lock(&self.rooms) = AHashMap::new();
    }

    /// Returns the texts of all names.
    pub(super) const fn texts(&self) -> &Texts {
        &self.texts
    }

    /// Returns three numbers: of known names, of different pairs of name and address, and of names evicted so far.
    pub(super) fn counts(&self) -> (usize, usize, u64) {
        let addresses = self.marks.iter().map(|mark| mark.addresses.load(Ordering::Relaxed) as usize).sum();
        (self.ids.len(), addresses, self.evicted)
    }

    /// Returns the estimated heap use in bytes.
    pub(super) fn bytes(&self) -> usize {
        let addresses: usize = self.slots.iter().map(|slot| memory::map(&lock(&slot.addresses).chunks)).sum();
        let lists = memory::vec(&self.marks) + memory::vec(&self.slots) + memory::vec(&self.victims);
        let maps = memory::map(&self.ids) + memory::map(&lock(&self.rooms)) + self.shares.bytes();
        self.text_bytes + self.texts.bytes() + lists + maps + addresses
    }

    fn crowd_of(&self, addresses: &Addresses) -> Option<Crowd> {
        (addresses.chunks.len() >= self.limits.addresses).then_some(addresses.crowd)
    }

    fn note_addresses(&self, id: NameId, addresses: &Addresses) {
        let count = u32::try_from(addresses.chunks.len()).unwrap_or(u32::MAX);
        self.marks[id.slot()].addresses.store(count, Ordering::Relaxed);
    }

    /// Removes the name of a slot, and gives the slot its next id. The text stays until the next name's replaces it.
    fn evict(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        if let Some(text) = self.texts.get(slot.id) {
            self.text_bytes -= text_bytes(text);
            self.ids.remove(text);
        }
        let owner = lock(&slot.addresses).owner;
        *slot = Slot { id: slot.id.next(), addresses: Mutex::default() };
        owner.into_iter().for_each(|owner| self.shares.remove(owner));
        self.marks[at] = Mark::default();
        self.evicted += 1;
    }

    /// Returns the slot of a name without valid addresses at `now`, in seconds since 1970, the least recently learned first. `None` if no
    /// name is evictable.
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

    /// Takes victims from the list up to the first that was not learned again and is still evictable. Returns its slot. `None` if no such
    /// victim is left.
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
