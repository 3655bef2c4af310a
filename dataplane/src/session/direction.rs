//! The two directions of a session.

/// The direction of a packet in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The direction of the packet that created the session.
    Forward,
    /// The direction of the answers to that packet.
    Reply,
}
