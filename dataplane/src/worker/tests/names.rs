//! Rules that name domains: what pods learn from DNS answers, and what that opens.

use std::sync::Arc;

use bulkhead_classifier::{Action, AddressSet, NameSet, PortRange, Rule, Service, ServiceSet, Tables};

mod denials;
mod fragments;
mod histories;
mod server_names;
mod unread;

use super::*;
use crate::testbed::dns::{TYPE_A, TYPE_AAAA, answer, answer_of, framed, query, query_of};
use crate::wire::checksum;

/// The `named_table` of pod A. It allows DNS ports and the named destinations, and denies all else.
const NAMED: TableId = TableId(3);
const GRACE: u64 = 30 * SECOND;
const SERVER: &str = "192.168.0.53";
const WEB: &str = "203.0.113.7";
const RULE: OriginId = OriginId(40);

fn names(patterns: &[&str]) -> NameSet {
    patterns.iter().map(|pattern| pattern.parse().unwrap()).collect()
}

/// Returns the table [`NAMED`], in which a rule with this origin names these patterns. Without patterns, it has no such rule.
fn table(patterns: &[&str], origin: OriginId) -> Tables {
    let service = |protocol, port| Service { protocols: (protocol, protocol), ports: PortRange::one(port) };
    let dns: ServiceSet = [6, 17].into_iter().flat_map(|number| [53, 5353].map(|port| service(number, port))).collect();
    let named = Rule { names: Some(names(patterns)), ..Rule::any(Action::Allow, origin) };
    let mut rules = vec![Rule { services: dns.into(), ..Rule::any(Action::Allow, OriginId(41)) }];
    rules.extend((!patterns.is_empty()).then_some(named));
    rules.push(Rule::any(Action::Deny, OriginId(42)));
    Tables::build(rules).unwrap()
}

fn snapshot_naming(generation: u64, patterns: &[&str], origin: OriginId) -> Snapshot {
    let mut ports = ports();
    ports[A.index()].named_table = Some(NAMED);
    let mut tables = snapshot().tables().to_vec();
    tables.push(Arc::new(table(patterns, origin)));
    let routes = routes(&ports);
    let servers: AddressSet = [ip(SERVER), ip("10.0.0.2"), ip("fd00::2")].into_iter().collect();
    let names = Names::new(servers, GRACE, vec![None, None, Some(Holder(7)), None]);
    Snapshot::new(generation, ports, tables, routes).unwrap().with_names(Some(Arc::new(names)))
}

fn bed() -> Bed {
    Bed { snapshot: snapshot_naming(2, &["www.example.com", "*.example.org"], RULE), ..Bed::new() }
}

/// Returns the snapshot with changed ports.
fn changed(snapshot: &Snapshot, generation: u64, change: impl FnOnce(&mut [PortConfig])) -> Snapshot {
    let mut ports = snapshot.ports().to_vec();
    change(&mut ports);
    Snapshot::new(generation, ports, snapshot.tables().to_vec(), snapshot.routes().clone())
        .unwrap()
        .with_names(snapshot.names().cloned().map(Arc::new))
}

/// Judges packets as one burst.
fn burst(bed: &mut Bed, packets: &[(PortId, Vec<u8>)]) -> Vec<Verdict> {
    let (link, time) = (LinkType::Raw, bed.now);
    let packets: Vec<_> = packets
        .iter()
        .map(|(in_port, frame)| Packet { frame, wire_len: frame.len(), link, in_port: *in_port, time })
        .collect();
    let mut outcomes = vec![Outcome::UNJUDGED; packets.len()];
    bed.worker.process(&bed.snapshot, &packets, &mut outcomes);
    outcomes.iter().map(|outcome| outcome.verdict).collect()
}

/// Sends a query of A to the server over the uplink, and the answer. Both must be forwarded.
fn resolve(bed: &mut Bed, id: u16, name: &str, answers: &[(&str, u32, &str)]) {
    assert_eq!(bed.verdict(A, &datagram(("10.0.0.1", 4000), (SERVER, 53), &query(id, name))), Verdict::Forward(UPLINK));
    let packet = datagram((SERVER, 53), ("10.0.0.1", 4000), &answer(id, name, answers));
    assert_eq!(bed.verdict(UPLINK, &packet), Verdict::Forward(A));
}

