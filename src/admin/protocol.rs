//! What is asked and answered.
//!
//! ```text
//!   {"version":1,"request":"status"}                            {"version":1,"answer":{...}}
//!   {"version":1,"request":"tables","arguments":{"port":"x/a"}} {"version":1,"failure":{"code":"unknown_port","message":"..","help":".."}}
//! ```

mod added_ports;
mod explanation;

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::services::Counts;

pub(crate) use added_ports::{AddPort, AddedPort, CheckedPort, PortKey, RemovedPort, RemovedPorts};
pub(crate) use explanation::{Connection, Explanation, LiveWalk, NotOpen};

/// The version of the protocol.
pub(crate) const VERSION: u64 = 1;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", content = "arguments", rename_all = "snake_case")]
pub(crate) enum Request {
    /// How the vswitch is.
    Status,
    /// Its ports.
    Ports,
    /// What each policy and rule has decided.
    Policies,
    /// The tables in force: of one port, or of all.
    Tables {
        /// The port.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// What would become of a connection.
    Explain(Connection),
    /// Sessions, some of them.
    Sessions(SessionFilter),
    /// End the sessions that match; all without a filter. The limit does not count.
    EndSessions(SessionFilter),
    /// Look at the configuration and the state now.
    Reload,
    /// Serve a container's interface, and answer when it is served.
    AddPort(AddPort),
    /// Serve it no more.
    RemovePort(PortKey),
    /// How an added port is.
    CheckPort(PortKey),
    /// Remove all added ports, or those of one network, but these.
    RetainPorts {
        /// Those that stay.
        keep: Vec<PortKey>,
        /// The network whose ports are meant; without it, those of all networks and of none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        network: Option<String>,
    },
}

/// Which sessions are asked for. What is not said does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SessionFilter {
    /// Of this port, whichever side it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<String>,
    /// Of this address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<IpAddr>,
    /// To this destination port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service: Option<u16>,
    /// The most that are told; 0 is none, only their number.
    pub(crate) limit: usize,
}

/// Sessions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sessions {
    /// How many match.
    pub(crate) matching: usize,
    /// Some of them.
    pub(crate) sessions: Vec<SessionRow>,
    /// The ports with most of those that match, as `port` and the number of sessions, most first.
    pub(crate) ports: Vec<(String, usize)>,
}

/// What became of sessions that were to end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EndedSessions {
    /// How many have ended.
    pub(crate) ended: usize,
}

/// A session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SessionRow {
    /// `TCP`, `UDP`, `ICMP`, or the protocol's number.
    pub(crate) protocol: String,
    /// Who began it.
    pub(crate) from: String,
    /// With whom: for a connection to a Service, the endpoint that it was given.
    pub(crate) to: String,
    /// The Service's address and port that the connection was made to; absent for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) service: Option<String>,
    /// The source that the endpoint sees, where that is not `from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
    /// The port where its packets come in.
    pub(crate) in_port: String,
    /// The port where they leave.
    pub(crate) out_port: String,
    /// Its state.
    pub(crate) state: String,
    /// Seconds since a worker saw a packet of it.
    pub(crate) idle_seconds: f64,
    /// Who allowed it.
    pub(crate) origin: String,
}

/// The answer, or why there is none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// See [`VERSION`].
    pub(crate) version: u64,
    /// Exactly one of these is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Value>,
    /// Why there is no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<Failure>,
}

