//! Connections of pods to outside networks, which leave with the node's address.

use super::dropped;
use crate::io::Translation;
use crate::probe::{Probe, ProbeKind};
use crate::testbed::*;
use crate::*;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

const NODE: &str = "192.168.0.1";
const WORLD: &str = "8.8.8.8";

fn masquerade(sources: &[&str], ports: impl Into<SourcePorts>) -> Option<Arc<Masquerade>> {
    let kept = ["10.0.0.0/8", "fd00::/16"].map(|block| block.parse().unwrap());
    Some(Arc::new(Masquerade::new(sources.iter().map(|source| ip(source)), kept, ports)))
}

fn bed_with(ports: impl Into<SourcePorts>) -> Bed {
    let mut bed = Bed::with(SessionConfig::live(20_000));
    bed.snapshot = bed.snapshot.with_masquerade(masquerade(&[NODE, "fd00:1::1"], ports));
    bed
}

fn bed() -> Bed {
    bed_with(SourcePorts::default())
}

/// Returns a probe between these ends.
fn of(kind: ProbeKind, src: IpAddr, sport: u16, dst: &str, dport: u16) -> Probe {
    Probe { src, dst: ip(dst), kind, sport, dport }
}

#[test]
fn all_protocols_and_both_families_leave_with_the_nodes_address_and_answers_find_the_pod() {
    let kinds = [ProbeKind::Tcp, ProbeKind::Udp, ProbeKind::Sctp, ProbeKind::IcmpEcho];
    for (pod, node, world) in [("10.0.0.1", NODE, WORLD), ("fd00::1", "fd00:1::1", "2001:db8::8")] {
        for kind in kinds {
            let mut bed = bed();
            let request = of(kind, ip(pod), 40_000, world, 53).request().unwrap();
            let first = bed.send(A, &request);
            assert_eq!((first.verdict, first.session), (Verdict::Forward(UPLINK), Some(SessionState::New)), "{kind:?}");
            let sent = first.translation.unwrap();
            assert_eq!((sent.src, sent.dst), (ip(node), ip(world)), "{kind:?}");
            assert!((61_000..=65_535).contains(&sent.sport), "{kind:?} {}", sent.sport);
            let is_echo = kind == ProbeKind::IcmpEcho;
            assert_eq!(sent.dport, if is_echo { sent.sport } else { 53 });
            // The server answers the packet that it received.
            let answer = of(kind, ip(node), sent.sport, world, 53).reply().unwrap();
            let back = bed.send(UPLINK, &answer);
            assert_eq!((back.verdict, back.session), (Verdict::Forward(A), Some(SessionState::Hit)), "{kind:?}");
            let sport = if is_echo { 40_000 } else { 53 };
            let expected = Translation { src: ip(world), dst: ip(pod), sport, dport: 40_000 };
            assert_eq!(back.translation, Some(expected), "{kind:?}");
            // Again; UDP takes the fast path now.
            if kind != ProbeKind::Tcp && kind != ProbeKind::Sctp {
                for _ in 0..3 {
                    assert_eq!(bed.send(A, &request).translation, Some(sent), "{kind:?}");
                    assert_eq!(bed.send(UPLINK, &answer).translation, Some(expected), "{kind:?}");
                }
            }
            assert_eq!(bed.worker.sessions_in_use(), 1, "{kind:?}");
        }
    }
}

#[test]
fn a_tcp_connection_goes_on_both_ways_to_its_end() {
    let mut bed = bed();
    let there = |flags| tcp("10.0.0.1", WORLD, 40_000, 443, flags);
    let sent = bed.send(A, &there(SYN)).translation.unwrap();
    let back = |flags| tcp(WORLD, NODE, 443, sent.sport, flags);
    let expected = Translation { src: ip(WORLD), dst: ip("10.0.0.1"), sport: 443, dport: 40_000 };
    assert_eq!(bed.send(UPLINK, &back(SYN | ACK)).translation, Some(expected));
    for _ in 0..3 {
        assert_eq!(bed.send(A, &there(ACK)).translation, Some(sent));
        assert_eq!(bed.send(UPLINK, &back(ACK)).translation, Some(expected));
    }
    bed.send(A, &there(FIN | ACK));
    bed.send(UPLINK, &back(FIN | ACK));
    // The client uses its port again.
    let again = bed.send(A, &there(SYN));
    assert_eq!((again.session, bed.worker.sessions_in_use()), (Some(SessionState::New), 1));
    let told = &bed.worker.session_page(0).sessions[0];
    assert_eq!((told.initiator, told.responder), ((ip("10.0.0.1"), 40_000), (ip(WORLD), 443)));
    assert_eq!((told.service, told.source.unwrap().0), (None, ip(NODE)));
}

