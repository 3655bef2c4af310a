//! What a packet may change of its session: nothing with a wrong checksum, and nothing that only somebody would send who
//! does not know the connection.
//!
//! **What is believed.** A SYN begins a session and is repeated; no SYN changes an open one, as its receiver does not either
//! (RFC 5961 §4). An ACK establishes when it acknowledges what the other side has sent. A FIN and a RST count when they
//! lie within [`WINDOW`] of where their sender is known to be. Everything else passes and changes nothing.
//!
//! **Where a side is.** For each direction the table knows the number that comes next. It learns that from the packets
//! that change something and from a sample of the others (one in 8.6 s). Only the side whose address is bound to its port says
//! where the two are: a pod, or the node. What comes through the uplink may have been sent by anybody, so such a packet moves
//! its side's number only within the window; a stranger cannot first say where the connection is, and then reset it there.
//!
//! **Why samples.** The alternative is conntrack's: to follow every segment. It would cost every hit a second cache line,
//! and it would still not know more where it matters: segments of a busy connection are forwarded in the kernel and come to no
//! worker for up to ten seconds, in which the sequence numbers may go round. Widening the window with the time since the
//! last sample lets every guess pass after three seconds of 10 Gb/s. So the window stays narrow: a guess hits it once in 2,048
//! times, however old the sample is. What is outside of it is left to the receiver, who always knows (RFC 5961 §3): a reset that
//! it takes ends the connection, and one that it does not take is answered, and the answer comes through here.
//!
//! **What that costs.** A true reset of a busy connection may lie outside of the window, and then its session seems to live on.
//! It becomes [`Class::Doubtful`]: it keeps its time, since it may as well be an idle connection that a stranger has shot at,
//! and it is one of those that are ended when somebody needs the room. Any other packet of it takes the doubt away.
//!
//! [`TcpWindow::Strict`] is the other design, for those who want it: every TCP segment is looked at, no TCP flow is
//! forwarded in the kernel, and what is outside of the window is dropped.

use super::super::TcpWindow;
use super::super::class::Class;
use super::super::direction::Direction;
use super::super::entry::{Moment, NewSession, Slot};
use super::SessionTable;
use crate::DropReason;
use crate::packet::{Checksum, SeqSpan, TcpFlags};

/// How far a segment may lie from where its sender was last seen: 1 MiB. Between two samples an interactive connection sends
/// less; a receive window is 64 KiB without scaling and up to 6 MiB on Linux. A reset at a random place is within it once in
/// 2,048 times.
const WINDOW: u32 = 1 << 20;

/// How much of what the other side has sent the first acknowledgement may cover: 64 KiB, what can be sent before it (RFC 7323
/// §2.2: the windows of SYN segments are not scaled). A blind one is within it, on either side, once in 32,768 times.
const FIRST_WINDOW: u32 = 1 << 16;

/// What a second look at a packet found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    pub(crate) checksum: Checksum,
    /// For TCP, where it could be read.
    pub(crate) span: Option<SeqSpan>,
    /// Whether the source address is the port's own, so that nobody else can have sent it.
    pub(crate) is_bound: bool,
}

/// What may be concluded from a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Belief {
    /// These flags, as if the packet had no others.
    Flags(Option<TcpFlags>),
    /// It is a reset at a place where none can be expected.
    Doubt,
    /// Nothing: it is not even an answer.
    Silence,
}

impl SessionTable {
    /// Whether a packet of the session may change its state, so that its checksum matters.
    pub(crate) fn is_news(&self, slot: Slot, direction: Direction, flags: Option<TcpFlags>) -> bool {
        let entry = self.entry(slot);
        match flags {
            Some(flags) => flags.is_control() || !entry.seen.knows(direction, flags),
            None => entry.class() == Class::Unreplied && direction == Direction::Reply,
        }
    }

    /// What is believed of a packet of the session.
    ///
    /// # Errors
    /// The reason to drop it.
    pub(crate) fn assess(
        &self,
        slot: Slot,
        direction: Direction,
        flags: Option<TcpFlags>,
        evidence: &Evidence,
    ) -> Result<Belief, DropReason> {
        const NOTHING: Belief = Belief::Flags(Some(TcpFlags(0)));
        if !self.is_news(slot, direction, flags) {
            return Ok(Belief::Flags(flags));
        }
        let is_verified = self.verified(evidence)?;
        let entry = self.entry(slot);
        let Some(flags) = flags else {
            return Ok(if is_verified { Belief::Flags(None) } else { Belief::Silence });
        };
        if !is_verified {
            return Ok(NOTHING);
        }
        let Some(span) = evidence.span else { return Ok(Belief::Flags(Some(flags))) };
        let ends = flags.has(TcpFlags::FIN | TcpFlags::RST);
        if ends && !self.is_near(slot, direction, &span) {
            let is_reset = flags.has(TcpFlags::RST)
                && matches!(entry.class(), Class::Established | Class::HalfClosed | Class::Doubtful);
            return match self.config.tcp_window {
                TcpWindow::Strict => Err(DropReason::TcpOutOfWindow),
                TcpWindow::Loose => Ok(if is_reset { Belief::Doubt } else { NOTHING }),
            };
        }
        let acknowledges = entry.seen.has_acknowledged(direction) || self.acknowledges(slot, direction, &span);
        Ok(Belief::Flags(Some(if acknowledges { flags } else { TcpFlags(flags.0 & !TcpFlags::ACK) })))
    }

