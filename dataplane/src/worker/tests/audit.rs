//! Connections that pass because a policy is audited.

use std::sync::Arc;

use bulkhead_classifier::{Action, Addresses, Key, OriginId, PortRange, Rule, Service, ServiceSet, Tables};
use proptest::prelude::*;

use super::dropped;
use crate::probe::{Probe, ProbeKind};
use crate::testbed::*;
use crate::*;

/// Returns a snapshot in which B's enforced table allows everything and its audit table is [`strict_table`].
fn audited(generation: u64) -> Snapshot {
    let mut ports = ports();
    ports[B.index()].egress = Some(OPEN);
    ports[B.index()].audit = Some(STRICT);
    snapshot_of(generation, ports)
}

/// The denying rule of [`strict_table`].
const DENIES: OriginId = OriginId(8);

/// Returns a packet of a connection that only the audit table denies.
fn stranger(flags: u8) -> Vec<u8> {
    tcp("192.0.2.1", "10.0.0.2", 4_000, 22, flags)
}

fn answer(flags: u8) -> Vec<u8> {
    tcp("10.0.0.2", "192.0.2.1", 22, 4_000, flags)
}

fn datagram(src: &str, sport: u16, dport: u16) -> Vec<u8> {
    Probe { sport, ..probe(ProbeKind::Udp, src, "10.0.0.2", dport) }.request().unwrap()
}

fn counted(bed: &Bed) -> u64 {
    bed.worker.counters().origin(DENIES).audited
}

fn bed() -> (Bed, crossbeam_channel::Receiver<Audited>) {
    let mut bed = Bed::new();
    let (tap, told) = AuditTap::new();
    bed.worker.tell_audits_to(tap);
    bed.snapshot = audited(1);
    (bed, told)
}

#[test]
fn what_only_an_audited_policy_denies_passes_and_is_counted_once_a_connection() {
    let (mut bed, told) = bed();
    let first = bed.send(UPLINK, &stranger(SYN));
    assert_eq!((first.verdict, first.session), (Verdict::Forward(B), Some(SessionState::New)));
    assert_eq!(first.decision.unwrap().origin, Some(OriginId(1)), "what lets it pass is in force");
    let denial = first.audited.expect("it is audited");
    assert_eq!((denial.table(), denial.origin), (Some(STRICT), Some(DENIES)));
    let reply = bed.send(B, &answer(SYN | ACK));
    assert_eq!((reply.verdict, reply.audited), (Verdict::Forward(UPLINK), None));
    assert_eq!(bed.send(UPLINK, &stranger(ACK)).audited, None);
    assert_eq!(bed.send(A, &a_to_b(SYN)).audited, None, "all policies allow it");
    assert_eq!(counted(&bed), 1);
    let told: Vec<Audited> = told.try_iter().collect();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].in_port, told[0].out_port, told[0].is_new), (UPLINK, B, true));
    assert_eq!((told[0].flow.dport, told[0].decision), (22, denial));
    assert_eq!(bed.worker.counters().dropped_in_all(), 0);
}

#[test]
fn an_open_connection_is_counted_when_it_becomes_an_audited_one_and_not_again_with_each_generation() {
    let (mut bed, told) = bed();
    bed.snapshot = snapshot_with(1, B, Some(OPEN));
    bed.send(UPLINK, &stranger(SYN));
    bed.send(B, &answer(SYN | ACK));
    let packet = stranger(ACK);
    for generation in 2..6 {
        bed.snapshot = audited(generation);
        let outcome = bed.send(UPLINK, &packet);
        assert_eq!((outcome.verdict, outcome.audited.is_some()), (Verdict::Forward(B), generation == 2));
        assert_eq!(bed.send(UPLINK, &packet).audited, None);
    }
    assert_eq!((counted(&bed), told.try_iter().filter(|audited| !audited.is_new).count()), (1, 1));
    // An audit that ends and starts again is reported again.
    bed.snapshot = snapshot_with(6, B, Some(OPEN));
    bed.send(UPLINK, &packet);
    bed.snapshot = audited(7);
    assert!(bed.send(UPLINK, &packet).audited.is_some());
    assert_eq!(counted(&bed), 2);
}

#[test]
fn when_the_policy_is_enforced_the_connection_is_cut_and_when_it_is_audited_again_it_goes_on_and_is_counted() {
    let (mut bed, _told) = bed();
    bed.send(UPLINK, &stranger(SYN));
    bed.send(B, &answer(SYN | ACK));
    let packet = stranger(ACK);
    bed.snapshot = snapshot_with(2, B, Some(STRICT));
    assert_eq!(bed.verdict(UPLINK, &packet), dropped(DropReason::PolicyDenied));
    bed.snapshot = audited(3);
    let outcome = bed.send(UPLINK, &packet);
    assert_eq!((outcome.verdict, outcome.audited.is_some()), (Verdict::Forward(B), true));
    assert_eq!((counted(&bed), bed.worker.counters().sessions().restored), (2, 1));
}

