//! Ports in memory, for tests and benches: what one end sends the other receives.
//!
//! ```text
//!   worker -- LoopbackPort ==ring==> LoopbackPort -- LoopbackPeer -- test: push(bytes), pop() -> bytes
//!                          <==ring==
//! ```
//!
//! A pair is like a veth pair. A worker that owns both ends sends packets round in a circle, which is what a bench
//! wants: no generator costs anything. A test gives one end to the worker and keeps the other as a [`LoopbackPeer`],
//! in the same thread or another.
//!
//! The rings are `rtrb`'s, of one producer and one consumer each. A batch is written and read as one chunk: one atomic
//! store per burst, and no packet is ever seen in half. A queue for many producers (`crossbeam`'s `ArrayQueue`) pays a
//! compare-and-swap per frame and could show the first frame of a packet before its last one.
//!
//! **Invariant.** No frame is lost: what is in a ring when an end closes goes to the pool of the end that closes last.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rtrb::{Consumer, Producer, RingBuffer};

use super::segments::{first, gather, scatter, whole};
use super::{FlowSlot, Frame, FramePool, Port, PortError, PortStatistics};

/// One end of a pair.
#[derive(Debug)]
pub struct LoopbackPort {
    outgoing: Option<Outgoing>,
    incoming: Option<Incoming>,
    /// Packets that have more frames than the queue: they would block it for ever.
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

/// What the two ends of one direction know of each other.
#[derive(Debug, Default)]
struct Lane {
    /// Either end is closed. Set once.
    closed: AtomicBool,
    /// Where the frames go that are still in the ring. Only touched when an end closes.
    ending: Mutex<Ending>,
}

/// Only the reading end can take frames out of a ring, so it leaves its right to do so when it closes first.
#[derive(Debug, Default)]
enum Ending {
    #[default]
    Open,
    SenderClosed,
    ReceiverClosed(Consumer<Frame>),
}

impl LoopbackPort {
    /// Two ends. In each direction `capacity` frames fit, which a packet of more than [`Umem::ROOM`](super::Umem::ROOM)
    /// bytes needs several of; a packet of more than `capacity` frames is lost and counted as an invalid descriptor.
    ///
    /// # Panics
    /// When `capacity` is 0.
    pub fn pair(capacity: usize) -> (Self, Self) {
        assert!(capacity > 0, "a queue without room passes nothing");
        let (there_out, there_in) = lane(capacity);
        let (back_out, back_in) = lane(capacity);
        (Self::new(there_out, back_in), Self::new(back_out, there_in))
    }

    /// The same end with a place in a flow cache.
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

    /// How many frames fit into the queue now; none when this end is closed.
    fn room(&self) -> Option<usize> {
        self.outgoing.as_ref().map(|outgoing| outgoing.ring.slots())
    }
}

impl Port for LoopbackPort {
    /// Gives what is in the ring. After the other end has closed and the ring is empty, the port is gone.
    fn receive(&mut self, frames: &mut Vec<Frame>, limit: usize) -> Result<(), PortError> {
        let Some(Incoming { ring, lane }) = &mut self.incoming else { return Err(gone()) };
        // Before the ring: what the other end sent before it closed is then seen.
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
        // The ring's sending half first: whoever sees that it is closed also sees all that was sent.
        drop(ring);
        lane.closed.store(true, Ordering::Release);
        let mut ending = lane.ending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ending::ReceiverClosed(mut ring) = std::mem::replace(&mut *ending, Ending::SenderClosed) {
            drain(&mut ring, pool);
        }
    }
}

/// A port that is dropped and not closed loses the frames in it, but its other end must not wait for it.
impl Drop for LoopbackPort {
    fn drop(&mut self) {
        let lanes = [self.outgoing.as_ref().map(|end| &end.lane), self.incoming.as_ref().map(|end| &end.lane)];
        for lane in lanes.into_iter().flatten() {
            lane.closed.store(true, Ordering::Release);
        }
    }
}

/// The test's end of a pair: packets as bytes. Closes its port when it is dropped.
#[derive(Debug)]
pub struct LoopbackPeer {
    port: LoopbackPort,
    pool: FramePool,
    frames: Vec<Frame>,
}

/// A packet was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LoopbackError {
    /// The other end must receive first.
    #[error("the queue is full")]
    Full,
    /// All frames are in use, or the packet needs more than there are.
    #[error("the pool has too few frames for the packet")]
    NoFrames,
    /// The other end is closed.
    #[error(transparent)]
    Port(#[from] PortError),
}

impl LoopbackPeer {
    /// Drives this end with frames of that pool, which takes some hundreds at once for itself: a region of a few
    /// hundred frames leaves none for the other end.
    pub const fn new(port: LoopbackPort, pool: FramePool) -> Self {
        Self { port, pool, frames: Vec::new() }
    }

    /// Sends a packet of these bytes, beginning with the link header, to the other end.
    ///
    /// # Errors
    /// [`LoopbackError`] when it was not sent.
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

    /// Sends packets as one batch: all of them or none, and the other end does not see one before the others.
    ///
    /// # Errors
    /// [`LoopbackError`] when they were not sent.
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

    /// The next packet that the other end sent; none when there is none now, or never again.
    pub fn pop(&mut self) -> Option<Vec<u8>> {
        // One frame, or one packet. That the other end is gone is told to those who send.
        let _gone = self.port.receive(&mut self.frames, 1);
        let mut packet = Vec::new();
        gather(self.pool.umem(), &self.frames, &mut packet);
        let some = !self.frames.is_empty();
        self.pool.give_all(self.frames.drain(..));
        some.then_some(packet)
    }

    /// The frames of this end; to count them, for example.
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
