//! Appends records to the ring of segments.

use super::format::{
    FileHead, HEADER, Kind, LONGEST_PAYLOAD, Layout, Memory, RECORD_HEAD, RecordHead, SEGMENT_HEAD, SegmentHead, alive,
    size_of_record,
};
use super::history::History;

/// Why the journal cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriterError {
    /// The memory holds something other than this node's journal of this size. The memory was not changed.
    #[error("{0}")]
    Refused(String),
    /// The file cannot grow.
    #[error("the journal has no room for its first segment")]
    NoRoom,
}

/// The record does not fit into the current segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// Writes records. Needs exclusive access to the memory.
#[derive(Debug)]
pub(super) struct Writer<M> {
    memory: M,
    layout: Layout,
    /// Current segment. `None` before the first one.
    segment: Option<usize>,
    sequence: u64,
    /// Offset of the next record in the segment.
    at: usize,
    /// Number of segments that have room.
    most: usize,
}

impl<M: Memory> Writer<M> {
    /// Continues the journal in the memory, and returns the result of `look`; or creates one if the memory starts with zeros.
    ///
    /// # Errors
    /// If the memory holds another journal, or has no room.
    pub(super) fn open<T>(
        memory: M,
        layout: Layout,
        node: &str,
        now: u64,
        look: impl FnOnce(&History<'_>) -> T,
    ) -> Result<(Self, Option<T>), WriterError> {
        let mut writer = Self { memory, layout, segment: None, sequence: 0, at: 0, most: layout.segments };
        let bytes = writer.memory.bytes();
        if bytes.len() < layout.bytes() {
            return Err(WriterError::NoRoom);
        }
        if bytes[..HEADER].iter().all(|&byte| byte == 0) {
            if !writer.memory.grow(0..HEADER) {
                return Err(WriterError::NoRoom);
            }
            let head = FileHead { layout, node: node.to_owned(), made: now };
            writer.memory.put(0, &head.bytes());
            return Ok((writer, None));
        }
        let refused = |why: String| WriterError::Refused(why);
        let journal = History::open(bytes).map_err(|error| refused(error.to_string()))?;
        if journal.node() != node {
            return Err(refused(format!("the journal belongs to node `{}`", journal.node())));
        }
        if journal.layout() != layout {
            return Err(refused(format!("the journal was created with {} bytes", journal.layout().bytes())));
        }
        let (newest, found) = (journal.newest(), look(&journal));
        if let Some((place, sequence, end)) = newest {
            (writer.segment, writer.sequence, writer.at) = (Some(place), sequence, end);
        }
        Ok((writer, Some(found)))
    }

    pub(super) fn memory(&self) -> &M {
        &self.memory
    }

    /// Updates the time at which the recorder was last alive.
    pub(super) fn alive(&mut self, time: u64) {
        let (at, bytes) = alive(time);
        self.memory.put(at, &bytes);
    }

    /// Whether nothing was written yet.
    pub(super) const fn is_empty(&self) -> bool {
        self.segment.is_none()
    }

    /// Bytes of a segment available for records.
    pub(super) const fn capacity(&self) -> usize {
        self.layout.segment - SEGMENT_HEAD
    }

    /// Whether records with these payload lengths fit into the current segment.
    pub(super) fn fits(&self, payloads: impl Iterator<Item = usize>) -> bool {
        let size: usize = payloads.map(size_of_record).sum();
        self.segment.is_some() && self.at + size <= self.layout.segment
    }

    /// Appends a record. Writes its length last, so that an interrupted write leaves the journal intact.
    pub(super) fn append(&mut self, kind: Kind, time: u64, generation: u64, payload: &[u8]) -> Result<(), Full> {
        debug_assert!((1..=LONGEST_PAYLOAD).contains(&payload.len()));
        let Some(segment) = self.segment.filter(|_| self.fits([payload.len()].into_iter())) else { return Err(Full) };
        let start = self.layout.at(segment).start + self.at;
        let payload_sum = crc32fast::hash(payload);
        let head = RecordHead { len: payload.len(), kind: kind as u8, payload_sum, time, generation };
        let bytes = head.bytes(self.sequence);
        self.end_at(segment, self.at + head.size());
        self.memory.put(start + RECORD_HEAD, payload);
        self.memory.put(start + 8, &bytes[8..]);
        self.memory.put(start, &bytes[..8]);
        self.at += head.size();
        Ok(())
    }

    /// Starts the next segment and discards its old contents.
    ///
    /// # Errors
    /// If no segment has room.
    pub(super) fn rotate(&mut self, time: u64) -> Result<(), WriterError> {
        let next = self.segment.map_or(0, |segment| segment + 1);
        let place = if next >= self.most { 0 } else { next };
        let place = match self.memory.grow(self.layout.at(place)) {
            true => place,
            false if place == 0 => return Err(WriterError::NoRoom),
            // The file cannot grow to its full size, so reuse the existing segments.
            false => {
                self.most = place;
                0
            }
        };
        let start = self.layout.at(place).start;
        // Invalidate old records first.
        self.memory.put(start, &[0; 8]);
        self.end_at(place, SEGMENT_HEAD);
        self.sequence += 1;
        let bytes = SegmentHead { sequence: self.sequence, time }.bytes();
        self.memory.put(start + 8, &bytes[8..]);
        self.memory.put(start, &bytes[..8]);
        (self.segment, self.at) = (Some(place), SEGMENT_HEAD);
        Ok(())
    }

    /// Marks the end of the records at this offset.
    fn end_at(&mut self, segment: usize, at: usize) {
        let room = self.layout.at(segment);
        let end = room.start + at;
        if end + 4 <= room.end {
            self.memory.put(end, &[0; 4]);
        }
    }
}
