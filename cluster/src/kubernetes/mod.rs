//! # Objects of an API server: lists and watches in, batches of events out
//!
//! **Purpose.** Follows the objects that policy depends on, and optionally Services and their endpoints. It needs the rights `list` and
//! `watch` and no others. Changes are delivered in batches.
//!
//! **Not its purpose.** It writes nothing to the server and makes no decision about traffic. Objects are parsed by the code that reads
//! files ([`bulkhead_control::source::single`]).
//!
//! ```text
//!  discovery --kinds that exist-------> one task per kind: list, watch, list again --objects--> Store --batch--> caller
//!      |                                                   |                                     ^
//!      `------------- contact --> SourceHealth <-----------'                  first lists of all kinds of a purpose: the gate
//! ```
//! One thread with its own Tokio runtime runs all tasks. It locks the store for one object at a time; taking a batch locks the store while
//! the changes are copied.
//!
//! **Invariant.** A batch leads from one state of the server to a later one, kind by kind. No batch is delivered before the first lists of
//! all kinds of its purpose are complete, and an incomplete list changes nothing. While the server is down, refuses a request or sends
//! malformed data, the known state stays in force. Policy and Services have separate batches: neither waits for the other, and a server
//! that hides Services does not remove policy.
//!
//! **Choices.** No library is used for lists and watches. `kube`'s watcher continues the stream after a line that it cannot parse, so that
//! event is lost until the next list. It also keeps typed metadata of every object, which the code that reads files cannot use.

mod backoff;
mod connection;
mod discovery;
mod follow;
mod health;
mod kinds;
mod list_watch;
mod node_blocks;
mod page;
mod pruned;
mod settings;
mod shared;
mod store;

pub use follow::Follower;
pub use health::{ServicesHealth, SourceHealth};
pub use kinds::{Kind, Purpose};
pub use node_blocks::node_blocks;
pub use settings::{Settings, Timing};
pub use shared::Notice;

pub use crate::client::Access;
pub use store::Changes;
