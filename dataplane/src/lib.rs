//! # The dataplane: packets in, verdicts out
//!
//! **Purpose.** [`Worker::process`] judges bursts of packets by a [`Snapshot`]: it parses them, refuses what is
//! malformed or spoofed, lets pass what belongs to a session, asks the tables about the rest, and says for every
//! packet where it goes or why it is dropped, and which rule decided.
//!
//! **Not its purpose.** No Kubernetes: a policy is an opaque [`OriginId`](bulkhead_classifier::OriginId) on a
//! classifier's rule, and every default is a rule in a table, never an `if` in here. No configuration and no files
//! but captures. The engine has no clock and no threads: time is what the packets say, a worker belongs to whoever
//! calls it. Only [`vswitch`] has both.
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
//! **Invariant.** A packet passes only if every stage says so: the verdict starts as a drop, and an unknown port, a
//! missing table and a header that is not understood are drops with a reason of their own. What was received is what
//! was forwarded plus what was dropped, per reason ([`Counters`]). A packet never allocates, locks or calls upward.
//!
//! Directions in here are the packet's: it comes *in* on a port and leaves *out* through another. The *egress* table
//! of a port ([`PortConfig::egress`]) is seen from the vswitch, as in Contiv: it is what packets pass on their way
//! out to the pod. Where policy is judged at the source, ports have an *ingress* table ([`PortConfig::ingress`]) in its place, which
//! packets pass on their way in. Users are only shown directions from the pod's point of view.

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
mod outcome;
mod packet;
mod port;
pub mod probe;
mod replay;
mod route;
mod service;
mod session;
mod snapshot;
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
pub use outcome::{BURST, BodyKind, Decision, Judged, Outcome, Packet, Received, SessionState, Verdict};
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
pub use worker::{Affinity, AuditTap, Audited, Worker, WorkerConfig};

#[cfg(test)]
mod testbed;
