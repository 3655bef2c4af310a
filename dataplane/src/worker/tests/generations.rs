//! The effects of a policy change on open sessions.

use super::dropped;
use crate::testbed::*;
use crate::*;

fn open_session() -> Bed {
    let mut bed = Bed::new();
    bed.send(A, &a_to_b(SYN));
    bed.send(B, &b_to_a(SYN | ACK));
    bed
}

#[test]
fn a_session_that_is_still_allowed_goes_on_and_names_the_new_rule() {
    let mut bed = open_session();
    bed.snapshot = snapshot_with(2, B, Some(OPEN));
    let outcome = bed.send(A, &a_to_b(ACK));
    assert_eq!((outcome.verdict, outcome.session), (Verdict::Forward(B), Some(SessionState::Hit)));
    assert_eq!(outcome.decision.unwrap().table(), Some(OPEN));
    assert_eq!(bed.send(B, &b_to_a(ACK)).decision, outcome.decision);
    assert_eq!(bed.worker.counters().sessions().created, 1);
}

#[test]
fn a_session_that_is_no_longer_allowed_ends_with_its_next_packet_in_either_direction() {
    for reply_first in [false, true] {
        let mut bed = open_session();
        bed.snapshot = snapshot_with(2, B, Some(CLOSED));
        let outcome = if reply_first { bed.send(B, &b_to_a(ACK)) } else { bed.send(A, &a_to_b(ACK)) };
        assert_eq!(outcome.verdict, dropped(DropReason::PolicyDenied));
        assert_eq!(outcome.decision.unwrap().table(), Some(CLOSED));
        assert_eq!((bed.worker.sessions_in_use(), bed.worker.counters().sessions().revoked), (0, 1));
        assert_eq!(bed.verdict(A, &a_to_b(ACK)), dropped(DropReason::PolicyDenied), "it is remembered");
    }
}

#[test]
fn a_reply_is_judged_by_the_sessions_own_direction() {
    let mut bed = open_session();
    // All ingress to A is denied now, but A's own session to B is judged at B.
    bed.snapshot = snapshot_with(2, A, Some(CLOSED));
    assert_eq!(bed.verdict(B, &b_to_a(ACK)), Verdict::Forward(A));
}

#[test]
fn a_missing_table_ends_a_session_too() {
    let mut bed = open_session();
    bed.snapshot = snapshot_with(2, B, None);
    assert_eq!(bed.verdict(B, &b_to_a(ACK)), dropped(DropReason::TableMissing));
    assert_eq!(bed.worker.sessions_in_use(), 0);
}

#[test]
fn a_session_follows_its_pods_to_other_port_numbers() {
    let mut bed = open_session();
    let mut ports = ports();
    ports.swap(A.index(), B.index());
    bed.snapshot = snapshot_of(2, ports);
    assert_eq!(bed.verdict(A, &b_to_a(ACK)), Verdict::Forward(B), "B is now at A's place");
    assert_eq!(bed.verdict(B, &a_to_b(ACK)), Verdict::Forward(A));
    assert_eq!(bed.worker.counters().sessions().created, 1);
}

#[test]
fn a_session_from_outside_follows_the_uplink_to_another_number() {
    let mut bed = Bed::new();
    bed.send(UPLINK, &tcp("8.8.8.8", "10.0.0.1", 40_000, 80, SYN));
    let mut ports = ports();
    ports.swap(UPLINK.index(), B.index());
    let default = [("0.0.0.0/0".parse().unwrap(), B), ("::/0".parse().unwrap(), B)];
    let own = (0u16..).zip(&ports).flat_map(|(id, p)| p.addresses.iter().map(move |&a| (a.into(), PortId(id))));
    let routes = Routes::new(own.chain(default)).unwrap();
    bed.snapshot = Snapshot::new(2, ports.clone(), bed.snapshot.tables().to_vec(), routes).unwrap();
    let reply = tcp("10.0.0.1", "8.8.8.8", 80, 40_000, SYN | ACK);
    assert_eq!(bed.verdict(A, &reply), Verdict::Forward(B));
}

