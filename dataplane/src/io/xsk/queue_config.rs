//! Sizes of an interface queue's rings.

use super::socket::LONGEST_CHAIN;

/// How much a queue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Frames that the kernel has to receive into. They are the queue's own for as long as it is open, 4 KiB each. The
    /// default of 1,024 lasts a millisecond at a million packets per second, and four megabytes per port let a node
    /// have hundreds.
    pub receive: u32,
    /// Frames that can wait to be sent. The default of 1,024 is four bursts.
    pub transmit: u32,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { receive: 1024, transmit: 1024 }
    }
}

impl QueueConfig {
    /// Entries of the receive and transmit rings: powers of two, as the kernel wants them.
    pub(super) fn ring_sizes(self) -> (u32, u32) {
        /// More than a burst's time at any rate; and the kernel allocates the rings.
        const MOST: u32 = 1 << 16;
        // A packet that is longer than the ring could never be sent.
        let size = |wanted: u32| wanted.clamp(LONGEST_CHAIN, MOST).next_power_of_two();
        (size(self.receive), size(self.transmit))
    }
}
