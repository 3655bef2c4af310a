//! A table of learned addresses: which pod has learned which addresses under which names from DNS answers, and until when. A *holder* is a
//! pod that learns. A *holding* is one address that a holder has learned under one name.
//!
//! **Purpose.** A worker stores the addresses of a DNS answer before it forwards the answer. When the pod connects to an address, any
//! worker looks up the names. Only DNS answers and first packets of pods with rules that name domains use the table, so it may lock.
//!
//! **Not its purpose.** The table knows no DNS, no policy and no clock. The caller adds the grace to the TTL and decides what a name
//! permits.
//!
//! ```text
//!   World (shared lock)     seats: holder -> bit in the bitmaps     names: text -> id -> text, addresses
//!   Shard (1,024 locks)     address -> records { name, 64 holders, their ends }
//!
//!   learn     World: seat and id (exclusive if one is new) -> Shard: store
//!   names_of  World: seat -> Shard: ids -> unlock -> texts, from a snapshot
//! ```
//!
//! **Memory.** Nearly all pods of a node learn the same addresses, so a record covers 64 holders ([`table`]). Holders have dense numbers
//! inside the table ([`seats`]). Ends are rounded up ([`validity`]), so that pods that asked at different moments share records. 10,000
//! names with 10 addresses each, learned by 500 pods within a minute with any mix of TTLs from 30 to 300 seconds, need less than 64 MB.
//!
//! **Invariants.** A validity is never shortened. It is lengthened by at most a quarter of the time left when it was learned (TTL and
//! grace), or to the next full second if that is later. Once [`Learned::learn`] has returned, [`Learned::names_of`] returns the name in all
//! threads.
//!
//! **Locks.** Counting, then the world, then one shard, then those inside [`names`]. A thread that holds one takes only later ones in this
//! order, and never two shards. Callbacks are called without locks and may call the table. A thread that panicked leaves its locks usable.

mod crowd;
mod entry;
mod limits;
mod memory;
mod names;
mod seats;
mod shares;
mod sliced;
mod table;
#[cfg(test)]
mod tests;
mod texts;
mod upkeep;
mod validity;

use std::net::IpAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ahash::{AHashMap, RandomState};

use crowd::claim;
use entry::Entry;
pub use limits::Full;
pub(super) use limits::NAMES;
use limits::{Limits, NAMES_PER_ADDRESS};
use names::Names;
use seats::{Seat, Seats};
use sliced::Key;
pub use upkeep::{LearnedCounts, Swept};
use validity::{Window, nanoseconds, seconds};

/// Number of locks for addresses. A hundred thousand addresses are a hundred per lock, so that the sweep holds each for microseconds.
const SHARDS: usize = 1024;

/// Number of attempts to store an address. After a failed one, the holder's addresses under the name are counted. Only concurrent answers
/// for the same holder and name can make the next attempt fail.
const TRIES: usize = 3;

/// Identifies a pod that learns addresses, for the lifetime of the process. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder(pub u32);

/// Identifies a known name: a number below 2^31. A name keeps its id while it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NameId(u32);

impl NameId {
    /// Returns the number of the id, below 2^31.
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

/// The addresses that the pods of a node have learned from DNS answers. Shared by all threads.
#[derive(Debug)]
pub struct Learned {
    limits: Limits,
    /// Maps addresses to shards. Keyed at random, so that outsiders cannot choose addresses that share a shard.
    hasher: RandomState,
    /// Held while a thread counts a holder's addresses under a name, so that two counts do not grant the same room.
    counting: Mutex<()>,
    /// Locked exclusively to add and remove holders and names, shared to use them.
    world: RwLock<World>,
    shards: Box<[Mutex<Shard>]>,
    /// Number of the next shard to sweep, modulo [`SHARDS`].
    cursor: AtomicUsize,
}

/// The holders and the names that the shards' records refer to.
#[derive(Debug)]
struct World {
    seats: Seats,
    names: Names,
}

/// The addresses that share a lock, each with its holdings.
type Shard = AHashMap<IpAddr, Entry>;

/// One address of a DNS answer.
#[derive(Clone, Copy)]
struct Answer<'a> {
    holder: Holder,
    name: &'a str,
    address: IpAddr,
    /// Nanoseconds since 1970.
    time: u64,
    window: Window,
}

