//! The stream: records about sessions and packets, from the workers to one reader.
//!
//! ```text
//!   worker 0 --records--> [ ring ] --.
//!            --bytes----> [ ring ] --+--> StreamReader --> one thread of the control plane
//!   worker 1 ...                   --'
//! ```
//!
//! Each worker is the only writer of two rings, one for records and one for packet bytes. Workers never wait for the reader: records that
//! do not fit are left out and counted. At the end of a round in which a worker has written a record, it wakes a sleeping reader. Without a
//! stream a worker makes a few checks per burst and per ended session, and none per packet.
//!
//! A packet that a tracepoint selects is reported when its fate is known, possibly seconds later and at another worker: see `traces.rs`.
//!
//! **Invariant.** For each kind of record, the records read, those still in the rings and those [left out](StreamReader::left_out) add up
//! to all events since the stream was opened. The kinds are sessions begun, packets dropped (with those of [`Record::Lost`]), sessions
//! ended and packets selected by tracepoints. Selected packets that are still [under way](StreamReader::under_way) are the exception. A
//! worker that panics during a burst may lose records of that burst.

mod reader;
mod records;
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

use crossbeam_channel::{Receiver, Sender};
use rtrb::RingBuffer;

use super::bell::{Bell, Wake};

use crate::filter::Filter;
use crate::{DropReason, Outcome, PortId, SessionEnd};
use traces::Traces;

/// Size of a worker's ring, in records: 160 ms at 100,000 sessions a second, about 4 MB.
const RECORDS: usize = 1 << 14;

/// Size of a worker's ring of packet bytes: about 2,700 packets of 1,500 bytes.
const BYTES: usize = 1 << 22;

/// Maximum number of tracepoints: a record has one bit for each.
pub const MOST_TRACEPOINTS: usize = 64;

/// Maximum number of bytes of a packet that a tracepoint may request: the size of a frame in the packet memory.
pub const LONGEST_SNAP: u16 = 3840;

/// Selects what a stream reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamPlan {
    /// Report each session that begins and each packet that is dropped.
    pub verdicts: bool,
    /// Report each session that ends, with its packet and byte counts.
    pub endings: bool,
    /// Report packets that one of these selects. Only the first [`MOST_TRACEPOINTS`] count.
    pub tracepoints: Arc<[Tracepoint]>,
}

/// Selects packets that are reported one by one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tracepoint {
    /// Selects by addresses and ports, before or after translation.
    pub filter: Filter,
    /// `Some(true)` selects only forwarded packets, `Some(false)` only packets dropped anywhere. `None` selects both.
    pub forwarded: Option<bool>,
    /// Number of bytes to report of each packet, at most [`LONGEST_SNAP`].
    pub snap: u16,
    /// Whether to keep selected flows out of the flow cache, so that workers see all their packets. The stream's opener must end flows that
    /// are already in the cache.
    pub keeps_from_cache: bool,
}

/// What a stream reports about one packet.
#[derive(Clone, Copy, Debug)]
pub struct Judgement {
    /// When the packet was judged, in nanoseconds since 1970.
    pub time: u64,
    /// Generation of the snapshot that judged it.
    pub generation: u64,
    /// Length in bytes, with the Ethernet header.
    pub len: u32,
    /// TCP control bits. `None` for other protocols.
    pub tcp_flags: Option<u8>,
    /// The packet's outcome.
    pub outcome: Outcome,
}

/// A record of the stream.
#[derive(Clone, Copy, Debug)]
pub enum Record {
    /// A packet started a session.
    Session(Judgement),
    /// A packet was dropped.
    Dropped(Judgement),
    /// Packets were dropped at a point where their flow is no longer known, for example at a port with a full queue.
    Lost {
        /// Time in nanoseconds since 1970.
        time: u64,
        /// The reason why the packets were dropped.
        reason: DropReason,
        /// Number of dropped packets.
        packets: u64,
    },
    /// A session ended.
    Ended {
        /// When the worker noticed the end, in nanoseconds since 1970.
        time: u64,
        /// The session's last state and counts.
        end: SessionEnd,
    },
    /// A tracepoint selected a packet.
    Packet {
        /// The tracepoints that selected it: one bit each, by position in the plan.
        tracepoints: u64,
        /// Number of bytes reported.
        captured: u16,
        /// What the stream reports about the packet, with its final verdict.
        judgement: Judgement,
        /// The intended output port of a packet that policy allowed but that was lost afterwards. `None` otherwise.
        meant_for: Option<PortId>,
    },
}

/// Numbers of sessions and packets that were not reported, because a ring was full or too many packets were under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Sessions whose begin was not reported.
    pub sessions: u64,
    /// Dropped packets that were not reported.
    pub dropped: u64,
    /// Sessions whose end was not reported.
    pub endings: u64,
    /// Packets that tracepoints selected and that were not reported.
    pub packets: u64,
}

impl LeftOut {
    /// Returns the sum of all four numbers.
    pub const fn total(self) -> u64 {
        self.sessions + self.dropped + self.endings + self.packets
    }

    /// Returns the difference to an earlier count.
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

/// The numbers of [`LeftOut`] in a form that one worker writes and the reader reads.
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

/// Wakes the reader of a stream through a channel of one message.
#[derive(Debug)]
pub(super) struct Ringer {
    tell: Sender<()>,
    told: Receiver<()>,
}

impl Wake for Ringer {
    fn wake(&self) {
        // A message that is already in the channel wakes the reader too.
        let _ = self.tell.try_send(());
    }

    fn drain(&self) {
        let _ = self.told.try_recv();
    }
}

/// Creates the ends of a stream: one writer per worker and the reader.
pub(super) fn stream(plan: &StreamPlan, workers: usize) -> (Vec<StreamWriter>, StreamReader) {
    with_room(plan, workers, RECORDS, BYTES)
}

/// Like [`stream`], with rings of these sizes.
pub(super) fn with_room(
    plan: &StreamPlan,
    workers: usize,
    records: usize,
    bytes: usize,
) -> (Vec<StreamWriter>, StreamReader) {
    let mut writers = Vec::with_capacity(workers);
    let mut sources = Vec::with_capacity(workers);
    let (tell, told) = crossbeam_channel::bounded(1);
    let bell = Arc::new(Bell::new(Ringer { tell, told }));
    // Only tracepoints need packet bytes and places for packets.
    let traces = (!plan.tracepoints.is_empty()).then(|| Arc::new(Traces::new(workers)));
    for _ in 0..workers {
        let (record_writer, record_reader) = RingBuffer::new(records);
        let (byte_writer, byte_reader) = RingBuffer::new(if plan.tracepoints.is_empty() { 0 } else { bytes });
        let left_out = Arc::new(SharedLeftOut::default());
        sources.push(reader::Source::new(record_reader, byte_reader, Arc::clone(&left_out)));
        let records = records::Records::new(record_writer, Arc::clone(&bell));
        writers.push(StreamWriter::new(plan.clone(), records, byte_writer, left_out, traces.clone()));
    }
    (writers, StreamReader::new(sources, traces, bell))
}
