//! No port can use up the session table for others.

use super::dropped;
use crate::probe::ProbeKind;
use crate::testbed::*;
use crate::*;

const FULL: Verdict = Verdict::Drop(DropReason::SessionQuota);

/// Returns a bed with capacity 100: a quarter for connections that are not established, half for each pod, all for the uplink.
fn shared() -> Bed {
    Bed::with(SessionConfig { pod_share: Percent(50), outside_share: Percent::ALL, ..SessionConfig::live(100) })
}

fn syn(bed: &mut Bed, from: PortId, src: &str, sport: u16) -> Verdict {
    bed.verdict(from, &tcp(src, "8.8.8.8", sport, 443, SYN))
}

fn answer(bed: &mut Bed, dst: &str, dport: u16, flags: u8) -> Verdict {
    bed.verdict(UPLINK, &tcp("8.8.8.8", dst, 443, dport, flags))
}

/// Completes the handshake of a connection to the outside.
fn connect(bed: &mut Bed, from: PortId, src: &str, sport: u16) {
    assert_eq!(syn(bed, from, src, sport), Verdict::Forward(UPLINK));
    assert_eq!(answer(bed, src, sport, SYN | ACK), Verdict::Forward(from));
    assert_eq!(bed.verdict(from, &tcp(src, "8.8.8.8", sport, 443, ACK)), Verdict::Forward(UPLINK));
}

/// Sends a datagram to an outside port, and its answer.
fn stream(bed: &mut Bed, from: PortId, src: &str, port: u16) {
    let probe = probe(ProbeKind::Udp, src, "8.8.8.8", port);
    assert_eq!(bed.verdict(from, &probe.request().unwrap()), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(UPLINK, &probe.reply().unwrap()), Verdict::Forward(from));
}

#[test]
fn a_flood_of_syns_fills_its_share_of_the_table_and_no_more() {
    let mut bed = shared();
    for sport in 1..=500 {
        assert_eq!(syn(&mut bed, A, "10.0.0.1", sport), Verdict::Forward(UPLINK));
    }
    let sessions = bed.worker.counters().sessions();
    assert_eq!((bed.worker.sessions_in_use(), sessions.recycled, sessions.refused), (25, 475, 0));
}

#[test]
fn a_pod_that_floods_with_syns_recycles_its_own_and_not_another_pods() {
    let mut bed = shared();
    for sport in 1..=5 {
        connect(&mut bed, B, "10.0.0.2", sport);
        assert_eq!(syn(&mut bed, B, "10.0.0.2", 100 + sport), Verdict::Forward(UPLINK));
    }
    for sport in 1..=1000 {
        assert_eq!(syn(&mut bed, A, "10.0.0.1", sport), Verdict::Forward(UPLINK));
    }
    for sport in 1..=5 {
        assert_eq!(answer(&mut bed, "10.0.0.2", sport, ACK), Verdict::Forward(B), "established");
        assert_eq!(answer(&mut bed, "10.0.0.2", 100 + sport, SYN | ACK), Verdict::Forward(B), "half open");
    }
    // B still connects, though A's connections fill the share.
    (200..220).for_each(|sport| connect(&mut bed, B, "10.0.0.2", sport));
}

#[test]
fn a_flood_from_outside_does_not_end_a_pods_half_open_connections() {
    let mut bed = shared();
    assert_eq!(syn(&mut bed, A, "10.0.0.1", 1), Verdict::Forward(UPLINK));
    for host in 0..=255 {
        let flood = tcp(&format!("9.9.9.{host}"), "10.0.0.1", 7, 80, SYN);
        assert_eq!(bed.verdict(UPLINK, &flood), Verdict::Forward(A));
    }
    assert_eq!(answer(&mut bed, "10.0.0.1", 1, SYN | ACK), Verdict::Forward(A));
}