#[test]
fn while_nobody_knows_the_pod_an_answer_is_dropped_and_its_session_stays() {
    let mut bed = bed();
    let request = of(ProbeKind::Udp, ip("10.0.0.1"), 40_000, WORLD, 53).request().unwrap();
    let sent = bed.send(A, &request).translation.unwrap();
    let answer = of(ProbeKind::Udp, ip(NODE), sent.sport, WORLD, 53).reply().unwrap();
    assert_eq!(bed.verdict(UPLINK, &answer), Verdict::Forward(A));
    // As before the first state: the node is known, but no pod.
    let nameless = ports().into_iter().map(|port| match port.kind {
        PortKind::Pod => PortConfig { addresses: Vec::new(), ..port },
        _ => port,
    });
    bed.snapshot = snapshot_of(2, nameless.collect());
    assert_eq!(bed.verdict(UPLINK, &answer), dropped(DropReason::SessionClash), "it is not the node's");
    bed.snapshot = snapshot_of(3, ports()).with_masquerade(masquerade(&[NODE, "fd00:1::1"], SourcePorts::default()));
    assert_eq!(bed.send(A, &request).translation, Some(sent), "the same port");
    assert_eq!(bed.verdict(UPLINK, &answer), Verdict::Forward(A));
    assert_eq!(bed.worker.sessions_in_use(), 1);
}

