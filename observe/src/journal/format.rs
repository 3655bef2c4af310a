//! Layout of a journal: headers of the file, of segments and of records.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Incremented when any byte after the file header changes its meaning.
pub(super) const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"bulkjrnl";
const SEGMENT_MAGIC: [u8; 8] = *b"bulksegm";

/// Number of segments. More would lose less history when the ring wraps (now a sixteenth), but need more checkpoints, each as large as the
/// cluster.
pub(super) const SEGMENTS: usize = 16;

/// Size of the file header in bytes: a page, to align segments.
pub(super) const HEADER: usize = 4096;

/// Bytes of the header covered by its CRC.
const SUMMED: usize = 288;
/// Maximum length of a node name (RFC 1123).
const LONGEST_NODE: usize = 253;
/// Offset of the time at which the recorder was last alive, followed by its complement.
const ALIVE: usize = 304;

/// Size of a segment header in bytes.
pub(super) const SEGMENT_HEAD: usize = 32;
/// Size of a record header in bytes.
pub(super) const RECORD_HEAD: usize = 32;

/// Maximum length of a name in bytes. Longer ones are truncated.
pub(super) const LONGEST_NAME: usize = 1024;

/// Maximum payload in bytes. Limits the cost of a damaged length. Longer data is split into several records.
pub(super) const LONGEST_PAYLOAD: usize = 60_000;

/// Minimum size of a segment in bytes: several records of maximum length.
const LEAST_SEGMENT: usize = 1 << 18;
/// Maximum size of a journal in bytes, because it is read into memory.
const MOST_BYTES: usize = 1 << 30;

/// Upper bound of sequence numbers, so that adding one cannot overflow even for hostile files.
pub(super) const MOST_NUMBER: u64 = 1 << 48;

/// The memory of a journal.
pub trait Memory {
    /// Returns the whole memory.
    fn bytes(&self) -> &[u8];

    /// Writes bytes. The range must have been [grown](Memory::grow).
    fn put(&mut self, at: usize, bytes: &[u8]);

    /// Makes a range writable. Returns false if there is no room; the range is then not used.
    fn grow(&mut self, part: Range<usize>) -> bool;
}

impl Memory for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn grow(&mut self, _part: Range<usize>) -> bool {
        true
    }
}

/// Dimensions of a journal: the size and the number of its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Size of a segment in bytes.
    pub segment: usize,
    /// Number of segments.
    pub segments: usize,
}

impl Layout {
    /// Returns the layout of a file of about this size. `None` if too small or too large.
    pub fn of_size(bytes: usize) -> Option<Self> {
        let segment = bytes / SEGMENTS / HEADER * HEADER;
        let layout = Self { segment, segments: SEGMENTS };
        (segment >= LEAST_SEGMENT && layout.bytes() <= MOST_BYTES).then_some(layout)
    }

    /// Returns the size of the file in bytes.
    pub const fn bytes(self) -> usize {
        HEADER + self.segment * self.segments
    }

