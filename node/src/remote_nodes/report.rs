//! What status and metrics report about the ways to other nodes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_dataplane::io::TunnelDrops;
use bulkhead_observe::admin::{NodeWays, RemoteNodesStatus};
use prometheus_client::metrics::histogram::Histogram;

use super::probes::{Paths, SharedPaths};
use crate::config::Config;

/// The last look's report and the probes' results, which the admin and metrics threads read.
#[derive(Clone, Debug)]
pub(crate) struct SharedReport {
    /// `None` until the first look.
    look: Arc<Mutex<Option<Report>>>,
    /// The ways with the probes' results.
    pub(super) paths: SharedPaths,
}

/// The result of one look at the kernel's routes.
#[derive(Clone, Debug)]
pub(super) struct Report {
    /// The ways, without the number of drops and the probes.
    pub(super) status: RemoteNodesStatus,
    /// The tunnel's counter of drops. `None` without a tunnel.
    pub(super) drops: Option<TunnelDrops>,
}

impl SharedReport {
    /// Returns a report before the first look.
    pub(super) fn new(config: &Config) -> Self {
        let paths = SharedPaths::new(Paths::new(config.probing, config.encapsulation.port));
        Self { look: Arc::default(), paths }
    }

    /// Returns the ways of the last look, with the present number of drops and the probes' summary. `None` before the first look.
    pub(crate) fn read(&self) -> Option<RemoteNodesStatus> {
        let Report { status, drops } = self.lock().clone()?;
        // A count that cannot be read is shown as 0.
        let tunnel_dropped = drops.map_or(0, |drops| drops.count().unwrap_or_default());
        Some(RemoteNodesStatus { tunnel_dropped, probes: self.paths.lock().summary(), ..status })
    }

    /// Returns each way with its state. `own` is this node's name.
    pub(crate) fn ways(&self, own: &str) -> NodeWays {
        self.paths.lock().rows(own)
    }

    /// Returns the round trips of probes, in seconds.
    pub(crate) fn round_trips(&self) -> Histogram {
        self.paths.lock().round_trips().clone()
    }

    /// Locks the last look's report.
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<Report>> {
        self.look.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
