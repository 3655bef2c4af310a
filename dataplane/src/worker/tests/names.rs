//! Rules that name domains: what pods learn from DNS answers, and what that opens.

use std::sync::Arc;

use bulkhead_classifier::{Action, AddressSet, NameSet, PortRange, Rule, Service, ServiceSet, Tables};

mod histories;

use super::*;
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

fn wire(name: &str) -> Vec<u8> {
    let labels = name.split('.').flat_map(|label| [&[u8::try_from(label.len()).unwrap()], label.as_bytes()].concat());
    labels.chain([0]).collect()
}

fn message(id: u16, flags: u16, name: &str, kind: u16, answers: &[(&str, u32, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let count = u16::try_from(answers.len()).unwrap();
    [id, flags, 1, count, 0, 0].iter().for_each(|word: &u16| bytes.extend(word.to_be_bytes()));
    bytes.extend(wire(name));
    [kind, 1].iter().for_each(|word| bytes.extend(word.to_be_bytes()));
    for (owner, ttl, data) in answers {
        bytes.extend(wire(owner));
        let (kind, data): (u16, Vec<u8>) = match data.parse() {
            Ok(std::net::IpAddr::V4(v4)) => (1, v4.octets().to_vec()),
            Ok(std::net::IpAddr::V6(v6)) => (28, v6.octets().to_vec()),
            Err(_) => (5, wire(data)),
        };
        [kind, 1].iter().for_each(|word| bytes.extend(word.to_be_bytes()));
        bytes.extend(ttl.to_be_bytes());
        bytes.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        bytes.extend(data);
    }
    bytes
}

fn query(id: u16, name: &str) -> Vec<u8> {
    message(id, 0x0100, name, 1, &[])
}

fn answer(id: u16, name: &str, answers: &[(&str, u32, &str)]) -> Vec<u8> {
    message(id, 0x8180, name, 1, answers)
}

fn datagram((src, sport): (&str, u16), (dst, dport): (&str, u16), data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(8 + data.len()).unwrap();
    let mut bytes = [sport, dport, len, 0].map(u16::to_be_bytes).concat();
    bytes.extend(data);
    if src.contains(':') { v6(src, dst, 17, 64, &bytes) } else { v4(src, dst, 17, 64, &bytes) }
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
    let packets: Vec<_> = packets
        .iter()
        .map(|(in_port, frame)| Packet {
            frame,
            wire_len: frame.len(),
            link: LinkType::Raw,
            in_port: *in_port,
            time: bed.now,
        })
        .collect();
    let mut outcomes = [Outcome::UNJUDGED; 4];
    bed.worker.process(&bed.snapshot, &packets, &mut outcomes);
    let verdicts = outcomes.map(|outcome| outcome.verdict.out_port());
    assert_eq!(verdicts, [Some(UPLINK), None, Some(A), Some(UPLINK)]);
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
    bed.verdict(UPLINK, &from_server(&message(1, 0x8183, "wWw.example.com", 1, &[("www.example.com", 60, WEB)])));
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
    bed.snapshot = bed.snapshot.with_services(Some(Arc::new(services)));
    let mut ports = bed.snapshot.ports().to_vec();
    ports[B.index()].egress = Some(OPEN);
    bed.snapshot = Snapshot::new(3, ports, bed.snapshot.tables().to_vec(), bed.snapshot.routes().clone())
        .unwrap()
        .with_names(Some(Arc::new(bed.snapshot.names().unwrap().clone())))
        .with_services(Some(Arc::new(bed.snapshot.services().unwrap().clone())));
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
    bed.snapshot = {
        let mut ports = bed.snapshot.ports().to_vec();
        ports[B.index()].egress = Some(OPEN);
        Snapshot::new(3, ports, bed.snapshot.tables().to_vec(), bed.snapshot.routes().clone())
            .unwrap()
            .with_names(Some(Arc::new(bed.snapshot.names().unwrap().clone())))
    };
    let (client, server) = (("fd00::1", 4000), ("fd00::2", 53));
    let ask = message(1, 0x0100, "www.example.com", 28, &[]);
    assert_eq!(bed.verdict(A, &datagram(client, server, &ask)), Verdict::Forward(B));
    let reply = message(
        1,
        0x8180,
        "www.example.com",
        28,
        &[("www.example.com", 60, "2001:db8::7"), ("www.example.com", 60, WEB)],
    );
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
    let framed = |message: Vec<u8>| [u16::try_from(message.len()).unwrap().to_be_bytes().to_vec(), message].concat();
    assert_eq!(bed.verdict(A, &tcp(client.0, server.0, client.1, 53, SYN)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(UPLINK, &tcp(server.0, client.0, 53, client.1, SYN | ACK)), Verdict::Forward(A));
    let ask = framed(query(1, "www.example.com"));
    assert_eq!(bed.verdict(A, &segment(client, server, 0, &ask)), Verdict::Forward(UPLINK));
    let reply =
        framed(answer(1, "www.example.com", &[("www.example.com", 60, WEB), ("www.example.com", 60, "203.0.113.8")]));
    let (first, second) = reply.split_at(reply.len() - 9);
    let late = u32::try_from(first.len()).unwrap();
    assert_eq!(bed.verdict(UPLINK, &segment(server, client, late, second)), Verdict::Forward(A));
    assert!(!connects(&mut bed, 1, WEB), "the message is not complete");
    assert_eq!(bed.verdict(UPLINK, &segment(server, client, 0, first)), Verdict::Forward(A));
    assert!(connects(&mut bed, 2, WEB) && connects(&mut bed, 3, "203.0.113.8"));
    assert_eq!(bed.worker.name_counters().incomplete, 0);
}

#[test]
fn what_is_not_understood_is_forwarded_and_opens_nothing() {
    let mut bed = bed();
    let (client, server) = (("10.0.0.1", 4000), (SERVER, 53));
    assert_eq!(bed.verdict(A, &datagram(client, server, &query(1, "www.example.com"))), Verdict::Forward(UPLINK));
    let whole = answer(1, "www.example.com", &[("www.example.com", 60, WEB)]);
    for len in 0..whole.len() {
        assert_eq!(bed.verdict(UPLINK, &datagram(server, client, &whole[..len])), Verdict::Forward(A));
        assert!(!connects(&mut bed, 1, WEB), "{len} bytes");
    }
    assert!(bed.worker.name_counters().malformed > 0);
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
