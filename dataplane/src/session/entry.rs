//! Entries of the session table, and the data from which they are created.

mod rewritten;

use std::net::IpAddr;

use bulkhead_classifier::{OriginId, protocol};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::class::Class;
use super::compact::EntryKey;
use super::direction::Direction;
use super::tcp::SeenFlags;
use super::{Key, Rewrite, Rewritten};
use crate::packet::{SeqSpan, TcpFlags};
use crate::{Decision, DropReason, PortId, PortKind};

/// Index of an entry in the session table.
pub(crate) type Slot = u32;

/// Represents "no slot", for example at the end of a list.
pub(crate) const NONE: Slot = Slot::MAX;

/// The port of adopted entries until their ports are known. No snapshot has this id.
pub(crate) const NOWHERE: PortId = PortId(u16::MAX);

/// A packet's time and number. The number orders packets of the same time, and packets that waited for the classifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    /// Nanoseconds since 1970. Does not decrease with increasing numbers.
    pub(crate) time: u64,
    /// Number of the packet among all packets of the worker.
    pub(crate) number: u64,
}

/// The part of a session or refusal that every packet reads: one cache line. All zeros mark a free slot.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Entry {
    key: EntryKey,
    /// Time of the last packet, in nanoseconds.
    pub(super) seen_at: u64,
    /// Epoch of the tables that allowed the session.
    pub(crate) epoch: u32,
    /// Origin of the rule that allowed the session, or `u32::MAX`. The rest of the decision is in [`Links`](super::links::Links).
    pub(crate) origin: u32,
    /// Receiving and output port of the forward direction.
    ports: [u16; 2],
    pub(super) seen: SeenFlags,
    /// The class of the entry. For a session that a policy has cut, the upper four bits are its former class plus one.
    class: u8,
    /// Flags; see [`state`].
    state: u8,
    /// Index of the drop reason of a refusal, plus one. 0 for a session.
    refused: u8,
}

const CLASS: u8 = 0b1111;
const CUT_SHIFT: u32 = 4;

/// Bits of [`Entry::state`].
mod state {
    pub(super) const FROM_LOW: u8 = 1;
    /// Kind of the in-port. Port ids may change between generations, but the uplink and the host port keep their kind.
    pub(super) const IN_KIND: u8 = 0b11 << 1;
    pub(super) const IN_KIND_SHIFT: u32 = 1;
    /// Whether later packets of a direction need no further checks: see [`Entry::is_plain`](super::Entry::is_plain). Only set for sessions.
    pub(super) const FORWARD_PLAIN: u8 = 1 << PLAIN_SHIFT;
    pub(super) const REPLY_PLAIN: u8 = 2 << PLAIN_SHIFT;
    pub(super) const PLAIN_SHIFT: u32 = 3;
    /// The session is translated and has a [`Rewrite`](super::super::Rewrite).
    pub(super) const TRANSLATED: u8 = 1 << 5;
    /// Translated entries have their plain bits here, so that code without translation never treats them as plain.
    pub(super) const TRANSLATED_PLAIN_SHIFT: u32 = 6;
    pub(super) const ALL_PLAIN: u8 = FORWARD_PLAIN | REPLY_PLAIN | 0b11 << TRANSLATED_PLAIN_SHIFT;
}

/// Data of a session to be created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewSession {
    pub(crate) key: Key,
    pub(crate) hash: u64,
    /// Hash of the key of the packet as received. Differs from `hash` for a translated connection.
    pub(crate) wire_hash: u64,
    /// Whether the forward direction goes from the key's lower endpoint to the higher one.
    pub(crate) from_low: bool,
    pub(crate) flags: Option<TcpFlags>,
    pub(crate) epoch: u32,
    pub(crate) decision: Decision,
    pub(crate) in_port: PortId,
    pub(crate) in_kind: PortKind,
    pub(crate) out_port: PortId,
    /// Direction of the packet that creates the session.
    pub(crate) direction: Direction,
    /// The TCP packet's sequence range.
    pub(crate) span: Option<SeqSpan>,
    /// Type and code of the forward direction's ICMP message, by which the tables judge the session. `None` for other protocols.
    pub(crate) icmp: Option<(u8, u8)>,
    /// The translation. `None` for a connection that is not translated.
    pub(crate) rewrite: Option<Rewrite>,
}

impl NewSession {
    /// Returns the translation of the packet that creates the session. `None` if it is not translated.
    pub(crate) fn rewritten(&self) -> Option<Rewritten> {
        let rewrite = self.rewrite?;
        Some(Entry::new(self, Class::New, None, 0).rewritten(&rewrite, self.direction))
    }
}

impl Entry {
    pub(super) const FREE: Self = Self {
        key: EntryKey::UNUSED,
        seen_at: 0,
        epoch: 0,
        origin: 0,
        ports: [0; 2],
        seen: SeenFlags::NONE,
        class: 0,
        state: 0,
        refused: 0,
    };