#[test]
fn a_pod_that_has_used_up_its_share_is_refused_and_another_is_not() {
    let mut bed = shared();
    (1..=50).for_each(|port| stream(&mut bed, A, "10.0.0.1", port));
    let refused = bed.send(A, &udp("10.0.0.1", "8.8.8.8", 51));
    assert_eq!((refused.verdict, refused.session), (FULL, None));
    assert_eq!(bed.worker.counters().dropped(DropReason::SessionQuota), 1);
    assert_eq!(bed.worker.counters().sessions().refused, 1);
    assert_eq!(bed.verdict(A, &udp("10.0.0.1", "8.8.8.8", 50)), Verdict::Forward(UPLINK), "what is open stays open");
    for port in 1..=50 {
        assert_eq!(bed.verdict(B, &udp("10.0.0.2", "8.8.8.8", port)), Verdict::Forward(UPLINK));
    }
    bed.wait(180);
    assert_eq!(bed.verdict(A, &udp("10.0.0.1", "8.8.8.8", 51)), Verdict::Forward(UPLINK), "when others have ended");
}

#[test]
fn a_pod_at_its_share_recycles_its_own_half_open_connections_and_pings() {
    let mut bed = shared();
    let ping = probe(ProbeKind::IcmpEcho, "10.0.0.1", "8.8.8.8", 0);
    bed.send(A, &ping.request().unwrap());
    assert_eq!(syn(&mut bed, A, "10.0.0.1", 1), Verdict::Forward(UPLINK));
    assert_eq!(syn(&mut bed, B, "10.0.0.2", 1), Verdict::Forward(UPLINK));
    (1..=50).for_each(|port| stream(&mut bed, A, "10.0.0.1", port));
    assert_eq!(bed.verdict(A, &udp("10.0.0.1", "8.8.8.8", 51)), FULL);
    assert_eq!(answer(&mut bed, "10.0.0.1", 1, SYN | ACK), dropped(DropReason::TcpWithoutSession));
    assert_eq!(answer(&mut bed, "10.0.0.2", 1, SYN | ACK), Verdict::Forward(B));
}

#[test]
fn a_pod_that_others_connect_to_pays_nothing_for_it() {
    let mut bed = shared();
    for host in 0..80 {
        assert_eq!(bed.verdict(UPLINK, &udp(&format!("9.9.9.{host}"), "10.0.0.1", 53)), Verdict::Forward(A));
    }
    assert_eq!(bed.verdict(A, &udp("10.0.0.1", "8.8.8.8", 1)), Verdict::Forward(UPLINK));
}

#[test]
fn closed_connections_count_as_not_established() {
    let mut bed = shared();
    for sport in 1..=40 {
        connect(&mut bed, A, "10.0.0.1", sport);
    }
    for sport in 1..=40 {
        assert_eq!(answer(&mut bed, "10.0.0.1", sport, RST), Verdict::Forward(A));
    }
    assert_eq!(bed.worker.sessions_in_use(), 40, "nobody needs the room");
    assert_eq!(syn(&mut bed, A, "10.0.0.1", 100), Verdict::Forward(UPLINK));
    let sessions = bed.worker.counters().sessions();
    assert_eq!((bed.worker.sessions_in_use(), sessions.recycled), (40, 1), "one goes for each that comes");
}

#[test]
fn a_session_counts_for_the_port_that_its_pod_has_now() {
    let mut bed = shared();
    (1..=50).for_each(|port| stream(&mut bed, A, "10.0.0.1", port));
    let mut ports = ports();
    ports.swap(A.index(), B.index());
    bed.snapshot = snapshot_of(2, ports);
    let (new_a, new_b) = (B, A);
    for port in 1..=50 {
        assert_eq!(bed.verdict(new_a, &udp("10.0.0.1", "8.8.8.8", port)), Verdict::Forward(UPLINK));
    }
    assert_eq!(bed.verdict(new_a, &udp("10.0.0.1", "8.8.8.8", 51)), FULL);
    assert_eq!(bed.verdict(new_b, &udp("10.0.0.2", "8.8.8.8", 51)), Verdict::Forward(UPLINK));
}

#[test]
fn a_session_takes_at_most_128_bytes_at_full_capacity() {
    let capacity = 20_000;
    let mut bed = Bed::with(SessionConfig { capacity, ..SessionConfig::default() });
    for n in 0..20_000u16 {
        bed.send(A, &tcp("10.0.0.1", "8.8.8.8", n, 443, SYN));
    }
    assert_eq!(bed.worker.sessions_in_use(), capacity);
    let per_session = bed.worker.session_memory() / capacity;
    assert!(per_session <= 128, "{per_session} bytes");
}
