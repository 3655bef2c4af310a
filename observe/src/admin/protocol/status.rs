//! How the vswitch is: the answer to `status`.

use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{AuditStatus, PortRow};
use bulkhead_answers::services::Counts;

/// How the vswitch is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The program's version.
    pub program: String,
    /// The node whose vswitch it is.
    pub node: String,
    /// Where its pods get their addresses from (`spec.podCIDRs` of its Node); none before there is a state.
    #[serde(default)]
    pub pod_networks: Vec<IpNet>,
    /// Whether pods are served: ports were opened, and there is a policy to judge by.
    pub ready: bool,
    /// Whether nothing may pass, since there is no state that makes sense.
    pub denying: bool,
    /// What judges packets; null of a program that does not tell.
    #[serde(default)]
    pub judging: Option<Judging>,
    /// Since when it runs.
    pub uptime_seconds: u64,
    /// The same in milliseconds, when the counters were read: a rate is the difference of a counter by the difference of this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uptime_ms: Option<u64>,
    /// A number that every process has of its own. Counters begin anew with another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<u64>,
    /// The number of the snapshot in force.
    pub generation: u64,
    /// The policy in force.
    pub policy: PolicyStatus,
    /// What is audited and not enforced.
    #[serde(default)]
    pub audit: AuditStatus,
    /// How well the API server is heard; null where the state is files.
    #[serde(default)]
    pub source: Option<SourceStatus>,
    /// How much is known of Services; null where they are off.
    #[serde(default)]
    pub services: Option<Counts>,
    /// What load balancers are told; null where they are told nothing.
    #[serde(default)]
    pub service_health: Option<ServiceHealth>,
    /// How many ports there are.
    pub ports: PortTotals,
    /// Those that are configured and not open, with the reason.
    pub late: Vec<PortRow>,
    /// The threads that forward.
    pub workers: Vec<WorkerRow>,
    /// The session table.
    pub sessions: SessionTotals,
    /// Packets dropped, by reason, most frequent first.
    pub dropped: Vec<DropRow>,
    /// What the kernel has forwarded by itself.
    pub flow_cache: FlowCacheRow,
    /// The last error that was logged.
    pub last_error: Option<LastError>,
}

/// How the vswitch is, in a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// It forwards and enforces.
    Ready,
    /// Nothing passes, as there is no state to judge by.
    Denying,
    /// Not yet.
    #[default]
    Starting,
    /// What is known of the API server is too old.
    NotReady,
}

impl Condition {
    /// The word in JSON and on screens.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Denying => "denying everything",
            Self::Starting => "starting",
            Self::NotReady => "not ready",
        }
    }
}

impl Status {
    /// How it is, in a word.
    pub fn condition(&self) -> Condition {
        match (self.ready, self.denying) {
            (true, _) => Condition::Ready,
            (false, true) => Condition::Denying,
            (false, false) if self.source.as_ref().is_some_and(|source| !source.connected) => Condition::NotReady,
            (false, false) => Condition::Starting,
        }
    }
}

/// What judges packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judging {
    /// `acl`, `identity`, `session-rules` or `nftables`.
    pub renderer: String,
    /// `destination`, `source` or `kernel`.
    pub place: String,
    /// Whether the state has chosen the renderer (`engine: auto`).
    pub automatic: bool,
}

impl fmt::Display for Judging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &*self.place {
            "kernel" => "in the node's kernel",
            "source" => "where packets come in",
            _ => "where packets leave",
        };
        let how = if self.automatic { " (engine: auto)" } else { "" };
        write!(f, "by {}, {place}{how}", self.renderer)
    }
}

/// What load balancers are told of the node over HTTP.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceHealth {
    /// The address and port of `/healthz` and `/livez`. The ports of Services are at the same address.
    pub listen: String,
    /// Whether what they send to Services is served.
    pub healthy: bool,
    /// Whether the node is being deleted.
    pub leaving: bool,
    /// The ports at which they are answered.
    pub ports: Vec<u16>,
    /// Those that cannot be had.
    pub refused: Vec<RefusedPort>,
}

/// A port that cannot be listened at; it is tried again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RefusedPort {
    /// Its number.
    pub port: u16,
    /// What the system says.
    pub why: String,
}

/// The policy in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// Since when it is in force, in seconds.
    pub age_seconds: f64,
    /// From when its change was seen until the workers had it, in seconds.
    pub enforce_seconds: f64,
    /// Whether a newer one, or other ports, cannot be put into force; it is tried again.
    pub refused: bool,
    /// States that took effect.
    pub states_applied: u64,
    /// States that did not load.
    pub states_refused: u64,
    /// Objects that were not understood.
    pub faulty_objects: u64,
    /// Addresses that several pods say are theirs.
    pub contested_addresses: u64,
    /// Kinds that restrict traffic and are not enforced.
    pub unenforced_kinds: u64,
    /// Lists and tables that do not fit: what was in force before stays, or nothing passes.
    pub refused_tables: u64,
}

/// How well the API server is heard.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceStatus {
    /// Whether all kinds are being watched and the server answers.
    pub connected: bool,
    /// Since when that is so.
    pub since_seconds: u64,
    /// How old what is known may be; null before the first state.
    pub age_seconds: Option<f64>,
    /// What went wrong last, of what still does.
    pub last_error: Option<String>,
}

/// How many ports there are.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PortTotals {
    /// In the configuration, or added.
    pub configured: usize,
    /// Of these, added at this socket.
    #[serde(default)]
    pub added: usize,
    /// Of all, open.
    pub open: usize,
}

/// A thread that forwards.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerRow {
    /// Packets taken in.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Sessions in use.
    pub sessions: u64,
    /// How often it failed and went on.
    pub restarts: u64,
    /// Packets judged, those that other workers took in for it included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<u64>,
    /// Nanoseconds in which it had something to do, the kernel's calls included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_ns: Option<u64>,
    /// Whether it has not answered: all its numbers are those that it told last, 0 before it told any.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
}

/// The session table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionTotals {
    /// In use.
    pub used: u64,
    /// The most that there can be.
    pub capacity: u64,
    /// Not created, because there was no room.
    pub refused: u64,
    /// Created since the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<u64>,
}

/// Packets that were dropped for one reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DropRow {
    /// Its name.
    pub reason: String,
    /// What it means.
    pub means: String,
    /// How many.
    pub packets: u64,
}

/// What the kernel has forwarded by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlowCacheRow {
    /// Packets.
    pub forwarded: u64,
    /// Flows that were added or renewed.
    pub added: u64,
    /// Flows that the kernel refused.
    pub refused: u64,
}

/// An error that was logged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LastError {
    /// When, as RFC 3339.
    pub at: String,
    /// What.
    pub text: String,
}
