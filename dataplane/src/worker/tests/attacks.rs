//! Attacks by outside machines and pods on other parties' sessions.

use super::dropped;
use crate::probe::{Probe, ProbeKind};
use crate::testbed::*;
use crate::*;

const HIT: Option<SessionState> = Some(SessionState::Hit);
const NEW: Option<SessionState> = Some(SessionState::New);
const GONE: Verdict = Verdict::Drop(DropReason::TcpWithoutSession);

/// The initial sequence numbers of client and server.
const CLIENT: u32 = 1_000_000_000;
const SERVER: u32 = 3_000_000_000;

/// Returns a segment from an outside client to pod A, at these offsets from the initial sequence numbers.
fn from_client(flags: u8, seq: u32, ack: u32) -> Vec<u8> {
    let numbers = (CLIENT.wrapping_add(seq), SERVER.wrapping_add(ack));
    tcp_at(("8.8.8.8", 40_000), ("10.0.0.1", 80), flags, numbers)
}

/// Returns a segment from pod A to the outside client.
fn from_server(flags: u8, seq: u32, ack: u32) -> Vec<u8> {
    let numbers = (SERVER.wrapping_add(seq), CLIENT.wrapping_add(ack));
    tcp_at(("10.0.0.1", 80), ("8.8.8.8", 40_000), flags, numbers)
}

fn live() -> SessionConfig {
    SessionConfig::live(1000)
}

/// Returns a connection from outside to pod A, after its handshake.
fn established(config: SessionConfig) -> Bed {
    let mut bed = Bed::with(config);
    assert_eq!(bed.send(UPLINK, &from_client(SYN, 0, 0)).session, NEW);
    assert_eq!(bed.send(A, &from_server(SYN | ACK, 0, 1)).session, HIT);
    assert_eq!(bed.send(UPLINK, &from_client(ACK, 1, 1)).session, HIT);
    bed
}

/// Whether the connection still exists after all timeouts but that of an established one.
fn is_established(bed: &mut Bed) -> bool {
    bed.wait(86_000);
    bed.send(A, &from_server(ACK, 1, 1)).session == HIT && bed.send(UPLINK, &from_client(ACK, 1, 1)).session == HIT
}

#[test]
fn a_blind_reset_changes_nothing() {
    for distance in [1 << 21, 1 << 30, 1 << 31, u32::MAX - (1 << 21)] {
        for flags in [RST, RST | ACK] {
            let mut bed = established(live());
            let reset = from_client(flags, distance, distance);
            assert_eq!(bed.verdict(UPLINK, &reset), Verdict::Forward(A), "its receiver knows better");
            assert_eq!(bed.worker.counters().sessions().doubted, 1);
            assert!(is_established(&mut bed), "{distance}");
        }
    }
}

#[test]
fn a_reset_where_the_connection_is_ends_it() {
    for (port, reset) in [(UPLINK, from_client(RST, 1, 0)), (A, from_server(RST | ACK, 1, 1))] {
        let mut bed = established(live());
        assert_eq!(bed.send(port, &reset).session, HIT);
        bed.wait(10);
        assert_eq!(bed.verdict(A, &from_server(ACK, 1, 1)), GONE);
    }
}

#[test]
fn a_reset_that_refuses_a_syn_ends_the_connection_and_one_that_does_not_acknowledge_it_does_not() {
    for (ack, is_over) in [(1, true), (1 << 20, false)] {
        let mut bed = Bed::with(live());
        assert_eq!(bed.send(UPLINK, &from_client(SYN, 0, 0)).session, NEW);
        // The refusal's sequence number is 0 (RFC 9293 §3.10.7.1).
        let refusal = from_server(RST | ACK, 0u32.wrapping_sub(SERVER), ack);
        assert_eq!(bed.send(A, &refusal).session, HIT);
        bed.wait(10);
        assert_eq!(bed.verdict(A, &from_server(SYN | ACK, 0, 1)) == GONE, is_over);
    }
}

#[test]
fn a_blind_fin_changes_nothing() {
    let mut bed = established(live());
    assert_eq!(bed.send(UPLINK, &from_client(FIN | ACK, 1 << 30, 1)).session, HIT);
    assert!(is_established(&mut bed));
}

