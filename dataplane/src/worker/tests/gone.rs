//! Addresses that no pod has, and sessions whose pod is gone.

use std::sync::Arc;

use crate::probe::{Probe, ProbeKind};
use crate::session::Survivor;
use crate::testbed::*;
use crate::*;

const NO_POD: Verdict = Verdict::Drop(DropReason::NoSuchPod);
const DENIED: Verdict = Verdict::Drop(DropReason::PolicyDenied);
const HIT: Option<SessionState> = Some(SessionState::Hit);
const NEW: Option<SessionState> = Some(SessionState::New);

fn bed(ports: Vec<PortConfig>) -> Bed {
    let mut bed = Bed::with(SessionConfig::live(1000));
    bed.snapshot = snapshot_of_blocks(1, ports);
    bed
}

impl Bed {
    /// Opens a connection from A to port 80 of B.
    fn connect(&mut self) {
        for (port, packet) in [(A, a_to_b(SYN)), (B, b_to_a(SYN | ACK)), (A, a_to_b(ACK))] {
            assert!(self.verdict(port, &packet).out_port().is_some());
        }
    }

    /// Ends the sessions of a port whose pod is gone, and returns their other ends.
    fn end(&mut self, port: PortId) -> Vec<Survivor> {
        self.worker.end_port(port);
        let survivors = std::iter::from_fn(|| self.worker.next_survivor(&mut 1000, self.now)).collect();
        assert!(!self.worker.has_gone());
        survivors
    }
}

#[test]
fn whatever_goes_to_an_address_that_no_pod_has_is_dropped_for_that_and_starts_no_session() {
    for (port, own) in
        [(A, ["10.0.0.1", "fd00::1"]), (HOST, ["192.168.0.1", "fd00:1::1"]), (UPLINK, ["8.8.8.8", "2001::8"])]
    {
        let mut bed = bed(ports());
        for (src, dst) in own.into_iter().zip(["10.0.0.9", "fd00::9"]) {
            for flags in [SYN, ACK, SYN | ACK, FIN | ACK, RST] {
                assert_eq!(bed.verdict(port, &tcp(src, dst, 40_000, 80, flags)), NO_POD, "{port:?} {flags}");
            }
            for kind in [ProbeKind::Udp, ProbeKind::Sctp, ProbeKind::IcmpEcho] {
                let probe = probe(kind, src, dst, 80);
                for packet in [probe.request(), Probe { src: probe.dst, dst: probe.src, ..probe }.reply()] {
                    assert_eq!(bed.verdict(port, &packet.unwrap()), NO_POD, "{port:?} {kind:?}");
                }
            }
        }
        assert_eq!((bed.worker.sessions_in_use(), bed.worker.counters().sessions().created), (0, 0));
        // The addresses of other machines are not the node's.
        let elsewhere = bed.verdict(A, &tcp("10.0.0.1", "10.0.1.9", 40_000, 80, SYN));
        assert_eq!(elsewhere, Verdict::Forward(UPLINK));
    }
}

#[test]
fn policy_is_asked_before_a_sender_may_learn_that_no_pod_has_an_address() {
    let mut closed = ports();
    closed[UPLINK.index()].egress = Some(CLOSED);
    let mut one = bed(closed);
    for flags in [SYN, ACK] {
        assert_eq!(one.verdict(A, &tcp("10.0.0.1", "10.0.0.9", 40_000, 80, flags)), DENIED);
    }
    assert_eq!(one.verdict(A, &udp("10.0.0.1", "10.0.0.9", 80)), DENIED);
    // A pod whose interface is gone still has the policies of its object.
    let mut other = bed(ports_with_gone(B));
    for (port, verdict) in [(80, NO_POD), (81, DENIED)] {
        assert_eq!(other.verdict(A, &tcp("10.0.0.1", "10.0.0.2", 40_000, port, SYN)), verdict);
        assert_eq!(other.verdict(A, &udp("10.0.0.1", "10.0.0.2", port)), verdict);
    }
    assert_eq!(other.worker.sessions_in_use(), 0);
}

#[test]
fn both_ends_of_a_session_learn_that_the_other_is_gone_whether_it_was_ended_or_not() {
    for (gone, peer, packet) in [(B, A, a_to_b(ACK)), (A, B, b_to_a(ACK))] {
        for mut ports in [ports_with_gone(gone), ports_without(gone)] {
            if peer == B {
                // B may start no connection. Its packets are A's replies.
                (ports[UPLINK.index()].egress, ports[A.index()].egress) = (Some(CLOSED), Some(CLOSED));
            }
            for is_ended in [false, true] {
                let mut bed = bed(testbed::ports());
                bed.connect();
                if is_ended {
                    assert_eq!(bed.end(gone).len(), 1);
                    assert_eq!(bed.verdict(peer, &packet), NO_POD, "before the snapshot says so");
                }
                bed.snapshot = snapshot_of_blocks(2, ports.clone());
                for _ in 0..2 {
                    assert_eq!(bed.verdict(peer, &packet), NO_POD, "{gone:?} {is_ended}");
                }
                assert_eq!(bed.worker.sessions_in_use(), 0);
            }
        }
    }
}

