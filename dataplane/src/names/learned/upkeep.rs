//! The control thread's part: the sweep, listings and counts.

use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use super::entry::Entry;
use super::seats::{self, Seats};
use super::sliced::Key;
use super::table::Table;
use super::validity::{nanoseconds, seconds};
use super::{Holder, Learned, SHARDS, Shard, lock, memory, read, write};

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

/// Numbers for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LearnedCounts {
    /// Known names, including those whose addresses have expired.
    pub names: usize,
    /// Different (name, address) that some holder has learned. Includes expired ones that the sweep has not removed yet.
    pub addresses: usize,
    /// Different (holder, name, address). Includes expired ones that the sweep has not removed yet.
    pub holdings: usize,
    /// Refusals with [`Full::Addresses`](super::Full::Addresses), ever increasing.
    pub refused_addresses: u64,
    /// Refusals with [`Full::Names`](super::Full::Names), ever increasing.
    pub refused_names: u64,
    /// Refusals with [`Full::Holdings`](super::Full::Holdings), ever increasing.
    pub refused_holdings: u64,
    /// Names that made room for others, ever increasing.
    pub evicted_names: u64,
    /// Estimated heap use.
    pub bytes: usize,
}

impl Learned {
    /// Sweeps the next 1/32 of the table: removes what has ended at `now`, in nanoseconds since 1970, and what forgotten holders had. To be
    /// called about once a second. Names stay known.
    ///
    /// After [`Learned::forget`], two complete sweeps release all memory of the holder.
    pub fn sweep(&self, now: u64) -> Swept {
        let mut swept = Swept::default();
        for _ in 0..SHARDS_PER_SWEEP {
            let at = self.cursor.fetch_add(1, Ordering::Relaxed) % SHARDS;
            swept.holdings += self.sweep_shard(at, seconds(now));
            if at == SHARDS - 1 {
                write(&self.seats).free_idle();
                lock(&self.names).forget_rooms();
                swept.is_complete = true;
            }
        }
        swept
    }

    /// Calls `each` with every holder, name, address and end that is valid at `now`, in no order. Times are in nanoseconds since 1970; ends
    /// are rounded as described at the module. `each` may call the table.
    ///
    /// Copies one shard at a time. What changes during the call may be missing or included.
    pub fn for_each(&self, now: u64, mut each: impl FnMut(Holder, &str, IpAddr, u64)) {
        let now = seconds(now);
        for shard in &self.shards {
            let (holders, entries) = {
                let seats = read(&self.seats);
                let entries: Vec<(IpAddr, Entry)> =
                    lock(shard).iter().map(|(&to, entry)| (to, entry.clone())).collect();
                (seats.holders(), entries)
            };
            let texts = lock(&self.names).texts();
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

    /// Counts names, addresses, holdings, refusals and memory. Visits all addresses, so it is meant for a metric, not for packets.
    pub fn counts(&self) -> LearnedCounts {
        let fixed = memory::allocation(size_of_val(&*self.shards));
        let shard_bytes = |shard: &Mutex<Shard>| {
            let shard = lock(shard);
            memory::map(&shard) + shard.values().map(Entry::bytes).sum::<usize>()
        };
        let shards: usize = self.shards.iter().map(shard_bytes).sum();
        let (holdings, seats) = {
            let seats = read(&self.seats);
            (seats.all_holdings(), seats.bytes())
        };
        let names = lock(&self.names);
        let (known, addresses, evicted_names) = names.counts();
        LearnedCounts {
            names: known,
            addresses,
            holdings,
            refused_addresses: self.refused.addresses.load(Ordering::Relaxed),
            refused_names: self.refused.names.load(Ordering::Relaxed),
            refused_holdings: self.refused.holdings.load(Ordering::Relaxed),
            evicted_names,
            bytes: fixed + shards + seats + names.bytes(),
        }
    }

    /// Sweeps one shard. Returns the number of removed holdings.
    fn sweep_shard(&self, at: usize, now: u32) -> usize {
        let seats = read(&self.seats);
        let (mut removed, mut emptied, mut split) = (Vec::new(), Vec::new(), Vec::new());
        let mut sweep = |address: IpAddr, table: &mut Table| {
            table.sweep(now, |chunk| seats.gone(chunk), &mut removed, &mut emptied);
            if !emptied.is_empty() {
                let mut names = lock(&self.names);
                emptied.drain(..).for_each(|Key { id, .. }| names.release(id, address));
            }
        };
        {
            let mut shard = lock(&self.shards[at]);
            shard.retain(|&address, entry| match entry {
                Entry::Few(table) => {
                    sweep(address, table);
                    !entry.is_empty()
                }
                Entry::Many(tables) => {
                    split.extend(tables.keys().map(|&chunk| (address, chunk)));
                    true
                }
            });
            memory::trim_map(&mut shard);
        }
        // Addresses with many names are long work, so the lock is released between their chunks.
        for (address, chunk) in split {
            let mut shard = lock(&self.shards[at]);
            let Some(entry) = shard.get_mut(&address) else { continue };
            entry.change(chunk, |table| sweep(address, table));
            if entry.is_empty() {
                shard.remove(&address);
            }
        }
        removed.iter().map(|&(chunk, lanes)| count_removed(&seats, chunk, lanes)).sum()
    }
}

fn count_removed(seats: &Seats, chunk: u16, lanes: u64) -> usize {
    seats.subtract(chunk, lanes);
    lanes.count_ones() as usize
}
