//! Makes room for new entries: limits, sweeping of expired entries, and eviction.

use super::super::budget::{Room, Side};
use super::super::class::Class;
use super::super::entry::{NONE, NewSession, Slot};
use super::SessionTable;
use super::lives::first_class;
use crate::{DropReason, PortId};

/// Classes that may be evicted for a new session, in order: refusals, which cost no connection; unanswered UDP; ended connections;
/// connections that are not established, so that a SYN flood evicts its own; pings, which lose one reply; connections that were probably
/// reset.
const RECYCLED: [Class; 6] =
    [Class::Refused, Class::Unreplied, Class::Closed, Class::New, Class::Echo, Class::Doubtful];

/// Classes that may be evicted for a connection that is not established, if the half-open share is used.
const HALF_OPEN: [Class; 2] = [Class::Closed, Class::New];

/// Sessions swept together, so that their cache misses overlap.
const SWEPT_TOGETHER: usize = 32;

impl SessionTable {
    /// Returns how many entries like this one the table can take without eviction.
    pub(crate) fn room_for(&self, new: &NewSession) -> usize {
        let of = |side, port| self.budget.free_of(side, port, self.kind(port));
        let room = self.budget.free().min(of(Side::Starter, new.in_port)).min(of(Side::Destination, new.out_port));
        if first_class(&new.key).is_half_open() { room.min(self.half_open_room()) } else { room }
    }

    /// Returns how many connections that are not established the table can take without eviction.
    pub(crate) fn half_open_room(&self) -> usize {
        self.budget.free_half_open()
    }

    /// Ends at most `limit` entries that have expired or whose room other tables need.
    pub(crate) fn sweep(&mut self, now: u64, limit: usize) {
        if self.followed != self.budget.calls() {
            self.follow_call(now);
        }
        let mut left = limit;
        for class in Class::ALL {
            while left > 0 && self.end_expired_of(class, now, &mut left) {}
        }
    }

    /// Ends some expired sessions of the class and returns whether there may be more. Prefetches their buckets, each of which is a cache
    /// miss.
    fn end_expired_of(&mut self, class: Class, now: u64, left: &mut usize) -> bool {
        let mut slots = [NONE; SWEPT_TOGETHER];
        let (mut count, mut slot) = (0, self.lists.first(class));
        while count < SWEPT_TOGETHER.min(*left) && slot != NONE && self.is_expired(slot, now) {
            slots[count] = slot;
            count += 1;
            slot = self.links.records()[slot as usize].of_class.next;
        }
        let slots = &slots[..count];
        let (prefetch, entries) = (self.prefetch(), self.entries());
        let touched = slots.iter().map(|&slot| prefetch.touch(self.hash(&entries[slot as usize].key())));
        std::hint::black_box(touched.fold(0, |all, one| all ^ one));
        slots.iter().for_each(|&slot| self.end(slot, now));
        *left -= count;
        count == SWEPT_TOGETHER
    }

    /// Makes room for a new session within all limits. A port over its share evicts its own entries. The half-open share evicts from the
    /// port with the most half-open connections, so that a flooding pod evicts its own.
    pub(super) fn make_room(&mut self, new: &NewSession, replaces: bool, now: u64) -> Result<(), DropReason> {
        for (side, port) in [(Side::Starter, new.in_port), (Side::Destination, new.out_port)] {
            let room = self.budget.room_of(side, port, self.kind(port));
            if !self.find_room(room, |table| table.end_one_of(side, port, &RECYCLED, now)) {
                return Err(DropReason::SessionQuota);
            }
        }
        if first_class(&new.key).is_half_open() {
            let room = self.budget.half_open_room();
            if !self.find_room(room, |table| table.end_one(&HALF_OPEN, now)) {
                return Err(DropReason::SessionTableFull);
            }
        }
        if !replaces && self.budget.room() != Room::Free {
            // Of any class.
            self.sweep(now, 1);
        }
        let room = if replaces { Room::Free } else { self.budget.room() };
        if self.find_room(room, |table| table.end_one(&RECYCLED, now)) {
            Ok(())
        } else {
            Err(DropReason::SessionTableFull)
        }
    }