    /// Returns the byte range of a segment.
    pub const fn at(self, segment: usize) -> Range<usize> {
        let start = HEADER + segment * self.segment;
        start..start + self.segment
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileHead {
    pub(super) layout: Layout,
    pub(super) node: String,
    /// Time of the journal's creation, in nanoseconds since 1970.
    pub(super) made: u64,
}

/// Why a file header is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadFault {
    Foreign,
    Version(u32),
    Damaged,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl FileHead {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        let end = (0..=self.node.len().min(LONGEST_NODE)).rev().find(|&end| self.node.is_char_boundary(end));
        let node = &self.node.as_bytes()[..end.unwrap_or(0)];
        bytes[..8].copy_from_slice(&MAGIC);
        for (at, word) in [(8, VERSION), (12, small(self.layout.segment)), (16, small(self.layout.segments))] {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[20..24].copy_from_slice(&small(node.len()).to_le_bytes());
        bytes[24..32].copy_from_slice(&self.made.to_le_bytes());
        bytes[32..32 + node.len()].copy_from_slice(node);
        let sum = crc32fast::hash(&bytes[..SUMMED]);
        bytes[SUMMED..SUMMED + 4].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, HeadFault> {
        if bytes.len() < HEADER || bytes[..8] != MAGIC {
            return Err(HeadFault::Foreign);
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(HeadFault::Version(version));
        }
        if u32_at(bytes, SUMMED) != crc32fast::hash(&bytes[..SUMMED]) {
            return Err(HeadFault::Damaged);
        }
        let [segment, segments, length] = [12, 16, 20].map(|at| u32_at(bytes, at) as usize);
        let layout = Layout { segment, segments };
        let is_sound = (LEAST_SEGMENT..=MOST_BYTES).contains(&segment)
            && segment % HEADER == 0
            && (2..=MOST_BYTES / segment).contains(&segments)
            && length <= LONGEST_NODE;
        let node = std::str::from_utf8(&bytes[32..32 + length.min(LONGEST_NODE)]);
        match (is_sound, node) {
            (true, Ok(node)) => Ok(Self { layout, node: node.to_owned(), made: u64_at(bytes, 24) }),
            _ => Err(HeadFault::Damaged),
        }
    }
}

/// Encodes the time at which the recorder was last alive, in nanoseconds since 1970. Returns the offset in the file, and the bytes.
pub(super) fn alive(time: u64) -> (usize, [u8; 16]) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&time.to_le_bytes());
    bytes[8..].copy_from_slice(&(!time).to_le_bytes());
    (ALIVE, bytes)
}

/// Returns when the recorder was last alive, in nanoseconds since 1970. `None` if unknown.
pub(super) fn last_alive(file: &[u8]) -> Option<u64> {
    let time = u64_at(file, ALIVE);
    (u64_at(file, ALIVE + 8) == !time).then_some(time)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHead {
    /// Number of the segment since the journal's creation, from 1.
    pub(super) sequence: u64,
    /// Start of the segment, in nanoseconds since 1970.
    pub(super) time: u64,
}

impl SegmentHead {
    pub(super) fn bytes(self) -> [u8; SEGMENT_HEAD] {
        let mut bytes = [0; SEGMENT_HEAD];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.time.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..28]);
        bytes[28..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses a header. `None` if invalid.
    pub(super) fn read(segment: &[u8]) -> Option<Self> {
        let bytes = segment.get(..SEGMENT_HEAD)?;
        let is_sound = bytes[..8] == SEGMENT_MAGIC && u32_at(bytes, 28) == crc32fast::hash(&bytes[..28]);
        let head = Self { sequence: u64_at(bytes, 8), time: u64_at(bytes, 16) };
        (is_sound && (1..MOST_NUMBER).contains(&head.sequence)).then_some(head)
    }
}

/// Returns the sequence number in a header, even if the header is invalid. `None` if the segment is too short.
pub(super) fn sequence_of(segment: &[u8]) -> Option<u64> {
    (segment.len() >= SEGMENT_HEAD).then(|| u64_at(segment, 8))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A part of a checkpoint: the whole state.
    Checkpoint = 1,
    /// A part of a change of the state.
    Change = 2,
    /// A name, to which verdicts of the segment refer by number.
    Name = 3,
    /// Verdicts on sessions and dropped packets.
    Verdicts = 4,
    /// Numbers of sessions and packets that were not recorded.
    LeftOut = 5,
    /// Start or stop of a vswitch.
    Run = 6,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Checkpoint, Self::Change, Self::Name, Self::Verdicts, Self::LeftOut, Self::Run];

    pub(super) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Start or stop of a vswitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) is_start: bool,
    /// When the previous vswitch was last alive, in nanoseconds since 1970. `None` for a stop, or if unknown.
    pub(super) alive: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    /// Length of the payload in bytes.
    pub(super) len: usize,
    /// A [`Kind`], possibly of a later version.
    pub(super) kind: u8,
    pub(super) payload_sum: u32,
    pub(super) time: u64,
    pub(super) generation: u64,
}

impl RecordHead {
    /// Encodes the header. The CRC includes the segment's sequence number, so that old records of a reused segment are invalid.
    pub(super) fn bytes(self, sequence: u64) -> [u8; RECORD_HEAD] {
        let mut bytes = [0; RECORD_HEAD];
        bytes[..4].copy_from_slice(&small(self.len).to_le_bytes());
        bytes[8] = self.kind;
        bytes[12..16].copy_from_slice(&self.payload_sum.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.time.to_le_bytes());
        bytes[24..].copy_from_slice(&self.generation.to_le_bytes());
        let sum = Self::sum(&bytes, sequence);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Parses a header in a segment with this sequence number. `None` if invalid.
    pub(super) fn read(bytes: &[u8], sequence: u64) -> Option<Self> {
        let bytes: &[u8; RECORD_HEAD] = bytes.get(..RECORD_HEAD)?.try_into().ok()?;
        let len = u32_at(bytes, 0) as usize;
        let is_sound = (1..=LONGEST_PAYLOAD).contains(&len) && u32_at(bytes, 4) == Self::sum(bytes, sequence);
        is_sound.then(|| Self {
            len,
            kind: bytes[8],
            payload_sum: u32_at(bytes, 12),
            time: u64_at(bytes, 16),
            generation: u64_at(bytes, 24),
        })
    }

    fn sum(bytes: &[u8; RECORD_HEAD], sequence: u64) -> u32 {
        let mut summed = [0; 8 + RECORD_HEAD - 4];
        summed[..8].copy_from_slice(&sequence.to_le_bytes());
        summed[8..12].copy_from_slice(&bytes[..4]);
        summed[12..].copy_from_slice(&bytes[8..]);
        // One call: damaged files have a candidate every eight bytes.
        crc32fast::hash(&summed)
    }

    /// Returns the size of the whole record in bytes. Records are aligned to eight bytes.
    pub(super) const fn size(self) -> usize {
        size_of_record(self.len)
    }
}

/// Returns the size of a record with this payload length, in bytes.
pub(super) const fn size_of_record(payload: usize) -> usize {
    (RECORD_HEAD + payload).next_multiple_of(8)
}
