//! Reads a journal: the state at a time, later changes, and verdicts.

mod limits;
mod packed;
mod seen;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

use bulkhead_answers::bundle::Settings;
use bulkhead_control::attachments::Attachment;
use bulkhead_control::cache::Event;
use bulkhead_control::inventory::{Inventory, Key};
use bulkhead_control::object::{Object, PodName};

use super::format::{Kind, Layout, Run};
use super::input::Input;
use super::reader::{Damage, Journal, JournalError};
use super::state::{Unpacked, Unread, unpack};
use super::verdict::{LeftOut, Verdict};
pub(super) use limits::Limits;
use limits::{MOST_UNPACKED, forget};
use packed::{Open, Packed, Parts, take_part};
use seen::Verdicts;

/// Why the state at a time is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// The journal has no change.
    #[error("the journal holds no state")]
    Empty,
    /// The journal starts after the requested time.
    #[error("the journal starts later")]
    Before {
        /// Start of the journal, in nanoseconds since 1970.
        begins: u64,
    },
    /// The state exceeds the maximum weight.
    #[error("the state exceeds the size limit of a vswitch")]
    TooLarge,
    /// Changes of this period are lost.
    #[error("the journal lacks changes of this period")]
    Gap(Gap),
}

/// A period with lost changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Time of the last change before the gap, in nanoseconds since 1970.
    pub from: u64,
    /// When the state is known again, in nanoseconds since 1970. `None` if it never is.
    pub until: Option<u64>,
}

/// A state that was in force.
#[derive(Clone, Debug)]
pub struct StateAt {
    /// Index of the change that led to this state.
    at: usize,
    number: u64,
    /// When the state took effect, in nanoseconds since 1970.
    pub since: u64,
    /// Generation of the tables compiled from the state.
    pub generation: u64,
    /// All Kubernetes objects of the state.
    pub objects: Inventory,
    /// Settings of the vswitch that affect verdicts.
    pub settings: Settings,
    /// Attached pods with their assigned addresses.
    pub attached: BTreeMap<PodName, Attachment>,
    /// Whether there was no valid state, so that everything was denied.
    pub is_denying: bool,
    /// Memory estimate of each object in bytes; `weight` is their sum.
    weights: BTreeMap<Key, u64>,
    weight: u64,
    /// Total compressed size of the changes since the last whole state, in bytes. Limits `weight`.
    packed: u64,
}

impl StateAt {
    /// Applies a change. Returns its effective events, each with the object before. Fails if the state becomes too large.
    fn take(
        &mut self,
        packed: &Packed,
        unpacked: Unpacked,
        limits: Limits,
    ) -> Result<Vec<(Event, Option<Object>)>, HistoryError> {
        let Unpacked { change, weights } = unpacked;
        self.packed = self.packed_with(packed);
        let most_weight = limits.of(self.packed);
        (self.number, self.since, self.generation) = (packed.number, packed.time, packed.generation);
        self.is_denying = change.is_denying;
        if let Some(settings) = change.settings {
            self.settings = settings;
        }
        if let Some(attached) = change.attached {
            self.attached = attached;
        }
        let mut told = Vec::new();
        if change.is_whole {
            let is_there = |event: &Event| matches!(event, Event::Apply(_));
            let there: BTreeSet<Key> =
                change.events.iter().filter(|event| is_there(event)).map(Key::of_event).collect();
            let gone: Vec<Key> = self.objects.objects().map(Key::of).filter(|key| !there.contains(key)).collect();
            told.extend(gone.into_iter().map(|key| self.apply(key.gone(), 0)));
        }
        for (event, weight) in change.events.into_iter().zip(weights) {
            let is_same = match &event {
                Event::Apply(object) => change.is_whole && self.objects.get(&Key::of(object)) == Some(object),
                _ => change.is_whole,
            };
            if !is_same {
                told.push(self.apply(event, weight));
            }
            if self.weight > most_weight {
                return Err(HistoryError::TooLarge);
            }
        }
        Ok(told)
    }

    /// Returns [`packed`](Self::packed) after a change.
    fn packed_with(&self, change: &Packed) -> u64 {
        u64::from(change.bytes).saturating_add(self.packed)
    }

    fn apply(&mut self, event: Event, weight: u64) -> (Event, Option<Object>) {
        let key = Key::of_event(&event);
        let before = match &event {
            Event::Apply(_) => self.weights.insert(key, weight),
            _ => self.weights.remove(&key),
        };
        let weight = if matches!(event, Event::Apply(_)) { weight } else { 0 };
        self.weight = self.weight + weight - before.unwrap_or(0);
        let before = self.objects.apply(event.clone());
        (event, before)
    }
}

/// The change from one state to the next.
#[derive(Clone, Debug)]
pub struct Step {
    /// When the change took effect, in nanoseconds since 1970.
    pub time: u64,
    /// Generation of the new tables.
    pub generation: u64,
    /// Events that change objects, each with the object before.
    pub events: Vec<(Event, Option<Object>)>,
    /// Number of changes recorded as one because they followed closely; at least 1.
    pub merged: u64,
    /// Number of lost changes before this one.
    pub missing: u64,
}

