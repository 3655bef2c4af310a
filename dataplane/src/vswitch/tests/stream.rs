//! The records that workers write to a stream, and those that they leave out.

use super::caching::{Recorded, slot};
use super::*;
use crate::filter::Filter;
use crate::testbed::{FIN, b_to_a};
use crate::vswitch::stream::{LONGEST_SNAP, LeftOut, Record, Tracepoint, with_room};
use crate::{Decision, SessionState};
use bulkhead_classifier::OriginId;

const ALL: fn() -> StreamPlan = || StreamPlan { verdicts: true, endings: true, ..StreamPlan::default() };

fn tracing(filter: &str) -> Tracepoint {
    Tracepoint { filter: Filter::parse(filter).unwrap(), snap: LONGEST_SNAP, ..Tracepoint::default() }
}

fn plan_of(points: impl IntoIterator<Item = Tracepoint>) -> StreamPlan {
    StreamPlan { tracepoints: points.into_iter().collect(), ..StreamPlan::default() }
}

impl Node {
    /// Opens a stream and waits until the workers write to it.
    fn open_stream(&self, plan: &StreamPlan) -> StreamReader {
        let reader = self.vswitch.open_stream(plan);
        self.vswitch.counters();
        reader
    }

    /// Opens a stream with small rings.
    fn open_narrow(&self, plan: &StreamPlan, records: usize, bytes: usize) -> StreamReader {
        let (writers, reader) = with_room(plan, self.vswitch.workers.len(), records, bytes);
        for (worker, writer) in writers.into_iter().enumerate() {
            self.vswitch.tell(worker, Command::Stream(Some(Box::new(writer))));
        }
        self.vswitch.counters();
        reader
    }
}

/// Reads all records from the rings.
fn all(reader: &mut StreamReader) -> Vec<(Record, Vec<u8>)> {
    let mut records = Vec::new();
    reader.read(usize::MAX, |_, record, bytes| records.push((*record, bytes.to_vec())));
    records
}

fn counted(records: &[(Record, Vec<u8>)]) -> LeftOut {
    let mut counts = LeftOut::default();
    for (record, _) in records {
        match record {
            Record::Session(_) => counts.sessions += 1,
            Record::Dropped(_) => counts.dropped += 1,
            Record::Lost { packets, .. } => counts.dropped += packets,
            Record::Ended { .. } => counts.endings += 1,
            Record::Packet { .. } => counts.packets += 1,
        }
    }
    counts
}

#[test]
fn sessions_and_drops_are_told_with_who_has_decided() {
    let mut node = Node::start(1, snapshot_of(5, live_ports()));
    let mut reader = node.open_stream(&ALL());
    for packet in [a_to_b(SYN), udp("10.0.0.1", "10.0.0.2", 81), with_ttl(tcp("10.0.0.1", "10.0.0.2", 7, 80, SYN), 1)] {
        node.send(A, &from_a(&packet));
    }
    node.until_dropped(DropReason::TtlExpired, 1);
    node.receive(B);
    node.send(B, &ethernet(B_MAC, 0x0800, &b_to_a(SYN | ACK)));
    node.receive(A);
    node.vswitch.counters();
    let records = all(&mut reader);
    let [Record::Session(begun), Record::Dropped(denied), Record::Dropped(expired)] =
        *records.iter().map(|(record, _)| *record).collect::<Vec<_>>()
    else {
        panic!("{records:?}")
    };
    assert_eq!((begun.generation, begun.tcp_flags, begun.len), (5, Some(SYN), 54));
    assert_eq!((begun.outcome.in_port, begun.outcome.verdict), (A, Verdict::Forward(B)));
    let origin = |judgement: &crate::vswitch::stream::Judgement| judgement.outcome.decision.and_then(|one| one.origin);
    assert_eq!((origin(&begun), begun.outcome.session), (Some(OriginId(7)), Some(SessionState::New)));
    assert_eq!((origin(&denied), denied.outcome.verdict), (Some(OriginId(8)), Verdict::Drop(DropReason::PolicyDenied)));
    assert_eq!(denied.outcome.flow.map(|flow| flow.dport), Some(81));
    assert_eq!(expired.outcome.verdict, Verdict::Drop(DropReason::TtlExpired));
    assert!(begun.time > 0 && reader.left_out() == LeftOut::default());
    // Ended on request, with its traffic: the SYN and its answer.
    assert!(node.vswitch.end_sessions(&SessionSelector::default(), |_| ()));
    node.vswitch.counters();
    let mut ended = Vec::new();
    node.until("end", |_| {
        ended.extend(all(&mut reader));
        !ended.is_empty()
    });
    let (Record::Ended { end, .. }, _) = ended[0] else { panic!("{ended:?}") };
    assert_eq!((end.session.initiator, end.session.responder), ((ip("10.0.0.1"), 40_000), (ip("10.0.0.2"), 80)));
    assert_eq!((end.tally.packets, end.tally.bytes, end.is_cut), (2, 108, false));
    node.vswitch.close_stream();
    node.send(A, &from_a(&udp("10.0.0.1", "10.0.0.2", 82)));
    node.until_dropped(DropReason::PolicyDenied, 2);
    assert_eq!(all(&mut reader).len(), 0, "nothing is recorded any more");
    node.stop();
}