    /// Makes room for an entry: by `end`, otherwise by calls to other tables to evict. Returns whether it fits, if need be by an overdraft.
    fn find_room(&mut self, room: Room, end: impl FnOnce(&mut Self) -> bool) -> bool {
        if room == Room::Free || end(self) {
            return true;
        }
        self.budget.call();
        self.followed = self.followed.wrapping_add(1);
        room == Room::Overdraft
    }

    /// Evicts entries over a limit, because another table needs room and has no entry to evict.
    #[cold]
    #[inline(never)]
    fn follow_call(&mut self, now: u64) {
        self.followed = self.budget.calls();
        for port in (0..=u16::MAX).map(PortId).take(self.lists.ports()) {
            for side in Side::BOTH {
                let limit = self.budget.limit(side, self.kind(port));
                while self.budget.held(side, port) > limit && self.end_one_of(side, port, &RECYCLED, now) {}
            }
        }
        while self.budget.is_half_open_overdrawn() && self.end_one(&HALF_OPEN, now) {}
        while self.budget.is_overdrawn() && self.end_one(&RECYCLED, now) {}
    }

    /// Makes room for a refusal, by ending only expired entries and other refusals.
    pub(super) fn make_room_for_refusal(&mut self, new: &NewSession, now: u64) -> bool {
        for (side, port) in [(Side::Starter, new.in_port), (Side::Destination, new.out_port)] {
            let is_over = self.budget.room_of(side, port, self.kind(port)) != Room::Free;
            if is_over && !self.end_one_of(side, port, &[Class::Refused], now) {
                return false;
            }
        }
        if self.budget.room() != Room::Free {
            self.sweep(now, 1);
        }
        self.budget.room() == Room::Free || self.end_one(&[Class::Refused], now)
    }

    /// Ends an expired entry, or the least recently used one of the first nonempty class, of the port with the most. False if none exists.
    fn end_one(&mut self, classes: &[Class], now: u64) -> bool {
        if classes.iter().any(|&class| self.end_expired(self.lists.first(class), now)) {
            return true;
        }
        let oldest = classes.iter().map(|&class| self.lists.first_of_heaviest(class)).find(|&first| first != NONE);
        oldest.inspect(|&slot| self.end(slot, now)).is_some()
    }

    /// Ends one entry of the port in this role: an expired one, otherwise the least recently used one of the first class that has any.
    fn end_one_of(&mut self, side: Side, port: PortId, classes: &[Class], now: u64) -> bool {
        if Class::ALL.iter().any(|&class| self.end_expired(self.lists.first_of(side, port, class), now)) {
            return true;
        }
        let first = |&class: &Class| self.lists.first_of(side, port, class);
        let oldest = classes.iter().map(first).find(|&first| first != NONE);
        oldest.inspect(|&slot| self.end(slot, now)).is_some()
    }

    pub(super) fn is_expired(&self, slot: Slot, now: u64) -> bool {
        let entry = self.entry(slot);
        now >= entry.seen_at.saturating_add(self.timeouts[entry.class_index()])
    }

    /// Ends an entry if it has expired.
    fn end_expired(&mut self, slot: Slot, now: u64) -> bool {
        let is_expired = slot != NONE && self.is_expired(slot, now);
        if is_expired {
            self.end(slot, now);
        }
        is_expired
    }

    /// Ends an entry and counts the reason.
    pub(super) fn end(&mut self, slot: Slot, now: u64) {
        if self.entry(slot).refused().is_none() {
            let is_expired = self.is_expired(slot, now);
            self.counts.expired += u64::from(is_expired);
            self.counts.recycled += u64::from(!is_expired);
        }
        self.remove(slot);
    }
}
