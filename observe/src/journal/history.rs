//! What a journal says: the state at a time, what came after it, and what was seen.

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

/// What all changes that are looked at may unpack to, one after the other: a hundred times the largest cluster. A bound on the time that this
/// takes, because a small file can unpack to anything.
const MOST_UNPACKED: u64 = 1 << 32;

/// How much of a journal is remembered. Bounds on memory, because a file may be somebody else's or damaged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Changes, the newest ones.
    pub(super) changes: usize,
    /// Starts and stops, the newest ones.
    pub(super) runs: usize,
    /// What a change, and a state, may weigh.
    pub(super) weight: u64,
}

impl Limits {
    /// A million changes are some 40 MB, and a journal of the usual size has room for less than half as many. So many starts and stops are a
    /// restart a minute for three weeks.
    pub(super) const OF_A_VSWITCH: Self = Self { changes: 1 << 20, runs: 1 << 16, weight: MOST_WEIGHT };
}

/// Why there is no state at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// No change was recorded at all.
    #[error("the journal holds no state")]
    Empty,
    /// It begins later.
    #[error("the journal starts later")]
    Before {
        /// When it begins, in nanoseconds since 1970.
        begins: u64,
    },
    /// It is larger than any state of a vswitch.
    #[error("the state exceeds the size limit of a vswitch")]
    TooLarge,
    /// What has changed in this time is lost.
    #[error("the journal lacks changes of this period")]
    Gap(Gap),
}

/// A time of which changes are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The last change before it, in nanoseconds since 1970.
    pub from: u64,
    /// When the state is known again; none where it is not.
    pub until: Option<u64>,
}

/// A state as it was in force.
#[derive(Clone, Debug)]
pub struct StateAt {
    /// Of which of the changes it is.
    at: usize,
    number: u64,
    /// Since when, in nanoseconds since 1970.
    pub since: u64,
    /// By this generation.
    pub generation: u64,
    /// All objects.
    pub objects: Inventory,
    /// The settings that it was judged by.
    pub settings: Settings,
    /// The attached pods, each with the addresses that it was given.
    pub attached: BTreeMap<PodName, Attachment>,
    /// Whether there was no state that made sense: nothing passed.
    pub is_denying: bool,
    /// What each object weighs, and all of them.
    weights: BTreeMap<Key, u64>,
    weight: u64,
}

impl StateAt {
    /// Takes a change in. Returns what it changes, each with what was before; an error where the state is too large with it.
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

/// What came after a state.
#[derive(Clone, Debug)]
pub struct Step {
    /// When it was in force, in nanoseconds since 1970.
    pub time: u64,
    /// By this generation.
    pub generation: u64,
    /// Objects that are there, other than before, or gone; each with what it was.
    pub events: Vec<(Event, Option<Object>)>,
    /// Changes that are told as one, because they came too soon; at least 1.
    pub merged: u64,
    /// Changes before it that are lost.
    pub missing: u64,
}

/// See the module.
#[derive(Debug)]
pub struct History<'a> {
    journal: Journal<'a>,
    changes: Vec<Packed>,
    runs: Vec<(u64, Run)>,
    damage: Damage,
    /// Changes that are older than those that are remembered.
    passed_over: usize,
    limits: Limits,
    /// Bytes that may still be unpacked.
    budget: Cell<u64>,
}

impl<'a> History<'a> {
    /// What this journal says.
    pub fn of(journal: Journal<'a>) -> Self {
        Self::within(journal, Limits::OF_A_VSWITCH)
    }

