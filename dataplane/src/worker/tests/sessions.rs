//! Sessions: which packets belong to them, and their timeouts.

use super::dropped;
use crate::probe::{Probe, ProbeKind};
use crate::testbed::*;
use crate::*;

const HIT: Option<SessionState> = Some(SessionState::Hit);
const NEW: Option<SessionState> = Some(SessionState::New);

/// Returns an established connection from A to B.
fn established() -> Bed {
    let mut bed = Bed::new();
    assert_eq!(bed.send(A, &a_to_b(SYN)).session, NEW);
    assert_eq!(bed.send(B, &b_to_a(SYN | ACK)).session, HIT);
    assert_eq!(bed.send(A, &a_to_b(ACK)).session, HIT);
    bed
}

#[test]
fn a_reply_passes_where_policy_alone_would_not_let_it() {
    let mut bed = Bed::new();
    // Policy allows B to A, but not port 9 from A to B.
    assert_eq!(bed.verdict(A, &udp("10.0.0.1", "10.0.0.2", 9)), dropped(DropReason::PolicyDenied));
    let request = Probe { sport: 9, ..probe(ProbeKind::Udp, "10.0.0.2", "10.0.0.1", 53) };
    assert_eq!(bed.send(B, &request.request().unwrap()).session, NEW);
    let reply = bed.send(A, &request.reply().unwrap());
    assert_eq!((reply.verdict, reply.session), (Verdict::Forward(B), HIT));
}

#[test]
fn a_session_is_for_its_own_ports_and_protocol_only() {
    let mut bed = Bed::new();
    let request = Probe { sport: 9, ..probe(ProbeKind::Udp, "10.0.0.2", "10.0.0.1", 53) };
    bed.send(B, &request.request().unwrap());
    let other_port = Probe { sport: 8, ..request }.reply().unwrap();
    assert_eq!(bed.verdict(A, &other_port), dropped(DropReason::PolicyDenied));
    let other_protocol = tcp("10.0.0.1", "10.0.0.2", 53, 9, SYN);
    assert_eq!(bed.verdict(A, &other_protocol), dropped(DropReason::PolicyDenied));
}

#[test]
fn a_reply_comes_from_where_the_request_went() {
    let mut bed = Bed::new();
    let request = probe(ProbeKind::Udp, "10.0.0.1", "8.8.8.8", 53);
    assert_eq!(bed.verdict(A, &request.request().unwrap()), Verdict::Forward(UPLINK));
    bed.snapshot = snapshot_with(1, A, Some(CLOSED));
    // The same tuple from the node instead of the uplink is not the reply.
    assert_eq!(bed.verdict(HOST, &request.reply().unwrap()), dropped(DropReason::PolicyDenied));
    assert_eq!(bed.verdict(UPLINK, &request.reply().unwrap()), Verdict::Forward(A));
}

#[test]
fn a_ping_from_the_other_side_is_not_the_reply_to_a_ping() {
    let mut bed = Bed::new();
    bed.snapshot = snapshot_with(2, B, Some(CLOSED));
    let ping = probe(ProbeKind::IcmpEcho, "10.0.0.2", "10.0.0.1", 0);
    assert_eq!(bed.send(B, &ping.request().unwrap()).session, NEW);
    assert_eq!(bed.send(A, &ping.reply().unwrap()).session, HIT);
    let back = probe(ProbeKind::IcmpEcho, "10.0.0.1", "10.0.0.2", 0);
    assert_eq!(bed.verdict(A, &back.request().unwrap()), dropped(DropReason::PolicyDenied));
}

#[test]
fn only_a_syn_starts_a_tcp_session() {
    for flags in [ACK, SYN | ACK, FIN, FIN | ACK, RST, RST | ACK, SYN | FIN, SYN | RST, 0, 0xff] {
        let mut bed = Bed::new();
        assert_eq!(bed.verdict(A, &a_to_b(flags)), dropped(DropReason::TcpWithoutSession), "flags {flags:#x}");
        assert_eq!(bed.worker.sessions_in_use(), 0);
    }
}

#[test]
fn pickup_takes_up_what_policy_allows_and_no_more() {
    let pickup = || Bed::with(SessionConfig { tcp_pickup: true, ..SessionConfig::default() });
    for flags in [ACK, FIN | ACK] {
        let mut bed = pickup();
        assert_eq!(bed.send(A, &a_to_b(flags)).session, NEW, "flags {flags:#x}");
        assert_eq!(bed.send(B, &b_to_a(ACK)).session, HIT);
        assert_eq!(bed.verdict(A, &tcp("10.0.0.1", "10.0.0.2", 40_000, 81, flags)), dropped(DropReason::PolicyDenied));
    }
    // The answer to a refused SYN must not admit the segments after it.
    for flags in [SYN | ACK, RST, RST | ACK, 0, SYN | FIN, SYN | FIN | ACK, FIN] {
        assert_eq!(pickup().verdict(A, &a_to_b(flags)), dropped(DropReason::TcpWithoutSession), "flags {flags:#x}");
    }
}

