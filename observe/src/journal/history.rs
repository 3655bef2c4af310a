//! Reads a journal: the state at a time, later changes, and verdicts.

mod packed;
mod seen;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use bulkhead_answers::bundle::Settings;
use bulkhead_control::attachments::Attachment;
use bulkhead_control::cache::Event;
use bulkhead_control::inventory::{Inventory, Key};
use bulkhead_control::object::{Object, PodName};

use super::format::{Kind, Run};
use super::reader::{Damage, Journal};
use super::state::{MOST_WEIGHT, Part, Unpacked, Unread, unpack};
use super::verdict::{LeftOut, Verdict};
use packed::{Open, Packed, take_part};
use seen::verdicts;

/// Maximum total size of decompressed changes in bytes: a hundred times the largest cluster. Bounds the time, because a small file can
/// decompress to any size.
const MOST_UNPACKED: u64 = 1 << 32;

/// Limits of memory use: a file may be damaged or hostile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum number of changes; the newest are kept.
    pub(super) changes: usize,
    /// Maximum number of starts and stops; the newest are kept.
    pub(super) runs: usize,
    /// Maximum estimated memory of a change and of a state, in bytes.
    pub(super) weight: u64,
}

impl Limits {
    /// Limits for a vswitch's journal. A million changes need about 40 MB; the default size holds fewer than half. 65,536 runs are a
    /// restart per minute for three weeks.
    pub(super) const OF_A_VSWITCH: Self = Self { changes: 1 << 20, runs: 1 << 16, weight: MOST_WEIGHT };
}

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
}

impl StateAt {
    /// Applies a change. Returns its effective events, each with the object before. Fails if the state becomes too large.
    fn take(
        &mut self,
        packed: &Packed,
        unpacked: Unpacked,
        most_weight: u64,
    ) -> Result<Vec<(Event, Option<Object>)>, HistoryError> {
        let Unpacked { change, weights } = unpacked;
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
    limits: Limits,
    /// Bytes that may still be decompressed.
    budget: Cell<u64>,
}

impl<'a> History<'a> {
    /// Reads the changes and the starts and stops of a journal.
    pub fn of(journal: Journal<'a>) -> Self {
        Self::within(journal, Limits::OF_A_VSWITCH)
    }

    /// Reads the changes and the starts and stops of a journal, at most as many as `limits` allows.
    pub(super) fn within(journal: Journal<'a>, limits: Limits) -> Self {
        let (mut changes, mut runs, mut damage) = (Vec::new(), Vec::new(), journal.damage());
        // The change whose parts are being read, and their segment.
        let mut open: Option<Open> = None;
        let (mut passed_over, mut forgotten) = (0, 0);
        for record in journal.records() {
            let kind = Kind::of(record.kind);
            match kind {
                Some(Kind::Change | Kind::Checkpoint) => {
                    let is_whole = kind == Some(Kind::Checkpoint);
                    damage.unknown += usize::from(!take_part(&record, is_whole, &mut open, &mut changes));
                    forget(&mut changes, limits.changes, &mut passed_over);
                }
                Some(Kind::Run) => match serde_json::from_slice(record.payload) {
                    Ok(run) => {
                        runs.push((record.time, run));
                        forget(&mut runs, limits.runs, &mut forgotten);
                    }
                    Err(_) => damage.unknown += 1,
                },
                Some(Kind::Name | Kind::Verdicts | Kind::LeftOut) => {}
                None => damage.unknown += 1,
            }
        }
        damage.unknown += verdicts(&journal, 0, u64::MAX, drop);
        Self { journal, changes, runs, damage, passed_over, limits, budget: Cell::new(MOST_UNPACKED) }
    }

    fn unpack(&self, packed: &Packed) -> Result<Unpacked, Unread> {
        let parts = self.journal.records_from(packed.place).filter_map(|record| {
            let is_part = matches!(Kind::of(record.kind), Some(Kind::Change | Kind::Checkpoint));
            Part::read(record.payload).filter(|_| is_part).map(|part| part.bytes)
        });
        unpack(parts.take(packed.parts as usize), self.limits.weight, &self.budget)
    }

    /// Returns the name of the node whose vswitch wrote the journal.
    pub fn node(&self) -> &str {
        self.journal.node()
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
        let last = self.journal.records().map(|record| record.time).max();
        self.journal.alive().into_iter().chain(last).max().unwrap_or(0)
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
        };
        for (place, packed) in self.changes.iter().enumerate().take(at + 1).skip(whole) {
            let is_next = packed.is_whole || packed.number == state.number + 1;
            match self.unpack(packed) {
                Ok(change) if is_next => drop(state.take(packed, change, self.limits.weight)?),
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
            let Some(change) = self.unpack(packed).ok().filter(|_| is_next || packed.is_whole) else { continue };
            let merged = change.change.merged.max(1);
            let (was_denying, before) = (state.is_denying, state.number);
            // If the state becomes too large, the previous one is the last known.
            let events = state.take(packed, change, self.limits.weight).ok()?;
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
    pub fn verdicts(&self, from: u64, to: u64, each: impl FnMut(Verdict)) {
        verdicts(&self.journal, from, to, each);
    }

    /// Returns how much was not recorded in periods that overlap this one.
    pub fn left_out(&self, from: u64, to: u64) -> LeftOut {
        let told = self.journal.records().filter(|record| Kind::of(record.kind) == Some(Kind::LeftOut));
        let of_time = told.filter_map(|record| {
            let told: LeftOut = serde_json::from_slice(record.payload).ok()?;
            (told.since <= to && record.time >= from).then_some(told)
        });
        of_time.fold(LeftOut { since: from, ..LeftOut::default() }, |sum, one| LeftOut {
            since: sum.since.min(one.since),
            sessions: sum.sessions.saturating_add(one.sessions),
            dropped: sum.dropped.saturating_add(one.dropped),
            unheard: sum.unheard.saturating_add(one.unheard),
        })
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

/// Drops the older half of a list that has reached `most` elements. Adds the number of dropped ones to `forgotten`.
fn forget<T>(all: &mut Vec<T>, most: usize, forgotten: &mut usize) {
    if all.len() >= most {
        *forgotten += most / 2;
        all.drain(..most / 2);
    }
}
