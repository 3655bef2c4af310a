//! Counters of all streams, for the metrics.

use std::sync::atomic::AtomicU64;

/// Counters since the process started, unless a field says otherwise.
#[derive(Debug, Default)]
pub(crate) struct StreamCounts {
    /// Clients connected now.
    pub(crate) clients: AtomicU64,
    /// Verdicts and packets that workers left out because their rings were full.
    pub(crate) left_out: AtomicU64,
    /// Lines not sent to clients that were slow or over their rate.
    pub(crate) unsent: AtomicU64,
    /// Clients disconnected because they did not read.
    pub(crate) disconnected: AtomicU64,
    /// Verdicts that the stream thread has received.
    pub(crate) seen: AtomicU64,
    /// Verdicts in memory now, for `--last` and Hubble.
    pub(crate) remembered: AtomicU64,
    /// Verdicts a second over the last minute, as the bits of an `f64`.
    pub(crate) rate: AtomicU64,
}
