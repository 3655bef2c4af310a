//! Room for new entries: limits, what is swept out because its time is up, and what is ended early.

use super::super::SessionConfig;
use super::super::entry::{Class, NONE, NewSession, Slot};
use super::{SessionTable, class_of};
use crate::{DropReason, PortId, PortKind};

/// What is ended early for a new session: refusals first, which cost nobody a connection; then connections that are not
/// established, so that a flood of SYNs recycles its own and leaves established ones alone; then pings, which lose one
/// reply.
const RECYCLED: [Class; 3] = [Class::Refused, Class::Transient, Class::Echo];

/// Sessions that are swept out together: enough for their cache misses to overlap.
const SWEPT_TOGETHER: usize = 32;

/// The shares of the capacity as numbers of entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    half_open: usize,
    pod: usize,
    outside: usize,
}

impl Limits {
    pub(super) fn of(config: &SessionConfig, capacity: usize) -> Self {
        Self {
            half_open: config.half_open.of(capacity),
            pod: config.pod_share.of(capacity),
            outside: config.outside_share.of(capacity),
        }
    }

    const fn of_port(&self, kind: PortKind) -> usize {
        match kind {
            PortKind::Pod => self.pod,
            PortKind::Uplink | PortKind::Host => self.outside,
        }
    }
}

impl SessionTable {
    /// How many more entries fit without ending another one.
    pub(crate) fn room(&self) -> usize {
        self.config.capacity.saturating_sub(self.index.len())
    }

    /// How many more entries like this one fit without ending another one.
    pub(crate) fn room_for(&self, new: &NewSession) -> usize {
        let of_port = self.limits.of_port(new.in_kind).saturating_sub(self.lists.held_by(new.in_port));
        let room = self.room().min(of_port);
        if class_of(&new.key) == Class::Transient { room.min(self.half_open_room()) } else { room }
    }

    /// How many more connections that are not established fit without ending another one.
    pub(crate) const fn half_open_room(&self) -> usize {
        self.limits.half_open.saturating_sub(self.lists.len(Class::Transient))
    }

    /// Ends at most `limit` sessions whose time is up.
    pub(crate) fn sweep(&mut self, now: u64, limit: usize) {
        let mut left = limit;
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
        let (glance, entries) = (self.glance(), self.entries());
        let touched = slots.iter().map(|&slot| glance.touch(self.hash(&entries[slot as usize].key)));
        std::hint::black_box(touched.fold(0, |all, one| all ^ one));
        slots.iter().for_each(|&slot| self.end(slot, now));
        *left -= count;
        count == SWEPT_TOGETHER
    }

    /// Keeps a new session within all limits, by ending what may be ended. What is over its share pays: connections that
    /// are not established beyond their share are taken from the port that has the most of them, so that a pod that
    /// floods loses its own; a port's share is made up for by the port's own entries.
    pub(super) fn make_room(&mut self, new: &NewSession, replaces: bool, now: u64) -> Result<(), DropReason> {
        if self.lists.held_by(new.in_port) >= self.limits.of_port(new.in_kind)
            && !self.end_one_of_port(new.in_port, &RECYCLED, now)
        {
            return Err(DropReason::SessionQuota);
        }
        if class_of(&new.key) == Class::Transient && self.half_open_room() == 0 {
            self.end_one(&[Class::Transient], now);
        }
        if self.room() == 0 && !replaces {
            // Whatever its class.
            self.sweep(now, 1);
            if self.room() == 0 && !self.end_one(&RECYCLED, now) {
                return Err(DropReason::SessionTableFull);
            }
        }
        Ok(())
    }

    /// Finds room for a refusal: by ending expired entries and other refusals only.
    pub(super) fn make_room_for_refusal(&mut self, new: &NewSession, now: u64) -> bool {
        let is_over = self.lists.held_by(new.in_port) >= self.limits.of_port(new.in_kind);
        if is_over && !self.end_one_of_port(new.in_port, &[Class::Refused], now) {
            return false;
        }
        if self.room() == 0 {
            self.sweep(now, 1);
        }
        self.room() > 0 || self.end_one(&[Class::Refused], now)
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

    /// Ends one entry of the port: one whose time is up, else the least recently used one of the first of these classes
    /// that has any.
    fn end_one_of_port(&mut self, port: PortId, classes: &[Class], now: u64) -> bool {
        if Class::ALL.iter().any(|&class| self.end_expired(self.lists.first_of_port(port, class), now)) {
            return true;
        }
        let oldest = classes.iter().map(|&class| self.lists.first_of_port(port, class)).find(|&first| first != NONE);
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