/// The contents of a journal.
#[derive(Debug)]
pub struct History<'a> {
    journal: Journal<'a>,
    changes: Vec<Packed>,
    runs: Vec<(u64, Run)>,
    damage: Damage,
    /// Number of older changes that were dropped.
    passed_over: usize,
    /// Time of the last record, in nanoseconds since 1970. `None` without records.
    last: Option<u64>,
    limits: Limits,
    /// Bytes that may still be decompressed.
    budget: Cell<u64>,
}

impl<'a> History<'a> {
    /// Reads the changes and the starts and stops of a journal.
    ///
    /// # Errors
    /// If the header cannot be read.
    pub fn open(input: impl Into<Input<'a>>) -> Result<Self, JournalError> {
        Self::within(input.into(), Limits::OF_A_VSWITCH)
    }

    /// Reads the changes and the starts and stops of a journal, at most as many as `limits` allows.
    pub(super) fn within(input: Input<'a>, limits: Limits) -> Result<Self, JournalError> {
        let (mut changes, mut runs, mut damage) = (Vec::new(), Vec::new(), Damage::default());
        // The change whose parts are being read, and their segment.
        let mut open: Option<Open> = None;
        let (mut passed_over, mut forgotten, mut last) = (0, 0, None);
        let mut verdicts = Verdicts::of(0..=u64::MAX);
        let journal = Journal::open(input, |record| {
            last = last.max(Some(record.time));
            let kind = Kind::of(record.kind);
            let is_known = match kind {
                Some(Kind::Change | Kind::Checkpoint) => {
                    let is_known = take_part(&record, kind == Some(Kind::Checkpoint), &mut open, &mut changes);
                    forget(&mut changes, limits.changes, &mut passed_over);
                    is_known
                }
                Some(Kind::Run) => serde_json::from_slice(record.payload).is_ok_and(|run| {
                    runs.push((record.time, run));
                    forget(&mut runs, limits.runs, &mut forgotten);
                    true
                }),
                Some(Kind::Name | Kind::Verdicts) => verdicts.take(&record, drop),
                Some(Kind::LeftOut) => true,
                None => false,
            };
            if !is_known {
                damage.is_unknown(record.offset);
            }
        })?;
        let damage = damage.and(journal.damage());
        Ok(Self { journal, changes, runs, damage, passed_over, last, limits, budget: Cell::new(MOST_UNPACKED) })
    }

    /// Decompresses the change that follows a state.
    fn unpack(&self, packed: &Packed, state: &StateAt) -> Result<Unpacked, Unread> {
        let most_weight = self.limits.of(state.packed_with(packed));
        unpack(Parts::of(&self.journal, packed), most_weight, &self.budget)
    }

    /// Returns the error of the operating system because of which answers so far lack records. `None` without one.
    pub const fn fault(&self) -> Option<io::ErrorKind> {
        self.journal.fault()
    }

    /// Returns the name of the node whose vswitch wrote the journal.
    pub fn node(&self) -> &str {
        self.journal.node()
    }

    pub(super) const fn layout(&self) -> Layout {
        self.journal.layout()
    }

    pub(super) const fn newest(&self) -> Option<(usize, u64, usize)> {
        self.journal.newest()
    }

    /// Returns the unreadable parts of the journal.
    pub const fn damage(&self) -> Damage {
        self.damage
    }

    /// Returns the number of changes dropped above the limit, oldest first. 0 for a journal of the default size.
    pub const fn passed_over(&self) -> usize {
        self.passed_over
    }

    /// Returns the time of the first known state, in nanoseconds since 1970. `None` if no state is known.
    pub fn begins(&self) -> Option<u64> {
        self.changes.iter().find(|change| change.is_whole).map(|change| change.time)
    }

    /// Returns the time of the last record or sign of life, in nanoseconds since 1970. 0 if the journal has neither.
    pub fn ends(&self) -> u64 {
        self.journal.alive().max(self.last).unwrap_or(0)
    }

    /// Returns [`ends`](Self::ends), or `None` if the journal has no record.
    pub(super) fn last_alive(&self) -> Option<u64> {
        Some(self.ends()).filter(|&time| time > 0)
    }

    pub(super) fn last_number(&self) -> u64 {
        self.changes.iter().map(|change| change.number).max().unwrap_or(0)
    }

    /// Returns the last known state.
    ///
    /// # Errors
    /// If the journal has no state, or changes are lost.
    pub fn last_state(&self) -> Result<StateAt, HistoryError> {
        self.state_of(self.changes.len().checked_sub(1).ok_or(HistoryError::Empty)?)
    }

