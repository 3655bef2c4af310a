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
//!   Key (both directions alike) --keyed hash--> index: buckets of one cache line --slot--> Entry, one cache line
//!                                                                                   `----> Links, half a cache line
//!     lists by last use, for all entries and per in-port: refused · transient · established · idle · echo
//! ```
//!
//! A hit reads two lines that are not in the cache: its bucket's and its entry's. All that only a new or an ending session
//! needs is in the links. Memory per session: 64 bytes for the entry, 32 for the links, 16 for the index at full capacity.
//!
//! Nobody can use up the table for others, where shares are configured ([`SessionConfig`]): connections that are not
//! established have a share of it, and so has each pod. Who is over a share pays with its own entries, or is refused.
//!
//! Refusals are remembered too, under the same keys. A request that was refused may have been answered all the same: in
//! a capture, because another policy was in force; live, because the session was revoked while packets were under way.
//! Without the memory the answer would be judged as a conversation of its own, and the session that it makes would
//! let the refused direction pass as its reply. Letting only requests start sessions was the alternative; UDP does
//! not say which packet is one.
//!
//! **Invariant.** Never more entries than the configured capacity. Every entry is in the index, in its class's list and in
//! its port's, and what the table answers does not depend on when expired entries are swept out.

mod entry;
mod flags;
mod index;
mod key;
mod lists;
mod memory;
mod table;

pub(crate) use entry::{Direction, Moment, NONE, NewSession, Slot};
pub(crate) use key::Key;
pub use memory::SessionMemoryError;
pub(crate) use table::{PlainHit, SessionTable};

use entry::Class;

const SECOND: u64 = 1_000_000_000;

/// How long a session lives without packets, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// UDP, SCTP once its handshake is over, and every protocol that has no time of its own.
    pub idle: u64,
    /// TCP once both sides have acknowledged something.
    pub tcp_established: u64,
    /// TCP and SCTP before that, and after a reset (an abort) or a close from both sides.
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

impl Timeouts {
    const fn of(&self, class: Class) -> u64 {
        match class {
            Class::Refused => self.refused,
            Class::Transient => self.tcp_transient,
            Class::Established => self.tcp_established,
            Class::Idle => self.idle,
            Class::Echo => self.icmp_echo,
        }
    }
}

/// A share in percent; 100 and more is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u8);

impl Percent {
    /// No limit.
    pub const ALL: Self = Self(100);

    /// That share of a number; at least one, so that a small table does not refuse everything.
    fn of(self, whole: usize) -> usize {
        if self >= Self::ALL {
            return usize::MAX;
        }
        let share = whole as u128 * u128::from(self.0) / 100;
        usize::try_from(share).expect("a share is not more than the whole").max(1)
    }
}

/// How sessions are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// The most sessions and refusals at a time; more than 67,108,864 count as that. Memory grows with use (112 bytes
    /// each when all are in use); address space for all is reserved from the start.
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
    /// The share of the capacity for TCP connections and SCTP associations that are not established or that are over.
    /// Beyond it a new one ends the least recently used one of the port that has the most. So a flood of SYNs can fill
    /// this share and no more, and a pod that floods recycles its own. VPP has no such limit.
    pub half_open: Percent,
    /// The share of the capacity for entries whose first packet came in on one and the same pod's port. Beyond it a new one
    /// ends a refusal, a connection that is not established or a ping of that pod, or is refused
    /// ([`DropReason::SessionQuota`](crate::DropReason::SessionQuota)). VPP has no such limit.
    pub pod_share: Percent,
    /// The same for the uplink and for the host, each, which speak for many.
    pub outside_share: Percent,
}

impl Default for SessionConfig {
    /// 500,000 sessions is VPP's default. Without pickup a stray segment starts nothing, the safe side. No shares: a
    /// capture or a question is judged as if it had the table to itself.
    fn default() -> Self {
        Self {
            capacity: 500_000,
            timeouts: Timeouts::default(),
            tcp_pickup: false,
            remember_refused: true,
            half_open: Percent::ALL,
            pod_share: Percent::ALL,
            outside_share: Percent::ALL,
        }
    }
}

impl SessionConfig {
    /// For a live vswitch: refused requests are not remembered, and nobody gets the whole table.
    ///
    /// A quarter for connections that are not established is 125,000 of 500,000: at 120 s each, a thousand a second that
    /// open or close and are not recycled early. A quarter for each pod leaves room for three that flood at once and a
    /// quarter for all others; three quarters for the uplink leave a quarter to the pods' own connections.
    pub fn live(capacity: usize) -> Self {
        Self {
            capacity,
            remember_refused: false,
            half_open: Percent(25),
            pod_share: Percent(25),
            outside_share: Percent(75),
            ..Self::default()
        }
    }
}
