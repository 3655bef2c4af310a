//! The writing end of a stream, at a worker.

use std::sync::Arc;

use rtrb::Producer;

use super::records::Records;
use super::selection::Selection;
use super::traces::{Mark, Traces};
use super::{Judgement, LONGEST_SNAP, LeftOut, MOST_TRACEPOINTS, Record, SharedLeftOut, StreamPlan, Tracepoint};
use crate::flow::Translation;
use crate::packet::{self, LinkType};
use crate::vswitch::arrivals::Arrivals;
use crate::worker::{Judgements, Worker};
use crate::{DropReason, Flow, Outcome, PortId, SessionState, Verdict};

/// The receiving port in reports of packets whose receiving port is unknown.
const NOWHERE: PortId = PortId(u16::MAX);

/// The writing end of a stream.
#[derive(Debug)]
pub(crate) struct StreamWriter {
    pub(super) plan: StreamPlan,
    records: Records,
    bytes: Producer<u8>,
    counts: LeftOut,
    shared: Arc<SharedLeftOut>,
    now: u64,
    generation: u64,
    /// For each drop reason: packets dropped outside of the engine, as of the last check.
    dropped: Vec<u64>,
    /// For each drop reason: packets dropped since the last check that were reported one by one.
    told: Vec<u64>,
    selection: Selection,
    /// Buffer for the packets of a burst that tracepoints select: position in the burst, and set of tracepoints.
    chosen: Vec<(usize, u64)>,
    /// Packets selected by tracepoints, of all workers. `None` without tracepoints.
    traces: Option<Arc<Traces>>,
    /// Number of packets of this worker that tracepoints have selected.
    selected: u64,
    /// Marks for the burst that was just judged: each with its packet's position, in ascending order.
    pub(super) marks: Vec<(usize, Mark)>,
    /// Packets of this round whose fate is known: time of the verdict, sequence number, place.
    ended: Vec<(u64, u64, u16)>,
}

/// The available data about a packet that is lost outside of the engine.
#[derive(Clone, Copy, Debug)]
pub(in crate::vswitch) enum Known {
    /// The packet was not judged. Only its receiving port is known.
    Arrived(PortId),
    /// Policy allowed the packet, but its outcome was not kept. Its bytes are already rewritten for the output port.
    LetThrough,
    /// Policy allowed the packet with this outcome.
    Judged(Outcome),
}

#[derive(Clone, Copy, Debug)]
pub(in crate::vswitch) struct Lost<'a> {
    /// Bytes of the packet's first frame, possibly truncated or rewritten.
    pub(in crate::vswitch) frame: &'a [u8],
    /// The stream's mark on that frame. `None` if no tracepoint selected the packet.
    pub(in crate::vswitch) mark: Option<Mark>,
    /// Length of the packet in bytes.
    pub(in crate::vswitch) len: usize,
    pub(in crate::vswitch) reason: DropReason,
}

