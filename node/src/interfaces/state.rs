//! The states of a port's interface, and the times to wait in each.

use std::time::{Duration, Instant};

use bulkhead_dataplane::Link;

/// Retry interval for a port that could not be opened. Usually a person must remove the cause, so a shorter interval would not help.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// Retry interval for attaching to an interface. Short, as its packets bypass the vswitch meanwhile.
pub(super) const ATTACH_RETRY: Duration = Duration::from_millis(100);

/// Retry interval for a busy queue. A queue that this or a killed process has just closed stays busy until the kernel has sent its last
/// packet: at most 40 ms in measurements.
pub(super) const BUSY_RETRY: Duration = Duration::from_millis(20);

/// Time for which a queue may be busy before that is logged.
pub(super) const BUSY: Duration = Duration::from_secs(2);

/// Maximum time for which an added port waits until the kernel has acted on its interface's carrier, which takes less than a millisecond
/// on an idle machine. Some kinds of interfaces never report it.
pub(super) const CARRIER: Duration = Duration::from_secs(1);

/// The event for which a closed port waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// The port waits for no event, because it must stay closed.
    Never,
    /// Its interface goes up.
    Up,
    /// The kernel acts on the carrier of its interface, or the time `until` passes.
    Carrier { until: Instant },
    /// Its turn: the interfaces thread opens the port at the time `at` or later.
    Turn {
        at: Instant,
        /// When one of its queues was first busy. `None` if no queue was.
        busy_since: Option<Instant>,
    },
}

impl Wait {
    pub(super) const fn until(at: Instant) -> Self {
        Self::Turn { at, busy_since: None }
    }
}

/// The state of a port's interface, with its attachment.
#[derive(Debug)]
pub(super) enum State<A> {
    /// No interface has the configured name, or the interface belongs to another port.
    Absent,
    /// Attaching to the interface failed: its packets go to the host's stack.
    Unprotected {
        index: u32,
        /// When a failed attempt was last counted, which happens at most once a second.
        counted: Instant,
        /// When to try to attach again.
        again: Instant,
    },
    /// Attached; all packets are dropped.
    Closed { index: u32, attachment: A, wait: Wait },
    /// Attached; the workers receive the packets.
    Open { index: u32, attachment: A, link: Link, largest_mtu: u16 },
}

impl<A> State<A> {
    /// Returns the index of the attached interface. `None` if none is attached.
    pub(super) const fn attached(&self) -> Option<u32> {
        match self {
            Self::Closed { index, .. } | Self::Open { index, .. } => Some(*index),
            Self::Absent | Self::Unprotected { .. } => None,
        }
    }

    /// Returns the attachment, if any.
    pub(super) const fn attachment(&self) -> Option<&A> {
        match self {
            Self::Closed { attachment, .. } | Self::Open { attachment, .. } => Some(attachment),
            Self::Absent | Self::Unprotected { .. } => None,
        }
    }

    /// Returns the attachment, if any, for changes.
    pub(super) const fn attachment_mut(&mut self) -> Option<&mut A> {
        match self {
            Self::Closed { attachment, .. } | Self::Open { attachment, .. } => Some(attachment),
            Self::Absent | Self::Unprotected { .. } => None,
        }
    }
}
