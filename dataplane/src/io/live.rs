//! The interface between a worker and a live port: bursts of packets as frames of the shared memory.

use std::os::fd::RawFd;

use super::{FlowSlot, Frame, FramePool};

/// A queue of an interface, or an object that behaves like one. Owned by one worker.
///
/// A packet consists of one or more frames; [`Frame::has_more`] is true for all but its last.
pub trait Port: Send {
    /// Appends whole received packets to `frames`: at most `limit` frames, or one longer packet.
    ///
    /// # Errors
    /// [`PortError`] if the port will never receive again.
    fn receive(&mut self, frames: &mut Vec<Frame>, limit: usize) -> Result<(), PortError>;

    /// Removes whole packets from the front of `frames` and enqueues them for sending. Packets that do not fit stay in `frames`.
    ///
    /// # Errors
    /// [`PortError`] if the port will never send again. The packets stay in `frames`.
    fn send(&mut self, frames: &mut Vec<Frame>) -> Result<(), PortError>;

    /// Must be called once per burst. Wakes the kernel for packets to send or for new receive memory, returns sent frames to the pool, and
    /// takes empty frames for receiving.
    ///
    /// # Errors
    /// [`PortError`] if the port will never work again.
    fn service(&mut self, pool: &mut FramePool) -> Result<(), PortError>;

    /// Closes the port and returns all its frames to the pool. Callers must not use the port afterwards.
    fn close(&mut self, pool: &mut FramePool);

    /// Returns the descriptor that an idle worker waits on. `None` if the worker must poll the port.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    /// Whether the port has work for which the descriptor does not wake the worker: unsent packets in the transmit ring, or a lack of
    /// receive memory.
    fn is_waiting(&self) -> bool {
        false
    }

    /// Returns the port's slot in a flow cache, shared by all queues of the port. `None` if all its packets go to a worker.
    fn slot(&self) -> Option<FlowSlot> {
        None
    }

    /// Losses since the port was opened, as counted by the kernel and the port.
    fn statistics(&self) -> PortStatistics {
        PortStatistics::default()
    }
}

/// Packets that a port has lost since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStatistics {
    /// Received packets lost because the receive ring was full.
    pub receive_ring_full: u64,
    /// Received packets lost because the fill ring was empty.
    pub fill_ring_empty: u64,
    /// Received packets lost for other reasons.
    pub receive_dropped: u64,
    /// Descriptors that the kernel or the port refused, in both directions. Not 0 means a bug of the vswitch.
    pub invalid_descriptors: u64,
}

/// A permanent failure of a port.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The interface was removed or shut down.
    #[error("the interface was removed or is down: {source}")]
    Gone {
        /// The kernel's error.
        source: std::io::Error,
    },
    /// Any other failure.
    #[error("the port failed: {source}")]
    Failed {
        /// The kernel's error.
        source: std::io::Error,
    },
}