/// Opens a connection of A from this port to port 443 of an address. Returns whether it was allowed.
fn connects(bed: &mut Bed, sport: u16, dst: &str) -> bool {
    let src = if dst.contains(':') { "fd00::1" } else { "10.0.0.1" };
    match bed.verdict(A, &tcp(src, dst, sport, 443, SYN)) {
        Verdict::Forward(_) => true,
        verdict => {
            assert_eq!(verdict, dropped(DropReason::PolicyDenied));
            false
        }
    }
}

#[test]
fn the_first_packet_after_an_answer_is_allowed_and_names_the_rule_and_the_name() {
    let mut bed = bed();
    assert!(!connects(&mut bed, 1, WEB));
    resolve(&mut bed, 9, "WWW.example.com", &[("www.example.com", 60, WEB)]);
    let outcome = bed.send(A, &tcp("10.0.0.1", WEB, 2, 443, SYN));
    assert_eq!(outcome.verdict, Verdict::Forward(UPLINK));
    let decision = outcome.decision.unwrap();
    assert_eq!((decision.table(), decision.rule, decision.origin), (None, Some(1), Some(RULE)));
    let mut text = String::new();
    bed.worker.learned().with_name(decision.name().unwrap(), |name| text.push_str(name));
    assert_eq!(text, "www.example.com");
    // A SYN that was denied before the answer is repeated with the same ports.
    assert!(connects(&mut bed, 1, WEB));
    let counters = *bed.worker.name_counters();
    assert_eq!((counters.queries, counters.answers, counters.addresses, counters.unasked), (1, 1, 1, 0));
    // Pod B has learned nothing; nobody restricts it.
    assert_eq!(bed.verdict(B, &tcp("10.0.0.2", WEB, 2, 443, SYN)), Verdict::Forward(UPLINK));
}

#[test]
fn in_one_burst_only_packets_after_the_answer_are_allowed() {
    let mut bed = bed();
    let packets = [
        (A, datagram(("10.0.0.1", 4000), (SERVER, 53), &query(1, "www.example.com"))),
        (A, tcp("10.0.0.1", WEB, 1, 443, SYN)),
        (
            UPLINK,
            datagram((SERVER, 53), ("10.0.0.1", 4000), &answer(1, "www.example.com", &[("www.example.com", 9, WEB)])),
        ),
        (A, tcp("10.0.0.1", WEB, 2, 443, SYN)),
    ];
    let verdicts: Vec<_> = burst(&mut bed, &packets).iter().map(|verdict| verdict.out_port()).collect();
    assert_eq!(verdicts, [Some(UPLINK), None, Some(A), Some(UPLINK)]);
}

#[test]
fn only_dns_of_pods_with_such_rules_makes_waiting_packets_be_classified_early() {
    let mut bed = bed();
    let others = |from: u16| (from..from + 9).map(|port| (B, tcp("10.0.0.2", WEB, port, 443, SYN)));
    let dns = |port, client, name| (port, datagram((client, 4000), (SERVER, 53), &query(1, name)));
    let without: Vec<_> = others(1).chain([dns(B, "10.0.0.2", "www.example.com")]).chain(others(10)).collect();
    let with: Vec<_> = others(20).chain([dns(A, "10.0.0.1", "www.example.com")]).chain(others(30)).collect();
    for (packets, batches) in [(without, 1), (with, 2)] {
        let before = bed.worker.pending.batches;
        assert_eq!(burst(&mut bed, &packets), vec![Verdict::Forward(UPLINK); packets.len()]);
        assert_eq!(bed.worker.pending.batches - before, batches);
    }
}

#[test]
fn what_one_pod_learns_opens_nothing_to_another() {
    let mut bed = bed();
    let names =
        Names::new([ip(SERVER)].into_iter().collect(), GRACE, vec![None, None, Some(Holder(7)), Some(Holder(9))]);
    bed.snapshot = changed(&bed.snapshot, 3, |ports| ports[B.index()].named_table = Some(NAMED));
    bed.snapshot = bed.snapshot.with_names(Some(Arc::new(names)));
    let of_b = |bed: &mut Bed, port| bed.verdict(B, &tcp("10.0.0.2", WEB, port, 443, SYN)) == Verdict::Forward(UPLINK);
    resolve(&mut bed, 1, "www.example.com", &[("www.example.com", 60, WEB)]);
    assert!(connects(&mut bed, 1, WEB) && !of_b(&mut bed, 1));
    // The answer to A's question, sent to B.
    let (a, b) = (("10.0.0.1", 4000), ("10.0.0.2", 4000));
    bed.verdict(A, &datagram(a, (SERVER, 53), &query(2, "www.example.com")));
    bed.verdict(B, &datagram(b, (SERVER, 53), &query(3, "www.example.com")));
    let reply = |id| answer(id, "www.example.com", &[("www.example.com", 60, WEB)]);
    assert_eq!(bed.verdict(UPLINK, &datagram((SERVER, 53), b, &reply(2))), Verdict::Forward(B));
    assert!(!of_b(&mut bed, 2));
    assert_eq!(bed.verdict(UPLINK, &datagram((SERVER, 53), b, &reply(3))), Verdict::Forward(B));
    assert!(of_b(&mut bed, 3));
}

