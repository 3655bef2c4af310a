//! The two directions of a session.

/// Which way a packet of a session goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// As the packet that created the session.
    Forward,
    /// The other way.
    Reply,
}
