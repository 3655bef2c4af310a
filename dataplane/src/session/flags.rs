//! How far a TCP connection or an SCTP association is, from the flags that each side has sent.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Direction;
use crate::packet::TcpFlags;

/// All flags seen so far, per direction. Remembering a union of bits is all that VPP does too: it is right for any
/// order and any loss of packets that a capture may have. SCTP's chunks are taken as the flags that mean the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SeenFlags {
    from_initiator: u8,
    from_responder: u8,
}

impl SeenFlags {
    pub(super) const NONE: Self = Self { from_initiator: 0, from_responder: 0 };

    /// Takes the flags of one more segment in.
    pub(crate) const fn see(&mut self, direction: Direction, flags: TcpFlags) {
        match direction {
            Direction::Forward => self.from_initiator |= flags.0,
            Direction::Reply => self.from_responder |= flags.0,
        }
    }

    /// Whether a segment with these flags tells nothing new.
    #[inline]
    pub(crate) const fn knows(self, direction: Direction, flags: TcpFlags) -> bool {
        let seen = match direction {
            Direction::Forward => self.from_initiator,
            Direction::Reply => self.from_responder,
        };
        flags.0 & !seen == 0
    }

    /// Whether both sides have acknowledged something of the other.
    pub(crate) const fn is_established(self) -> bool {
        self.from_initiator & self.from_responder & TcpFlags::ACK != 0
    }

    /// Whether the connection is over: a reset from either side, or both sides have finished.
    pub(crate) const fn is_closed(self) -> bool {
        let reset = (self.from_initiator | self.from_responder) & TcpFlags::RST != 0;
        reset || self.from_initiator & self.from_responder & TcpFlags::FIN != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{Forward, Reply};

    fn after(segments: &[(Direction, u8)]) -> SeenFlags {
        let mut state = SeenFlags::NONE;
        for &(direction, flags) in segments {
            state.see(direction, TcpFlags(flags));
        }
        state
    }

    const SYN: u8 = TcpFlags::SYN;
    const ACK: u8 = TcpFlags::ACK;
    const FIN: u8 = TcpFlags::FIN;
    const RST: u8 = TcpFlags::RST;

    #[test]
    fn the_handshake_establishes_and_not_before_its_third_segment() {
        assert!(!after(&[(Forward, SYN), (Reply, SYN | ACK)]).is_established());
        assert!(after(&[(Forward, SYN), (Reply, SYN | ACK), (Forward, ACK)]).is_established());
    }

    #[test]
    fn one_side_that_sends_on_its_own_never_establishes() {
        assert!(!after(&[(Forward, SYN), (Forward, ACK), (Forward, ACK)]).is_established());
    }

    #[test]
    fn a_reset_or_a_close_from_both_sides_ends_it_and_a_half_close_does_not() {
        assert!(!after(&[(Forward, FIN | ACK), (Reply, ACK)]).is_closed());
        assert!(after(&[(Forward, FIN | ACK), (Reply, FIN | ACK)]).is_closed());
        assert!(after(&[(Forward, SYN), (Reply, RST | ACK)]).is_closed());
        assert!(after(&[(Forward, RST)]).is_closed());
    }
}
