//! Adopts entries of an earlier process, or of a worker that panicked.

use super::super::budget::Room;
use super::super::direction::Direction;
use super::super::entry::{Entry, Moment, NONE, NOWHERE};
use super::super::index::Index;
use super::super::links::Links;
use super::super::lists::Lists;
use super::super::memory::SessionMemoryError;
use super::super::store::Stored;
use super::SessionTable;
use crate::{Decider, Decision, PortId};

impl SessionTable {
    /// Adopts an entry, with the ports of its forward direction. Call it in order of last use. Returns false if the entry has expired or
    /// there is no room, and if its server name is not compared yet and the name that allowed it is lost.
    pub(crate) fn adopt(&mut self, stored: &Stored, ports: (PortId, PortId), now: u64) -> bool {
        // The clock may have been set back.
        let mut entry = stored.entry;
        entry.set_ports(ports);
        entry.seen_at = entry.seen_at.min(now);
        entry.set_decided(0, None);
        let key = entry.key();
        let hash = self.hash(&key);
        // Without the name that allowed it, the session would lose the mark and go on unread.
        let is_unreadable = stored.is_unchecked && stored.name.is_none();
        if is_unreadable
            || self.is_over(stored, now)
            || self.budget.room() != Room::Free
            || self.lookup(hash, &key).is_some()
        {
            return false;
        }
        self.budget.know_nowhere();
        let nobody = Decision { by: stored.name.map(Decider::Name), rule: None, origin: None };
        let mut links = Links::new(&nobody);
        links.next = stored.next;
        links.set_audited(stored.is_audited);
        links.set_unchecked(stored.is_unchecked);
        let moment = Moment { time: now, number: 0 };
        let is_adopted = self.place(hash, &entry, links, stored.rewrite.as_ref(), moment).is_some();
        self.counts.adopted += u64::from(is_adopted && entry.refused().is_none());
        is_adopted
    }

    /// Whether an entry of an earlier process has expired at `now`.
    pub(crate) fn is_over(&self, stored: &Stored, now: u64) -> bool {
        now >= stored.entry.seen_at.saturating_add(self.timeouts[stored.entry.class_index()])
    }

    /// Rebuilds index and lists from the entries after a panic, because they may be half written. Invalid entries are left out.
    ///
    /// # Errors
    /// If there is not enough memory for another index.
    pub(crate) fn rebuild(&mut self, now: u64) -> Result<(), SessionMemoryError> {
        let used = self.fresh as usize;
        let index = Index::new(self.budget.slots())?;
        let mut stored = Vec::new();
        let besides = self.links.records().iter().zip(self.rewrites.records());
        for (entry, (links, rewrite)) in self.entries.records_mut()[..used].iter_mut().zip(besides) {
            if !entry.is_free() {
                let rewrite = entry.sound_rewrite(rewrite).ok().flatten();
                if let Some(((steering, own), rewrite)) = self.steering.as_ref().zip(rewrite) {
                    steering.remove(&rewrite.alias, *own);
                }
                self.budget.leave(entry.ports(Direction::Forward), entry.class());
                let entry = entry.adoptable().ok().flatten();
                let entry = entry.filter(|entry| entry.is_translated() == rewrite.is_some());
                stored.extend(entry.map(|entry| Stored::new(entry, links, rewrite)));
            }
            *entry = Entry::FREE;
        }
        stored.sort_by_key(|stored| stored.entry.seen_at);
        let ports = self.lists.ports();
        (self.index, self.lists, self.fresh, self.free) = (index, Lists::new(), 0, NONE);
        (self.aliases, self.records) = (0, 0);
        self.lists.know_ports(ports);
        self.gone.clear();
        let counts = self.counts;
        stored.iter().for_each(|stored| {
            self.adopt(stored, (NOWHERE, NOWHERE), now);
        });
        self.counts = counts;
        if self.endings.is_some() {
            // Counts by slot now belong to other sessions.
            self.listen(true);
        }
        Ok(())
    }
}
