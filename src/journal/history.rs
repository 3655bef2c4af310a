//! What a journal says: the state at a time, what came after it, and what was seen.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bulkhead_control::attachments::Attachment;
use bulkhead_control::cache::Event;
use bulkhead_control::inventory::{Inventory, Key};
use bulkhead_control::object::{Object, PodName};

use super::format::Kind;
use super::reader::{Damage, Journal, Record};
use super::recorder::Run;
use super::state::{Change, Part, Settings, unpack};
use super::verdict::{Entries, LeftOut, Verdict};

/// A record of verdicts is written within this time of the first of them, in nanoseconds.
const SPREAD: u64 = 10_000_000_000;

/// What all changes that are looked at may unpack to: a hundred times the largest cluster. A bound, because a small file can unpack to anything.
const MOST_UNPACKED: u64 = 1 << 32;

/// Why there is no state at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HistoryError {
    /// No change was recorded at all.
    #[error("the journal holds no state")]
    Empty,
    /// It begins later.
    #[error("the journal begins later")]
    Before {
        /// When it begins, in nanoseconds since 1970.
        begins: u64,
    },
    /// What has changed in this time is lost.
    #[error("changes are missing in the journal")]
    Gap(Gap),
}

/// A time of which changes are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The last change before it, in nanoseconds since 1970.
    pub(crate) from: u64,
    /// When the state is known again; none where it is not.
    pub(crate) until: Option<u64>,
}

/// A change of the state, not unpacked.
#[derive(Clone, Debug)]
struct Packed<'a> {
    number: u64,
    time: u64,
    generation: u64,
    is_whole: bool,
    parts: Vec<&'a [u8]>,
}

/// A state as it was in force.
#[derive(Clone, Debug)]
pub(crate) struct StateAt {
    /// Of which of the changes it is.
    at: usize,
    number: u64,
    /// Since when, in nanoseconds since 1970.
    pub(crate) since: u64,
    /// By this generation.
    pub(crate) generation: u64,
    pub(crate) objects: Inventory,
    pub(crate) settings: Settings,
    pub(crate) attached: BTreeMap<PodName, Attachment>,
    /// Whether there was no state that made sense: nothing passed.
    pub(crate) is_denying: bool,
}

impl StateAt {
    fn take(&mut self, packed: &Packed<'_>, change: Change) -> Vec<(Event, Option<Object>)> {
        (self.number, self.since, self.generation) = (packed.number, packed.time, packed.generation);
        self.is_denying = change.is_denying;
        if let Some(settings) = change.settings {
            self.settings = settings;
        }
        if let Some(attached) = change.attached {
            self.attached = attached;
        }
        if !change.is_whole {
            let apply = |event: Event| (event.clone(), self.objects.apply(event));
            return change.events.into_iter().map(apply).collect();
        }
        let before = self.objects.clone();
        let objects = change.events.into_iter().filter_map(|event| match event {
            Event::Apply(object) => Some(object),
            _ => None,
        });
        let events = self.objects.replace(objects);
        let with_before = |event: Event| {
            let old = before.get(&Key::of_event(&event)).cloned();
            (event, old)
        };
        events.into_iter().map(with_before).collect()
    }
}

/// What came after a state.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// When it was in force, in nanoseconds since 1970.
    pub(crate) time: u64,
    /// By this generation.
    pub(crate) generation: u64,
    /// Objects that are there, other than before, or gone; each with what it was.
    pub(crate) events: Vec<(Event, Option<Object>)>,
    /// Changes that are told as one, because they came too soon; at least 1.
    pub(crate) merged: u64,
    /// Changes before it that are lost.
    pub(crate) missing: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct History<'a> {
    journal: Journal<'a>,
    changes: Vec<Packed<'a>>,
    runs: Vec<(u64, Run)>,
    damage: Damage,
    /// Bytes that may still be unpacked.
    budget: Cell<u64>,
}

