//! The admin socket: what is asked of a running vswitch, and the commands that ask.
//!
//! ```text
//!   bulkhead status | ports | policies | sessions | tables | audit report | explain --live | reload --JSON line--> unix socket --> `live::admin` answers
//!   a CNI plugin: add_port, remove_port, check_port, retain_ports -------'
//! ```
//!
//! The protocol is one JSON object a line each way; `docs/admin.md` describes it. It has a version of its own, which changes
//! when a field goes or changes its meaning. New fields and requests come without that: whoever reads answers ignores what they do
//! not know.

mod audit;
mod client;
mod commands;
mod missed;
mod protocol;

pub(crate) use audit::report;
pub(crate) use client::{AskError, ask, exchange};
pub(crate) use commands::{policies, ports, reload, sessions, status, tables};
pub(crate) use missed::Missed;
pub(crate) use protocol::{
    AddPort, AddedPort, Answer, AuditReport, AuditStatus, AuditedConnection, AuditedPolicyRow, CheckedPort, Connection,
    DropRow, EndedSessions, Explanation, Failure, FlowCacheRow, LastError, LiveWalk, NotOpen, PolicyRow, PolicyStatus,
    PortKey, PortRow, PortTotals, RefusedPort, RemovedPort, RemovedPorts, Request, ServiceHealth, SessionFilter,
    SessionRow, SessionTotals, Sessions, SourceStatus, Status, TableRow, WorkerRow, read_request,
};

/// Where the socket is when nobody says otherwise.
pub(crate) const DEFAULT_SOCKET: &str = "/run/bulkhead/admin.sock";
