//! Sizes of an interface queue's rings.

use super::socket::LONGEST_CHAIN;

/// The capacity of an interface queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Frames reserved for receiving, 4 KiB each, while the queue is open. The default of 1,024 holds one millisecond at a million
    /// packets per second. Its 4 MiB per port allow hundreds of ports.
    pub receive: u32,
    /// Frames that can wait for sending. The default of 1,024 holds four bursts.
    pub transmit: u32,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { receive: 1024, transmit: 1024 }
    }
}

impl QueueConfig {
    /// Entries of the receive and transmit ring, rounded up to powers of two as the kernel requires.
    pub(super) fn ring_sizes(self) -> (u32, u32) {
        /// Maximum entries, as the kernel allocates the rings. Longer than a burst at any packet rate.
        const MOST: u32 = 1 << 16;
        // A ring must hold the longest packet, or that packet could never be sent.
        let size = |wanted: u32| wanted.clamp(LONGEST_CHAIN, MOST).next_power_of_two();
        (size(self.receive), size(self.transmit))
    }
}
