//! Where everything is in a journal: the layout, and the heads of the file, of segments and of records.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Counts the changes of what any byte behind the file's header means.
pub(super) const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"bulkjrnl";
const SEGMENT_MAGIC: [u8; 8] = *b"bulksegm";

/// Segments of a journal. More of them would lose less history when the ring turns (a sixteenth now) and hold more checkpoints, each as
/// large as the cluster.
pub(super) const SEGMENTS: usize = 16;

/// What the file's header takes: a page, so that segments begin at one.
pub(super) const HEADER: usize = 4096;

/// The part of the header that its CRC covers.
const SUMMED: usize = 288;
/// The longest name of a node (RFC 1123).
const LONGEST_NODE: usize = 253;
/// Where the header says when the recorder was last alive, and the same once more with all bits turned.
const ALIVE: usize = 304;

/// What a segment's header takes.
pub(super) const SEGMENT_HEAD: usize = 32;
/// What a record's head takes.
pub(super) const RECORD_HEAD: usize = 32;

/// The longest name that is kept, in bytes.
pub(super) const LONGEST_NAME: usize = 1024;

/// The longest payload. A bound, so that a damaged length costs little to find out; what is longer is several records.
pub(super) const LONGEST_PAYLOAD: usize = 60_000;

/// The smallest segment: several records of the longest kind.
const LEAST_SEGMENT: usize = 1 << 18;
/// The largest file that is read: a bound, as all of it is read into memory.
const MOST_BYTES: usize = 1 << 30;

/// No journal counts as far. A bound, so that whoever adds one to a number of a file, or compares it with the next one, need not think of
/// hostile ones.
pub(super) const MOST_NUMBER: u64 = 1 << 48;

/// Memory that a journal is in.
pub trait Memory {
    /// All of it.
    fn bytes(&self) -> &[u8];

    /// Writes. The place is within what was [grown](Memory::grow).
    fn put(&mut self, at: usize, bytes: &[u8]);

    /// Has this part ready to be written. False where there is no room for it: then it is never touched.
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

/// How large a journal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a segment.
    pub segment: usize,
    /// How many there are.
    pub segments: usize,
}

impl Layout {
    /// The layout of a file of about so many bytes; none where that is too little or too much.
    pub fn of_size(bytes: usize) -> Option<Self> {
        let segment = bytes / SEGMENTS / HEADER * HEADER;
        let layout = Self { segment, segments: SEGMENTS };
        (segment >= LEAST_SEGMENT && layout.bytes() <= MOST_BYTES).then_some(layout)
    }

    /// Bytes of the file.
    pub const fn bytes(self) -> usize {
        HEADER + self.segment * self.segments
    }

    /// The bytes of a segment.
    pub const fn at(self, segment: usize) -> Range<usize> {
        let start = HEADER + segment * self.segment;
        start..start + self.segment
    }
}

/// The file's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileHead {
    pub(super) layout: Layout,
    /// Whose journal it is.
    pub(super) node: String,
    /// When it was begun.
    pub(super) made: u64,
}

/// Why a file's header is none.
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

/// When the recorder was last alive, as it is written: where, and what.
pub(super) fn alive(time: u64) -> (usize, [u8; 16]) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&time.to_le_bytes());
    bytes[8..].copy_from_slice(&(!time).to_le_bytes());
    (ALIVE, bytes)
}

/// When the recorder was last alive; none where that is not known.
pub(super) fn last_alive(file: &[u8]) -> Option<u64> {
    let time = u64_at(file, ALIVE);
    (u64_at(file, ALIVE + 8) == !time).then_some(time)
}

/// A segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHead {
    /// 1 for the first one that was begun.
    pub(super) sequence: u64,
    /// When it was begun, in nanoseconds since 1970.
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

    /// None where it is none.
    pub(super) fn read(segment: &[u8]) -> Option<Self> {
        let bytes = segment.get(..SEGMENT_HEAD)?;
        let is_sound = bytes[..8] == SEGMENT_MAGIC && u32_at(bytes, 28) == crc32fast::hash(&bytes[..28]);
        let head = Self { sequence: u64_at(bytes, 8), time: u64_at(bytes, 16) };
        (is_sound && (1..MOST_NUMBER).contains(&head.sequence)).then_some(head)
    }
}

/// What a segment's header says that its number is, sound or not.
pub(super) fn sequence_of(segment: &[u8]) -> Option<u64> {
    (segment.len() >= SEGMENT_HEAD).then(|| u64_at(segment, 8))
}

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A part of a checkpoint: the whole state.
    Checkpoint = 1,
    /// A part of a change of the state.
    Change = 2,
    /// A text that verdicts of the segment name by its number.
    Name = 3,
    /// Verdicts.
    Verdicts = 4,
    /// What was not recorded.
    LeftOut = 5,
    /// A vswitch has started, or stopped.
    Run = 6,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Checkpoint, Self::Change, Self::Name, Self::Verdicts, Self::LeftOut, Self::Run];

    pub(super) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// That a vswitch has started or stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) is_start: bool,
    /// With a start: when an earlier vswitch was last alive.
    pub(super) alive: Option<u64>,
}

/// A record's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHead {
    /// Bytes of the payload.
    pub(super) len: usize,
    /// A [`Kind`], or one of a later version.
    pub(super) kind: u8,
    pub(super) payload_sum: u32,
    pub(super) time: u64,
    pub(super) generation: u64,
}

impl RecordHead {
    /// Its bytes in a segment of this sequence: a record of what the segment was before is none of it.
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

    /// None where it is none of a segment of this sequence.
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
        let mut sum = crc32fast::Hasher::new();
        sum.update(&sequence.to_le_bytes());
        sum.update(&bytes[..4]);
        sum.update(&bytes[8..]);
        sum.finalize()
    }

    /// Bytes of the whole record. The next one begins at a multiple of eight.
    pub(super) const fn size(self) -> usize {
        size_of_record(self.len)
    }
}

/// Bytes that a record with a payload of so many takes.
pub(super) const fn size_of_record(payload: usize) -> usize {
    (RECORD_HEAD + payload).next_multiple_of(8)
}