impl<'a> History<'a> {
    /// What this journal says.
    pub(crate) fn of(journal: Journal<'a>) -> Self {
        let (mut changes, mut runs, mut damage) = (Vec::new(), Vec::new(), journal.damage());
        // The change whose parts are being read, and the segment of these.
        let mut open: Option<(Packed<'a>, u64, u32)> = None;
        for record in journal.records() {
            let kind = Kind::of(record.kind);
            match kind {
                Some(Kind::Change | Kind::Checkpoint) => {
                    let is_whole = kind == Some(Kind::Checkpoint);
                    damage.unknown += usize::from(!take_part(record, is_whole, &mut open, &mut changes));
                }
                Some(Kind::Run) => match serde_json::from_slice(record.payload) {
                    Ok(run) => runs.push((record.time, run)),
                    Err(_) => damage.unknown += 1,
                },
                Some(Kind::Name | Kind::Verdicts | Kind::LeftOut) => {}
                None => damage.unknown += 1,
            }
        }
        damage.unknown += verdicts(&journal, 0, u64::MAX, drop);
        Self { journal, changes, runs, damage, budget: Cell::new(MOST_UNPACKED) }
    }

    /// Unpacks a change; none where it is not understood.
    fn unpack(&self, packed: &Packed<'_>) -> Option<Change> {
        unpack(&packed.parts, &self.budget)
    }

    /// The node whose journal it is.
    pub(crate) fn node(&self) -> &str {
        self.journal.node()
    }

    /// What of it cannot be read.
    pub(crate) const fn damage(&self) -> Damage {
        self.damage
    }

    /// Since when states are known; none where none is.
    pub(crate) fn begins(&self) -> Option<u64> {
        self.changes.iter().find(|change| change.is_whole).map(|change| change.time)
    }

    /// The last time of which it says anything.
    pub(crate) fn ends(&self) -> u64 {
        let last = self.journal.records().iter().map(|record| record.time).max();
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
    pub(crate) fn last_state(&self) -> Result<StateAt, HistoryError> {
        self.state_of(self.changes.len().checked_sub(1).ok_or(HistoryError::Empty)?)
    }

    /// The state that was in force at this time: of the last change that is not later. Where the clock was set back, the last one in the order
    /// in which they were made.
    ///
    /// # Errors
    /// When it is not known.
    pub(crate) fn state_at(&self, time: u64) -> Result<StateAt, HistoryError> {
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
        };
        for (place, packed) in self.changes.iter().enumerate().take(at + 1).skip(whole) {
            let is_next = packed.is_whole || packed.number == state.number + 1;
            match self.unpack(packed).filter(|_| is_next) {
                Some(change) => drop(state.take(packed, change)),
                None => return Err(HistoryError::Gap(self.gap(place))),
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
    pub(crate) fn follow(&self, state: &mut StateAt) -> Option<Step> {
        loop {
            let at = state.at + 1;
            let packed = self.changes.get(at)?;
            state.at = at;
            let is_next = packed.number == state.number + 1;
            let missing = packed.number.saturating_sub(state.number.saturating_add(1));
            let Some(change) = self.unpack(packed).filter(|_| is_next || packed.is_whole) else { continue };
            let merged = change.merged.max(1);
            let (was_denying, before) = (state.is_denying, state.number);
            let events = state.take(packed, change);
            let is_other = !events.is_empty() || was_denying != state.is_denying || missing > 0;
            if is_other || packed.number != before {
                return Some(Step { time: packed.time, generation: packed.generation, events, merged, missing });
            }
        }
    }

    /// Whether nothing came after a state that [`follow`](Self::follow) led to and that is lost.
    pub(crate) fn is_last(&self, state: &StateAt) -> bool {
        state.number >= self.last_number()
    }

    /// The verdicts of a time, both ends included, in their order in the journal.
    pub(crate) fn verdicts(&self, from: u64, to: u64, each: impl FnMut(Verdict)) {
        verdicts(&self.journal, from, to, each);
    }
    /// What was not recorded of times that touch this one.
    pub(crate) fn left_out(&self, from: u64, to: u64) -> LeftOut {
        let told = self.journal.records().iter().filter(|record| Kind::of(record.kind) == Some(Kind::LeftOut));
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
    pub(crate) fn pause_at(&self, time: u64) -> Option<(u64, Option<u64>)> {
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

/// Gives the verdicts of a time to `each`. Returns how many records are not understood.
fn verdicts(journal: &Journal<'_>, from: u64, to: u64, mut each: impl FnMut(Verdict)) -> usize {
    let mut names: HashMap<u64, Arc<str>> = HashMap::new();
    let (mut sequence, mut unknown) = (0, 0);
    let near = from.saturating_sub(SPREAD)..=to.saturating_add(SPREAD);
    for record in journal.records() {
        if record.sequence != sequence {
            sequence = record.sequence;
            names.clear();
        }
        match Kind::of(record.kind) {
            Some(Kind::Name) => match record.payload.split_first_chunk() {
                Some((number, text)) => {
                    names.insert(u64::from_le_bytes(*number), String::from_utf8_lossy(text).into());
                }
                None => unknown += 1,
            },
            Some(Kind::Verdicts) if near.contains(&record.time) => {
                let mut entries = Entries::new(record.payload, record.time);
                while let Some(entry) = entries.next(&|number| names.get(&number).cloned()) {
                    match entry {
                        Ok(verdict) if (from..=to).contains(&verdict.time) => each(verdict),
                        Ok(_) => {}
                        // Where the next one begins is not known.
                        Err(()) => {
                            unknown += 1;
                            break;
                        }
                    }
                }
            }
            _ => {}
        }
    }
    unknown
}

/// Takes a part of a change. False where one is lost by it.
fn take_part<'a>(
    record: &Record<'a>,
    is_whole: bool,
    open: &mut Option<(Packed<'a>, u64, u32)>,
    changes: &mut Vec<Packed<'a>>,
) -> bool {
    let Some(part) = Part::read(record.payload) else { return false };
    let before = open.take();
    let (mut packed, is_next) = match before {
        Some((packed, sequence, parts))
            if part.part > 0
                && packed.number == part.number
                && packed.is_whole == is_whole
                && packed.parts.len() == part.part as usize
                && (sequence, parts) == (record.sequence, part.parts) =>
        {
            (packed, true)
        }
        // One that is begun and not ended is lost, and known by its number.
        other => {
            let packed = Packed {
                number: part.number,
                time: record.time,
                generation: record.generation,
                is_whole,
                parts: Vec::new(),
            };
            (packed, other.is_none())
        }
    };
    if part.part as usize != packed.parts.len() {
        return false;
    }
    packed.parts.push(part.bytes);
    if packed.parts.len() == part.parts as usize {
        changes.push(packed);
    } else {
        *open = Some((packed, record.sequence, part.parts));
    }
    is_next
}