#[test]
fn a_worker_wakes_a_reader_that_sleeps_and_none_that_is_awake() {
    let mut node = Node::start(1, snapshot_of(5, live_ports()));
    let mut reader = node.open_stream(&ALL());
    let rung = reader.sleep().expect("nothing is recorded yet").clone();
    node.send(A, &from_a(&a_to_b(SYN)));
    assert!(rung.recv_timeout(Duration::from_secs(20)).is_ok(), "the reader is woken");
    reader.awake();
    assert!(reader.sleep().is_none(), "a record waits");
    assert_eq!(all(&mut reader).len(), 1);
    node.send(A, &from_a(&udp("10.0.0.1", "10.0.0.2", 81)));
    node.until_dropped(DropReason::PolicyDenied, 1);
    node.vswitch.counters();
    assert!(rung.is_empty() && all(&mut reader).len() == 1);
    node.stop();
}

#[test]
fn a_session_that_a_newer_policy_cuts_is_told_to_have_ended() {
    let mut node = Node::start(1, snapshot_of(1, live_ports()));
    node.send(A, &from_a(&a_to_b(SYN)));
    node.receive(B);
    let mut reader = node.open_stream(&ALL());
    let mut ports = live_ports();
    ports[B.index()].egress = Some(crate::testbed::CLOSED);
    node.publisher.publish(snapshot_of(2, ports)).unwrap();
    node.send(A, &from_a(&a_to_b(ACK)));
    node.until_dropped(DropReason::PolicyDenied, 1);
    node.vswitch.counters();
    let records = all(&mut reader);
    let cut = |(record, _): &(Record, Vec<u8>)| matches!(record, Record::Ended { end, .. } if end.is_cut);
    assert!(records.iter().any(cut), "{records:?}");
    assert_eq!(counted(&records), LeftOut { dropped: 1, endings: 1, ..LeftOut::default() });
    node.stop();
}

#[test]
fn what_was_read_and_what_was_left_out_is_what_happened() {
    let mut overflowed = false;
    for (workers, records) in [(1, 16), (1, 1 << 14), (3, 64)] {
        let mut node = Node::start(workers, snapshot_of(1, live_ports()));
        let before = node.vswitch.counters();
        let plan = StreamPlan { tracepoints: [tracing("udp")].into(), ..ALL() };
        let mut reader = node.open_narrow(&plan, records, 4096);
        node.peers[HOST.index()] = None;
        let mut seen = LeftOut::default();
        let mut udp_packets = 0;
        for round in 0..200u16 {
            let odd = match round % 5 {
                0 => udp("10.0.0.1", "10.0.0.2", 81 + round),
                1 => udp("10.0.0.1", "10.0.0.2", 80),
                // To an absent port; with a spoofed source; with the last hop used up.
                2 => udp("10.0.0.1", "192.168.0.1", 53),
                3 => udp("10.9.9.9", "10.0.0.2", 80),
                _ => with_ttl(udp("10.0.0.1", "10.0.0.2", 80), 1),
            };
            let burst: Vec<Vec<u8>> = (0..20)
                .map(|at| from_a(&tcp("10.0.0.1", "10.0.0.2", 1000 + round * 20 + at, 80, SYN)))
                .chain([from_a(&odd), from_a(&tcp("10.0.0.1", "10.0.0.2", 9, 9, FIN)), vec![0; 10]])
                .collect();
            udp_packets += 1;
            node.send_burst(A, &burst);
            while node.peers[B.index()].as_mut().unwrap().pop().is_some() {}
            if round % 50 == 0 {
                let read = counted(&all(&mut reader));
                (seen.sessions, seen.dropped) = (seen.sessions + read.sessions, seen.dropped + read.dropped);
                (seen.endings, seen.packets) = (seen.endings + read.endings, seen.packets + read.packets);
            }
        }
        let until_all = |node: &mut Node, packets: u64| {
            node.until("all packets", |node| {
                while node.peers[B.index()].as_mut().unwrap().pop().is_some() {}
                let counters = node.vswitch.counters();
                counters.port(A).received == packets && counters.lost() == 0
            });
        };
        until_all(&mut node, 200 * 23);
        node.vswitch.end_sessions(&SessionSelector { service: Some(80), ..Default::default() }, |_| ());
        // The next round records their ends.
        node.send(A, &from_a(&a_to_b(FIN)));
        until_all(&mut node, 200 * 23 + 1);
        let counters = node.vswitch.counters();
        let read = counted(&all(&mut reader));
        let left_out = reader.left_out();
        let sum = |of: fn(&LeftOut) -> u64| of(&seen) + of(&read) + of(&left_out);
        let created = counters.sum(|worker| worker.engine.sessions().created);
        assert_eq!(sum(|counts| counts.sessions), created, "{workers} {records}");
        let dropped = |counters: &VswitchCounters| counters.drops().map(|(_, count)| count).sum::<u64>();
        assert_eq!(sum(|counts| counts.dropped), dropped(&counters) - dropped(&before), "{workers} {records}");
        let sessions = counters.sum(|worker| worker.sessions);
        assert_eq!(sum(|counts| counts.endings), created - sessions, "{workers} {records}");
        // Some packets are held, since the host's address never resolves.
        assert_eq!(reader.under_way(), counters.sum(|worker| worker.held), "{workers} {records}");
        assert_eq!(sum(|counts| counts.packets) + reader.under_way(), udp_packets, "{workers} {records}");
        overflowed |= left_out.total() > 0;
        node.stop();
    }
    assert!(overflowed, "small rings overflow");
}

