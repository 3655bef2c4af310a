//! The end that a worker writes to.

use std::sync::Arc;

use rtrb::Producer;

use super::{Judgement, LONGEST_SNAP, LeftOut, MOST_TRACEPOINTS, Record, SharedLeftOut, StreamPlan, Tracepoint};
use crate::packet::{self, LinkType};
use crate::worker::{Judgements, Witness, Worker};
use crate::{BURST, DropReason, Outcome, Received, SessionState, Verdict};

/// See the module above.
#[derive(Debug)]
pub(crate) struct StreamWriter {
    plan: StreamPlan,
    records: Producer<Record>,
    bytes: Producer<u8>,
    counts: LeftOut,
    shared: Arc<SharedLeftOut>,
    /// Lengths of the packets of the burst that is being judged.
    lengths: Vec<u32>,
    now: u64,
    generation: u64,
    /// How many packets were dropped outside of the engine when that was looked at last, by reason.
    dropped: Vec<u64>,
    /// Those of them that were told one by one since.
    told: Vec<u64>,
}

impl StreamWriter {
    pub(super) fn new(
        plan: StreamPlan,
        records: Producer<Record>,
        bytes: Producer<u8>,
        shared: Arc<SharedLeftOut>,
    ) -> Self {
        let (lengths, told) = (Vec::with_capacity(BURST), vec![0; DropReason::COUNT]);
        let counts = LeftOut::default();
        Self { plan, records, bytes, counts, shared, lengths, now: 0, generation: 0, dropped: Vec::new(), told }
    }

    /// The worker has the stream from now on. `dropped` is what it has dropped outside of the engine.
    pub(in crate::vswitch) fn begin(&mut self, engine: &mut Worker, dropped: &[u64]) {
        self.dropped = dropped.to_vec();
        engine.listen(self.plan.endings);
    }

    /// A round begins at this time, by a snapshot of this generation.
    pub(in crate::vswitch) fn begin_round(&mut self, now: u64, generation: u64) {
        (self.now, self.generation) = (now, generation);
    }

    /// A burst comes.
    pub(in crate::vswitch) fn begin_burst(&mut self) -> &mut Self {
        // Of one that was never seen, as the engine has failed.
        self.lengths.clear();
        self
    }

    /// Whether packets of this kind are to come to the worker, whatever the flow cache could do.
    pub(in crate::vswitch) fn keeps_from_cache(&self, packet: &Received<'_>) -> bool {
        let holds = |point: &&Tracepoint| point.keeps_from_cache;
        if !self.plan.tracepoints.iter().any(|point| holds(&point)) {
            return false;
        }
        let flow = packet::parse(LinkType::Ethernet, packet.frame, packet.wire_len).flow;
        flow.is_some_and(|flow| self.plan.tracepoints.iter().filter(holds).any(|point| point.filter.matches(&flow)))
    }

    /// A packet was dropped outside of the engine. Its bytes may have been cut off or rewritten.
    #[cold]
    pub(in crate::vswitch) fn tell_drop(&mut self, packet: &Received<'_>, reason: DropReason) {
        if !self.plan.verdicts {
            return;
        }
        let flow = packet::parse(LinkType::Ethernet, packet.frame, packet.wire_len).flow;
        let outcome = Outcome { in_port: packet.in_port, verdict: Verdict::Drop(reason), flow, ..Outcome::UNJUDGED };
        let len = u32::try_from(packet.wire_len).unwrap_or(u32::MAX);
        let judgement = Judgement { time: self.now, generation: self.generation, len, tcp_flags: None, outcome };
        self.told[reason.index()] += 1;
        self.push(Record::Dropped(judgement), |counts| &mut counts.dropped);
    }

    /// A round is over: tells of sessions that have ended, and of packets that were dropped and that nobody has told of.
    pub(in crate::vswitch) fn end_round(&mut self, engine: &mut Worker, dropped: &[u64]) {
        let now = self.now;
        if self.plan.endings {
            let left_out = engine.take_endings(|end| {
                let record = Record::Ended { time: now, end };
                push(&mut self.records, record, &mut self.counts.endings);
            });
            self.counts.endings += left_out;
        }
        if self.plan.verdicts && self.dropped != dropped {
            self.tell_lost(dropped);
        }
        self.shared.write(self.counts);
    }