#[test]
fn a_stranger_cannot_first_say_where_the_connection_is_and_then_reset_it_there() {
    let mut bed = established(live());
    // After this pause, the worker checks sequence numbers.
    for _ in 0..3 {
        bed.wait(60);
        assert_eq!(bed.send(UPLINK, &from_client(ACK, 1 << 30, 1)).session, HIT);
        assert_eq!(bed.send(UPLINK, &from_client(RST, 1 << 30, 0)).session, HIT);
    }
    assert!(is_established(&mut bed));
}

#[test]
fn the_pods_word_says_where_a_connection_is_that_was_not_seen_for_long() {
    let mut bed = established(live());
    bed.wait(60);
    // The kernel has forwarded a gigabyte.
    assert_eq!(bed.send(A, &from_server(ACK, 77, 1 << 30)).session, HIT);
    assert_eq!(bed.send(UPLINK, &from_client(RST, 1 << 30, 0)).session, HIT);
    bed.wait(10);
    assert_eq!(bed.verdict(A, &from_server(ACK, 77, 1 << 30)), GONE);
}

#[test]
fn a_doubtful_connection_is_one_of_those_that_give_way() {
    let config = SessionConfig { capacity: 2, half_open: Percent::ALL, pod_share: Percent::ALL, ..live() };
    let config = SessionConfig { outside_share: Percent::ALL, ..config };
    let open = |bed: &mut Bed, sport| bed.send(A, &tcp("10.0.0.1", "8.8.8.8", sport, 443, SYN)).session;
    let mut bed = established(config);
    bed.send(UPLINK, &from_client(RST, 1 << 30, 0));
    assert_eq!((open(&mut bed, 1), open(&mut bed, 2)), (NEW, NEW), "half-open ones give way before it");
    assert_eq!(bed.send(A, &from_server(ACK, 1, 1)).session, HIT, "and this takes the doubt away");

    bed.send(UPLINK, &from_client(RST, 1 << 30, 0));
    let back = |flags| tcp("8.8.8.8", "10.0.0.1", 443, 2, flags);
    assert_eq!(bed.send(UPLINK, &back(SYN | ACK)).session, HIT);
    assert_eq!(bed.send(A, &tcp("10.0.0.1", "8.8.8.8", 2, 443, ACK)).session, HIT);
    assert_eq!(open(&mut bed, 3), NEW);
    assert_eq!(bed.verdict(A, &from_server(ACK, 1, 1)), GONE);
}

#[test]
fn a_reverse_syn_changes_nothing_whether_policy_allows_it_or_not() {
    // Policy allows all ingress to 10.0.0.1, but not this port of 10.0.0.2.
    for (pod, port, allowed) in [("10.0.0.1", A, true), ("10.0.0.2", B, false)] {
        let mut bed = Bed::with(live());
        let there = |flags, seq, ack| tcp_at((pod, 40_000), ("8.8.8.8", 443), flags, (CLIENT + seq, SERVER + ack));
        let back = |flags, seq, ack| tcp_at(("8.8.8.8", 443), (pod, 40_000), flags, (SERVER + seq, CLIENT + ack));
        assert_eq!(bed.send(port, &there(SYN, 0, 0)).session, NEW);
        for reverse in [back(SYN, 0, 0), back(SYN, 1 << 30, 0)] {
            assert_eq!(bed.verdict(UPLINK, &reverse) == Verdict::Forward(port), allowed, "while it opens");
        }
        assert_eq!(bed.send(UPLINK, &back(SYN | ACK, 0, 1)).session, HIT);
        assert_eq!(bed.send(port, &there(ACK, 1, 1)).session, HIT);
        for reverse in [back(SYN, 1, 0), back(SYN, 1 << 30, 0)] {
            assert_eq!(bed.verdict(UPLINK, &reverse) == Verdict::Forward(port), allowed);
        }
        // The session is still the pod's own, so a policy that now denies ingress to the pod does not end it.
        bed.snapshot = snapshot_with(2, port, Some(CLOSED));
        bed.wait(86_000);
        assert_eq!(bed.send(UPLINK, &back(ACK, 1, 1)).session, HIT);
        let sessions = bed.worker.counters().sessions();
        assert_eq!((sessions.created, sessions.replaced, sessions.revoked), (1, 0, 0));
    }
}

