//! Connections that are added to a flow cache with their SYN or SYN-ACK.

use std::collections::HashSet;

use super::caching::{Recorded, slot, stepped_with};
use super::*;
use crate::io::{CachedFlow, FirstNumbers, FlowHandshake, FlowStart, FlowSteps, Initiator};
use crate::packet::TcpFlags;
use crate::testbed::{RST, b_to_a, tcp_at};
use crate::{SessionCounters, TcpWindow};

const SECOND: u64 = 1_000_000_000;

/// A stepped worker, and the cache that it adds flows to.
struct Lab {
    cache: Arc<Recorded>,
    vswitch: Vswitch,
    worker: SteppedWorker,
    a: LoopbackPeer,
    b: LoopbackPeer,
}

impl Lab {
    fn new() -> Self {
        Self::with(SessionConfig::live(1000))
    }

    fn with(sessions: SessionConfig) -> Self {
        Self::of(Recorded::default(), sessions)
    }

    /// Creates a worker whose cache forwards SYN-ACKs.
    fn answering() -> Self {
        Self::of(Recorded::answering(), SessionConfig::live(1000))
    }

    fn of(cache: Recorded, sessions: SessionConfig) -> Self {
        let cache = Arc::new(cache);
        let (vswitch, worker, [a, b]) = stepped_with(&cache, live_ports(), sessions);
        Self { cache, vswitch, worker, a, b }
    }

    /// Whether a packet from A at this time is sent to B.
    fn forwards_from_a(&mut self, packet: &[u8], now: u64) -> bool {
        self.a.push(&from_a(packet)).unwrap();
        self.worker.round(now);
        self.b.pop().is_some()
    }

    /// Whether a packet from B at this time is sent to A.
    fn forwards_from_b(&mut self, packet: &[u8], now: u64) -> bool {
        self.b.push(&ethernet(B_MAC, 0x0800, packet)).unwrap();
        self.worker.round(now);
        self.a.pop().is_some()
    }

    /// Exchanges SYN and SYN-ACK. Returns the flows added to the cache.
    fn open(&mut self, now: u64) -> Vec<CachedFlow> {
        assert!(self.forwards_from_a(&a_to_b(SYN), now) && self.forwards_from_b(&b_to_a(SYN | ACK), now));
        self.cache.take()
    }

    /// Marks all handshakes as ended by the kernel.
    fn end_handshakes(&self) {
        self.cache.forward(|steps| steps.has_ended = true);
    }

    fn sessions(&self) -> SessionCounters {
        self.worker.counters().engine.sessions()
    }
}

#[test]
fn both_directions_are_added_before_the_syn_ack_is_sent() {
    let mut lab = Lab::new();
    let [reply, forward] = *lab.open(1) else { panic!("two flows") };
    assert_eq!((reply.from, reply.to, reply.ports), (slot(B), slot(A), [B, A]));
    assert_eq!((forward.from, forward.to, forward.ports), (slot(A), slot(B), [A, B]));
    assert_eq!((forward.flow.src, forward.flow.sport), (ip("10.0.0.1"), 40_000));
    assert_eq!((forward.flow.dst, forward.flow.dport, forward.flow.protocol), (ip("10.0.0.2"), 80, 6));
    assert_eq!((reply.flow.src, reply.flow.sport, reply.flow.dst), (ip("10.0.0.2"), 80, ip("10.0.0.1")));
    let macs = |destination: [u8; 6], source: [u8; 6]| [destination, source].concat();
    assert_eq!((&forward.received[..], &forward.sent[..]), (&*macs(own_mac(2), A_MAC), &*macs(B_MAC, own_mac(3))));
    assert_eq!(&reply.sent[..], &*macs(A_MAC, own_mac(2)));
    assert_eq!((forward.epochs, forward.origin, forward.translation), ([1, 1], reply.origin, None));
    assert_eq!((forward.lease, forward.is_hop), (SECOND / 2, true));
    let FlowStart::Handshake(number, Initiator::Source) = forward.start else { panic!("{forward:?}") };
    assert_eq!(reply.start, FlowStart::Handshake(number, Initiator::Destination));
    let numbers = lab.cache.handshakes.lock().unwrap()[&number].0;
    assert_eq!(numbers, FirstNumbers { initiator: 2, responder: Some(2) }, "those behind SYN and SYN-ACK");
}

