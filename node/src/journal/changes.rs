//! What the policy thread tells: changes of the state, when they are in force.
//!
//! A change that cannot be told yet, because it is refused or the journal's thread is busy, stays here and is told with the next one. So no
//! change is lost, and what waits is never more than the state has objects.

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

/// See the module.
#[derive(Default)]
pub(crate) struct ChangeLog {
    /// None before it is known whether there is one.
    journal: Option<Journal>,
    /// Whether it is known that there is none.
    is_off: bool,
    /// The last event of each object.
    events: BTreeMap<Key, Event>,
    attached: Option<BTreeMap<PodName, Attachment>>,
    settings: Settings,
    /// What was told last; none before anything was.
    told: Option<(Settings, bool)>,
    /// Whether all that there is was told once. What this process does not know yet an earlier one may have.
    is_known: bool,
    /// Changes that wait.
    waiting: u64,
    /// Whether something came since that was counted.
    is_fresh: bool,
}

impl ChangeLog {
    /// Has what was noted, and what comes, told to this journal. Without one nothing is noted any more.
    pub(crate) fn tell_to(&mut self, journal: Option<Journal>, settings: Settings) {
        self.is_off = journal.is_none();
        if self.is_off {
            (self.events, self.attached) = (BTreeMap::new(), None);
        }
        (self.journal, self.settings) = (journal, settings);
    }

    /// Whether nothing is noted, as there is no journal.
    #[cfg(test)]
    pub(super) const fn is_off(&self) -> bool {
        self.is_off
    }

    /// Notes what a source has told.
    pub(crate) fn note<'a>(&mut self, events: impl IntoIterator<Item = &'a Event>) {
        for event in events.into_iter().filter(|_| !self.is_off) {
            self.is_fresh = true;
            self.events.insert(Key::of_event(event), event.clone());
        }
    }

    /// Notes all pods that are attached.
    pub(crate) fn note_attached(&mut self, pods: &BTreeMap<PodName, Attachment>) {
        if !self.is_off {
            self.is_fresh = true;
            self.attached = Some(pods.clone());
        }
    }

    /// Policies that do not say are enforced, or not.
    pub(crate) const fn note_enforcement(&mut self, enforcement: Enforcement) {
        self.settings.enforcement = enforcement;
    }

    /// The state is in force by this generation, or none is because it makes no sense (`is_denying`). Tells what was noted; where a state
    /// is refused (`is_held`) it waits.
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
        // Others send as well, so that it may be full by now; and it is closed when the process ends.
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
