//! The reading end of a stream.

use std::sync::Arc;

use crossbeam_channel::Receiver;
use rtrb::Consumer;

use super::traces::Traces;
use super::{LONGEST_SNAP, LeftOut, Record, Ringer, SharedLeftOut};
use crate::vswitch::bell::Bell;

/// The reading ends of one worker's two rings.
#[derive(Debug)]
pub(super) struct Source {
    records: Consumer<Record>,
    bytes: Consumer<u8>,
    left_out: Arc<SharedLeftOut>,
}

impl Source {
    pub(super) const fn new(records: Consumer<Record>, bytes: Consumer<u8>, left_out: Arc<SharedLeftOut>) -> Self {
        Self { records, bytes, left_out }
    }
}

/// The reading end of a stream, for one thread. Dropping the reader does not stop the workers: they count what they cannot write until
/// another stream is attached or the stream is closed.
#[derive(Debug)]
pub struct StreamReader {
    sources: Vec<Source>,
    bytes: Vec<u8>,
    traces: Option<Arc<Traces>>,
    bell: Arc<Bell<Ringer>>,
}

impl StreamReader {
    pub(super) fn new(sources: Vec<Source>, traces: Option<Arc<Traces>>, bell: Arc<Bell<Ringer>>) -> Self {
        Self { sources, bytes: Vec::with_capacity(LONGEST_SNAP.into()), traces, bell }
    }

    /// Makes the workers wake the reader when they write a record: they send a message to this channel, which the caller must now wait for.
    /// `None` if records are already waiting. Waking costs a worker a system call, so under load a reader should rather
    /// [`read`](Self::read) from time to time.
    pub fn sleep(&self) -> Option<&Receiver<()>> {
        self.bell.prepare_to_sleep();
        if self.sources.iter().all(|source| source.records.is_empty()) {
            return Some(&self.bell.waker().told);
        }
        self.bell.awake();
        None
    }

    /// Ends the sleep: workers no longer wake the reader.
    pub fn awake(&self) {
        self.bell.awake();
    }

    /// Calls `each` with the worker, the record and the packet's bytes, for at most `most` records of each worker. Records of a worker are
    /// in order of time, except that a held packet is reported when its fate is known. Returns the number of records. Does not block.
    pub fn read(&mut self, most: usize, mut each: impl FnMut(usize, &Record, &[u8])) -> usize {
        let Self { sources, bytes, .. } = self;
        let mut count = 0;
        for (worker, source) in sources.iter_mut().enumerate() {
            for _ in 0..most {
                let Ok(record) = source.records.pop() else { break };
                bytes.clear();
                if let Record::Packet { captured, .. } = record {
                    bytes.resize(captured.into(), 0);
                    // The writer puts the bytes into the ring before the record.
                    source.bytes.pop_entire_slice(bytes).expect("a packet's bytes come before its record");
                }
                each(worker, &record, bytes);
                count += 1;
            }
        }
        count
    }

    /// Returns the number of packets selected by tracepoints whose fate is unknown: they wait for a neighbour or are between two workers.
    /// They are never reported if the workers switch to another stream.
    pub fn under_way(&self) -> u64 {
        self.traces.as_ref().map_or(0, |traces| traces.len() as u64)
    }

    /// Records left out so far because a ring was full or too many packets were under way.
    pub fn left_out(&self) -> LeftOut {
        self.sources.iter().map(|source| source.left_out.read()).fold(LeftOut::default(), |sum, one| LeftOut {
            sessions: sum.sessions + one.sessions,
            dropped: sum.dropped + one.dropped,
            endings: sum.endings + one.endings,
            packets: sum.packets + one.packets,
        })
    }
}