#[test]
fn a_connection_whose_handshake_ended_in_the_kernel_lives_on_when_it_is_silent_for_longer_than_a_handshake_may_last() {
    for has_ended in [true, false] {
        let mut lab = Lab::new();
        lab.open(1);
        if has_ended {
            lab.end_handshakes();
        }
        lab.worker.round(SECOND / 2);
        lab.worker.round(SECOND);
        lab.worker.round(121 * SECOND);
        assert_eq!(lab.forwards_from_b(&b_to_a(ACK), 3600 * SECOND), has_ended);
        assert_eq!(lab.forwards_from_a(&a_to_b(ACK), 3600 * SECOND), has_ended);
        assert_eq!(lab.sessions().doubted, 0);
    }
}

#[test]
fn a_handshake_that_ends_in_the_kernel_after_it_was_asked_for_was_not_awaited_any_more() {
    let mut lab = Lab::new();
    lab.open(1);
    lab.worker.round(SECOND);
    lab.end_handshakes();
    lab.worker.round(2 * SECOND);
    assert!(!lab.forwards_from_b(&b_to_a(ACK), 130 * SECOND), "its flows had ended by then");
}

#[test]
fn a_reset_behind_what_the_kernel_has_forwarded_makes_the_connection_doubtful_and_not_established() {
    let mut lab = Lab::new();
    lab.open(1);
    lab.end_handshakes();
    // The kernel has forwarded ten megabytes.
    let reset = tcp_at(("10.0.0.1", 40_000), ("10.0.0.2", 80), RST | ACK, (10 << 20, 2));
    assert!(lab.forwards_from_a(&reset, SECOND / 10));
    lab.worker.round(SECOND);
    assert_eq!(lab.sessions().doubted, 1);
    assert!(lab.forwards_from_b(&b_to_a(ACK), 3600 * SECOND), "it may as well have been a stranger's");
}

#[test]
fn a_connection_that_is_over_before_it_is_asked_for_stays_over() {
    let mut lab = Lab::new();
    lab.open(1);
    lab.end_handshakes();
    let fin = TcpFlags::FIN | ACK;
    assert!(lab.forwards_from_a(&a_to_b(fin), 2) && lab.forwards_from_b(&b_to_a(fin), 3));
    lab.worker.round(SECOND);
    assert!(!lab.forwards_from_b(&b_to_a(ACK), 11 * SECOND), "ten seconds after its end");
}

#[test]
fn nothing_is_added_for_what_is_not_the_first_answer_to_a_syn() {
    let mut lab = Lab::new();
    assert!(lab.forwards_from_a(&a_to_b(SYN), 1));
    let blind = tcp_at(("10.0.0.2", 80), ("10.0.0.1", 40_000), SYN | ACK, (1, 1 << 20));
    assert!(lab.forwards_from_b(&blind, 1), "its receiver knows better");
    assert_eq!(lab.cache.take(), [], "it does not acknowledge the SYN");
    assert_eq!(lab.open(2).len(), 2);
    assert!(lab.forwards_from_b(&b_to_a(SYN | ACK), 3));
    assert_eq!(lab.cache.take(), [], "again");
    // A segment that does not acknowledge the SYN is no answer to it.
    let mut lab = Lab::new();
    assert!(
        lab.forwards_from_a(&a_to_b(SYN), 1)
            && lab.forwards_from_a(&a_to_b(ACK), 1)
            && lab.forwards_from_b(&b_to_a(SYN | ACK), 1)
    );
    assert_eq!(lab.cache.take().len(), 2);
    let strict = SessionConfig { tcp_window: TcpWindow::Strict, ..SessionConfig::live(1000) };
    assert_eq!(Lab::with(strict).open(1), [], "every segment is looked at");
}

#[test]
fn a_policy_that_changes_after_the_syn_ack_has_other_epochs_than_the_flows() {
    let mut lab = Lab::new();
    let flows = lab.open(1);
    assert!(flows.iter().all(|flow| flow.epochs == [1, 1] && flow.moves == [0, 0]));
    lab.cache.moved(B);
    assert!(lab.forwards_from_a(&tcp("10.0.0.1", "10.0.0.2", 40_001, 80, SYN), 2));
    assert!(lab.forwards_from_b(&tcp("10.0.0.2", "10.0.0.1", 80, 40_001, SYN | ACK), 3));
    let [reply, forward] = *lab.cache.take() else { panic!("two flows") };
    assert_eq!((reply.moves, forward.moves), ([1, 0], [0, 1]));
}

