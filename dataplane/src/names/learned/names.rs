//! Interned names: their ids and texts, the addresses of each, and the choice of a name to evict.

use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::sync::Arc;

use ahash::AHashMap;

use super::texts::Texts;
use super::{Full, Holder, Limits, NameId, memory};

/// Names among which the least recently learned are chosen at once. Each choice looks at all 65,536 names, which takes less than a
/// millisecond: divided among 512 new names, about a microsecond each.
const VICTIMS: usize = 512;

/// Holders of crowded names of which [`Room`] is stored. More are forgotten, and their addresses counted again.
const ROOMS: usize = 1 << 16;

/// Number of bits of a slot in an id.
const SLOT_BITS: u32 = 16;

impl NameId {
    /// Bits above the slot: how often the slot has been used for another name, modulo 32,768. A slot is reused only after its name has
    /// expired. With a grace of 30 seconds, an id therefore recurs after 11 days of an attack at the earliest, and in practice never.
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

    pub(super) const fn slot(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// A known name.
#[derive(Debug)]
struct Slot {
    id: NameId,
    /// The last second in which any of the addresses may be valid. May be later than true: an answer counts even if its address is refused.
    latest: u32,
    /// Value of [`Names::learned`] at the last answer.
    learned: u64,
    /// The name's addresses, expired or not, each with its number of chunks of holders.
    addresses: AHashMap<IpAddr, u16>,
}

impl Slot {
    fn is_evictable(&self, now: u32) -> bool {
        self.latest <= now || self.addresses.is_empty()
    }
}

/// How many further addresses a holder may learn under a crowded name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
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

#[derive(Debug)]
pub(super) struct Names {
    limits: Limits,
    ids: AHashMap<Arc<str>, NameId>,
    slots: Vec<Slot>,
    texts: Texts,
    /// Number of answers so far.
    learned: u64,
    /// Slots to evict, with their [`Slot::learned`] when they were chosen. The next one is last.
    victims: Vec<(u64, usize)>,
    /// No name is evictable before this second.
    barren_until: u32,
    rooms: AHashMap<(NameId, Holder), Room>,
    /// Number of different (name, address).
    addresses: usize,
    evicted: u64,
    /// Heap use of texts and of the names' addresses.
    bytes: usize,
}

impl Names {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            ids: AHashMap::new(),
            slots: Vec::new(),
            texts: Texts::default(),
            learned: 0,
            victims: Vec::new(),
            barren_until: 0,
            rooms: AHashMap::new(),
            addresses: 0,
            evicted: 0,
            bytes: 0,
        }
    }

    /// Returns the name's id, interning the name if it is unknown, and notes an answer that is valid until `end`. Times are in seconds.
    ///
    /// # Errors
    /// [`Full::Names`] if the name is unknown, the limit is reached, and all known names have valid addresses.
    pub(super) fn admit(&mut self, text: &str, now: u32, end: u32) -> Result<NameId, Full> {
        let id = match self.ids.get(text) {
            Some(&id) => id,
            None => self.intern(text, now).ok_or(Full::Names)?,
        };
        self.learned += 1;
        let slot = &mut self.slots[id.slot()];
        (slot.learned, slot.latest) = (self.learned, slot.latest.max(end));
        Ok(id)
    }

    /// Returns whether a holder may have reached the limit of addresses under the name. Only then must it claim room.
    pub(super) fn is_crowded(&self, id: NameId) -> bool {
        self.slots[id.slot()].addresses.len() >= self.limits.addresses
    }

    /// Notes another chunk of holders of an address.
    pub(super) fn hold(&mut self, id: NameId, address: IpAddr) {
        let addresses = &mut self.slots[id.slot()].addresses;
        let before = (addresses.len(), memory::map(addresses));
        let chunks = addresses.entry(address).or_default();
        *chunks = chunks.saturating_add(1);
        self.addresses += addresses.len() - before.0;
        self.bytes += memory::map(addresses) - before.1;
    }

    /// Notes that a chunk no longer holds an address. Has no effect if the name has been evicted.
    pub(super) fn release(&mut self, id: NameId, address: IpAddr) {
        let Some(slot) = self.slots.get_mut(id.slot()).filter(|slot| slot.id == id) else { return };
        let Some(chunks) = slot.addresses.get_mut(&address) else { return };
        *chunks = chunks.saturating_sub(1);
        if *chunks > 0 {
            return;
        }
        let before = (slot.addresses.len(), memory::map(&slot.addresses));
        slot.addresses.remove(&address);
        memory::trim_map(&mut slot.addresses);
        self.addresses -= 1;
        self.bytes -= before.1 - memory::map(&slot.addresses);
        if slot.addresses.is_empty() {
            self.barren_until = 0;
        }
        // Below the limit nobody claims room, so the counts become wrong.
        if before.0 == self.limits.addresses {
            self.rooms.retain(|key, _| key.0 != id);
        }
    }

