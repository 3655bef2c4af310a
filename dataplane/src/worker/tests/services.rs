//! Connections to the addresses of Services.

use super::dropped;
use crate::io::Translation;
use crate::probe::{Probe, ProbeKind};
use crate::testbed::*;
use crate::*;

use std::net::IpAddr;
use std::sync::Arc;

/// Returns pods A and B, and a Service at [`VIP`] with these backends.
fn bed(backends: &[Backend]) -> Bed {
    let mut bed = Bed::with(SessionConfig::live(1000));
    set(&mut bed, 1, &[(VIP, service(backends))]);
    bed
}

/// Publishes other Services with the same tables.
fn set(bed: &mut Bed, epoch: u64, ports: &[(&str, ServicePort)]) {
    bed.snapshot = bed.snapshot.clone().with_services(Some(Arc::new(services(epoch, ports))));
}

fn to_vip(flags: u8) -> Vec<u8> {
    tcp("10.0.0.1", VIP, 40_000, 8080, flags)
}

fn translation(src: (&str, u16), dst: (&str, u16)) -> Option<Translation> {
    Some(Translation { src: ip(src.0), dst: ip(dst.0), sport: src.1, dport: dst.1 })
}

/// Returns the addresses that B sees, and those that A sees in B's answers.
fn seen_by_b() -> Option<Translation> {
    translation(("10.0.0.1", 40_000), ("10.0.0.2", 80))
}

fn seen_by_a() -> Option<Translation> {
    translation((VIP, 8080), ("10.0.0.1", 40_000))
}

/// Returns an open connection from A to [`VIP`] with the backend B.
fn established() -> Bed {
    let mut bed = bed(&[backend("10.0.0.2", 80)]);
    bed.send(A, &to_vip(SYN));
    bed.send(B, &b_to_a(SYN | ACK));
    bed.send(A, &to_vip(ACK));
    bed
}

#[test]
fn both_directions_are_translated_and_policy_is_asked_about_the_pod_behind_the_address() {
    let mut bed = bed(&[backend("10.0.0.2", 80)]);
    let first = bed.send(A, &to_vip(SYN));
    assert_eq!((first.verdict, first.session), (Verdict::Forward(B), Some(SessionState::New)));
    assert_eq!(first.decision.unwrap().rule, Some(0), "the rule about port 80 of B");
    assert_eq!(first.translation, seen_by_b());
    assert_eq!(first.flow.unwrap().to_string(), "10.0.0.1:40000 > 10.96.0.1:8080 protocol 6");
    let answer = bed.send(B, &b_to_a(SYN | ACK));
    assert_eq!((answer.verdict, answer.session), (Verdict::Forward(A), Some(SessionState::Hit)));
    assert_eq!((answer.translation, answer.decision), (seen_by_a(), first.decision));
    // On the fast path now, in both directions.
    for _ in 0..3 {
        assert_eq!(bed.send(A, &to_vip(ACK)).translation, seen_by_b());
        assert_eq!(bed.send(B, &b_to_a(ACK)).translation, seen_by_a());
    }
    assert_eq!(bed.worker.sessions_in_use(), 1, "one session, found by two keys");
    assert_eq!(bed.worker.counters().sessions().created, 1);
}

#[test]
fn the_live_path_gives_the_same_translations() {
    let mut bed = established();
    for (port, packet, expected) in [(A, to_vip(ACK), seen_by_b()), (B, b_to_a(ACK), seen_by_a())] {
        let frame = ethernet(if port == A { A_MAC } else { [2; 6] }, 0x0800, &packet);
        let mut judged = Vec::new();
        for _ in 0..2 {
            let received = Received { frame: &frame, wire_len: frame.len(), in_port: port };
            bed.worker.judge(&bed.snapshot, bed.now, [received], &mut judged);
            let translated = bed.worker.translated(&judged[0]).unwrap();
            assert_eq!(Some(translated.sent()), expected);
            assert_eq!(judged[0].session, Some(SessionState::Hit));
        }
    }
}