impl Answer {
    /// What was asked for.
    pub(crate) fn of(answer: Result<Value, Failure>) -> Self {
        match answer {
            Ok(answer) => Self { version: VERSION, answer: Some(answer), failure: None },
            Err(failure) => Self { version: VERSION, answer: None, failure: Some(failure) },
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// For programs.
    pub(crate) code: String,
    /// For people.
    pub(crate) message: String,
    /// What to do about it; may be empty.
    #[serde(default)]
    pub(crate) help: String,
}

impl Failure {
    pub(crate) fn new(code: &str, message: impl Into<String>, help: &str) -> Self {
        Self { code: code.to_owned(), message: message.into(), help: help.to_owned() }
    }
}

/// Reads a line.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn read_request(line: &[u8]) -> Result<Request, Failure> {
    let malformed = |error: &dyn std::fmt::Display| {
        Failure::new(
            "malformed",
            format!("the request is not understood: {error}"),
            "docs/admin.md describes the requests",
        )
    };
    let mut value: Value = serde_json::from_slice(line).map_err(|error| malformed(&error))?;
    let fields = value.as_object_mut().ok_or_else(|| malformed(&"it is not an object"))?;
    match fields.remove("version").as_ref().map(Value::as_u64) {
        Some(Some(VERSION)) => {}
        None => return Err(malformed(&"it has no `version`")),
        Some(_) => {
            let message = format!("this vswitch knows version {VERSION} of the protocol only");
            return Err(Failure::new("unknown_version", message, "use the bulkhead that belongs to it"));
        }
    }
    if let Some(field) = fields.keys().find(|field| !["request", "arguments"].contains(&field.as_str())) {
        return Err(malformed(&format_args!("it has no field `{field}`")));
    }
    serde_json::from_value(value).map_err(|error| malformed(&error))
}

/// How the vswitch is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The program's version.
    pub(crate) program: String,
    /// The node whose vswitch it is.
    pub(crate) node: String,
    /// Where its pods get their addresses from (`spec.podCIDRs` of its Node); none before there is a state.
    #[serde(default)]
    pub(crate) pod_networks: Vec<IpNet>,
    /// Whether pods are served: ports were opened, and there is a policy to judge by.
    pub(crate) ready: bool,
    /// Whether nothing may pass, since there is no state that makes sense.
    pub(crate) denying: bool,
    /// Since when it runs.
    pub(crate) uptime_seconds: u64,
    /// The number of the snapshot in force.
    pub(crate) generation: u64,
    /// The policy in force.
    pub(crate) policy: PolicyStatus,
    /// How well the API server is heard; null where the state is files.
    #[serde(default)]
    pub(crate) source: Option<SourceStatus>,
    /// How much is known of Services; null where they are off.
    #[serde(default)]
    pub(crate) services: Option<Counts>,
    /// What load balancers are told; null where they are told nothing.
    #[serde(default)]
    pub(crate) service_health: Option<ServiceHealth>,
    /// How many ports there are.
    pub(crate) ports: PortTotals,
    /// Those that are configured and not open, with the reason.
    pub(crate) late: Vec<PortRow>,
    /// The threads that forward.
    pub(crate) workers: Vec<WorkerRow>,
    /// The session table.
    pub(crate) sessions: SessionTotals,
    /// Packets dropped, by reason, most frequent first.
    pub(crate) dropped: Vec<DropRow>,
    /// What the kernel has forwarded by itself.
    pub(crate) flow_cache: FlowCacheRow,
    /// The last error that was logged.
    pub(crate) last_error: Option<LastError>,
}

/// What load balancers are told of the node over HTTP.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ServiceHealth {
    /// The address and port of `/healthz` and `/livez`. The ports of Services are at the same address.
    pub(crate) listen: String,
    /// Whether what they send to Services is served.
    pub(crate) healthy: bool,
    /// Whether the node is being deleted.
    pub(crate) leaving: bool,
    /// The ports at which they are answered.
    pub(crate) ports: Vec<u16>,
    /// Those that cannot be had.
    pub(crate) refused: Vec<RefusedPort>,
}

/// A port that cannot be listened at; it is tried again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RefusedPort {
    /// Its number.
    pub(crate) port: u16,
    /// What the system says.
    pub(crate) why: String,
}

/// The policy in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PolicyStatus {
    /// Since when it is in force, in seconds.
    pub(crate) age_seconds: f64,
    /// From when its change was seen until the workers had it, in seconds.
    pub(crate) enforce_seconds: f64,
    /// Whether a newer one, or other ports, cannot be put into force; it is tried again.
    pub(crate) refused: bool,
    /// States that took effect.
    pub(crate) states_applied: u64,
    /// States that did not load.
    pub(crate) states_refused: u64,
    /// Objects that were not understood.
    pub(crate) faulty_objects: u64,
    /// Addresses that several pods say are theirs.
    pub(crate) contested_addresses: u64,
    /// Kinds that restrict traffic and are not enforced.
    pub(crate) unenforced_kinds: u64,
    /// Lists and tables that do not fit: what was in force before stays, or nothing passes.
    pub(crate) refused_tables: u64,
}

/// How well the API server is heard.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SourceStatus {
    /// Whether all kinds are being watched and the server answers.
    pub(crate) connected: bool,
    /// Since when that is so.
    pub(crate) since_seconds: u64,
    /// How old what is known may be; null before the first state.
    pub(crate) age_seconds: Option<f64>,
    /// What went wrong last, of what still does.
    pub(crate) last_error: Option<String>,
}

/// How many ports there are.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct PortTotals {
    /// In the configuration, or added.
    pub(crate) configured: usize,
    /// Of these, added at this socket.
    #[serde(default)]
    pub(crate) added: usize,
    /// Of all, open.
    pub(crate) open: usize,
}

