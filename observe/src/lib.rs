//! # Queries to a running vswitch
//!
//! **Purpose.** The protocol and client of the admin socket, the commands that print a vswitch's answers (`status`, `ports`, `top`,
//! `monitor`, ...), the flight recorder's journal and questions about the past (`why`), and the messages of Hubble's API.
//!
//! **Not its purpose.** Serving: `bulkhead-node` answers at the socket, feeds the journal and streams to Hubble's clients.
//!
//! ```text
//!   status, ports, top, monitor, explain --live, bundle --> admin: one JSON line each way --> unix socket of the vswitch
//!   why --> journal (a mapped file, a bundle) --> the state at that time --> answers::explain
//!   hubble: protobuf messages that the vswitch sends
//! ```
//!
//! **Invariant.** Clients ignore unknown fields, so that an older client can query a newer vswitch.
#![forbid(unsafe_code)]

pub mod admin;
pub mod args;
#[cfg(target_os = "linux")]
pub mod bundle;
#[cfg(target_os = "linux")]
pub mod explain;
#[cfg(target_os = "linux")]
pub mod hubble;
pub mod journal;
#[cfg(test)]
#[path = "../../node/src/scratch.rs"]
mod scratch;
#[cfg(target_os = "linux")]
pub mod top;
pub mod why;
