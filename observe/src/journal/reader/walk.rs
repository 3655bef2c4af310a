//! Walks over the records of a segment.

use super::super::format::{RECORD_HEAD, RecordHead, SEGMENT_HEAD};
use super::{Damage, Journal, Place, Record, Segment};

/// Maximum number of bytes of a segment in memory: several records of maximum length.
const WINDOW: usize = 1 << 18;

/// Number of bytes that a walk reads first: a page, because many walks read only one record. Each further read is twice as long, up to
/// [`WINDOW`].
const FIRST: usize = 1 << 12;

/// The part of a segment that is in memory.
#[derive(Debug)]
struct Window<'a> {
    journal: &'a Journal<'a>,
    segment: Segment,
    bytes: Vec<u8>,
    /// Offset of `bytes` in the segment.
    from: usize,
}

impl Window<'_> {
    /// Returns up to `length` bytes of the segment. Fewer at its end, or if the operating system cannot read it.
    fn part(&mut self, at: usize, length: usize) -> &[u8] {
        let length = length.min(self.segment.length.saturating_sub(at));
        if at < self.from || at + length > self.from + self.bytes.len() {
            self.fill(at, length);
        }
        self.held(at, length)
    }

    /// Returns up to `length` bytes of the segment, without reading them.
    fn held(&self, at: usize, length: usize) -> &[u8] {
        let held = self.bytes.get(at - self.from..).unwrap_or_default();
        &held[..length.min(held.len())]
    }

    /// Reads the bytes from `at` on: at least `needed`, unless these exceed the segment or [`WINDOW`].
    fn fill(&mut self, at: usize, needed: usize) {
        let length = (self.bytes.len() * 2).max(needed).clamp(FIRST, WINDOW);
        self.bytes.resize(length.min(self.segment.length.saturating_sub(at)), 0);
        self.from = at;
        match self.journal.input.read(self.segment.start + at, &mut self.bytes) {
            Ok(read) => self.bytes.truncate(read),
            Err(error) => {
                self.bytes.clear();
                self.journal.fault.set(Some(error.kind()));
            }
        }
    }
}

/// Walks over the records of a segment.
#[derive(Debug)]
pub(in super::super) struct Walk<'a> {
    window: Window<'a>,
    place: u32,
    /// Offset at which the next record may start.
    at: usize,
    /// Offset of the end of the last valid record.
    end: usize,
    /// Start of the current gap. `None` outside a gap.
    skipped: Option<usize>,
    /// Gaps between records, their bytes, and the start of the first.
    places: usize,
    bytes: usize,
    first: Option<usize>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(journal: &'a Journal<'a>, place: u32, segment: Segment, at: usize) -> Self {
        let window = Window { journal, segment, bytes: Vec::new(), from: at };
        Self { window, place, at, end: SEGMENT_HEAD, skipped: None, places: 0, bytes: 0, first: None }
    }

    /// Returns the offset of the end of the last valid record.
    pub(super) const fn end(&self) -> usize {
        self.end
    }

    /// Adds the gaps to `damage`.
    pub(super) fn tell_damage(mut self, is_newest: bool, damage: &mut Damage) {
        // A length of 0 follows the last record, then old data. A lost page is zero too, so search for records after it.
        let next = self.window.part(self.end, 4);
        let is_over = next.len() < 4 || next == [0; 4];
        match self.skipped {
            Some(_) if is_over => {}
            // No valid record follows. In the newest segment, the record was being written.
            Some(_) if is_newest => damage.is_torn = true,
            Some(start) => self.add_gap(start, self.window.segment.length),
            None => {}
        }
        damage.places += self.places;
        damage.bytes += self.bytes;
        if let Some(first) = self.first {
            damage.is_at(self.window.segment.start + first);
        }
    }

    fn add_gap(&mut self, start: usize, end: usize) {
        self.places += 1;
        self.bytes += end - start;
        self.first.get_or_insert(start);
    }

    /// Returns the next record. `None` at the end of the segment.
    pub(in super::super) fn next(&mut self) -> Option<Record<'_>> {
        let (start, head) = self.find()?;
        let RecordHead { kind, time, generation, len, .. } = head;
        let place = Place { segment: self.place, at: u32::try_from(start).unwrap_or(u32::MAX) };
        let Segment { sequence, start: segment, .. } = self.window.segment;
        let payload = self.window.held(start + RECORD_HEAD, len);
        Some(Record { place, offset: segment + start, sequence, kind, time, generation, payload })
    }

    /// Moves behind the next valid record, whose payload is then in the window. Returns its offset in the segment and its header.
    fn find(&mut self) -> Option<(usize, RecordHead)> {
        let sequence = self.window.segment.sequence;
        while self.at + 8 <= self.window.segment.length {
            let start = self.at;
            let bytes = self.window.part(start, RECORD_HEAD);
            if bytes.is_empty() {
                // The file has become shorter, or cannot be read.
                return None;
            }
            let head = RecordHead::read(bytes, sequence);
            let is_valid = head.is_some_and(|head| {
                let payload = self.window.part(start + RECORD_HEAD, head.len);
                payload.len() == head.len && crc32fast::hash(payload) == head.payload_sum
            });
            // If the length is valid, the next record follows.
            self.at += head.map_or(8, RecordHead::size);
            match head.filter(|_| is_valid) {
                Some(head) => {
                    if let Some(skipped) = self.skipped.take() {
                        self.add_gap(skipped, start);
                    }
                    self.end = self.at;
                    return Some((start, head));
                }
                None => {
                    self.skipped.get_or_insert(start);
                }
            }
        }
        None
    }
}
