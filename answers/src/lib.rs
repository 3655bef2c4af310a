//! # Offline questions about a state
//!
//! **Purpose.** Reads a cluster's state from files and bundles and answers questions about it: who can reach whom, which rule decides, what
//! a change affects, what happens to a capture's packets. Also connects the three engines for everything that needs tables and packets.
//!
//! **Not its purpose.** It queries no running vswitch and no API server: it has no sockets, TLS or async code. `bulkhead-observe` does
//! that, and passes results as arguments ([`lint::ReadCounters`]).
//!
//! ```text
//!  files, bundles --control--> tables, Services --run, services--> snapshot --dataplane--> outcome of every packet
//!                                                                     ^
//!  replay: packets of a capture             reach, explain: first packets and replies that `fabric` makes
//!                                           of connections to Services, as `translate` resolves them
//!  replay --flows, learn: sessions of logs and captures that `flows` reads, judged by `fabric`
//!  resolve, diff, lint, test, compile: ask `control` alone
//! ```
//!
//! **Invariant.** Every answer comes from the engine that forwards packets: `reach` and `explain` report what the vswitch does.
#![forbid(unsafe_code)]

pub mod args;
pub mod bundle;
pub mod claims;
pub mod classify;
pub mod compile;
pub mod contests;
pub mod destination;
pub mod diff;
pub mod dumps;
pub mod explain;
pub mod fabric;
pub mod flows;
pub mod learn;
pub mod lint;
pub mod named;
pub mod output;
mod places;
pub mod progress;
pub mod reach;
pub mod replay;
pub mod resolve;
pub mod run;
mod sarif;
pub mod selected;
pub mod services;
pub mod translate;
mod workload;
