//! States of entries. Each has its timeout and its list.

/// An entry's state, which determines its timeout and whether it may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// No session: a refusal, or a session cut by a policy.
    Refused,
    /// UDP and other protocols without a handshake, not answered yet.
    Unreplied,
    /// TCP or SCTP before it is established.
    New,
    /// TCP or SCTP after its end.
    Closed,
    /// ICMP echo.
    Echo,
    /// TCP after a reset outside of the sequence window.
    Doubtful,
    /// TCP or SCTP that one side has closed.
    HalfClosed,
    /// TCP that both sides have acknowledged.
    Established,
    /// UDP with packets from both sides.
    Stream,
    /// Established SCTP, and other protocols after an answer.
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

    /// The name in listings.
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
