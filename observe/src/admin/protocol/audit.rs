//! What audited policies would deny.

use serde::{Deserialize, Serialize};

/// What would break if the audited policies were enforced. Times are RFC 3339, in UTC.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditReport {
    /// The node whose vswitch has counted.
    pub node: String,
    /// When this was told.
    pub at: String,
    /// Where the counts outlive the process; none where they end with it.
    pub file: Option<String>,
    /// The audited policies that select a pod of this node, by name.
    pub policies: Vec<AuditedPolicyRow>,
    /// The connections that they would have denied, the most frequent first.
    pub connections: Vec<AuditedConnection>,
    /// Connections that are counted for their policies and not listed, because there are too many different ones.
    pub left_out: u64,
    /// Connections that are in no count of this report, because too many came at once. `bulkhead policies` counts them.
    pub untold: u64,
}

/// A policy that is not enforced.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditedPolicyRow {
    /// `namespace/name`, or the kind and name of a cluster policy.
    pub policy: String,
    /// Since when it is audited.
    pub since: String,
    /// Connections that it would have denied since then.
    pub connections: u64,
    /// When the first of them came; none when there was none.
    pub first_seen: Option<String>,
    /// When the last of them came.
    pub last_seen: Option<String>,
    /// How long ago that was; how long it is audited where there was none.
    pub quiet_seconds: u64,
}

/// Connections that differ in nothing but the client's port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditedConnection {
    /// Who makes them: a workload or pod, a node, or an address.
    pub from: String,
    /// To whom: of a connection to a Service its backend.
    pub to: String,
    /// `TCP`, `UDP`, `SCTP`, `ICMP`, `ICMPv6`, or the protocol's number.
    pub protocol: String,
    /// The destination port; none where the protocol has none.
    pub port: Option<u16>,
    /// The rule or isolation that would deny them.
    pub denied_by: String,
    /// The audited policies behind it.
    pub policies: Vec<String>,
    /// How many there were.
    pub connections: u64,
    /// When the first one came.
    pub first_seen: String,
    /// When the last one came.
    pub last_seen: String,
}

/// What is audited, in a word.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AuditStatus {
    /// The policies that are not enforced, by name: the first ones.
    pub policies: Vec<String>,
    /// How many there are.
    pub audited: usize,
    /// Connections that they would have denied, each counted for each of its policies.
    pub connections: u64,
    /// Connections that the report does not know of.
    pub untold: u64,
    /// Files of earlier counts that could not be used.
    pub refused_files: u64,
}
