//! Finds the records of a journal with arbitrary content.
//!
//! Does not keep records: each query walks over the segments. A gigabyte can hold 25 million records, whose list would need more memory
//! than the file.

use super::format::{
    FileHead, HeadFault, Layout, RECORD_HEAD, RecordHead, SEGMENT_HEAD, SegmentHead, VERSION, last_alive, sequence_of,
};

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
    /// Whether the process died while writing the last record.
    pub is_torn: bool,
}

impl Damage {
    /// Whether recorded data was lost.
    pub const fn is_loss(self) -> bool {
        self.segments + self.places + self.unknown > 0
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { segments, places, bytes, unknown, .. } = self;
        write!(f, "{segments} segments, {places} places ({bytes} bytes) and {unknown} records of it cannot be read")
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
    pub(super) sequence: u64,
    pub(super) kind: u8,
    pub(super) time: u64,
    pub(super) generation: u64,
    pub(super) payload: &'a [u8],
}

/// A journal whose header is valid, after a scan of its segments.
#[derive(Debug)]
pub struct Journal<'a> {
    head: FileHead,
    alive: Option<u64>,
    /// Sequence numbers and contents of the segments up to their last record, oldest first.
    segments: Vec<(u64, &'a [u8])>,
    damage: Damage,
    /// The newest segment: index, sequence number, end of its records. `None` if no segment is readable.
    newest: Option<(usize, u64, usize)>,
}

impl<'a> Journal<'a> {
    /// Scans all records. Takes time proportional to the size, and almost no memory. A truncated file is read up to its end.
    ///
    /// # Errors
    /// If the header cannot be read.
    pub fn open(bytes: &'a [u8]) -> Result<Self, JournalError> {
        let head = FileHead::read(bytes).map_err(|fault| match fault {
            HeadFault::Foreign => JournalError::Foreign,
            HeadFault::Version(version) => JournalError::Version(version),
            HeadFault::Damaged => JournalError::Damaged,
        })?;
        let (mut segments, mut others, mut damage) = (Vec::new(), Vec::new(), Damage::default());
        for place in 0..head.layout.segments {
            let range = head.layout.at(place);
            let segment = &bytes[range.start.min(bytes.len())..range.end.min(bytes.len())];
            match SegmentHead::read(segment) {
                Some(found) => segments.push((found.sequence, place, segment)),
                None if segment.get(..8).is_some_and(|magic| magic != [0; 8]) => others.push(segment),
                None => {}
            }
        }
        segments.sort_unstable_by_key(|&(sequence, place, _)| (sequence, place));
        let before = segments.len();
        segments.dedup_by_key(|&mut (sequence, ..)| sequence);
        damage.segments += before - segments.len();
        let next = segments.last().map(|&(sequence, ..)| sequence + 1);
        for segment in others {
            // The segment was being started: its old header is erased first, and the new sequence number is written before the magic.
            let is_begun = segment[0] == 0 || (next.is_some() && sequence_of(segment) == next);
            damage.is_torn |= is_begun;
            damage.segments += usize::from(!is_begun);
        }
        let (mut sound, mut newest) = (Vec::with_capacity(segments.len()), None);
        let last = segments.len().saturating_sub(1);
        for (at, &(sequence, place, segment)) in segments.iter().enumerate() {
            let mut walk = Walk::new(0, sequence, segment, SEGMENT_HEAD);
            walk.by_ref().for_each(drop);
            walk.tell_damage(at == last, &mut damage);
            sound.push((sequence, &segment[..walk.end.min(segment.len())]));
            newest = Some((place, sequence, walk.end));
        }
        Ok(Self { head, alive: last_alive(bytes), segments: sound, damage, newest })
    }

    /// Returns the name of the node whose vswitch wrote the journal.
    pub fn node(&self) -> &str {
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
    pub const fn damage(&self) -> Damage {
        self.damage
    }

    pub(super) const fn newest(&self) -> Option<(usize, u64, usize)> {
        self.newest
    }

    /// Returns all records in recorded order.
    pub(super) fn records(&self) -> impl Iterator<Item = Record<'a>> + use<'_, 'a> {
        (0..)
            .zip(&self.segments)
            .flat_map(|(place, &(sequence, segment))| Walk::new(place, sequence, segment, SEGMENT_HEAD))
    }

    /// Returns the records of a segment from this one on.
    pub(super) fn records_from(&self, place: Place) -> impl Iterator<Item = Record<'a>> + use<'a> {
        let segment = self.segments.get(place.segment as usize).copied();
        segment
            .into_iter()
            .flat_map(move |(sequence, segment)| Walk::new(place.segment, sequence, segment, place.at as usize))
    }
}

/// Walks over the records of a segment.
#[derive(Clone, Debug)]
struct Walk<'a> {
    place: u32,
    sequence: u64,
    segment: &'a [u8],
    /// Offset at which the next record may start.
    at: usize,
    /// Offset of the end of the last valid record.
    end: usize,
    /// Start of the current gap. `None` outside a gap.
    skipped: Option<usize>,
    /// Gaps between records, and their bytes.
    places: usize,
    bytes: usize,
}

impl<'a> Walk<'a> {
    const fn new(place: u32, sequence: u64, segment: &'a [u8], at: usize) -> Self {
        Self { place, sequence, segment, at, end: SEGMENT_HEAD, skipped: None, places: 0, bytes: 0 }
    }

    /// Adds the gaps to `damage`.
    fn tell_damage(&self, is_newest: bool, damage: &mut Damage) {
        damage.places += self.places;
        damage.bytes += self.bytes;
        // A length of 0 follows the last record, then old data. A lost page is zero too, so search for records after it.
        let is_over = self.segment.get(self.end..self.end + 4).is_none_or(|len| len == [0; 4]);
        match self.skipped {
            Some(_) if is_over => {}
            // No valid record follows. In the newest segment, the record was being written.
            Some(_) if is_newest => damage.is_torn = true,
            Some(start) => {
                damage.places += 1;
                damage.bytes += self.segment.len() - start;
            }
            None => {}
        }
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        while self.at + 8 <= self.segment.len() {
            let (start, rest) = (self.at, &self.segment[self.at..]);
            let head = RecordHead::read(rest, self.sequence);
            let record = head.and_then(|head| {
                let payload = rest.get(RECORD_HEAD..RECORD_HEAD + head.len)?;
                (crc32fast::hash(payload) == head.payload_sum).then_some((head, payload))
            });
            match (head, record) {
                (_, Some((head, payload))) => {
                    if let Some(skipped) = self.skipped.take() {
                        self.places += 1;
                        self.bytes += start - skipped;
                    }
                    self.at += head.size();
                    self.end = self.at;
                    let RecordHead { kind, time, generation, .. } = head;
                    let place = Place { segment: self.place, at: u32::try_from(start).unwrap_or(u32::MAX) };
                    return Some(Record { place, sequence: self.sequence, kind, time, generation, payload });
                }
                // The length is valid, so the next record follows.
                (Some(head), None) => {
                    self.skipped.get_or_insert(start);
                    self.at += head.size();
                }
                (None, None) => {
                    self.skipped.get_or_insert(start);
                    self.at += 8;
                }
            }
        }
        None
    }
}