    #[cold]
    fn tell_lost(&mut self, dropped: &[u64]) {
        for (&reason, &now) in DropReason::ALL.iter().zip(dropped) {
            let at = reason.index();
            let packets = (now - self.dropped[at]).saturating_sub(self.told[at]);
            // A packet may be told of before it is counted, in the same round.
            self.told[at] = self.told[at].saturating_sub(now - self.dropped[at]);
            if packets > 0 && self.records.push(Record::Lost { time: self.now, reason, packets }).is_err() {
                self.counts.dropped += packets;
            }
        }
        self.dropped.copy_from_slice(dropped);
    }

    fn push(&mut self, record: Record, of: impl Fn(&mut LeftOut) -> &mut u64) {
        push(&mut self.records, record, of(&mut self.counts));
    }

    /// A packet that tracepoints have selected, with its bytes.
    fn push_packet(&mut self, tracepoints: u64, judgement: Judgement, frame: &[u8]) {
        let wanted = |(at, point): (usize, &Tracepoint)| if tracepoints >> at & 1 == 1 { point.snap } else { 0 };
        let snap = self.plan.tracepoints.iter().take(MOST_TRACEPOINTS).enumerate().map(wanted).max().unwrap_or(0);
        let bytes = &frame[..frame.len().min(snap.min(LONGEST_SNAP).into())];
        let captured = u16::try_from(bytes.len()).unwrap_or(LONGEST_SNAP);
        // Both or none: the reader takes as many bytes as the record says.
        if self.records.is_full() || self.bytes.push_entire_slice(bytes).is_err() {
            self.counts.packets += 1;
            return;
        }
        push(&mut self.records, Record::Packet { tracepoints, captured, judgement }, &mut self.counts.packets);
    }

    fn judgement(&self, burst: &Judgements<'_>, at: usize) -> Judgement {
        Judgement {
            time: self.now,
            generation: burst.generation(),
            len: self.lengths.get(at).copied().unwrap_or_default(),
            tcp_flags: burst.tcp_flags(at),
            outcome: burst.outcome(at),
        }
    }

    /// Tells of sessions that have begun, and of packets that were dropped.
    fn tell_verdicts(&mut self, burst: &Judgements<'_>) {
        for at in 0..burst.judged().len() {
            let judged = &burst.judged()[at];
            // Whoever judges it tells of it.
            if judged.session == Some(SessionState::Hit) || judged.elsewhere.is_some() {
                continue;
            }
            match (judged.verdict, judged.session) {
                (Verdict::Drop(_), _) => {
                    let judgement = self.judgement(burst, at);
                    self.push(Record::Dropped(judgement), |counts| &mut counts.dropped);
                }
                (Verdict::Forward(_), Some(SessionState::New)) => {
                    let judgement = self.judgement(burst, at);
                    self.push(Record::Session(judgement), |counts| &mut counts.sessions);
                }
                (Verdict::Forward(_), _) => {}
            }
        }
    }

    /// Tells of packets that tracepoints select.
    fn tell_packets(&mut self, burst: &Judgements<'_>) {
        for at in 0..burst.judged().len() {
            let judged = &burst.judged()[at];
            let mut selected = 0;
            for (bit, point) in self.plan.tracepoints.iter().take(MOST_TRACEPOINTS).enumerate() {
                let fits = point.forwarded.is_none_or(|forwarded| forwarded == judged.verdict.out_port().is_some());
                selected |= u64::from(fits && burst.is_selected(at, &point.filter)) << bit;
            }
            if selected != 0 && judged.elsewhere.is_none() {
                let judgement = self.judgement(burst, at);
                self.push_packet(selected, judgement, burst.frame(at));
            }
        }
    }
}

impl Witness for StreamWriter {
    fn arrive(&mut self, wire_len: usize) {
        self.lengths.push(u32::try_from(wire_len).unwrap_or(u32::MAX));
    }

    fn see(&mut self, burst: &mut Judgements<'_>) {
        if self.plan.verdicts {
            self.tell_verdicts(burst);
        }
        if !self.plan.tracepoints.is_empty() {
            self.tell_packets(burst);
        }
        if self.plan.endings {
            for at in 0..burst.judged().len() {
                burst.tally(at, self.lengths.get(at).copied().unwrap_or_default().into());
            }
        }
        self.lengths.clear();
        self.shared.write(self.counts);
    }
}

fn push(records: &mut Producer<Record>, record: Record, left_out: &mut u64) {
    *left_out += u64::from(records.push(record).is_err());
}
