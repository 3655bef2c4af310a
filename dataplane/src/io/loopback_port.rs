//! In-memory ports for tests and benches: each end receives the packets that the other sends.
//!
//! ```text
//!   worker -- LoopbackPort ==ring==> LoopbackPort -- LoopbackPeer -- test: push(bytes), pop() -> bytes
//!                          <==ring==
//! ```
//!
//! A pair resembles a veth pair. In a bench, a worker owns both ends and forwards packets in a loop, without the cost of a generator.
//! A test keeps one end as a [`LoopbackPeer`], in any thread.
//!
//! The rings are `rtrb`'s single-producer, single-consumer rings. A batch is one chunk: one atomic store per burst, and a receiver never
//! sees half a packet. The alternative, `crossbeam`'s `ArrayQueue`, costs a compare-and-swap per frame and exposes partial packets.
//!
//! **Invariant.** No frame is lost. Frames in a ring go to the pool of the end that closes last.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rtrb::{Consumer, Producer, RingBuffer};

use super::segments::{first, gather, scatter, whole};
use super::{FlowSlot, Frame, FramePool, Port, PortError, PortStatistics};

/// One end of a pair of connected ports in memory.
#[derive(Debug)]
pub struct LoopbackPort {
    outgoing: Option<Outgoing>,
    incoming: Option<Incoming>,
    /// Frames of packets longer than the ring, which would block it forever.
    oversized: Vec<Frame>,
    statistics: PortStatistics,
    slot: Option<FlowSlot>,
}

#[derive(Debug)]
struct Outgoing {
    ring: Producer<Frame>,
    lane: Arc<Lane>,
}

#[derive(Debug)]
struct Incoming {
    ring: Consumer<Frame>,
    lane: Arc<Lane>,
}

/// State that the two ends of one direction share.
#[derive(Debug, Default)]
struct Lane {
    /// Whether either end is closed. Never reset.
    closed: AtomicBool,
    /// Which end closed first. Only `close` uses it.
    ending: Mutex<Ending>,
}

/// The end that closed first. A closing receiver leaves its half of the ring, with which the sender takes the remaining frames.
#[derive(Debug, Default)]
enum Ending {
    #[default]
    Open,
    SenderClosed,
    ReceiverClosed(Consumer<Frame>),
}

impl LoopbackPort {
    /// Creates both ends of a pair, with room for `capacity` frames per direction. A packet needs one frame per
    /// [`Umem::ROOM`](super::Umem::ROOM) bytes. A packet of more than `capacity` frames is lost and counted as an invalid descriptor.
    ///
    /// # Panics
    /// If `capacity` is 0.
    pub fn pair(capacity: usize) -> (Self, Self) {
        assert!(capacity > 0, "a queue without room passes nothing");
        let (there_out, there_in) = lane(capacity);
        let (back_out, back_in) = lane(capacity);
        (Self::new(there_out, back_in), Self::new(back_out, there_in))
    }

    /// Sets this end's slot in a flow cache.
    #[must_use]
    pub const fn with_slot(mut self, slot: FlowSlot) -> Self {
        self.slot = Some(slot);
        self
    }

    const fn new(outgoing: Outgoing, incoming: Incoming) -> Self {
        let statistics =
            PortStatistics { receive_ring_full: 0, fill_ring_empty: 0, receive_dropped: 0, invalid_descriptors: 0 };
        Self { outgoing: Some(outgoing), incoming: Some(incoming), oversized: Vec::new(), statistics, slot: None }
    }

    /// Returns the number of free frames in the outgoing ring. `None` if this end is closed.
    fn room(&self) -> Option<usize> {
        self.outgoing.as_ref().map(|outgoing| outgoing.ring.slots())
    }
}

impl Port for LoopbackPort {
    /// Fails with [`PortError::Gone`] if the other end is closed and the ring is empty.
    fn receive(&mut self, frames: &mut Vec<Frame>, limit: usize) -> Result<(), PortError> {
        let Some(Incoming { ring, lane }) = &mut self.incoming else { return Err(gone()) };
        // Read before the ring, so that packets sent before the close are received.
        let closed = lane.closed.load(Ordering::Acquire);
        let waiting = ring.slots();
        if waiting == 0 {
            return if closed { Err(gone()) } else { Ok(()) };
        }
        let chunk = ring.read_chunk(waiting).expect("that many are there, and nobody else takes them");
        let (front, back) = chunk.as_slices();
        let count = match whole(back, limit.saturating_sub(front.len())) {
            0 => whole(front, limit),
            more => front.len() + more,
        };
        let count = match count {
            0 if limit > 0 => first(front.iter().chain(back)).unwrap_or(0),
            count => count,
        };
        frames.reserve(count);
        chunk.into_iter().take(count).for_each(|frame| frames.push(frame));
        Ok(())
    }

    fn send(&mut self, frames: &mut Vec<Frame>) -> Result<(), PortError> {
        let Some(Outgoing { ring, lane }) = &mut self.outgoing else { return Err(gone()) };
        if lane.closed.load(Ordering::Acquire) {
            return Err(gone());
        }
        let capacity = ring.buffer().capacity();
        loop {
            let count = whole(frames, ring.slots());
            if count > 0 {
                let chunk = ring.write_chunk_uninit(count).expect("that many slots are free, and only get more");
                chunk.fill_from_iter(frames.drain(..count).map(Frame::unmarked));
            }
            match first(&*frames) {
                Some(count) if count > capacity => {
                    self.statistics.invalid_descriptors += 1;
                    self.oversized.extend(frames.drain(..count));
                }
                _ => return Ok(()),
            }
        }
    }

