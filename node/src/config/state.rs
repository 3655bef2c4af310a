//! Settings of the policy source.

use std::path::PathBuf;
use std::time::Duration;

use bulkhead_cluster::kubernetes::Access;
use bulkhead_control::source::Options;

/// Where policy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateConfig {
    /// Files and folders, relative ones resolved against the folder of the configuration. None with an API server.
    pub paths: Vec<PathBuf>,
    /// The API server that is followed, where it is not files.
    pub kubernetes: Option<KubernetesConfig>,
    /// How objects are read. Faults are survived unless that is turned off: one object must not hold a node's other ones back.
    pub options: Options,
    /// What to do when there is no state at start.
    pub when_missing: WhenMissing,
    /// What to do when a changed state does not load.
    pub when_refused: WhenRefused,
}

/// The API server that policy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KubernetesConfig {
    /// How it is reached.
    pub access: Access,
    /// What to do until it was reached.
    pub when_unreachable: WhenUnreachable,
    /// The folder of what is kept for then.
    pub folder: PathBuf,
    /// How old the state may be for the vswitch to be called ready.
    pub stale_after: Duration,
}

/// What to do until an API server was reached for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WhenUnreachable {
    /// Take the interfaces, drop what pods send and are sent, and wait.
    #[default]
    Deny,
    /// Enforce what an earlier process has kept; without that as [`Self::Deny`].
    LastGood,
}

/// What to do when there is no state at start. Nothing is forwarded without one, either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WhenMissing {
    /// End with an error, so that whoever starts it knows.
    #[default]
    Exit,
    /// Take the interfaces, drop every packet but the node's own to and from the uplink, and wait for a state.
    Deny,
}

/// What to do when a changed state does not load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WhenRefused {
    /// Enforce the last good one.
    #[default]
    Keep,
    /// As without a state, until one loads: for clusters where a policy that comes late is worse than an outage.
    Deny,
}
