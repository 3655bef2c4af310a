//! Seats: dense numbers of the holders that hold anything, so that bitmaps of 64 holders are well filled.
//!
//! Numbers of holders are never reused. On a node whose pods come and go, the living ones are soon scattered over a wide range, and most
//! bitmaps would have a single bit. A seat is reused once its holder has left and all of its holdings are removed.

use std::sync::atomic::{AtomicU32, Ordering};

use ahash::AHashMap;

use super::{Holder, memory};

/// Maximum number of seats: chunks are counted in 16 bits.
const SEATS: usize = 64 << 16;

/// A bit in the bitmaps of one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) chunk: u16,
    /// 0 to 63.
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

/// The holder and the number of holdings of a seat.
#[derive(Debug)]
struct Occupancy {
    /// `None` if the seat is free, or its holder has left.
    holder: Option<Holder>,
    /// Number of bits set for this seat in all tables. Changes under a shared lock.
    holdings: AtomicU32,
}

#[derive(Debug, Default)]
pub(super) struct Seats {
    numbers: AHashMap<Holder, Seat>,
    occupancy: Vec<Occupancy>,
    /// The seats of each chunk that belong to a holder.
    taken: Vec<u64>,
    /// Free seats. The lowest is last.
    free: Vec<Seat>,
}

impl Seats {
    /// Returns the holder's seat. `None` if the holder holds nothing.
    pub(super) fn get(&self, holder: Holder) -> Option<Seat> {
        self.numbers.get(&holder).copied()
    }

    /// Returns the holder's seat, or a free one that now belongs to the holder. `None` if four million holders have seats.
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

    /// Separates a holder from its seat. The seat is free once the sweep has removed its holdings.
    pub(super) fn leave(&mut self, holder: Holder) {
        if let Some(seat) = self.numbers.remove(&holder) {
            self.occupancy[seat.index()].holder = None;
            self.taken[usize::from(seat.chunk)] &= !(1 << seat.lane);
        }
    }

    /// Frees all seats without holdings, whether or not their holders have left.
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

    /// Returns the seats of a chunk that belong to no holder.
    pub(super) fn gone(&self, chunk: u16) -> u64 {
        self.taken.get(usize::from(chunk)).map_or(u64::MAX, |taken| !taken)
    }

    /// Returns the holders of all seats.
    pub(super) fn holders(&self) -> Vec<Option<Holder>> {
        self.occupancy.iter().map(|occupancy| occupancy.holder).collect()
    }

    /// Number of holdings of a seat.
    pub(super) fn holdings(&self, seat: Seat) -> usize {
        self.occupancy.get(seat.index()).map_or(0, |occupancy| occupancy.holdings.load(Ordering::Relaxed) as usize)
    }

    /// Number of holdings of all seats.
    pub(super) fn all_holdings(&self) -> usize {
        self.occupancy.iter().map(|occupancy| occupancy.holdings.load(Ordering::Relaxed) as usize).sum()
    }

    /// Counts a new holding.
    pub(super) fn add(&self, seat: Seat) {
        if let Some(occupancy) = self.occupancy.get(seat.index()) {
            occupancy.holdings.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts the removal of one holding of each of these seats of a chunk.
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

    /// Estimated heap use in bytes.
    pub(super) fn bytes(&self) -> usize {
        let lists = memory::vec(&self.occupancy) + memory::vec(&self.taken) + memory::vec(&self.free);
        lists + memory::map(&self.numbers)
    }
}

/// Returns the index of a seat in [`Seats::holders`].
pub(super) fn index(chunk: u16, lane: u32) -> usize {
    Seat { chunk, lane }.index()
}
