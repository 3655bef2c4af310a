//! The worker's pipeline as a whole, mostly one packet at a time.

mod admission;
mod attacks;
mod audit;
mod errors;
mod fragments;
mod generations;
mod gone;
mod live;
mod masquerade;
mod messages;
mod names;
mod neighbours;
mod properties;
mod refusals;
mod sctp;
mod selection;
mod services;
mod sessions;
mod shares;
mod source;
mod speed;

use bulkhead_classifier::OriginId;

use crate::probe::ProbeKind;
use crate::testbed::*;
use crate::*;

fn dropped(reason: DropReason) -> Verdict {
    Verdict::Drop(reason)
}

#[test]
fn an_allowed_packet_leaves_through_its_destinations_port_and_names_the_rule() {
    let mut bed = Bed::new();
    let outcome = bed.send(A, &a_to_b(SYN));
    assert_eq!(outcome.verdict, Verdict::Forward(B));
    assert_eq!(
        outcome.decision,
        Some(Decision { by: Some(Decider::Table(STRICT)), rule: Some(0), origin: Some(OriginId(7)) })
    );
    assert_eq!((outcome.in_port, outcome.session), (A, Some(SessionState::New)));
    assert_eq!(outcome.flow.unwrap().to_string(), "10.0.0.1:40000 > 10.0.0.2:80 protocol 6");
}

#[test]
fn a_denied_packet_names_the_rule_and_starts_no_session() {
    let mut bed = Bed::new();
    let outcome = bed.send(A, &udp("10.0.0.1", "10.0.0.2", 81));
    assert_eq!(outcome.verdict, dropped(DropReason::PolicyDenied));
    assert_eq!(
        outcome.decision,
        Some(Decision { by: Some(Decider::Table(STRICT)), rule: Some(2), origin: Some(OriginId(8)) })
    );
    assert_eq!((outcome.session, bed.worker.sessions_in_use()), (None, 0));
}

#[test]
fn no_matching_rule_is_a_deny_without_a_rule() {
    let mut bed = Bed::new();
    bed.snapshot = snapshot_with(2, B, Some(CLOSED));
    let outcome = bed.send(A, &udp("10.0.0.1", "10.0.0.2", 80));
    assert_eq!(outcome.verdict, dropped(DropReason::PolicyDenied));
    assert_eq!(outcome.decision, Some(Decision { by: Some(Decider::Table(CLOSED)), rule: None, origin: None }));
}

#[test]
fn a_port_without_a_table_lets_nothing_out() {
    let mut bed = Bed::new();
    bed.snapshot = snapshot_with(2, B, None);
    let outcome = bed.send(A, &udp("10.0.0.1", "10.0.0.2", 80));
    assert_eq!((outcome.verdict, outcome.decision), (dropped(DropReason::TableMissing), None));
}

#[test]
fn an_unknown_port_is_closed() {
    let mut bed = Bed::new();
    assert_eq!(bed.verdict(PortId(4), &a_to_b(SYN)), dropped(DropReason::UnknownPort));
    bed.snapshot = Snapshot::empty();
    assert_eq!(bed.verdict(A, &a_to_b(SYN)), dropped(DropReason::UnknownPort));
}

