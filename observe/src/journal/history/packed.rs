//! Changes as stored in a journal: split into consecutive parts.

use super::super::reader::{Place, Record};
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
    pub(super) is_whole: bool,
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
                is_whole,
            };
            (Open { packed, sequence: record.sequence, read: 0 }, other.is_none())
        }
    };
    if part.part != now.read {
        return false;
    }
    now.read += 1;
    if now.read == now.packed.parts {
        changes.push(now.packed);
    } else {
        *open = Some(now);
    }
    is_next
}
