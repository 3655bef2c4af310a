//! The states of entries, by which the table ends them: each has its timeout and its list.

/// The state of an entry: what decides how long it lives, and whether it may be ended for a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// No session: what was refused, or cut by a policy.
    Refused,
    /// UDP and other protocols without a handshake; nothing came back yet.
    Unreplied,
    /// TCP or SCTP that is not established.
    New,
    /// TCP or SCTP that is over.
    Closed,
    /// Ping.
    Echo,
    /// TCP about which a reset came that lies where none can be expected.
    Doubtful,
    /// TCP or SCTP that one side has finished.
    HalfClosed,
    /// TCP that both sides have acknowledged.
    Established,
    /// UDP that both sides send.
    Stream,
    /// SCTP that is established, and what else was answered.
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

    /// As it is written in answers.
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

    /// Whether it is a connection that is not established or that is over.
    pub(super) const fn is_half_open(self) -> bool {
        matches!(self, Self::New | Self::Closed)
    }
}
