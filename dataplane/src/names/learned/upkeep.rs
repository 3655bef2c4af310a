//! Operations of control threads: the sweep, listings and counts.

use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::entry::Entry;
use super::seats;
use super::sliced::Key;
use super::table::Table;
use super::validity::{nanoseconds, seconds};
use super::{Holder, Learned, SHARDS, Shard, World, lock, memory, read, write};

/// Shards per call of [`Learned::sweep`]. A call takes a few milliseconds if 50 million holdings are stored.
const SHARDS_PER_SWEEP: usize = SHARDS / 32;

/// The result of one call of [`Learned::sweep`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of removed holdings.
    pub holdings: usize,
    /// Whether this call reached the end of the table. The next call starts again.
    pub is_complete: bool,
}

/// The numbers of names, addresses and holdings of a table, and its memory, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LearnedCounts {
    /// Known names, including those whose addresses have expired.
    pub names: usize,
    /// Different pairs of name and address that some holder has learned. Includes expired ones that the sweep has not removed yet.
    pub addresses: usize,
    /// Different triples of holder, name and address. Includes expired ones that the sweep has not removed yet.
    pub holdings: usize,
    /// Names that were removed to make room for others, ever increasing.
    pub evicted_names: u64,
    /// Estimated heap use in bytes.
    pub bytes: usize,
}

impl Learned {
    /// Sweeps the next 32nd of the table: removes the holdings that have ended at `now`, in nanoseconds since 1970, and those of forgotten
    /// holders. Names stay known. The control thread calls this about once a second.
    ///
    /// The second complete sweep after [`Learned::forget`] has released all memory of the holder.
    pub fn sweep(&self, now: u64) -> Swept {
        let mut swept = Swept::default();
        for _ in 0..SHARDS_PER_SWEEP {
            let at = self.cursor.fetch_add(1, Ordering::Relaxed) % SHARDS;
            swept.holdings += self.sweep_shard(at, seconds(now));
            if at == SHARDS - 1 {
                let mut world = write(&self.world);
                world.seats.free_idle();
                world.names.forget_rooms();
                swept.is_complete = true;
            }
        }
        swept
    }

    /// Calls `each` with the holder, name, address and end of every holding that is valid at `now`, in no particular order. Times are in
    /// nanoseconds since 1970; ends are rounded as described at the module. `each` may call the table.
    ///
    /// Copies one shard at a time. Holdings that are added or removed during the call may be missing or included.
    pub fn for_each(&self, now: u64, mut each: impl FnMut(Holder, &str, IpAddr, u64)) {
        let now = seconds(now);
        for shard in &self.shards {
            let (holders, texts, entries) = {
                let (world, shard) = (read(&self.world), lock(shard));
                let entries: Vec<(IpAddr, Entry)> = shard.iter().map(|(&to, entry)| (to, entry.clone())).collect();
                (world.seats.holders(), world.names.texts().clone(), entries)
            };
            for (address, table) in entries.iter().flat_map(|(to, entry)| entry.tables().map(move |table| (*to, table)))
            {
                table.for_each(|Key { id, chunk }, end, lanes| {
                    let Some(text) = texts.get(id).filter(|_| end > now) else { return };
                    for lane in (0..64).filter(|lane| lanes >> lane & 1 == 1) {
                        if let Some(&Some(holder)) = holders.get(seats::index(chunk, lane)) {
                            each(holder, text, address, nanoseconds(end));
                        }
                    }
                });
            }
        }
    }

    /// Counts names, addresses, holdings and memory. Takes milliseconds for a large table.
    pub fn counts(&self) -> LearnedCounts {
        let fixed = memory::allocation(size_of_val(&*self.shards));
        let shard_bytes = |shard: &Mutex<Shard>| {
            let shard = lock(shard);
            memory::map(&shard) + shard.values().map(Entry::bytes).sum::<usize>()
        };
        let shards: usize = self.shards.iter().map(shard_bytes).sum();
        let world = read(&self.world);
        let (names, addresses, evicted_names) = world.names.counts();
        LearnedCounts {
            names,
            addresses,
            holdings: world.seats.all_holdings(),
            evicted_names,
            bytes: fixed + shards + world.seats.bytes() + world.names.bytes(),
        }
    }

    /// Sweeps one shard at `now`, in seconds since 1970. Returns the number of removed holdings.
    fn sweep_shard(&self, at: usize, now: u32) -> usize {
        let mut split = Vec::new();
        let mut holdings = {
            let (world, mut shard) = (read(&self.world), lock(&self.shards[at]));
            let mut sweeper = Sweeper::new(&world, now);
            shard.retain(|&address, entry| match entry {
                Entry::Few(table) => {
                    sweeper.sweep(address, table);
                    !entry.is_empty()
                }
                Entry::Many(tables) => {
                    split.extend(tables.keys().map(|&chunk| (address, chunk)));
                    true
                }
            });
            memory::trim_map(&mut shard);
            drop(shard);
            sweeper.finish()
        };
        // An address with many names is long work, so the locks are released between its chunks.
        for (address, chunk) in split {
            let (world, mut shard) = (read(&self.world), lock(&self.shards[at]));
            let Some(entry) = shard.get_mut(&address) else { continue };
            let mut sweeper = Sweeper::new(&world, now);
            entry.change(chunk, |table| sweeper.sweep(address, table));
            if entry.is_empty() {
                shard.remove(&address);
            }
            drop(shard);
            holdings += sweeper.finish();
        }
        holdings
    }
}

/// Sweeps tables of a locked shard. [`Sweeper::finish`] counts the removed holdings after the shard is unlocked.
struct Sweeper<'a> {
    world: &'a World,
    now: u32,
    removed: Vec<(u16, u64)>,
    emptied: Vec<Key>,
}

impl<'a> Sweeper<'a> {
    const fn new(world: &'a World, now: u32) -> Self {
        Self { world, now, removed: Vec::new(), emptied: Vec::new() }
    }

    fn sweep(&mut self, address: IpAddr, table: &mut Table) {
        table.sweep(self.now, |chunk| self.world.seats.gone(chunk), &mut self.removed, &mut self.emptied);
        self.emptied.drain(..).for_each(|key| self.world.names.release(key.id, address));
    }

    /// Subtracts the removed holdings from the counts of their seats. Returns their number.
    fn finish(self) -> usize {
        self.removed.iter().for_each(|&(chunk, lanes)| self.world.seats.subtract(chunk, lanes));
        self.removed.iter().map(|(_, lanes)| lanes.count_ones() as usize).sum()
    }
}
