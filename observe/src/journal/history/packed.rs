//! Changes as stored in a journal: split into consecutive parts.

use std::io::{self, Read};

use super::super::format::Kind;
use super::super::reader::{Journal, Place, Record, Walk};
use super::super::state::Part;

/// A compressed change of the state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed {
    pub(super) number: u64,
    pub(super) time: u64,
    pub(super) generation: u64,
    /// Position of its first part. The others follow.
    pub(super) place: Place,
    pub(super) parts: u32,
    /// Total size of its parts, in bytes.
    pub(super) bytes: u32,
    pub(super) is_whole: bool,
}

/// Reads the parts of a change one after the other.
pub(super) struct Parts<'a> {
    /// `None` if the segment does not exist.
    walk: Option<Walk<'a>>,
    /// Number of parts that follow.
    left: u32,
    /// The current part, and the number of its bytes that were read.
    part: Vec<u8>,
    read: usize,
}

impl<'a> Parts<'a> {
    pub(super) fn of(journal: &'a Journal<'a>, packed: &Packed) -> Self {
        Self { walk: journal.records_from(packed.place), left: packed.parts, part: Vec::new(), read: 0 }
    }

    /// Copies the next part. Returns false at the end.
    fn advance(&mut self) -> bool {
        let Some(walk) = self.walk.as_mut().filter(|_| self.left > 0) else { return false };
        while let Some(record) = walk.next() {
            if !matches!(Kind::of(record.kind), Some(Kind::Change | Kind::Checkpoint)) {
                continue;
            }
            let Some(part) = Part::read(record.payload) else { continue };
            self.part.clear();
            self.part.extend_from_slice(part.bytes);
            (self.left, self.read) = (self.left - 1, 0);
            return true;
        }
        false
    }
}

impl Read for Parts<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.read == self.part.len() {
            if !self.advance() {
                return Ok(0);
            }
        }
        let length = (&self.part[self.read..]).read(into)?;
        self.read += length;
        Ok(length)
    }
}

/// A change whose parts are not all read yet.
#[derive(Debug)]
pub(super) struct Open {
    packed: Packed,
    sequence: u64,
    /// Number of the change's parts read so far.
    read: u32,
}

/// Adds a part of a change. Returns false if that reveals a lost part.
pub(super) fn take_part(
    record: &Record<'_>,
    is_whole: bool,
    open: &mut Option<Open>,
    changes: &mut Vec<Packed>,
) -> bool {
    let Some(part) = Part::read(record.payload) else { return false };
    let (mut now, is_next) = match open.take() {
        Some(open)
            if part.part > 0
                && open.packed.number == part.number
                && open.packed.is_whole == is_whole
                && open.read == part.part
                && (open.sequence, open.packed.parts) == (record.sequence, part.parts) =>
        {
            (open, true)
        }
        // An unfinished change is lost. The gap in the numbers shows it.
        other => {
            let packed = Packed {
                number: part.number,
                time: record.time,
                generation: record.generation,
                place: record.place,
                parts: part.parts,
                bytes: 0,
                is_whole,
            };
            (Open { packed, sequence: record.sequence, read: 0 }, other.is_none())
        }
    };
    if part.part != now.read {
        return false;
    }
    now.read += 1;
    now.packed.bytes = now.packed.bytes.saturating_add(u32::try_from(part.bytes.len()).unwrap_or(u32::MAX));
    if now.read == now.packed.parts {
        changes.push(now.packed);
    } else {
        *open = Some(now);
    }
    is_next
}