    fn service(&mut self, pool: &mut FramePool) -> Result<(), PortError> {
        pool.give_all(self.oversized.drain(..));
        Ok(())
    }

    fn close(&mut self, pool: &mut FramePool) {
        pool.give_all(self.oversized.drain(..));
        if let Some(incoming) = self.incoming.take() {
            incoming.close(pool);
        }
        if let Some(outgoing) = self.outgoing.take() {
            outgoing.close(pool);
        }
    }

    fn slot(&self) -> Option<FlowSlot> {
        self.slot
    }

    fn statistics(&self) -> PortStatistics {
        self.statistics
    }
}

impl Incoming {
    fn close(self, pool: &mut FramePool) {
        let Self { mut ring, lane } = self;
        lane.closed.store(true, Ordering::Release);
        let mut ending = lane.ending.lock().unwrap_or_else(PoisonError::into_inner);
        drain(&mut ring, pool);
        if matches!(*ending, Ending::Open) {
            *ending = Ending::ReceiverClosed(ring);
        }
    }
}

impl Outgoing {
    fn close(self, pool: &mut FramePool) {
        let Self { ring, lane } = self;
        // Dropped before `closed` is set, so that a receiver that sees the close sees all sent frames.
        drop(ring);
        lane.closed.store(true, Ordering::Release);
        let mut ending = lane.ending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ending::ReceiverClosed(mut ring) = std::mem::replace(&mut *ending, Ending::SenderClosed) {
            drain(&mut ring, pool);
        }
    }
}

/// Dropping without `close` loses the frames, but tells the other end that this end is closed.
impl Drop for LoopbackPort {
    fn drop(&mut self) {
        let lanes = [self.outgoing.as_ref().map(|end| &end.lane), self.incoming.as_ref().map(|end| &end.lane)];
        for lane in lanes.into_iter().flatten() {
            lane.closed.store(true, Ordering::Release);
        }
    }
}

/// The end of a pair that a test holds: it sends and receives packets as bytes. Dropping it closes its port.
#[derive(Debug)]
pub struct LoopbackPeer {
    port: LoopbackPort,
    pool: FramePool,
    frames: Vec<Frame>,
}

/// An error of sending a packet.
#[derive(Debug, thiserror::Error)]
pub enum LoopbackError {
    /// The queue is full until the other end receives.
    #[error("the queue is full; the other end must receive first")]
    Full,
    /// The pool has too few free frames for the packet.
    #[error("the pool has too few frames for the packet")]
    NoFrames,
    /// The other end is closed.
    #[error(transparent)]
    Port(#[from] PortError),
}

impl LoopbackPeer {
    /// Creates a peer that uses frames of `pool`. A pool takes hundreds of frames at once, so a region of a few hundred frames leaves none
    /// for the other end.
    pub const fn new(port: LoopbackPort, pool: FramePool) -> Self {
        Self { port, pool, frames: Vec::new() }
    }

    /// Sends a packet, which begins with its link header.
    ///
    /// # Errors
    /// [`LoopbackError`] if the packet was not sent.
    pub fn push(&mut self, packet: &[u8]) -> Result<(), LoopbackError> {
        if !scatter(&mut self.pool, packet, &mut self.frames) {
            return Err(LoopbackError::NoFrames);
        }
        let sent = self.port.send(&mut self.frames);
        self.port.service(&mut self.pool)?;
        let was_taken = self.frames.is_empty();
        self.pool.give_all(self.frames.drain(..));
        sent?;
        if was_taken { Ok(()) } else { Err(LoopbackError::Full) }
    }

    /// Sends packets as one atomic batch: the other end receives all or none.
    ///
    /// # Errors
    /// [`LoopbackError`] if the packets were not sent.
    pub fn push_burst(&mut self, packets: &[impl AsRef<[u8]>]) -> Result<(), LoopbackError> {
        let has_frames = packets.iter().all(|packet| scatter(&mut self.pool, packet.as_ref(), &mut self.frames));
        let sent = match self.port.room() {
            _ if !has_frames => Err(LoopbackError::NoFrames),
            Some(room) if room < self.frames.len() => Err(LoopbackError::Full),
            _ => self.port.send(&mut self.frames).map_err(LoopbackError::Port),
        };
        self.pool.give_all(self.frames.drain(..));
        sent
    }

    /// Receives a packet. `None` if the ring is empty, even after the other end has closed.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        // A limit of one frame receives one packet. Only sending reports that the other end is closed.
        let _gone = self.port.receive(&mut self.frames, 1);
        let mut packet = Vec::new();
        gather(self.pool.umem(), &self.frames, &mut packet);
        let some = !self.frames.is_empty();
        self.pool.give_all(self.frames.drain(..));
        some.then_some(packet)
    }

    /// Returns the pool of this end, for example to count its frames.
    pub const fn pool(&mut self) -> &mut FramePool {
        &mut self.pool
    }
}

impl Drop for LoopbackPeer {
    fn drop(&mut self) {
        self.port.close(&mut self.pool);
    }
}

fn lane(capacity: usize) -> (Outgoing, Incoming) {
    let (sender, receiver) = RingBuffer::new(capacity);
    let lane = Arc::new(Lane::default());
    (Outgoing { ring: sender, lane: Arc::clone(&lane) }, Incoming { ring: receiver, lane })
}

fn drain(ring: &mut Consumer<Frame>, pool: &mut FramePool) {
    let waiting = ring.slots();
    pool.give_all(ring.read_chunk(waiting).expect("that many are there, and nobody else takes them"));
}

fn gone() -> PortError {
    PortError::Gone { source: io::Error::new(io::ErrorKind::BrokenPipe, "the other end is closed") }
}

#[cfg(test)]
mod tests;