#[test]
fn policy_that_denies_the_backend_denies_the_service() {
    let mut bed = bed(&[backend("10.0.0.2", 81)]);
    for session in ["new", "remembered"] {
        let outcome = bed.send(A, &to_vip(SYN));
        assert_eq!(outcome.verdict, dropped(DropReason::PolicyDenied), "{session}");
        let backend = outcome.translation.map(|sent| (sent.dst, sent.dport));
        assert_eq!(backend, Some(("10.0.0.2".parse().unwrap(), 81)), "{session}: the outcome has the judged backend");
        assert_eq!(outcome.decision.unwrap().origin.unwrap().0, 8);
    }
    // A backend with another port.
    set(&mut bed, 2, &[(VIP, service(&[backend("10.0.0.2", 80)]))]);
    let again = tcp("10.0.0.1", VIP, 40_001, 8080, SYN);
    assert_eq!(bed.verdict(A, &again), Verdict::Forward(B));
}

#[test]
fn a_newer_policy_cuts_a_translated_connection_and_a_still_newer_one_lets_it_go_on() {
    let mut bed = established();
    let services = bed.snapshot.services().cloned().map(Arc::new);
    bed.snapshot = snapshot_with(2, B, Some(CLOSED)).with_services(services.clone());
    assert_eq!(bed.verdict(A, &to_vip(ACK)), dropped(DropReason::PolicyDenied));
    assert_eq!(bed.verdict(B, &b_to_a(ACK)), dropped(DropReason::PolicyDenied));
    bed.snapshot = snapshot_with(3, B, Some(OPEN)).with_services(services);
    assert_eq!(bed.send(A, &to_vip(ACK)).translation, seen_by_b());
    assert_eq!(bed.send(B, &b_to_a(ACK)).translation, seen_by_a());
}

#[test]
fn an_answer_that_comes_first_when_a_newer_policy_allows_what_was_refused_is_translated_too() {
    // In captures, where refused requests are remembered for such answers.
    let mut bed = Bed::new();
    set(&mut bed, 1, &[(VIP, service(&[backend("10.0.0.2", 81)]))]);
    assert_eq!(bed.verdict(A, &udp("10.0.0.1", VIP, 8080)), dropped(DropReason::PolicyDenied));
    let services = bed.snapshot.services().cloned().map(Arc::new);
    bed.snapshot = snapshot_with(2, B, Some(OPEN)).with_services(services);
    let answer = Probe { sport: 81, ..probe(ProbeKind::Udp, "10.0.0.2", "10.0.0.1", 40_000) }.request().unwrap();
    assert_eq!(bed.send(B, &answer).translation, seen_by_a());
    let again = bed.send(A, &udp("10.0.0.1", VIP, 8080));
    assert_eq!(
        (again.session, again.translation),
        (Some(SessionState::Hit), translation(("10.0.0.1", 40_000), ("10.0.0.2", 81)))
    );
}

#[test]
fn sessions_are_told_with_the_services_address() {
    let mut bed = bed(&[backend("10.9.0.1", 80)]);
    bed.send(UPLINK, &tcp("8.8.8.8", VIP, 40_000, 8080, SYN));
    let told = bed.worker.session_page(0).sessions;
    let [session] = &told[..] else { panic!("{told:?}") };
    assert_eq!((session.initiator, session.responder), ((ip("8.8.8.8"), 40_000), (ip("10.9.0.1"), 80)));
    assert_eq!((session.service, session.source), (Some((ip(VIP), 8080)), Some((ip(SOURCE), 40_000))));
    let by = |selector: SessionSelector| selector.selects(session);
    assert!(by(SessionSelector { address: Some(ip(VIP)), ..SessionSelector::default() }));
    assert!(by(SessionSelector { service: Some(8080), ..SessionSelector::default() }));
    assert!(!by(SessionSelector { service: Some(40_000), ..SessionSelector::default() }));
}