#[test]
fn routes_decide_where_a_packet_leaves() {
    let mut bed = Bed::new();
    assert_eq!(bed.verdict(A, &udp("10.0.0.1", "8.8.8.8", 53)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(A, &udp("10.0.0.1", "192.168.0.1", 53)), Verdict::Forward(HOST));
    assert_eq!(bed.verdict(UPLINK, &udp("8.8.8.8", "10.0.0.1", 53)), Verdict::Forward(A));
    assert_eq!(bed.verdict(HOST, &udp("192.168.0.1", "10.0.0.1", 9)), Verdict::Forward(A));
    assert_eq!(bed.verdict(UPLINK, &udp("8.8.8.8", "9.9.9.9", 53)), dropped(DropReason::BackToSender));
    assert_eq!(bed.verdict(HOST, &udp("192.168.0.1", "192.168.0.1", 53)), dropped(DropReason::BackToSender));
    let routes = Routes::default();
    bed.snapshot = Snapshot::new(2, ports(), bed.snapshot.tables().to_vec(), routes).unwrap();
    assert_eq!(bed.verdict(A, &udp("10.0.0.1", "8.8.8.8", 53)), dropped(DropReason::NoRoute));
}

#[test]
fn a_pod_reaches_itself_whatever_its_table_says_when_the_control_plane_says_so() {
    let mut bed = Bed::new();
    let to_itself = tcp("10.0.0.2", "10.0.0.2", 40_000, 443, SYN);
    let outcome = bed.send(B, &to_itself);
    assert_eq!(outcome.verdict, Verdict::Forward(B));
    assert_eq!(outcome.decision, Some(Decision { by: None, rule: None, origin: Some(OriginId(9)) }));
    let reply = tcp("10.0.0.2", "10.0.0.2", 443, 40_000, SYN | ACK);
    assert_eq!(bed.send(B, &reply).session, Some(SessionState::Hit));

    let mut ports = ports();
    ports[B.index()].hairpin = None;
    bed.snapshot = snapshot_of(2, ports);
    assert_eq!(bed.verdict(B, &to_itself), dropped(DropReason::PolicyDenied), "the session is judged again");
}

#[test]
fn a_used_up_hop_limit_reaches_the_node_and_nobody_else() {
    let mut bed = Bed::new();
    for ttl in [0, 1] {
        let payload = [0x9c, 0x40, 0, 80, 0, 8, 0, 0];
        let to_b = v4("10.0.0.1", "10.0.0.2", 17, ttl, &payload);
        assert_eq!(bed.verdict(A, &to_b), dropped(DropReason::TtlExpired));
        let to_b = v6("fd00::1", "fd00::2", 17, ttl, &payload);
        assert_eq!(bed.verdict(A, &to_b), dropped(DropReason::TtlExpired));
        let to_node = v4("10.0.0.1", "192.168.0.1", 17, ttl, &payload);
        assert_eq!(bed.verdict(A, &to_node), Verdict::Forward(HOST));
    }
    assert_eq!(bed.worker.counters().dropped(DropReason::TtlExpired), 4);
    // A session does not exempt from the limit.
    assert_eq!(bed.verdict(A, &udp("10.0.0.1", "10.0.0.2", 80)), Verdict::Forward(B));
    let in_session = v4("10.0.0.1", "10.0.0.2", 17, 1, &[0x9c, 0x40, 0, 80, 0, 8, 0, 0]);
    assert_eq!(bed.verdict(A, &in_session), dropped(DropReason::TtlExpired));
}

#[test]
fn every_kind_of_conversation_passes_both_ways_in_both_families() {
    for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        for kind in [ProbeKind::Tcp, ProbeKind::Udp, ProbeKind::Sctp, ProbeKind::IcmpEcho] {
            let mut bed = Bed::new();
            let probe = probe(kind, src, dst, 80);
            let request = bed.send(A, &probe.request().unwrap());
            assert_eq!((request.verdict, request.session), (Verdict::Forward(B), Some(SessionState::New)), "{kind:?}");
            let reply = bed.send(B, &probe.reply().unwrap());
            assert_eq!((reply.verdict, reply.session), (Verdict::Forward(A), Some(SessionState::Hit)), "{kind:?}");
            assert_eq!(reply.decision, request.decision, "the reply names what allowed the request");
        }
    }
}

#[test]
fn cve_2023_1668_protocol_0_matches_no_rule_of_another_protocol_and_opens_nothing_for_one() {
    let mut bed = Bed::new();
    let protocol_0 = v4("10.0.0.1", "10.0.0.2", 0, 64, &[0x9c, 0x40, 0, 80, 0, 0, 0, 0]);
    assert_eq!(bed.verdict(A, &protocol_0), dropped(DropReason::PolicyDenied));
    // An allowed packet passes and creates a session only for its own protocol.
    bed.worker.clear();
    let allowed = v4("10.0.0.2", "10.0.0.1", 0, 64, &[0x9c, 0x40, 0, 80, 0, 0, 0, 0]);
    assert_eq!(bed.verdict(B, &allowed), Verdict::Forward(A));
    assert_eq!(bed.verdict(A, &udp("10.0.0.1", "10.0.0.2", 81)), dropped(DropReason::PolicyDenied));
    assert_eq!(bed.verdict(A, &tcp("10.0.0.1", "10.0.0.2", 40_000, 81, SYN)), dropped(DropReason::PolicyDenied));
}

