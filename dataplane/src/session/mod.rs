//! Sessions: an allowed connection passes in both directions (a *reflective* table).
//!
//! **Purpose.** Policies allow connections, but rules match only their first direction. The tables judge the first packet. The session then
//! lets later packets and replies pass.
//!
//! **Not its purpose.** No policy, no routes, no packets: the worker does lookups and updates.
//!
//! ```text
//!   Key (both directions alike) --keyed hash--> index: buckets of one cache line --slot--> Entry, one cache line
//!                                                                                   `----> Links, 48 bytes
//!     lists by last use, for all entries, per in-port and per out-port, of each state ([`class::Class`])
//!     budget of the node: entries, half-open ones, those that each port has started and those that lead to it
//! ```
//!
//! A hit reads two lines that are not in the cache: a bucket and an entry. Data needed only when a session begins or ends is in the links.
//! A session takes 64 bytes for the entry, 48 for the links and 16 for the index at full capacity. A translated session takes 16 more for a
//! second index entry. Its rewrite is in the entry over IPv4 (`compact.rs`), and takes 64 bytes over IPv6 (`rewrite.rs`).
//!
//! ```text
//!   TCP, SCTP:   New --both acknowledged--> Established --FIN--> HalfClosed --FIN of the other side--> Closed
//!                 `-----------------------------'----- RST -----------'---------------------------------^
//!   UDP, others: Unreplied --an answer--> Stream (UDP), Idle (others)
//! ```
//!
//! Each state has its timeout. `table/tracking.rs` decides what a packet may change: a wrong checksum or a sequence number outside of the
//! window changes nothing.
//!
//! Shares ([`SessionConfig`]) keep one port from using the whole table. Connections that are not established have a share. Each pod has one
//! for sessions it starts and one for sessions started to it. A port over its share evicts its own expendable entries, or its new session
//! is refused. Shares apply to the node, not to a worker ([`budget`]).
//!
//! Refusals are stored under the same keys. A refused request may have been answered anyway: in a capture because another policy was in
//! force, or live because the session was revoked while packets were in flight. Without the refusal, the answer would start a session of
//! its own, which would let the refused direction pass as its reply. Allowing only requests to start sessions is no alternative, because
//! UDP does not mark requests. A session that a newer policy cuts becomes a refusal that keeps its state, and is restored if a later policy
//! allows it. A session whose pod is gone becomes a refusal too (`table/gone.rs`), by
//! which the vswitch answers the other end's packets.
//!
//! **Invariant.** The table never exceeds its capacity (with several workers, by up to a sixteenth for a moment). Every entry is in the
//! index, in its state's list and in its ports' lists. Answers do not depend on when expired entries are swept.

mod budget;
mod class;
mod compact;
mod config;
mod direction;
mod entry;
mod index;
mod key;
mod links;
mod lists;
mod memory;
mod rewrite;
#[cfg_attr(not(target_os = "linux"), path = "store/nowhere.rs")]
mod store;
mod table;
mod tcp;

pub(crate) use budget::Budget;
pub use budget::PortSessions;
pub use config::{Percent, SessionConfig, TcpWindow, Timeouts};
pub(crate) use direction::Direction;
pub(crate) use entry::{Entry, Moment, NONE, NOWHERE, NewSession, Slot};
pub(crate) use key::{Key, KeyHasher};
pub use memory::SessionMemoryError;
pub(crate) use rewrite::{Rewrite, Rewritten};
#[cfg(target_os = "linux")]
pub(crate) use store::Stored;
pub(crate) use store::TableFile;
#[cfg(target_os = "linux")]
pub use store::{Adoption, RefusedFile, SessionStore, SessionStoreError};
pub(crate) use table::{Belief, Evidence, Hit, Match, PlainHit, SessionTable, Survivor};
pub use table::{EndedSessions, SessionEnd, SessionInfo, SessionPage, SessionSelector, Tally};