#[test]
fn all_protocols_and_both_families_are_translated_both_ways() {
    let all = [("10.0.0.1", VIP, "10.0.0.2"), ("fd00::1", VIP6, "fd00::2")];
    for (client, vip, server) in all {
        for kind in [ProbeKind::Tcp, ProbeKind::Udp, ProbeKind::Sctp] {
            let mut bed = Bed::new();
            set(&mut bed, 1, &[(vip, service(&[backend(server, 80)]))]);
            let there = probe(kind, client, vip, 8080);
            let outcome = bed.send(A, &there.request().unwrap());
            assert_eq!(outcome.verdict, Verdict::Forward(B), "{kind:?}");
            assert_eq!(outcome.translation, translation((client, 40_000), (server, 80)), "{kind:?}");
            let back = probe(kind, client, server, 80).reply().unwrap();
            let outcome = bed.send(B, &back);
            assert_eq!(outcome.translation, translation((vip, 8080), (client, 40_000)), "{kind:?}");
        }
    }
}

#[test]
fn a_pod_that_is_its_own_backend_sees_another_source() {
    let mut bed = bed(&[backend("10.0.0.1", 80)]);
    let first = bed.send(A, &to_vip(SYN));
    assert_eq!(first.verdict, Verdict::Forward(A));
    assert_eq!(first.translation, translation((SOURCE, 40_000), ("10.0.0.1", 80)));
    assert_eq!(first.decision.unwrap().origin.unwrap().0, 9, "a pod reaches itself whatever its table says");
    let answer = bed.send(A, &tcp("10.0.0.1", SOURCE, 80, 40_000, SYN | ACK));
    assert_eq!((answer.verdict, answer.translation), (Verdict::Forward(A), seen_by_a()));
    assert_eq!(bed.send(A, &to_vip(ACK)).translation, first.translation);
}

#[test]
fn a_hairpin_table_judges_a_pod_that_is_its_own_backend_and_no_other_packet_to_itself() {
    let mut bed = bed(&[backend("10.0.0.1", 80)]);
    let first = bed.send(A, &to_vip(SYN));
    assert_eq!(first.verdict, Verdict::Forward(A));
    // A policy that denies it begins: the session ends, and no new one starts.
    let mut ports = ports();
    ports[A.index()].hairpin_table = Some(CLOSED);
    let services = services(1, &[(VIP, service(&[backend("10.0.0.1", 80)]))]);
    bed.snapshot = snapshot_of(2, ports).with_services(Some(Arc::new(services)));
    assert_eq!(bed.verdict(A, &to_vip(ACK)), dropped(DropReason::PolicyDenied));
    assert_eq!(bed.verdict(A, &to_vip(SYN)), dropped(DropReason::PolicyDenied));
    let own = tcp("10.0.0.1", "10.0.0.1", 40_000, 80, SYN);
    assert_eq!(bed.verdict(A, &own), Verdict::Forward(A), "without a Service, a pod always reaches itself");
}

#[test]
fn a_stranger_keeps_his_address_towards_a_backend_here_and_loses_it_towards_one_elsewhere() {
    let stranger = tcp("8.8.8.8", VIP, 40_000, 8080, SYN);
    let mut here = bed(&[backend("10.0.0.1", 80)]);
    assert_eq!(here.send(UPLINK, &stranger).translation, translation(("8.8.8.8", 40_000), ("10.0.0.1", 80)));
    let mut elsewhere = bed(&[backend("10.9.0.1", 80)]);
    let first = elsewhere.send(UPLINK, &stranger);
    assert_eq!(
        (first.verdict, first.translation),
        (Verdict::Forward(UPLINK), translation((SOURCE, 40_000), ("10.9.0.1", 80)))
    );
    let answer = elsewhere.send(UPLINK, &tcp("10.9.0.1", SOURCE, 80, 40_000, SYN | ACK));
    assert_eq!(
        (answer.verdict, answer.translation),
        (Verdict::Forward(UPLINK), translation((VIP, 8080), ("8.8.8.8", 40_000)))
    );
    // Without a masquerading address.
    let mut services = services(2, &[(VIP, service(&[backend("10.9.0.1", 80)]))]);
    services.set_sources([]);
    elsewhere.snapshot = elsewhere.snapshot.clone().with_services(Some(Arc::new(services)));
    let other = tcp("8.8.8.8", VIP, 40_001, 8080, SYN);
    assert_eq!(elsewhere.verdict(UPLINK, &other), dropped(DropReason::SourcePortsExhausted));
}

