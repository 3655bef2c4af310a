//! Changes to entries between their creation and their end.

use bulkhead_classifier::protocol;

use super::super::TcpWindow;
use super::super::class::Class;
use super::super::direction::Direction;
use super::super::entry::{Entry, Moment, Slot};
use super::SessionTable;
use crate::io::FlowSteps;
use crate::packet::TcpFlags;
use crate::{Decision, DropReason, PortId};

impl SessionTable {
    /// Updates the entry of a forwarded or refused packet: its time, TCP flags and class. Flags must be [accepted](SessionTable::assess).
    pub(crate) fn touch(&mut self, slot: Slot, direction: Direction, flags: Option<TcpFlags>, now: Moment) {
        let entry = &mut self.entries.records_mut()[slot as usize];
        let (old, last) = (entry.class(), entry.seen_at);
        entry.seen_at = now.time;
        let new = next_class(entry, direction, flags);
        entry.set_class(new);
        if let Some(flags) = flags {
            entry.seen.see(direction, flags);
        }
        if new != old || (last ^ now.time) >> self.periods[new as usize] != 0 {
            self.move_to(slot, old, new, now);
        }
    }

    /// Whether a packet with these [accepted](SessionTable::assess) flags is a repeated SYN or the first SYN-ACK of a TCP connection: both
    /// sides have only sent SYNs so far.
    pub(crate) fn is_opening(&self, slot: Slot, direction: Direction, flags: Option<TcpFlags>) -> bool {
        let entry = self.entry(slot);
        let opens = flags.is_some_and(|flags| match direction {
            Direction::Forward => flags.opens(),
            Direction::Reply => flags.has(TcpFlags::SYN) && flags.has(TcpFlags::ACK),
        });
        let is_begun = entry.class() == Class::New && entry.key().protocol() == protocol::TCP;
        let is_first =
            [Direction::Forward, Direction::Reply].into_iter().all(|side| !entry.seen.has_acknowledged(side));
        opens && is_begun && is_first && self.config.tcp_window != TcpWindow::Strict
    }

    /// Brings a TCP session up to date with what the kernel's flow cache has forwarded of its connection. `since` is the time of the SYN or
    /// SYN-ACK with which the connection was added to the cache.
    pub(crate) fn follow_steps(&mut self, slot: Slot, steps: &FlowSteps, since: u64, now: Moment) {
        const ACK: TcpFlags = TcpFlags(TcpFlags::ACK);
        const SYN_ACK: TcpFlags = TcpFlags(TcpFlags::SYN | TcpFlags::ACK);
        const FIN_ACK: TcpFlags = TcpFlags(TcpFlags::FIN | TcpFlags::ACK);
        let (initiator, responder) = (Direction::Forward, Direction::Reply);
        let entry = *self.entry(slot);
        if entry.class() == Class::New {
            if let Some(next) = steps.answered
                && !entry.seen.has_acknowledged(responder)
            {
                self.track_answer(slot, next);
                self.touch(slot, responder, Some(SYN_ACK), now);
            }
            if steps.has_ended && steps.answered.is_some() && !entry.seen.has_acknowledged(initiator) {
                self.touch(slot, initiator, Some(ACK), now);
                // Segments since then were not accepted, for example a reset beyond what the kernel has forwarded.
                if entry.seen_at > since && self.entry(slot).class() == Class::Established {
                    self.doubt(slot, now);
                }
            }
        }
        for (side, _) in [initiator, responder].into_iter().zip(steps.fins).filter(|(_, has_closed)| *has_closed) {
            let entry = self.entry(slot);
            let is_open = matches!(entry.class(), Class::Established | Class::HalfClosed | Class::Doubtful);
            if is_open && !entry.seen.knows(side, FIN_ACK) {
                self.touch(slot, side, Some(FIN_ACK), now);
            }
        }
    }

    /// Whether a packet with these flags turns the session into one that counts as half-open.
    pub(crate) fn would_close(&self, slot: Slot, direction: Direction, flags: Option<TcpFlags>) -> bool {
        let entry = self.entry(slot);
        !entry.class().is_half_open() && next_class(entry, direction, flags).is_half_open()
    }