#[test]
fn a_repeated_syn_on_an_open_connection_changes_nothing() {
    let mut bed = established(live());
    for seq in [0, 5, 1 << 30] {
        assert_eq!(bed.send(UPLINK, &from_client(SYN, seq, 0)).session, HIT);
    }
    assert_eq!(bed.send(UPLINK, &from_client(RST, 1 << 30, 0)).session, HIT, "not where the SYN said");
    assert!(is_established(&mut bed));
}

#[test]
fn what_changes_a_session_has_a_right_checksum() {
    let wrong = |mut packet: Vec<u8>| {
        let at = packet.len() - 3;
        packet[at] ^= 1;
        packet
    };
    let bad = dropped(DropReason::BadChecksum);
    let mut bed = Bed::with(live());
    assert_eq!(bed.verdict(UPLINK, &wrong(from_client(SYN, 0, 0))), bad);
    assert_eq!(bed.worker.sessions_in_use(), 0);
    let mut bed = established(live());
    for flags in [RST, RST | ACK, FIN | ACK, SYN] {
        assert_eq!(bed.verdict(UPLINK, &wrong(from_client(flags, 1, 1))), bad, "flags {flags:#x}");
        assert_eq!(bed.verdict(A, &wrong(from_server(flags | ACK, 1, 1))), bad, "flags {flags:#x}");
    }
    assert!(is_established(&mut bed));
    assert_eq!(bed.send(UPLINK, &wrong(from_client(ACK, 1, 1))).session, HIT, "data is the receiver's to verify");
    // Captured packets may have checksums that hardware was to fill in.
    let mut bed = Bed::new();
    assert_eq!(bed.send(UPLINK, &wrong(from_client(SYN, 0, 0))).session, NEW);
}

#[test]
fn acks_of_bad_checksum_or_of_nothing_establish_nothing() {
    let mut bed = Bed::with(live());
    bed.send(UPLINK, &from_client(SYN, 0, 0));
    bed.send(A, &from_server(SYN | ACK, 0, 1));
    let mut wrong = from_client(ACK, 1, 1);
    let at = wrong.len() - 3;
    wrong[at] ^= 1;
    for _ in 0..3 {
        assert_eq!(bed.verdict(UPLINK, &wrong), dropped(DropReason::BadChecksum));
        // An attacker with a spoofed address does not see the pod's answers.
        assert_eq!(bed.send(UPLINK, &from_client(ACK, 1, 1 << 30)).session, HIT);
    }
    bed.wait(120);
    assert_eq!(bed.verdict(A, &from_server(SYN | ACK, 0, 1)), GONE);
}

#[test]
fn an_answer_of_bad_checksum_makes_no_stream() {
    let probe = probe(ProbeKind::Udp, "10.0.0.1", "8.8.8.8", 53);
    let mut reply = probe.reply().unwrap();
    reply[27] ^= 1;
    let mut bed = Bed::with(live());
    bed.send(A, &probe.request().unwrap());
    assert_eq!(bed.verdict(UPLINK, &reply), dropped(DropReason::BadChecksum));
    bed.wait(30);
    assert_eq!(bed.send(UPLINK, &probe.reply().unwrap()).session, NEW, "the session was not prolonged");
}

#[test]
fn strict_windows_drop_what_lies_outside_and_follow_every_segment() {
    let strict = SessionConfig { tcp_window: TcpWindow::Strict, ..live() };
    let mut bed = established(strict);
    for flags in [RST, RST | ACK, FIN | ACK] {
        let blind = from_client(flags, 1 << 21, 1);
        assert_eq!(bed.verdict(UPLINK, &blind), dropped(DropReason::TcpOutOfWindow), "flags {flags:#x}");
    }
    // A thousand windows within one moment.
    for step in 1..=1000u32 {
        assert_eq!(bed.send(UPLINK, &from_client(ACK, step << 19, 1)).session, HIT);
    }
    assert_eq!(bed.verdict(UPLINK, &from_client(RST, 1, 0)), dropped(DropReason::TcpOutOfWindow));
    assert_eq!(bed.send(UPLINK, &from_client(RST, 1000 << 19, 0)).session, HIT);
    bed.wait(10);
    assert_eq!(bed.verdict(A, &from_server(ACK, 1, 1)), GONE);
}

