//! The admin socket: its protocol, and the commands that use it.
//!
//! ```text
//!   bulkhead why | bundle, which read files that the answer names
//!   bulkhead status | ports | names | policies | sessions | tables | top | audit report | explain --live | reload --JSON line--> unix socket --> `live::admin` answers
//!   a CNI plugin: add_port, remove_port, check_port, retain_ports -------'
//! ```
//!
//! Each request and answer is one line of JSON, described in `docs/admin.md`. The protocol's version changes when a field is removed or
//! changes its meaning. New fields and requests do not change it: clients ignore unknown fields.

#[cfg(target_os = "linux")]
mod audit;
#[cfg_attr(not(target_os = "linux"), path = "admin/nowhere.rs")]
mod client;
mod commands;
mod json;
#[cfg(target_os = "linux")]
mod missed;
mod names;
mod nodes;
#[cfg(target_os = "linux")]
mod pod_mtu;
mod protocol;
#[cfg(target_os = "linux")]
mod wait;
#[cfg(target_os = "linux")]
mod watch;

#[cfg(target_os = "linux")]
pub use audit::report;
pub use client::ask;
#[cfg(target_os = "linux")]
pub use client::{AskError, exchange};
pub use commands::{counters, policies};
#[cfg(target_os = "linux")]
pub use commands::{ports, reload, sessions, status, tables};
#[cfg(target_os = "linux")]
pub use missed::Missed;
#[cfg(target_os = "linux")]
pub use names::names;
#[cfg(target_os = "linux")]
pub use nodes::nodes;
#[cfg(target_os = "linux")]
pub use pod_mtu::PodMtu;
#[cfg(target_os = "linux")]
pub use wait::wait;
#[cfg(target_os = "linux")]
pub use watch::{capture, monitor, trace};

pub use protocol::{
    AddPort, AddedPort, Answer, AuditReport, AuditStatus, AuditedConnection, AuditedPolicyRow, CheckedPort, Condition,
    Connection, DropRow, EndedSessions, Enforcement, Explanation, Failure, FlowCacheRow, Judging, KeptFiles, LastError,
    LearnedName, LearnedNames, LiveWalk, Monitor, NameFilter, NameTotals, NodeWayRow, NodeWays, NotOpen,
    PolicyQuestion, PolicyRow, PolicyStatus, PortKey, PortRow, PortTotals, ProbesStatus, RefusedPort,
    RemoteNodesStatus, RemovedPort, RemovedPorts, Request, ServiceHealth, SessionFilter, SessionRow, SessionTotals,
    Sessions, SourceStatus, Status, TableRow, Trace, WatchedPort, Watching, WayFault, WayState, WorkerRow,
    read_request,
};

pub use bulkhead_answers::args::DEFAULT_SOCKET;
