//! The state of a configured port's interface, and how long it waits for what.

use std::time::{Duration, Instant};

use bulkhead_dataplane::Link;

/// How long to wait before a port that could not be opened is tried again. The usual reason is one that a person must
/// remove, so trying often would only fill the log's rate.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// The same for an interface that cannot be attached to. Its packets go past the vswitch, so this is short.
pub(super) const ATTACH_RETRY: Duration = Duration::from_millis(100);

/// The same for a queue that is busy. One that was just closed, by us or by a process that was killed, is busy until the
/// kernel has let go of the last packet that it was sending: 40 ms at most, as far as was seen.
pub(super) const BUSY_RETRY: Duration = Duration::from_millis(20);

/// How long a queue may be busy before it is said.
pub(super) const BUSY: Duration = Duration::from_secs(2);

/// How long an added port waits for the kernel to act on the carrier of its interface, which takes less than a millisecond when the
/// machine is idle. Interfaces of some kinds never tell that it has.
pub(super) const CARRIER: Duration = Duration::from_secs(1);

/// What a closed port waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// For nothing: it is not to be opened.
    Never,
    /// For somebody to set its interface up.
    Up,
    /// For the kernel to act on the carrier that its interface has, until this time at most.
    Carrier { until: Instant },
    /// For its turn, from this time on.
    Turn {
        at: Instant,
        /// Since when one of its queues is busy.
        busy_since: Option<Instant>,
    },
}

impl Wait {
    pub(super) const fn until(at: Instant) -> Self {
        Self::Turn { at, busy_since: None }
    }
}

/// The state of a configured port's interface, and what is held for it.
#[derive(Debug)]
pub(super) enum State<A> {
    /// There is no interface of its name, or it is another port's.
    Absent,
    /// It is there and nothing can be attached to it: its packets go to the host's stack.
    Unprotected {
        index: u32,
        /// When the last failure was counted.
        counted: Instant,
        /// When it is tried again.
        again: Instant,
    },
    /// Attached, and each of its packets is dropped.
    Closed { index: u32, attachment: A, wait: Wait },
    /// Attached, and its packets come to the workers.
    Open { index: u32, attachment: A, link: Link, largest_mtu: u16 },
}

impl<A> State<A> {
    /// The interface that something is attached to.
    pub(super) const fn attached(&self) -> Option<u32> {
        match self {
            Self::Closed { index, .. } | Self::Open { index, .. } => Some(*index),
            Self::Absent | Self::Unprotected { .. } => None,
        }
    }

    /// What is attached to it.
    pub(super) const fn attachment(&self) -> Option<&A> {
        match self {
            Self::Closed { attachment, .. } | Self::Open { attachment, .. } => Some(attachment),
            Self::Absent | Self::Unprotected { .. } => None,
        }
    }

    /// What is attached to it, to be changed.
    pub(super) const fn attachment_mut(&mut self) -> Option<&mut A> {
        match self {
            Self::Closed { attachment, .. } | Self::Open { attachment, .. } => Some(attachment),
            Self::Absent | Self::Unprotected { .. } => None,
        }
    }
}