#[test]
fn timeouts_follow_the_state_of_the_connection() {
    let idle = |bed: &mut Bed, seconds| {
        bed.wait(seconds);
        bed.verdict(B, &b_to_a(ACK))
    };
    let gone = dropped(DropReason::TcpWithoutSession);
    // Half open: 120 s.
    let half_open = || {
        let mut bed = Bed::new();
        bed.send(A, &a_to_b(SYN));
        bed
    };
    assert_eq!(idle(&mut half_open(), 119), Verdict::Forward(A));
    assert_eq!(idle(&mut half_open(), 120), gone);
    // Established: a day.
    assert_eq!(idle(&mut established(), 86_399), Verdict::Forward(A));
    assert_eq!(idle(&mut established(), 86_400), gone);
    // Reset, or closed by both sides: 10 s.
    let reset = || {
        let mut bed = established();
        bed.send(B, &b_to_a(RST));
        bed
    };
    assert_eq!(idle(&mut reset(), 9), Verdict::Forward(A));
    assert_eq!(idle(&mut reset(), 10), gone);
    let mut closed = established();
    closed.send(A, &a_to_b(FIN | ACK));
    closed.send(B, &b_to_a(FIN | ACK));
    assert_eq!(idle(&mut closed, 10), gone);
}

#[test]
fn a_fin_of_one_side_does_not_keep_a_day() {
    let gone = dropped(DropReason::TcpWithoutSession);
    for (port, fin) in [(A, a_to_b(FIN | ACK)), (B, b_to_a(FIN | ACK))] {
        let mut bed = established();
        assert_eq!(bed.send(port, &fin).session, HIT);
        for _ in 0..5 {
            bed.wait(119);
            assert_eq!(bed.verdict(B, &b_to_a(ACK)), Verdict::Forward(A), "half closed, and in use");
        }
        bed.wait(120);
        assert_eq!(bed.verdict(B, &b_to_a(ACK)), gone);
    }
}

#[test]
fn each_state_of_a_connection_has_a_timeout_of_its_own() {
    let second = SECOND;
    let timeouts = Timeouts {
        tcp_new: 20 * second,
        tcp_established: 1000 * second,
        tcp_half_closed: 50 * second,
        tcp_closed: 5 * second,
        ..Timeouts::default()
    };
    let lives = |packets: &[(PortId, Vec<u8>)], seconds| {
        let mut bed = Bed::with(SessionConfig { timeouts, ..SessionConfig::default() });
        packets.iter().for_each(|(port, packet)| assert!(bed.verdict(*port, packet).out_port().is_some()));
        bed.wait(seconds);
        bed.verdict(B, &b_to_a(ACK)) == Verdict::Forward(A)
    };
    let steps =
        [(A, a_to_b(SYN)), (B, b_to_a(SYN | ACK)), (A, a_to_b(ACK)), (A, a_to_b(FIN | ACK)), (B, b_to_a(FIN | ACK))];
    for (count, timeout) in [(1, 20), (2, 20), (3, 1000), (4, 50), (5, 5)] {
        assert!(lives(&steps[..count], timeout - 1), "after {count} packets");
        assert!(!lives(&steps[..count], timeout), "after {count} packets");
    }
}

#[test]
fn udp_has_30_seconds_until_it_is_answered_and_180_from_then_on() {
    let probe = Probe { sport: 9, ..probe(ProbeKind::Udp, "10.0.0.2", "10.0.0.1", 53) };
    let (request, reply) = (probe.request().unwrap(), probe.reply().unwrap());
    let after = |packets: &[bool], seconds| {
        let mut bed = Bed::new();
        for &is_reply in packets {
            assert!(if is_reply { bed.verdict(A, &reply) } else { bed.verdict(B, &request) }.out_port().is_some());
        }
        bed.wait(seconds);
        bed.send(A, &reply).session
    };
    assert_eq!((after(&[false], 29), after(&[false], 30)), (HIT, None));
    assert_eq!((after(&[false, false, false], 29), after(&[false, false, false], 30)), (HIT, None));
    assert_eq!((after(&[false, true], 179), after(&[false, true], 180)), (HIT, None));
    assert_eq!((after(&[false, true, false], 179), after(&[false, true, false], 180)), (HIT, None));
}