#[test]
fn strangers_with_one_port_are_given_different_ones_until_none_is_free() {
    let mut bed = Bed::with(SessionConfig::live(200_000));
    set(&mut bed, 1, &[(VIP, service(&[backend("10.9.0.1", 80)]))]);
    let (mut taken, mut refused) = (std::collections::HashSet::new(), 0);
    for number in 0..70_000u32 {
        let client = IpAddr::from((0x0b00_0000 + number).to_be_bytes());
        let probe = Probe { src: client, dst: ip(VIP), kind: ProbeKind::Udp, sport: 40_000, dport: 8080 };
        let outcome = bed.send(UPLINK, &probe.request().unwrap());
        match outcome.translation {
            Some(sent) => {
                assert_eq!((sent.src, sent.dst), (ip(SOURCE), ip("10.9.0.1")));
                assert!(taken.insert(sent.sport), "port {} is given once", sent.sport);
            }
            None => {
                assert_eq!(outcome.verdict, dropped(DropReason::SourcePortsExhausted));
                refused += 1;
            }
        }
    }
    assert!(taken.len() > 64_000 && refused > 5_000, "{} and {refused}", taken.len());
    assert_eq!(bed.worker.counters().dropped(DropReason::SourcePortsExhausted), refused);
}

#[test]
fn what_a_service_refuses_is_refused_with_its_reason_and_not_remembered() {
    let mut bed = bed(&[]);
    let elsewhere = ServicePort { local: Backends::default(), ..service(&[backend("10.9.0.1", 80)]) };
    let ranged = ServicePort { source_ranges: Some(["9.0.0.0/8".parse().unwrap()].into()), ..elsewhere.clone() };
    let mut all = services(2, &[(VIP, service(&[])), ("10.96.0.2", elsewhere), ("10.96.0.3", ranged)]);
    let vip = |address: &str| Vip { address: ip(address), protocol: 6, port: 8080 };
    all.set_vip(vip("10.96.0.2"), Some(VipEntry { port: 1, outside: BackendList::Local, ..ENTRY }));
    all.set_vip(vip("10.96.0.3"), Some(VipEntry { port: 2, is_ranged: true, ..ENTRY }));
    bed.snapshot = bed.snapshot.clone().with_services(Some(Arc::new(all)));
    let from = |src: &str, dst: &str, port| tcp(src, dst, 40_000, port, SYN);
    let cases = [
        (A, from("10.0.0.1", VIP, 8080), DropReason::NoEndpoint),
        (UPLINK, from("8.8.8.8", "10.96.0.2", 8080), DropReason::NoLocalEndpoint),
        (UPLINK, from("8.8.8.8", "10.96.0.3", 8080), DropReason::ServiceSourceRange),
        (A, from("10.0.0.1", VIP, 9), DropReason::UnknownServicePort),
        (A, from("10.0.0.1", "10.97.0.1", 9), DropReason::UnknownServiceAddress),
    ];
    for (port, packet, reason) in &cases {
        assert_eq!(bed.verdict(*port, packet), dropped(*reason));
    }
    assert_eq!(bed.verdict(A, &from("10.0.0.1", "10.96.0.2", 8080)), Verdict::Forward(UPLINK), "pods are inside");
    assert_eq!(bed.verdict(UPLINK, &from("9.1.1.1", "10.96.0.3", 8080)), Verdict::Forward(UPLINK), "in the range");
    set(&mut bed, 3, &[(VIP, service(&[backend("10.0.0.2", 80)]))]);
    assert_eq!(bed.verdict(A, &to_vip(SYN)), Verdict::Forward(B), "the same packet, after an endpoint was added");
}

#[test]
fn a_segment_in_the_middle_of_nowhere_and_a_ping_start_nothing() {
    let mut bed = bed(&[backend("10.0.0.2", 80)]);
    assert_eq!(bed.verdict(A, &to_vip(ACK)), dropped(DropReason::TcpWithoutSession));
    let ping = probe(ProbeKind::IcmpEcho, "10.0.0.1", VIP, 0).request().unwrap();
    assert_eq!(bed.verdict(A, &ping), dropped(DropReason::UnknownServicePort));
    assert_eq!(bed.worker.sessions_in_use(), 0);
}