    /// Claims room for another address of a holder under a crowded name, which is valid until `end`. Times are in seconds.
    pub(super) fn claim(&mut self, id: NameId, holder: Holder, now: u32, end: u32) -> Claim {
        match self.rooms.get_mut(&(id, holder)) {
            Some(room) if room.left > 0 => {
                (room.left, room.until) = (room.left - 1, room.until.min(end));
                Claim::Granted
            }
            Some(room) if now < room.until => Claim::Refused,
            _ => Claim::Uncounted,
        }
    }

    /// Returns whether a claim would find no count.
    pub(super) fn is_uncounted(&self, id: NameId, holder: Holder, now: u32) -> bool {
        self.rooms.get(&(id, holder)).is_none_or(|room| room.left == 0 && now >= room.until)
    }

    /// Stores the result of counting a holder's addresses.
    pub(super) fn set_room(&mut self, id: NameId, holder: Holder, room: Room) {
        if self.rooms.len() >= ROOMS {
            self.rooms.clear();
        }
        self.rooms.insert((id, holder), room);
    }

    /// Releases the counts of crowded names. They are made again on demand.
    pub(super) fn forget_rooms(&mut self) {
        self.rooms = AHashMap::new();
    }

    /// Returns the name's addresses, in no order. Empty if the name has been evicted.
    pub(super) fn addresses_of(&self, id: NameId) -> Vec<IpAddr> {
        let slot = self.slots.get(id.slot()).filter(|slot| slot.id == id);
        slot.map_or_else(Vec::new, |slot| slot.addresses.keys().copied().collect())
    }

    /// Returns a snapshot of all texts.
    pub(super) fn texts(&self) -> Texts {
        self.texts.clone()
    }

    /// Returns the number of names, of different (name, address), and of evicted names.
    pub(super) fn counts(&self) -> (usize, usize, u64) {
        (self.ids.len(), self.addresses, self.evicted)
    }

    /// Estimated heap use in bytes.
    pub(super) fn bytes(&self) -> usize {
        let lists = memory::vec(&self.slots) + memory::vec(&self.victims) + memory::map(&self.rooms);
        self.bytes + lists + memory::map(&self.ids) + self.texts.bytes()
    }

    /// Stores an unknown name. `None` if the limit is reached and no name is evictable.
    fn intern(&mut self, text: &str, now: u32) -> Option<NameId> {
        let id = if self.slots.len() < self.limits.names {
            let id = NameId::first(self.slots.len())?;
            self.slots.push(Slot { id, latest: 0, learned: 0, addresses: AHashMap::new() });
            id
        } else {
            let at = self.victim(now)?;
            self.evict(at)
        };
        let text = Arc::from(text);
        self.bytes += text_bytes(&text);
        self.texts.set(id, Arc::clone(&text));
        self.ids.insert(text, id);
        Some(id)
    }

    /// Forgets the name of a slot. Its text stays until the slot's next text replaces it. Returns the slot's next id.
    fn evict(&mut self, at: usize) -> NameId {
        let slot = &mut self.slots[at];
        let next = slot.id.next();
        if let Some(text) = self.texts.get(slot.id) {
            self.bytes -= text_bytes(text);
            self.ids.remove(text);
        }
        self.addresses -= slot.addresses.len();
        self.bytes -= memory::map(&slot.addresses);
        self.evicted += 1;
        *slot = Slot { id: next, latest: 0, learned: 0, addresses: AHashMap::new() };
        next
    }

    /// Returns the slot of a name without valid addresses, the least recently learned first. `None` if no name is evictable.
    fn victim(&mut self, now: u32) -> Option<usize> {
        if let Some(at) = self.next_victim(now) {
            return Some(at);
        }
        if now < self.barren_until {
            return None;
        }
        let mut oldest = BinaryHeap::with_capacity(VICTIMS + 1);
        for (at, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.is_evictable(now)) {
            oldest.push((slot.learned, at));
            if oldest.len() > VICTIMS {
                oldest.pop();
            }
        }
        if oldest.is_empty() {
            self.barren_until = self.slots.iter().map(|slot| slot.latest).min().unwrap_or(0);
        }
        self.victims = oldest.into_sorted_vec();
        self.victims.reverse();
        self.next_victim(now)
    }

    /// Removes victims from the list until one has not been learned again and is still evictable.
    fn next_victim(&mut self, now: u32) -> Option<usize> {
        while let Some((learned, at)) = self.victims.pop() {
            if self.slots[at].learned == learned && self.slots[at].is_evictable(now) {
                return Some(at);
            }
        }
        None
    }
}

fn text_bytes(text: &Arc<str>) -> usize {
    memory::allocation(text.len() + 16)
}