/// The steps of a connection whose handshake the kernel has forwarded.
const ENDED: FlowSteps = FlowSteps { answered: Some(2), has_ended: true, fins: [false; 2] };

#[test]
fn both_directions_are_added_before_the_syn_is_sent() {
    let mut lab = Lab::answering();
    assert!(lab.forwards_from_a(&a_to_b(SYN), 1));
    let [forward, reply] = *lab.cache.take() else { panic!("two flows") };
    let FlowStart::Handshake(number, Initiator::Source) = forward.start else { panic!("{forward:?}") };
    assert_eq!(reply.start, FlowStart::Handshake(number, Initiator::Destination));
    let numbers = lab.cache.handshakes.lock().unwrap()[&number].0;
    assert_eq!(numbers, FirstNumbers { initiator: 2, responder: None });
    assert_eq!(reply.received, *[own_mac(3), B_MAC].as_flattened());
    // Otherwise, they equal those that the SYN-ACK would add.
    let [reply_later, forward_later] = *Lab::new().open(1) else { panic!("two flows") };
    let alike = |flow: CachedFlow| CachedFlow { start: reply.start, received: [0; 12], ..flow };
    assert_eq!([reply, forward].map(alike), [reply_later, forward_later].map(alike));
}

#[test]
fn a_connection_whose_every_segment_but_the_syn_the_kernel_has_forwarded_is_established_and_over_in_time() {
    let mut lab = Lab::answering();
    assert!(lab.forwards_from_a(&a_to_b(SYN), 1));
    lab.cache.forward(|steps| *steps = ENDED);
    lab.worker.round(SECOND);
    assert!(lab.forwards_from_b(&b_to_a(ACK), 3600 * SECOND), "established");
    let mut lab = Lab::answering();
    assert!(lab.forwards_from_a(&a_to_b(SYN), 1));
    lab.cache.forward(|steps| *steps = FlowSteps { fins: [true; 2], ..ENDED });
    lab.worker.round(SECOND);
    assert!(lab.forwards_from_b(&b_to_a(ACK), 10 * SECOND));
    assert!(!lab.forwards_from_b(&b_to_a(ACK), 21 * SECOND), "ten seconds after its end");
    assert_eq!(lab.sessions().doubted, 0);
}

#[test]
fn a_fin_after_the_first_query_is_learned_at_the_second() {
    let mut lab = Lab::answering();
    assert!(lab.forwards_from_a(&a_to_b(SYN), 1));
    lab.cache.forward(|steps| *steps = ENDED);
    lab.worker.round(4 * SECOND / 10);
    lab.cache.forward(|steps| steps.fins = [true; 2]);
    lab.worker.round(SECOND);
    assert!(!lab.forwards_from_b(&b_to_a(ACK), 12 * SECOND));
}

#[test]
fn a_syn_that_was_lost_is_added_again_and_its_first_number_is_not_awaited_any_more() {
    let mut lab = Lab::answering();
    assert!(lab.forwards_from_a(&a_to_b(SYN), 1) && lab.forwards_from_a(&a_to_b(SYN), SECOND / 10));
    assert_eq!(lab.cache.take().len(), 4);
    assert_eq!(lab.sessions().created, 1);
    // The kernel forwards the flows that were added last.
    let last = FlowHandshake(1);
    lab.cache.handshakes.lock().unwrap().get_mut(&last).unwrap().1 = ENDED;
    lab.worker.round(SECOND);
    assert!(lab.forwards_from_b(&b_to_a(ACK), 3600 * SECOND));
    assert_eq!(lab.sessions().doubted, 0);
}

