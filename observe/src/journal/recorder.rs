//! Writes records, and a checkpoint at the start of each segment.

use std::collections::HashMap;
use std::sync::Arc;

use bulkhead_control::cache::Event;

use super::format::{Kind, LONGEST_NAME, LONGEST_PAYLOAD, Layout, Memory, Run};
use super::history::{History, StateAt};
use super::reader::Damage;
use super::state::{Change, Known, pack};
use super::verdict::{LeftOut, Verdict};
use super::writer::{Writer, WriterError};

/// Why something could not be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The journal has no room.
    #[error(transparent)]
    Writer(#[from] WriterError),
    /// An object could not be encoded: an internal error.
    #[error("an object cannot be written: {0}")]
    Object(#[from] serde_json::Error),
    /// The change is larger than a segment.
    #[error("the state of {objects} objects takes {bytes} bytes, more than a segment of the journal has")]
    TooLarge {
        /// Number of objects in the state.
        objects: usize,
        /// Size of the change in bytes.
        bytes: usize,
    },
}

/// The end of a journal that an earlier recorder wrote.
struct Found {
    damage: Damage,
    alive: Option<u64>,
    /// Sequence number of the last change.
    number: u64,
    /// The last state. `None` if unknown.
    state: Option<StateAt>,
}

impl Found {
    fn of(history: &History<'_>) -> Self {
        Self {
            damage: history.damage(),
            alive: history.last_alive(),
            number: history.last_number(),
            state: history.last_state().ok(),
        }
    }
}

/// Records the state and verdicts of a vswitch.
#[derive(Debug)]
pub struct Recorder<M> {
    writer: Writer<M>,
    known: Known,
    /// Whether `known` is the whole state. False if the last changes of a continued journal are lost: no checkpoint is written before the
    /// next whole state, because it would omit unknown objects.
    is_known: bool,
    /// Sequence number of the last change.
    number: u64,
    generation: u64,
    /// Numbers of names in the current segment.
    names: HashMap<Arc<str>, u64>,
    /// Whether the last checkpoint was too large to be written.
    is_too_large: bool,
    /// Number of records that this process has written.
    records: u64,
}

impl<M: Memory> Recorder<M> {
    /// Continues the journal in the memory, or creates one. Returns the damage of a continued journal.
    ///
    /// # Errors
    /// If the memory holds another journal, or has no room.
    pub fn open(memory: M, layout: Layout, node: &str, now: u64) -> Result<(Self, Option<Damage>), WriterError> {
        let (writer, found) = Writer::open(memory, layout, node, now, Found::of)?;
        let mut recorder = Self {
            writer,
            known: Known::default(),
            is_known: true,
            number: 0,
            generation: 0,
            names: HashMap::new(),
            is_too_large: false,
            records: 0,
        };
        let Some(Found { damage, alive, number, state }) = found else {
            recorder.start(now, None)?;
            return Ok((recorder, None));
        };
        recorder.number = number;
        recorder.is_known = number == 0 || state.is_some();
        if let Some(state) = state {
            // Later changes are recorded relative to this state.
            let events = state.objects.objects().cloned().map(Event::Apply).collect();
            let (settings, attached) = (Some(state.settings), Some(state.attached));
            let change = Change { is_whole: true, is_denying: state.is_denying, merged: 1, settings, attached, events };
            recorder.known.take(&change).map_err(|error| WriterError::Refused(error.to_string()))?;
        }
        recorder.start(now, alive)?;
        Ok((recorder, Some(damage)))
    }

    fn start(&mut self, now: u64, alive: Option<u64>) -> Result<(), WriterError> {
        self.run(now, Run { is_start: true, alive }).map_err(|error| match error {
            RecordError::Writer(error) => error,
            other => WriterError::Refused(other.to_string()),
        })
    }

    /// Records an orderly stop of the vswitch.
    ///
    /// # Errors
    /// If there is no room.
    pub fn stop(&mut self, now: u64) -> Result<(), RecordError> {
        self.alive(now);
        self.run(now, Run { is_start: false, alive: None })
    }

    fn run(&mut self, now: u64, run: Run) -> Result<(), RecordError> {
        let payload = serde_json::to_vec(&run)?;
        self.write(now, &[(Kind::Run, payload)])
    }

    /// Updates the time at which the vswitch was last alive.
    pub fn alive(&mut self, now: u64) {
        self.writer.alive(now);
    }

    /// Returns the memory that the recorder writes to.
    pub fn memory(&self) -> &M {
        self.writer.memory()
    }

    /// Returns the number of records that this process has written.
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Returns the number of objects if the state is too large for a checkpoint in each segment (see the module above), else `None`.
    pub fn is_too_large(&self) -> Option<usize> {
        self.is_too_large.then(|| self.known.len())
    }

    /// Records a change of the state that took effect at `time` with this generation.
    ///
    /// # Errors
    /// If there is no room. The change is then part of the next checkpoint.
    pub fn change(&mut self, time: u64, generation: u64, change: &Change) -> Result<(), RecordError> {
        let (lines, is_whole) = self.known.take(change)?;
        self.is_known |= change.is_whole;
        let kind = if is_whole { Kind::Checkpoint } else { Kind::Change };
        self.number += 1;
        self.generation = generation;
        let Some(payloads) = pack(self.number, &lines) else {
            return Err(RecordError::TooLarge { objects: self.known.len(), bytes: lines.len() });
        };
        if self.writer.fits(payloads.iter().map(Vec::len)) {
            return self.append(time, payloads.into_iter().map(|payload| (kind, payload)));
        }
        // The checkpoint includes it.
        if self.rotate(time)? {
            return Ok(());
        }
        if !self.writer.fits(payloads.iter().map(Vec::len)) {
            let bytes = payloads.iter().map(Vec::len).sum();
            return Err(RecordError::TooLarge { objects: self.known.len(), bytes });
        }
        self.append(time, payloads.into_iter().map(|payload| (kind, payload)))
    }

    /// Records verdicts.
    ///
    /// # Errors
    /// If there is no room.
    pub fn verdicts(&mut self, time: u64, verdicts: &[Verdict]) -> Result<(), RecordError> {
        // Each verdict is well below 256 bytes.
        for verdicts in verdicts.chunks(LONGEST_PAYLOAD / 256) {
            let records = self.encode(time, verdicts);
            if self.writer.fits(records.iter().map(|(_, payload)| payload.len())) {
                self.append(time, records.into_iter())?;
            } else {
                // Encode again, because the new segment has no names yet.
                self.rotate(time)?;
                let records = self.encode(time, verdicts);
                self.append(time, records.into_iter())?;
            }
        }
        Ok(())
    }

    /// Records how much was not recorded.
    ///
    /// # Errors
    /// If there is no room.
    pub fn left_out(&mut self, time: u64, left_out: LeftOut) -> Result<(), RecordError> {
        let payload = serde_json::to_vec(&left_out)?;
        self.write(time, &[(Kind::LeftOut, payload)])
    }

    /// Encodes new names, then the verdicts.
    fn encode(&mut self, time: u64, verdicts: &[Verdict]) -> Vec<(Kind, Vec<u8>)> {
        let (mut records, mut entries) = (Vec::new(), Vec::new());
        for verdict in verdicts {
            let name = |text: &Arc<str>| {
                if let Some(&number) = self.names.get(text) {
                    return number;
                }
                let number = self.names.len() as u64 + 1;
                let mut payload = number.to_le_bytes().to_vec();
                // Kubernetes names have a few hundred bytes. An isolation by many policies is truncated.
                let end = (0..=text.len().min(LONGEST_NAME)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
                payload.extend_from_slice(&text.as_bytes()[..end]);
                records.push((Kind::Name, payload));
                self.names.insert(Arc::clone(text), number);
                number
            };
            verdict.write(time, name, &mut entries);
        }
        records.push((Kind::Verdicts, entries));
        records
    }

    fn write(&mut self, time: u64, records: &[(Kind, Vec<u8>)]) -> Result<(), RecordError> {
        if !self.writer.fits(records.iter().map(|(_, payload)| payload.len())) {
            self.rotate(time)?;
        }
        self.append(time, records.iter().cloned())
    }

    fn append(&mut self, time: u64, records: impl Iterator<Item = (Kind, Vec<u8>)>) -> Result<(), RecordError> {
        for (kind, payload) in records {
            let appended = self.writer.append(kind, time, self.generation, &payload);
            let bytes = payload.len();
            appended.map_err(|_| RecordError::TooLarge { objects: self.known.len(), bytes })?;
            self.records += 1;
        }
        Ok(())
    }

    /// Starts a segment, with a checkpoint if the state is known. Returns whether a checkpoint was written.
    fn rotate(&mut self, time: u64) -> Result<bool, RecordError> {
        let is_first = self.writer.is_empty();
        self.writer.rotate(time)?;
        self.names.clear();
        if is_first || self.number == 0 || !self.is_known {
            return Ok(false);
        }
        let lines = self.known.whole()?;
        let payloads = pack(self.number, &lines);
        let limit = self.writer.capacity() / 2;
        let fits = |payloads: &Vec<Vec<u8>>| payloads.iter().map(Vec::len).sum::<usize>() <= limit;
        let payloads = payloads.filter(fits);
        self.is_too_large = payloads.is_none();
        let Some(payloads) = payloads else { return Ok(false) };
        self.append(time, payloads.into_iter().map(|payload| (Kind::Checkpoint, payload)))?;
        Ok(true)
    }
}