    /// Returns the state at this time: that of the last change not later than `time`. If the clock was set back, the last one in recorded
    /// order.
    ///
    /// # Errors
    /// If the state is unknown.
    pub fn state_at(&self, time: u64) -> Result<StateAt, HistoryError> {
        let begins = self.begins().ok_or(HistoryError::Empty)?;
        let at = self.changes.iter().rposition(|change| change.time <= time);
        let at = at.ok_or(HistoryError::Before { begins })?;
        let (change, next) = (&self.changes[at], self.changes.get(at + 1));
        if next.is_some_and(|next| next.number > change.number + 1) && time > change.time {
            // The lost change may have been in force by then.
            return Err(HistoryError::Gap(self.gap(at + 1)));
        }
        self.state_of(at)
    }

    fn state_of(&self, at: usize) -> Result<StateAt, HistoryError> {
        let begins = self.begins().ok_or(HistoryError::Empty)?;
        let whole = self.changes[..=at].iter().rposition(|change| change.is_whole);
        let whole = whole.ok_or(HistoryError::Before { begins })?;
        let mut state = StateAt {
            at,
            number: 0,
            since: 0,
            generation: 0,
            objects: Inventory::default(),
            settings: Settings::default(),
            attached: BTreeMap::new(),
            is_denying: false,
            weights: BTreeMap::new(),
            weight: 0,
            packed: 0,
        };
        for (place, packed) in self.changes.iter().enumerate().take(at + 1).skip(whole) {
            let is_next = packed.is_whole || packed.number == state.number + 1;
            match self.unpack(packed, &state) {
                Ok(change) if is_next => drop(state.take(packed, change, self.limits)?),
                Err(Unread::TooLarge) => return Err(HistoryError::TooLarge),
                Ok(_) | Err(Unread::Foreign) => return Err(HistoryError::Gap(self.gap(place))),
            }
        }
        Ok(state)
    }

    /// Returns the unknown period around the change at this index.
    fn gap(&self, place: usize) -> Gap {
        let from = place.checked_sub(1).map_or(0, |before| self.changes[before].time);
        Gap { from, until: self.changes[place..].iter().find(|change| change.is_whole).map(|change| change.time) }
    }

    /// Advances to the next state and returns the change. `None` at the end. Skips lost changes up to the next whole state.
    pub fn follow(&self, state: &mut StateAt) -> Option<Step> {
        loop {
            let at = state.at + 1;
            let packed = self.changes.get(at)?;
            state.at = at;
            let is_next = packed.number == state.number + 1;
            let missing = packed.number.saturating_sub(state.number.saturating_add(1));
            let Some(change) = self.unpack(packed, state).ok().filter(|_| is_next || packed.is_whole) else { continue };
            let merged = change.change.merged.max(1);
            let (was_denying, before) = (state.is_denying, state.number);
            // If the state becomes too large, the previous one is the last known.
            let events = state.take(packed, change, self.limits).ok()?;
            let is_other = !events.is_empty() || was_denying != state.is_denying || missing > 0;
            if is_other || packed.number != before {
                return Some(Step { time: packed.time, generation: packed.generation, events, merged, missing });
            }
        }
    }

    /// Whether no later change is lost, after [`follow`](Self::follow) returned `None`.
    pub fn is_last(&self, state: &StateAt) -> bool {
        state.number >= self.last_number()
    }

    /// Calls `each` for the verdicts of a period, ends included, in recorded order.
    pub fn verdicts(&self, from: u64, to: u64, mut each: impl FnMut(Verdict)) {
        let mut verdicts = Verdicts::of(from..=to);
        self.journal.records(|record| {
            verdicts.take(&record, &mut each);
        });
    }

    /// Returns how much was not recorded in periods that overlap this one.
    pub fn left_out(&self, from: u64, to: u64) -> LeftOut {
        let mut sum = LeftOut { since: from, ..LeftOut::default() };
        self.journal.records(|record| {
            if Kind::of(record.kind) != Some(Kind::LeftOut) || record.time < from {
                return;
            }
            let Ok(one) = serde_json::from_slice::<LeftOut>(record.payload) else { return };
            if one.since <= to {
                sum = LeftOut {
                    since: sum.since.min(one.since),
                    sessions: sum.sessions.saturating_add(one.sessions),
                    dropped: sum.dropped.saturating_add(one.dropped),
                    unheard: sum.unheard.saturating_add(one.unheard),
                };
            }
        });
        sum
    }

    /// Returns the period around this time in which no vswitch ran. Its end is `None` if unknown.
    pub fn pause_at(&self, time: u64) -> Option<(u64, Option<u64>)> {
        for (at, &(started, run)) in self.runs.iter().enumerate() {
            if run.is_start {
                let ended = at.checked_sub(1).map(|before| self.runs[before]).filter(|(_, run)| !run.is_start);
                let ended = ended.map(|(stopped, _)| stopped).or(run.alive);
                if let Some(ended) = ended.filter(|&ended| (ended..started).contains(&time)) {
                    return Some((ended, Some(started)));
                }
            }
        }
        let &(stopped, run) = self.runs.last()?;
        (!run.is_start && time >= stopped).then_some((stopped, None))
    }
}