    pub(super) fn new(new: &NewSession, class: Class, refused: Option<DropReason>, now: u64) -> Self {
        let kind = match new.in_kind {
            PortKind::Pod => 0,
            PortKind::Uplink => 1,
            PortKind::Host => 2,
        };
        let from_low = if new.from_low { state::FROM_LOW } else { 0 };
        let mut entry = Self {
            key: EntryKey::new(&new.key),
            seen_at: now,
            epoch: new.epoch,
            origin: number(new.decision.origin.map(|origin| origin.0)),
            ports: [new.in_port.0, new.out_port.0],
            seen: SeenFlags::NONE,
            class: class as u8,
            state: from_low | kind << state::IN_KIND_SHIFT | if new.rewrite.is_some() { state::TRANSLATED } else { 0 },
            refused: 0,
        };
        if let Some(flags) = new.flags {
            entry.seen.see(new.direction, flags);
        }
        entry.set_refused(refused);
        entry
    }

    /// Whether the slot is free. An entry that is being written is neither free nor in use.
    pub(super) const fn is_free(&self) -> bool {
        self.key.is_unused()
    }

    /// Returns the entry for adoption by another process: without epoch and ports. `None` for a refusal that was never a session, and for
    /// an entry that was being changed.
    ///
    /// # Errors
    /// If the entry is invalid.
    pub(super) fn adoptable(&self) -> Result<Option<Self>, String> {
        let (class, cut) = (usize::from(self.class & CLASS), usize::from(self.class >> CUT_SHIFT));
        let is_known = class < Class::COUNT
            && cut <= Class::COUNT
            && usize::from(self.refused) <= DropReason::COUNT
            && self.state & state::IN_KIND != state::IN_KIND;
        let key = self.key();
        let protocol = key.protocol();
        let is_alone = self.is_translated() || self.key.is_just(&key);
        if !is_known || !key.is_sound() || !is_alone {
            return Err("it has an invalid entry".to_owned());
        }
        let class = self.cut().unwrap_or_else(|| self.class());
        let is_of_protocol = match class {
            Class::Refused => true,
            Class::Echo => key.is_echo(),
            Class::Doubtful | Class::Established => protocol == protocol::TCP,
            Class::New | Class::Closed | Class::HalfClosed => matches!(protocol, protocol::TCP | protocol::SCTP),
            Class::Stream => protocol == protocol::UDP,
            Class::Unreplied => !matches!(protocol, protocol::TCP | protocol::SCTP) && !key.is_echo(),
            Class::Idle => !matches!(protocol, protocol::TCP | protocol::UDP) && !key.is_echo(),
        };
        if !is_of_protocol {
            return Err("the state of an entry does not fit its protocol".to_owned());
        }
        let is_refused = self.refused != 0;
        if is_refused != (self.class() == Class::Refused) || is_refused != self.was_session() {
            return Ok(None);
        }
        let mut entry = Self { epoch: 0, ..*self };
        entry.set_ports((NOWHERE, NOWHERE));
        entry.forget_plain();
        Ok(Some(entry))
    }

    pub(super) fn class(&self) -> Class {
        Class::ALL[usize::from(self.class & CLASS)]
    }

    pub(super) const fn set_class(&mut self, class: Class) {
        self.class = self.class & !CLASS | class as u8;
    }

    /// Returns the class as an index into an array of sixteen elements.
    #[inline]
    pub(super) const fn class_index(&self) -> usize {
        (self.class & CLASS) as usize
    }

    /// Returns the former class of a session that a policy has cut. `None` otherwise.
    pub(super) fn cut(&self) -> Option<Class> {
        usize::from(self.class >> CUT_SHIFT).checked_sub(1).map(|index| Class::ALL[index])
    }

    /// Whether the entry is a session that a policy has cut.
    pub(crate) const fn was_session(&self) -> bool {
        self.class >> CUT_SHIFT != 0
    }

    pub(super) fn set_cut(&mut self, class: Option<Class>) {
        self.class = self.class & CLASS | class.map_or(0, |class| class as u8 + 1) << CUT_SHIFT;
    }

    /// Returns the reason of a refusal. `None` for a session.
    pub(crate) fn refused(&self) -> Option<DropReason> {
        usize::from(self.refused).checked_sub(1).map(|index| DropReason::ALL[index])
    }

    pub(super) fn set_refused(&mut self, reason: Option<DropReason>) {
        let index = |reason: DropReason| u8::try_from(reason.index() + 1).expect("there are fewer than 255 reasons");
        self.refused = reason.map_or(0, index);
    }

    /// Whether the entry is a session allowed by tables of this epoch.
    #[inline]
    pub(crate) const fn is_session_of(&self, epoch: u32) -> bool {
        self.refused == 0 && self.epoch == epoch
    }

    #[inline]
    pub(crate) const fn key(&self) -> Key {
        self.key.key()
    }

    #[inline]
    pub(super) fn has_key(&self, key: &Key) -> bool {
        self.key() == *key
    }

    /// Whether the entry has this key. False for translated IPv4 entries, whose words also contain the rewrite.
    #[inline(always)]
    pub(super) fn has_key_alone(&self, key: &Key) -> bool {
        self.key.is_just(key)
    }

    /// Returns the entry without the used bit of its key, so that its slot still counts as free.
    pub(super) const fn unfinished(&self) -> Self {
        Self { key: self.key.unfinished(), ..*self }
    }

