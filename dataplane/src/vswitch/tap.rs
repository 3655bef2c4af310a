//! A copy of everything that comes in, with its verdicts, for whoever wants to look.

use crossbeam_channel::{Receiver, Sender};

use crate::Outcome;

/// Packets that wait for the reader of a tap: about 20 MB at the most. A reader that is further behind misses packets,
/// which are counted; the vswitch never waits for it.
const WAITING: usize = 8192;

/// One packet as it came in.
#[derive(Clone, Debug)]
pub struct Captured {
    /// When it came in, in nanoseconds since 1970.
    pub time: u64,
    /// The frame before anything was changed in it; its first 3,840 bytes.
    pub bytes: Box<[u8]>,
    /// How long it was.
    pub wire_len: usize,
    /// What became of it.
    pub outcome: Outcome,
}

/// The workers' end of a tap. Copying costs an allocation per packet, so a tap is for looking and not for always.
#[derive(Clone, Debug)]
pub struct Tap {
    sender: Sender<Captured>,
}

impl Tap {
    /// A tap and where its packets arrive. The receiver ends when all workers have ended.
    pub fn new() -> (Self, Receiver<Captured>) {
        let (sender, receiver) = crossbeam_channel::bounded(WAITING);
        (Self { sender }, receiver)
    }

    /// Passes a packet on; false when it is missed because the reader is behind or gone.
    pub(super) fn offer(&self, captured: Captured) -> bool {
        self.sender.try_send(captured).is_ok()
    }

    /// Whether an offer would be taken now.
    pub(super) fn has_room(&self) -> bool {
        !self.sender.is_full()
    }
}
