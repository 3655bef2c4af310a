//! The audit report and status.

use serde::{Deserialize, Serialize};

/// What enforcing the audited policies would break. Times are RFC 3339, UTC.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditReport {
    /// Name of the node.
    pub node: String,
    /// Time at which the report was made, RFC 3339.
    pub at: String,
    /// File that preserves the counts. `None` if they are lost when the process ends.
    pub file: Option<String>,
    /// Audited policies that select a pod of this node, ordered by name.
    pub policies: Vec<AuditedPolicyRow>,
    /// Connections that the audited policies would have denied, most frequent first.
    pub connections: Vec<AuditedConnection>,
    /// Connections that are counted but not listed, because there are too many distinct ones.
    pub left_out: u64,
    /// Connections missing from all counts because of overload. `bulkhead policies` counts them.
    pub untold: u64,
}

/// An audited policy, and the connections that it would have denied.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditedPolicyRow {
    /// `namespace/name`, or kind and name of a cluster policy.
    pub policy: String,
    /// Start of the policy's audit, RFC 3339.
    pub since: String,
    /// Connections that the policy would have denied since the start of the audit.
    pub connections: u64,
    /// Time of the first such connection. `None` without one.
    pub first_seen: Option<String>,
    /// Time of the last such connection. `None` without one.
    pub last_seen: Option<String>,
    /// Seconds since the last such connection. Without one: since the start of the audit.
    pub quiet_seconds: u64,
}

/// A group of connections that an audited policy would deny and that differ only in the client's port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditedConnection {
    /// Client: a workload, pod, node or address.
    pub from: String,
    /// Server. For a connection to a Service, the backend.
    pub to: String,
    /// `TCP`, `UDP`, `SCTP`, `ICMP`, `ICMPv6`, or the protocol number.
    pub protocol: String,
    /// Destination port. `None` for protocols without ports.
    pub port: Option<u16>,
    /// The rule or isolation that would deny the connections.
    pub denied_by: String,
    /// The audited policies that contain the rule or isolate the pod.
    pub policies: Vec<String>,
    /// Number of connections.
    pub connections: u64,
    /// Time of the first connection.
    pub first_seen: String,
    /// Time of the last connection.
    pub last_seen: String,
}

/// Summary of the audit, for `status`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AuditStatus {
    /// Names of the first audited policies.
    pub policies: Vec<String>,
    /// Number of audited policies.
    pub audited: usize,
    /// Connections that the audited policies would have denied, counted once per policy.
    pub connections: u64,
    /// Connections missing from the report because of overload.
    pub untold: u64,
    /// Files of earlier counts that could not be read.
    pub refused_files: u64,
}