    /// Records that a packet of this direction passed the address checks on its port. Later ones take the fast path, unless they may change
    /// the session.
    pub(crate) fn set_checked(&mut self, slot: Slot, direction: Direction) {
        let is_strict = self.config.tcp_window == TcpWindow::Strict;
        let entry = self.entry_mut(slot);
        let is_plain = match (entry.key().protocol(), entry.class()) {
            (_, Class::Doubtful) => false,
            (_, Class::Unreplied) => direction == Direction::Forward,
            (protocol::TCP, _) if is_strict => false,
            (protocol::TCP | protocol::SCTP, _) => entry.seen.has_acknowledged(direction),
            _ => true,
        };
        if is_plain {
            entry.set_plain(direction);
        }
    }

    /// Records that newer tables allow the session, possibly through other ports, or again after a cut.
    pub(crate) fn renew(&mut self, slot: Slot, epoch: u32, decision: &Decision, ports: (PortId, PortId), now: Moment) {
        let (old, old_ports) = (self.entry(slot).class(), self.entry(slot).ports(Direction::Forward));
        self.set_decision(slot, epoch, decision);
        let entry = self.entry_mut(slot);
        let class = entry.cut().unwrap_or(old);
        let is_back = entry.was_session();
        entry.set_cut(None);
        entry.set_refused(None);
        entry.set_class(class);
        entry.set_ports(ports);
        entry.forget_plain();
        if is_back {
            entry.seen_at = now.time;
        }
        self.counts.restored += u64::from(is_back);
        if ports != old_ports || class != old {
            self.lists.unlink(self.links.records_mut(), slot, old, old_ports);
            self.lists.link(self.links.records_mut(), slot, class, ports, now.number);
            self.budget.leave_ports(old_ports);
            self.budget.enter_ports(ports);
            self.budget.turn(old, class);
        }
    }

    /// Turns a session that newer tables deny into a refusal that keeps its state, or confirms an earlier cut.
    pub(crate) fn revoke(&mut self, slot: Slot, epoch: u32, decision: &Decision, reason: DropReason, now: Moment) {
        let old = self.entry(slot).class();
        let is_first = self.cut(slot, old, (epoch, decision), reason, now);
        self.counts.revoked += u64::from(is_first);
    }

    /// Ends a session because the host at one of its ends is gone. Its key and its translation stay as a refusal, by which the other end's
    /// packets are answered. If a new pod has the address, the other end's packets reach it and it answers them itself.
    pub(crate) fn abandon(&mut self, slot: Slot, epoch: u32, decision: &Decision, now: Moment) {
        let entry = self.entry_mut(slot);
        let has_handshake = matches!(entry.key().protocol(), protocol::TCP | protocol::SCTP);
        let state = if has_handshake { Class::Closed } else { entry.class() };
        if has_handshake {
            // The connection is over, and a new one may use its ports.
            entry.seen.see(Direction::Forward, TcpFlags(TcpFlags::RST));
        }
        let is_first = self.cut(slot, state, (epoch, decision), DropReason::NoSuchPod, now);
        self.counts.removed += u64::from(is_first);
    }

    /// Turns a session into a refusal, which remembers `state` as the session's. Returns false if it was a refusal before.
    fn cut(
        &mut self,
        slot: Slot,
        state: Class,
        (epoch, decision): (u32, &Decision),
        reason: DropReason,
        now: Moment,
    ) -> bool {
        let old = self.entry(slot).class();
        if self.endings.is_some() {
            self.tell_end(slot, reason != DropReason::NoSuchPod);
        }
        self.links.records_mut()[slot as usize].set_denial(decision);
        let entry = self.entry_mut(slot);
        entry.set_decided(epoch, decision.origin);
        let is_first = entry.refused().is_none();
        if is_first {
            entry.set_cut(Some(state));
        }
        entry.set_refused(Some(reason));
        entry.set_class(Class::Refused);
        entry.forget_plain();
        entry.seen_at = now.time;
        self.move_to(slot, old, Class::Refused, now);
        is_first
    }

    fn set_decision(&mut self, slot: Slot, epoch: u32, decision: &Decision) {
        self.links.records_mut()[slot as usize].set_decision(decision);
        self.entry_mut(slot).set_decided(epoch, decision.origin);
    }
}

/// Returns an entry's class after a packet with these flags.
fn next_class(entry: &Entry, direction: Direction, flags: Option<TcpFlags>) -> Class {
    match (entry.class(), flags) {
        (Class::Refused, _) => Class::Refused,
        (_, Some(flags)) => {
            let mut seen = entry.seen;
            seen.see(direction, flags);
            seen.class(entry.key().protocol())
        }
        (Class::Unreplied, None) if direction == Direction::Reply => match entry.key().protocol() {
            protocol::UDP => Class::Stream,
            _ => Class::Idle,
        },
        (class, None) => class,
    }
}
