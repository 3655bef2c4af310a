//! ICMP errors and redirects.

use super::dropped;
use crate::testbed::*;
use crate::*;

const NONE: Verdict = Verdict::Drop(DropReason::IcmpErrorWithoutSession);

#[test]
fn an_error_about_a_sessions_packet_goes_back_to_its_sender_from_any_router() {
    for (src, dst, router) in [("10.0.0.1", "8.8.8.8", "100.64.0.1"), ("fd00::1", "2001:db8::8", "2001:db8::1")] {
        let mut bed = Bed::new();
        let sent = udp(src, dst, 53);
        let allowed = bed.send(A, &sent);
        bed.snapshot = snapshot_with(1, A, Some(CLOSED));
        let error = bed.send(UPLINK, &error_about(&sent, router, src));
        assert_eq!((error.verdict, error.session), (Verdict::Forward(A), Some(SessionState::Hit)));
        assert_eq!(error.decision, allowed.decision);
    }
}

#[test]
fn an_error_about_a_reply_goes_back_to_the_replier() {
    let mut bed = Bed::new();
    bed.send(UPLINK, &tcp("8.8.8.8", "10.0.0.1", 40_000, 80, SYN));
    let reply = tcp("10.0.0.1", "8.8.8.8", 80, 40_000, SYN | ACK);
    bed.send(A, &reply);
    assert_eq!(bed.verdict(UPLINK, &error_about(&reply, "100.64.0.1", "10.0.0.1")), Verdict::Forward(A));
}

#[test]
fn an_error_about_a_ping_is_tied_to_its_identifier() {
    use crate::probe::ProbeKind::IcmpEcho;
    for (src, dst, router) in [("10.0.0.1", "8.8.8.8", "100.64.0.1"), ("fd00::1", "2001:db8::8", "2001:db8::1")] {
        let mut bed = Bed::new();
        let ping = probe(IcmpEcho, src, dst, 0);
        let sent = ping.request().unwrap();
        bed.send(A, &sent);
        assert_eq!(bed.verdict(UPLINK, &error_about(&sent, router, src)), Verdict::Forward(A));
        let other = probe::Probe { sport: 1, ..ping }.request().unwrap();
        assert_eq!(bed.verdict(UPLINK, &error_about(&other, router, src)), NONE);
    }
}

#[test]
fn an_error_about_nothing_that_was_sent_is_dropped() {
    let mut bed = Bed::new();
    let sent = udp("10.0.0.1", "8.8.8.8", 53);
    let error = error_about(&sent, "100.64.0.1", "10.0.0.1");
    assert_eq!(bed.verdict(UPLINK, &error), NONE, "no session");
    bed.send(A, &sent);
    let other = udp("10.0.0.1", "8.8.8.8", 54);
    assert_eq!(bed.verdict(UPLINK, &error_about(&other, "100.64.0.1", "10.0.0.1")), NONE, "another port");
    assert_eq!(bed.verdict(UPLINK, &error_about(&sent, "100.64.0.1", "10.0.0.2")), NONE, "not to the sender");
    for len in 0..24 {
        let cut = [&error[..28], &sent[..len]].concat();
        let mut cut = cut;
        let total = u16::try_from(cut.len()).unwrap();
        cut[2..4].copy_from_slice(&total.to_be_bytes());
        assert_eq!(bed.verdict(UPLINK, &cut), NONE, "{len} bytes of the embedded packet");
    }
    assert_eq!(bed.verdict(UPLINK, &error), Verdict::Forward(A));
}

#[test]
fn an_error_comes_from_the_side_that_the_packet_went_to_or_from_the_node() {
    let mut bed = Bed::new();
    let sent = udp("10.0.0.1", "8.8.8.8", 53);
    bed.send(A, &sent);
    let from_b = error_about(&sent, "10.0.0.2", "10.0.0.1");
    assert_eq!(bed.verdict(B, &from_b), NONE, "another pod has no part in it");
    let from_node = error_about(&sent, "192.168.0.1", "10.0.0.1");
    assert_eq!(bed.verdict(HOST, &from_node), Verdict::Forward(A));
}

#[test]
fn an_error_does_not_keep_a_session_alive() {
    let mut bed = Bed::new();
    let sent = udp("10.0.0.1", "8.8.8.8", 53);
    bed.send(A, &sent);
    bed.wait(29);
    let error = error_about(&sent, "100.64.0.1", "10.0.0.1");
    assert_eq!(bed.verdict(UPLINK, &error), Verdict::Forward(A));
    bed.wait(1);
    assert_eq!(bed.verdict(UPLINK, &error), NONE);
}

#[test]
fn redirects_and_source_quenches_are_dropped_even_about_a_session() {
    let mut bed = Bed::new();
    let sent = udp("10.0.0.1", "8.8.8.8", 53);
    bed.send(A, &sent);
    for kind in [4, 5] {
        let mut redirect = error_about(&sent, "100.64.0.1", "10.0.0.1");
        redirect[20] = kind;
        assert_eq!(bed.verdict(UPLINK, &redirect), dropped(DropReason::IcmpRedirect));
    }
}

#[test]
fn an_error_is_judged_by_the_generation_that_it_comes_in() {
    let mut bed = Bed::new();
    let sent = udp("10.0.0.1", "10.0.0.2", 80);
    bed.send(A, &sent);
    let error = error_about(&sent, "10.0.0.2", "10.0.0.1");
    bed.snapshot = snapshot_with(2, A, Some(CLOSED));
    assert_eq!(bed.verdict(B, &error), Verdict::Forward(A), "the session's own direction is still allowed");
    bed.snapshot = snapshot_with(3, B, Some(CLOSED));
    assert_eq!(bed.verdict(B, &error), dropped(DropReason::PolicyDenied));
    assert_eq!(bed.worker.sessions_in_use(), 0);
}

#[test]
fn the_nodes_time_exceeded_passes_about_an_allowed_packet_and_a_denied_one_tells_nothing_about_routes() {
    let mut bed = Bed::new();
    let last_hop = |dport: u8| v4("10.0.0.1", "10.0.0.2", 17, 1, &[0x9c, 0x40, 0, dport, 0, 8, 0, 0]);
    let denied = bed.send(A, &last_hop(81));
    assert_eq!((denied.verdict, denied.session), (dropped(DropReason::PolicyDenied), None));
    let exceeded = |dport| error_about(&last_hop(dport), "192.168.0.1", "10.0.0.1");
    assert_eq!(bed.verdict(HOST, &exceeded(81)), NONE);
    let allowed = bed.send(A, &last_hop(80));
    assert_eq!((allowed.verdict, allowed.session), (dropped(DropReason::TtlExpired), Some(SessionState::New)));
    assert_eq!(bed.verdict(HOST, &exceeded(80)), Verdict::Forward(A));
    // A newer policy takes precedence, too.
    bed.snapshot = snapshot_with(2, B, Some(CLOSED));
    assert_eq!(bed.verdict(A, &last_hop(80)), dropped(DropReason::PolicyDenied));
}
