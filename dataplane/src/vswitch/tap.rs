//! A tap: copies of all received packets with their verdicts.

use crossbeam_channel::{Receiver, Sender};

use crate::Outcome;

/// Maximum number of packets that wait for the reader, about 20 MB. If the reader is slower, further packets are missed and counted. The
/// vswitch never waits for the reader.
const WAITING: usize = 8192;

/// A copy of a received packet.
#[derive(Clone, Debug)]
pub struct Captured {
    /// Time of reception, in nanoseconds since 1970.
    pub time: u64,
    /// The first bytes of the frame, at most 3,840, before translation and forwarding.
    pub bytes: Box<[u8]>,
    /// Length of the frame on the wire, in bytes.
    pub wire_len: usize,
    /// The packet's outcome.
    pub outcome: Outcome,
}

/// The workers' end of a tap. Each copy costs an allocation, so use taps for debugging only.
#[derive(Clone, Debug)]
pub struct Tap {
    sender: Sender<Captured>,
}

impl Tap {
    /// Creates a tap and the channel that receives its packets. The channel closes when all workers have ended.
    pub fn new() -> (Self, Receiver<Captured>) {
        let (sender, receiver) = crossbeam_channel::bounded(WAITING);
        (Self { sender }, receiver)
    }

    /// Enqueues a packet. Returns false if the queue is full or the reader is gone.
    pub(super) fn offer(&self, captured: Captured) -> bool {
        self.sender.try_send(captured).is_ok()
    }

    /// Whether the queue has room.
    pub(super) fn has_room(&self) -> bool {
        !self.sender.is_full()
    }
}