#[test]
fn tracepoints_tell_the_packets_that_they_select_and_their_bytes() {
    let mut node = Node::start(1, snapshot_of(1, live_ports()));
    let points = [
        tracing("dst port 80"),
        Tracepoint { forwarded: Some(false), snap: 20, ..tracing("") },
        tracing("src host 10.0.0.2"),
    ];
    let mut reader = node.open_stream(&plan_of(points));
    let (request, other) = (from_a(&a_to_b(SYN)), from_a(&udp("10.0.0.1", "10.0.0.2", 81)));
    node.send(A, &request);
    node.receive(B);
    node.send(A, &other);
    node.send(A, &ethernet(A_MAC, 0x1234, &[0; 46]));
    node.until_dropped(DropReason::UnknownEthertype, 1);
    node.send(B, &ethernet(B_MAC, 0x0800, &b_to_a(SYN | ACK)));
    node.receive(A);
    let hit = from_a(&a_to_b(ACK));
    // The second packet takes the fast path.
    for _ in 0..2 {
        node.send(A, &hit);
        node.receive(B);
    }
    node.vswitch.counters();
    let told: Vec<(u64, Vec<u8>, Option<Decision>)> = all(&mut reader)
        .into_iter()
        .map(|(record, bytes)| {
            let Record::Packet { tracepoints, judgement, .. } = record else { panic!("{record:?}") };
            (tracepoints, bytes, judgement.outcome.decision)
        })
        .collect();
    let points: Vec<u64> = told.iter().map(|(points, ..)| *points).collect();
    assert_eq!(points, [0b1, 0b10, 0b10, 0b100, 0b1, 0b1], "{told:?}");
    assert_eq!((&told[0].1, &told[1].1[..], told[2].1.len()), (&request, &other[..20], 20));
    let allowed = Some(OriginId(7));
    assert!([0, 3, 4, 5].map(|at: usize| told[at].2.unwrap().origin).iter().all(|origin| *origin == allowed));
    node.stop();
}

#[test]
fn flows_that_a_tracepoint_keeps_out_are_not_cached_and_others_are() {
    let cache = Arc::new(Recorded::answering());
    let flow_cache: Arc<dyn FlowCache> = Arc::clone(&cache) as Arc<dyn FlowCache>;
    let mut node = Node::unplugged(1, snapshot_of(4, live_ports()), None, Some(flow_cache));
    for id in [UPLINK, HOST, A, B] {
        node.plug_with(id, |port| port.with_slot(slot(id)));
    }
    // The second selects TCP from B only: a connection is cached in both directions or in none.
    let kept = |filter| Tracepoint { keeps_from_cache: true, ..tracing(filter) };
    let mut reader = node.open_stream(&plan_of([kept("udp"), kept("tcp and src host 10.0.0.2"), tracing("tcp")]));
    let exchange = |node: &mut Node, port: u16| {
        for _ in 0..3 {
            node.send(A, &from_a(&udp("10.0.0.1", "10.0.0.2", 80)));
            node.receive(B);
        }
        node.send(A, &from_a(&tcp("10.0.0.1", "10.0.0.2", port, 80, SYN)));
        node.receive(B);
    };
    exchange(&mut node, 40_001);
    node.vswitch.counters();
    assert_eq!((cache.flows(), all(&mut reader).len()), (vec![], 4));
    node.vswitch.close_stream();
    node.vswitch.counters();
    exchange(&mut node, 40_002);
    node.vswitch.counters();
    let protocols: Vec<u8> = cache.flows().iter().map(|flow| flow.flow.protocol).collect();
    assert_eq!(protocols.iter().filter(|&&protocol| protocol == 6).count(), 2, "restored: {protocols:?}");
    assert!(protocols.contains(&17), "{protocols:?}");
    node.stop();
}
