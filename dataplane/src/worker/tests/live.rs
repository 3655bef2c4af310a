//! The lean entry point for live traffic, with the same engine.

use std::cell::Cell;

use proptest::prelude::*;

use super::dropped;
use super::properties::{Step, session_counts, steps};
use crate::probe::ProbeKind;
use crate::testbed::*;
use crate::*;
use bulkhead_classifier::OriginId;

fn judge(bed: &mut Bed, in_port: PortId, frame: &[u8]) -> Judged {
    let mut judged = Vec::new();
    let packet = Received { frame, wire_len: frame.len(), in_port };
    bed.worker.judge(&bed.snapshot, bed.now, [packet], &mut judged);
    judged[0]
}

fn frame(packet: &[u8]) -> Vec<u8> {
    ethernet(A_MAC, if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 }, packet)
}

#[test]
fn a_live_burst_has_the_verdicts_of_a_capture() {
    let (hits, news, drops) = (Cell::new(0), Cell::new(0), Cell::new(0));
    proptest!(ProptestConfig::with_cases(200), |(
        steps in steps(), change_at in 0usize..100, size in 1usize..300, capacity in prop_oneof![3usize..8, Just(1000)],
    )| {
        let sessions = SessionConfig { capacity, ..SessionConfig::live(capacity) };
        let (mut one, mut other) = (Bed::with(sessions), Bed::with(sessions));
        let steps: Vec<Step> = steps.into_iter().filter(|step| step.link == LinkType::Ethernet).collect();
        for (number, steps) in steps.chunks(size).enumerate() {
            let time = one.now + steps[0].wait * SECOND;
            (one.now, other.now) = (time, time);
            if number * size >= change_at {
                (one.snapshot, other.snapshot) = (snapshot_with(2, B, Some(OPEN)), snapshot_with(2, B, Some(OPEN)));
            }
            let packet = |step: &Step| (step.in_port, step.frame.len());
            let packets: Vec<Packet<'_>> = steps.iter().map(|step| {
                let (in_port, wire_len) = packet(step);
                Packet { frame: &step.frame, wire_len, link: LinkType::Ethernet, in_port, time }
            }).collect();
            let mut outcomes = vec![Outcome::UNJUDGED; packets.len()];
            one.worker.process(&one.snapshot, &packets, &mut outcomes);
            let received = steps.iter().map(|step| {
                let (in_port, wire_len) = packet(step);
                Received { frame: &step.frame, wire_len, in_port }
            });
            let mut judged = Vec::new();
            other.worker.judge(&other.snapshot, time, received, &mut judged);
            prop_assert_eq!(judged.len(), outcomes.len());
            for (judged, outcome) in judged.iter().zip(&outcomes) {
                prop_assert_eq!((judged.verdict, judged.session), (outcome.verdict, outcome.session));
                let understood = judged.body != BodyKind::Unknown;
                prop_assert!(understood || judged.verdict.drop_reason().is_some());
                match judged.session {
                    Some(SessionState::Hit) => hits.set(hits.get() + 1),
                    Some(SessionState::New) => news.set(news.get() + 1),
                    None => drops.set(drops.get() + 1),
                }
            }
        }
        // This entry point counts origins of hits separately.
        prop_assert!(one.worker.counters().origins().eq(other.worker.counters().origins()));
        prop_assert!(one.worker.counters().drops().eq(other.worker.counters().drops()));
        prop_assert_eq!(session_counts(&one.worker), session_counts(&other.worker));
    });
    for (what, count) in [("session hit", hits), ("new session", news), ("drop", drops)] {
        assert!(count.get() > 50, "only {} times a {what}", count.get());
    }
}

#[test]
fn both_entries_share_sessions() {
    let mut bed = Bed::new();
    assert_eq!(judge(&mut bed, A, &frame(&a_to_b(SYN))).session, Some(SessionState::New));
    let reply = bed.send(B, &b_to_a(SYN | ACK));
    assert_eq!(reply.session, Some(SessionState::Hit));
    assert_eq!(
        reply.decision,
        Some(Decision { by: Some(Decider::Table(STRICT)), rule: Some(0), origin: Some(OriginId(7)) })
    );
    assert_eq!(judge(&mut bed, A, &frame(&a_to_b(ACK))).session, Some(SessionState::Hit));
}

#[test]
fn bodies_are_told_apart() {
    let mut bed = Bed::new();
    let kind = |bed: &mut Bed, frame: &[u8]| judge(bed, A, frame).body;
    assert_eq!(kind(&mut bed, &frame(&a_to_b(SYN))), BodyKind::Ip);
    assert_eq!(kind(&mut bed, &frame(&a_to_b(SYN)[..30])), BodyKind::Unknown);
    assert_eq!(kind(&mut bed, &[]), BodyKind::Unknown);
    let arp = [&[0, 1, 8, 0, 6, 4, 0, 1][..], &A_MAC, &[10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]].concat();
    assert_eq!(kind(&mut bed, &ethernet(A_MAC, 0x0806, &arp)), BodyKind::Arp);
    let target = "fd00::2".parse::<std::net::Ipv6Addr>().unwrap().octets();
    let solicitation = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target].concat();
    assert_eq!(kind(&mut bed, &frame(&v6("fd00::1", "fd00::2", 58, 255, &solicitation))), BodyKind::Neighbour);
    assert_eq!(
        kind(&mut bed, &frame(&probe(ProbeKind::IcmpEcho, "10.0.0.1", "10.0.0.2", 0).request().unwrap())),
        BodyKind::Ip
    );
}