/// A port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PortRow {
    /// Its name: `namespace/pod`, `uplink`, `host`.
    pub(crate) name: String,
    /// `pod`, `uplink` or `host`.
    pub(crate) kind: String,
    /// Its interface.
    pub(crate) interface: String,
    /// The container that it was added for; none for a port of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<PortKey>,
    /// `open`, `closed`, `absent` or `unprotected`.
    pub(crate) state: String,
    /// Why it is not open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// Its addresses.
    pub(crate) addresses: Vec<String>,
    /// Packets that came in.
    pub(crate) received: u64,
    /// Their bytes.
    pub(crate) received_bytes: u64,
    /// Packets that went out.
    pub(crate) sent: u64,
    /// Their bytes.
    pub(crate) sent_bytes: u64,
    /// Dropped, because they were more than `slow_path` allows.
    pub(crate) limited: u64,
    /// Dropped, because the node's kernel had sent them past the vswitch.
    pub(crate) bypassed: u64,
    /// The generation in which something last changed for it.
    pub(crate) epoch: u64,
}

/// A thread that forwards.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkerRow {
    /// Packets taken in.
    pub(crate) received: u64,
    /// Packets sent.
    pub(crate) sent: u64,
    /// Packets dropped.
    pub(crate) dropped: u64,
    /// Sessions in use.
    pub(crate) sessions: u64,
    /// How often it failed and went on.
    pub(crate) restarts: u64,
}

/// The session table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SessionTotals {
    /// In use.
    pub(crate) used: u64,
    /// The most that there can be.
    pub(crate) capacity: u64,
    /// Not created, because there was no room.
    pub(crate) refused: u64,
}

/// Packets that were dropped for one reason.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DropRow {
    /// Its name.
    pub(crate) reason: String,
    /// What it means.
    pub(crate) means: String,
    /// How many.
    pub(crate) packets: u64,
}

/// What the kernel has forwarded by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FlowCacheRow {
    /// Packets.
    pub(crate) forwarded: u64,
    /// Flows that were added or renewed.
    pub(crate) added: u64,
    /// Flows that the kernel refused.
    pub(crate) refused: u64,
}

/// An error that was logged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LastError {
    /// When, as RFC 3339.
    pub(crate) at: String,
    /// What.
    pub(crate) text: String,
}

/// What a rule, an isolation or an exemption has decided.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PolicyRow {
    /// Who: policy, direction and rule.
    pub(crate) origin: String,
    /// Packets forwarded.
    pub(crate) allowed: u64,
    /// Packets dropped.
    pub(crate) denied: u64,
}

/// A port's table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TableRow {
    /// The port whose egress table it is: what may be sent to it.
    pub(crate) port: String,
    /// How many rules it has.
    pub(crate) rules: usize,
    /// The rules in their order, when one port was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) list: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(line: &str) -> String {
        read_request(line.as_bytes()).unwrap_err().code
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        for request in [Request::Status, Request::Tables { port: Some("x/a".into()) }, Request::Tables { port: None }] {
            let mut value = serde_json::to_value(&request).unwrap();
            value["version"] = VERSION.into();
            assert_eq!(read_request(value.to_string().as_bytes()).unwrap(), request);
        }
    }

    #[test]
    fn a_port_is_added_with_the_least_that_must_be_said_and_nothing_else() {
        let least = r#"{"version":1,"request":"add_port","arguments":
            {"container":"c","container_interface":"eth0","pod":"x/a","interface":"va"}}"#;
        let Request::AddPort(added) = read_request(least.as_bytes()).unwrap() else { panic!("another request") };
        assert_eq!((added.timeout_seconds, added.addresses.len(), added.mac), (20, 0, None));
        assert_eq!(code(&least.replace("\"pod\"", "\"pods\"")), "malformed");
        let keep = r#"{"version":1,"request":"retain_ports","arguments":{"keep":[]}}"#;
        let all = Request::RetainPorts { keep: Vec::new(), network: None };
        assert_eq!(read_request(keep.as_bytes()).unwrap(), all);
        assert_eq!(code(r#"{"version":1,"request":"retain_ports","arguments":{}}"#), "malformed", "not: keep nothing");
    }

    #[test]
    fn what_is_no_request_has_a_code_and_a_reason() {
        assert_eq!(code("{"), "malformed");
        assert_eq!(code("[]"), "malformed");
        assert_eq!(code(r#"{"request":"status"}"#), "malformed");
        assert_eq!(code(r#"{"version":2,"request":"status"}"#), "unknown_version");
        assert_eq!(code(r#"{"version":1,"request":"format_disk"}"#), "malformed");
        assert_eq!(code(r#"{"version":1,"request":"status","now":true}"#), "malformed");
        assert_eq!(code("\u{0}"), "malformed");
    }
}
