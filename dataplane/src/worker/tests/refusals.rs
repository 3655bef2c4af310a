//! A reply to a refused request opens nothing.

use super::dropped;
use crate::probe::{Probe, ProbeKind};
use crate::testbed::*;
use crate::*;

const DENIED: Verdict = Verdict::Drop(DropReason::PolicyDenied);

/// Returns a request from A to B, which policy refuses. B may send to A.
fn refused(kind: ProbeKind) -> Probe {
    probe(kind, "10.0.0.1", "10.0.0.2", 81)
}

#[test]
fn the_reply_to_a_refused_request_opens_nothing() {
    for kind in [ProbeKind::Udp, ProbeKind::Sctp, ProbeKind::Tcp] {
        let mut bed = Bed::new();
        let request = bed.send(A, &refused(kind).request().unwrap());
        assert_eq!((request.verdict, request.session), (DENIED, None), "{kind:?}");
        for _ in 0..2 {
            let reply = bed.send(B, &refused(kind).reply().unwrap());
            assert_eq!((reply.verdict, reply.session, reply.decision), (DENIED, None, request.decision), "{kind:?}");
            assert_eq!(bed.verdict(A, &refused(kind).request().unwrap()), DENIED, "{kind:?}");
        }
        assert_eq!((bed.worker.sessions_in_use(), bed.worker.counters().sessions()), (0, SessionCounters::default()));
    }
}

#[test]
fn the_reply_to_a_refused_ping_opens_nothing() {
    let mut bed = Bed::new();
    bed.snapshot = snapshot_with(1, B, Some(CLOSED));
    let ping = probe(ProbeKind::IcmpEcho, "10.0.0.1", "10.0.0.2", 0);
    assert_eq!(bed.verdict(A, &ping.request().unwrap()), DENIED);
    assert_eq!(bed.verdict(B, &ping.reply().unwrap()), DENIED);
    assert_eq!(bed.verdict(A, &ping.request().unwrap()), DENIED);
    // B may ping A.
    let back = probe(ProbeKind::IcmpEcho, "10.0.0.2", "10.0.0.1", 0);
    assert_eq!(bed.verdict(B, &back.request().unwrap()), Verdict::Forward(A));
}

#[test]
fn the_reply_of_a_protocol_without_ports_opens_nothing() {
    let mut bed = Bed::new();
    assert_eq!(bed.verdict(A, &v4("10.0.0.1", "10.0.0.2", 47, 64, &[0; 8])), DENIED);
    assert_eq!(bed.verdict(B, &v4("10.0.0.2", "10.0.0.1", 47, 64, &[0; 8])), DENIED);
    assert_eq!(bed.verdict(A, &v4("10.0.0.1", "10.0.0.2", 47, 64, &[0; 8])), DENIED);
}

#[test]
fn an_answer_to_nothing_known_starts_nothing() {
    let without = dropped(DropReason::ReplyWithoutSession);
    for kind in [ProbeKind::IcmpEcho, ProbeKind::Sctp] {
        let mut bed = Bed::new();
        assert_eq!(bed.verdict(B, &refused(kind).reply().unwrap()), without, "{kind:?}");
        assert_eq!(bed.worker.sessions_in_use(), 0);
    }
}

#[test]
fn a_connection_of_the_other_side_is_judged_on_its_own_after_a_refusal() {
    for kind in [ProbeKind::Tcp, ProbeKind::Sctp] {
        let mut bed = Bed::new();
        let back = Probe { src: ip("10.0.0.2"), dst: ip("10.0.0.1"), sport: 81, dport: 40_000, kind };
        assert_eq!(bed.verdict(A, &refused(kind).request().unwrap()), DENIED);
        let opened = bed.send(B, &back.request().unwrap());
        assert_eq!((opened.verdict, opened.session), (Verdict::Forward(A), Some(SessionState::New)), "{kind:?}");
        assert_eq!(bed.verdict(A, &back.reply().unwrap()), Verdict::Forward(B), "{kind:?}");
    }
}

#[test]
fn a_revoked_session_is_not_reopened_by_what_was_under_way() {
    for kind in [ProbeKind::Udp, ProbeKind::Sctp, ProbeKind::Tcp, ProbeKind::IcmpEcho] {
        // Revocations are remembered even if refused requests are not.
        for (reply_first, remember_refused) in [(false, true), (true, true), (false, false), (true, false)] {
            let mut bed = Bed::with(SessionConfig { remember_refused, ..SessionConfig::default() });
            let probe = probe(kind, "10.0.0.1", "10.0.0.2", 80);
            assert_eq!(bed.verdict(A, &probe.request().unwrap()), Verdict::Forward(B), "{kind:?}");
            bed.snapshot = snapshot_with(2, B, Some(CLOSED));
            for _ in 0..2 {
                if !reply_first {
                    assert_eq!(bed.verdict(A, &probe.request().unwrap()), DENIED, "{kind:?}");
                }
                assert_eq!(bed.verdict(B, &probe.reply().unwrap()), DENIED, "{kind:?}");
                assert_eq!(bed.verdict(A, &probe.request().unwrap()), DENIED, "{kind:?}");
            }
            assert_eq!((bed.worker.sessions_in_use(), bed.worker.counters().sessions().revoked), (0, 1));
        }
    }
}

