//! JSON rows of a running vswitch that commands read from files: `bulkhead sessions -o json` for `learn`, `diff` and `replay --flows`, and
//! `bulkhead policies -o json` for `lint --hits`.

use serde::{Deserialize, Serialize};

/// Counters of a rule, an isolation or an exemption.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyRow {
    /// The counted origin as text: policy, direction and rule.
    pub origin: String,
    /// Packets that the rule allowed.
    pub allowed: u64,
    /// Packets that the rule or isolation denied.
    pub denied: u64,
    /// Connections that passed although the rule or isolation would deny them if enforced.
    #[serde(default)]
    pub audited: u64,
    /// Whether a policy of this origin is audited. The origin then neither denies nor allows.
    #[serde(default)]
    pub not_enforced: bool,
}

/// Answer to a request for sessions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sessions {
    /// Number of matching sessions.
    pub matching: usize,
    /// The listed sessions, possibly fewer than `matching`.
    pub sessions: Vec<SessionRow>,
    /// Ports with the most matching sessions, with their number, in descending order.
    pub ports: Vec<(String, usize)>,
}

/// A session of the vswitch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SessionRow {
    /// `TCP`, `UDP`, `ICMP`, or the protocol number.
    pub protocol: String,
    /// Address and port of the client.
    pub from: String,
    /// Address and port of the server. For a connection to a Service, those of the backend.
    pub to: String,
    /// Service address and port. `None` if the connection is not translated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Source address that the server sees. `None` if it equals `from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Name of the vswitch's port at which the client's packets arrive.
    pub in_port: String,
    /// Name of the vswitch's port through which the client's packets leave.
    pub out_port: String,
    /// State of the session, such as `established`.
    pub state: String,
    /// Seconds since its last packet.
    pub idle_seconds: f64,
    /// The rule or isolation that allowed it.
    pub origin: String,
}
