//! Learned addresses: which pod has learned which addresses for which names from DNS answers, and until when.
//!
//! **Purpose.** A worker stores the addresses of a DNS answer before it forwards the answer. When the pod connects to an address, any worker
//! looks up the names. Only first packets of pods with domain rules and DNS answers use the table, so it may lock.
//!
//! **Not its purpose.** No DNS, no policy, no clock. The caller adds the grace to the TTL and decides what a name permits.
//!
//! ```text
//!   learn --1--> Names (one lock):    text -> id, last answer, addresses        evicts names if all 65,536 are in use
//!         --2--> Shard (1,024 locks): address -> records { name, 64 holders, ends }
//!   names_of --1--> Shard: ids of the holder's names --2--> Texts: a snapshot, read without a lock
//! ```
//!
//! **Memory.** Nearly all pods of a node learn the same addresses. A record therefore covers 64 holders ([`table`]); holders have dense
//! numbers inside the table ([`seats`]). The end of a validity is rounded up ([`validity`]), so that pods that asked at different moments
//! share it. 10,000 names with 10 addresses each, learned by 500 pods, need 64 MB for any mix of TTLs from 30 to 300 seconds.
//!
//! **Invariants.** A validity is never shortened. It is lengthened by at most a quarter of the time left when it was learned (TTL and grace),
//! or to the next full second if that is later. Once [`Learned::learn`] has returned, [`Learned::names_of`] returns the name in all threads.
//!
//! **Locks.** Seats, then counting, then one shard, then names. A thread that holds one of them takes only later ones, and never two shards.
//! Callbacks are called without locks and may call the table. A thread that panicked leaves its lock usable.

mod entry;
mod memory;
mod names;
mod seats;
mod sliced;
mod table;
#[cfg(test)]
mod tests;
mod texts;
mod upkeep;
mod validity;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ahash::{AHashMap, RandomState};

use entry::Entry;
use names::{Claim, Names, Room};
use seats::{Seat, Seats};
use sliced::Key;
pub use upkeep::{LearnedCounts, Swept};
use validity::{Window, seconds};

/// Maximum number of addresses that one holder learns under one name, of both families together. The specification asks for at least 100.
/// CDNs that rotate addresses with a TTL of seconds reach some hundreds during the grace. The limit bounds what the owner of a single name
/// can make the table store.
pub(crate) const ADDRESSES_PER_NAME: usize = 1024;

/// Maximum number of names per node. Nodes use hundreds, clusters with crawlers some thousands. An attacker who owns a zone below an allowed
/// wildcard can make up names without end; 65,536 of the longest need 30 MB.
pub(crate) const NAMES: usize = 1 << 16;

/// Maximum number of holdings (name and address) of one pod, more than twice those of 10,000 names with 10 addresses each. Without it, one
/// pod could learn 1,024 addresses for each of 65,536 names: gigabytes.
pub(crate) const HOLDINGS_PER_HOLDER: usize = 1 << 18;

/// Number of locks for addresses. A hundred thousand addresses are a hundred per lock, so that the sweep holds one for microseconds.
const SHARDS: usize = 1024;

/// How often a holder's addresses are counted for one answer. Only other answers for the same holder and name can make the first count
/// outdated.
const COUNTS: usize = 3;

/// A pod that learns addresses. Identifies it for the lifetime of the process. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder(pub u32);

/// An interned name, in 31 bits. Keeps its value while the name is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(u32);

impl NameId {
    /// Returns the id as a number below 2^31.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the id with this number, from [`NameId::bits`]. Other numbers give ids of unknown names.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// The limit for which an address was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Full {
    /// The holder has [`ADDRESSES_PER_NAME`] valid addresses under this name.
    Addresses,
    /// All [`NAMES`] known names have valid addresses.
    Names,
    /// The holder has [`HOLDINGS_PER_HOLDER`] holdings, including expired ones that the sweep has not removed yet.
    Holdings,
}

/// The addresses that the pods of a node have learned from DNS answers. Shared by all threads.
#[derive(Debug)]
pub struct Learned {
    limits: Limits,
    /// Chooses shards. Keyed at random, so that outsiders cannot choose addresses that share one.
    hasher: RandomState,
    /// Shared while a thread uses a seat, exclusive while seats are assigned or freed.
    seats: RwLock<Seats>,
    /// Held while a thread counts a holder's addresses, so that two counts do not grant the same room.
    counting: Mutex<()>,
    shards: Box<[Mutex<Shard>]>,
    names: Mutex<Names>,
    /// The next shard to sweep, modulo their number.
    cursor: AtomicUsize,
    refused: Refused,
}

type Shard = AHashMap<IpAddr, Entry>;

/// Maximum numbers, which tests lower.
#[derive(Clone, Copy, Debug)]
struct Limits {
    names: usize,
    addresses: usize,
    holdings: usize,
}

