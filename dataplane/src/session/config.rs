//! How sessions are kept: times, shares, checks.

use super::class::Class;

const SECOND: u64 = 1_000_000_000;

/// How long a session lives without packets, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP and SCTP until both sides have acknowledged something.
    pub tcp_new: u64,
    /// TCP once both sides have acknowledged something.
    pub tcp_established: u64,
    /// TCP and SCTP once one side has finished.
    pub tcp_half_closed: u64,
    /// TCP and SCTP after a reset (an abort) or when both sides have finished.
    pub tcp_closed: u64,
    /// UDP, and every protocol that has no time of its own, until the other side answers.
    pub udp_unreplied: u64,
    /// UDP that both sides send.
    pub udp_stream: u64,
    /// SCTP once its handshake is over, and answered conversations of all other protocols.
    pub idle: u64,
    /// ICMP echo.
    pub icmp_echo: u64,
    /// A refusal, since the last packet in the direction that was refused; a session that a policy has cut, since its last
    /// packet.
    pub refused: u64,
}

impl Default for Timeouts {
    /// Linux conntrack's values (net/netfilter/nf_conntrack_proto_*.c) but for these. An established connection has the
    /// 24 hours of VPP's ACL plugin, which operators of the predecessor know; conntrack's five days are longer than
    /// any application waits. A UDP stream has 180 s, conntrack's value for many years (120 s today): more than the pauses of QUIC
    /// and of games. Answered conversations of other protocols have VPP's 600 s, which is conntrack's generic time too.
    /// Echo has 60 s: a ping is answered within seconds or never, and the longest interval that people ping at is a minute.
    /// 300 s for refusals outlast the longest pause between two repetitions of a segment, Linux's TCP_RTO_MAX of 120 s, so
    /// that a connection that is cut and allowed again is still known.
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

/// A share in percent; 100 and more is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u8);

impl Percent {
    /// No limit.
    pub const ALL: Self = Self(100);

    /// That share of a number; at least one, so that a small table does not refuse everything.
    pub(crate) fn of(self, whole: usize) -> usize {
        if self >= Self::ALL {
            return usize::MAX;
        }
        let share = whole as u128 * u128::from(self.0) / 100;
        usize::try_from(share).expect("a share is not more than the whole").max(1)
    }
}

/// What is done with a TCP segment that would end a session and lies where none can be expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcpWindow {
    /// It passes and ends nothing; the receiver, who knows better, decides (RFC 5961). Flows may be forwarded in the kernel.
    #[default]
    Loose,
    /// It is dropped ([`DropReason::TcpOutOfWindow`](crate::DropReason::TcpOutOfWindow)). That needs every segment to
    /// be seen: no TCP flow is forwarded in the kernel, and no segment takes the quickest way through the worker.
    Strict,
}

/// How sessions are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// The most sessions and refusals at a time; more than 67,108,864 count as that. Memory grows with use (128 bytes
    /// each when all are in use); address space for all is reserved from the start.
    pub capacity: usize,
    /// How long they live without packets.
    pub timeouts: Timeouts,
    /// Whether a TCP segment from the middle of a connection may start a session when policy allows it. For captures
    /// that begin in the middle, and for a node that has just lost its table.
    pub tcp_pickup: bool,
    /// What is done with a segment that would end a session and cannot be of it.
    pub tcp_window: TcpWindow,
    /// Whether a packet that begins or ends a connection, or that makes one established or answered, must have a right
    /// transport checksum. Not in captures: they hold packets from before an interface filled it in.
    pub verify_checksums: bool,
    /// Whether a refused request is remembered, so that its answer opens nothing. A capture needs that: it holds answers to
    /// requests that the network let pass when it was recorded. A live vswitch does not: what it drops is not answered,
    /// and remembering would let a stranger who guesses a pod's ports block them by sending refused packets. Sessions
    /// that a policy change revokes are remembered in any case.
    pub remember_refused: bool,
    /// The share of the capacity for TCP connections and SCTP associations that are not established or that are over.
    /// Beyond it a new one ends the least recently used one of the port that has the most. So a flood of SYNs can fill
    /// this share and no more, and a pod that floods recycles its own. VPP has no such limit.
    pub half_open: Percent,
    /// The share of the capacity for what one pod has started, and once more for what others have started to it. Beyond it a
    /// new one ends an entry of that pod that nobody misses (a refusal, UDP without an answer, a connection that is not
    /// established or that is over, a ping), or is refused ([`DropReason::SessionQuota`](crate::DropReason::SessionQuota)).
    /// VPP has no such limit.
    pub pod_share: Percent,
    /// The share for what the uplink and what the host has started, each, who speak for many.
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
    /// For a live vswitch: checksums are there and are verified, refused requests are not remembered, and nobody gets the
    /// whole table.
    ///
    /// A quarter for connections that are not established is 125,000 of 500,000: at 120 s each, a thousand a second that
    /// open and are not recycled early. A quarter for each pod leaves room for three that flood at once and a quarter for
    /// all others; three quarters for the uplink leave a quarter to the pods' own connections.
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
