//! Decides what a packet may change in its session. A wrong checksum changes nothing, and neither does a packet of an attacker who does not
//! know the connection.
//!
//! **Accepted changes.** A SYN starts a session and may be repeated, but does not change an open one (RFC 5961 §4). An ACK establishes the
//! session if it acknowledges what the other side has sent. A FIN or RST counts if it is within [`NEAR`] of its sender's known position.
//! Everything else passes without effect.
//!
//! **Positions.** The table stores each direction's next sequence number. It learns them from packets that change the session, and samples
//! others every 8.6 s. Only the side whose address is bound to its port (a pod, or the node) may set positions. Packets from the uplink may
//! be forged, so they only move their side's position within the window. Otherwise an attacker could first move the position and then reset
//! the connection there.
//!
//! **Sampling.** Conntrack tracks every segment instead. That would cost each hit a second cache line. It would also not help: the kernel
//! forwards busy connections, whose segments may reach no worker for ten seconds, in which sequence numbers may wrap. Widening the window
//! with the sample's age would accept every guess after three seconds of 10 Gb/s. So the window stays narrow, and a guess hits it once in
//! 2,048 times. The receiver decides about resets outside of it (RFC 5961 §3): a reset that it accepts ends the connection, and one that it
//! rejects causes an answer, which the vswitch forwards.
//!
//! **Cost.** A genuine reset of a busy connection may be outside of the window. Its session then becomes [`Class::Doubtful`]: it keeps its
//! timeout, because it may be an idle connection under attack, but may be evicted. Any other packet of the session removes the doubt.
//!
//! [`TcpWindow::Strict`] is the alternative: workers see every TCP segment, the kernel forwards no TCP flow, and segments outside of the
//! window are dropped.

use super::super::TcpWindow;
use super::super::class::Class;
use super::super::direction::Direction;
use super::super::entry::{Moment, NewSession, Slot};
use super::SessionTable;
use crate::DropReason;
use crate::io::NEAR;
use crate::packet::{Checksum, SeqSpan, TcpFlags};

/// Maximum distance that the first acknowledgement may cover: 64 KiB, the most that can be sent before it (RFC 7323 §2.2: SYN windows are
/// not scaled). A blind one hits it once in 32,768 times.
const FIRST_WINDOW: u32 = 1 << 16;

/// The results of verifying a packet that may change its session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    pub(crate) checksum: Checksum,
    /// The TCP sequence range. `None` for other protocols and unreadable headers.
    pub(crate) span: Option<SeqSpan>,
    /// Whether the source address belongs to the port, so that it cannot be forged.
    pub(crate) is_bound: bool,
}

/// What a session accepts as true from one of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Belief {
    /// The packet counts as if it had only these flags.
    Flags(Option<TcpFlags>),
    /// The packet is a reset outside of the window.
    Doubt,
    /// The packet changes nothing and does not count as an answer.
    Silence,
}

impl SessionTable {
    /// Whether a packet may change the session's state, so that its checksum matters.
    pub(crate) fn is_news(&self, slot: Slot, direction: Direction, flags: Option<TcpFlags>) -> bool {
        let entry = self.entry(slot);
        match flags {
            Some(flags) => flags.is_control() || !entry.seen.knows(direction, flags),
            None => entry.class() == Class::Unreplied && direction == Direction::Reply,
        }
    }

    /// Returns the accepted conclusion from a packet of the session.
    ///
    /// # Errors
    /// The reason to drop the packet.
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

    /// Whether the checksum allows conclusions. Unverifiable checksums are only accepted in captures.
    ///
    /// # Errors
    /// If the checksum is wrong. The receiver discards the packet too.
    fn verified(&self, evidence: &Evidence) -> Result<bool, DropReason> {
        match evidence.checksum {
            _ if !self.config.verify_checksums => Ok(true),
            Checksum::Right => Ok(true),
            Checksum::Wrong => Err(DropReason::BadChecksum),
            Checksum::Unknown => Ok(false),
        }
    }

    /// Whether a segment is near its sender's last recorded sequence number. A side that has not sent anything may also acknowledge the
    /// other side, as when it refuses a SYN (RFC 9293 §3.10.7.3).
    fn is_near(&self, slot: Slot, direction: Direction, span: &SeqSpan) -> bool {
        let next = self.links.records()[slot as usize].next[at(direction)];
        let is_within = |number| next != 0 && is_within(number, next, NEAR);
        let may_refuse = !self.entry(slot).seen.has_sent(direction) || next == 0;
        is_within(span.seq) || is_within(span.end) || (may_refuse && self.acknowledges(slot, direction, span))
    }