#[test]
fn queries_about_names_that_no_rule_names_are_not_counted() {
    let mut bed = bed();
    resolve(&mut bed, 1, "other.test", &[("other.test", 60, WEB)]);
    assert_eq!(*bed.worker.name_counters(), NameCounters::default());
    assert!(!connects(&mut bed, 1, WEB));
}

#[test]
fn an_address_is_open_for_its_ttl_and_the_grace_and_longer_if_it_is_answered_again() {
    let mut bed = bed();
    let records = [("www.example.com", 60, WEB), ("www.example.com", 0, "203.0.113.8")];
    resolve(&mut bed, 1, "www.example.com", &records);
    bed.wait(29);
    assert!(connects(&mut bed, 1, WEB) && connects(&mut bed, 2, "203.0.113.8"), "a TTL of 0 counts for the grace");
    bed.wait(30);
    assert!(connects(&mut bed, 3, WEB) && !connects(&mut bed, 4, "203.0.113.8"));
    resolve(&mut bed, 2, "www.example.com", &[("www.example.com", 60, WEB)]);
    bed.wait(80);
    assert!(connects(&mut bed, 5, WEB));
    bed.wait(60);
    assert!(!connects(&mut bed, 6, WEB));
}

#[test]
fn a_session_goes_on_while_a_rule_still_names_its_name_and_ends_with_the_rule() {
    let mut bed = bed();
    resolve(&mut bed, 1, "www.example.com", &[("www.example.com", 1, WEB)]);
    let packet = |flags| tcp("10.0.0.1", WEB, 1, 443, flags);
    let back = |flags| tcp(WEB, "10.0.0.1", 443, 1, flags);
    assert!(connects(&mut bed, 1, WEB));
    assert_eq!(bed.verdict(UPLINK, &back(SYN | ACK)), Verdict::Forward(A));
    assert_eq!(bed.verdict(A, &packet(ACK)), Verdict::Forward(UPLINK));
    bed.wait(100);
    assert!(!connects(&mut bed, 2, WEB), "the address has expired");
    // Other tables, in which the rule names the name in another way.
    for (generation, patterns, goes_on) in [
        (3, &["www.example.com"][..], true),
        (4, &["*.example.com", "other.example.net"], true),
        (5, &["other.example.com"], false),
    ] {
        bed.snapshot = snapshot_naming(generation, patterns, RULE);
        let expected = if goes_on { Verdict::Forward(UPLINK) } else { dropped(DropReason::PolicyDenied) };
        assert_eq!(bed.verdict(A, &packet(ACK)), expected, "{patterns:?}");
    }
}

#[test]
fn a_chain_counts_for_the_name_asked_and_unasked_records_do_not() {
    let mut bed = bed();
    let records = [
        ("www.example.com", 60, "cdn.example.net"),
        ("cdn.example.net", 60, WEB),
        ("evil.example.net", 60, "203.0.113.66"),
    ];
    resolve(&mut bed, 1, "www.example.com", &records);
    assert!(connects(&mut bed, 1, WEB) && !connects(&mut bed, 2, "203.0.113.66"));
    // The rule names this name, but the question was about another.
    resolve(
        &mut bed,
        2,
        "alias.example.net",
        &[("alias.example.net", 60, "www.example.com"), ("www.example.com", 60, "203.0.113.9")],
    );
    assert!(!connects(&mut bed, 3, "203.0.113.9"));
}

