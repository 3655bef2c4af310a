//! States of entries. Each has its timeout and its list.

/// An entry's state, which determines its timeout and whether it may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A refused conversation, or a session cut by a policy.
    Refused,
    /// A session of UDP or another protocol without a handshake, before its first answer.
    Unreplied,
    /// A TCP connection or SCTP association that is not established yet.
    New,
    /// A TCP connection or SCTP association that has ended.
    Closed,
    /// A session of ICMP echo requests and replies.
    Echo,
    /// A TCP connection after a reset outside of the sequence window.
    Doubtful,
    /// A TCP connection or SCTP association that one side has closed.
    HalfClosed,
    /// A TCP connection that both sides have acknowledged.
    Established,
    /// A UDP session with packets from both sides.
    Stream,
    /// An established SCTP association, or a session of another protocol after its first answer.
    Idle,
}

impl Class {
    pub(super) const COUNT: usize = 10;
    pub(super) const ALL: [Self; Self::COUNT] = [
        Self::Refused,
        Self::Unreplied,
        Self::New,
        Self::Closed,
        Self::Echo,
        Self::Doubtful,
        Self::HalfClosed,
        Self::Established,
        Self::Stream,
        Self::Idle,
    ];

    /// Returns the name in listings.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Unreplied => "unreplied",
            Self::New => "new",
            Self::Closed => "closed",
            Self::Echo => "echo",
            Self::Doubtful => "doubtful",
            Self::HalfClosed => "half_closed",
            Self::Established => "established",
            Self::Stream => "stream",
            Self::Idle => "idle",
        }
    }

    /// Whether the connection is not established or has ended.
    pub(super) const fn is_half_open(self) -> bool {
        matches!(self, Self::New | Self::Closed)
    }
}
