//! A port that injects faults by a plan. Tests prove with it that the vswitch leaks no frame, counts every packet and keeps
//! running, whatever a link does to packets.
//!
//! ```text
//!   worker <-- receive -- [burst of one?] <- faults <- the other port
//!   worker -- send ----> [refuse?] -> faults -------> the other port
//! ```
//!
//! A seeded random generator per direction selects the faults, so the same calls with the same packets meet the same faults.
//!
//! **Invariant.** The port keeps only a small stock of frames, for duplicates. The next `service` returns a lost packet's frames to the
//! pool; `close` returns all frames.

mod stage;

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::segments::whole;
use super::{Frame, FramePool, Port, PortError, PortStatistics, Umem};
use stage::{Dice, Stage, Workshop};

/// Frames kept for duplicates: more than a burst needs if one of four packets is duplicated. Without a free frame the packet is
/// neither duplicated nor counted.
const STOCK: usize = 64;

/// The faults to inject. The default injects none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Seed of the random generators.
    pub seed: u64,
    /// Faults of packets that the port receives.
    pub receive: Faults,
    /// Faults of packets that are sent to the port.
    pub send: Faults,
    /// Calls of `send` per thousand that accept no packet, as if the queue were full.
    pub refuse: u16,
    /// Whether each `receive` returns at most one packet.
    pub bursts_of_one: bool,
    /// Number of calls after which the port fails with [`PortError::Gone`]. `None` if it never fails.
    pub gone_after: Option<u64>,
}

/// Packets per thousand that meet each fault. A packet may meet several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Packets per thousand that are lost.
    pub lose: u16,
    /// Packets per thousand that arrive twice.
    pub duplicate: u16,
    /// Packets per thousand that arrive after their successor, or late without one. Sent packets are swapped only within one call.
    pub reorder: u16,
    /// Packets per thousand that lose bytes at their end.
    pub truncate: u16,
    /// Packets per thousand of which one byte changes.
    pub corrupt: u16,
}

/// Faults injected so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Faults of received packets.
    pub receive: FaultTally,
    /// Faults of sent packets.
    pub send: FaultTally,
    /// Calls of `send` that the plan refused.
    pub refused: u64,
}

/// Packets of one direction, by fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultTally {
    /// All packets that passed the port in this direction.
    pub packets: u64,
    /// Packets that the port lost.
    pub lost: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Packets overtaken by their successor.
    pub reordered: u64,
    /// Packets that lost bytes at their end.
    pub truncated: u64,
    /// Packets with a changed byte.
    pub corrupted: u64,
}

/// A port that wraps another port and injects faults.
#[derive(Debug)]
pub struct FaultPort<P> {
    port: P,
    plan: FaultPlan,
    receive: Stage,
    send: Stage,
    refusal: Dice,
    workshop: Workshop,
    /// Packets that were sent but that the inner port has not accepted yet. Empty between calls unless the inner port is full.
    transit: Vec<Frame>,
    calls: u64,
    refused: u64,
    counts: Arc<Mutex<FaultCounts>>,
}

/// Reads a port's fault counts while a worker owns the port.
#[derive(Clone, Debug)]
pub struct FaultWatch(Arc<Mutex<FaultCounts>>);

impl FaultWatch {
    /// Returns the faults injected so far.
    pub fn counts(&self) -> FaultCounts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Port> FaultPort<P> {
    /// Wraps a port. `umem` is the region of its frames.
    pub fn new(port: P, plan: FaultPlan, umem: Arc<Umem>) -> Self {
        // Different seeds, so that the directions meet independent faults.
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

    /// Returns a handle that reads the fault counts.
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

    /// Sends the ready packets. Packets that the inner port does not accept stay in `transit`.
    fn flush(&mut self) -> Result<(), PortError> {
        self.send.give_up_waiting();
        self.send.take(&mut self.transit, usize::MAX);
        if self.transit.is_empty() { Ok(()) } else { self.port.send(&mut self.transit) }
    }
}

impl<P: Port> Port for FaultPort<P> {
    fn receive(&mut self, frames: &mut Vec<Frame>, limit: usize) -> Result<(), PortError> {
        self.begin_call()?;
        // A limit of one frame returns one packet, even one of several frames.
        let limit = if self.plan.bursts_of_one { limit.min(1) } else { limit };
        let mut result = Ok(());
        // Returns duplicates first, so that they do not accumulate.
        if !self.receive.has_ready() {
            let mut arrived = Vec::new();
            result = self.port.receive(&mut arrived, limit);
            if arrived.is_empty() {
                self.receive.give_up_waiting();
            }
            self.receive.pass(&mut arrived, &mut self.workshop);
            self.tell();
        }
        // Reports the inner port's error only after all packets before it.
        if self.receive.take(frames, limit) { Ok(()) } else { result }
    }

    fn send(&mut self, frames: &mut Vec<Frame>) -> Result<(), PortError> {
        self.begin_call()?;
        if self.refusal.one_in_thousand(self.plan.refuse) {
            self.refused += 1;
            self.tell();
            return Ok(());
        }
        // Accepts packets only if the inner port has room, so that packets wait with their sender.
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
