//! Sessions: what was allowed once passes in both directions (a *reflective* table).
//!
//! **Purpose.** Policy is on connections, but only one direction of a connection is in the rules. So the first packet
//! is judged by the tables, and a session lets its later packets and its replies pass.
//!
//! **Not its purpose.** No policy, no routes, no packets: the worker asks, and says what to remember. No sequence
//! numbers: a session ends by its flags and by idle time, as in VPP's ACL plugin; checking windows would need state
//! that a capture from the middle of a connection does not have.
//!
//! ```text
//!   Key (both directions alike) --keyed hash--> slot of the slab: Entry { ports, generation, decision, tcp, times }
//!                                                     |
//!                        one list per Class, least recently used first: refused · transient · established · idle · echo
//! ```
//!
//! Refusals are remembered too, under the same keys. A request that was refused may have been answered all the same: in
//! a capture, because another policy was in force; live, because the session was revoked while packets were under way.
//! Without the memory the answer would be judged as a conversation of its own, and the session that it makes would
//! let the refused direction pass as its reply. Letting only requests start sessions was the alternative; UDP does
//! not say which packet is one.
//!
//! **Invariant.** Never more entries than the configured capacity. Every entry is in the index and in exactly one
//! list, and what the table answers does not depend on when expired entries are swept out.

mod entry;
mod key;
mod table;
mod tcp;

pub(crate) use entry::{Direction, Moment, NewSession, Slot};
pub(crate) use key::Key;
pub(crate) use table::SessionTable;

const SECOND: u64 = 1_000_000_000;

/// How long a session lives without packets, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// UDP, SCTP and every protocol that has no time of its own.
    pub idle: u64,
    /// TCP once both sides have acknowledged something.
    pub tcp_established: u64,
    /// TCP before that, and after a reset or a close from both sides.
    pub tcp_transient: u64,
    /// ICMP echo.
    pub icmp_echo: u64,
    /// A refusal, since the last packet in the direction that was refused.
    pub refused: u64,
}

impl Default for Timeouts {
    /// VPP's ACL plugin's values, which operators of the predecessor know; and 60 s for echo, which VPP keeps for
    /// 600 s like UDP: a ping is answered within seconds or never, a fresh identifier per run makes sessions pile up,
    /// and the longest interval that people ping at is a minute. 120 s for refusals outlasts the longest pause between
    /// Linux's repetitions of a SYN, 64 s.
    fn default() -> Self {
        Self {
            idle: 600 * SECOND,
            tcp_established: 24 * 3600 * SECOND,
            tcp_transient: 120 * SECOND,
            icmp_echo: 60 * SECOND,
            refused: 120 * SECOND,
        }
    }
}

/// How sessions are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// The most sessions and refusals at a time. Memory grows with use (about 150 bytes each), not with this number.
    pub capacity: usize,
    /// How long they live without packets.
    pub timeouts: Timeouts,
    /// Whether a TCP segment from the middle of a connection may start a session when policy allows it. For captures
    /// that begin in the middle, and for a node that has just lost its table.
    pub tcp_pickup: bool,
    /// Whether a refused request is remembered, so that its answer opens nothing. A capture needs that: it holds answers to
    /// requests that the network let pass when it was recorded. A live vswitch does not: what it drops is not answered,
    /// and remembering would let a stranger who guesses a pod's ports block them by sending refused packets. Sessions
    /// that a policy change revokes are remembered in any case.
    pub remember_refused: bool,
}

impl Default for SessionConfig {
    /// 500,000 sessions is VPP's default. Without pickup a stray segment starts nothing, the safe side.
    fn default() -> Self {
        Self { capacity: 500_000, timeouts: Timeouts::default(), tcp_pickup: false, remember_refused: true }
    }
}