#[test]
fn a_session_that_policy_has_cut_stays_denied_when_its_pod_is_gone() {
    let mut bed = bed(ports());
    bed.connect();
    let mut closed = ports();
    closed[B.index()].egress = Some(CLOSED);
    bed.snapshot = snapshot_of_blocks(2, closed);
    assert_eq!(bed.verdict(B, &b_to_a(ACK)), DENIED);
    bed.snapshot = snapshot_of_blocks(3, ports_without(A));
    assert_eq!(bed.verdict(B, &b_to_a(ACK)), DENIED);
}

#[test]
fn a_new_pod_with_the_address_answers_for_the_one_that_is_gone() {
    let mut bed = bed(ports());
    bed.connect();
    assert_eq!(bed.end(B).len(), 1);
    bed.snapshot = snapshot_of_blocks(2, ports_with_gone(B));
    assert_eq!(bed.verdict(A, &a_to_b(ACK)), NO_POD);
    // The new pod's port exists and is not open yet.
    bed.snapshot = snapshot_of_blocks(3, ports());
    assert_eq!(bed.verdict(A, &a_to_b(ACK)), NO_POD);
    let mut open = ports();
    open[B.index()].link = Some(Link { mac: [2; 6], mtu: 1500 });
    bed.snapshot = snapshot_of_blocks(4, open);
    assert_eq!(bed.send(A, &a_to_b(ACK)).session, HIT);
    assert_eq!(bed.verdict(B, &b_to_a(RST)), Verdict::Forward(A), "its kernel resets what it does not know");
    assert_eq!(bed.send(A, &a_to_b(SYN)).session, NEW);
}

#[test]
fn the_other_ends_are_told_except_of_connections_that_are_closed_and_of_pings() {
    let mut bed = bed(ports());
    bed.connect();
    let ping = probe(ProbeKind::IcmpEcho, "10.0.0.1", "10.0.0.2", 0).request().unwrap();
    let (syn, refusal) = (tcp("192.168.0.1", "10.0.0.1", 7, 80, SYN), tcp("10.0.0.1", "192.168.0.1", 80, 7, RST | ACK));
    let unanswered = tcp("8.8.8.8", "10.0.0.1", 50_000, 443, SYN);
    let datagram = udp("10.0.0.1", "10.0.0.2", 80);
    for (port, packet) in [(A, datagram), (UPLINK, unanswered), (A, ping), (HOST, syn), (A, refusal)] {
        assert!(bed.verdict(port, &packet).out_port().is_some());
    }
    let told = bed.end(A);
    let of_b = |protocol, next| Survivor {
        protocol,
        own: (ip("10.0.0.2"), 80),
        other: (ip("10.0.0.1"), 40_000),
        next,
        was_answered: true,
    };
    let outside = Survivor {
        protocol: 6,
        own: (ip("8.8.8.8"), 50_000),
        other: (ip("10.0.0.1"), 443),
        next: [2, 0],
        was_answered: false,
    };
    assert_eq!(told.len(), 3, "{told:?}");
    for expected in [of_b(6, [2, 1]), Survivor { was_answered: false, ..of_b(17, [0, 0]) }, outside] {
        assert!(told.contains(&expected), "{expected:?} in {told:?}");
    }
    assert_eq!((bed.worker.sessions_in_use(), bed.worker.counters().sessions().removed), (0, 0));
}

#[test]
fn a_client_of_a_service_is_told_by_the_service_and_its_next_connection_gets_another_backend() {
    let mut bed = bed(ports());
    let all = |backends: &[Backend], epoch| Some(Arc::new(services(epoch, &[(VIP, service(backends))])));
    let [b, far] = [backend("10.0.0.2", 80), backend("10.9.0.1", 80)];
    bed.snapshot = bed.snapshot.clone().with_services(all(&[b], 1));
    let to_vip = |flags| tcp("10.0.0.1", VIP, 40_000, 8080, flags);
    let datagram = || udp("10.0.0.1", VIP, 8080);
    for (port, packet) in [
        (A, to_vip(SYN)),
        (B, b_to_a(SYN | ACK)),
        (A, to_vip(ACK)),
        (A, datagram()),
        (B, udp("10.0.0.2", "10.0.0.1", 40_000)),
    ] {
        bed.send(port, &packet);
    }
    let told = bed.end(B);
    let ends: Vec<_> = told.iter().map(|told| (told.protocol, told.own, told.other)).collect();
    let [client, vip] = [(ip("10.0.0.1"), 40_000), (ip(VIP), 8080)];
    assert!(ends.contains(&(6, client, vip)) && ends.contains(&(17, client, vip)), "{ends:?}");
    bed.snapshot = snapshot_of_blocks(2, ports_with_gone(B)).with_services(all(&[b], 1));
    for packet in [to_vip(ACK), datagram()] {
        assert_eq!(bed.verdict(A, &packet), NO_POD);
    }
    // The Service hears of it later.
    bed.snapshot = bed.snapshot.clone().with_services(all(&[far], 2));
    assert_eq!(bed.verdict(A, &to_vip(ACK)), NO_POD, "the connection is over");
    for packet in [to_vip(SYN), datagram()] {
        let sent = bed.send(A, &packet);
        assert_eq!((sent.session, sent.translation.map(|sent| sent.dst)), (NEW, Some(ip("10.9.0.1"))));
    }
}
