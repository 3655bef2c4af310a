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
    /// How the programs forward flows while no worker is alive.
    pub away: Away,
}

/// How the programs forward flows while no worker is alive. They end idle flows by their sessions' timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Away {
    /// The longest time for which they forward flows; 0 to end them with their leases.
    pub grace: Duration,
    /// Idle timeout of TCP flows after one side's FIN.
    pub half_closed: Duration,
    /// Idle timeout of TCP flows after both sides' FIN or a reset.
    pub closed: Duration,
}

/// A port's limit of packets to the workers. A packet in segments counts as its number of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPathLimit {
    /// Packets per second; 0 for no limit.
    pub rate: u32,
    /// Packets that the port may send at once after a pause.
    pub burst: u32,
}

impl Default for SlowPathLimit {
    /// A worker receives about 400,000 packets per second from the trunk, so three flooding ports leave room for others. The burst is a
    /// tenth of a second: a TCP flow of 1 Gb/s that returns to the workers after a policy change loses no packets until it is cached again.
    fn default() -> Self {
        Self { rate: 100_000, burst: 10_000 }
    }
}