#[test]
fn an_open_tcp_connection_stays_with_its_backend_and_a_udp_one_moves_when_that_does_not_answer_any_more() {
    let mut bed = established();
    let datagram = Probe { sport: 5000, ..probe(ProbeKind::Udp, "10.0.0.1", VIP, 8080) }.request().unwrap();
    let to = |address, port| translation(("10.0.0.1", 5000), (address, port));
    assert_eq!(bed.send(A, &datagram).translation, to("10.0.0.2", 80));
    // The backend terminates, but still serves.
    let other = backend("10.9.0.7", 81);
    let mut draining = service(&[other]);
    draining.serving = [backend("10.0.0.2", 80).socket, other.socket].into();
    set(&mut bed, 2, &[(VIP, draining)]);
    assert_eq!(bed.send(A, &datagram).translation, to("10.0.0.2", 80));
    assert_eq!(bed.send(A, &to_vip(ACK)).translation, seen_by_b());
    // The backend is gone.
    set(&mut bed, 3, &[(VIP, service(&[other]))]);
    let moved = bed.send(A, &datagram);
    assert_eq!((moved.translation, moved.verdict), (to("10.9.0.7", 81), Verdict::Forward(UPLINK)));
    assert_eq!(bed.send(A, &to_vip(ACK)).translation, seen_by_b());
    // The Service has no backends any more: the worker refuses the datagram of a sender that received no answer.
    set(&mut bed, 4, &[(VIP, service(&[]))]);
    assert_eq!(bed.verdict(A, &datagram), dropped(DropReason::NoEndpoint));
    assert_eq!(bed.send(A, &to_vip(ACK)).translation, seen_by_b());
}

#[test]
fn sessions_that_nobody_uses_are_reviewed_after_a_change_of_services() {
    let mut bed = bed(&[backend("10.0.0.2", 80)]);
    bed.send(A, &udp("10.0.0.1", VIP, 8080));
    bed.send(A, &to_vip(SYN));
    let direct = "11.96.0.9";
    bed.send(A, &udp("10.0.0.1", direct, 8080));
    assert_eq!(bed.worker.sessions_in_use(), 3);
    set(&mut bed, 2, &[(VIP, service(&[])), (direct, service(&[backend("10.0.0.2", 80)]))]);
    bed.worker.judge(&bed.snapshot, bed.now, std::iter::empty(), &mut Vec::new());
    assert_eq!(bed.worker.sessions_in_use(), 1, "UDP to an endpoint that is gone, and UDP to what is now a VIP");
    assert_eq!(
        bed.send(A, &udp("10.0.0.1", direct, 8080)).translation,
        translation(("10.0.0.1", 40_000), ("10.0.0.2", 80))
    );
}

#[test]
fn a_port_that_is_used_again_after_the_end_of_a_connection_is_given_a_backend_that_is_there() {
    let mut bed = established();
    bed.send(A, &to_vip(FIN | ACK));
    bed.send(B, &b_to_a(FIN | ACK));
    let other = backend("10.9.0.9", 80);
    set(&mut bed, 2, &[(VIP, service(&[other]))]);
    let again = bed.send(A, &to_vip(SYN));
    assert_eq!(
        (again.session, again.translation),
        (Some(SessionState::New), translation(("10.0.0.1", 40_000), ("10.9.0.9", 80)))
    );
    assert_eq!(bed.worker.sessions_in_use(), 1);
}

#[test]
fn two_addresses_with_one_backend_never_mix_their_answers() {
    let mut bed = bed(&[]);
    let one = service(&[backend("10.0.0.2", 80)]);
    set(&mut bed, 2, &[(VIP, one.clone()), ("10.96.0.2", one)]);
    let first = bed.send(A, &to_vip(SYN)).translation;
    let second = bed.send(A, &tcp("10.0.0.1", "10.96.0.2", 40_000, 8080, SYN)).translation.unwrap();
    assert_eq!(first, seen_by_b());
    assert_eq!((second.src, second.dst, second.dport), (ip("10.0.0.1"), ip("10.0.0.2"), 80));
    assert_ne!(second.sport, 40_000);
    assert_eq!(bed.send(B, &b_to_a(SYN | ACK)).translation, seen_by_a());
    let answer = tcp("10.0.0.2", "10.0.0.1", 80, second.sport, SYN | ACK);
    assert_eq!(bed.send(B, &answer).translation, translation(("10.96.0.2", 8080), ("10.0.0.1", 40_000)));
}