#[test]
fn outsiders_that_send_625_udp_flows_a_second_use_up_neither_a_pods_nor_the_nodes_sessions() {
    let mut bed = Bed::with(live());
    let local = probe(ProbeKind::Udp, "10.0.0.2", "10.0.0.1", 53);
    bed.send(B, &local.request().unwrap());
    assert_eq!(bed.send(A, &local.reply().unwrap()).session, HIT);
    for second in 0..20u32 {
        for flow in 0..625u32 {
            let [_, a, b, c] = (second * 625 + flow).to_be_bytes();
            let flood = udp(&format!("9.{a}.{b}.{c}"), "10.0.0.1", 53);
            assert_eq!(bed.verdict(UPLINK, &flood), Verdict::Forward(A));
        }
        bed.wait(1);
        // The pod's own connections, those of others to it, and those between others.
        let port = 1000 + u16::try_from(second).unwrap();
        assert_eq!(bed.send(A, &tcp("10.0.0.1", "8.8.8.8", port, 443, SYN)).session, NEW);
        assert_eq!(bed.send(B, &tcp("10.0.0.2", "10.0.0.1", port, 443, SYN)).session, NEW);
        assert_eq!(
            bed.send(HOST, &tcp("192.168.0.1", "10.0.0.2", port, 443, SYN)).verdict,
            dropped(DropReason::PolicyDenied)
        );
        assert_eq!(bed.send(B, &local.request().unwrap()).session, HIT);
        assert_eq!(bed.send(A, &local.reply().unwrap()).session, HIT);
    }
    // A pod may be the destination of a quarter of all sessions, for all clients together.
    assert!(bed.worker.sessions_in_use() <= 250 + 20, "{}", bed.worker.sessions_in_use());
}

#[test]
fn a_pod_that_answers_everybody_fills_its_own_share_as_a_destination_and_nobody_elses() {
    let mut bed = Bed::with(live());
    let answered = |bed: &mut Bed, pod: &str, port: PortId, client: u32| {
        let [_, a, b, c] = client.to_be_bytes();
        let probe = probe(ProbeKind::Udp, &format!("9.{a}.{b}.{c}"), pod, 53);
        let verdict = bed.verdict(UPLINK, &probe.request().unwrap());
        if verdict == Verdict::Forward(port) {
            assert_eq!(bed.send(port, &probe.reply().unwrap()).session, HIT);
        }
        verdict
    };
    for client in 0..250 {
        assert_eq!(answered(&mut bed, "10.0.0.1", A, client), Verdict::Forward(A));
    }
    assert_eq!(answered(&mut bed, "10.0.0.1", A, 250), dropped(DropReason::SessionQuota));
    bed.snapshot = snapshot_with(2, B, Some(OPEN));
    assert_eq!(answered(&mut bed, "10.0.0.2", B, 251), Verdict::Forward(B));
    assert_eq!(bed.send(A, &tcp("10.0.0.1", "8.8.8.8", 1, 443, SYN)).session, NEW, "what it starts is another share");
}

#[test]
fn a_connection_that_a_policy_cut_and_a_later_one_allows_goes_on() {
    let mut bed = Bed::with(live());
    let (there, back) =
        (|f| tcp("10.0.0.1", "10.0.0.2", 40_000, 80, f), |f| tcp("10.0.0.2", "10.0.0.1", 80, 40_000, f));
    bed.send(A, &there(SYN));
    bed.send(B, &back(SYN | ACK));
    bed.send(A, &there(ACK));
    for (generation, server_first) in [(2, false), (4, true)] {
        bed.snapshot = snapshot_with(generation, B, Some(CLOSED));
        for _ in 0..4 {
            // Linux repeats a segment at least every 120 s (TCP_RTO_MAX). Either side may do so.
            bed.wait(120);
            let verdict = if server_first { bed.verdict(B, &back(ACK)) } else { bed.verdict(A, &there(ACK)) };
            assert_eq!(verdict, dropped(DropReason::PolicyDenied));
        }
        bed.snapshot = snapshot_with(generation + 1, B, Some(STRICT));
        let outcome = if server_first { bed.send(B, &back(ACK)) } else { bed.send(A, &there(ACK)) };
        assert_eq!(outcome.session, HIT);
        assert_eq!(outcome.decision.unwrap().table(), Some(STRICT));
        assert_eq!((bed.send(A, &there(ACK)).session, bed.send(B, &back(ACK)).session), (HIT, HIT));
        bed.wait(80_000);
        assert_eq!(bed.send(A, &there(ACK)).session, HIT, "as established as it was");
    }
    let sessions = bed.worker.counters().sessions();
    assert_eq!((sessions.created, sessions.revoked, sessions.restored), (1, 2, 2));
}