#[test]
fn no_answer_is_believed_that_the_pod_has_not_asked_this_server_for() {
    let asked = |bed: &mut Bed| {
        let packet = datagram(("10.0.0.1", 4000), (SERVER, 53), &query(1, "wWw.example.com"));
        assert_eq!(bed.verdict(A, &packet), Verdict::Forward(UPLINK));
    };
    let good = answer(1, "wWw.example.com", &[("www.example.com", 60, WEB)]);
    let from_server = |data: &[u8]| datagram((SERVER, 53), ("10.0.0.1", 4000), data);
    let cases: [(&str, PortId, Vec<u8>); 6] = [
        ("wrong id", UPLINK, from_server(&answer(2, "wWw.example.com", &[("www.example.com", 60, WEB)]))),
        ("another case", UPLINK, from_server(&answer(1, "www.example.com", &[("www.example.com", 60, WEB)]))),
        ("wrong question", UPLINK, from_server(&answer(1, "x.example.org", &[("x.example.org", 60, WEB)]))),
        ("another server", UPLINK, datagram(("192.168.0.99", 53), ("10.0.0.1", 4000), &good)),
        ("another port", UPLINK, datagram((SERVER, 53), ("10.0.0.1", 4001), &good)),
        ("another pod from port 53", B, datagram(("10.0.0.2", 53), ("10.0.0.1", 4000), &good)),
    ];
    for (what, port, packet) in cases {
        let mut bed = bed();
        asked(&mut bed);
        bed.verdict(port, &packet);
        assert!(!connects(&mut bed, 1, WEB), "{what}");
        // The true answer still counts, unless its question was answered.
        assert_eq!(bed.verdict(UPLINK, &from_server(&good)), Verdict::Forward(A), "{what}");
        assert!(connects(&mut bed, 2, WEB), "{what}");
    }
    // A second answer, and one that comes late.
    let mut bed = bed();
    asked(&mut bed);
    bed.verdict(UPLINK, &from_server(&answer(1, "wWw.example.com", &[])));
    bed.verdict(UPLINK, &from_server(&good));
    assert!(!connects(&mut bed, 1, WEB), "a second answer");
    asked(&mut bed);
    bed.wait(11);
    bed.verdict(UPLINK, &from_server(&good));
    assert!(!connects(&mut bed, 2, WEB), "a late answer");
    assert_eq!(bed.worker.name_counters().unasked, 2);
    // A failure opens nothing, whatever it carries.
    asked(&mut bed);
    bed.verdict(UPLINK, &from_server(&answer_of((1, 3), "wWw.example.com", TYPE_A, &[("www.example.com", 60, WEB)])));
    assert!(!connects(&mut bed, 3, WEB), "NXDOMAIN");
}

#[test]
fn a_server_that_nobody_trusts_opens_nothing() {
    let mut bed = bed();
    let (client, other) = (("10.0.0.1", 4000), ("8.8.8.8", 53));
    assert_eq!(bed.verdict(A, &datagram(client, other, &query(1, "www.example.com"))), Verdict::Forward(UPLINK));
    let packet = datagram(other, client, &answer(1, "www.example.com", &[("www.example.com", 60, WEB)]));
    assert_eq!(bed.verdict(UPLINK, &packet), Verdict::Forward(A));
    assert!(!connects(&mut bed, 1, WEB));
}

#[test]
fn a_server_behind_a_service_is_known_by_its_own_address_and_port() {
    let mut bed = bed();
    let mut services = services(1, &[(VIP, service(&[backend("10.0.0.2", 5353)]))]);
    let vip = Vip { address: ip(VIP), protocol: 17, port: 53 };
    services.set_vip(vip, Some(VipEntry { port: 0, ..ENTRY }));
    bed.snapshot = changed(&bed.snapshot, 3, |ports| ports[B.index()].egress = Some(OPEN));
    bed.snapshot = bed.snapshot.with_services(Some(Arc::new(services)));
    assert_eq!(
        bed.verdict(A, &datagram(("10.0.0.1", 4000), (VIP, 53), &query(1, "a.example.org"))),
        Verdict::Forward(B)
    );
    let packet =
        datagram(("10.0.0.2", 5353), ("10.0.0.1", 4000), &answer(1, "a.example.org", &[("a.example.org", 60, WEB)]));
    assert_eq!(bed.verdict(B, &packet), Verdict::Forward(A));
    assert!(connects(&mut bed, 1, WEB));
}