/// The reason why an attempt to store an address failed.
enum Obstacle {
    Full(Full),
    /// The holder's addresses under this name must be counted first.
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
        Self::with_limits(Limits::NODE)
    }

    fn with_limits(limits: Limits) -> Self {
        Self {
            limits,
            hasher: RandomState::new(),
            counting: Mutex::default(),
            world: RwLock::new(World { seats: Seats::default(), names: Names::new(limits) }),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            cursor: AtomicUsize::new(0),
        }
    }

    /// Stores that a holder has learned an address under a name, and returns the name's id. `name` is dotted text in lower case. `now` and
    /// `until` are in nanoseconds since 1970. From `until` on, which includes TTL and grace, the address is not valid for new connections.
    /// An end after 2106 counts as unlimited.
    ///
    /// If the holder has learned the address under this name before, the later end counts. If `until` is not after `now`, only the name is
    /// stored.
    ///
    /// # Errors
    /// The limit that the address would exceed. The address is not stored then.
    pub fn learn(&self, holder: Holder, name: &str, address: IpAddr, now: u64, until: u64) -> Result<NameId, Full> {
        match Window::new(now, until) {
            Some(window) => self.store(&Answer { holder, name, address, time: now, window }),
            None => self.known(name, seconds(now)),
        }
    }

    /// Returns the id of a name that a session uses. Stores an unknown name, without addresses. Such a name gives way to others like one
    /// that was learned at `now`, in nanoseconds since 1970.
    ///
    /// # Errors
    /// [`Full::Names`] if no name can give way.
    pub(crate) fn intern(&self, name: &str, now: u64) -> Result<NameId, Full> {
        let id = self.known(name, seconds(now))?;
        read(&self.world).names.touch(id, now);
        Ok(id)
    }

    /// Calls `each` with the id and text of every name under which the holder has learned the address, if that is valid at `now`, in
    /// nanoseconds since 1970. Calls it once for each name. `each` may call the table.
    pub fn names_of(&self, holder: Holder, address: IpAddr, now: u64, mut each: impl FnMut(NameId, &str)) {
        self.holdings_of(holder, address, now, |id, text, _| each(id, text));
    }

    /// Does the same as [`Self::names_of`], and also passes the end to `each`: the time in nanoseconds since 1970 from which on the address
    /// is not valid under this name.
    pub fn holdings_of(&self, holder: Holder, address: IpAddr, now: u64, mut each: impl FnMut(NameId, &str, u64)) {
        let (mut ids, mut len) = ([(NameId(0), 0); NAMES_PER_ADDRESS], 0);
        let texts = {
            let world = read(&self.world);
            let Some(Seat { chunk, lane }) = world.seats.get(holder) else { return };
            let shard = lock(self.shard(address));
            let Some(table) = shard.get(&address).and_then(|entry| entry.table(chunk)) else { return };
            for (place, id) in ids.iter_mut().zip(table.names_of(chunk, lane, seconds(now))) {
                (*place, len) = (id, len + 1);
            }
            world.names.texts().clone()
        };
        for &(id, end) in &ids[..len] {
            // A name may have been evicted if its addresses have ended according to another thread's clock.
            if let Some(text) = texts.get(id) {
                each(id, text, nanoseconds(end));
            }
        }
    }

    /// Calls `each` with the text of a name and returns true. Returns false if the id is unknown. `each` may call the table.
    pub fn with_name(&self, id: NameId, each: impl FnOnce(&str)) -> bool {
        let text = read(&self.world).names.texts().get(id).cloned();
        text.map(|text| each(&text)).is_some()
    }

    /// Removes a holder whose pod is gone. [`Learned::names_of`] finds nothing for the holder from now on; the sweep releases the memory.
    pub fn forget(&self, holder: Holder) {
        let mut world = write(&self.world);
        world.seats.leave(holder);
        world.names.leave(holder);
    }

    fn shard(&self, address: IpAddr) -> &Mutex<Shard> {
        #[expect(clippy::cast_possible_truncation, reason = "some bits are wanted")]
        let hash = self.hasher.hash_one(address) as usize;
        &self.shards[hash % SHARDS]
    }

    /// Stores an address that is valid, in up to [`TRIES`] attempts. Returns the name's id.
    fn store(&self, answer: &Answer<'_>) -> Result<NameId, Full> {
        for _ in 0..TRIES {
            match self.try_store(answer) {
                Ok(id) => return Ok(id),
                Err(Obstacle::Full(full)) => return Err(full),
                Err(Obstacle::Uncounted(id)) => self.count(answer, id),
            }
        }
        Err(Full::Addresses)
    }

    fn try_store(&self, answer: &Answer<'_>) -> Result<NameId, Obstacle> {
        // The world stays locked until the address is stored, so that the seat keeps its holder and the id its name.
        let (world, seat, id) = self.admit(answer).map_err(Obstacle::Full)?;
        let mut shard = lock(self.shard(answer.address));
        let entry = shard.entry(answer.address).or_default();
        let result = self.store_in(entry, &world, seat, id, answer);
        if entry.is_empty() {
            shard.remove(&answer.address);
        }
        result.map(|()| id)
    }

    /// Returns the seat of the answer's holder and the id of its name, which may be new. They stay valid while the returned shared lock is
    /// held.
    fn admit(&self, answer: &Answer<'_>) -> Result<(RwLockReadGuard<'_, World>, Seat, NameId), Full> {
        let now = seconds(answer.time);
        let world = read(&self.world);
        let (seat, id) = (world.seats.get(answer.holder), world.names.id(answer.name));
        if let (Some(seat), Some(id)) = (seat, id) {
            return Ok((world, seat, id));
        }
        // A name without addresses gives way to the next one. Storing it would let the holder use up ids.
        if id.is_none() {
            let own = seat.filter(|&seat| self.is_at_limit(&world, seat)).map(|_| Full::Holdings);
            if let Some(full) = own.or_else(|| world.names.limit(answer.holder, now)) {
                return Err(full);
            }
        }
        drop(world);
        let mut world = write(&self.world);
        let id = world.names.intern(answer.name, now).ok_or(Full::Names)?;
        let seat = world.seats.assign(answer.holder).ok_or(Full::Holdings)?;
        Ok((RwLockWriteGuard::downgrade(world), seat, id))
    }

    /// Returns the id of a name. Stores an unknown name, without addresses. `now` is in seconds since 1970.
    fn known(&self, name: &str, now: u32) -> Result<NameId, Full> {
        let known = read(&self.world).names.id(name);
        known.or_else(|| write(&self.world).names.intern(name, now)).ok_or(Full::Names)
    }

    fn is_at_limit(&self, world: &World, seat: Seat) -> bool {
        world.seats.holdings(seat) >= self.limits.holdings
    }

    /// Stores an answer's address in `entry`, the address's entry in the shard that the caller has locked.
    fn store_in(
        &self,
        entry: &mut Entry,
        world: &World,
        seat: Seat,
        id: NameId,
        answer: &Answer<'_>,
    ) -> Result<(), Obstacle> {
        let &Answer { holder, address, time, window, .. } = answer;
        let World { seats, names } = world;
        let (now, key, lane) = (seconds(time), Key { id, chunk: seat.chunk }, seat.lane);
        let is_known = entry.table(key.chunk).is_some_and(|table| table.contains(key));
        let hold = || names.hold(id, address, holder).map_err(Obstacle::Full);
        let crowd = if is_known { names.crowd(id) } else { hold()? };
        names.renew(id, time, window.last);
        let end = entry.table(key.chunk).and_then(|table| table.end(key, lane));
        let count = || entry.table(key.chunk).map_or(0, |table| table.names_of(key.chunk, lane, now).count());
        let obstacle = if end.is_none_or(|end| end <= now) && count() >= NAMES_PER_ADDRESS {
            Some(Obstacle::Full(Full::Names))
        } else if end.is_some() {
            // An expired holding that is not swept yet has kept its room.
            None
        } else if self.is_at_limit(world, seat) {
            Some(Obstacle::Full(Full::Holdings))
        } else {
            crowd.and_then(|crowd| claim(names, id, crowd, answer))
        };
        if let Some(obstacle) = obstacle {
            if !is_known {
                names.release(id, address);
            }
            return Err(obstacle);
        }
        let change = entry.change(key.chunk, |table| table.learn(key, lane, now, window));
        seats.subtract(key.chunk, change.expired);
        if change.is_new {
            seats.add(seat);
        }
        Ok(())
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
