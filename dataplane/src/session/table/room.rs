//! Room for new entries: limits, what is swept out because its time is up, and what is ended early.

use super::super::budget::{Room, Side};
use super::super::class::Class;
use super::super::entry::{NONE, NewSession, Slot};
use super::SessionTable;
use super::lives::first_class;
use crate::{DropReason, PortId, PortKind};

/// What is ended early for a new session: refusals first, which cost nobody a connection; then UDP that nobody has answered;
/// connections that are over; those that are not established, so that a flood of SYNs recycles its own and leaves established
/// ones alone; pings, which lose one reply; and connections that are probably reset.
const RECYCLED: [Class; 6] =
    [Class::Refused, Class::Unreplied, Class::Closed, Class::New, Class::Echo, Class::Doubtful];

/// What gives way to a connection that is not established, when these have used up their share.
const HALF_OPEN: [Class; 2] = [Class::Closed, Class::New];

/// Sessions that are swept out together: enough for their cache misses to overlap.
const SWEPT_TOGETHER: usize = 32;

impl SessionTable {
    /// How many more entries like this one fit without ending another one.
    pub(crate) fn room_for(&self, new: &NewSession) -> usize {
        let of = |side, port| self.budget.free_of(side, port, self.kind(port));
        let room = self.budget.free().min(of(Side::Starter, new.in_port)).min(of(Side::Destination, new.out_port));
        if first_class(&new.key).is_half_open() { room.min(self.half_open_room()) } else { room }
    }

    /// How many more connections that are not established fit without ending another one.
    pub(crate) fn half_open_room(&self) -> usize {
        self.budget.free_half_open()
    }

    /// Ends at most `limit` sessions whose time is up or whose port is no more, and what other tables need the room of.
    pub(crate) fn sweep(&mut self, now: u64, limit: usize) {
        if self.followed != self.budget.calls() {
            self.follow_call(now);
        }
        let mut left = limit;
        while left > 0 && !self.leaving.is_empty() {
            left -= 1;
            self.end_one_leaving();
        }
        for class in Class::ALL {
            while left > 0 && self.end_expired_of(class, now, &mut left) {}
        }
    }

    /// Ends some sessions of the class whose time is up, and says whether there may be more. Their buckets, of which each
    /// is a cache miss, are read ahead together.
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

    /// Keeps a new session within all limits, by ending what may be ended. A port over its share loses its own: connections that
    /// are not established beyond their share are taken from the port that has the most of them, so that a pod that
    /// floods loses its own; a port's share is made up for by the port's own entries.
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
            // Whatever its class.
            self.sweep(now, 1);
        }
        let room = if replaces { Room::Free } else { self.budget.room() };
        if self.find_room(room, |table| table.end_one(&RECYCLED, now)) {
            Ok(())
        } else {
            Err(DropReason::SessionTableFull)
        }
    }

    /// Whether there is room, may be made, or may be had of other tables, which are called then.
    fn find_room(&mut self, room: Room, end: impl FnOnce(&mut Self) -> bool) -> bool {
        if room == Room::Free || end(self) {
            return true;
        }
        self.budget.call();
        self.followed = self.followed.wrapping_add(1);
        room == Room::Overdraft
    }

    /// Another table has no room and nothing to end: ends what is over a limit here.
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

    /// Finds room for a refusal: by ending expired entries and other refusals only.
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

    /// A port is no more: a pod's entries are ended, some with each burst. The uplink and the host speak for others, whose
    /// connections go on when the interface comes back.
    pub(crate) fn remove_port(&mut self, port: PortId) {
        let is_pod = self.kind(port) == PortKind::Pod;
        if is_pod && port.index() < self.lists.ports() && !self.leaving.contains(&port) {
            self.leaving.push(port);
        }
    }

    /// A port is new: what is left of an older one with its number is ended now.
    pub(crate) fn add_port(&mut self, port: PortId) {
        while self.leaving.contains(&port) {
            self.end_one_leaving();
        }
    }

    fn end_one_leaving(&mut self) {
        let Some(&port) = self.leaving.first() else { return };
        let all = Class::ALL.iter().flat_map(|&class| Side::BOTH.map(|side| self.lists.first_of(side, port, class)));
        match all.into_iter().find(|&slot| slot != NONE) {
            Some(slot) => {
                self.counts.removed += u64::from(self.entry(slot).refused().is_none());
                self.remove(slot);
            }
            None => {
                self.leaving.remove(0);
            }
        }
    }

    /// Ends one entry: one whose time is up, else, of the first of these classes that has any, the least recently used
    /// one of the port that has the most.
    fn end_one(&mut self, classes: &[Class], now: u64) -> bool {
        if classes.iter().any(|&class| self.end_expired(self.lists.first(class), now)) {
            return true;
        }
        let oldest = classes.iter().map(|&class| self.lists.first_of_heaviest(class)).find(|&first| first != NONE);
        oldest.inspect(|&slot| self.end(slot, now)).is_some()
    }

    /// Ends one entry with the port at this end: one whose time is up, else the least recently used one of the first of these classes
    /// that has any.
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

    /// Ends an entry if its time is up.
    fn end_expired(&mut self, slot: Slot, now: u64) -> bool {
        let is_expired = slot != NONE && self.is_expired(slot, now);
        if is_expired {
            self.end(slot, now);
        }
        is_expired
    }

    /// Ends an entry and counts why.
    pub(super) fn end(&mut self, slot: Slot, now: u64) {
        if self.entry(slot).refused().is_none() {
            let is_expired = self.is_expired(slot, now);
            self.counts.expired += u64::from(is_expired);
            self.counts.recycled += u64::from(!is_expired);
        }
        self.remove(slot);
    }
}