    /// Whether the checksum allows to conclude anything. What cannot be verified is believed in captures alone.
    ///
    /// # Errors
    /// When it is wrong: the receiver discards the packet too.
    fn verified(&self, evidence: &Evidence) -> Result<bool, DropReason> {
        match evidence.checksum {
            _ if !self.config.verify_checksums => Ok(true),
            Checksum::Right => Ok(true),
            Checksum::Wrong => Err(DropReason::BadChecksum),
            Checksum::Unknown => Ok(false),
        }
    }

    /// Whether a segment lies near to where its sender is known to be. A side that has said nothing yet may also acknowledge
    /// what the other one has said: so a SYN is refused (RFC 9293 §3.10.7.3).
    fn is_near(&self, slot: Slot, direction: Direction, span: &SeqSpan) -> bool {
        let next = self.links.records()[slot as usize].next[at(direction)];
        let is_within = |number| next != 0 && is_within(number, next, WINDOW);
        let may_refuse = !self.entry(slot).seen.has_sent(direction) || next == 0;
        is_within(span.seq) || is_within(span.end) || (may_refuse && self.acknowledges(slot, direction, span))
    }

    /// Whether a segment acknowledges what the other side has said. True when nothing is known of either side.
    fn acknowledges(&self, slot: Slot, direction: Direction, span: &SeqSpan) -> bool {
        let next = self.links.records()[slot as usize].next;
        let other = next[at(opposite(direction))];
        // A connection that was picked up may have more under way.
        let was_opened = self.entry(slot).seen.has_opened(opposite(direction));
        let window = if was_opened { FIRST_WINDOW } else { WINDOW };
        next == [0; 2] || span.ack.is_some_and(|ack| other != 0 && is_within(ack, other, window))
    }

    /// A segment of the session has passed: where its side is now, and where the other one is by its word.
    pub(crate) fn track(&mut self, slot: Slot, direction: Direction, flags: TcpFlags, evidence: &Evidence) {
        let Some(span) = evidence.span.filter(|_| !flags.has(TcpFlags::RST)) else { return };
        let is_first = self.links.records()[slot as usize].next[at(direction)] == 0;
        let is_credible = is_first && self.acknowledges(slot, direction, &span);
        let next = &mut self.links.records_mut()[slot as usize].next;
        let own = &mut next[at(direction)];
        if evidence.is_bound || is_credible || (!is_first && is_within(span.end, *own, WINDOW)) {
            *own = known(span.end);
        }
        if let Some(ack) = span.ack.filter(|_| evidence.is_bound) {
            next[at(opposite(direction))] = known(ack);
        }
    }

    /// A session was made: the packet that made it says where its sender is.
    pub(super) fn begin_tracking(&mut self, slot: Slot, new: &NewSession) {
        let Some(span) = new.span else { return };
        let next = &mut self.links.records_mut()[slot as usize].next;
        next[at(new.direction)] = known(span.end);
        next[at(opposite(new.direction))] = span.ack.map_or(0, known);
    }

    /// A reset came that is not believed.
    pub(crate) fn doubt(&mut self, slot: Slot, now: Moment) {
        let old = self.entry(slot).class();
        let entry = self.entry_mut(slot);
        entry.set_class(Class::Doubtful);
        // Whatever comes next is looked at, and may take the doubt away.
        entry.forget_plain();
        self.move_to(slot, old, Class::Doubtful, now);
        self.counts.doubted += 1;
    }
}

/// Whether a sequence number is at most so far from another one, on either side (RFC 9293 §3.4: modulo 2^32).
const fn is_within(number: u32, of: u32, distance: u32) -> bool {
    number.wrapping_sub(of).wrapping_add(distance) <= 2 * distance
}

/// 0 stands for unknown.
const fn known(number: u32) -> u32 {
    if number == 0 { 1 } else { number }
}

const fn at(direction: Direction) -> usize {
    match direction {
        Direction::Forward => 0,
        Direction::Reply => 1,
    }
}

const fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::Forward => Direction::Reply,
        Direction::Reply => Direction::Forward,
    }
}