/// Answers' addresses that were not stored, by limit.
#[derive(Debug, Default)]
struct Refused {
    addresses: AtomicU64,
    names: AtomicU64,
    holdings: AtomicU64,
}

/// One address of a DNS answer.
#[derive(Clone, Copy)]
struct Answer<'a> {
    holder: Holder,
    name: &'a str,
    address: IpAddr,
    /// Seconds since 1970.
    now: u32,
    window: Window,
}

/// The reason for which an address cannot be stored.
enum Obstacle {
    Full(Full),
    /// The holder's addresses under the name must be counted first.
    Uncounted(NameId),
}

impl Default for Learned {
    fn default() -> Self {
        Self::new()
    }
}

impl Learned {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limits(Limits { names: NAMES, addresses: ADDRESSES_PER_NAME, holdings: HOLDINGS_PER_HOLDER })
    }

    fn with_limits(limits: Limits) -> Self {
        Self {
            limits,
            hasher: RandomState::new(),
            seats: RwLock::default(),
            counting: Mutex::default(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            names: Mutex::new(Names::new(limits)),
            cursor: AtomicUsize::new(0),
            refused: Refused::default(),
        }
    }

    /// Stores that a holder has learned an address for a name. `name` is lower-case dotted text. `now` and `until` are in nanoseconds since
    /// 1970; `until` is when the address ends to be valid for new connections, with TTL and grace. After 2106 it counts as unlimited.
    ///
    /// If the holder has learned the address for this name before, the later end counts. If `until` is not after `now`, only the name is
    /// stored.
    ///
    /// # Errors
    /// The limit that the address exceeds. The address is not stored, and the refusal is counted.
    pub fn learn(&self, holder: Holder, name: &str, address: IpAddr, now: u64, until: u64) -> Result<NameId, Full> {
        let result = match Window::new(now, until) {
            Some(window) => self.store(&Answer { holder, name, address, now: seconds(now), window }),
            None => lock(&self.names).admit(name, seconds(now), 0),
        };
        let refused = match result {
            Ok(_) => return result,
            Err(Full::Addresses) => &self.refused.addresses,
            Err(Full::Names) => &self.refused.names,
            Err(Full::Holdings) => &self.refused.holdings,
        };
        refused.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Calls `each` with every name under which the holder has learned the address and that is valid at `now`, in nanoseconds since 1970.
    /// Each name comes once. `each` may call the table.
    pub fn names_of(&self, holder: Holder, address: IpAddr, now: u64, mut each: impl FnMut(NameId, &str)) {
        let now = seconds(now);
        let mut ids = Ids::default();
        {
            let seats = read(&self.seats);
            let Some(Seat { chunk, lane }) = seats.get(holder) else { return };
            let shard = lock(self.shard(address));
            if let Some(table) = shard.get(&address).and_then(|entry| entry.table(chunk)) {
                table.names_of(chunk, lane, now, |id| ids.push(id));
            }
        }
        if ids.len == 0 {
            return;
        }
        let texts = lock(&self.names).texts();
        for id in ids.iter() {
            // A name may have been evicted since, if its addresses have ended according to another thread's clock.
            if let Some(text) = texts.get(id) {
                each(id, text);
            }
        }
    }

    /// Calls `each` with a name's text and returns true. Returns false if the name is unknown. `each` may call the table.
    pub fn with_name(&self, id: NameId, each: impl FnOnce(&str)) -> bool {
        let texts = lock(&self.names).texts();
        texts.get(id).map(|text| each(text)).is_some()
    }

    /// Forgets all addresses of a holder, whose pod is gone. From now on the holder has no names; the sweep releases the memory.
    pub fn forget(&self, holder: Holder) {
        write(&self.seats).leave(holder);
    }

    fn shard(&self, address: IpAddr) -> &Mutex<Shard> {
        #[expect(clippy::cast_possible_truncation, reason = "some bits are wanted")]
        let hash = self.hasher.hash_one(address) as usize;
        &self.shards[hash % SHARDS]
    }

    /// Stores an address of an answer that has not ended.
    fn store(&self, answer: &Answer<'_>) -> Result<NameId, Full> {
        // Shared until the address is stored, so that the seat keeps its holder and is not freed.
        let (seats, seat) = self.seated(answer.holder).ok_or(Full::Holdings)?;
        for _ in 0..COUNTS {
            match self.try_store(&seats, seat, answer) {
                Ok(id) => return Ok(id),
                Err(Obstacle::Full(full)) => return Err(full),
                Err(Obstacle::Uncounted(id)) => self.count(&seats, seat, answer, id),
            }
        }
        Err(Full::Addresses)
    }

    /// Returns the holder's seat, which may be new. `None` if four million holders have seats.
    fn seated(&self, holder: Holder) -> Option<(RwLockReadGuard<'_, Seats>, Seat)> {
        let seats = read(&self.seats);
        if let Some(seat) = seats.get(holder) {
            return Some((seats, seat));
        }
        drop(seats);
        let mut seats = write(&self.seats);
        let seat = seats.assign(holder)?;
        Some((RwLockWriteGuard::downgrade(seats), seat))
    }

    fn try_store(&self, seats: &Seats, seat: Seat, answer: &Answer<'_>) -> Result<NameId, Obstacle> {
        let mut shard = lock(self.shard(answer.address));
        let entry = shard.entry(answer.address).or_default();
        let result = self.store_in(entry, seats, seat, answer);
        if entry.is_empty() {
            shard.remove(&answer.address);
        }
        result
    }

    /// Stores an answer's address in its entry, whose shard is locked.
    fn store_in(&self, entry: &mut Entry, seats: &Seats, seat: Seat, answer: &Answer<'_>) -> Result<NameId, Obstacle> {
        let &Answer { name, address, now, window, .. } = answer;
        let Seat { chunk, lane } = seat;
        let mut names = lock(&self.names);
        let id = names.admit(name, now, window.last).map_err(Obstacle::Full)?;
        let key = Key { id, chunk };
        let is_crowded = names.is_crowded(id);
        let is_known = entry.table(chunk).is_some_and(|table| table.contains(key));
        if !is_known {
            // From here on, the name has an address that has not ended, so it is not evicted.
            names.hold(id, address);
        }
        drop(names);
        let is_at_limit = seats.holdings(seat) >= self.limits.holdings;
        let holds = || entry.table(chunk).and_then(|table| table.end(key, lane)).is_some_and(|end| end > now);
        if (is_crowded || is_at_limit) && !holds() {
            let claim = if is_at_limit { Err(Obstacle::Full(Full::Holdings)) } else { self.claim(id, answer) };
            if claim.is_err() && !is_known {
                lock(&self.names).release(id, address);
            }
            claim?;
        }
        let change = entry.change(chunk, |table| table.learn(key, lane, now, window));
        seats.subtract(chunk, change.expired);
        if change.is_new {
            seats.add(seat);
        }
        Ok(id)
    }

    /// Claims room for another address of the holder under a crowded name.
    fn claim(&self, id: NameId, answer: &Answer<'_>) -> Result<(), Obstacle> {
        match lock(&self.names).claim(id, answer.holder, answer.now, answer.window.first) {
            Claim::Granted => Ok(()),
            Claim::Refused => Err(Obstacle::Full(Full::Addresses)),
            Claim::Uncounted => Err(Obstacle::Uncounted(id)),
        }
    }

    /// Counts the holder's addresses under a crowded name and removes expired ones. Takes a tenth of a millisecond for 1,024 addresses.
    fn count(&self, seats: &Seats, seat: Seat, answer: &Answer<'_>, id: NameId) {
        let &Answer { holder, now, .. } = answer;
        let _counting = lock(&self.counting);
        let addresses = {
            let names = lock(&self.names);
            if !names.is_uncounted(id, holder, now) {
                return;
            }
            names.addresses_of(id)
        };
        let ends = addresses
            .into_iter()
            .filter_map(|address| self.valid_end(seats, seat, Key { id, chunk: seat.chunk }, address, now));
        let (valid, until) = ends.fold((0, u32::MAX), |(valid, until), end| (valid + 1, until.min(end)));
        let room = Room { left: self.limits.addresses.saturating_sub(valid), until };
        lock(&self.names).set_room(id, holder, room);
    }

    /// Returns the end of a holding in seconds. `None` if there is none, or it has ended and is now removed.
    fn valid_end(&self, seats: &Seats, seat: Seat, key: Key, address: IpAddr, now: u32) -> Option<u32> {
        let mut shard = lock(self.shard(address));
        let entry = shard.get_mut(&address)?;
        let end = entry.table(key.chunk)?.end(key, seat.lane)?;
        if end > now {
            return Some(end);
        }
        let is_known = entry.change(key.chunk, |table| {
            table.remove(key, seat.lane);
            table.contains(key)
        });
        seats.subtract(seat.chunk, 1 << seat.lane);
        if !is_known {
            lock(&self.names).release(key.id, address);
        }
        if entry.is_empty() {
            shard.remove(&address);
        }
        None
    }
}

/// A list of ids, of which the first 32 need no allocation.
struct Ids {
    few: [NameId; 32],
    len: usize,
    many: Vec<NameId>,
}

impl Default for Ids {
    fn default() -> Self {
        Self { few: [NameId(0); 32], len: 0, many: Vec::new() }
    }
}

impl Ids {
    fn push(&mut self, id: NameId) {
        match self.few.get_mut(self.len) {
            Some(place) => *place = id,
            None => self.many.push(id),
        }
        self.len += 1;
    }

    fn iter(&self) -> impl Iterator<Item = NameId> {
        self.few.iter().take(self.len).chain(&self.many).copied()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
