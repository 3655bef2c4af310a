//! # What a running vswitch shows
//!
//! **Purpose.** The protocol of the admin socket and its client, the commands that print what a vswitch says (`status`, `ports`, `top`,
//! `monitor`, ...), the flight recorder's journal with the questions about the past (`why`), and the messages of Hubble's API.
//!
//! **Not its purpose.** It does not serve: `bulkhead-node` answers at the socket, feeds the journal and streams to Hubble's clients.
//!
//! ```text
//!   status, ports, top, monitor, explain --live, bundle --> admin: one JSON line each way --> unix socket of the vswitch
//!   why --> journal (a mapped file, a bundle) --> the state at that time --> answers::explain
//!   hubble: protobuf messages that the vswitch sends
//! ```
//!
//! **Invariant.** Clients ignore fields that they do not know, so an older client can ask a newer vswitch.
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
