//! Finds the records of a journal with arbitrary content.
//!
//! Keeps neither bytes nor records: each query walks over the segments through a small window ([`walk`]). A gigabyte can hold 25 million records.

mod walk;

use std::cell::Cell;
use std::io;

use super::format::{FileHead, HEADER, HeadFault, Layout, SEGMENT_HEAD, SegmentHead, VERSION, last_alive, sequence_of};
use super::input::Input;
pub(super) use walk::Walk;

/// Why a file cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The file is not a journal.
    #[error("the file is not a vswitch's journal")]
    Foreign,
    /// The journal has this version of the format, which this program cannot read.
    #[error("the journal has version {0}, this program reads version {VERSION}")]
    Version(u32),
    /// The first page is damaged, which describes the layout of the rest.
    #[error("the header of the journal is damaged")]
    Damaged,
    /// The operating system cannot read the file.
    #[error("the journal cannot be read: {0}")]
    Unreadable(io::ErrorKind),
}

/// Unreadable parts of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Damage {
    /// Segments with an invalid header, except empty ones.
    pub segments: usize,
    /// Gaps between records with invalid content.
    pub places: usize,
    /// Bytes in these gaps.
    pub bytes: usize,
    /// Valid records whose content could not be parsed.
    pub unknown: usize,
    /// Offset in the file of the first unreadable part, in bytes. `None` without damage.
    pub first: Option<usize>,
    /// Whether the process died while writing the last record.
    pub is_torn: bool,
}

impl Damage {
    /// Whether recorded data was lost.
    pub const fn is_loss(self) -> bool {
        self.segments + self.places + self.unknown > 0
    }

    /// Adds other damage of the same journal.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            segments: self.segments + other.segments,
            places: self.places + other.places,
            bytes: self.bytes + other.bytes,
            unknown: self.unknown + other.unknown,
            first: [self.first, other.first].into_iter().flatten().min(),
            is_torn: self.is_torn || other.is_torn,
        }
    }

    /// Adds a record at this offset in the file that could not be parsed.
    pub(super) fn is_unknown(&mut self, at: usize) {
        self.unknown += 1;
        self.is_at(at);
    }

    /// Adds the offset in the file of an unreadable part.
    pub(super) fn is_at(&mut self, at: usize) {
        self.first = Some(self.first.map_or(at, |first| first.min(at)));
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { segments, places, bytes, unknown, .. } = self;
        write!(f, "{segments} segments, {places} places ({bytes} bytes) and {unknown} records of it cannot be read")?;
        self.first.map_or(Ok(()), |first| write!(f, ", the first at byte {first}"))
    }
}

/// Position of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Index of the readable segment, oldest first.
    segment: u32,
    /// Offset of the record in the segment, in bytes.
    at: u32,
}

/// A valid record of the journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) place: Place,
    /// Offset of the record in the file, in bytes.
    pub(super) offset: usize,
    pub(super) sequence: u64,
    pub(super) kind: u8,
    pub(super) time: u64,
    pub(super) generation: u64,
    pub(super) payload: &'a [u8],
}

/// A segment up to its last record.
#[derive(Clone, Copy, Debug)]
struct Segment {
    sequence: u64,
    /// Offset in the file, in bytes.
    start: usize,
    /// Length in bytes.
    length: usize,
}

/// A journal whose header is valid, after a scan of its segments.
#[derive(Debug)]
pub(super) struct Journal<'a> {
    input: Input<'a>,
    head: FileHead,
    alive: Option<u64>,
    /// The readable segments, oldest first.
    segments: Vec<Segment>,
    damage: Damage,
    /// The newest segment: index, sequence number, end of its records. `None` if no segment is readable.
    newest: Option<(usize, u64, usize)>,
    /// Error of the operating system since the journal was opened. The records behind it are missing. `None` without one.
    fault: Cell<Option<io::ErrorKind>>,
}

