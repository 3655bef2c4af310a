//! # Objects from an API server: lists and watches in, batches of events out
//!
//! **Purpose.** Follows the objects of a cluster that policy depends on, and where they are wanted Services with their endpoints, with the
//! rights to list and to watch them and no others. Hands over what changes as batches that make sense as a whole.
//!
//! **Not its purpose.** It writes nothing to the server, decides nothing about traffic, and reads no object itself: the code that reads
//! files does ([`bulkhead_control::source::single`]).
//!
//! ```text
//!  discovery --which kinds there are--> one task per kind: list, watch, list again --objects--> Store --batch--> whoever takes it
//!      |                                                   |                                     ^
//!      `------------- contact --> SourceHealth <-----------'                  first lists of all kinds of a purpose: the gate
//! ```
//! One thread runs all of it on a Tokio runtime of its own. It holds the lock of the store for one object at a time; taking a batch
//! holds it for as long as copying what has changed.
//!
//! **Invariant.** A batch leads from one state that the server had, kind by kind, to a later one. Nothing is handed over before the first
//! lists of all kinds of its purpose are whole, and a list that is not whole changes nothing. What the server does not say any more, because
//! it is away, refuses or talks nonsense, stays as it was. Policy and Services have batches of their own: neither waits for the other, and
//! a server that does not show Services takes no policy away.
//!
//! **Choices.** Lists and watches are not those of a library. The watcher of `kube` goes on with the same stream after a line that it cannot
//! read, so the event of this line is lost until the next list. It also holds typed metadata of every object, which the code that reads
//! files would have to be told again.

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
