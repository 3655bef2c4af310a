//! Reads the verdicts of a period.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::super::format::{Kind, LONGEST_NAME};
use super::super::reader::Record;
use super::super::verdict::{Entries, Verdict};

/// Maximum time between the verdicts of a record, in nanoseconds.
const SPREAD: u64 = 10_000_000_000;

/// Maximum number and total bytes of names in a segment. A busy node has some thousands, of ports, policies and reasons.
const MOST_NAMES: usize = 1 << 16;
const MOST_NAME_BYTES: usize = 1 << 23;

/// Reads the verdicts of a period from the records, which come in recorded order.
pub(super) struct Verdicts {
    period: RangeInclusive<u64>,
    /// The period, and as much around it as verdicts may be away from their record's time.
    near: RangeInclusive<u64>,
    /// Names of the segment with this sequence number, and their total length in bytes.
    names: HashMap<u64, Arc<str>>,
    sequence: u64,
    name_bytes: usize,
}

impl Verdicts {
    pub(super) fn of(period: RangeInclusive<u64>) -> Self {
        let near = period.start().saturating_sub(SPREAD)..=period.end().saturating_add(SPREAD);
        Self { period, near, names: HashMap::new(), sequence: 0, name_bytes: 0 }
    }

    /// Calls `each` for the verdicts in a record. Returns false if the record could not be parsed.
    pub(super) fn take(&mut self, record: &Record<'_>, mut each: impl FnMut(Verdict)) -> bool {
        if record.sequence != self.sequence {
            self.sequence = record.sequence;
            (self.names, self.name_bytes) = (HashMap::new(), 0);
        }
        match Kind::of(record.kind) {
            Some(Kind::Name) => self.name(record.payload),
            Some(Kind::Verdicts) if self.near.contains(&record.time) => {
                let mut entries = Entries::new(record.payload, record.time);
                while let Some(entry) = entries.next(&|number| self.names.get(&number).cloned()) {
                    // Behind an entry that cannot be decoded, the start of the next one is unknown.
                    let Ok(verdict) = entry else { return false };
                    if self.period.contains(&verdict.time) {
                        each(verdict);
                    }
                }
                true
            }
            _ => true,
        }
    }

    fn name(&mut self, payload: &[u8]) -> bool {
        let Some((number, text)) = payload.split_first_chunk() else { return false };
        if text.len() > LONGEST_NAME || self.names.len() >= MOST_NAMES || self.name_bytes >= MOST_NAME_BYTES {
            return false;
        }
        let text = String::from_utf8_lossy(text);
        self.name_bytes += text.len();
        self.names.insert(u64::from_le_bytes(*number), text.into());
        true
    }
}