    /// The same of a journal of which no more than this is remembered.
    pub(super) fn within(journal: Journal<'a>, limits: Limits) -> Self {
        let (mut changes, mut runs, mut damage) = (Vec::new(), Vec::new(), journal.damage());
        // The change whose parts are being read, and the segment of these.
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

    /// Unpacks a change.
    fn unpack(&self, packed: &Packed) -> Result<Unpacked, Unread> {
        let parts = self.journal.records_from(packed.place).filter_map(|record| {
            let is_part = matches!(Kind::of(record.kind), Some(Kind::Change | Kind::Checkpoint));
            Part::read(record.payload).filter(|_| is_part).map(|part| part.bytes)
        });
        unpack(parts.take(packed.parts as usize), self.limits.weight, &self.budget)
    }

    /// The node whose journal it is.
    pub fn node(&self) -> &str {
        self.journal.node()
    }

    /// What of it cannot be read.
    pub const fn damage(&self) -> Damage {
        self.damage
    }

    /// How many changes are older than those that are remembered: a journal of the usual size does not hold so many.
    pub const fn passed_over(&self) -> usize {
        self.passed_over
    }

    /// Since when states are known; none where none is.
    pub fn begins(&self) -> Option<u64> {
        self.changes.iter().find(|change| change.is_whole).map(|change| change.time)
    }

    /// The last time of which it says anything.
    pub fn ends(&self) -> u64 {
        let last = self.journal.records().map(|record| record.time).max();
        self.journal.alive().into_iter().chain(last).max().unwrap_or(0)
    }

    /// When its recorder was last alive.
    pub(super) fn last_alive(&self) -> Option<u64> {
        Some(self.ends()).filter(|&time| time > 0)
    }

    pub(super) fn last_number(&self) -> u64 {
        self.changes.iter().map(|change| change.number).max().unwrap_or(0)
    }

    /// The last state that is known.
    ///
    /// # Errors
    /// When there is none, or changes are lost.
    pub fn last_state(&self) -> Result<StateAt, HistoryError> {
        self.state_of(self.changes.len().checked_sub(1).ok_or(HistoryError::Empty)?)
    }

    /// The state that was in force at this time: of the last change that is not later. Where the clock was set back, the last one in the order
    /// in which they were made.
    ///
    /// # Errors
    /// When it is not known.
    pub fn state_at(&self, time: u64) -> Result<StateAt, HistoryError> {
        let begins = self.begins().ok_or(HistoryError::Empty)?;
        let at = self.changes.iter().rposition(|change| change.time <= time);
        let at = at.ok_or(HistoryError::Before { begins })?;
        let (change, next) = (&self.changes[at], self.changes.get(at + 1));
        if next.is_some_and(|next| next.number > change.number + 1) && time > change.time {
            // The lost one may have been in force by then.
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

    /// The time around the change at this place, which is not known.
    fn gap(&self, place: usize) -> Gap {
        let from = place.checked_sub(1).map_or(0, |before| self.changes[before].time);
        Gap { from, until: self.changes[place..].iter().find(|change| change.is_whole).map(|change| change.time) }
    }

    /// Makes the state the next one. Returns what that changes; none at the end. Where changes are lost, the next one that is known whole
    /// follows.
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
            // One that is too large with it is the last one that is known.
            let events = state.take(packed, change, self.limits.weight).ok()?;
            let is_other = !events.is_empty() || was_denying != state.is_denying || missing > 0;
            if is_other || packed.number != before {
                return Some(Step { time: packed.time, generation: packed.generation, events, merged, missing });
            }
        }
    }

    /// Whether nothing came after a state that [`follow`](Self::follow) led to and that is lost.
    pub fn is_last(&self, state: &StateAt) -> bool {
        state.number >= self.last_number()
    }

    /// The verdicts of a time, both ends included, in their order in the journal.
    pub fn verdicts(&self, from: u64, to: u64, each: impl FnMut(Verdict)) {
        verdicts(&self.journal, from, to, each);
    }

    /// What was not recorded of times that touch this one.
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

    /// When no vswitch ran at this time: since when, and until when, as far as that is known.
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

/// Keeps the newer half of what are too many.
fn forget<T>(all: &mut Vec<T>, most: usize, forgotten: &mut usize) {
    if all.len() >= most {
        *forgotten += most / 2;
        all.drain(..most / 2);
    }
}
