//! Configuration, start-up errors and events of a vswitch.

use std::sync::Arc;
use std::time::Duration;

use super::Tap;
use crate::io::{FlowCache, PortError, UmemError};
use crate::{Affinity, PortId, SessionMemoryError, SessionStoreError, WorkerConfig};

/// Maximum number of workers. Each ordered pair has a lane.
pub(super) const MAX_WORKERS: usize = 64;

/// Default of [`VswitchConfig::lease`]: long enough for a restart, and short enough that stale flows end soon.
pub const LEASE: Duration = Duration::from_secs(30);

/// How a worker waits for packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollMode {
    /// Polls its ports continuously: lowest latency, and a core that is always busy.
    Spin,
    /// Polls for a while, then sleeps until a port or another worker has packets.
    #[default]
    Adaptive,
}

/// Configuration of a vswitch.
#[derive(Clone, Debug)]
pub struct VswitchConfig {
    /// One worker per element, pinned to this core. `None` does not pin it.
    pub cores: Vec<Option<usize>>,
    /// How the workers wait for packets.
    pub poll: PollMode,
    /// The engine's configuration. The session capacity is the total over all workers.
    pub engine: WorkerConfig,
    /// Number of 4 KiB frames shared by all ports.
    pub frames: u32,
    /// A tap that gets copies of all received packets with their verdicts. `None` without a tap.
    pub tap: Option<Tap>,
    /// A cache that forwards packets of established sessions before they reach a worker. With a tap it gets no flows, because the tap
    /// copies all packets.
    pub flow_cache: Option<Arc<dyn FlowCache>>,
    /// How long a flow may stay in the cache without a renewal by a worker. When the lease ends, one packet goes to a worker, and packets
    /// behind it may overtake it.
    pub lease: Duration,
    /// The hash that assigns packets to workers. The trunk's programs must use the same one.
    pub affinity: Affinity,
}

/// The reason why a vswitch could not be started.
#[derive(Debug, thiserror::Error)]
pub enum VswitchError {
    /// The number of workers is 0 or above the maximum of 64.
    #[error("{workers} workers are configured; set 1 to {MAX_WORKERS}")]
    Workers {
        /// The configured number of workers.
        workers: usize,
    },
    /// The packet memory could not be allocated.
    #[error(transparent)]
    Umem(#[from] UmemError),
    /// The session tables could not be allocated.
    #[error(transparent)]
    Sessions(#[from] SessionMemoryError),
    /// The session files could not be opened.
    #[error(transparent)]
    Store(#[from] SessionStoreError),
    /// The system refused to create a thread or a descriptor.
    #[error("cannot start worker {worker}: {source}")]
    Start {
        /// The worker, counted from 0.
        worker: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// The worker's thread could not be pinned to its core.
    #[error(
        "worker {worker} cannot be pinned to core {core}\n  help: name a core that this process may use (see `nproc --all`, `taskset -p $$`)"
    )]
    Core {
        /// The worker, counted from 0.
        worker: usize,
        /// The configured core.
        core: usize,
    },
}

/// An event of the running vswitch.
#[derive(Debug)]
pub enum VswitchEvent {
    /// A port's queue failed and was closed. The other ports keep running.
    PortGone {
        /// The port.
        port: PortId,
        /// The queue of the port, from 0.
        queue: u32,
        /// Why the port's queue failed.
        error: PortError,
    },
    /// A queue of the trunk failed, and all ports attached to the trunk with it. Usually another program removed the trunk.
    TrunkGone {
        /// Why the trunk's queue failed.
        error: PortError,
    },
    /// A worker panicked and continues with its sessions. This is a bug in the vswitch.
    WorkerRestarted {
        /// The worker, counted from 0.
        worker: usize,
    },
    /// A worker panicked too often and ends, which closes its ports. This is a bug in the vswitch.
    WorkerEnded {
        /// The worker, counted from 0.
        worker: usize,
    },
}