    /// Whether a segment acknowledges data that the other side has sent. True if neither side's numbers are known.
    fn acknowledges(&self, slot: Slot, direction: Direction, span: &SeqSpan) -> bool {
        let next = self.links.records()[slot as usize].next;
        let other = next[at(opposite(direction))];
        // A connection picked up in the middle may have more data in flight.
        let was_opened = self.entry(slot).seen.has_opened(opposite(direction));
        let window = if was_opened { FIRST_WINDOW } else { NEAR };
        next == [0; 2] || span.ack.is_some_and(|ack| other != 0 && is_within(ack, other, window))
    }

    /// Records the sender's sequence number if a segment proves it, and also the other side's if the source address cannot be forged.
    pub(crate) fn track(&mut self, slot: Slot, direction: Direction, flags: TcpFlags, evidence: &Evidence) {
        let Some(span) = evidence.span.filter(|_| !flags.has(TcpFlags::RST)) else { return };
        let is_first = self.links.records()[slot as usize].next[at(direction)] == 0;
        let is_credible = is_first && self.acknowledges(slot, direction, &span);
        let next = &mut self.links.records_mut()[slot as usize].next;
        let own = &mut next[at(direction)];
        if evidence.is_bound || is_credible || (!is_first && is_within(span.end, *own, NEAR)) {
            *own = known(span.end);
        }
        if let Some(ack) = span.ack.filter(|_| evidence.is_bound) {
            next[at(opposite(direction))] = known(ack);
        }
    }

    /// Returns type and code of the ICMP message by which the tables judge the session: its forward direction's first one. `None` for
    /// other protocols.
    pub(crate) fn message(&self, slot: Slot) -> Option<(u8, u8)> {
        let key = self.entry(slot).key();
        let known = || self.links.records()[slot as usize].message();
        key.is_icmp().then(|| known().unwrap_or_else(|| key.first_message()))
    }

    /// Records both sides' sequence numbers from the packet that creates the session, or its ICMP message.
    pub(super) fn begin_tracking(&mut self, slot: Slot, new: &NewSession) {
        if let Some(message) = new.icmp {
            self.links.records_mut()[slot as usize].set_message(message);
        }
        let Some(span) = new.span else { return };
        let next = &mut self.links.records_mut()[slot as usize].next;
        next[at(new.direction)] = known(span.end);
        next[at(opposite(new.direction))] = span.ack.map_or(0, known);
    }

    /// Records the responder's sequence number after a SYN-ACK that the kernel has forwarded.
    pub(super) fn track_answer(&mut self, slot: Slot, next: u32) {
        self.links.records_mut()[slot as usize].next[at(Direction::Reply)] = known(next);
    }

    /// Makes an established session doubtful, because the kernel has forwarded a reset of it, whose sequence number nobody has checked.
    pub(crate) fn doubt_open(&mut self, slot: Slot, now: Moment) {
        if matches!(self.entry(slot).class(), Class::Established | Class::HalfClosed) {
            self.doubt(slot, now);
        }
    }

    /// Makes a session doubtful, because of a reset outside of the window.
    pub(crate) fn doubt(&mut self, slot: Slot, now: Moment) {
        let old = self.entry(slot).class();
        let entry = self.entry_mut(slot);
        entry.set_class(Class::Doubtful);
        // The next packet takes the full path and may remove the doubt.
        entry.forget_plain();
        self.move_to(slot, old, Class::Doubtful, now);
        self.counts.doubted += 1;
    }
}

/// Whether two sequence numbers differ by at most `distance` (modulo 2^32, RFC 9293 §3.4).
const fn is_within(number: u32, of: u32, distance: u32) -> bool {
    number.wrapping_sub(of).wrapping_add(distance) <= 2 * distance
}

/// Returns the sequence number, but 1 instead of 0, which means unknown.
const fn known(number: u32) -> u32 {
    if number == 0 { 1 } else { number }
}

pub(super) const fn at(direction: Direction) -> usize {
    match direction {
        Direction::Forward => 0,
        Direction::Reply => 1,
    }
}

pub(super) const fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::Forward => Direction::Reply,
        Direction::Reply => Direction::Forward,
    }
}
