//! Reads the verdicts of a period.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::format::{Kind, LONGEST_NAME};
use super::super::reader::Journal;
use super::super::verdict::{Entries, Verdict};

/// Maximum time between the verdicts of a record, in nanoseconds.
const SPREAD: u64 = 10_000_000_000;

/// Maximum number and total bytes of names in a segment. A busy node has some thousands, of ports, policies and reasons.
const MOST_NAMES: usize = 1 << 17;
const MOST_NAME_BYTES: usize = 1 << 25;

/// Calls `each` for the verdicts of a period. Returns the number of records that could not be parsed.
pub(super) fn verdicts(journal: &Journal<'_>, from: u64, to: u64, mut each: impl FnMut(Verdict)) -> usize {
    let mut names: HashMap<u64, Arc<str>> = HashMap::new();
    let (mut sequence, mut unknown, mut name_bytes) = (0, 0, 0);
    let near = from.saturating_sub(SPREAD)..=to.saturating_add(SPREAD);
    for record in journal.records() {
        if record.sequence != sequence {
            sequence = record.sequence;
            (names, name_bytes) = (HashMap::new(), 0);
        }
        match Kind::of(record.kind) {
            Some(Kind::Name) => match record.payload.split_first_chunk() {
                Some((number, text))
                    if text.len() <= LONGEST_NAME && names.len() < MOST_NAMES && name_bytes < MOST_NAME_BYTES =>
                {
                    let text = String::from_utf8_lossy(text);
                    name_bytes += text.len();
                    names.insert(u64::from_le_bytes(*number), text.into());
                }
                _ => unknown += 1,
            },
            Some(Kind::Verdicts) if near.contains(&record.time) => {
                let mut entries = Entries::new(record.payload, record.time);
                while let Some(entry) = entries.next(&|number| names.get(&number).cloned()) {
                    match entry {
                        Ok(verdict) if (from..=to).contains(&verdict.time) => each(verdict),
                        Ok(_) => {}
                        // The start of the next entry is unknown.
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
