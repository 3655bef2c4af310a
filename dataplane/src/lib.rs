//! # The dataplane: packets in, verdicts out
//!
//! **Purpose.** [`Worker::process`] judges bursts of packets by a [`Snapshot`]. It parses each packet, drops malformed and spoofed ones,
//! forwards packets of known sessions and asks the policy tables about the rest. For every packet it returns the output port or the drop
//! reason, and the rule that decided.
//!
//! **Not its purpose.** No Kubernetes: a policy is an opaque [`OriginId`](bulkhead_classifier::OriginId) on a classifier rule, and every
//! default is a rule in a table, never an `if` in this crate. No configuration, and no files except captures. The engine has no clock and
//! no threads: packets carry the time, and the caller owns the worker. Only [`vswitch`] has both.
//!
//! ```text
//!   control plane --Snapshot--> Publisher ~~swapped lock-free~~> Reader
//!                                                                  | once per burst
//!   rx burst -> parse -> session --hit, same generation------------v---------> forward -> tx
//!      ^          |          `- miss or stale -> classify the batch -> remember -^
//!      |          `-> drop(reason) <- deny ----------'
//!   captures, probes ([`probe`]), and frames of live ports ([`io::Port`]) that [`vswitch`]'s workers move and
//!   [`forward`] rewrites
//! ```
//!
//! **Invariant.** A packet passes only if every stage allows it. Its verdict starts as a drop. An unknown port, a missing table and a
//! header that cannot be parsed each have their own drop reason. Received packets equal forwarded packets plus drops of all reasons
//! ([`Counters`]). The packet path does not allocate, lock or call into the control plane.
//!
//! In this crate, *in* and *out* are relative to the vswitch: a packet comes in on one port and leaves through another. A port's *egress*
//! table ([`PortConfig::egress`]) judges packets that leave the vswitch towards the pod, as in Contiv. If policy is judged at the source,
//! ports have an *ingress* table ([`PortConfig::ingress`]) instead, which judges packets that enter the vswitch. Users only see directions
//! from the pod's point of view.

#![cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, unused_imports, reason = "only what is Linux's uses some of it")
)]

mod address_map;
pub mod conversation;
mod counters;
mod drop;
mod explained;
pub mod filter;
mod flow;
#[cfg(target_os = "linux")]
pub mod forward;
mod fragment;
pub mod io;
mod masquerade;
mod names;
mod outcome;
mod packet;
mod port;
pub mod probe;
mod replay;
mod route;
mod service;
mod session;
mod snapshot;
mod source_ports;
mod swap;
mod sync;
mod translations;
#[cfg(target_os = "linux")]
pub mod vswitch;
pub mod wire;
mod worker;

pub use counters::{ClientCounters, Counters, OriginCounters, PortCounters, SessionCounters};
pub use drop::DropReason;
pub use explained::Explained;
pub use flow::Flow;
pub use fragment::FragmentConfig;
pub use masquerade::Masquerade;
pub use names::{
    Full, Holder, Learned, LearnedCounts, Learner, NameCounters, NameId, Names, PATIENCE, ServerNameCheck, Swept,
};
pub use outcome::{BURST, BodyKind, Decider, Decision, Judged, Outcome, Packet, Received, SessionState, Verdict};
pub use packet::LinkType;
pub use port::{Link, PortConfig, PortId, PortKind, TableId};
pub use replay::replay;
pub use route::{NextHop, RouteError, Routes};
pub use service::{AFFINITY_CAPACITY, Backend, BackendList, Backends, ServicePort, Services, Vip, VipEntry};
#[cfg(target_os = "linux")]
pub use session::{Adoption, RefusedFile, SessionStore, SessionStoreError};
pub use session::{
    EndedSessions, Percent, PortSessions, SessionConfig, SessionEnd, SessionInfo, SessionMemoryError, SessionPage,
    SessionSelector, Tally, TcpWindow, Timeouts,
};
pub use snapshot::{PublishError, Publisher, Reader, Snapshot, SnapshotError};
pub use source_ports::SourcePorts;
pub use worker::{Affinity, AuditTap, Audited, Worker, WorkerConfig};

#[cfg(test)]
mod testbed;