#[test]
fn an_empty_burst_lets_time_pass() {
    let mut bed = Bed::new();
    judge(&mut bed, A, &frame(&a_to_b(SYN)));
    bed.wait(120);
    let mut judged = vec![Judged::UNJUDGED];
    bed.worker.judge(&bed.snapshot, bed.now, [], &mut judged);
    assert_eq!((judged.len(), bed.worker.sessions_in_use()), (0, 0));
}

#[test]
fn a_burst_of_any_length_is_judged_whole() {
    for len in [BURST - 1, BURST, BURST + 1, 3 * BURST] {
        let mut bed = Bed::new();
        let frame = frame(&udp("10.0.0.1", "10.0.0.2", 80));
        let packets = (0..len).map(|_| Received { frame: &frame, wire_len: frame.len(), in_port: A });
        let mut judged = Vec::new();
        bed.worker.judge(&bed.snapshot, bed.now, packets, &mut judged);
        assert_eq!(judged.len(), len);
        assert!(judged.iter().all(|judged| judged.verdict == Verdict::Forward(B)));
        assert_eq!(bed.worker.counters().forwarded(), len as u64);
    }
}

/// Returns a session whose packets take the fast path in both directions.
fn running() -> (Bed, Vec<u8>, Vec<u8>) {
    let mut bed = Bed::new();
    let request = frame(&udp("10.0.0.1", "10.0.0.2", 80));
    let reply = frame(&probe(ProbeKind::Udp, "10.0.0.1", "10.0.0.2", 80).reply().unwrap());
    for _ in 0..3 {
        assert_eq!(judge(&mut bed, A, &request).verdict, Verdict::Forward(B));
        assert_eq!(judge(&mut bed, B, &reply).verdict, Verdict::Forward(A));
    }
    (bed, request, reply)
}

#[test]
fn a_session_lets_nobody_else_send_its_packets() {
    let (mut bed, request, reply) = running();
    assert_eq!(judge(&mut bed, B, &request).verdict, dropped(DropReason::SpoofedSource));
    assert_eq!(judge(&mut bed, UPLINK, &request).verdict, dropped(DropReason::SpoofedSource));
    assert_eq!(judge(&mut bed, HOST, &reply).verdict, dropped(DropReason::SpoofedSource));
    assert_eq!(judge(&mut bed, PortId(9), &request).verdict, dropped(DropReason::UnknownPort));
    let mut wrong_mac = request;
    wrong_mac[11] ^= 1;
    assert_eq!(judge(&mut bed, A, &wrong_mac).verdict, dropped(DropReason::SpoofedSource));
}

#[test]
fn a_reply_is_checked_on_the_port_that_it_comes_in_on() {
    // The route to 10.0.0.3 leads to B, which does not own the address. So B's packets from it are spoofed, with or without a session.
    let mut bed = Bed::new();
    let own =
        (0u16..).zip(ports()).flat_map(|(id, port)| port.addresses.into_iter().map(move |a| (a.into(), PortId(id))));
    let routes = Routes::new(own.chain([("10.0.0.3/32".parse().unwrap(), B)])).unwrap();
    let mut ports = ports();
    ports[B.index()].egress = Some(OPEN);
    bed.snapshot = Snapshot::new(2, ports, bed.snapshot.tables().to_vec(), routes).unwrap();
    let probe = probe(ProbeKind::Udp, "10.0.0.1", "10.0.0.3", 80);
    for _ in 0..3 {
        assert_eq!(judge(&mut bed, A, &frame(&probe.request().unwrap())).verdict, Verdict::Forward(B));
        assert_eq!(judge(&mut bed, B, &frame(&probe.reply().unwrap())).verdict, dropped(DropReason::SpoofedSource));
    }
}

#[test]
fn a_session_is_asked_about_in_every_generation_and_its_addresses_are_checked_anew() {
    let (mut bed, request, reply) = running();
    let mut ports = ports();
    ports[B.index()].addresses = vec![ip("10.0.0.9")];
    bed.snapshot = snapshot_of(2, ports);
    assert_eq!(judge(&mut bed, B, &reply).verdict, dropped(DropReason::SpoofedSource));
    assert_ne!(judge(&mut bed, A, &request).verdict, Verdict::Forward(B));
}

#[test]
fn a_hop_limit_that_is_used_up_ends_the_quickest_way_too() {
    let (mut bed, mut request, _) = running();
    request[14 + 8] = 1;
    assert_eq!(judge(&mut bed, A, &request).verdict, dropped(DropReason::TtlExpired));
}

#[test]
fn packets_are_counted_for_the_policy_that_decided() {
    let (mut bed, ..) = running();
    for _ in 0..3 {
        judge(&mut bed, A, &frame(&udp("10.0.0.1", "10.0.0.2", 81)));
    }
    let counters = bed.worker.counters();
    assert_eq!(counters.origin(OriginId(7)), OriginCounters { allowed: 6, ..OriginCounters::default() });
    assert_eq!(counters.origin(OriginId(8)), OriginCounters { denied: 3, ..OriginCounters::default() });
    assert_eq!(counters.origins().count(), 2);
}