#[test]
fn bytes_of_a_protocol_without_ports_match_no_rule_about_ports() {
    use bulkhead_classifier::{Action, PortRange, Rule, Service, ServiceSet, Services, Tables};
    let any_protocol_port_80 = Service { protocols: (0, 255), ports: PortRange::one(80) };
    let set: ServiceSet = [any_protocol_port_80].into_iter().collect();
    let rule = Rule { services: Services::from(set), ..Rule::any(Action::Allow, OriginId(1)) };
    let table = std::sync::Arc::new(Tables::build(vec![rule]).unwrap());
    let mut bed = Bed::new();
    bed.snapshot = Snapshot::new(2, ports(), vec![table; 3], routes(&ports())).unwrap();
    for protocol in [0, 47, 50, 58, 255] {
        let packet = v4("10.0.0.1", "10.0.0.2", protocol, 64, &[0, 80, 0, 80, 0, 80, 0, 80]);
        assert_eq!(bed.verdict(A, &packet), dropped(DropReason::PolicyDenied), "protocol {protocol}");
    }
    // An echo request whose identifier is 80, and a message whose type is 80.
    let echo = Probe { sport: 80, ..probe(ProbeKind::IcmpEcho, "10.0.0.1", "10.0.0.2", 80) };
    assert_eq!(bed.verdict(A, &echo.request().unwrap()), dropped(DropReason::PolicyDenied));
    let other = v4("10.0.0.1", "10.0.0.2", 1, 64, &[80, 80, 0, 80, 0, 80, 0, 80]);
    assert_eq!(bed.verdict(A, &other), dropped(DropReason::PolicyDenied));
}

use crate::probe::Probe;

#[test]
fn counters_tell_ports_reasons_and_sessions() {
    let mut bed = Bed::new();
    bed.send(A, &a_to_b(SYN));
    bed.send(B, &b_to_a(SYN | ACK));
    bed.send(A, &udp("10.0.0.1", "10.0.0.2", 81));
    bed.send(A, &[]);
    let counters = bed.worker.counters();
    assert_eq!((counters.received(), counters.forwarded(), counters.dropped_in_all()), (4, 2, 2));
    assert_eq!(counters.dropped(DropReason::PolicyDenied), 1);
    assert_eq!(counters.dropped(DropReason::LinkTruncated), 1);
    assert_eq!(counters.port(A), PortCounters { received: 3, sent: 1, dropped: 2 });
    assert_eq!(counters.port(B), PortCounters { received: 1, sent: 1, dropped: 0 });
    assert_eq!(counters.sessions(), SessionCounters { created: 1, ..SessionCounters::default() });
}

#[test]
#[should_panic(expected = "one outcome slot per packet")]
fn slices_of_different_lengths_are_a_fault_of_the_caller() {
    Bed::new().worker.process(&snapshot(), &[], &mut [Outcome::UNJUDGED]);
}

#[test]
fn clearing_forgets_sessions_and_fragments_and_keeps_counters() {
    let mut bed = Bed::new();
    bed.send(A, &a_to_b(SYN));
    bed.worker.clear();
    assert_eq!(bed.worker.sessions_in_use(), 0);
    assert_eq!(bed.verdict(B, &b_to_a(SYN | ACK)), dropped(DropReason::TcpWithoutSession));
    assert_eq!(bed.worker.counters().received(), 2);
}

#[test]
fn cve_2024_47825_an_earlier_deny_of_a_wide_prefix_holds_against_a_later_allow_of_a_narrow_one() {
    use bulkhead_classifier::{Action, Addresses, Rule, Tables};
    let of = |action, prefix: &str| Rule {
        src: Addresses::prefix(prefix.parse().unwrap()),
        ..Rule::any(action, OriginId(1))
    };
    let rules = vec![of(Action::Deny, "10.0.0.0/8"), of(Action::Allow, "10.0.0.1/32")];
    let table = std::sync::Arc::new(Tables::build(rules).unwrap());
    let mut bed = Bed::new();
    bed.snapshot = Snapshot::new(2, ports(), vec![table; 3], routes(&ports())).unwrap();
    let outcome = bed.send(A, &udp("10.0.0.1", "10.0.0.2", 80));
    assert_eq!((outcome.verdict, outcome.decision.unwrap().rule), (dropped(DropReason::PolicyDenied), Some(0)));
}

#[test]
fn cve_2016_10377_lengths_that_contradict_each_other_never_underflow_and_never_pass() {
    let good = udp("10.0.0.1", "10.0.0.2", 80);
    let long = [&good[..], &[0; 64]].concat();
    for bytes in [&good, &long] {
        for total in 0..=200u16 {
            for words in 0..=15 {
                let mut packet = bytes.clone();
                packet[0] = 0x40 | words;
                packet[2..4].copy_from_slice(&total.to_be_bytes());
                let header = u16::from(words) * 4;
                // The options are then parsed as UDP header and payload, and some are valid.
                let may_pass = words >= 5 && total >= header + 8 && usize::from(total) <= packet.len();
                let passes = Bed::new().verdict(A, &packet).out_port().is_some();
                assert!(may_pass || !passes, "{words} words, {total} bytes of {}", packet.len());
            }
        }
    }
    assert_eq!(Bed::new().verdict(A, &good), Verdict::Forward(B));
}
