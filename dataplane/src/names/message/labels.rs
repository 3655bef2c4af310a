//! Names on the wire (RFC 1035 sections 3.1 and 4.1.4).

use super::{Fault, HEADER_LEN};

/// Longest name in bytes on the wire, with its length bytes and the root's zero byte (RFC 1035 section 2.3.4).
pub(super) const NAME_MAX: usize = 255;

/// A walk over the labels of a name, from the first label to the root. Follows compression pointers (RFC 1035 section 4.1.4).
pub(super) struct Labels<'a> {
    /// The bytes that the walk may read. A pointer narrows them to those before the run, so that no walk can loop.
    bytes: &'a [u8],
    /// Start of the current run: consecutive labels that no pointer interrupts.
    run: usize,
    /// Offset of the next length byte or pointer. Stays at the root's byte after the last label.
    pub(super) position: usize,
    /// Bytes of the labels so far, with their length bytes.
    len: usize,
    /// Whether the walk has followed a pointer.
    has_jumped: bool,
    /// Cost of the walk: 1 for each label or pointer, and 1 more for each 8 bytes of a label. At most 8,346, because pointers lead
    /// backwards within the first 16 KiB.
    pub(super) steps: usize,
}

impl<'a> Labels<'a> {
    pub(super) const fn at(bytes: &'a [u8], start: usize) -> Self {
        Self { bytes, run: start, position: start, len: 0, has_jumped: false, steps: 0 }
    }

    /// Returns the next label. `None` at the root.
    pub(super) fn next_label(&mut self) -> Result<Option<&'a [u8]>, Fault> {
        let len = self.follow_pointers()?;
        self.steps += 1 + len / 8;
        if len == 0 {
            return Ok(None);
        }
        let start = self.position + 1;
        let label = self.bytes.get(start..start + len).ok_or(self.end_fault())?;
        self.position = start + len;
        self.len += 1 + len;
        if self.len >= NAME_MAX { Err(Fault::MalformedName) } else { Ok(Some(label)) }
    }

    /// Follows the pointers at the current position to a label or the root. Returns the length of that label, 0 for the root.
    pub(super) fn follow_pointers(&mut self) -> Result<usize, Fault> {
        loop {
            let first = self.byte(self.position)?;
            match first {
                0..=0x3f => return Ok(usize::from(first)),
                0x40..=0xbf => return Err(Fault::MalformedName),
                0xc0.. => self.follow(u16::from_be_bytes([first & 0x3f, self.byte(self.position + 1)?]))?,
            }
        }
    }

    /// Continues the walk at offset `target`, which must be after the header and before the current run.
    fn follow(&mut self, target: u16) -> Result<(), Fault> {
        let target = usize::from(target);
        if !(HEADER_LEN..self.run).contains(&target) {
            return Err(Fault::BadPointer);
        }
        self.bytes = self.bytes.get(..self.run).ok_or(Fault::BadPointer)?;
        (self.run, self.position) = (target, target);
        self.has_jumped = true;
        self.steps += 1;
        Ok(())
    }

    fn byte(&self, position: usize) -> Result<u8, Fault> {
        self.bytes.get(position).copied().ok_or(self.end_fault())
    }

    /// Returns the fault of a name that runs past the bytes that the walk may read.
    const fn end_fault(&self) -> Fault {
        if self.has_jumped { Fault::BadPointer } else { Fault::Truncated }
    }
}

/// Returns the offset after the name at `start`. A pointer ends the name and is not followed. Its second byte may be missing.
pub(super) fn name_end(bytes: &[u8], start: usize) -> Result<usize, Fault> {
    let mut position = start;
    loop {
        let first = *bytes.get(position).ok_or(Fault::Truncated)?;
        position += match first {
            0 => return Ok(position + 1),
            1..=0x3f => 1 + usize::from(first),
            0x40..=0xbf => return Err(Fault::MalformedName),
            0xc0.. => return Ok(position + 2),
        };
        if position - start >= NAME_MAX {
            return Err(Fault::MalformedName);
        }
    }
}