#[test]
fn a_direct_connection_with_the_addresses_of_a_translated_one_waits_for_its_end() {
    let mut bed = established();
    assert_eq!(bed.verdict(A, &a_to_b(SYN)), dropped(DropReason::SessionClash));
    assert_eq!(bed.verdict(A, &a_to_b(ACK)), dropped(DropReason::SessionClash));
    bed.send(A, &to_vip(FIN | ACK));
    bed.send(B, &b_to_a(FIN | ACK));
    let direct = bed.send(A, &a_to_b(SYN));
    assert_eq!((direct.verdict, direct.translation), (Verdict::Forward(B), None));
    assert_eq!(bed.send(B, &b_to_a(SYN | ACK)).translation, None, "no stale entry rewrites the answer");
    // The reverse order.
    bed.send(A, &a_to_b(ACK));
    let translated = bed.send(A, &to_vip(SYN)).translation.unwrap();
    assert_ne!(translated.sport, 40_000, "the direct connection has it");
}

#[test]
fn a_client_that_comes_in_elsewhere_has_one_session_all_the_same() {
    let mut bed = bed(&[backend("10.0.0.1", 80)]);
    let packet = Probe { sport: 5000, ..probe(ProbeKind::Udp, "8.8.8.8", VIP, 8080) }.request().unwrap();
    for port in [UPLINK, HOST, UPLINK, HOST] {
        let outcomes = [bed.send(port, &packet), bed.send(port, &packet)];
        assert!(outcomes.iter().all(|outcome| outcome.verdict == Verdict::Forward(A)));
        assert_eq!(outcomes[0].translation, outcomes[1].translation);
    }
    assert_eq!(bed.worker.sessions_in_use(), 1);
}

#[test]
fn nobody_answers_in_the_name_of_a_virtual_address() {
    let mut bed = established();
    let forged = tcp(VIP, "10.0.0.1", 8080, 40_000, RST);
    assert_eq!(bed.verdict(UPLINK, &forged), dropped(DropReason::ReplyWithoutSession));
    assert_eq!(bed.verdict(B, &forged), dropped(DropReason::SpoofedSource));
    assert_eq!(bed.send(A, &to_vip(ACK)).translation, seen_by_b());
}

#[test]
fn nobody_sends_with_the_address_that_clients_are_given() {
    let mut bed = bed(&[backend("10.0.0.2", 80)]);
    for port in [UPLINK, HOST, A] {
        for to in ["10.0.0.2", VIP] {
            let forged = tcp(SOURCE, to, 40_000, 80, SYN);
            assert_eq!(bed.verdict(port, &forged), dropped(DropReason::SpoofedSource), "{to}");
        }
    }
    // Without Services, the address has no special meaning.
    bed.snapshot = bed.snapshot.clone().with_services(None);
    let verdict = bed.verdict(UPLINK, &tcp(SOURCE, "10.0.0.2", 40_000, 80, SYN));
    assert_eq!(verdict, dropped(DropReason::PolicyDenied));
}

#[test]
fn errors_about_either_direction_are_translated_with_what_they_quote() {
    use crate::translations::Translated;
    let mut bed = bed(&[backend("8.8.8.8", 80)]);
    bed.send(A, &to_vip(SYN));
    let router = "100.64.0.1";
    let seen = tcp("10.0.0.1", "8.8.8.8", 40_000, 80, SYN);
    for (sender, shown) in [(router, router), ("8.8.8.8", VIP)] {
        let error = error_about(&seen, sender, "10.0.0.1");
        let outcome = bed.send(UPLINK, &error);
        assert_eq!((outcome.verdict, outcome.session), (Verdict::Forward(A), Some(SessionState::Hit)));
        assert_eq!(outcome.translation, translation(("10.0.0.1", 40_000), (VIP, 8080)), "what is quoted");
        let judged = Judged { translation: outcome.place, ..Judged::UNJUDGED };
        let Some(Translated::Error(error)) = bed.worker.translated(&judged) else { panic!() };
        assert_eq!(error.sent, (ip(shown), ip("10.0.0.1")));
    }
    // The client's error about an answer.
    let answer = tcp(VIP, "10.0.0.1", 8080, 40_000, SYN | ACK);
    let outcome = bed.send(A, &error_about(&answer, "10.0.0.1", VIP));
    assert_eq!(outcome.verdict, Verdict::Forward(UPLINK));
    assert_eq!(outcome.translation, translation(("8.8.8.8", 80), ("10.0.0.1", 40_000)));
}

