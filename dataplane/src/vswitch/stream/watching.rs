//! The witness that feeds a stream.

use super::StreamWriter;
use crate::vswitch::arrivals::Arrivals;
use crate::worker::{Judgements, Witness};

/// Reports judged packets to a stream.
pub(crate) struct Watching<'a> {
    writer: &'a mut StreamWriter,
    arrivals: &'a Arrivals,
    /// Number of packets in the arrivals that were judged before this burst.
    first: usize,
}

impl StreamWriter {
    /// Returns the witness for these packets, which are about to be judged.
    pub(in crate::vswitch) fn watch<'a>(&'a mut self, arrivals: &'a Arrivals) -> Watching<'a> {
        // Left over if the engine panicked.
        self.marks.clear();
        Watching { writer: self, arrivals, first: 0 }
    }
}

impl Witness for Watching<'_> {
    fn see(&mut self, burst: &mut Judgements<'_>) {
        let (writer, arrivals, first) = (&mut *self.writer, self.arrivals, self.first);
        let length = |at: usize| arrivals.length(first + at);
        if writer.plan.verdicts {
            writer.tell_verdicts(burst, length);
        }
        if !writer.plan.tracepoints.is_empty() {
            writer.select_packets(burst, first, length);
        }
        if writer.plan.endings {
            for at in 0..burst.judged().len() {
                burst.tally(at, length(at) as u64);
            }
        }
        self.first += burst.judged().len();
    }
}
