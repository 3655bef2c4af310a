//! The state of a TCP connection or SCTP association, derived from the flags that each side has sent.

use bulkhead_classifier::protocol;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::class::Class;
use super::direction::Direction;
use crate::packet::TcpFlags;

/// FIN, SYN, RST and ACK seen so far, four bits per direction. The union is correct for any order and any loss of packets in a capture.
/// SCTP chunks count as the equivalent flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct SeenFlags(u8);

/// The four bits of one direction. The initiator's bits are the lower half of [`SeenFlags`].
mod bit {
    pub(super) const FIN: u8 = 1;
    pub(super) const SYN: u8 = 2;
    pub(super) const RST: u8 = 4;
    pub(super) const ACK: u8 = 8;
    pub(super) const ALL: u8 = 15;
}

impl SeenFlags {
    pub(super) const NONE: Self = Self(0);

    /// Adds the flags of a segment that this direction has sent.
    pub(crate) const fn see(&mut self, direction: Direction, flags: TcpFlags) {
        self.0 |= bits(flags) << shift(direction);
    }

    /// Whether a segment's flags were all seen before.
    pub(crate) const fn knows(self, direction: Direction, flags: TcpFlags) -> bool {
        bits(flags) & !self.of(direction) == 0
    }

    /// Whether this direction has sent an ACK.
    pub(crate) const fn has_acknowledged(self, direction: Direction) -> bool {
        self.of(direction) & bit::ACK != 0
    }

    /// Whether this direction has sent any of these flags.
    pub(crate) const fn has_sent(self, direction: Direction) -> bool {
        self.of(direction) != 0
    }

    /// Whether this direction has sent a SYN.
    pub(crate) const fn has_opened(self, direction: Direction) -> bool {
        self.of(direction) & bit::SYN != 0
    }

    /// Whether the connection has ended: a reset from either side, or a FIN from both.
    pub(crate) const fn is_closed(self) -> bool {
        let (initiator, responder) = (self.of(Direction::Forward), self.of(Direction::Reply));
        (initiator | responder) & bit::RST != 0 || initiator & responder & bit::FIN != 0
    }

    /// Returns the class for these flags. SCTP peers send heartbeats every 30 seconds (RFC 9260 §16), so an idle association has ended.
    pub(super) const fn class(self, protocol: u8) -> Class {
        let (initiator, responder) = (self.of(Direction::Forward), self.of(Direction::Reply));
        let is_established = initiator & responder & bit::ACK != 0;
        if self.is_closed() {
            Class::Closed
        } else if !is_established {
            Class::New
        } else if (initiator | responder) & bit::FIN != 0 {
            Class::HalfClosed
        } else if protocol == protocol::TCP {
            Class::Established
        } else {
            Class::Idle
        }
    }

    const fn of(self, direction: Direction) -> u8 {
        self.0 >> shift(direction) & bit::ALL
    }
}

const fn shift(direction: Direction) -> u32 {
    match direction {
        Direction::Forward => 0,
        Direction::Reply => 4,
    }
}

/// FIN, SYN and RST are the lowest three bits of a header's flags, ACK is the fifth.
const fn bits(flags: TcpFlags) -> u8 {
    flags.0 & (TcpFlags::FIN | TcpFlags::SYN | TcpFlags::RST) | (flags.0 & TcpFlags::ACK) >> 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{Forward, Reply};

    fn after(segments: &[(Direction, u8)]) -> Class {
        let mut seen = SeenFlags::NONE;
        for &(direction, flags) in segments {
            seen.see(direction, TcpFlags(flags));
            assert!(seen.knows(direction, TcpFlags(flags)));
        }
        seen.class(protocol::TCP)
    }

    const SYN: u8 = TcpFlags::SYN;
    const ACK: u8 = TcpFlags::ACK;
    const FIN: u8 = TcpFlags::FIN;
    const RST: u8 = TcpFlags::RST;

    #[test]
    fn the_handshake_establishes_and_not_before_its_third_segment() {
        assert_eq!(after(&[(Forward, SYN), (Reply, SYN | ACK)]), Class::New);
        assert_eq!(after(&[(Forward, SYN), (Reply, SYN | ACK), (Forward, ACK)]), Class::Established);
    }

    #[test]
    fn one_side_that_sends_on_its_own_never_establishes() {
        assert_eq!(after(&[(Forward, SYN), (Forward, ACK), (Forward, ACK)]), Class::New);
    }

    #[test]
    fn a_reset_or_a_close_from_both_sides_ends_it_and_one_side_half_closes_it() {
        let established = [(Forward, SYN), (Reply, SYN | ACK), (Forward, ACK)];
        let and = |more: &[(Direction, u8)]| after(&[&established[..], more].concat());
        assert_eq!(and(&[(Forward, FIN | ACK)]), Class::HalfClosed);
        assert_eq!(and(&[(Reply, FIN | ACK), (Forward, ACK)]), Class::HalfClosed);
        assert_eq!(and(&[(Forward, FIN | ACK), (Reply, FIN | ACK)]), Class::Closed);
        assert_eq!(and(&[(Reply, RST)]), Class::Closed);
        assert_eq!(after(&[(Forward, SYN), (Reply, RST | ACK)]), Class::Closed);
    }

    #[test]
    fn flags_that_say_nothing_about_the_state_are_always_known() {
        assert!(SeenFlags::NONE.knows(Forward, TcpFlags(0xe8)));
        assert!(!SeenFlags::NONE.knows(Forward, TcpFlags(ACK)));
    }
}
