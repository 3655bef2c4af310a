//! Copies of packets that the flow cache has forwarded. They are judged like other packets, renew their flows and are discarded.
//!
//! They have separate arrivals, so that other code need not check for copies. Their order among other packets does not matter, because the
//! packet itself was already sent.

use super::super::arrivals::Arrival;
use super::super::caching::About;
use super::Stage;
use crate::io::Frame;
use crate::{Snapshot, Verdict};

impl Stage {
    /// Judges the copies received in this round, and renews their flows in the flow cache.
    #[inline]
    pub(super) fn judge_copies(&mut self, snapshot: &Snapshot) {
        if self.copies.len() > 0 {
            self.renew(snapshot);
        }
    }

    #[cold]
    #[inline(never)]
    fn renew(&mut self, snapshot: &Snapshot) {
        let mut copies = std::mem::take(&mut self.copies);
        self.ask_engine_safely(snapshot, &copies);
        if let Some(stream) = &mut self.ledger.stream {
            stream.mark(&mut copies);
        }
        if let Some(caching) = &mut self.caching {
            let about = About {
                engine: &self.engine,
                forwarder: &self.forwarder,
                snapshot,
                now: self.now,
                stream: self.ledger.stream.as_deref(),
            };
            caching.renew(&about, copies.iter(&self.umem).zip(&self.judged));
        }
        let judged = std::mem::take(&mut self.judged);
        let (packets, mut frames) = copies.drain();
        for (arrival, judged) in packets.zip(&judged) {
            let packet = frames.by_ref().take(1 + arrival.rest());
            match judged.elsewhere {
                Some(worker) => self.hand_over(usize::from(worker.get()) - 1, arrival, packet),
                None => self.end_copy(arrival, judged.verdict, packet),
            }
        }
        drop(frames);
        (self.copies, self.judged) = (copies, judged);
    }

    /// Counts a packet on behalf of the flow cache, which has sent it. The engine has already counted it if policy denies it now.
    fn end_copy(&mut self, arrival: Arrival, verdict: Verdict, packet: impl Iterator<Item = Frame>) {
        if let Verdict::Forward(out) = verdict {
            self.ports.count_sent(out, arrival.len());
            self.ledger.counters.sent += 1;
        }
        for frame in packet {
            self.ledger.leave(&frame);
            self.pool.give(frame);
        }
    }
}