#[test]
fn a_stream_that_a_policy_cut_and_a_later_one_allows_goes_on_from_either_side() {
    for reply_first in [false, true] {
        let mut bed = Bed::with(live());
        let probe = probe(ProbeKind::Udp, "10.0.0.1", "10.0.0.2", 80);
        let (request, reply) = (probe.request().unwrap(), probe.reply().unwrap());
        bed.send(A, &request);
        bed.send(B, &reply);
        bed.snapshot = snapshot_with(2, B, Some(CLOSED));
        assert_eq!(bed.verdict(A, &request), dropped(DropReason::PolicyDenied));
        bed.snapshot = snapshot_with(3, B, Some(STRICT));
        let (port, packet) = if reply_first { (B, &reply) } else { (A, &request) };
        assert_eq!(bed.send(port, packet).session, HIT);
        bed.wait(179);
        assert_eq!(bed.send(B, &reply).session, HIT, "a stream as before");
        assert_eq!(bed.worker.counters().sessions().restored, 1);
    }
}

#[test]
fn a_new_connection_in_place_of_one_that_was_cut_is_a_new_one() {
    let mut bed = Bed::with(live());
    bed.send(A, &a_to_b(SYN));
    bed.snapshot = snapshot_with(2, B, Some(CLOSED));
    assert_eq!(bed.verdict(A, &a_to_b(SYN)), dropped(DropReason::PolicyDenied));
    bed.snapshot = snapshot_with(3, B, Some(STRICT));
    assert_eq!(bed.send(A, &a_to_b(SYN)).session, NEW);
}

#[test]
fn removing_a_port_ends_its_sessions_and_what_they_count_for() {
    let mut bed = Bed::with(live());
    let remove = |bed: &mut Bed, port| {
        bed.worker.end_port(port);
        while bed.worker.has_gone() {
            bed.worker.next_survivor(&mut 1, bed.now);
        }
        bed.send(B, &[]);
    };
    let open = |bed: &mut Bed| {
        for sport in 0..100 {
            assert_eq!(bed.send(A, &tcp("10.0.0.1", "8.8.8.8", sport, 443, SYN)).session, NEW);
            assert_eq!(bed.send(B, &tcp("10.0.0.2", "10.0.0.1", sport, 443, SYN)).session, NEW);
            let ping = Probe { sport, ..probe(ProbeKind::IcmpEcho, "10.0.0.2", "8.8.8.8", 0) };
            assert_eq!(bed.send(B, &ping.request().unwrap()).session, NEW);
        }
    };
    open(&mut bed);
    assert_eq!(bed.worker.sessions_in_use(), 300);
    remove(&mut bed, A);
    assert_eq!(bed.worker.sessions_in_use(), 100, "B's own pings");
    let sessions = bed.worker.counters().sessions();
    assert_eq!((sessions.removed, sessions.expired, sessions.recycled), (200, 0, 0));
    assert_eq!(bed.verdict(UPLINK, &tcp("8.8.8.8", "10.0.0.1", 443, 7, SYN | ACK)), dropped(DropReason::NoSuchPod));
    remove(&mut bed, B);
    // Opens all sessions again: no removed one counts any more.
    open(&mut bed);
    assert_eq!(bed.worker.counters().sessions().recycled, 0);
}

