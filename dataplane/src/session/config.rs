//! Configuration of the session table: timeouts, shares, checks.

use super::class::Class;

const SECOND: u64 = 1_000_000_000;

/// Idle timeouts of sessions by state, in nanoseconds. A session ends when none of its packets was seen for this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Timeout of TCP connections and SCTP associations before both sides have acknowledged.
    pub tcp_new: u64,
    /// Timeout of TCP connections after both sides have acknowledged.
    pub tcp_established: u64,
    /// Timeout of TCP connections and SCTP associations after one side's FIN or SHUTDOWN.
    pub tcp_half_closed: u64,
    /// Timeout of TCP and SCTP after a reset or abort, or after both sides have closed.
    pub tcp_closed: u64,
    /// Timeout of UDP and other protocols before the other side answers.
    pub udp_unreplied: u64,
    /// Timeout of UDP sessions after the other side has answered.
    pub udp_stream: u64,
    /// Timeout of SCTP after its handshake, and of other protocols after an answer.
    pub idle: u64,
    /// Timeout of sessions of ICMP echo requests and replies.
    pub icmp_echo: u64,
    /// Timeout of refusals, since the last refused packet, and of sessions cut by a policy, since their last packet.
    pub refused: u64,
}

impl Default for Timeouts {
    /// Values of Linux conntrack (net/netfilter/nf_conntrack_proto_*.c), with these exceptions:
    /// * Established TCP: 24 hours, as in VPP's ACL plugin, which operators of the predecessor know. Conntrack's five days exceed the
    ///   pauses of any application.
    /// * UDP stream: 180 s, conntrack's former value (now 120 s), which covers pauses of QUIC and of games.
    /// * Other protocols: VPP's 600 s, which is also conntrack's generic timeout.
    /// * Echo: 60 s. A ping is answered within seconds, and intervals are at most a minute.
    /// * Refusals: 300 s, longer than Linux's TCP_RTO_MAX of 120 s, so that a connection that is cut and allowed again is still known.
    fn default() -> Self {
        Self {
            tcp_new: 120 * SECOND,
            tcp_established: 24 * 3600 * SECOND,
            tcp_half_closed: 120 * SECOND,
            tcp_closed: 10 * SECOND,
            udp_unreplied: 30 * SECOND,
            udp_stream: 180 * SECOND,
            idle: 600 * SECOND,
            icmp_echo: 60 * SECOND,
            refused: 300 * SECOND,
        }
    }
}

impl Timeouts {
    pub(super) const fn of(&self, class: Class) -> u64 {
        match class {
            Class::Refused => self.refused,
            Class::Unreplied => self.udp_unreplied,
            Class::New => self.tcp_new,
            Class::Closed => self.tcp_closed,
            Class::Echo => self.icmp_echo,
            Class::HalfClosed => self.tcp_half_closed,
            Class::Doubtful | Class::Established => self.tcp_established,
            Class::Stream => self.udp_stream,
            Class::Idle => self.idle,
        }
    }
}

/// A share in percent. 100 or more means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u8);

impl Percent {
    /// The share that means no limit.
    pub const ALL: Self = Self(100);

    /// Returns this share of a number, rounded down, but at least 1. `usize::MAX` if there is no limit.
    pub(crate) fn of(self, whole: usize) -> usize {
        if self >= Self::ALL {
            return usize::MAX;
        }
        let share = whole as u128 * u128::from(self.0) / 100;
        usize::try_from(share).expect("a share is not more than the whole").max(1)
    }
}

/// Handling of a TCP segment that would end a session but is outside of its sequence window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcpWindow {
    /// Forwards the segment but does not end the session: the receiver decides (RFC 5961). The kernel may forward flows.
    #[default]
    Loose,
    /// Drops the segment ([`DropReason::TcpOutOfWindow`](crate::DropReason::TcpOutOfWindow)). Workers must then see every segment: the
    /// kernel forwards no TCP flows, and no segment takes a worker's fast path.
    Strict,
}

/// Configuration of the session table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Maximum number of sessions and refusals, at most 67,108,864. Memory grows with use (128 bytes each in a full table). Address space
    /// is reserved at the start.
    pub capacity: usize,
    /// Idle timeouts.
    pub timeouts: Timeouts,
    /// Whether a TCP segment from the middle of a connection may start a session if policy allows it. For captures that begin
    /// mid-connection and for nodes that lost their table.
    pub tcp_pickup: bool,
    /// Handling of segments that would end a session but are outside of its window.
    pub tcp_window: TcpWindow,
    /// Whether packets that open, establish, answer or end a connection need a correct transport checksum. Off for captures, which contain
    /// packets from before checksum offload.
    pub verify_checksums: bool,
    /// Whether refused requests are remembered, so that their answers start no session. Captures need it, because the recorded network may
    /// have let the request pass. A live vswitch does not: dropped requests get no answer, and attackers could block a pod's ports with
    /// refused packets. Sessions revoked by a policy change are always remembered.
    pub remember_refused: bool,
    /// Share of the capacity for TCP connections and SCTP associations that are not established or are closed. Beyond it, a new one evicts
    /// the least recently used one of the port that has the most. So a SYN flood fills only this share, and a flooding pod evicts its own.
    /// VPP has no such limit.
    pub half_open: Percent,
    /// Share of the capacity for sessions started by one pod, and again for sessions started to it. Beyond it, a new session evicts an
    /// expendable entry of that pod (a refusal, unanswered UDP, a connection that is not established or is closed, a ping). If there is
    /// none, it is dropped as [`DropReason::SessionQuota`](crate::DropReason::SessionQuota). VPP has no such limit.
    pub pod_share: Percent,
    /// Share for sessions started from the uplink, and likewise from the host. Both serve many clients.
    pub outside_share: Percent,
}

impl Default for SessionConfig {
    /// 500,000 sessions are VPP's default. Without pickup, stray segments start no session, which is safer. No shares: a capture or a
    /// question has the table to itself.
    fn default() -> Self {
        Self {
            capacity: 500_000,
            timeouts: Timeouts::default(),
            tcp_pickup: false,
            tcp_window: TcpWindow::Loose,
            verify_checksums: false,
            remember_refused: true,
            half_open: Percent::ALL,
            pod_share: Percent::ALL,
            outside_share: Percent::ALL,
        }
    }
}

impl SessionConfig {
    /// Returns the configuration of a live vswitch: checksums are verified, refused requests are not remembered, and shares apply.
    ///
    /// A quarter for connections that are not established is 125,000 of 500,000: at 120 s each, 1,000 new ones a second without eviction. A
    /// quarter per pod leaves a quarter to all others while three pods flood. Three quarters for the uplink leave a quarter to the pods'
    /// own connections.
    pub fn live(capacity: usize) -> Self {
        Self {
            capacity,
            verify_checksums: true,
            remember_refused: false,
            half_open: Percent(25),
            pod_share: Percent(25),
            outside_share: Percent(75),
            ..Self::default()
        }
    }
}
