//! The stream: what workers tell of sessions and packets to whoever wants to know.
//!
//! ```text
//!   worker 0 --records--> [ ring ] --.
//!            --bytes----> [ ring ] --+--> StreamReader --> one thread of the control plane
//!   worker 1 ...                   --'
//! ```
//!
//! Each worker has a ring of records and one of packets' bytes, of which it is the only writer. Nothing waits for the reader: what does
//! not fit is left out and counted. Without a stream a worker asks a few questions per burst and per session that ends, and nothing per
//! packet.
//!
//! A packet that a tracepoint selects is told when its end is known, which may be at another worker and seconds later: see
//! `traces.rs`.
//!
//! **Invariant.** Whatever the reader does, for each kind of record: what it has read, what still lies in the rings and what was
//! [left out](StreamReader::left_out) is together what has happened since the stream was opened: sessions begun, packets dropped (with
//! those of [`Record::Lost`]), sessions ended, packets that tracepoints select, but for those that are still
//! [under way](StreamReader::under_way). A worker that fails in the middle of a burst may lose records of it.

mod reader;
mod selection;
mod traces;
mod watching;
mod writer;

pub use reader::StreamReader;
pub(super) use traces::Mark;
pub(crate) use writer::StreamWriter;
pub(super) use writer::{Known, Lost};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rtrb::RingBuffer;

use crate::filter::Filter;
use crate::{DropReason, Outcome, PortId, SessionEnd};
use traces::Traces;

/// Records that a worker's ring holds: at 100,000 sessions a second what happens in 160 ms, and some 4 MB.
const RECORDS: usize = 1 << 14;

/// Bytes of packets that a worker's ring holds: some 2,700 packets of 1,500 bytes.
const BYTES: usize = 1 << 22;

/// Tracepoints at a time: as many as a record has bits for.
pub const MOST_TRACEPOINTS: usize = 64;

/// The longest part of a packet that a tracepoint may want, in bytes: what a frame of the packet memory holds.
pub const LONGEST_SNAP: u16 = 3840;

/// What a stream is to tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamPlan {
    /// Each session that begins, and each packet that is dropped.
    pub verdicts: bool,
    /// Each session that ends, and what went through it.
    pub endings: bool,
    /// Packets that one of these selects; the first [`MOST_TRACEPOINTS`].
    pub tracepoints: Arc<[Tracepoint]>,
}

/// Which packets are told one by one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tracepoint {
    /// By their addresses and ports, as they come in or as they leave.
    pub filter: Filter,
    /// None but those that leave (true) or are dropped, wherever that is (false).
    pub forwarded: Option<bool>,
    /// How many of their bytes are told, [`LONGEST_SNAP`] at most.
    pub snap: u16,
    /// Whether flows that the filter selects stay out of the flow cache, so that all their packets come to a worker. What is in there
    /// already is to be ended by whoever opens the stream.
    pub keeps_from_cache: bool,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Judgement {
    /// When it was judged, in nanoseconds since 1970.
    pub time: u64,
    /// The generation of the snapshot that it was judged by.
    pub generation: u64,
    /// Its length in bytes with the Ethernet header.
    pub len: u32,
    /// The control bits of a TCP segment.
    pub tcp_flags: Option<u8>,
    /// Everything else.
    pub outcome: Outcome,
}

/// What a worker tells.
#[derive(Clone, Copy, Debug)]
pub enum Record {
    /// A packet has begun a session.
    Session(Judgement),
    /// A packet was dropped.
    Dropped(Judgement),
    /// Packets were dropped where nobody knows any more whose they were: at a port that does not take them, for one.
    Lost {
        /// When, in nanoseconds since 1970.
        time: u64,
        /// Why.
        reason: DropReason,
        /// How many.
        packets: u64,
    },
    /// A session has ended.
    Ended {
        /// When that was seen, in nanoseconds since 1970.
        time: u64,
        /// Which.
        end: SessionEnd,
    },
    /// A tracepoint has selected a packet.
    Packet {
        /// Which tracepoints: a bit for each, by its place in the plan.
        tracepoints: u64,
        /// How many of its bytes there are.
        captured: u16,
        /// What became of it in the end.
        judgement: Judgement,
        /// Where it was to leave, when the tables have let it through and it was lost on its way out.
        meant_for: Option<PortId>,
    },
}

/// What was not told because a ring was full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Sessions that began.
    pub sessions: u64,
    /// Packets that were dropped.
    pub dropped: u64,
    /// Sessions that ended.
    pub endings: u64,
    /// Packets that tracepoints selected.
    pub packets: u64,
}

impl LeftOut {
    /// All together.
    pub const fn total(self) -> u64 {
        self.sessions + self.dropped + self.endings + self.packets
    }

    /// What came since an earlier count.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            sessions: self.sessions - earlier.sessions,
            dropped: self.dropped - earlier.dropped,
            endings: self.endings - earlier.endings,
            packets: self.packets - earlier.packets,
        }
    }
}

/// The same, written by one worker and read by the reader.
#[derive(Debug, Default)]
struct SharedLeftOut([AtomicU64; 4]);

impl SharedLeftOut {
    fn write(&self, counts: LeftOut) {
        let LeftOut { sessions, dropped, endings, packets } = counts;
        for (shared, count) in self.0.iter().zip([sessions, dropped, endings, packets]) {
            shared.store(count, Ordering::Relaxed);
        }
    }

    fn read(&self) -> LeftOut {
        let [sessions, dropped, endings, packets] = [0, 1, 2, 3].map(|at: usize| self.0[at].load(Ordering::Relaxed));
        LeftOut { sessions, dropped, endings, packets }
    }
}

/// The ends of a stream of so many workers.
pub(super) fn stream(plan: &StreamPlan, workers: usize) -> (Vec<StreamWriter>, StreamReader) {
    with_room(plan, workers, RECORDS, BYTES)
}

/// The same with rings of this size.
pub(super) fn with_room(
    plan: &StreamPlan,
    workers: usize,
    records: usize,
    bytes: usize,
) -> (Vec<StreamWriter>, StreamReader) {
    let mut writers = Vec::with_capacity(workers);
    let mut sources = Vec::with_capacity(workers);
    // Nobody wants bytes, or places for packets, where there is no tracepoint.
    let traces = (!plan.tracepoints.is_empty()).then(|| Arc::new(Traces::new(workers)));
    for _ in 0..workers {
        let (record_writer, record_reader) = RingBuffer::new(records);
        let (byte_writer, byte_reader) = RingBuffer::new(if plan.tracepoints.is_empty() { 0 } else { bytes });
        let left_out = Arc::new(SharedLeftOut::default());
        sources.push(reader::Source::new(record_reader, byte_reader, Arc::clone(&left_out)));
        writers.push(StreamWriter::new(plan.clone(), record_writer, byte_writer, left_out, traces.clone()));
    }
    (writers, StreamReader::new(sources, traces))
}