#[test]
fn two_pods_with_one_port_are_told_apart_and_when_no_port_is_free_for_a_destination_others_are_for_the_next() {
    let mut bed = bed_with(61_000..=61_009);
    let mut seen = BTreeSet::new();
    for (port, pod) in [(A, "10.0.0.1"), (B, "10.0.0.2")] {
        for sport in 40_000..40_005 {
            let sent = bed.send(port, &of(ProbeKind::Udp, ip(pod), sport, WORLD, 53).request().unwrap()).translation;
            let sent = sent.unwrap();
            assert!(seen.insert(sent.sport), "port {} is given once", sent.sport);
            let answer = bed.send(UPLINK, &of(ProbeKind::Udp, ip(NODE), sent.sport, WORLD, 53).reply().unwrap());
            let back = answer.translation.unwrap();
            assert_eq!((answer.verdict, back.dst, back.dport), (Verdict::Forward(port), ip(pod), sport));
        }
    }
    let next = |dst, dport| of(ProbeKind::Udp, ip("10.0.0.1"), 41_000, dst, dport).request().unwrap();
    assert_eq!(bed.verdict(A, &next(WORLD, 53)), dropped(DropReason::SourcePortsExhausted));
    assert_eq!(bed.verdict(A, &next(WORLD, 54)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(A, &next("9.9.9.9", 53)), Verdict::Forward(UPLINK));
    // Ended sessions free their ports.
    bed.wait(3600);
    assert_eq!(bed.verdict(A, &next(WORLD, 53)), Verdict::Forward(UPLINK));
}

#[test]
fn policy_is_judged_on_the_pods_own_address_and_port() {
    let mut bed = bed();
    // To outside networks, policy allows only port 80, and only from A.
    let strict = snapshot_with(2, UPLINK, Some(STRICT));
    bed.snapshot = strict.with_masquerade(masquerade(&[NODE], SourcePorts::default()));
    assert_eq!(bed.verdict(A, &tcp("10.0.0.1", WORLD, 40_000, 80, SYN)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(A, &tcp("10.0.0.1", WORLD, 40_000, 81, SYN)), dropped(DropReason::PolicyDenied));
    assert_eq!(bed.verdict(B, &tcp("10.0.0.2", WORLD, 40_000, 80, SYN)), dropped(DropReason::PolicyDenied));
    let ping = of(ProbeKind::IcmpEcho, ip("10.0.0.1"), 7, WORLD, 0).request().unwrap();
    assert_eq!(bed.verdict(A, &ping), Verdict::Forward(UPLINK));
    // A newer policy cuts the connection and the pings. A still newer one allows them again with the same numbers.
    bed.snapshot = snapshot_with(3, UPLINK, Some(CLOSED)).with_masquerade(masquerade(&[NODE], SourcePorts::default()));
    assert_eq!(bed.verdict(A, &ping), dropped(DropReason::PolicyDenied));
    bed.snapshot = snapshot_with(4, UPLINK, Some(STRICT)).with_masquerade(masquerade(&[NODE], SourcePorts::default()));
    assert_eq!(bed.send(A, &ping).translation.unwrap().src, ip(NODE));
}

#[test]
fn what_stays_in_the_cluster_and_what_is_not_a_pods_keeps_its_source() {
    let mut bed = bed();
    for (port, packet, out) in [
        (A, udp("10.0.0.1", "10.9.0.1", 80), UPLINK),
        (A, udp("10.0.0.1", "10.0.0.2", 80), B),
        (A, udp("10.0.0.1", NODE, 80), HOST),
        (A, udp("fd00::1", "fd00:9::1", 80), UPLINK),
        (HOST, udp(NODE, WORLD, 80), UPLINK),
        (UPLINK, udp(WORLD, "10.0.0.1", 80), A),
    ] {
        let outcome = bed.send(port, &packet);
        assert_eq!((outcome.verdict, outcome.translation), (Verdict::Forward(out), None));
    }
    // An answer without a session belongs to the node.
    let stray = of(ProbeKind::Udp, ip(NODE), 61_234, WORLD, 53).reply().unwrap();
    let outcome = bed.send(UPLINK, &stray);
    assert_eq!((outcome.verdict, outcome.translation), (Verdict::Forward(HOST), None));
}

#[test]
fn nothing_leaves_with_a_pods_address_where_the_node_has_none_to_give() {
    let ping = || of(ProbeKind::IcmpEcho, ip("10.0.0.1"), 7, WORLD, 0).request().unwrap();
    // A source that is not the node's; one of the other family; none.
    for sources in [&["192.168.0.77"][..], &["fd00:1::1"], &[]] {
        let mut bed = bed();
        bed.snapshot = snapshot().with_masquerade(masquerade(sources, SourcePorts::default()));
        for packet in [udp("10.0.0.1", WORLD, 53), tcp("10.0.0.1", WORLD, 40_000, 80, SYN), ping()] {
            assert_eq!(bed.verdict(A, &packet), dropped(DropReason::NotMasqueraded));
        }
        assert_eq!(bed.verdict(A, &udp("10.0.0.1", "10.9.0.1", 80)), Verdict::Forward(UPLINK));
    }
    // A protocol without ports, and a message that cannot be distinguished from the node's own.
    let mut bed = bed();
    for packet in [v4("10.0.0.1", WORLD, 47, 64, &[7; 30]), v4("10.0.0.1", WORLD, 1, 64, &[13, 0, 0, 0, 0, 7, 0, 1])] {
        assert_eq!(bed.verdict(A, &packet), dropped(DropReason::NotMasqueraded));
    }
    let stray = tcp("10.0.0.1", WORLD, 40_000, 80, ACK);
    assert_eq!(bed.verdict(A, &stray), dropped(DropReason::TcpWithoutSession));
}

#[test]
fn errors_about_masqueraded_packets_find_the_pod_and_those_of_the_pod_the_world() {
    for kind in [ProbeKind::Udp, ProbeKind::IcmpEcho] {
        let mut bed = bed();
        let request = of(kind, ip("10.0.0.1"), 40_000, WORLD, 53).request().unwrap();
        let sent = bed.send(A, &request).translation.unwrap();
        let seen = of(kind, ip(NODE), sent.sport, WORLD, 53);
        let error = bed.send(UPLINK, &error_about(&seen.request().unwrap(), "9.9.9.9", NODE));
        assert_eq!(error.verdict, Verdict::Forward(A), "{kind:?}");
        let answer = seen.reply().unwrap();
        assert_eq!(bed.verdict(UPLINK, &answer), Verdict::Forward(A));
        if kind == ProbeKind::Udp {
            let got = of(kind, ip("10.0.0.1"), 40_000, WORLD, 53).reply().unwrap();
            let error = bed.send(A, &error_about(&got, "10.0.0.1", WORLD));
            assert_eq!(error.verdict, Verdict::Forward(UPLINK));
        }
    }
    // An error about a packet that was never sent.
    let mut bed = bed();
    let stray = of(ProbeKind::Udp, ip(NODE), 61_234, WORLD, 53).request().unwrap();
    let error = error_about(&stray, "9.9.9.9", NODE);
    assert_eq!(bed.verdict(UPLINK, &error), dropped(DropReason::IcmpErrorWithoutSession));
}

#[test]
fn sessions_that_were_begun_without_masquerading_and_with_a_lost_address_end() {
    let mut bed = bed();
    bed.snapshot = snapshot();
    let datagram = udp("10.0.0.1", WORLD, 53);
    let segment = |flags| tcp("10.0.0.1", WORLD, 40_000, 80, flags);
    assert_eq!(bed.send(A, &datagram).translation, None);
    bed.send(A, &segment(SYN));
    bed.send(UPLINK, &tcp(WORLD, "10.0.0.1", 80, 40_000, SYN | ACK));
    assert_eq!(bed.send(A, &segment(ACK)).translation, None);
    bed.snapshot = snapshot_with(2, B, Some(STRICT)).with_masquerade(masquerade(&[NODE], SourcePorts::default()));
    let sent = bed.send(A, &datagram);
    assert_eq!((sent.session, sent.translation.unwrap().src), (Some(SessionState::New), ip(NODE)));
    assert_eq!(bed.verdict(A, &segment(ACK)), dropped(DropReason::TcpWithoutSession));
    // The node's address has changed.
    let mut ports = ports();
    ports[HOST.index()].addresses = vec![ip("192.168.0.2")];
    bed.snapshot = snapshot_of(3, ports).with_masquerade(masquerade(&["192.168.0.2"], SourcePorts::default()));
    assert_eq!(bed.send(A, &datagram).translation.unwrap().src, ip("192.168.0.2"));
}

#[test]
fn a_connection_to_a_service_outside_of_the_cluster_has_the_nodes_address_there() {
    let mut bed = bed();
    let all = services(1, &[(VIP, service(&[backend("9.9.9.9", 80)]))]);
    bed.snapshot = bed.snapshot.with_services(Some(Arc::new(all)));
    let sent = bed.send(A, &udp("10.0.0.1", VIP, 8080)).translation.unwrap();
    assert_eq!((sent.src, sent.dst, sent.dport), (ip(NODE), ip("9.9.9.9"), 80));
    assert!((61_000..=65_535).contains(&sent.sport));
    let back = bed.send(UPLINK, &of(ProbeKind::Udp, ip(NODE), sent.sport, "9.9.9.9", 80).reply().unwrap());
    let expected = Translation { src: ip(VIP), dst: ip("10.0.0.1"), sport: 8080, dport: 40_000 };
    assert_eq!((back.verdict, back.translation), (Verdict::Forward(A), Some(expected)));
}

#[test]
fn a_change_of_services_ends_no_masqueraded_datagrams_but_those_to_what_is_a_services_address_now() {
    let mut bed = bed();
    let none = services(1, &[]);
    bed.snapshot = bed.snapshot.clone().with_services(Some(Arc::new(none)));
    let [kept, moved] = [WORLD, "9.9.9.9"].map(|world| udp("10.0.0.1", world, 8080));
    let first = [&kept, &moved].map(|packet| bed.send(A, packet).translation.unwrap());
    let some = services(2, &[("9.9.9.9", service(&[backend("10.0.0.1", 80)]))]);
    bed.snapshot = bed.snapshot.clone().with_services(Some(Arc::new(some)));
    bed.worker.judge(&bed.snapshot, bed.now, std::iter::empty(), &mut Vec::new());
    assert_eq!(bed.worker.sessions_in_use(), 1, "reviewed");
    assert_eq!(bed.send(A, &kept).translation, Some(first[0]));
    assert_eq!(bed.send(A, &moved).verdict, Verdict::Forward(A));
}

#[test]
fn where_uplink_and_host_port_share_an_interface_only_masqueraded_packets_of_pods_take_the_uplink() {
    let mut ports = ports();
    ports[UPLINK.index()].shares_host = true;
    let own = (0u16..).zip(&ports).flat_map(|(id, port)| port.addresses.iter().map(move |&a| (a.into(), PortId(id))));
    let by_node = ["0.0.0.0/0", "::/0"].map(|all| (all.parse().unwrap(), HOST));
    let routes = Routes::new(own.chain(by_node)).unwrap();
    let tables = snapshot().tables().to_vec();
    let plain = |generation| Snapshot::new(generation, ports.clone(), tables.clone(), routes.clone()).unwrap();
    let mut bed = Bed::new();
    bed.snapshot = plain(2);
    let ask = |from: &str, to: &str, sport| of(ProbeKind::Tcp, ip(from), sport, to, 80).request().unwrap();
    let outcome = |bed: &mut Bed, port, packet: &[u8]| {
        let outcome = bed.send(port, packet);
        (outcome.verdict, outcome.translation.map(|translation| translation.src))
    };
    assert_eq!(outcome(&mut bed, A, &ask("10.0.0.1", WORLD, 1)), (Verdict::Forward(HOST), None));
    bed.snapshot = plain(3).with_masquerade(masquerade(&[NODE, "fd00:1::1"], SourcePorts::default()));
    assert_eq!(outcome(&mut bed, A, &ask("10.0.0.1", WORLD, 2)), (Verdict::Forward(UPLINK), Some(ip(NODE))));
    let expected = (Verdict::Forward(UPLINK), Some(ip("fd00:1::1")));
    assert_eq!(outcome(&mut bed, A, &ask("fd00::1", "2001:db8::8", 3)), expected);
    // Another node keeps seeing the pod, and so does this one.
    assert_eq!(outcome(&mut bed, A, &ask("10.0.0.1", "10.9.0.1", 4)), (Verdict::Forward(HOST), None));
    assert_eq!(outcome(&mut bed, A, &ask("10.0.0.1", NODE, 5)), (Verdict::Forward(HOST), None));
    // The node reaches the world by itself, and the world a pod by the node; the answer goes back there.
    assert_eq!(outcome(&mut bed, HOST, &ask(NODE, WORLD, 6)).0, dropped(DropReason::BackToSender));
    assert_eq!(outcome(&mut bed, HOST, &ask("8.8.4.4", "10.0.0.1", 7)), (Verdict::Forward(A), None));
    let answer = of(ProbeKind::Tcp, ip("8.8.4.4"), 7, "10.0.0.1", 80).reply().unwrap();
    assert_eq!(outcome(&mut bed, A, &answer), (Verdict::Forward(HOST), None));
    // The session that began before has the pod's address. It begins again, with the node's.
    let again = bed.send(A, &of(ProbeKind::Tcp, ip("10.0.0.1"), 1, WORLD, 80).request().unwrap());
    assert_eq!((again.verdict, again.translation.map(|one| one.src)), (Verdict::Forward(UPLINK), Some(ip(NODE))));
}

/// A bed with the default source ports whose pod `A` has this many addresses from 10.1.0.1 on, each like a pod of its own.
fn bed_of_many(pods: u32) -> Bed {
    let everything = Percent::ALL;
    let config = SessionConfig { pod_share: everything, half_open: everything, ..SessionConfig::live(150_000) };
    let mut bed = Bed::with(config);
    let all = ports().into_iter().map(|port| match &*port.name {
        "ns/a" => PortConfig { addresses: (0..pods).map(pod).collect(), ..port },
        _ => port,
    });
    bed.snapshot = snapshot_of(2, all.collect()).with_masquerade(masquerade(&[NODE], SourcePorts::default()));
    bed
}

fn pod(number: u32) -> IpAddr {
    std::net::Ipv4Addr::from(0x0a01_0001 + number).into()
}

#[test]
fn ten_thousand_pods_have_sixty_thousand_connections_to_one_destination() {
    let mut bed = bed_of_many(10_000);
    let mut seen = BTreeSet::new();
    let request = |from: u32, sport| of(ProbeKind::Udp, pod(from), sport, WORLD, 443).request().unwrap();
    for sport in 40_000..40_006 {
        for from in 0..10_000 {
            let sent = bed.send(A, &request(from, sport));
            let port = sent.translation.unwrap_or_else(|| panic!("{} have ports: {sent:?}", seen.len())).sport;
            assert!(seen.insert(port) && !(30_000..32_768).contains(&port) && port >= 1024, "{port}");
            // The node's own ports come last.
            assert!(seen.len() > 15_000 || !(32_768..61_000).contains(&port), "{port} after {}", seen.len());
        }
    }
    let mut refused = (0..10_000).map(|from| bed.verdict(A, &request(from, 50_000)));
    assert!(refused.any(|verdict| verdict == dropped(DropReason::SourcePortsExhausted)), "61,744 have all");
}

#[test]
fn a_pod_that_takes_all_ports_it_can_get_leaves_some_to_others() {
    let mut bed = bed_of_many(100);
    let request = |from, number: u16| of(ProbeKind::Udp, pod(from), 1_024 + number, WORLD, 443).request().unwrap();
    let verdicts: Vec<Verdict> = (0..60_000).map(|number| bed.verdict(A, &request(0, number))).collect();
    let got = verdicts.iter().filter(|&&verdict| verdict == Verdict::Forward(UPLINK)).count();
    assert!((30_000..35_000).contains(&got), "{got}");
    assert_eq!(verdicts.last(), Some(&dropped(DropReason::SourcePortsQuota)));
    // Another one that does the same, and a hundred that need a few.
    let got = (0..60_000).filter(|&number| bed.verdict(A, &request(1, number)) == Verdict::Forward(UPLINK)).count();
    assert!(got > 15_000, "{got}");
    for from in 2..100 {
        for number in 0..20 {
            assert_eq!(bed.verdict(A, &request(from, number)), Verdict::Forward(UPLINK), "{from}");
        }
    }
}