impl<'a> Journal<'a> {
    /// Calls `each` for all records in recorded order. Takes time proportional to the size, and almost no memory. A truncated file is read
    /// up to its end.
    ///
    /// # Errors
    /// If the header cannot be read.
    pub(super) fn open(input: Input<'a>, each: impl FnMut(Record<'_>)) -> Result<Self, JournalError> {
        let unreadable = |error: io::Error| JournalError::Unreadable(error.kind());
        let length = input.length().map_err(unreadable)?;
        let mut bytes = vec![0; HEADER];
        let read = input.read(0, &mut bytes).map_err(unreadable)?;
        bytes.truncate(read);
        let head = FileHead::read(&bytes).map_err(|fault| match fault {
            HeadFault::Foreign => JournalError::Foreign,
            HeadFault::Version(version) => JournalError::Version(version),
            HeadFault::Damaged => JournalError::Damaged,
        })?;
        let alive = last_alive(&bytes);
        let mut journal = Self {
            input,
            head,
            alive,
            segments: Vec::new(),
            damage: Damage::default(),
            newest: None,
            fault: Cell::new(None),
        };
        let segments = journal.find_segments(length).map_err(unreadable)?;
        journal.scan(&segments, each);
        match journal.fault.get() {
            Some(kind) => Err(JournalError::Unreadable(kind)),
            None => Ok(journal),
        }
    }

    /// Returns the segments with a valid header and their indices, oldest first. Reports the others as damage.
    fn find_segments(&mut self, length: usize) -> io::Result<Vec<(usize, Segment)>> {
        let (mut segments, mut others) = (Vec::new(), Vec::new());
        for place in 0..self.head.layout.segments {
            let range = self.head.layout.at(place);
            let (start, end) = (range.start.min(length), range.end.min(length));
            let mut bytes = [0; SEGMENT_HEAD];
            let read = self.input.read(start, &mut bytes[..SEGMENT_HEAD.min(end - start)])?;
            match SegmentHead::read(&bytes[..read]) {
                Some(found) => {
                    segments.push((place, Segment { sequence: found.sequence, start, length: end - start }));
                }
                None if read >= 8 && bytes[..8] != [0; 8] => others.push((start, bytes, read)),
                None => {}
            }
        }
        segments.sort_unstable_by_key(|&(place, segment)| (segment.sequence, place));
        segments.dedup_by(|repeated, first| {
            let is_repeated = repeated.1.sequence == first.1.sequence;
            if is_repeated {
                self.damage.segments += 1;
                self.damage.is_at(repeated.1.start);
            }
            is_repeated
        });
        let next = segments.last().map(|(_, segment)| segment.sequence + 1);
        for (start, bytes, read) in others {
            // The segment was being started: its old header is erased first, and the new sequence number is written before the magic.
            if bytes[0] == 0 || (next.is_some() && sequence_of(&bytes[..read]) == next) {
                self.damage.is_torn = true;
            } else {
                self.damage.segments += 1;
                self.damage.is_at(start);
            }
        }
        Ok(segments)
    }

    /// Passes all records to `each`. Finds the last record of each segment, and the damage before it.
    fn scan(&mut self, segments: &[(usize, Segment)], mut each: impl FnMut(Record<'_>)) {
        let mut damage = self.damage;
        let mut sound = Vec::with_capacity(segments.len());
        for (at, &(place, segment)) in segments.iter().enumerate() {
            let number = u32::try_from(at).unwrap_or(u32::MAX);
            let mut walk = Walk::new(self, number, segment, SEGMENT_HEAD);
            while let Some(record) = walk.next() {
                each(record);
            }
            let end = walk.end();
            walk.tell_damage(at + 1 == segments.len(), &mut damage);
            sound.push(Segment { length: end.min(segment.length), ..segment });
            self.newest = Some((place, segment.sequence, end));
        }
        (self.segments, self.damage) = (sound, damage);
    }

    /// Returns the name of the node whose vswitch wrote the journal.
    pub(super) fn node(&self) -> &str {
        &self.head.node
    }

    pub(super) const fn layout(&self) -> Layout {
        self.head.layout
    }

    /// Returns when the journal's recorder was last alive, in nanoseconds since 1970. `None` if unknown.
    pub(super) const fn alive(&self) -> Option<u64> {
        self.alive
    }

    /// Returns the unreadable parts of the journal.
    pub(super) const fn damage(&self) -> Damage {
        self.damage
    }

    pub(super) const fn newest(&self) -> Option<(usize, u64, usize)> {
        self.newest
    }

    /// Returns the error of the operating system because of which answers since the start lack records. `None` without one.
    pub(super) const fn fault(&self) -> Option<io::ErrorKind> {
        self.fault.get()
    }

    /// Calls `each` for all records in recorded order.
    pub(super) fn records(&self, mut each: impl FnMut(Record<'_>)) {
        for (place, &segment) in (0..).zip(&self.segments) {
            let mut walk = Walk::new(self, place, segment, SEGMENT_HEAD);
            while let Some(record) = walk.next() {
                each(record);
            }
        }
    }

    /// Returns a walk over the records of a segment from this one on. `None` if the segment does not exist.
    pub(super) fn records_from(&self, place: Place) -> Option<Walk<'_>> {
        let segment = self.segments.get(place.segment as usize)?;
        Some(Walk::new(self, place.segment, *segment, place.at as usize))
    }
}
