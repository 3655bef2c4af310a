//! Sends changes of the state from the policy thread to the journal, when they are in force.
//!
//! A change that is refused, or that finds the journal's channel full, waits here and is merged into the next one. So no change is lost,
//! and at most one event per object of the state waits.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use bulkhead_control::attachments::Attachment;
use bulkhead_control::cache::Event;
use bulkhead_control::inventory::Key;
use bulkhead_control::object::{Enforcement, PodName};

use super::{Journal, Message};
use crate::clock::now;
use bulkhead_answers::bundle::Settings;
use bulkhead_observe::journal::Change;

/// The changes that are not in the journal yet.
#[derive(Default)]
pub(crate) struct ChangeLog {
    /// The journal. `None` before [`ChangeLog::tell_to`], and if it is off.
    journal: Option<Journal>,
    /// Whether the vswitch runs without a journal, so that changes are discarded.
    is_off: bool,
    /// The last unsent event of each object.
    events: BTreeMap<Key, Event>,
    attached: Option<BTreeMap<PodName, Attachment>>,
    settings: Settings,
    /// The last settings sent, and whether they denied everything. `None` before the first.
    told: Option<(Settings, bool)>,
    /// Whether a complete state was sent, which replaces the previous process's in the journal.
    is_known: bool,
    /// Number of changes that wait, to be merged into the next record.
    waiting: u64,
    /// Whether events or attached pods were noted since `waiting` was last increased.
    is_fresh: bool,
}

impl ChangeLog {
    /// Sets the journal, to which past and future changes go. Without one, discards them.
    pub(crate) fn tell_to(&mut self, journal: Option<Journal>, settings: Settings) {
        self.is_off = journal.is_none();
        if self.is_off {
            (self.events, self.attached) = (BTreeMap::new(), None);
        }
        (self.journal, self.settings) = (journal, settings);
    }

    /// Whether changes are discarded because the vswitch runs without a journal.
    #[cfg(test)]
    pub(super) const fn is_off(&self) -> bool {
        self.is_off
    }

    /// Notes events of a policy source, to be sent by [`tell`](Self::tell).
    pub(crate) fn note<'a>(&mut self, events: impl IntoIterator<Item = &'a Event>) {
        for event in events.into_iter().filter(|_| !self.is_off) {
            self.is_fresh = true;
            self.events.insert(Key::of_event(event), event.clone());
        }
    }

    /// Notes all attached pods, which replace those noted before.
    pub(crate) fn note_attached(&mut self, pods: &BTreeMap<PodName, Attachment>) {
        if !self.is_off {
            self.is_fresh = true;
            self.attached = Some(pods.clone());
        }
    }

    /// Notes the default enforcement of policies.
    pub(crate) const fn note_enforcement(&mut self, enforcement: Enforcement) {
        self.settings.enforcement = enforcement;
    }

    /// Sends the noted changes, in force since this generation. They wait if their state is refused (`is_held`), or if no valid state
    /// exists and everything is denied (`is_denying`).
    pub(crate) fn tell(&mut self, generation: u64, is_denying: bool, is_held: bool) {
        if self.journal.as_ref().is_some_and(Journal::has_failed) {
            self.tell_to(None, Settings::default());
        }
        self.waiting += u64::from(std::mem::take(&mut self.is_fresh));
        let Some(journal) = &self.journal else { return };
        let is_told = self.told.as_ref().is_some_and(|told| (&told.0, told.1) == (&self.settings, is_denying));
        let is_held = is_held || is_denying;
        let has_news = !is_held && (!self.events.is_empty() || self.attached.is_some());
        if (is_told && !has_news) || journal.messages.is_full() {
            return;
        }
        let (events, attached, merged) = if is_held {
            (Vec::new(), None, 1)
        } else {
            let events = std::mem::take(&mut self.events).into_values().collect();
            (events, self.attached.take(), std::mem::take(&mut self.waiting).max(1))
        };
        journal.counts.merged.fetch_add(merged - 1, Ordering::Relaxed);
        let change = Change {
            is_whole: !is_held && !self.is_known,
            is_denying,
            merged,
            settings: Some(self.settings.clone()),
            attached,
            events,
        };
        let before = self.told.replace((self.settings.clone(), is_denying));
        let message = Message::Change { time: now(), generation, change: Box::new(change) };
        // Other threads may have filled the channel since, and it is closed while the process ends.
        let Err(error) = journal.messages.try_send(message) else {
            self.is_known |= !is_held;
            return;
        };
        if let Message::Change { change, .. } = error.into_inner() {
            self.told = before;
            self.waiting += change.merged;
            self.attached = self.attached.take().or(change.attached);
            for event in change.events {
                self.events.entry(Key::of_event(&event)).or_insert(event);
            }
        }
    }
}
