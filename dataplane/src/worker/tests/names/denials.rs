//! Packets that policy refuses because their sender has not learned the destination's address, and audited policies that name domains.

use super::*;

const DENIES: OriginId = OriginId(42);

/// Returns a datagram from this port of A to port 443 of [`WEB`].
fn there(port: u16) -> Vec<u8> {
    datagram(("10.0.0.1", port), (WEB, 443), b"x")
}

/// Returns the answer to [`there`].
fn back(port: u16) -> Vec<u8> {
    datagram((WEB, 443), ("10.0.0.1", port), b"x")
}

const DENIED: Verdict = Verdict::Drop(DropReason::PolicyDenied);

#[test]
fn the_answer_to_a_refused_packet_is_refused_until_the_pod_has_learned_the_address_and_sends_again() {
    let mut bed = bed();
    assert_eq!(bed.verdict(A, &there(1)), DENIED);
    assert_eq!(bed.verdict(UPLINK, &back(1)), DENIED);
    resolve(&mut bed, 1, "www.example.com", &[("www.example.com", 60, WEB)]);
    assert_eq!(bed.verdict(UPLINK, &back(1)), DENIED);
    assert_eq!(bed.verdict(A, &there(1)), Verdict::Forward(UPLINK));
    assert_eq!(bed.send(UPLINK, &back(1)).session, Some(SessionState::Hit));
    // Another conversation of that address is none of the pod's.
    assert_eq!(bed.verdict(UPLINK, &back(2)), Verdict::Forward(A));
}

#[test]
fn later_segments_of_a_refused_connection_are_refused_by_policy() {
    let mut bed = bed();
    for flags in [SYN, ACK, FIN | ACK] {
        let outcome = bed.send(A, &tcp("10.0.0.1", WEB, 1, 443, flags));
        assert_eq!((outcome.verdict, outcome.decision.unwrap().origin), (DENIED, Some(DENIES)));
        assert_eq!(bed.verdict(UPLINK, &tcp(WEB, "10.0.0.1", 443, 1, SYN | ACK)), DENIED);
    }
}

#[test]
fn a_session_that_was_cut_goes_on_when_the_pod_learns_its_address_by_another_name() {
    let mut bed = bed();
    resolve(&mut bed, 1, "www.example.com", &[("www.example.com", 60, WEB)]);
    assert_eq!(bed.verdict(A, &there(1)), Verdict::Forward(UPLINK));
    bed.snapshot = snapshot_naming(3, &["other.example.com"], RULE);
    assert_eq!((bed.verdict(A, &there(1)), bed.verdict(UPLINK, &back(1))), (DENIED, DENIED));
    resolve(&mut bed, 2, "other.example.com", &[("other.example.com", 60, WEB)]);
    assert_eq!(bed.send(A, &there(1)).session, Some(SessionState::Hit));
    assert_eq!(bed.verdict(UPLINK, &back(1)), Verdict::Forward(A));
}

#[test]
fn a_session_that_was_cut_keeps_its_name_and_goes_on_when_a_rule_names_it_again() {
    let mut bed = bed();
    resolve(&mut bed, 1, "www.example.com", &[("www.example.com", 1, WEB)]);
    let packet = |flags| tcp("10.0.0.1", WEB, 1, 443, flags);
    assert!(connects(&mut bed, 1, WEB));
    assert_eq!(bed.verdict(UPLINK, &tcp(WEB, "10.0.0.1", 443, 1, SYN | ACK)), Verdict::Forward(A));
    assert_eq!(bed.verdict(A, &packet(ACK)), Verdict::Forward(UPLINK));
    bed.wait(100);
    for (generation, pattern, expected) in [
        (3, "other.example.com", DENIED),
        (4, "another.example.com", DENIED),
        (5, "www.example.com", Verdict::Forward(UPLINK)),
    ] {
        bed.snapshot = snapshot_naming(generation, &[pattern], RULE);
        let outcome = bed.send(A, &packet(ACK));
        assert_eq!(outcome.verdict, expected, "{pattern}");
        let name = outcome.decision.unwrap().name().and_then(|name| bed.worker.learned().text(name));
        assert_eq!(name.is_some(), expected != DENIED, "{pattern}: {name:?}");
    }
    assert!(!connects(&mut bed, 2, WEB), "the address has expired");
}

#[test]
fn an_audited_policy_that_names_domains_reports_what_its_pod_has_not_learned() {
    let mut bed = bed();
    bed.snapshot = changed(&bed.snapshot, 3, |ports| {
        (ports[A.index()].named_table, ports[A.index()].named_audit) = (None, Some(NAMED));
    });
    let first = bed.send(A, &there(1));
    assert_eq!((first.verdict, first.decision.unwrap().table()), (Verdict::Forward(UPLINK), Some(OPEN)));
    let denial = first.audited.expect("it is audited");
    assert_eq!((denial.table(), denial.origin), (Some(NAMED), Some(DENIES)));
    assert_eq!(bed.send(A, &there(1)).audited, None, "a connection is reported once");
    resolve(&mut bed, 1, "www.example.com", &[("www.example.com", 60, WEB)]);
    let later = bed.send(A, &there(2));
    assert_eq!((later.verdict, later.audited), (Verdict::Forward(UPLINK), None));
    assert_eq!(later.decision.unwrap().table(), Some(OPEN), "the rule in force decides, which names no domains");
    assert_eq!(bed.worker.counters().origin(DENIES).audited, 1);
}

#[test]
fn an_audited_policy_is_only_asked_about_what_the_policy_in_force_allows() {
    let mut bed = bed();
    let mut tables = bed.snapshot.tables().to_vec();
    tables.push(Arc::new(table(&["a.example.org"], OriginId(50))));
    let mut ports = bed.snapshot.ports().to_vec();
    ports[A.index()].named_audit = Some(TableId(4));
    let names = bed.snapshot.names().cloned().map(Arc::new);
    bed.snapshot = Snapshot::new(3, ports, tables, bed.snapshot.routes().clone()).unwrap().with_names(names);
    let denied = bed.send(A, &there(1));
    assert_eq!((denied.verdict, denied.audited), (DENIED, None));
    resolve(&mut bed, 1, "www.example.com", &[("www.example.com", 60, WEB)]);
    let by_www = bed.send(A, &there(2));
    assert_eq!((by_www.verdict, by_www.decision.unwrap().origin), (Verdict::Forward(UPLINK), Some(RULE)));
    assert_eq!(by_www.audited.map(|denial| denial.origin), Some(Some(DENIES)));
    resolve(&mut bed, 2, "a.example.org", &[("a.example.org", 60, WEB)]);
    assert_eq!(bed.send(A, &there(3)).audited, None);
}
