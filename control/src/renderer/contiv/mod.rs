//! The classic form: Contiv's 6-tuple tables, for network stacks that take plain rule lists.
//!
//! **Purpose.** A second renderer beside [`super::acl`]. It gives VPP-like ACLs (egress orientation) or session rules
//! (ingress orientation) as sorted lists of (source, destination, protocol, port, action), made with Contiv's
//! `CombineRules` and `BuildGlobalTable`, and says which tables a transaction changed.
//!
//! **Not its purpose.** It loads nothing into a stack, and it is not what Bulkhead's own dataplane enforces, but at the source: products
//! of sets are smaller, and the verdict of a combined rule cannot say which policy it came from.
//!
//! ```text
//!  PodConfig --expand--> PeerList (sorted 1-sided rules) --cache--> local tables, shared by equal pods
//!   set products          refused beyond a bound           |        global table of the node's exit
//!                                                          `------> Changes: table, previous pods, pods
//! ```
//!
//! **Invariant.** The first match in the tables equals "the source's list AND the destination's list", and the tables
//! are a function of the pods' lists and addresses alone, not of the history.
//!
//! **Direction words.** [`Orientation`] has Contiv's names, seen from the vswitch. Everything else speaks from the pod:
//! a pod's ingress list is about traffic towards it, whichever orientation the tables have.

mod allowed_ports;
mod attribution;
pub mod cache;
mod combine;
mod expand;
pub mod list;
pub mod renderer;
mod renderer_state;
pub mod rules;
pub mod table;
pub mod tuple;

#[cfg(test)]
mod tests;

pub use attribution::{AttributedTuple, LocalTable, PodRules};

use crate::origin::Direction;

/// Where the tables are applied, in Contiv's words: from the vswitch's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Orientation {
    /// To packets that leave the vswitch: a pod's table judges what goes to it (VPP ACLs).
    Egress,
    /// To packets that enter the vswitch: a pod's table judges what it sends (session rules).
    Ingress,
}

impl Orientation {
    /// The direction, in the pod's words, of the traffic that a pod's own table judges.
    const fn judged(self) -> Direction {
        match self {
            Self::Egress => Direction::Ingress,
            Self::Ingress => Direction::Egress,
        }
    }
}

/// The most 6-tuples that all lists, or all tables, of one node may have together.
///
/// Four times Contiv's stress policy (487,000 a direction), so that it fits in both directions with room for others. A
/// tuple takes 44 bytes: the bound keeps the tables under 100 MB, and nobody loads more into a stack of linear lists.
pub const MAX_TUPLES: usize = 2_000_000;

/// The rules would make more 6-tuples than allowed. Nothing of the transaction is in force; what was stays, whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} would have {tuples} 6-tuples or more, the bound is {limit}: a 6-tuple list holds every prefix with every \
     port; use fewer blocks, fewer excepts or fewer ports, or a renderer that takes sets"
)]
pub struct TooManyTuples {
    /// What would be too large.
    pub what: String,
    /// How many tuples it would have at least.
    pub tuples: usize,
    /// How many are allowed.
    pub limit: usize,
}
