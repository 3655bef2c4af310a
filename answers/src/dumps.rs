//! Rows that a running vswitch prints as JSON, which answers read again from files: `bulkhead sessions -o json` is evidence for `learn`, `diff`
//! and `replay --flows`, `bulkhead policies -o json` for `lint --hits`.

use serde::{Deserialize, Serialize};

/// What a rule, an isolation or an exemption has decided.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyRow {
    /// Who: policy, direction and rule.
    pub origin: String,
    /// Packets forwarded.
    pub allowed: u64,
    /// Packets dropped.
    pub denied: u64,
    /// Connections that passed and that it would deny if all policies were enforced.
    #[serde(default)]
    pub audited: u64,
    /// Whether a policy behind it is audited: then it denies nothing and allows nothing.
    #[serde(default)]
    pub not_enforced: bool,
}

/// Sessions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sessions {
    /// How many match.
    pub matching: usize,
    /// Some of them.
    pub sessions: Vec<SessionRow>,
    /// The ports with most of those that match, as `port` and the number of sessions, most first.
    pub ports: Vec<(String, usize)>,
}

/// A session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionRow {
    /// `TCP`, `UDP`, `ICMP`, or the protocol's number.
    pub protocol: String,
    /// Who began it.
    pub from: String,
    /// With whom: for a connection to a Service, the endpoint that it was given.
    pub to: String,
    /// The Service's address and port that the connection was made to; absent for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The source that the endpoint sees, where that is not `from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The port where its packets come in.
    pub in_port: String,
    /// The port where they leave.
    pub out_port: String,
    /// Its state.
    pub state: String,
    /// Seconds since a worker saw a packet of it.
    pub idle_seconds: f64,
    /// Who allowed it.
    pub origin: String,
}
