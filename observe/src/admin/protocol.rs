//! Requests and answers of the admin socket.
//!
//! ```text
//!   {"version":1,"request":"status"}                            {"version":1,"answer":{...}}
//!   {"version":1,"request":"tables","arguments":{"port":"x/a"}} {"version":1,"failure":{"code":"unknown_port","message":"..","help":".."}}
//! ```

mod added_ports;
mod audit;
mod enforcement;
mod explanation;
mod kept_files;
mod names;
mod nodes;
mod status;
mod watching;

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use bulkhead_answers::dumps::{PolicyRow, SessionRow, Sessions};

pub use added_ports::{AddPort, AddedPort, CheckedPort, PortKey, RemovedPort, RemovedPorts};
pub use audit::{AuditReport, AuditStatus, AuditedConnection, AuditedPolicyRow};
pub use enforcement::{Enforcement, PolicyQuestion};
pub use explanation::{Connection, Explanation, LiveWalk, NotOpen};
pub use kept_files::KeptFiles;
pub use names::{LearnedName, LearnedNames, NameFilter, NameTotals};
pub use nodes::{NodeWayRow, NodeWays, ProbesStatus, WayFault, WayState};
pub use status::{
    Condition, DropRow, FlowCacheRow, Judging, LastError, PolicyStatus, PortTotals, RefusedPort, RemoteNodesStatus,
    ServiceHealth, SessionTotals, SourceStatus, Status, WorkerRow,
};

pub use watching::{Monitor, Trace, WatchedPort, Watching};

pub(super) const VERSION: u64 = 1;

/// A request to the vswitch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", content = "arguments", rename_all = "snake_case")]
pub enum Request {
    /// Returns the health of the vswitch.
    Status,
    /// Lists all ports with their state and counters.
    Ports,
    /// Lists the ways to other nodes, with what probes have proven.
    Nodes,
    /// Lists the addresses that pods have learned by name.
    Names(NameFilter),
    /// Lists the counters of each policy and rule.
    Policies,
    /// Lists the tables in force, or one of them with its rules if one is named.
    Tables {
        /// Name of the table, as in [`TableRow::port`]. `None` for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
    },
    /// Explains what happens to the first packet of a connection and to its reply.
    Explain(Connection),
    /// Returns whether a policy is enforced on this node.
    Enforcement(PolicyQuestion),
    /// Lists the sessions that match a filter.
    Sessions(SessionFilter),
    /// Ends the sessions that match a filter; all sessions if the filter is empty. Ignores the filter's limit.
    EndSessions(SessionFilter),
    /// Streams verdicts on new sessions and dropped packets.
    Monitor(Monitor),
    /// Streams packets, each with its path.
    Trace(Trace),
    /// Lists the connections that audited policies would have denied.
    AuditReport,
    /// Returns the paths of the vswitch's configuration and journal.
    KeptFiles,
    /// Re-reads the configuration and the state.
    Reload,
    /// Attaches a container's interface. Answers when it is attached.
    AddPort(AddPort),
    /// Detaches the interface of an added port and removes the port.
    RemovePort(PortKey),
    /// Returns the state of an added port.
    CheckPort(PortKey),
    /// Removes all added ports, or those of one network, except these.
    RetainPorts {
        /// The added ports to keep.
        keep: Vec<PortKey>,
        /// Network of the ports to remove. `None` for all added ports.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        network: Option<String>,
    },
}

/// A filter of sessions. `None` matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionFilter {
    /// Name of a port at either end of the session. `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Address of either end of the session. `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// Destination port of the session. `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<u16>,
    /// Maximum number of listed sessions. 0 returns only the number.
    pub limit: usize,
}

/// Answer to [`Request::EndSessions`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndedSessions {
    /// Number of ended sessions.
    pub ended: usize,
}

/// An answer or a failure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Version of the protocol.
    pub version: u64,
    /// The answer. `None` if the request failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// The failure. `None` if the request succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