#[test]
fn udp_without_an_answer_is_recycled_first_and_a_stream_is_not() {
    let mut bed = Bed::with(SessionConfig { capacity: 3, ..SessionConfig::default() });
    let stream = Probe { sport: 9, ..probe(ProbeKind::Udp, "10.0.0.2", "10.0.0.1", 53) };
    bed.send(B, &stream.request().unwrap());
    assert_eq!(bed.send(A, &stream.reply().unwrap()).session, HIT);
    bed.send(B, &tcp("10.0.0.2", "10.0.0.1", 1, 443, SYN));
    for port in 100..150 {
        assert_eq!(bed.send(B, &udp("10.0.0.2", "10.0.0.1", port)).session, NEW);
    }
    assert_eq!(bed.send(A, &stream.reply().unwrap()).session, HIT);
    let syn_ack = tcp("10.0.0.1", "10.0.0.2", 443, 1, SYN | ACK);
    assert_eq!(bed.send(A, &syn_ack).session, HIT, "the half-open connection stays longer");
    assert_eq!(bed.worker.counters().sessions().recycled, 49);
}

#[test]
fn other_protocols_are_forgotten_when_idle_and_kept_while_in_use() {
    let request = Probe { sport: 9, ..probe(ProbeKind::Udp, "10.0.0.2", "10.0.0.1", 53) };
    let mut bed = Bed::new();
    bed.send(B, &request.request().unwrap());
    for wait in [29, 179, 179, 179, 179] {
        bed.wait(wait);
        assert_eq!(bed.send(A, &request.reply().unwrap()).session, HIT);
    }
    bed.wait(180);
    assert_eq!(bed.verdict(A, &request.reply().unwrap()), dropped(DropReason::PolicyDenied));
    assert_eq!(bed.worker.counters().sessions().expired, 1);

    let ping = probe(ProbeKind::IcmpEcho, "10.0.0.2", "10.0.0.1", 0);
    let mut bed = Bed::new();
    bed.snapshot = snapshot_with(2, B, Some(CLOSED));
    bed.send(B, &ping.request().unwrap());
    bed.wait(60);
    assert_eq!(bed.verdict(A, &ping.reply().unwrap()), dropped(DropReason::ReplyWithoutSession));
}

#[test]
fn expired_sessions_are_swept_out_without_being_asked_for() {
    let mut bed = Bed::new();
    for port in 1..=100 {
        bed.send(B, &udp("10.0.0.2", "10.0.0.1", port));
    }
    assert_eq!(bed.worker.sessions_in_use(), 100);
    bed.wait(700);
    bed.send(B, &udp("10.0.0.2", "10.0.0.1", 1000));
    bed.send(B, &udp("10.0.0.2", "10.0.0.1", 1000));
    assert_eq!(bed.worker.sessions_in_use(), 1);
    assert_eq!(bed.worker.counters().sessions().expired, 100);
}

#[test]
fn time_never_runs_backwards() {
    let mut bed = Bed::new();
    bed.send(A, &a_to_b(SYN));
    bed.now = 0;
    assert_eq!(bed.send(B, &b_to_a(SYN | ACK)).session, HIT);
    bed.now = u64::MAX;
    assert_eq!(bed.verdict(B, &b_to_a(ACK)), dropped(DropReason::TcpWithoutSession));
    assert_eq!(bed.send(A, &a_to_b(SYN)).session, NEW, "the end of time itself does no harm");
}

#[test]
fn a_syn_on_a_closed_connection_starts_anew() {
    let mut bed = established();
    assert_eq!(bed.send(A, &a_to_b(SYN)).session, HIT, "a repeated SYN of the open connection");
    bed.send(B, &b_to_a(RST));
    assert_eq!(bed.send(B, &b_to_a(ACK)).session, HIT, "what was still under way");
    assert_eq!(bed.send(A, &a_to_b(SYN)).session, NEW);
    let sessions = bed.worker.counters().sessions();
    assert_eq!((sessions.created, sessions.replaced, bed.worker.sessions_in_use()), (2, 1, 1));
    // In the reverse direction it is another connection, which policy must allow.
    let mut bed = Bed::new();
    bed.send(B, &tcp("10.0.0.2", "10.0.0.1", 9, 9, SYN));
    bed.send(A, &tcp("10.0.0.1", "10.0.0.2", 9, 9, RST | ACK));
    let back = tcp("10.0.0.1", "10.0.0.2", 9, 9, SYN);
    assert_eq!(bed.verdict(A, &back), dropped(DropReason::PolicyDenied));
}

#[test]
fn a_full_table_recycles_half_open_connections_and_spares_the_others() {
    let mut bed = Bed::with(SessionConfig { capacity: 2, ..SessionConfig::default() });
    bed.send(A, &a_to_b(SYN));
    bed.send(B, &b_to_a(SYN | ACK));
    bed.send(A, &a_to_b(ACK));
    for sport in 1..=50 {
        let flood = tcp("10.0.0.2", "10.0.0.1", sport, 443, SYN);
        assert_eq!(bed.verdict(B, &flood), Verdict::Forward(A));
    }
    assert_eq!(bed.send(B, &b_to_a(ACK)).session, HIT, "the established one is still there");
    let sessions = bed.worker.counters().sessions();
    assert_eq!((bed.worker.sessions_in_use(), sessions.recycled, sessions.refused), (2, 49, 0));
}