    /// Stores the key with its used bit, after all other fields were written.
    pub(super) const fn finish(&mut self, entry: &Self) {
        self.key = entry.key;
    }

    /// Clears the used bit of the key, before all other fields are erased.
    pub(super) const fn unmark(&mut self) {
        self.key.unmark();
    }

    /// Whether the entry has a [`Rewrite`].
    #[inline]
    pub(crate) const fn is_translated(&self) -> bool {
        self.state & state::TRANSLATED != 0
    }

    /// Whether the forward direction goes from the key's lower endpoint to the higher one.
    #[inline]
    pub(super) const fn is_from_low(&self) -> bool {
        self.state & state::FROM_LOW != 0
    }

    /// Returns the direction of a packet. `from_low` tells whether its source is the key's lower endpoint.
    #[inline]
    pub(crate) const fn direction(&self, from_low: bool) -> Direction {
        if (self.state & state::FROM_LOW != 0) == from_low { Direction::Forward } else { Direction::Reply }
    }

    /// Returns a packet's endpoints in this direction, source first.
    pub(crate) fn endpoints(&self, direction: Direction) -> [(IpAddr, u16); 2] {
        self.key().endpoints((self.state & state::FROM_LOW != 0) == (direction == Direction::Forward))
    }

    /// Whether the connection has ended.
    pub(crate) const fn is_closed(&self) -> bool {
        self.seen.is_closed()
    }

    pub(crate) const fn in_kind(&self) -> PortKind {
        match (self.state & state::IN_KIND) >> state::IN_KIND_SHIFT {
            0 => PortKind::Pod,
            1 => PortKind::Uplink,
            _ => PortKind::Host,
        }
    }

    pub(super) fn set_decided(&mut self, epoch: u32, origin: Option<OriginId>) {
        (self.epoch, self.origin) = (epoch, number(origin.map(|origin| origin.0)));
    }

    pub(super) const fn set_ports(&mut self, ports: (PortId, PortId)) {
        self.ports = [ports.0.0, ports.1.0];
    }

    /// Returns the receiving port and the output port of packets of this direction.
    #[inline]
    pub(crate) const fn ports(&self, direction: Direction) -> (PortId, PortId) {
        let [in_port, out_port] = self.ports;
        match direction {
            Direction::Forward => (PortId(in_port), PortId(out_port)),
            Direction::Reply => (PortId(out_port), PortId(in_port)),
        }
    }

    /// Returns the output port of a packet received on this port, with tables of this epoch, if its direction [is plain](Entry::is_plain).
    /// Uses words of one size and no branch on the direction, because this is a worker's inner loop.
    #[inline]
    pub(super) fn plain_exit(&self, epoch: u32, in_port: PortId, from_low: bool) -> Option<PortId> {
        let is_reply = usize::from(self.state & state::FROM_LOW) ^ usize::from(from_low);
        self.exit(epoch, in_port, state::PLAIN_SHIFT, is_reply)
    }

    /// Like [`Entry::plain_exit`], for a translated entry, whose direction the key alone does not determine.
    #[inline]
    pub(super) fn translated_exit(&self, epoch: u32, in_port: PortId, is_reply: bool) -> Option<PortId> {
        self.exit(epoch, in_port, state::TRANSLATED_PLAIN_SHIFT, usize::from(is_reply))
    }

    #[inline(always)]
    fn exit(&self, epoch: u32, in_port: PortId, shift: u32, is_reply: usize) -> Option<PortId> {
        let is_plain = usize::from(self.state) >> shift >> is_reply & 1;
        let fits = self.epoch == epoch && is_plain != 0 && self.ports[is_reply] == in_port.0;
        fits.then_some(PortId(self.ports[is_reply ^ 1]))
    }

    /// Whether packets of this direction need no further checks: an earlier packet passed the address checks on the right port in the
    /// entry's epoch, and later ones have the same addresses and nothing new for the session's state.
    #[inline]
    pub(crate) const fn is_plain(&self, direction: Direction) -> bool {
        self.state & self.plain(direction) != 0
    }

    pub(super) const fn set_plain(&mut self, direction: Direction) {
        self.state |= self.plain(direction);
    }

    pub(super) const fn forget_plain(&mut self) {
        self.state &= !state::ALL_PLAIN;
    }

    const fn plain(&self, direction: Direction) -> u8 {
        let bit = match direction {
            Direction::Forward => state::FORWARD_PLAIN,
            Direction::Reply => state::REPLY_PLAIN,
        };
        if self.is_translated() { bit << (state::TRANSLATED_PLAIN_SHIFT - state::PLAIN_SHIFT) } else { bit }
    }
}

/// Encodes an optional number. `None` becomes `u32::MAX`, which no number is.
pub(super) fn number(number: Option<u32>) -> u32 {
    number.unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::links::Links;
    use super::*;

    #[test]
    fn what_a_packet_reads_is_one_cache_line_and_a_session_is_112_bytes_without_the_index() {
        assert_eq!((size_of::<Entry>(), size_of::<Links>()), (64, 48));
    }
}