#[test]
fn ipv6_is_learned_like_ipv4_and_neither_displaces_the_other() {
    let mut bed = bed();
    bed.snapshot = changed(&bed.snapshot, 3, |ports| ports[B.index()].egress = Some(OPEN));
    let (client, server) = (("fd00::1", 4000), ("fd00::2", 53));
    let ask = query_of(1, "www.example.com", TYPE_AAAA);
    assert_eq!(bed.verdict(A, &datagram(client, server, &ask)), Verdict::Forward(B));
    let records = [("www.example.com", 60, "2001:db8::7"), ("www.example.com", 60, WEB)];
    let reply = answer_of((1, 0), "www.example.com", TYPE_AAAA, &records);
    assert_eq!(bed.verdict(B, &datagram(server, client, &reply)), Verdict::Forward(A));
    assert!(connects(&mut bed, 1, "2001:db8::7") && !connects(&mut bed, 2, WEB), "only AAAA was asked");
    resolve(&mut bed, 1, "www.example.com", &[("www.example.com", 60, WEB)]);
    assert!(connects(&mut bed, 3, "2001:db8::7") && connects(&mut bed, 4, WEB));
}

/// Returns a TCP segment whose data begins `distance` bytes after the SYN.
fn segment((src, sport): (&str, u16), (dst, dport): (&str, u16), distance: u32, data: &[u8]) -> Vec<u8> {
    let mut packet = tcp_at((src, sport), (dst, dport), ACK, (2 + distance, 2));
    packet.extend(data);
    let total = u16::try_from(packet.len()).unwrap();
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet[36..38].fill(0);
    let length = u16::try_from(packet.len() - 20).unwrap().to_be_bytes();
    let sum = checksum::internet(&[&packet[12..20], &[0, 6], &length, &packet[20..]]);
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
    packet
}

#[test]
fn answers_over_tcp_are_put_together_from_their_segments() {
    let mut bed = bed();
    let (client, server) = (("10.0.0.1", 4000), (SERVER, 53));
    assert_eq!(bed.verdict(A, &tcp(client.0, server.0, client.1, 53, SYN)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(UPLINK, &tcp(server.0, client.0, 53, client.1, SYN | ACK)), Verdict::Forward(A));
    let ask = framed(&query(1, "www.example.com"));
    assert_eq!(bed.verdict(A, &segment(client, server, 0, &ask)), Verdict::Forward(UPLINK));
    let records = [("www.example.com", 60, WEB), ("www.example.com", 60, "203.0.113.8")];
    let reply = framed(&answer(1, "www.example.com", &records));
    let (first, second) = reply.split_at(reply.len() - 9);
    let late = u32::try_from(first.len()).unwrap();
    assert_eq!(bed.verdict(UPLINK, &segment(server, client, late, second)), Verdict::Forward(A));
    assert!(!connects(&mut bed, 1, WEB), "the message is not complete");
    assert_eq!(bed.verdict(UPLINK, &segment(server, client, 0, first)), Verdict::Forward(A));
    assert!(connects(&mut bed, 2, WEB) && connects(&mut bed, 3, "203.0.113.8"));
    assert_eq!(bed.worker.name_counters().incomplete, 0);
}

#[test]
fn an_answer_that_is_cut_anywhere_is_forwarded_opens_nothing_and_leaves_its_question_open() {
    let (client, server) = (("10.0.0.1", 4000), (SERVER, 53));
    let whole = answer(1, "www.example.com", &[("www.example.com", 60, WEB)]);
    for len in 0..whole.len() {
        let mut bed = bed();
        assert_eq!(bed.verdict(A, &datagram(client, server, &query(1, "www.example.com"))), Verdict::Forward(UPLINK));
        assert_eq!(bed.verdict(UPLINK, &datagram(server, client, &whole[..len])), Verdict::Forward(A));
        assert!(!connects(&mut bed, 1, WEB), "{len} bytes");
        assert_eq!((bed.worker.name_counters().malformed, bed.worker.name_counters().answers), (1, 0), "{len} bytes");
        assert_eq!(bed.verdict(UPLINK, &datagram(server, client, &whole)), Verdict::Forward(A));
        assert!(connects(&mut bed, 1, WEB), "{len} bytes");
    }
}

#[test]
fn the_names_of_a_pod_that_is_gone_open_nothing_to_the_next_pod_with_its_address() {
    let mut bed = bed();
    resolve(&mut bed, 1, "www.example.com", &[("www.example.com", 60, WEB)]);
    assert!(connects(&mut bed, 1, WEB));
    let next = Names::new([ip(SERVER)].into_iter().collect(), GRACE, vec![None, None, Some(Holder(8)), None]);
    bed.snapshot = snapshot_naming(3, &["www.example.com"], RULE).with_names(Some(Arc::new(next)));
    assert!(!connects(&mut bed, 2, WEB));
}
