//! How a vswitch is made, why it could not be, and what it tells while it runs.

use std::sync::Arc;
use std::time::Duration;

use super::Tap;
use crate::io::{FlowCache, PortError, UmemError};
use crate::{Affinity, PortId, SessionMemoryError, SessionStoreError, WorkerConfig};

/// The most workers: there is a lane for each ordered pair of them.
pub(super) const MAX_WORKERS: usize = 64;

/// The usual [`VswitchConfig::lease`]: long enough for a restart, and short enough that what nothing else ends is looked at again.
pub const LEASE: Duration = Duration::from_secs(30);

/// What a worker does when nothing is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollMode {
    /// Asks its ports again and again: the shortest delay, and a core that is always busy.
    Spin,
    /// Asks for a while and then sleeps until a port or another worker has something.
    #[default]
    Adaptive,
}

/// How a vswitch is made.
#[derive(Clone, Debug)]
pub struct VswitchConfig {
    /// One worker per element, pinned to that core or not at all.
    pub cores: Vec<Option<usize>>,
    /// What they do when nothing is to do.
    pub poll: PollMode,
    /// The engine's configuration. The capacity of the sessions is for all workers together.
    pub engine: WorkerConfig,
    /// How many frames of 4 KiB all ports share.
    pub frames: u32,
    /// Where copies of all received packets go, with their verdicts.
    pub tap: Option<Tap>,
    /// Where packets of established sessions between pods are forwarded without coming to a worker. With a tap it gets no
    /// flows: a tap's copies are of all packets.
    pub flow_cache: Option<Arc<dyn FlowCache>>,
    /// The longest time for which a flow in the cache is good without a packet of it that comes to a worker. At the end of it one
    /// does, and those behind it may overtake it.
    pub lease: Duration,
    /// How the workers share packets out among them; the same as the trunk's programs have, where there is one.
    pub affinity: Affinity,
}

/// Why a vswitch could not be started.
#[derive(Debug, thiserror::Error)]
pub enum VswitchError {
    /// None, or too many.
    #[error("{workers} workers; there must be 1 to {MAX_WORKERS}")]
    Workers {
        /// How many were asked for.
        workers: usize,
    },
    /// No packet memory.
    #[error(transparent)]
    Umem(#[from] UmemError),
    /// No memory for the sessions.
    #[error(transparent)]
    Sessions(#[from] SessionMemoryError),
    /// No files for the sessions.
    #[error(transparent)]
    Store(#[from] SessionStoreError),
    /// The system refused a thread or a descriptor.
    #[error("cannot start worker {worker}: {source}")]
    Start {
        /// Which one.
        worker: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// Thread and core do not come together.
    #[error(
        "worker {worker} cannot be pinned to core {core}\n  help: name a core that this process may use (see `nproc --all`, `taskset -p $$`)"
    )]
    Core {
        /// Which worker.
        worker: usize,
        /// Which core.
        core: usize,
    },
}

/// What happened to the running vswitch.
#[derive(Debug)]
pub enum VswitchEvent {
    /// A port failed and was closed; the rest goes on.
    PortGone {
        /// Which port.
        port: PortId,
        /// Which of its queues.
        queue: u32,
        /// Why.
        error: PortError,
    },
    /// A queue of the trunk failed, and with it all ports that are attached to it: somebody has removed the trunk.
    TrunkGone {
        /// Why.
        error: PortError,
    },
    /// A worker has failed in the middle of something and goes on with its sessions: a fault of the program.
    WorkerRestarted {
        /// Which one.
        worker: usize,
    },
}
