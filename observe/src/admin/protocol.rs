//! What is asked and answered.
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
pub use status::{
    Condition, DropRow, FlowCacheRow, Judging, LastError, PolicyStatus, PortTotals, RefusedPort, ServiceHealth,
    SessionTotals, SourceStatus, Status, WorkerRow,
};

pub use watching::{Monitor, Trace, WatchedPort, Watching};

/// The version of the protocol.
pub(super) const VERSION: u64 = 1;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", content = "arguments", rename_all = "snake_case")]
pub enum Request {
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
    /// Whether a policy is in force.
    Enforcement(PolicyQuestion),
    /// Sessions, some of them.
    Sessions(SessionFilter),
    /// End the sessions that match; all without a filter. The limit does not count.
    EndSessions(SessionFilter),
    /// Verdicts of new sessions and dropped packets, as they come.
    Monitor(Monitor),
    /// Packets as they come, each with its walk.
    Trace(Trace),
    /// What audited policies would deny.
    AuditReport,
    /// Which files it has, for whoever reads them.
    KeptFiles,
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
pub struct SessionFilter {
    /// Of this port, whichever side it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// Of this address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// To this destination port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<u16>,
    /// The most that are told; 0 is none, only their number.
    pub limit: usize,
}

/// What became of sessions that were to end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndedSessions {
    /// How many have ended.
    pub ended: usize,
}

/// The answer, or why there is none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// See [`VERSION`].
    pub version: u64,
    /// Exactly one of these is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// Why there is no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
}

impl Answer {
    /// What was asked for.
    pub fn of(answer: Result<Value, Failure>) -> Self {
        match answer {
            Ok(answer) => Self { version: VERSION, answer: Some(answer), failure: None },
            Err(failure) => Self { version: VERSION, answer: None, failure: Some(failure) },
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// For programs.
    pub code: String,
    /// For people.
    pub message: String,
    /// What to do about it; may be empty.
    #[serde(default)]
    pub help: String,
}

impl Failure {
    /// A refusal. `help` may be empty.
    pub fn new(code: &str, message: impl Into<String>, help: &str) -> Self {
        Self { code: code.to_owned(), message: message.into(), help: help.to_owned() }
    }
}

/// Reads a line.
///
/// # Errors
/// What is wrong with it.
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
    // Where every argument may be left out, all of them together may.
    if value.get("arguments").is_some() {
        return Err(failure);
    }
    value["arguments"] = serde_json::json!({});
    serde_json::from_value(value).map_err(|_| failure)
}

/// A port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PortRow {
    /// Its name: `namespace/pod`, `uplink`, `host`.
    pub name: String,
    /// `pod`, `uplink` or `host`.
    pub kind: String,
    /// Its interface.
    pub interface: String,
    /// The container that it was added for; none for a port of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<PortKey>,
    /// `open`, `closed`, `absent` or `unprotected`.
    pub state: String,
    /// Why it is not open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Packets that came in.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets that went out.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Dropped, because they were more than `slow_path` allows.
    pub limited: u64,
    /// Dropped, because the node's kernel had sent them past the vswitch.
    pub bypassed: u64,
    /// Packets that came in here and were dropped when they were judged; none where that is not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<u64>,
    /// Sessions whose first packet came in here; none where they are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_started: Option<u64>,
    /// Sessions whose first packet left here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_reached: Option<u64>,
    /// The generation in which something last changed for it.
    pub epoch: u64,
}

/// A port's table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TableRow {
    /// The port whose egress table it is: what may be sent to it.
    pub port: String,
    /// How many rules it has.
    pub rules: usize,
    /// The rules in their order, when one port was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub list: Vec<String>,
    /// The audited policies whose enforcement would change the table.
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