impl StreamWriter {
    pub(super) fn new(
        plan: StreamPlan,
        records: Records,
        bytes: Producer<u8>,
        shared: Arc<SharedLeftOut>,
        traces: Option<Arc<Traces>>,
    ) -> Self {
        Self {
            selection: Selection::new(&plan.tracepoints),
            plan,
            records,
            bytes,
            counts: LeftOut::default(),
            shared,
            now: 0,
            generation: 0,
            dropped: Vec::new(),
            told: vec![0; DropReason::COUNT],
            chosen: Vec::new(),
            traces,
            selected: 0,
            marks: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Attaches the stream to the worker. `dropped` counts the packets dropped outside of the engine so far, by reason.
    pub(in crate::vswitch) fn begin(&mut self, engine: &mut Worker, dropped: &[u64]) {
        self.dropped = dropped.to_vec();
        engine.listen(self.plan.endings);
    }

    /// Begins a round with a snapshot of this generation.
    pub(in crate::vswitch) fn begin_round(&mut self, now: u64, generation: u64) {
        (self.now, self.generation) = (now, generation);
    }

    /// Marks the frames of selected packets after they were judged.
    pub(in crate::vswitch) fn mark(&mut self, arrivals: &mut Arrivals) {
        if !self.marks.is_empty() {
            arrivals.mark(self.marks.drain(..));
        }
    }

    /// Whether a tracepoint keeps a flow with this translation out of the flow cache. Reads the flow only if there are such tracepoints.
    pub(in crate::vswitch) fn keeps_from_cache(
        &self,
        flow: impl FnOnce() -> Option<Flow>,
        sent: Option<&Translation>,
    ) -> bool {
        let holds = |point: &&Tracepoint| point.keeps_from_cache;
        if !self.plan.tracepoints.iter().any(|point| holds(&point)) {
            return false;
        }
        let Some(flow) = flow() else { return false };
        // Before and after translation.
        let leaves =
            |sent: &Translation| Flow { src: sent.src, dst: sent.dst, sport: sent.sport, dport: sent.dport, ..flow };
        let flows = [Some(flow), sent.map(leaves)];
        let selects = |point: &Tracepoint| flows.iter().flatten().any(|flow| point.filter.matches(flow));
        self.plan.tracepoints.iter().filter(holds).any(selects)
    }

    /// Whether the stream needs the outcomes of allowed packets that are lost later.
    pub(in crate::vswitch) const fn wants_losses(&self) -> bool {
        self.plan.verdicts || self.selection.dropped_alone() != 0
    }

    /// Whether any frame may have a mark.
    #[inline]
    pub(in crate::vswitch) fn has_marks(&self) -> bool {
        self.traces.as_ref().is_some_and(|traces| traces.has_some())
    }

    /// Reports a packet lost outside of the engine.
    #[cold]
    pub(in crate::vswitch) fn lose(&mut self, lost: &Lost<'_>, known: Known) {
        if let Some(mark) = lost.mark {
            self.end(mark, Some(lost.reason));
        }
        let wanted = match known {
            _ if lost.mark.is_some() => 0,
            Known::Arrived(_) => self.selection.wanting(Verdict::Drop(lost.reason)),
            // Other tracepoints did not select it, or have marked it.
            Known::LetThrough | Known::Judged(_) => self.selection.dropped_alone(),
        };
        if !self.plan.verdicts && wanted == 0 {
            return;
        }
        let judgement = self.judgement_of_lost(lost, known);
        if self.plan.verdicts {
            self.told[lost.reason.index()] += 1;
            // The allowing decision did not cause the drop.
            let outcome = Outcome { decision: None, session: None, audited: None, ..judgement.outcome };
            self.push(Record::Dropped(Judgement { outcome, ..judgement }), |counts| &mut counts.dropped);
        }
        let meant_for = if let Known::Judged(outcome) = known { outcome.verdict.out_port() } else { None };
        let tracepoints = self.wanting_flow(wanted, &judgement.outcome);
        if tracepoints != 0
            && let Some(place) = self.select(tracepoints, judgement, lost.frame)
        {
            self.finish(place, meant_for);
        }
    }

    /// Returns those of the tracepoints in set `of` whose filters match a packet before or after translation.
    fn wanting_flow(&self, of: u64, outcome: &Outcome) -> u64 {
        let sent = outcome.flow.zip(outcome.translation);
        let sent = sent.map(|(flow, sent)| Flow {
            src: sent.src,
            dst: sent.dst,
            sport: sent.sport,
            dport: sent.dport,
            ..flow
        });
        let wants = |point: &Tracepoint| match outcome.flow {
            Some(flow) => point.filter.matches(&flow) || sent.is_some_and(|sent| point.filter.matches(&sent)),
            None => point.filter.is_everything(),
        };
        let points = self.plan.tracepoints.iter().take(MOST_TRACEPOINTS).enumerate();
        points.filter(|(bit, point)| of >> bit & 1 == 1 && wants(point)).map(|(bit, _)| 1 << bit).sum()
    }

    fn judgement_of_lost(&self, lost: &Lost<'_>, known: Known) -> Judgement {
        let parsed = packet::parse(LinkType::Ethernet, lost.frame, lost.len);
        let seen = |in_port| Outcome { in_port, flow: parsed.flow, ..Outcome::UNJUDGED };
        let outcome = match known {
            Known::Arrived(port) => seen(port),
            Known::LetThrough => seen(NOWHERE),
            Known::Judged(outcome) => outcome,
        };
        Judgement {
            time: self.now,
            generation: self.generation,
            len: u32::try_from(lost.len).unwrap_or(u32::MAX),
            tcp_flags: parsed.tcp_flags().map(|flags| flags.0),
            outcome: Outcome { verdict: Verdict::Drop(lost.reason), ..outcome },
        }
    }

    /// Reports that the packet with this mark was sent, absorbed, or lost for this reason.
    pub(in crate::vswitch) fn end(&mut self, mark: Mark, lost: Option<DropReason>) {
        let Some(place) = self.traces.as_ref().and_then(|traces| traces.place(mark)) else { return };
        let mut meant_for = None;
        if let (Some(traces), Some(reason)) = (&self.traces, lost) {
            let outcome = &mut traces.at(place).judgement.outcome;
            meant_for = outcome.verdict.out_port();
            outcome.verdict = Verdict::Drop(reason);
        }
        self.finish(place, meant_for);
    }

    /// Forgets the packet with this mark: the worker panicked and its fate is unknown.
    pub(in crate::vswitch) fn forget(&mut self, mark: Mark) {
        if let Some(traces) = &self.traces
            && let Some(place) = traces.place(mark)
        {
            traces.give(place);
            self.counts.packets += 1;
        }
    }

    /// Ends the packet at this place with its verdict.
    fn finish(&mut self, place: u16, meant_for: Option<PortId>) {
        let Some(traces) = &self.traces else { return };
        let mut trace = traces.at(place);
        trace.meant_for = meant_for;
        trace.tracepoints &= self.selection.wanting(trace.judgement.outcome.verdict);
        self.ended.push((trace.judgement.time, trace.number, place));
    }

    /// Ends a round: reports ended sessions, packets whose fate is known, and drops that were not reported one by one.
    pub(in crate::vswitch) fn end_round(&mut self, engine: &mut Worker, dropped: &[u64]) {
        let now = self.now;
        if self.plan.endings {
            let left_out = engine.take_endings(|end| {
                let record = Record::Ended { time: now, end };
                push(&mut self.records, record, &mut self.counts.endings);
            });
            self.counts.endings += left_out;
        }
        if !self.ended.is_empty() {
            self.tell_ended();
        }
        if self.plan.verdicts && self.dropped != dropped {
            self.tell_lost(dropped);
        }
        self.shared.write(self.counts);
        self.records.ring();
    }

    /// Reports the packets of this round whose fate is known, in the order of their verdicts.
    fn tell_ended(&mut self) {
        let Some(traces) = self.traces.clone() else { return };
        let mut ended = std::mem::take(&mut self.ended);
        ended.sort_unstable();
        for (_, _, place) in ended.drain(..) {
            let trace = traces.at(place);
            if trace.tracepoints != 0 {
                // Writes both or neither: the reader takes as many bytes as the record says.
                let has_room = !self.records.is_full() && self.bytes.push_entire_slice(&trace.bytes).is_ok();
                let captured = u16::try_from(trace.bytes.len()).unwrap_or(LONGEST_SNAP);
                let (tracepoints, judgement, meant_for) = (trace.tracepoints, trace.judgement, trace.meant_for);
                match has_room {
                    true => self.push(Record::Packet { tracepoints, captured, judgement, meant_for }, |counts| {
                        &mut counts.packets
                    }),
                    false => self.counts.packets += 1,
                }
            }
            drop(trace);
            traces.give(place);
        }
        self.ended = ended;
    }

    #[cold]
    fn tell_lost(&mut self, dropped: &[u64]) {
        for (&reason, &now) in DropReason::ALL.iter().zip(dropped) {
            let at = reason.index();
            let packets = (now - self.dropped[at]).saturating_sub(self.told[at]);
            // A packet may be reported before it is counted, within one round.
            self.told[at] = self.told[at].saturating_sub(now - self.dropped[at]);
            if packets > 0 && !self.records.push(Record::Lost { time: self.now, reason, packets }) {
                self.counts.dropped += packets;
            }
        }
        self.dropped.copy_from_slice(dropped);
    }

    fn push(&mut self, record: Record, of: impl Fn(&mut LeftOut) -> &mut u64) {
        push(&mut self.records, record, of(&mut self.counts));
    }

    /// Keeps a selected packet until its fate is known. Returns its place. Returns `None`, and counts it, if too many are under way.
    fn select(&mut self, tracepoints: u64, judgement: Judgement, frame: &[u8]) -> Option<u16> {
        let wanted = |(at, point): (usize, &Tracepoint)| if tracepoints >> at & 1 == 1 { point.snap } else { 0 };
        let snap = self.plan.tracepoints.iter().take(MOST_TRACEPOINTS).enumerate().map(wanted).max().unwrap_or(0);
        let bytes = &frame[..frame.len().min(snap.min(LONGEST_SNAP).into())];
        let place = self.traces.as_ref().and_then(|traces| {
            let place = traces.take()?;
            let mut trace = traces.at(place);
            (trace.number, trace.tracepoints, trace.judgement) = (self.selected, tracepoints, judgement);
            trace.bytes.clear();
            trace.bytes.extend_from_slice(bytes);
            Some(place)
        });
        self.selected += 1;
        self.counts.packets += u64::from(place.is_none());
        place
    }

    fn judgement(&self, burst: &Judgements<'_>, at: usize, len: usize) -> Judgement {
        Judgement {
            time: self.now,
            generation: burst.generation(),
            len: u32::try_from(len).unwrap_or(u32::MAX),
            tcp_flags: burst.tcp_flags(at),
            outcome: burst.outcome(at),
        }
    }

    /// Reports sessions that began and packets that were dropped.
    pub(super) fn tell_verdicts(&mut self, burst: &Judgements<'_>, length: impl Fn(usize) -> usize) {
        for &at in burst.misses() {
            let judged = &burst.judged()[at];
            // The worker that judges it reports it.
            if judged.session == Some(SessionState::Hit) || judged.elsewhere.is_some() {
                continue;
            }
            match (judged.verdict, judged.session) {
                (Verdict::Drop(_), _) => {
                    let judgement = self.judgement(burst, at, length(at));
                    self.push(Record::Dropped(judgement), |counts| &mut counts.dropped);
                }
                (Verdict::Forward(_), Some(SessionState::New)) => {
                    let judgement = self.judgement(burst, at, length(at));
                    self.push(Record::Session(judgement), |counts| &mut counts.sessions);
                }
                (Verdict::Forward(_), _) => {}
            }
        }
    }

    /// Keeps the packets that tracepoints select. `first` is the number of packets before this burst.
    pub(super) fn select_packets(&mut self, burst: &Judgements<'_>, first: usize, length: impl Fn(usize) -> usize) {
        let mut chosen = std::mem::take(&mut self.chosen);
        self.selection.select(&self.plan.tracepoints, burst, |at, tracepoints| chosen.push((at, tracepoints)));
        for (at, tracepoints) in chosen.drain(..) {
            let judgement = self.judgement(burst, at, length(at));
            let place = self.select(tracepoints, judgement, burst.frame(at));
            match (judgement.outcome.verdict, place) {
                (Verdict::Forward(_), _) => {
                    let mark = self.traces.as_ref().map(|traces| traces.mark(place));
                    self.marks.extend(mark.map(|mark| (first + at, mark)));
                }
                (Verdict::Drop(_), Some(place)) => self.ended.push((judgement.time, self.selected - 1, place)),
                (Verdict::Drop(_), None) => {}
            }
        }
        self.chosen = chosen;
    }
}

fn push(records: &mut Records, record: Record, left_out: &mut u64) {
    *left_out += u64::from(!records.push(record));
}
