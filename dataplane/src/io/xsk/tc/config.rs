//! The settings of the tc data path.

use std::path::PathBuf;
use std::time::Duration;

use crate::Affinity;

/// Settings of the data path.
#[derive(Clone, Debug)]
pub struct TcConfig {
    /// The names of the trunk's ends. Programs send to the first; the second has the workers' sockets.
    pub trunk: [String; 2],
    /// The hash that assigns packets to workers. Must equal the workers'.
    pub affinity: Affinity,
    /// Number of workers. Each has one queue of the trunk.
    pub workers: u32,
    /// Each port's limit of packets to the workers.
    pub slow_path: SlowPathLimit,
    /// Whether to replace filters by links (tcx, Linux 6.6).
    pub links: bool,
    /// Folder in a BPF file system where maps and links are pinned, so that they outlive the process. `None` to pin nothing.
    pub pins: Option<PathBuf>,
    /// For how long the programs forward flows without a worker that is alive.
    pub away: Away,
}

/// For how long the programs forward flows while the process is stopped or has died. Within the grace period, a flow ends when no packet
/// arrives for the idle timeout of its session, or for one of these shorter timeouts once its TCP connection begins to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away {
    /// The longest time without a worker for which the programs forward flows. With zero, each flow ends with its lease.
    pub grace: Duration,
    /// Idle timeout of a TCP connection of which one side has sent a FIN.
    pub half_closed: Duration,
    /// Idle timeout of a TCP connection of which both sides have sent a FIN, or one a reset.
    pub closed: Duration,
}

/// The limit on packets that a port sends to the workers, a token bucket. A packet that the kernel has not segmented yet counts as the number
/// of its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPathLimit {
    /// Packets per second. 0 means no limit.
    pub rate: u32,
    /// The bucket's size: packets that the port may send at once after a pause. Ignored without a limit.
    pub burst: u32,
}

impl Default for SlowPathLimit {
    /// A worker receives about 400,000 packets per second from the trunk, so three flooding ports leave room for others. The burst is a
    /// tenth of a second: a TCP flow of 1 Gb/s that returns to the workers after a policy change loses no packets until it is cached again.
    fn default() -> Self {
        Self { rate: 100_000, burst: 10_000 }
    }
}