#[test]
fn a_session_stays_with_the_uplink_when_uplink_and_host_swap_their_numbers() {
    let mut bed = Bed::new();
    bed.send(UPLINK, &tcp("8.8.8.8", "10.0.0.1", 40_000, 80, SYN));
    let mut ports = ports();
    ports.swap(UPLINK.index(), HOST.index());
    let default = [("0.0.0.0/0".parse().unwrap(), HOST), ("::/0".parse().unwrap(), HOST)];
    let own = (0u16..).zip(&ports).flat_map(|(id, p)| p.addresses.iter().map(move |&a| (a.into(), PortId(id))));
    let routes = Routes::new(own.chain(default)).unwrap();
    bed.snapshot = Snapshot::new(2, ports.clone(), bed.snapshot.tables().to_vec(), routes).unwrap();
    let (new_host, new_uplink) = (UPLINK, HOST);
    let ack = tcp("8.8.8.8", "10.0.0.1", 40_000, 80, ACK);
    assert_eq!(bed.verdict(new_host, &ack), dropped(DropReason::TcpWithoutSession), "the node is not the uplink");
    let reply = tcp("10.0.0.1", "8.8.8.8", 80, 40_000, SYN | ACK);
    assert_eq!(bed.verdict(A, &reply), Verdict::Forward(new_uplink));
    assert_eq!(bed.verdict(new_uplink, &ack), Verdict::Forward(A));
    assert_eq!(bed.verdict(new_host, &ack), dropped(DropReason::TcpWithoutSession));
}

#[test]
fn packets_of_a_shared_uplink_may_come_by_the_node_and_answers_leave_where_the_first_packet_came_from() {
    let mut bed = Bed::new();
    let mut ports = ports();
    ports[UPLINK.index()].shares_host = true;
    bed.snapshot = snapshot_of(2, ports);
    assert_eq!(bed.verdict(A, &tcp("10.0.0.1", "8.8.8.8", 40_000, 80, SYN)), Verdict::Forward(UPLINK));
    let answer = tcp("8.8.8.8", "10.0.0.1", 80, 40_000, SYN | ACK);
    assert_eq!([UPLINK, HOST].map(|port| bed.verdict(port, &answer)), [Verdict::Forward(A); 2]);
    assert_eq!(bed.verdict(B, &answer), dropped(DropReason::SpoofedSource));
    // The node's kernel has translated the destination, and must see the answer.
    assert_eq!(bed.verdict(HOST, &tcp("8.8.4.4", "10.0.0.1", 40_000, 80, SYN)), Verdict::Forward(A));
    let answer = tcp("10.0.0.1", "8.8.4.4", 80, 40_000, SYN | ACK);
    assert_eq!(bed.verdict(A, &answer), Verdict::Forward(HOST));
    let through_service = udp("192.168.0.1", "9.9.9.9", 53);
    assert_eq!(bed.verdict(HOST, &through_service), dropped(DropReason::BackToSender), "the node has its own routes");
    let next = tcp("8.8.4.4", "10.0.0.1", 40_000, 80, ACK);
    assert_eq!(bed.verdict(UPLINK, &next), dropped(DropReason::TcpWithoutSession));
}

#[test]
fn a_pods_session_does_not_pass_to_the_pod_that_gets_its_port_number() {
    let mut bed = open_session();
    let mut ports = ports();
    ports[A.index()] = PortConfig { addresses: vec![ip("10.0.0.7")], ..ports[A.index()].clone() };
    bed.snapshot = snapshot_of(2, ports);
    assert_eq!(bed.verdict(A, &a_to_b(ACK)), dropped(DropReason::SpoofedSource));
    let stray = bed.send(B, &b_to_a(ACK));
    assert_ne!(stray.verdict, Verdict::Forward(A), "10.0.0.1 is not there any more");
}

#[test]
fn every_stale_session_of_a_burst_is_asked_about_and_each_gets_its_own_answer() {
    let mut bed = Bed::new();
    let frames: Vec<Vec<u8>> = (0..300u16)
        .map(|n| tcp("10.0.0.1", if n % 2 == 0 { "10.0.0.2" } else { "8.8.8.8" }, 1000 + n, 80, SYN))
        .collect();
    let packets: Vec<Packet<'_>> = frames
        .iter()
        .map(|frame| Packet { frame, wire_len: frame.len(), link: LinkType::Raw, in_port: A, time: 5 })
        .collect();
    let mut outcomes = vec![Outcome::UNJUDGED; 300];
    bed.worker.process(&bed.snapshot, &packets, &mut outcomes);
    assert_eq!(bed.worker.sessions_in_use(), 300);
    bed.snapshot = snapshot_with(2, B, Some(CLOSED));
    bed.worker.process(&bed.snapshot, &packets, &mut outcomes);
    for (n, outcome) in outcomes.iter().enumerate() {
        let expected = if n % 2 == 0 { dropped(DropReason::PolicyDenied) } else { Verdict::Forward(UPLINK) };
        assert_eq!(outcome.verdict, expected, "packet {n}");
    }
    assert_eq!(bed.worker.sessions_in_use(), 150);
}