#[test]
fn a_table_full_of_live_sessions_refuses_new_ones_until_one_ends() {
    let mut bed = Bed::with(SessionConfig { capacity: 2, ..SessionConfig::default() });
    for port in [1, 2] {
        answered(&mut bed, port);
    }
    let outcome = bed.send(B, &udp("10.0.0.2", "10.0.0.1", 3));
    assert_eq!(outcome.verdict, dropped(DropReason::SessionTableFull));
    assert_eq!(outcome.session, None);
    assert_eq!(bed.worker.counters().sessions().refused, 1);
    assert_eq!(bed.send(B, &udp("10.0.0.2", "10.0.0.1", 1)).session, HIT);
    bed.wait(180);
    assert_eq!(bed.send(B, &udp("10.0.0.2", "10.0.0.1", 3)).session, NEW);
}

/// Opens a UDP conversation from B to a port of A, and answers it.
fn answered(bed: &mut Bed, port: u16) {
    let probe = probe(ProbeKind::Udp, "10.0.0.2", "10.0.0.1", port);
    assert_eq!(bed.send(B, &probe.request().unwrap()).session, NEW);
    assert_eq!(bed.send(A, &probe.reply().unwrap()).session, HIT);
}

#[test]
fn a_table_without_room_lets_nothing_pass_that_needs_a_session() {
    let mut bed = Bed::with(SessionConfig { capacity: 0, ..SessionConfig::default() });
    assert_eq!(bed.verdict(A, &a_to_b(SYN)), dropped(DropReason::SessionTableFull));
    assert_eq!(bed.verdict(B, &udp("10.0.0.2", "10.0.0.1", 1)), dropped(DropReason::SessionTableFull));
}

#[test]
fn a_session_of_one_burst_serves_the_packets_behind_it() {
    let mut bed = Bed::new();
    let frames = [a_to_b(SYN), b_to_a(SYN | ACK), a_to_b(ACK), udp("10.0.0.1", "10.0.0.2", 80), a_to_b(ACK)];
    let ports = [A, B, A, A, A];
    let packets: Vec<Packet<'_>> = frames
        .iter()
        .zip(ports)
        .map(|(frame, in_port)| Packet { frame, wire_len: frame.len(), link: LinkType::Raw, in_port, time: 1 })
        .collect();
    let mut outcomes = [Outcome::UNJUDGED; 5];
    bed.worker.process(&bed.snapshot, &packets, &mut outcomes);
    assert_eq!(outcomes.map(|outcome| outcome.session), [NEW, HIT, HIT, NEW, HIT]);
    assert_eq!(bed.worker.sessions_in_use(), 2);
}

#[test]
fn a_syn_against_the_direction_of_an_open_session_is_a_start_of_its_own() {
    let mut bed = Bed::new();
    assert_eq!(bed.send(B, &tcp("10.0.0.2", "10.0.0.1", 9, 9, SYN)).session, NEW);
    assert_eq!(bed.send(A, &tcp("10.0.0.1", "10.0.0.2", 9, 9, SYN | ACK)).session, HIT);
    let back = tcp("10.0.0.1", "10.0.0.2", 9, 9, SYN);
    assert_eq!(bed.verdict(A, &back), dropped(DropReason::PolicyDenied));
    // The open connection is unaffected.
    assert_eq!(bed.send(B, &tcp("10.0.0.2", "10.0.0.1", 9, 9, ACK)).session, HIT);
    assert_eq!(bed.send(A, &tcp("10.0.0.1", "10.0.0.2", 9, 9, ACK)).session, HIT);
}

#[test]
fn a_full_table_recycles_half_open_connections_before_pings_and_pings_before_refusing() {
    let mut bed = Bed::with(SessionConfig { capacity: 2, ..SessionConfig::default() });
    let ping = probe(ProbeKind::IcmpEcho, "10.0.0.2", "10.0.0.1", 0);
    bed.send(B, &ping.request().unwrap());
    bed.send(B, &tcp("10.0.0.2", "10.0.0.1", 1, 443, SYN));
    answered(&mut bed, 1);
    assert_eq!(bed.send(A, &ping.reply().unwrap()).session, HIT, "the half-open connection went first");
    answered(&mut bed, 2);
    assert_eq!(bed.verdict(A, &ping.reply().unwrap()), dropped(DropReason::ReplyWithoutSession));
    assert_eq!(bed.verdict(B, &udp("10.0.0.2", "10.0.0.1", 3)), dropped(DropReason::SessionTableFull));
    assert_eq!(bed.worker.counters().sessions().recycled, 2);
}
