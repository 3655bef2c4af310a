//! The classic form: Contiv's 6-tuple tables, for network stacks that take plain rule lists.
//!
//! **Purpose.** A second renderer beside [`super::acl`]. It produces VPP-like ACLs (egress orientation) or session rules (ingress
//! orientation): sorted lists of (source, destination, protocol, port, action), computed as in Contiv's `CombineRules` and
//! `BuildGlobalTable`. It also reports which tables a transaction changed.
//!
//! **Not its purpose.** It loads nothing into a stack. Bulkhead's own dataplane uses it only for enforcement at the source. Elsewhere it
//! uses products of sets, which are smaller and, unlike combined rules, name the policy that decided.
//!
//! ```text
//!  PodConfig --expand--> PeerList (sorted 1-sided rules) --cache--> local tables, shared by equal pods
//!   set products          refused beyond a bound           |        global table of the node's exit
//!                                                          `------> Changes: table, previous pods, pods
//! ```
//!
//! **Invariant.** The first match in the tables equals "the source's list AND the destination's list". The tables are a function of the
//! pods' lists and addresses, independent of history.
//!
//! **Directions.** [`Orientation`] uses Contiv's names, seen from the vswitch. Everything else is seen from the pod: a pod's ingress list
//! covers traffic to the pod, in both orientations.

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

/// Where a stack applies the tables, in Contiv's terms, seen from the vswitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Orientation {
    /// To packets that leave the vswitch. A pod's table judges traffic to the pod (VPP ACLs).
    Egress,
    /// To packets that enter the vswitch. A pod's table judges traffic from the pod (session rules).
    Ingress,
}

impl Orientation {
    /// Returns the direction that a pod's own table judges, seen from the pod.
    const fn judged(self) -> Direction {
        match self {
            Self::Egress => Direction::Ingress,
            Self::Ingress => Direction::Egress,
        }
    }
}

/// Maximum number of 6-tuples of all lists, or of all tables, of one node.
///
/// Four times Contiv's stress policy (487,000 per direction), so it fits in both directions with room for others. A tuple takes 44 bytes,
/// so tables stay below 100 MB. Stacks with linear lists do not hold more in practice.
pub const MAX_TUPLES: usize = 2_000_000;

/// The rules would produce too many 6-tuples. The transaction has no effect, and the previous tables stay in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} would have {tuples} 6-tuples or more, the limit is {limit}: a 6-tuple list holds each prefix with each \
     port; use fewer blocks, fewer excepts or fewer ports, or a renderer that takes sets"
)]
pub struct TooManyTuples {
    /// The list or table that would be too large.
    pub what: String,
    /// A lower bound of its number of tuples.
    pub tuples: usize,
    /// The maximum number of tuples.
    pub limit: usize,
}
