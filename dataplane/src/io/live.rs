//! What a live port is: packets as frames of the shared memory, in bursts.
//!
//! A capture has no queues and no memory of its own, so it is not one of these; but a port that replays one is.

use std::os::fd::RawFd;

use super::{FlowSlot, Frame, FramePool};

/// A queue of an interface, or something that behaves like one. Owned by one worker.
///
/// A packet is one frame, or several of which all but the last say [`Frame::has_more`].
pub trait Port: Send {
    /// Appends received packets to `frames`: whole packets, and no more frames than `limit` unless a single packet has
    /// more. Gives no frame twice.
    ///
    /// # Errors
    /// [`PortError`] when the port will never receive again.
    fn receive(&mut self, frames: &mut Vec<Frame>, limit: usize) -> Result<(), PortError>;

    /// Takes packets to send from the front of `frames`, whole ones only; what does not fit now stays in there.
    ///
    /// # Errors
    /// [`PortError`] when the port will never send again; the packets are then still in `frames`.
    fn send(&mut self, frames: &mut Vec<Frame>) -> Result<(), PortError>;

    /// What must be done once per burst: wakes the kernel if it has packets to send or lacks memory to receive into,
    /// gives sent frames back to the pool and takes empty ones for receiving.
    ///
    /// # Errors
    /// [`PortError`] when the port will never work again.
    fn service(&mut self, pool: &mut FramePool) -> Result<(), PortError>;

    /// Ends the port and gives every frame that it holds to the pool. Nothing may be called after it.
    fn close(&mut self, pool: &mut FramePool);

    /// What to wait on when nothing is to do; none for a port that must be asked.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    /// Whether something is left to do that nothing will wake the worker for: packets that the kernel has not taken yet, or
    /// no memory to receive into, which comes back when other packets are sent.
    fn is_waiting(&self) -> bool {
        false
    }

    /// The port's place in a flow cache, which the queues of one port share; none when its packets all come to a worker.
    fn slot(&self) -> Option<FlowSlot> {
        None
    }

    /// What went wrong below the port so far, counted by the kernel or by the port itself.
    fn statistics(&self) -> PortStatistics {
        PortStatistics::default()
    }
}

/// What a port lost, in packets since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStatistics {
    /// Received by the kernel and lost because the receive queue was full.
    pub receive_ring_full: u64,
    /// Received by the kernel and lost because no memory was there to receive into.
    pub fill_ring_empty: u64,
    /// Lost for other reasons on the way in.
    pub receive_dropped: u64,
    /// Descriptors that the kernel refused, on either way: a fault of this program.
    pub invalid_descriptors: u64,
}

/// A port that is no more.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Its interface was removed or shut down.
    #[error("the interface is gone or down: {source}")]
    Gone {
        /// What the kernel said.
        source: std::io::Error,
    },
    /// Anything else.
    #[error("the port failed: {source}")]
    Failed {
        /// What the kernel said.
        source: std::io::Error,
    },
}