#[test]
fn a_port_that_is_used_again_before_the_worker_knows_of_the_first_connections_end_gets_a_session_of_its_own() {
    let mut lab = Lab::answering();
    assert!(lab.forwards_from_a(&a_to_b(SYN), 1));
    lab.cache.forward(|steps| *steps = FlowSteps { fins: [true; 2], ..ENDED });
    let next = tcp_at(("10.0.0.1", 40_000), ("10.0.0.2", 80), SYN, (1 << 30, 0));
    assert!(lab.forwards_from_a(&next, SECOND / 10));
    assert_eq!((lab.sessions().created, lab.sessions().replaced), (2, 1));
    lab.cache.handshakes.lock().unwrap().get_mut(&FlowHandshake(1)).unwrap().1 = ENDED;
    lab.worker.round(SECOND);
    assert!(lab.forwards_from_b(&b_to_a(ACK), 3600 * SECOND), "the end of the first one is not that of the second");
}

#[test]
fn a_reset_finds_the_session_as_the_kernel_has_left_it() {
    let mut lab = Lab::answering();
    assert!(lab.forwards_from_a(&a_to_b(SYN), 1));
    lab.cache.forward(|steps| *steps = FlowSteps { answered: Some(1000), ..ENDED });
    let reset = tcp_at(("10.0.0.2", 80), ("10.0.0.1", 40_000), RST, (1000, 0));
    assert!(lab.forwards_from_b(&reset, SECOND / 10));
    lab.worker.round(SECOND);
    assert_eq!(lab.sessions().doubted, 0);
    assert!(!lab.forwards_from_b(&b_to_a(ACK), 12 * SECOND), "it has ended the connection");
}

#[test]
fn an_answer_that_the_kernel_leaves_to_the_worker_adds_the_connection_as_it_came() {
    let mut lab = Lab::answering();
    assert!(lab.forwards_from_a(&a_to_b(SYN), 1));
    lab.cache.take();
    assert!(lab.forwards_from_b(&b_to_a(SYN | ACK), 2));
    let [reply, _] = *lab.cache.take() else { panic!("two flows") };
    assert_eq!(reply.start, FlowStart::Handshake(FlowHandshake(1), Initiator::Destination));
    let strict = SessionConfig { tcp_window: TcpWindow::Strict, ..SessionConfig::live(1000) };
    let mut lab = Lab::of(Recorded::answering(), strict);
    assert_eq!(lab.open(1), [], "every segment is looked at");
}

/// Returns the SYNs or SYN-ACKs of `count` connections.
fn handshakes(count: u16, flags: u8) -> Vec<Vec<u8>> {
    let one = |number: u16| match flags {
        SYN => from_a(&tcp("10.0.0.1", "10.0.0.2", 1000 + number, 80, flags)),
        _ => ethernet(B_MAC, 0x0800, &tcp("10.0.0.2", "10.0.0.1", 80, 1000 + number, flags)),
    };
    (0..count).map(one).collect()
}

#[test]
fn a_port_that_begins_connections_by_the_thousand_has_an_allowance() {
    const SHARE: usize = 1 << 14;
    let mut lab = Lab::with(SessionConfig::live(1_000_000));
    let mut flood = |now: u64| {
        let (syns, answers) = (handshakes(20_000, SYN), handshakes(20_000, SYN | ACK));
        for (syns, answers) in syns.chunks(200).zip(answers.chunks(200)) {
            lab.a.push_burst(syns).unwrap();
            lab.worker.round(now);
            assert_eq!(std::iter::from_fn(|| lab.b.pop()).count(), syns.len());
            lab.b.push_burst(answers).unwrap();
            lab.worker.round(now);
            assert_eq!(std::iter::from_fn(|| lab.a.pop()).count(), answers.len(), "all are forwarded");
        }
        let flows = lab.cache.take();
        let number = |flow: &CachedFlow| match flow.start {
            FlowStart::Handshake(number, _) => number,
            FlowStart::Latch(_) => panic!("{flow:?}"),
        };
        let numbers: HashSet<FlowHandshake> = flows.iter().map(number).collect();
        assert_eq!(numbers.len() * 2, flows.len(), "no number twice at a time");
        (flows.len() / 2, lab.vswitch.counters())
    };
    assert_eq!(flood(1).0, SHARE);
    // The handshakes are over, and the client uses its ports again. In five rounds, handshake numbers are reused more than once.
    for round in 1..=5 {
        assert_eq!(flood(round * 200 * SECOND).0, SHARE);
    }
}