impl Answer {
    /// Returns the answer that contains a result.
    pub fn of(answer: Result<Value, Failure>) -> Self {
        match answer {
            Ok(answer) => Self { version: VERSION, answer: Some(answer), failure: None },
            Err(failure) => Self { version: VERSION, answer: None, failure: Some(failure) },
        }
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Kind of the failure, for programs: `unknown_port`, for example.
    pub code: String,
    /// Message for people.
    pub message: String,
    /// Remedy. May be empty.
    #[serde(default)]
    pub help: String,
}

impl Failure {
    /// Returns a failure. `help` may be empty.
    pub fn new(code: &str, message: impl Into<String>, help: &str) -> Self {
        Self { code: code.to_owned(), message: message.into(), help: help.to_owned() }
    }
}

/// Parses a request.
///
/// # Errors
/// If the line is not a valid request.
pub fn read_request(line: &[u8]) -> Result<Request, Failure> {
    let malformed = |error: &dyn std::fmt::Display| {
        Failure::new("malformed", format!("cannot parse the request: {error}"), "docs/admin.md describes the requests")
    };
    let mut value: Value = serde_json::from_slice(line).map_err(|error| malformed(&error))?;
    let fields = value.as_object_mut().ok_or_else(|| malformed(&"the request is not a JSON object"))?;
    match fields.remove("version").as_ref().map(Value::as_u64) {
        Some(Some(VERSION)) => {}
        None => return Err(malformed(&"the request has no `version`")),
        Some(_) => {
            let message = format!("this vswitch supports only version {VERSION} of the protocol");
            return Err(Failure::new(
                "unknown_version",
                message,
                "use a bulkhead program of the same version as the vswitch",
            ));
        }
    }
    if let Some(field) = fields.keys().find(|field| !["request", "arguments"].contains(&field.as_str())) {
        return Err(malformed(&format_args!("the request has no field `{field}`")));
    }
    let failure = match Request::deserialize(&value) {
        Ok(request) => return Ok(request),
        Err(error) => malformed(&error),
    };
    // If all arguments are optional, `arguments` is too.
    if value.get("arguments").is_some() {
        return Err(failure);
    }
    value["arguments"] = serde_json::json!({});
    serde_json::from_value(value).map_err(|_| failure)
}

/// A port with its state, and its counters since the start of the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortRow {
    /// Name: `namespace/pod`, `uplink` or `host`.
    pub name: String,
    /// Kind of the port: `pod`, `uplink` or `host`.
    pub kind: String,
    /// Name of the port's network interface on the node.
    pub interface: String,
    /// Container for which a CNI plugin added the port. `None` for a configured port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<PortKey>,
    /// State of the port: `open`, `closed`, `absent` or `unprotected`.
    pub state: String,
    /// Why the port is not open. `None` if it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Addresses of the port.
    pub addresses: Vec<String>,
    /// Packets that the vswitch received at the port.
    pub received: u64,
    /// Bytes that the vswitch received at the port.
    pub received_bytes: u64,
    /// Packets that the vswitch sent out of the port.
    pub sent: u64,
    /// Bytes that the vswitch sent out of the port.
    pub sent_bytes: u64,
    /// Packets dropped by the limits of `slow_path`.
    pub limited: u64,
    /// Packets dropped because the node's kernel had sent them past the vswitch.
    pub bypassed: u64,
    /// Received packets that were dropped when judged. `None` if not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
    /// Sessions whose first packet came in through this port. `None` if not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_started: Option<u64>,
    /// Sessions whose first packet went out through this port. `None` if not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_reached: Option<u64>,
    /// Generation of the last change to the port.
    pub epoch: u64,
}

/// The compiled policy table of a port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TableRow {
    /// Name of the table. That of a port names the port: its rules say what other ports may send to this port. `egress:` precedes the
    /// port's name if rules that name domains judge what the port's pod may open, and `hairpin:` if the table judges the pod's connections
    /// to itself.
    pub port: String,
    /// Number of rules in the table.
    pub rules: usize,
    /// The rules in order, if one port was requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub list: Vec<String>,
    /// Audited policies that would change the table if enforced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_enforced: Vec<String>,
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
    fn arguments_that_may_all_be_left_out_need_not_be_there() {
        let read = |request: &str| read_request(format!(r#"{{"version":1,"request":"{request}"}}"#).as_bytes());
        assert_eq!(read("sessions").unwrap(), Request::Sessions(SessionFilter::default()));
        assert_eq!(read("tables").unwrap(), Request::Tables { port: None });
        assert_eq!(read("monitor").unwrap(), Request::Monitor(Monitor::default()));
        assert!(read("remove_port").unwrap_err().message.contains("missing field"));
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
