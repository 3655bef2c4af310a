//! Answer to `status`.

use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{AuditStatus, PortRow, ProbesStatus};
use bulkhead_answers::services::Counts;

/// Health of the vswitch. Counters start at 0 with the process. An optional field is also `None` if the program is too old to report it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Version of the program.
    pub program: String,
    /// Name of the node.
    pub node: String,
    /// Pod CIDRs of the node (`spec.podCIDRs`). Empty before the first state.
    #[serde(default)]
    pub pod_networks: Vec<IpNet>,
    /// Whether pods are served: ports are open and a policy is in force.
    pub ready: bool,
    /// Whether everything is denied because there is no valid state.
    pub denying: bool,
    /// The engine that judges packets. `None` from programs that do not report it.
    #[serde(default)]
    pub judging: Option<Judging>,
    /// Seconds since the start of the process.
    pub uptime_seconds: u64,
    /// Uptime in milliseconds when the counters were read. Divide differences of counters by its differences to get rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uptime_ms: Option<u64>,
    /// Differs between processes. Counters restart at zero when it changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<u64>,
    /// Generation of the snapshot in force.
    pub generation: u64,
    /// The policy in force.
    pub policy: PolicyStatus,
    /// Policies that are audited instead of enforced, and the connections that they would have denied. Empty if all policies are enforced.
    #[serde(default)]
    pub audit: AuditStatus,
    /// Connection to the API server. `None` if the state comes from files.
    #[serde(default)]
    pub source: Option<SourceStatus>,
    /// Numbers of Services. `None` if disabled.
    #[serde(default)]
    pub services: Option<Counts>,
    /// Health reported to load balancers. `None` if not reported.
    #[serde(default)]
    pub service_health: Option<ServiceHealth>,
    /// Numbers of ports.
    pub ports: PortTotals,
    /// The ways to other nodes. `None` if the node's kernel does not keep its network card, and before the first state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_nodes: Option<RemoteNodesStatus>,
    /// Configured ports that are not open, with the reason.
    pub late: Vec<PortRow>,
    /// The worker threads' counters, in the order of their numbers.
    pub workers: Vec<WorkerRow>,
    /// Use of the session table.
    pub sessions: SessionTotals,
    /// Packets dropped, by reason, most frequent first.
    pub dropped: Vec<DropRow>,
    /// Flow cache in the kernel.
    pub flow_cache: FlowCacheRow,
    /// The last logged error. `None` if the process has logged none.
    pub last_error: Option<LastError>,
}

/// The ways to other nodes' pods, one for each node and address family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteNodesStatus {
    /// Number of ways by a route over a common link.
    pub routed: usize,
    /// Number of ways through the tunnel.
    pub tunneled: usize,
    /// What keeps packets from other nodes' pods, a message for each cause.
    pub problems: Vec<String>,
    /// The tunnel's MTU in bytes. `None` without a tunnel.
    pub tunnel_mtu: Option<u32>,
    /// Packets from the tunnel that were dropped because their sender is no node, or their inner source is not the node's.
    pub tunnel_dropped: u64,
    /// What probes have proven. `None` if they are off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<ProbesStatus>,
}

/// Overall state of the vswitch, derived from its [`Status`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// The vswitch forwards and enforces policy.
    Ready,
    /// Everything is denied because there is no valid state.
    Denying,
    /// The vswitch is starting.
    #[default]
    Starting,
    /// The connection to the API server is lost for too long.
    NotReady,
}

impl Condition {
    /// Returns the name in JSON and on screens.
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
    /// Returns the state of the vswitch.
    pub fn condition(&self) -> Condition {
        match (self.ready, self.denying) {
            (true, _) => Condition::Ready,
            (false, true) => Condition::Denying,
            (false, false) if self.source.as_ref().is_some_and(|source| !source.connected) => Condition::NotReady,
            (false, false) => Condition::Starting,
        }
    }
}