#[test]
fn later_fragments_have_the_addresses_of_the_first() {
    let mut bed = bed(&[backend("10.0.0.2", 80)]);
    let packet = [udp("10.0.0.1", VIP, 8080), vec![0; 40]].concat();
    for part in fragments_v4(&packet, 7, 16) {
        let outcome = bed.send(A, &part);
        assert_eq!((outcome.verdict, outcome.translation), (Verdict::Forward(B), seen_by_b()));
    }
}

#[test]
fn a_burst_of_first_packets_with_one_tuple_is_one_session() {
    let mut bed = bed(&[backend("10.0.0.2", 80), backend("10.9.0.1", 80)]);
    let packet = udp("10.0.0.1", VIP, 8080);
    let packets: Vec<Packet<'_>> = (0..9)
        .map(|_| Packet { frame: &packet, wire_len: packet.len(), link: LinkType::Raw, in_port: A, time: bed.now })
        .collect();
    let mut outcomes = vec![Outcome::UNJUDGED; packets.len()];
    bed.worker.process(&bed.snapshot, &packets, &mut outcomes);
    assert!(outcomes.iter().all(|outcome| outcome.translation == outcomes[0].translation));
    assert!(outcomes[0].translation.is_some());
    assert_eq!(bed.worker.sessions_in_use(), 1);
}

#[test]
fn a_client_of_a_service_with_affinity_stays_until_its_time_is_up_and_then_moves() {
    let all: Vec<Backend> = (1..=8).map(|host| backend(&format!("10.9.0.{host}"), 80)).collect();
    let mut bed = bed(&[]);
    let with = |affinity| ServicePort { affinity, ..service(&all) };
    set(&mut bed, 2, &[(VIP, with(Some(10)))]);
    let mut sport = 1000;
    let mut next = |bed: &mut Bed| {
        sport += 1;
        bed.send(A, &tcp("10.0.0.1", VIP, sport, 8080, SYN)).translation.unwrap().dst
    };
    let first = next(&mut bed);
    for _ in 0..20 {
        bed.wait(8);
        assert_eq!(next(&mut bed), first, "each new connection renews it");
    }
    let after = std::array::from_fn::<IpAddr, 16, _>(|_| {
        bed.wait(11);
        next(&mut bed)
    });
    assert!(after.iter().any(|&backend| backend != first), "it is not for ever");
    set(&mut bed, 3, &[(VIP, with(None))]);
    let free = std::array::from_fn::<IpAddr, 16, _>(|_| next(&mut bed));
    assert!(free.iter().any(|&backend| backend != free[0]));
}

#[test]
fn every_eligible_backend_is_given_connections() {
    let all: Vec<Backend> = (1..=8).map(|host| backend(&format!("10.9.0.{host}"), 80)).collect();
    let mut bed = bed(&all);
    let chosen: std::collections::BTreeSet<IpAddr> =
        (0..400).map(|at| bed.send(A, &tcp("10.0.0.1", VIP, 1000 + at, 8080, SYN)).translation.unwrap().dst).collect();
    assert_eq!(chosen.len(), all.len());
}

