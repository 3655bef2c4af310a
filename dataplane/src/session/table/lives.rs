//! Creates and removes entries.

use std::sync::atomic::{Ordering, compiler_fence};

use bulkhead_classifier::protocol;

use super::super::class::Class;
use super::super::direction::Direction;
use super::super::entry::{Entry, Moment, NONE, NewSession, Slot};
use super::super::links::Links;
use super::super::rewrite::Rewrite;
use super::{Key, SessionTable};
use crate::DropReason;

impl SessionTable {
    /// Stores a refusal. It may displace expired entries and older refusals, but no sessions: a flood of refused packets must not end
    /// sessions, and a packet without a stored refusal is dropped too. For the same reason an open session between the same endpoints
    /// stays.
    pub(crate) fn refuse(&mut self, new: &NewSession, reason: DropReason, now: Moment) {
        if !self.config.remember_refused {
            return;
        }
        if let Some(slot) = self.lookup(new.hash, &new.key) {
            let old = self.entry(slot);
            let is_session = old.refused().is_none();
            if is_session && !old.is_closed() {
                return;
            }
            self.counts.replaced += u64::from(is_session);
            self.remove(slot);
        }
        if self.make_room_for_refusal(new, now.time) {
            self.insert(new, Class::Refused, Some(reason), now);
        }
    }

    /// Creates a session, replacing one with the same key.
    ///
    /// # Errors
    /// If the port has used its share or the table is full, and no entry may be evicted.
    pub(crate) fn create(&mut self, new: &NewSession, now: Moment) -> Result<Slot, DropReason> {
        let (old, before) = (self.lookup(new.hash, &new.key), self.index.len());
        let made = self.make_room(new, old.is_some(), now.time).and_then(|()| {
            // Making room may have ended the old entry.
            let old = if self.index.len() == before { old } else { self.lookup(new.hash, &new.key) };
            if let Some(old) = old {
                self.counts.replaced += u64::from(self.entry(old).refused().is_none());
                self.remove(old);
            }
            self.insert(new, first_class(&new.key), None, now).ok_or(DropReason::SessionTableFull)
        });
        self.counts.created += u64::from(made.is_ok());
        self.counts.translated += u64::from(made.is_ok() && new.rewrite.is_some());
        self.counts.refused += u64::from(made.is_err());
        made
    }

    fn insert(&mut self, new: &NewSession, class: Class, refused: Option<DropReason>, now: Moment) -> Option<Slot> {
        let (entry, links) = (Entry::new(new, class, refused, now.time), Links::new(&new.decision));
        let slot = self.place(new.hash, &entry, links, new.rewrite.as_ref(), now)?;
        self.begin_tracking(slot, new);
        Some(slot)
    }

    /// Stores an entry in a free slot and adds it to the index and the lists.
    pub(super) fn place(
        &mut self,
        hash: u64,
        entry: &Entry,
        links: Links,
        rewrite: Option<&Rewrite>,
        now: Moment,
    ) -> Option<Slot> {
        let slot = if self.free == NONE { self.fresh } else { self.free };
        let is_ready = self.growth.as_mut().is_none_or(|growth| growth.reach(slot));
        if !is_ready || !self.index.insert(hash, slot) {
            return None;
        }
        let mut entry = *entry;
        if let Some(rewrite) = rewrite
            && !self.add_alias(slot, &mut entry, rewrite)
        {
            self.index.remove(hash, slot);
            return None;
        }
        let all = self.links.records_mut();
        if self.free == NONE {
            self.fresh += 1;
        } else {
            self.free = all[slot as usize].of_class.next;
        }
        let (class, ports) = (entry.class(), entry.ports(Direction::Forward));
        all[slot as usize] = links;
        self.lists.link(all, slot, class, ports, now.number);
        self.budget.enter(ports, class);
        // If the process is killed here, its successor must not take half an entry for a whole one.
        *self.entry_mut(slot) = entry.unfinished();
        compiler_fence(Ordering::Release);
        self.entry_mut(slot).finish(&entry);
        Some(slot)
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        if self.endings.is_some() {
            self.tell_end(slot, false);
        }
        let entry = *self.entry(slot);
        if entry.is_translated() {
            self.remove_alias(slot);
        }
        self.index.remove(self.hasher.hash(&entry.key()), slot);
        let links = self.links.records_mut();
        let ports = entry.ports(Direction::Forward);
        self.lists.unlink(links, slot, entry.class(), ports);
        self.budget.leave(ports, entry.class());
        links[slot as usize].of_class.next = self.free;
        self.free = slot;
        // As in `place`.
        self.entry_mut(slot).unmark();
        compiler_fence(Ordering::Release);
        *self.entry_mut(slot) = Entry::FREE;
    }
}

/// Returns the class of a session at its first packet.
pub(super) fn first_class(key: &Key) -> Class {
    match key.protocol() {
        _ if key.is_echo() => Class::Echo,
        // A single packet establishes nothing.
        protocol::TCP | protocol::SCTP => Class::New,
        _ => Class::Unreplied,
    }
}
