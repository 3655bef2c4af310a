//! Judges received packets, and reports them to the stream, the tap and the flow cache.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::Captured;
use super::super::arrivals::Arrivals;
use super::super::caching::About;
use super::Stage;
use crate::{BodyKind, DropReason, Judged, LinkType, Outcome, Packet, Received, Snapshot};

impl Stage {
    /// Judges the waiting packets and executes the verdicts.
    pub(super) fn judge(&mut self, snapshot: &Snapshot) {
        if self.arrivals.len() == 0 {
            return;
        }
        let mut arrivals = std::mem::take(&mut self.arrivals);
        if let Some(caching) = &mut self.caching {
            caching.catch_up(&mut self.engine, arrivals.iter(&self.umem), self.now);
        }
        if self.tap.is_some() {
            self.judge_for_tap(snapshot, &arrivals);
        } else {
            self.ask_engine_safely(snapshot, &arrivals);
        }
        if let Some(stream) = &mut self.ledger.stream {
            stream.mark(&mut arrivals);
        }
        if let Some(caching) = &mut self.caching {
            let about = About {
                engine: &self.engine,
                forwarder: &self.forwarder,
                snapshot,
                now: self.now,
                stream: self.ledger.stream.as_deref(),
            };
            caching.offer(&about, arrivals.iter(&self.umem).zip(&self.judged));
            caching.open_connections(&about, arrivals.iter(&self.umem).zip(&self.judged));
        }
        self.depart(snapshot, &mut arrivals);
        self.arrivals = arrivals;
        self.swept_at = self.now;
    }

    /// Calls the engine. Separate from the execution of verdicts, because one function with both loops would run out of registers.
    #[inline(never)]
    fn ask_engine(&mut self, snapshot: &Snapshot, arrivals: &Arrivals) {
        match &self.ledger.stream {
            None => self.engine.judge(snapshot, self.now, arrivals.iter(&self.umem), &mut self.judged),
            Some(_) => self.ask_engine_and_tell(snapshot, arrivals),
        }
    }

    /// Like [`Stage::ask_engine`], and reports the results to the attached stream.
    #[inline(never)]
    fn ask_engine_and_tell(&mut self, snapshot: &Snapshot, arrivals: &Arrivals) {
        let Some(stream) = &mut self.ledger.stream else { return };
        let (packets, mut witness) = (arrivals.iter(&self.umem), stream.watch(arrivals));
        self.engine.judge_before(snapshot, self.now, packets, &mut self.judged, &mut witness);
    }

    /// Like [`Stage::ask_engine`], but a panic only affects these packets. Wraps that function instead of being part of it, because a
    /// closure's captures are not in registers.
    pub(super) fn ask_engine_safely(&mut self, snapshot: &Snapshot, arrivals: &Arrivals) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.ask_engine(snapshot, arrivals))) {
            // Packets that the engine has counted keep their result. The others count as unjudged.
            for packet in arrivals.iter(&self.umem).skip(self.judged.len()) {
                self.ledger.tell_arrived(&packet, DropReason::Unjudged);
            }
            self.judged.resize(arrivals.len(), Judged::UNJUDGED);
            self.go_on_after(panic);
        }
    }

    /// Like the engine's `judge`, and sends all outcomes to the tap.
    #[cold]
    #[inline(never)]
    fn judge_for_tap(&mut self, snapshot: &Snapshot, arrivals: &Arrivals) {
        let link = LinkType::Ethernet;
        let of = |Received { frame, wire_len, in_port }| Packet { frame, wire_len, link, in_port, time: self.now };
        let packets: Vec<Packet<'_>> = arrivals.iter(&self.umem).map(of).collect();
        let mut outcomes = vec![Outcome::UNJUDGED; packets.len()];
        match &mut self.ledger.stream {
            None => self.engine.process(snapshot, &packets, &mut outcomes),
            Some(stream) => {
                self.engine.process_before(snapshot, &packets, &mut outcomes, &mut stream.watch(arrivals));
            }
        }
        self.judged.clear();
        for (packet, outcome) in packets.iter().zip(&outcomes) {
            let (verdict, session, translation) = (outcome.verdict, outcome.session, outcome.place);
            self.judged.push(Judged {
                verdict,
                body: BodyKind::Unknown,
                session,
                translation,
                elsewhere: outcome.elsewhere,
            });
            if outcome.elsewhere.is_some() {
                // The worker that judges it reports it.
                continue;
            }
            let Some(tap) = self.tap.as_ref().filter(|tap| tap.has_room()) else {
                self.ledger.counters.tap_missed += 1;
                continue;
            };
            let (bytes, wire_len, outcome) = (packet.frame.into(), packet.wire_len, *outcome);
            let taken = tap.offer(Captured { time: self.now, bytes, wire_len, outcome });
            self.ledger.counters.tap_missed += u64::from(!taken);
        }
    }
}
