//! Sessions: what was allowed once passes in both directions (a *reflective* table).
//!
//! **Purpose.** Policy is on connections, but only one direction of a connection is in the rules. So the first packet
//! is judged by the tables, and a session lets its later packets and its replies pass.
//!
//! **Not its purpose.** No policy, no routes, no packets: the worker asks, and says what to remember.
//!
//! ```text
//!   Key (both directions alike) --keyed hash--> index: buckets of one cache line --slot--> Entry, one cache line
//!                                                                                   `----> Links, 48 bytes
//!     lists by last use, for all entries, per in-port and per out-port, of each state ([`class::Class`])
//!     budget of the node: entries, half-open ones, those that each port has started and those that lead to it
//! ```
//!
//! A hit reads two lines that are not in the cache: its bucket's and its entry's. All that only a new or an ending session
//! needs is in the links. Memory per session: 64 bytes for the entry, 48 for the links, 16 for the index at full capacity.
//! A session to a Service's address takes 16 more for a second place in the index, and over IPv6 64 for what is rewritten (`rewrite.rs`);
//! over IPv4 that is in the entry (`compact.rs`).
//!
//! ```text
//!   TCP, SCTP:   New --both acknowledged--> Established --FIN--> HalfClosed --FIN of the other side--> Closed
//!                 `-----------------------------'----- RST -----------'---------------------------------^
//!   UDP, others: Unreplied --an answer--> Stream (UDP), Idle (others)
//! ```
//!
//! Each state has its timeout. What a packet may change is in `table/tracking.rs`: nothing with a wrong checksum, and nothing
//! at a place in the sequence space where its connection is not.
//!
//! Nobody can use up the table for others, where shares are configured ([`SessionConfig`]): connections that are not
//! established have a share of it, and each pod has one for what it starts and one for what others start to it. A port over
//! its share loses its own entries that nobody misses, or is refused. The shares are the node's, not a worker's ([`budget`]).
//!
//! Refusals are remembered too, under the same keys. A request that was refused may have been answered all the same: in
//! a capture, because another policy was in force; live, because the session was revoked while packets were under way.
//! Without the memory the answer would be judged as a conversation of its own, and the session that it makes would
//! let the refused direction pass as its reply. Letting only requests start sessions was the alternative; UDP does
//! not say which packet is one. A session that a newer policy cuts becomes a refusal that knows what it was: when a still newer
//! policy allows it, it goes on.
//!
//! **Invariant.** Never more entries than the configured capacity (with several workers, a sixteenth more for a moment). Every
//! entry is in the index, in its state's list and in those of its ports, and what the table answers does not depend on when expired entries are swept out.

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
pub(crate) use entry::{Entry, Moment, NONE, NewSession, Slot};
pub(crate) use key::{Key, KeyHasher};
pub use memory::SessionMemoryError;
pub(crate) use rewrite::{Rewrite, Rewritten};
pub(crate) use store::TableFile;
#[cfg(target_os = "linux")]
pub use store::{Adoption, RefusedFile, SessionStore, SessionStoreError};
pub(crate) use table::{Belief, Evidence, Hit, Match, PlainHit, SessionTable};
pub use table::{EndedSessions, SessionEnd, SessionInfo, SessionPage, SessionSelector, Tally};
