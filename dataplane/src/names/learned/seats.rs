//! Gives each holder that holds addresses a *seat*: a place in the bitmaps of a *chunk* of 64 holders. Seats are dense, so the bitmaps are
//! well filled.
//!
//! Numbers of holders are never reused. On a node whose pods come and go, those of existing pods are soon scattered over a wide range.
//! Bitmaps by these numbers would mostly have a single bit. A seat is reused once its holder has left and all of its holdings are removed.

use std::sync::atomic::{AtomicU32, Ordering};

use ahash::AHashMap;

use super::{Holder, memory};

/// Maximum number of seats: 64 in each of 65,536 chunks, whose numbers have 16 bits.
const SEATS: usize = 64 << 16;

/// The place of a holder: a chunk, and the holder's bit in the bitmaps of this chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) chunk: u16,
    /// The number of the bit, 0 to 63.
    pub(super) lane: u32,
}

impl Seat {
    fn at(index: usize) -> Option<Self> {
        let chunk = u16::try_from(index / 64).ok()?;
        u32::try_from(index % 64).ok().map(|lane| Self { chunk, lane })
    }

    const fn index(self) -> usize {
        self.chunk as usize * 64 + self.lane as usize
    }
}

/// The holder of a seat, and the number of holdings that have the seat.
#[derive(Debug)]
struct Occupancy {
    /// `None` if the seat is free, or its holder has left.
    holder: Option<Holder>,
    /// Number of the seat's holdings in all tables, with those of a holder that has left. Changes under a shared lock.
    holdings: AtomicU32,
}

/// All seats and their holders.
#[derive(Debug, Default)]
pub(super) struct Seats {
    /// The seat of each holder that has one.
    numbers: AHashMap<Holder, Seat>,
    /// By [`Seat::index`].
    occupancy: Vec<Occupancy>,
    /// For each chunk, a bitmap of the seats that belong to a holder.
    taken: Vec<u64>,
    /// Free seats. The lowest is last.
    free: Vec<Seat>,
}

impl Seats {
    /// Returns the holder's seat. `None` if the holder has none, and so no holdings.
    pub(super) fn get(&self, holder: Holder) -> Option<Seat> {
        self.numbers.get(&holder).copied()
    }

    /// Returns the holder's seat, or a free one that now belongs to the holder. `None` if all [`SEATS`] seats are in use.
    pub(super) fn assign(&mut self, holder: Holder) -> Option<Seat> {
        if let Some(seat) = self.get(holder) {
            return Some(seat);
        }
        let seat = match self.free.pop() {
            Some(seat) => seat,
            None if self.occupancy.len() < SEATS => {
                let seat = Seat::at(self.occupancy.len())?;
                self.occupancy.push(Occupancy { holder: None, holdings: AtomicU32::new(0) });
                self.taken.resize(self.occupancy.len().div_ceil(64), 0);
                seat
            }
            None => return None,
        };
        self.occupancy[seat.index()].holder = Some(holder);
        self.taken[usize::from(seat.chunk)] |= 1 << seat.lane;
        self.numbers.insert(holder, seat);
        Some(seat)
    }

    /// Takes the seat from a holder that leaves. The seat becomes free once the sweep has removed its holdings.
    pub(super) fn leave(&mut self, holder: Holder) {
        if let Some(seat) = self.numbers.remove(&holder) {
            self.occupancy[seat.index()].holder = None;
            self.taken[usize::from(seat.chunk)] &= !(1 << seat.lane);
        }
    }

    /// Frees all seats without holdings, also those of holders that have not left.
    pub(super) fn free_idle(&mut self) {
        self.free.clear();
        for (index, occupancy) in self.occupancy.iter_mut().enumerate().rev() {
            let Some(seat) = Seat::at(index).filter(|_| *occupancy.holdings.get_mut() == 0) else { continue };
            if let Some(holder) = occupancy.holder.take() {
                self.numbers.remove(&holder);
            }
            self.taken[usize::from(seat.chunk)] &= !(1 << seat.lane);
            self.free.push(seat);
        }
        if self.free.len() == self.occupancy.len() {
            *self = Self::default();
        }
    }

    /// Returns a bitmap of the seats of a chunk that belong to no holder.
    pub(super) fn gone(&self, chunk: u16) -> u64 {
        self.taken.get(usize::from(chunk)).map_or(u64::MAX, |taken| !taken)
    }

    /// Returns the holder of each seat, by [`index`]. `None` for a seat that belongs to no holder.
    pub(super) fn holders(&self) -> Vec<Option<Holder>> {
        self.occupancy.iter().map(|occupancy| occupancy.holder).collect()
    }

    /// Returns the number of holdings of a seat, with expired ones.
    pub(super) fn holdings(&self, seat: Seat) -> usize {
        self.occupancy.get(seat.index()).map_or(0, |occupancy| occupancy.holdings.load(Ordering::Relaxed) as usize)
    }

    /// Returns the number of holdings of all seats, with expired ones and those of holders that have left.
    pub(super) fn all_holdings(&self) -> usize {
        self.occupancy.iter().map(|occupancy| occupancy.holdings.load(Ordering::Relaxed) as usize).sum()
    }

    /// Counts a new holding of a seat.
    pub(super) fn add(&self, seat: Seat) {
        if let Some(occupancy) = self.occupancy.get(seat.index()) {
            occupancy.holdings.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the removal of one holding of each seat of a chunk whose bit is set in `lanes`.
    pub(super) fn subtract(&self, chunk: u16, lanes: u64) {
        let mut left = lanes;
        while left != 0 {
            let seat = Seat { chunk, lane: left.trailing_zeros() };
            if let Some(occupancy) = self.occupancy.get(seat.index()) {
                occupancy.holdings.fetch_sub(1, Ordering::Relaxed);
            }
            left &= left - 1;
        }
    }

    /// Returns the estimated heap use in bytes.
    pub(super) fn bytes(&self) -> usize {
        let lists = memory::vec(&self.occupancy) + memory::vec(&self.taken) + memory::vec(&self.free);
        lists + memory::map(&self.numbers)
    }
}

/// Returns the index of a seat in [`Seats::holders`].
pub(super) fn index(chunk: u16, lane: u32) -> usize {
    Seat { chunk, lane }.index()
}