#[test]
fn translated_sessions_outlive_the_process() {
    let folder = std::env::temp_dir().join(format!("bulkhead-services-{}", std::process::id()));
    let affinity = Affinity::new();
    let config = WorkerConfig { sessions: SessionConfig::live(1000), ..WorkerConfig::default() };
    let mut bed = established();
    let make = |now| {
        let mut store = SessionStore::open(&folder).unwrap();
        let team = Worker::team_in(&mut store, config, 1, &affinity, &snapshot(), now).unwrap();
        (store, team.into_iter().next().unwrap())
    };
    let (store, worker) = make(bed.now);
    bed.worker = worker;
    for (port, packet) in [(A, to_vip(SYN)), (B, b_to_a(SYN | ACK)), (A, to_vip(ACK))] {
        assert!(bed.send(port, &packet).translation.is_some());
    }
    drop(store);
    drop(std::mem::replace(&mut bed.worker, Worker::new(config)));
    let (store, worker) = make(bed.now);
    assert_eq!(store.adoption().adopted, 1);
    bed.worker = worker;
    // The backend gets no new connections any more.
    set(&mut bed, 2, &[(VIP, service(&[backend("10.9.0.1", 80)]))]);
    assert_eq!(bed.send(A, &to_vip(ACK)).translation, seen_by_b());
    assert_eq!(bed.send(B, &b_to_a(ACK)).translation, seen_by_a());
    drop(store);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_client_keeps_its_backend_over_restarts_as_long_as_service_port_and_backend_are_there() {
    const OTHER: &str = "10.96.0.2";
    let folder = std::env::temp_dir().join(format!("bulkhead-clients-kept-{}", std::process::id()));
    let affinity = Affinity::new();
    let config = WorkerConfig { sessions: SessionConfig::live(1000), ..WorkerConfig::default() };
    let all: Vec<Backend> = (1..=8).map(|host| backend(&format!("10.9.0.{host}"), 80)).collect();
    let with = |identity, backends: &[Backend]| ServicePort { affinity: Some(600), identity, ..service(backends) };
    let mut bed = bed(&[]);
    let restart = |bed: &mut Bed| {
        drop(std::mem::replace(&mut bed.worker, Worker::new(config)));
        bed.wait(60);
        let mut store = SessionStore::open(&folder).unwrap();
        bed.worker = Worker::team_in(&mut store, config, 1, &affinity, &snapshot(), bed.now).unwrap().remove(0);
        store.adoption().clone()
    };
    let mut sport = 1000;
    let mut next = |bed: &mut Bed, vip: &str| {
        sport += 1;
        bed.send(A, &tcp("10.0.0.1", vip, sport, 8080, SYN)).translation.unwrap().dst
    };
    restart(&mut bed);
    set(&mut bed, 2, &[(VIP, with(1, &all)), (OTHER, with(2, &all))]);
    // Gives both Services different backends.
    let first = next(&mut bed, VIP);
    let other_backends: Vec<Backend> = all.iter().copied().filter(|backend| backend.socket.ip() != first).collect();
    set(&mut bed, 3, &[(VIP, with(1, &all)), (OTHER, with(2, &other_backends))]);
    let other = next(&mut bed, OTHER);
    assert_eq!(bed.worker.counters().clients(), ClientCounters { remembered: 2, forgotten: 0 });
    // The next process numbers the Services in another order.
    assert_eq!(restart(&mut bed).clients, 2);
    assert_eq!(bed.worker.counters().clients().remembered, 2);
    set(&mut bed, 1, &[(OTHER, with(2, &all)), (VIP, with(1, &all))]);
    for _ in 0..8 {
        assert_eq!([next(&mut bed, VIP), next(&mut bed, OTHER)], [first, other]);
    }
    // The backend is removed while no process runs. The client gets another backend and keeps it after the first returns.
    restart(&mut bed);
    set(&mut bed, 1, &[(VIP, with(1, &other_backends))]);
    let second = next(&mut bed, VIP);
    assert_ne!(second, first);
    restart(&mut bed);
    set(&mut bed, 1, &[(VIP, with(1, &all))]);
    assert!((0..8).all(|_| next(&mut bed, VIP) == second));
    // Another Service at the same address has no clients.
    set(&mut bed, 2, &[(VIP, with(3, &[backend("10.9.0.9", 80)]))]);
    assert_eq!(next(&mut bed, VIP), ip("10.9.0.9"));
    // Only the damaged file is refused. Sessions continue.
    let path = folder.join("current/clients");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let adoption = restart(&mut bed);
    assert_eq!((adoption.clients, adoption.refused.len(), &adoption.refused[0].path), (0, 1, &path), "{adoption:?}");
    assert!(adoption.adopted > 0, "{adoption:?}");
    std::fs::remove_dir_all(&folder).unwrap();
}
