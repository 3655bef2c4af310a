//! The end that reads.

use std::sync::Arc;

use rtrb::Consumer;

use super::traces::Traces;
use super::{LONGEST_SNAP, LeftOut, Record, SharedLeftOut};

/// One worker's rings.
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

/// What workers tell, for one thread. Dropped, it is as one that never reads: the workers go on to count until there is another stream
/// or none.
#[derive(Debug)]
pub struct StreamReader {
    sources: Vec<Source>,
    bytes: Vec<u8>,
    traces: Option<Arc<Traces>>,
}

impl StreamReader {
    pub(super) fn new(sources: Vec<Source>, traces: Option<Arc<Traces>>) -> Self {
        Self { sources, bytes: Vec::with_capacity(LONGEST_SNAP.into()), traces }
    }

    /// Gives what has been told to `each`, at most so many records of each worker: the worker, the record, and the bytes of a
    /// packet. In the order of time of each worker, but that a packet that was held comes when its end is known. Returns how many
    /// there were. Waits for nobody.
    pub fn read(&mut self, most: usize, mut each: impl FnMut(usize, &Record, &[u8])) -> usize {
        let Self { sources, bytes, .. } = self;
        let mut count = 0;
        for (worker, source) in sources.iter_mut().enumerate() {
            for _ in 0..most {
                let Ok(record) = source.records.pop() else { break };
                bytes.clear();
                if let Record::Packet { captured, .. } = record {
                    bytes.resize(captured.into(), 0);
                    // They were written before the record.
                    source.bytes.pop_entire_slice(bytes).expect("a packet's bytes come before its record");
                }
                each(worker, &record, bytes);
                count += 1;
            }
        }
        count
    }

    /// Packets that tracepoints have selected and whose end is not known yet: they wait for a neighbour, or are between two workers.
    /// When the workers write to another stream, or to none, nobody tells of them any more.
    pub fn under_way(&self) -> u64 {
        self.traces.as_ref().map_or(0, |traces| traces.len() as u64)
    }

    /// What was left out so far because rings were full, or because too many packets were under way.
    pub fn left_out(&self) -> LeftOut {
        self.sources.iter().map(|source| source.left_out.read()).fold(LeftOut::default(), |sum, one| LeftOut {
            sessions: sum.sessions + one.sessions,
            dropped: sum.dropped + one.dropped,
            endings: sum.endings + one.endings,
            packets: sum.packets + one.packets,
        })
    }
}
