//! Enforcement at the source: the ingress port's table judges a packet, whichever port it leaves by.

use super::dropped;
use crate::testbed::*;
use crate::*;

/// Returns ports that have only a table for received packets.
fn snapshot_at_source(generation: u64, of_a: Option<TableId>) -> Snapshot {
    let mut ports = ports();
    for port in &mut ports {
        (port.egress, port.ingress) = (None, Some(OPEN));
    }
    ports[A.index()].ingress = of_a;
    snapshot_of(generation, ports)
}

fn bed(of_a: Option<TableId>) -> Bed {
    let mut bed = Bed::new();
    bed.snapshot = snapshot_at_source(1, of_a);
    bed
}

#[test]
fn a_packet_is_judged_where_it_comes_in_and_its_answer_belongs_to_the_session() {
    let mut bed = bed(Some(CLOSED));
    let outcome = bed.send(A, &a_to_b(SYN));
    assert_eq!(outcome.verdict, dropped(DropReason::PolicyDenied));
    assert_eq!(outcome.decision.unwrap().table(), Some(CLOSED));
    bed.wait(600);
    assert_eq!(bed.verdict(B, &b_to_a(SYN)), Verdict::Forward(A), "what goes to A is judged at B");
    assert_eq!(bed.verdict(A, &a_to_b(SYN | ACK)), Verdict::Forward(B), "A answers");
    let from_outside = udp("192.0.2.1", "10.0.0.1", 53);
    assert_eq!(bed.send(UPLINK, &from_outside).decision.unwrap().table(), Some(OPEN));
    assert_eq!(bed.verdict(A, &udp("10.0.0.1", "192.0.2.1", 53)), dropped(DropReason::PolicyDenied));
}

#[test]
fn a_port_without_any_table_is_closed_for_what_comes_in() {
    let mut bed = bed(None);
    assert_eq!(bed.verdict(A, &a_to_b(SYN)), dropped(DropReason::TableMissing));
    assert_eq!(bed.verdict(B, &b_to_a(SYN)), Verdict::Forward(A));
}

#[test]
fn a_new_table_at_the_source_ends_what_it_does_not_allow_in_either_direction() {
    for reply_first in [false, true] {
        let mut bed = bed(Some(OPEN));
        bed.send(A, &a_to_b(SYN));
        bed.send(B, &b_to_a(SYN | ACK));
        bed.snapshot = snapshot_at_source(2, Some(CLOSED));
        let verdict = if reply_first { bed.verdict(B, &b_to_a(ACK)) } else { bed.verdict(A, &a_to_b(ACK)) };
        assert_eq!(verdict, dropped(DropReason::PolicyDenied));
        assert_eq!(bed.worker.sessions_in_use(), 0);
    }
}

#[test]
fn another_table_for_what_comes_in_is_a_new_epoch_of_its_port_alone() {
    let (old, mut new) = (snapshot_at_source(1, Some(OPEN)), snapshot_at_source(2, Some(CLOSED)));
    // Both snapshots share the tables, as a control plane's do.
    let tables = old.tables().to_vec();
    new = Snapshot::new(2, new.ports().to_vec(), tables, new.routes().clone()).unwrap().after(&old);
    assert_eq!([UPLINK, HOST, A, B].map(|port| new.epoch(port)), [1, 1, 2, 1]);
}

#[test]
fn a_table_for_what_comes_in_has_to_be_there() {
    let mut ports = ports();
    ports[A.index()].ingress = Some(TableId(77));
    let refused = Snapshot::new(1, ports.clone(), snapshot().tables().to_vec(), routes(&ports)).unwrap_err();
    assert_eq!(refused, SnapshotError::UnknownTable { port: "ns/a".into(), table: TableId(77), tables: 3 });
}