#[test]
fn a_port_with_the_number_of_an_older_one_begins_without_that_ones_sessions() {
    let mut bed = Bed::with(SessionConfig::live(20_000));
    for sport in 0..2000 {
        assert_eq!(bed.send(A, &tcp("10.0.0.1", "8.8.8.8", sport, 443, SYN)).session, NEW);
    }
    bed.worker.end_port(A);
    bed.worker.add_port(A);
    assert_eq!(bed.worker.sessions_in_use(), 0);
    assert_eq!(bed.send(A, &tcp("10.0.0.1", "8.8.8.8", 1, 443, SYN)).session, NEW);
    let told = std::iter::from_fn(|| bed.worker.next_survivor(&mut 5000, bed.now)).count();
    assert_eq!(
        (told, bed.worker.sessions_in_use()),
        (2000, 1),
        "each other end is to be notified, and the new session stays"
    );
}

#[test]
fn the_uplink_keeps_its_connections_while_its_interface_is_away() {
    let mut bed = established(live());
    bed.worker.end_port(UPLINK);
    bed.worker.add_port(UPLINK);
    assert!(is_established(&mut bed));
}

#[test]
fn a_pods_share_does_not_shrink_with_the_number_of_workers() {
    for count in [1, 2, 16] {
        let mut workers =
            Worker::team(WorkerConfig { sessions: live(), ..WorkerConfig::default() }, count, &Affinity::new())
                .unwrap();
        let snapshot = snapshot();
        let mut send = |worker: usize, in_port, frame: &[u8]| {
            let packet = Packet { frame, wire_len: frame.len(), link: LinkType::Raw, in_port, time: SECOND };
            let mut outcome = [Outcome::UNJUDGED];
            workers[worker].process(&snapshot, &[packet], &mut outcome);
            outcome[0].session
        };
        let mut stream = |worker: usize, port: u16| {
            let probe = probe(ProbeKind::Udp, "10.0.0.1", "8.8.8.8", port);
            let made = send(worker, A, &probe.request().unwrap());
            made.inspect(|_| assert_eq!(send(worker, UPLINK, &probe.reply().unwrap()), HIT))
        };
        // One worker owns all of these, since they have one peer address.
        let held = (1..=500).filter(|&port| stream(0, port) == NEW).count();
        assert!((250..=250 + 250 / 16 + 1).contains(&held), "{held} with {count} workers");
        // The share is the node's: what one worker uses, another cannot.
        assert_eq!(stream(count - 1, 1000), if count == 1 || held > 250 { None } else { NEW });
    }
}

#[test]
fn a_flood_that_lies_with_one_worker_does_not_shut_out_those_of_another() {
    let config = WorkerConfig { sessions: live(), ..WorkerConfig::default() };
    let mut workers = Worker::team(config, 2, &Affinity::new()).unwrap();
    let snapshot = snapshot();
    let mut send = |worker: usize, in_port, frame: &[u8]| {
        let packet = Packet { frame, wire_len: frame.len(), link: LinkType::Raw, in_port, time: SECOND };
        let mut outcome = [Outcome::UNJUDGED];
        workers[worker].process(&snapshot, &[packet], &mut outcome);
        outcome[0].session
    };
    for round in 0..2000u16 {
        assert_eq!(send(0, UPLINK, &tcp("9.9.9.9", "10.0.0.1", round, 80, SYN)), NEW, "the flood has its share");
        // These connections arrive after the flood has filled its share, and the first finds no entry of its own worker to end.
        if round >= 1000 && round % 4 == 0 {
            let client = format!("8.8.{}.{}", round >> 8, round & 0xff);
            let reply = |flags| tcp("10.0.0.1", &client, 80, 7, flags);
            assert_eq!(send(1, UPLINK, &tcp(&client, "10.0.0.1", 7, 80, SYN)), NEW);
            assert_eq!(send(1, A, &reply(SYN | ACK)), HIT);
            assert_eq!(send(1, UPLINK, &tcp(&client, "10.0.0.1", 7, 80, ACK)), HIT);
            assert_eq!(send(1, A, &reply(RST | ACK)), HIT);
        }
    }
    let in_use: usize = workers.iter().map(Worker::sessions_in_use).sum();
    assert!(in_use <= 250 + 16, "{in_use}");
}