#[test]
fn a_session_keeps_its_mark_and_its_decision() {
    let (mut bed, _told) = bed();
    bed.send(UPLINK, &stranger(SYN));
    let again = bed.send(B, &answer(SYN | ACK));
    let decision = again.decision.unwrap();
    assert_eq!((decision.table(), decision.rule, decision.origin), (Some(OPEN), Some(0), Some(OriginId(1))));
}

#[test]
fn a_reader_that_does_not_read_costs_nothing_but_counted_connections() {
    let (mut bed, told) = bed();
    let sent = 9_000u16;
    for port in 0..sent {
        bed.send(UPLINK, &datagram("192.0.2.1", 1_000 + port, 53));
    }
    let untold = bed.worker.counters().untold_audits();
    assert_eq!((counted(&bed), untold + told.try_iter().count() as u64), (u64::from(sent), u64::from(sent)));
    assert!(untold > 0);
}

#[test]
fn what_changes_in_the_audit_table_alone_is_a_change_of_the_port() {
    // The tables must be shared: another table with equal rules would count as a change.
    let tables = [open_table(), Tables::build(vec![]).unwrap(), strict_table()].map(Arc::new);
    let snapshot = |generation, audit| {
        let mut ports = ports();
        (ports[B.index()].egress, ports[B.index()].audit) = (Some(OPEN), audit);
        let routes = routes(&ports);
        Snapshot::new(generation, ports, tables.to_vec(), routes).unwrap()
    };
    let before = snapshot(1, None);
    let after = snapshot(2, Some(STRICT)).after(&before);
    assert_eq!((after.epoch(B), after.epoch(A)), (2, 1));
    let same = snapshot(3, Some(STRICT)).after(&after);
    assert_eq!((same.epoch(B), same.epoch(A)), (2, 1));
    let mut ports = ports();
    ports[B.index()].audit = Some(TableId(9));
    let tables = vec![Arc::new(open_table())];
    let routes = routes(&ports);
    assert!(matches!(Snapshot::new(1, ports, tables, routes), Err(SnapshotError::UnknownTable { .. })));
}

fn rule() -> impl Strategy<Value = Rule> {
    let (sources, ports) = (0u8..6, 0u16..4);
    (sources, ports, any::<bool>(), 10u32..20).prop_map(|(source, port, allow, origin)| {
        let action = if allow { Action::Allow } else { Action::Deny };
        let mut rule = Rule::any(action, OriginId(origin));
        if source > 0 {
            rule.src = Addresses::prefix(format!("192.0.2.{source}/32").parse().unwrap());
        }
        if port > 0 {
            let service = Service { protocols: (17, 17), ports: PortRange::one(port) };
            rule.services = ServiceSet::from_iter([service]).into();
        }
        rule
    })
}

fn snapshot(generation: u64, enforced: &Tables, full: Option<&Tables>) -> Snapshot {
    let mut ports = ports();
    ports[B.index()].egress = Some(TableId(1));
    ports[B.index()].audit = full.map(|_| TableId(2));
    let tables = [Some(open_table()), Some(enforced.clone()), full.cloned()].into_iter().flatten();
    let routes = routes(&ports);
    Snapshot::new(generation, ports, tables.map(Arc::new).collect(), routes).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// An audit table changes no outcome except the audit result, which equals that of brute force.
    #[test]
    fn an_audit_table_changes_nothing_and_tells_what_only_it_denies(
        enforced in prop::collection::vec(rule(), 1..6),
        full in prop::collection::vec(rule(), 1..6),
        packets in prop::collection::vec((1u8..6, 1u16..4, 0u16..3, any::<bool>()), 1..60),
    ) {
        let [enforced, full] = [enforced, full].map(|rules| Tables::build(rules).unwrap());
        let (mut with, mut without) = (Bed::new(), Bed::new());
        let mut generation = 1;
        for (source, port, client, changes) in packets {
            if changes {
                generation += 1;
            }
            with.snapshot = snapshot(generation, &enforced, Some(&full));
            without.snapshot = snapshot(generation, &enforced, None);
            let packet = datagram(&format!("192.0.2.{source}"), 1_000 + client, port);
            let (told, plain) = (with.send(UPLINK, &packet), without.send(UPLINK, &packet));
            prop_assert_eq!(Outcome { audited: None, ..told }, plain);
            let key = Key::new(ip(&format!("192.0.2.{source}")), ip("10.0.0.2"), 17, 1_000 + client, port);
            let denies = enforced.lookup(&key).is_allow() && !full.lookup(&key).is_allow();
            if told.session == Some(SessionState::New) {
                prop_assert_eq!(told.audited.is_some(), denies);
            } else {
                prop_assert_eq!(told.audited, None, "once for each connection");
            }
        }
    }
}
