//! Faults of one direction's packets.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{FaultTally, Faults};
use crate::io::{Frame, FramePool, Umem};

/// A reproducible random generator: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). Unfit for keys.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, which must not be 0.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.roll() % end as u64).expect("less than a usize")
    }

    /// Returns true for `chance` of a thousand calls.
    pub(super) fn one_in_thousand(&mut self, chance: u16) -> bool {
        chance > 0 && self.roll() % 1000 < u64::from(chance)
    }
}

/// The frames with which faults are injected in both directions.
#[derive(Debug)]
pub(super) struct Workshop {
    pub(super) umem: Arc<Umem>,
    /// Empty frames, for duplicates.
    pub(super) stock: Vec<Frame>,
    /// Frames of lost packets, which the next `service` returns to the pool.
    pub(super) spent: Vec<Frame>,
}

impl Workshop {
    pub(super) fn service(&mut self, pool: &mut FramePool, stock: usize) {
        pool.give_all(self.spent.drain(..));
        let missing = stock.saturating_sub(self.stock.len());
        self.stock.extend(std::iter::from_fn(|| pool.take()).take(missing));
    }

    pub(super) fn close(&mut self, pool: &mut FramePool) {
        pool.give_all(self.spent.drain(..).chain(self.stock.drain(..)));
    }

    /// Copies a packet. `None` if the stock has too few frames.
    fn copy(&mut self, packet: &[Frame]) -> Option<Vec<Frame>> {
        let at = self.stock.len().checked_sub(packet.len())?;
        let mut copies = self.stock.split_off(at);
        for (copy, frame) in copies.iter_mut().zip(packet) {
            copy.reset(frame.len());
            copy.set_more(frame.has_more());
            self.umem.bytes_mut(copy).copy_from_slice(self.umem.bytes(frame));
        }
        Some(copies)
    }

    /// Cuts the packet to `len` bytes.
    ///
    /// # Panics
    /// If the packet is not longer than that.
    fn truncate(&mut self, packet: &mut Vec<Frame>, len: usize) {
        let mut before = 0;
        let at = packet.iter().position(|frame| {
            let is_in = before + frame.len() >= len;
            before += if is_in { 0 } else { frame.len() };
            is_in
        });
        let at = at.expect("the packet is longer than that");
        self.spent.extend(packet.drain(at + 1..));
        let frame = &mut packet[at];
        frame.shorten(len - before);
        frame.set_more(false);
    }

    /// XORs the packet's byte at offset `at` with `change`.
    fn corrupt(&self, packet: &mut [Frame], mut at: usize, change: u8) {
        for frame in packet {
            match self.umem.bytes_mut(frame).get_mut(at) {
                Some(byte) => {
                    *byte ^= change;
                    return;
                }
                None => at -= frame.len(),
            }
        }
    }
}

/// Injects the faults of one direction.
#[derive(Debug)]
pub(super) struct Stage {
    faults: Faults,
    dice: Dice,
    /// Packets that were handled and wait for `take`.
    ready: VecDeque<Vec<Frame>>,
    /// A packet that is to be delivered after its successor. `None` if no packet is delayed.
    waiting: Option<Vec<Frame>>,
    pub(super) tally: FaultTally,
}

impl Stage {
    pub(super) const fn new(faults: Faults, dice: Dice) -> Self {
        let tally = FaultTally { packets: 0, lost: 0, duplicated: 0, reordered: 0, truncated: 0, corrupted: 0 };
        Self { faults, dice, ready: VecDeque::new(), waiting: None, tally }
    }

    /// Takes all frames, which must be whole packets, and injects the faults into them.
    pub(super) fn pass(&mut self, frames: &mut Vec<Frame>, workshop: &mut Workshop) {
        let mut packet = Vec::new();
        for frame in frames.drain(..) {
            let is_last = !frame.has_more();
            packet.push(frame);
            if is_last {
                self.pass_packet(std::mem::take(&mut packet), workshop);
            }
        }
        debug_assert!(packet.is_empty(), "a port gives whole packets");
    }

    fn pass_packet(&mut self, mut packet: Vec<Frame>, workshop: &mut Workshop) {
        let Self { faults, dice, tally, .. } = self;
        tally.packets += 1;
        if dice.one_in_thousand(faults.lose) {
            tally.lost += 1;
            workshop.spent.append(&mut packet);
            return;
        }
        let len = |packet: &[Frame]| packet.iter().map(Frame::len).sum::<usize>();
        if len(&packet) > 0 && dice.one_in_thousand(faults.truncate) {
            tally.truncated += 1;
            let kept = dice.below(len(&packet));
            workshop.truncate(&mut packet, kept);
        }
        if len(&packet) > 0 && dice.one_in_thousand(faults.corrupt) {
            tally.corrupted += 1;
            // 1 to 255, as XOR with 0 changes nothing.
            let change = u8::try_from(1 + dice.below(255)).expect("at most 255");
            let at = dice.below(len(&packet));
            workshop.corrupt(&mut packet, at, change);
        }
        let twin = if dice.one_in_thousand(faults.duplicate) { workshop.copy(&packet) } else { None };
        tally.duplicated += u64::from(twin.is_some());
        if self.waiting.is_none() && dice.one_in_thousand(faults.reorder) {
            self.waiting = Some(packet);
            self.ready.extend(twin);
            return;
        }
        self.ready.push_back(packet);
        self.ready.extend(twin);
        if let Some(overtaken) = self.waiting.take() {
            tally.reordered += 1;
            self.ready.push_back(overtaken);
        }
    }

    /// Delivers the delayed packet, although it has no successor.
    pub(super) fn give_up_waiting(&mut self) {
        self.ready.extend(self.waiting.take());
    }

    /// Whether handled packets wait for `take`.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Moves passed packets to `frames`: at most `limit` frames, or one longer packet. Returns false if none is ready.
    pub(super) fn take(&mut self, frames: &mut Vec<Frame>, limit: usize) -> bool {
        let mut taken = 0;
        while let Some(packet) = self.ready.pop_front() {
            if taken + packet.len() > limit && (taken > 0 || limit == 0) {
                self.ready.push_front(packet);
                break;
            }
            taken += packet.len();
            frames.extend(packet);
        }
        taken > 0
    }
}
