//! Folds repeats of a dropped flow within a second into one event with a count.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use bulkhead_dataplane::vswitch::stream::Judgement;
use bulkhead_dataplane::{DropReason, Flow, Learned, Outcome, PortId, SessionState, Snapshot, Verdict};

use bulkhead_answers::destination::DestinationNames;

/// How long repeats are counted before they are reported.
pub(super) const WINDOW: Duration = Duration::from_secs(1);

/// Maximum number of flows whose repeats are counted. Packets of further flows are reported one by one, which bounds the memory.
const FLOWS: usize = 4096;

/// A new session, or dropped packets of one flow.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub judgement: Judgement,
    /// Number of dropped packets of the flow. 1 for a new session.
    pub count: u64,
    /// The domain names of the destination. `None` if they do not matter, and until [`Event::name`] looks them up.
    pub names: Option<Box<DestinationNames>>,
}

impl Event {
    const fn of(judgement: &Judgement, count: u64) -> Self {
        Self { judgement: *judgement, count, names: None }
    }

    pub(super) const fn session(judgement: &Judgement) -> Self {
        Self::of(judgement, 1)
    }

    /// Creates an event for `count` dropped packets of which only the reason is known. `time` is in nanoseconds since 1970.
    pub(super) const fn lost(time: u64, reason: DropReason, count: u64) -> Self {
        let mut outcome = Outcome::UNJUDGED;
        (outcome.verdict, outcome.in_port) = (Verdict::Drop(reason), PortId(u16::MAX));
        Self::of(&Judgement { time, generation: 0, len: 0, tcp_flags: None, outcome }, count)
    }

    /// Looks up the domain names of the destination. The event is at most a second old, the [`WINDOW`] of repeats.
    pub(super) fn name(&mut self, snapshot: &Snapshot, learned: &Learned) {
        let Judgement { outcome, time, .. } = &self.judgement;
        self.names = DestinationNames::of(outcome, snapshot, learned, *time).map(Box::new);
    }

    pub(crate) fn is_session(&self) -> bool {
        self.judgement.outcome.session == Some(SessionState::New) && self.judgement.outcome.verdict.out_port().is_some()
    }

    /// Returns the addresses of both ends before and after translation.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let Outcome { flow, translation, .. } = self.judgement.outcome;
        let received = flow.map(|flow| [flow.src, flow.dst]);
        let sent = translation.map(|translation| [translation.src, translation.dst]);
        received.into_iter().chain(sent).flatten()
    }
}

type Key = (DropReason, PortId, Option<Flow>);

#[derive(Debug)]
struct Folded {
    since: Instant,
    last: Event,
}

/// The dropped flows whose repeats are being counted.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    flows: HashMap<Key, Folded>,
}

impl Repeats {
    /// Counts a dropped packet. Returns an event to report now if the packet is the first of its flow.
    pub(super) fn fold(&mut self, judgement: &Judgement, now: Instant) -> Option<Event> {
        let outcome = &judgement.outcome;
        let reason = outcome.verdict.drop_reason()?;
        let key = (reason, outcome.in_port, outcome.flow);
        if let Some(folded) = self.flows.get_mut(&key) {
            folded.last = Event::of(judgement, folded.last.count + 1);
            return None;
        }
        if self.flows.len() < FLOWS {
            self.flows.insert(key, Folded { since: now, last: Event::of(judgement, 0) });
        }
        Some(Event::of(judgement, 1))
    }

    /// Whether no flow's repeats are being counted.
    pub(super) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Returns repeats that were counted for [`WINDOW`], in the order of their last packets. Flows with repeats are counted further, others
    /// are forgotten.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Event> {
        let mut due = Vec::new();
        self.flows.retain(|_, folded| {
            if now.duration_since(folded.since) < WINDOW {
                return true;
            }
            if folded.last.count == 0 {
                return false;
            }
            due.push(folded.last.clone());
            (folded.since, folded.last.count) = (now, 0);
            true
        });
        due.sort_by_key(|event| event.judgement.time);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropped(reason: DropReason, sport: u16, time: u64) -> Judgement {
        let [src, dst] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let flow = Some(Flow { src, dst, protocol: 6, sport, dport: 80, icmp: None });
        let mut outcome = Outcome::UNJUDGED;
        (outcome.verdict, outcome.flow) = (Verdict::Drop(reason), flow);
        Judgement { time, generation: 1, len: 60, tcp_flags: None, outcome }
    }

    #[test]
    fn the_first_is_told_at_once_and_its_repeats_a_second_later_as_one() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let (denied, other) = (DropReason::PolicyDenied, DropReason::NoRoute);
        assert_eq!(repeats.fold(&dropped(denied, 1, 1), start).map(|event| event.count), Some(1));
        for time in 2..12 {
            assert!(repeats.fold(&dropped(denied, 1, time), start).is_none());
        }
        for judgement in [dropped(denied, 2, 20), dropped(other, 1, 21)] {
            assert!(repeats.fold(&judgement, start).is_some(), "another flow, another reason");
        }
        assert!(repeats.due(start + WINDOW / 2).is_empty());
        let due = repeats.due(start + WINDOW);
        let told: Vec<_> = due.iter().map(|event| (event.count, event.judgement.time)).collect();
        assert_eq!(told, [(10, 11)]);
        // The flow continues and is counted further. After a pause, it is new again.
        assert!(repeats.fold(&dropped(denied, 1, 30), start + WINDOW).is_none());
        assert_eq!(repeats.due(start + 2 * WINDOW).len(), 1);
        assert!(repeats.due(start + 3 * WINDOW).is_empty());
        assert!(repeats.fold(&dropped(denied, 1, 40), start + 3 * WINDOW).is_some());
    }

    #[test]
    fn all_packets_are_told_also_of_more_flows_than_are_remembered() {
        let (mut repeats, start, mut told) = (Repeats::default(), Instant::now(), 0);
        for round in 0..3 {
            for sport in 0..10_000 {
                told +=
                    repeats.fold(&dropped(DropReason::PolicyDenied, sport, round), start).map_or(0, |one| one.count);
            }
        }
        told += repeats.due(start + WINDOW).iter().map(|event| event.count).sum::<u64>();
        assert_eq!(told, 30_000);
        assert!(repeats.flows.len() <= FLOWS);
    }
}