/// The engine that judges packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judging {
    /// Renderer of the enforced rules: `acl`, `identity`, `session-rules` or `nftables`.
    pub renderer: String,
    /// Where policy is enforced: at the port of the `destination` or of the `source`, or in the node's `kernel`.
    pub place: String,
    /// Whether the vswitch selected the renderer (`engine: auto`).
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

/// Health that load balancers query over HTTP.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceHealth {
    /// Address and port of `/healthz` and `/livez`. Services' health check ports use the same address.
    pub listen: String,
    /// Whether traffic to Services is served.
    pub healthy: bool,
    /// Whether the node is being deleted.
    pub leaving: bool,
    /// Ports that answer health checks.
    pub ports: Vec<u16>,
    /// Ports that could not be opened.
    pub refused: Vec<RefusedPort>,
}

/// A port that could not be opened. The vswitch retries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RefusedPort {
    /// TCP port number.
    pub port: u16,
    /// Error of the operating system.
    pub why: String,
}

/// The policy in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// Seconds since the policy took effect.
    pub age_seconds: f64,
    /// Seconds from the change until the workers enforced it.
    pub enforce_seconds: f64,
    /// Whether a newer state, or a change of ports, cannot be applied. The vswitch retries.
    pub refused: bool,
    /// Number of states that took effect since the start of the process.
    pub states_applied: u64,
    /// Number of states that could not be loaded since the start of the process.
    pub states_refused: u64,
    /// Objects that could not be parsed.
    pub faulty_objects: u64,
    /// Addresses that several pods claim.
    pub contested_addresses: u64,
    /// Kinds of objects that restrict traffic but are not enforced.
    pub unenforced_kinds: u64,
    /// Tables that exceed a limit: the previous ones stay in force, or nothing passes.
    pub refused_tables: u64,
}

/// Health of the connection to the API server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceStatus {
    /// Whether all watches are established and the server answers.
    pub connected: bool,
    /// Seconds since `connected` changed.
    pub since_seconds: u64,
    /// Maximum age of the state in seconds. `None` before the first state.
    pub age_seconds: Option<f64>,
    /// The last error that is not resolved yet. `None` without one.
    pub last_error: Option<String>,
}

/// Numbers of ports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PortTotals {
    /// Ports in the configuration plus added ports.
    pub configured: usize,
    /// Ports added through the admin socket.
    #[serde(default)]
    pub added: usize,
    /// Number of open ports.
    pub open: usize,
}

/// The counters of one worker thread since the start of the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerRow {
    /// Packets that the worker received.
    pub received: u64,
    /// Packets that the worker sent.
    pub sent: u64,
    /// Packets that the worker dropped.
    pub dropped: u64,
    /// Sessions of the worker that are in use.
    pub sessions: u64,
    /// Number of restarts after a failure.
    pub restarts: u64,
    /// Packets that this worker judged, whichever worker received them. `None` if the program does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<u64>,
    /// Nanoseconds spent working, including system calls. `None` if the program does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_ns: Option<u64>,
    /// Whether the worker does not respond. Its counters are then the last known ones, or 0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
}

/// Use of the session table, of all workers together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionTotals {
    /// Sessions in use.
    pub used: u64,
    /// Maximum number of sessions.
    pub capacity: u64,
    /// Sessions refused because the table was full.
    pub refused: u64,
    /// Sessions created since the start of the process. `None` if the program does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<u64>,
}

/// Packets dropped for one reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DropRow {
    /// Name of the reason.
    pub reason: String,
    /// Meaning of the reason.
    pub means: String,
    /// Number of packets.
    pub packets: u64,
}

/// The flow cache in the kernel. All counters start at 0 with the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlowCacheRow {
    /// Number of packets that the kernel forwarded without a worker.
    pub forwarded: u64,
    /// Number of times that a worker added a flow or renewed its lease.
    pub added: u64,
    /// Number of flows that the kernel refused, for example because its table is full.
    pub refused: u64,
}

/// A logged error.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LastError {
    /// Time, RFC 3339.
    pub at: String,
    /// Text of the error.
    pub text: String,
}