#[test]
fn a_port_that_is_closed_is_not_opened_by_an_answer() {
    let mut bed = Bed::new();
    bed.snapshot = snapshot_with(2, B, None);
    for _ in 0..2 {
        let request = bed.send(A, &udp("10.0.0.1", "10.0.0.2", 80));
        assert_eq!((request.verdict, request.decision), (dropped(DropReason::TableMissing), None));
        let reply = probe(ProbeKind::Udp, "10.0.0.1", "10.0.0.2", 80).reply().unwrap();
        assert_eq!(bed.verdict(B, &reply), dropped(DropReason::TableMissing));
    }
}

#[test]
fn a_newer_policy_is_asked_about_the_direction_that_was_refused() {
    for reply_first in [false, true] {
        let mut bed = Bed::new();
        let probe = refused(ProbeKind::Udp);
        assert_eq!(bed.verdict(A, &probe.request().unwrap()), DENIED);
        bed.snapshot = snapshot_with(2, B, Some(CLOSED));
        let reply = bed.send(B, &probe.reply().unwrap());
        assert_eq!((reply.verdict, reply.decision.unwrap().table()), (DENIED, Some(CLOSED)), "still refused");
        assert_eq!(bed.verdict(A, &probe.request().unwrap()), DENIED);
        bed.snapshot = snapshot_with(3, B, Some(OPEN));
        if reply_first {
            let reply = bed.send(B, &probe.reply().unwrap());
            assert_eq!((reply.verdict, reply.session), (Verdict::Forward(A), Some(SessionState::New)));
            assert_eq!(reply.decision.unwrap().table(), Some(OPEN));
        }
        assert_eq!(bed.verdict(A, &probe.request().unwrap()), Verdict::Forward(B));
        // The session is A's, so ingress policy of A does not matter.
        let mut ports = ports();
        ports[A.index()].egress = Some(CLOSED);
        ports[B.index()].egress = Some(OPEN);
        bed.snapshot = snapshot_of(4, ports);
        assert_eq!(bed.verdict(B, &probe.reply().unwrap()), Verdict::Forward(A));
        assert_eq!(bed.worker.counters().sessions().created, 1);
    }
}

#[test]
fn a_refusal_is_forgotten_300_seconds_after_the_last_refused_request() {
    let (request, reply) = (refused(ProbeKind::Udp).request().unwrap(), refused(ProbeKind::Udp).reply().unwrap());
    let mut bed = Bed::new();
    bed.send(A, &request);
    bed.wait(299);
    bed.send(A, &request);
    bed.wait(299);
    assert_eq!(bed.verdict(B, &reply), DENIED);
    bed.wait(1);
    assert_eq!(bed.verdict(B, &reply), Verdict::Forward(A), "replies do not prolong it");
    assert_eq!(bed.worker.counters().sessions().expired, 0);
}

#[test]
fn an_error_about_a_refused_packet_is_dropped() {
    let mut bed = Bed::new();
    let request = refused(ProbeKind::Udp).request().unwrap();
    bed.send(A, &request);
    let error = error_about(&request, "10.0.0.2", "10.0.0.1");
    assert_eq!(bed.verdict(B, &error), dropped(DropReason::IcmpErrorWithoutSession));
}

#[test]
fn refusals_give_way_to_sessions_and_displace_none() {
    let mut bed = Bed::with(SessionConfig { capacity: 2, ..SessionConfig::default() });
    for port in 100..200 {
        assert_eq!(bed.verdict(A, &udp("10.0.0.1", "10.0.0.2", port)), DENIED);
    }
    for port in [443, 444] {
        assert_eq!(bed.verdict(B, &tcp("10.0.0.2", "10.0.0.1", 1, port, SYN)), Verdict::Forward(A));
    }
    assert_eq!(bed.verdict(A, &udp("10.0.0.1", "10.0.0.2", 100)), DENIED);
    let sessions = bed.worker.counters().sessions();
    assert_eq!((bed.worker.sessions_in_use(), sessions.recycled, sessions.created, sessions.refused), (2, 0, 2, 0));
}

#[test]
fn where_refused_requests_are_not_remembered_they_block_nobody() {
    let config = SessionConfig { remember_refused: false, ..SessionConfig::default() };
    let mut bed = Bed::with(config);
    let probe = refused(ProbeKind::Udp);
    assert_eq!(bed.verdict(A, &probe.request().unwrap()), DENIED);
    assert_eq!(bed.verdict(B, &probe.reply().unwrap()), Verdict::Forward(A), "B speaks on its own account");
}
