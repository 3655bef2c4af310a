//! A port that misbehaves by a plan, for tests: whatever a link does to packets, the vswitch loses no frame, counts
//! every packet and goes on.
//!
//! ```text
//!   worker <-- receive -- [burst of one?] <- faults <- the other port
//!   worker -- send ----> [refuse?] -> faults -------> the other port
//! ```
//!
//! What happens is decided by a generator of numbers with a seed, one per direction, so the same packets in the same
//! calls meet the same faults in every run.
//!
//! **Invariant.** The port has no frames of its own but a small stock for duplicates. A lost packet's frames go back to
//! the pool with the next `service`, and all that it holds with `close`.

mod stage;

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::segments::whole;
use super::{Frame, FramePool, Port, PortError, PortStatistics, Umem};
use stage::{Dice, Stage, Workshop};

/// Frames that are kept for duplicates: more than a burst needs when one of four packets is doubled. A duplicate for
/// which none is left does not happen, and is not counted.
const STOCK: usize = 64;

/// What is to go wrong. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Where the generator of numbers starts.
    pub seed: u64,
    /// What happens to received packets.
    pub receive: Faults,
    /// What happens to packets on their way out.
    pub send: Faults,
    /// How many of a thousand calls of `send` take nothing, as if the queue were full.
    pub refuse: u16,
    /// Each `receive` gives one packet at the most.
    pub bursts_of_one: bool,
    /// After so many calls the port is gone.
    pub gone_after: Option<u64>,
}

/// How many of a thousand packets meet each fault. A packet may meet several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Vanish.
    pub lose: u16,
    /// Come twice.
    pub duplicate: u16,
    /// Come after the packet that followed. When none follows they come late; sent ones are swapped within one call only.
    pub reorder: u16,
    /// Lose some of their end.
    pub truncate: u16,
    /// Have a byte changed.
    pub corrupt: u16,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Of the received packets.
    pub receive: FaultTally,
    /// Of the packets on their way out.
    pub send: FaultTally,
    /// Calls of `send` that took nothing.
    pub refused: u64,
}

/// Packets by what was done to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultTally {
    /// Packets that came along.
    pub packets: u64,
    /// Lost.
    pub lost: u64,
    /// Doubled.
    pub duplicated: u64,
    /// Overtaken by a later packet.
    pub reordered: u64,
    /// Cut.
    pub truncated: u64,
    /// Changed.
    pub corrupted: u64,
}

/// A port around another port.
#[derive(Debug)]
pub struct FaultPort<P> {
    port: P,
    plan: FaultPlan,
    receive: Stage,
    send: Stage,
    refusal: Dice,
    workshop: Workshop,
    /// Packets between the stages and the inner port. Empty between calls, unless the inner port is full.
    transit: Vec<Frame>,
    calls: u64,
    refused: u64,
    counts: Arc<Mutex<FaultCounts>>,
}

/// Tells what a port did, also when the port belongs to a worker.
#[derive(Clone, Debug)]
pub struct FaultWatch(Arc<Mutex<FaultCounts>>);

impl FaultWatch {
    /// What was done so far.
    pub fn counts(&self) -> FaultCounts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Port> FaultPort<P> {
    /// Puts the plan between a port and its worker. The region is the one that the frames are of.
    pub fn new(port: P, plan: FaultPlan, umem: Arc<Umem>) -> Self {
        // Numbers that differ, as the directions must not roll the same dice.
        let dice = |which: u64| Dice::new(plan.seed.wrapping_mul(3).wrapping_add(which));
        Self {
            port,
            plan,
            receive: Stage::new(plan.receive, dice(0)),
            send: Stage::new(plan.send, dice(1)),
            refusal: dice(2),
            workshop: Workshop { umem, stock: Vec::new(), spent: Vec::new() },
            transit: Vec::new(),
            calls: 0,
            refused: 0,
            counts: Arc::default(),
        }
    }

    /// Something that goes on telling what was done.
    pub fn watch(&self) -> FaultWatch {
        FaultWatch(Arc::clone(&self.counts))
    }

    fn begin_call(&mut self) -> Result<(), PortError> {
        if self.plan.gone_after.is_some_and(|calls| self.calls >= calls) {
            let source = io::Error::new(io::ErrorKind::NotConnected, "the plan of faults says so");
            return Err(PortError::Gone { source });
        }
        self.calls += 1;
        Ok(())
    }

    fn tell(&self) {
        let counts = FaultCounts { receive: self.receive.tally, send: self.send.tally, refused: self.refused };
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// Sends what is ready. What the inner port does not take stays in `transit`.
    fn flush(&mut self) -> Result<(), PortError> {
        self.send.give_up_waiting();
        self.send.take(&mut self.transit, usize::MAX);
        if self.transit.is_empty() { Ok(()) } else { self.port.send(&mut self.transit) }
    }
}

impl<P: Port> Port for FaultPort<P> {
    fn receive(&mut self, frames: &mut Vec<Frame>, limit: usize) -> Result<(), PortError> {
        self.begin_call()?;
        // One frame is one packet: a packet of several comes whole.
        let limit = if self.plan.bursts_of_one { limit.min(1) } else { limit };
        let mut result = Ok(());
        // Duplicates first, so that they do not pile up in here.
        if !self.receive.has_ready() {
            let mut arrived = Vec::new();
            result = self.port.receive(&mut arrived, limit);
            if arrived.is_empty() {
                self.receive.give_up_waiting();
            }
            self.receive.pass(&mut arrived, &mut self.workshop);
            self.tell();
        }
        // The end of the inner port is told when everything before it was delivered.
        if self.receive.take(frames, limit) { Ok(()) } else { result }
    }

    fn send(&mut self, frames: &mut Vec<Frame>) -> Result<(), PortError> {
        self.begin_call()?;
        if self.refusal.one_in_thousand(self.plan.refuse) {
            self.refused += 1;
            self.tell();
            return Ok(());
        }
        // Only when the inner port has room again: packets wait with their sender, not in here.
        if self.transit.is_empty() {
            let count = whole(frames, frames.len());
            self.transit.extend(frames.drain(..count));
            self.send.pass(&mut self.transit, &mut self.workshop);
            self.tell();
        }
        let result = self.flush();
        if result.is_err() {
            frames.splice(0..0, self.transit.drain(..));
        }
        result
    }

    fn service(&mut self, pool: &mut FramePool) -> Result<(), PortError> {
        self.begin_call()?;
        self.workshop.service(pool, STOCK);
        if !self.transit.is_empty() {
            self.port.send(&mut self.transit)?;
        }
        self.port.service(pool)
    }

    fn close(&mut self, pool: &mut FramePool) {
        self.receive.give_up_waiting();
        self.send.give_up_waiting();
        self.receive.take(&mut self.transit, usize::MAX);
        self.send.take(&mut self.transit, usize::MAX);
        pool.give_all(self.transit.drain(..));
        self.workshop.close(pool);
        self.port.close(pool);
    }

    fn is_waiting(&self) -> bool {
        self.port.is_waiting()
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.port.descriptor()
    }

    fn statistics(&self) -> PortStatistics {
        self.port.statistics()
    }
}

#[cfg(test)]
mod tests;
