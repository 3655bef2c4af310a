//! Server names of TLS and QUIC clients, for connections that were allowed by name.

use super::*;
use crate::ServerNameCheck;

mod attacks;
mod quic;
mod sessions;

const MINE: &str = "www.example.com";
const OTHER: &str = "attacker.example.net";

/// A bed in which A may reach [`WEB`] by the name [`MINE`].
fn checking(check: ServerNameCheck) -> Bed {
    let mut bed = bed();
    set(&mut bed, check);
    resolve(&mut bed, 1, MINE, &[(MINE, 60, WEB)]);
    bed
}

/// Changes what happens to connections with other names, in the next generation.
fn set(bed: &mut Bed, check: ServerNameCheck) {
    let names = Names::clone(bed.snapshot.names().unwrap()).checking_server_names(check);
    let next = changed(&bed.snapshot, bed.snapshot.generation() + 1, |_| ());
    bed.snapshot = next.with_names(Some(Arc::new(names)));
}

/// Returns a ClientHello in one record. `None` leaves the server name out.
fn hello(name: Option<&str>) -> Vec<u8> {
    let word = |len: usize| u16::try_from(len).unwrap().to_be_bytes();
    let extensions = name.map_or(Vec::new(), |name| {
        let entry = [&[0], &word(name.len())[..], name.as_bytes()].concat();
        [&[0, 0], &word(entry.len() + 2)[..], &word(entry.len()), &entry].concat()
    });
    let fixed = [&[3, 3], &[7; 32][..], &[0, 0, 2, 0x13, 1, 1, 0]].concat();
    let body = [&fixed[..], &word(extensions.len()), &extensions].concat();
    let message = [&[1, 0], &word(body.len())[..], &body].concat();
    [&[22, 3, 1], &word(message.len())[..], &message].concat()
}

/// The first bytes of a server's answer that asks for no other hello: an alert.
const ALERT: &[u8] = &[21, 3, 3, 0, 2, 2, 40];

const CLIENT: (&str, u16) = ("10.0.0.1", 5000);
const SITE: (&str, u16) = (WEB, 443);

fn open(bed: &mut Bed) {
    assert_eq!(bed.verdict(A, &tcp(CLIENT.0, SITE.0, CLIENT.1, SITE.1, SYN)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(UPLINK, &tcp(SITE.0, CLIENT.0, SITE.1, CLIENT.1, SYN | ACK)), Verdict::Forward(A));
}

/// Returns a segment whose acknowledgement covers `read` bytes of the other side.
fn acknowledging(from: (&str, u16), to: (&str, u16), read: usize, data: &[u8]) -> Vec<u8> {
    let mut packet = segment(from, to, 0, data);
    let ack = 2 + u32::try_from(read).unwrap();
    packet[28..32].copy_from_slice(&ack.to_be_bytes());
    packet
}

/// Whether the worker would let the flow cache forward A's segments.
fn is_cacheable(bed: &Bed) -> bool {
    let frame = |packet: &[u8]| [&[2; 12][..], &[8, 0], packet].concat();
    bed.worker.cacheable(&frame(&segment(CLIENT, SITE, 500, b"x")), A).is_some()
}

#[test]
fn a_connection_to_the_name_that_the_policy_allows_is_checked_until_the_server_has_the_hello() {
    let mut bed = checking(ServerNameCheck::Drop);
    open(&mut bed);
    let hello = hello(Some("WWW.Example.com"));
    assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &hello)), Verdict::Forward(UPLINK));
    assert!(!is_cacheable(&bed));
    let partly = acknowledging(SITE, CLIENT, hello.len() - 1, ALERT);
    assert_eq!(bed.verdict(UPLINK, &partly), Verdict::Forward(A));
    assert_eq!(bed.worker.name_counters().matched, 0, "the client could still replace the last byte");
    assert_eq!(bed.verdict(UPLINK, &acknowledging(SITE, CLIENT, hello.len(), ALERT)), Verdict::Forward(A));
    let counters = bed.worker.name_counters();
    assert_eq!((counters.matched, counters.mismatched), (1, 0));
    for _ in 0..2 {
        assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 500, b"later data")), Verdict::Forward(UPLINK));
    }
    assert!(is_cacheable(&bed));
}

#[test]
fn a_connection_to_another_name_or_none_is_cut_and_stays_cut() {
    for bytes in [hello(Some(OTHER)), hello(None), b"GET / HTTP/1.1\r\n\r\n".to_vec()] {
        let mut bed = checking(ServerNameCheck::Drop);
        open(&mut bed);
        assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &bytes)), dropped(DropReason::ServerName));
        assert_eq!(bed.worker.name_counters().mismatched, 1);
        for _ in 0..2 {
            assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &hello(Some(MINE)))), dropped(DropReason::ServerName));
            assert_eq!(bed.verdict(UPLINK, &segment(SITE, CLIENT, 0, ALERT)), dropped(DropReason::ServerName));
            // Newer tables still allow the name, but the client has named another server.
            let names = bed.snapshot.names().cloned().map(Arc::new);
            bed.snapshot = snapshot_naming(bed.snapshot.generation() + 1, &[MINE], RULE).with_names(names);
        }
        // The pod may still connect and name the right server.
        let client = (CLIENT.0, 6000);
        assert_eq!(bed.verdict(A, &tcp(client.0, SITE.0, client.1, SITE.1, SYN)), Verdict::Forward(UPLINK));
        assert_eq!(bed.verdict(UPLINK, &tcp(SITE.0, client.0, SITE.1, client.1, SYN | ACK)), Verdict::Forward(A));
        assert_eq!(bed.verdict(A, &segment(client, SITE, 0, &hello(Some(MINE)))), Verdict::Forward(UPLINK));
    }
}

#[test]
fn an_audit_reports_once_and_lets_the_connection_go_on() {
    let mut bed = checking(ServerNameCheck::Audit);
    open(&mut bed);
    let outcome = bed.send(A, &segment(CLIENT, SITE, 0, &hello(Some(OTHER))));
    assert_eq!(outcome.verdict, Verdict::Forward(UPLINK));
    assert_eq!(outcome.audited.unwrap().origin, Some(OriginId(42)), "the rule that denies all else");
    assert_eq!(bed.send(A, &segment(CLIENT, SITE, 500, b"data")).audited, None);
    assert_eq!(bed.worker.name_counters().mismatched, 1);
    bed.verdict(A, &segment(CLIENT, SITE, 500, b"data"));
    assert!(is_cacheable(&bed));
}

#[test]
fn a_hello_in_segments_of_any_order_is_read_and_its_last_segment_decides() {
    for (name, expected) in [(MINE, Verdict::Forward(UPLINK)), (OTHER, dropped(DropReason::ServerName))] {
        let bytes = hello(Some(name));
        for cut in 1..bytes.len() {
            let (first, second) = bytes.split_at(cut);
            let pieces = [segment(CLIENT, SITE, 0, first), segment(CLIENT, SITE, u32::try_from(cut).unwrap(), second)];
            for order in [[0, 1], [1, 0]] {
                let mut bed = checking(ServerNameCheck::Drop);
                open(&mut bed);
                assert_eq!(bed.verdict(A, &pieces[order[0]]), Verdict::Forward(UPLINK), "{name} at {cut}");
                assert_eq!(bed.verdict(A, &pieces[order[1]]), expected, "{name} at {cut}");
            }
        }
    }
}

#[test]
fn a_hello_cannot_be_replaced_before_the_server_has_it() {
    let mut bed = checking(ServerNameCheck::Drop);
    open(&mut bed);
    assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &hello(Some(MINE)))), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &hello(Some(MINE)))), Verdict::Forward(UPLINK), "repeated");
    assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &hello(Some(OTHER)))), dropped(DropReason::ServerName));
}

#[test]
fn sequence_numbers_count_from_those_that_the_server_has_acknowledged() {
    let mut bed = checking(ServerNameCheck::Drop);
    open(&mut bed);
    // A second SYN, which the server does not see, with another initial number: the hello behind it is not the server's.
    let syn = tcp_at(CLIENT, SITE, SYN, (1000, 0));
    bed.verdict(A, &syn);
    let decoy = segment(CLIENT, SITE, 999, &hello(Some(MINE)));
    assert_eq!(bed.verdict(A, &decoy), Verdict::Forward(UPLINK), "a part of the stream behind a gap");
    assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &hello(Some(OTHER)))), dropped(DropReason::ServerName));
    // Data before the SYN-ACK is dropped, and the connection may go on without.
    let mut bed = checking(ServerNameCheck::Drop);
    assert_eq!(bed.verdict(A, &tcp(CLIENT.0, SITE.0, CLIENT.1, SITE.1, SYN)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &hello(Some(MINE)))), dropped(DropReason::ServerName));
    assert_eq!(bed.verdict(UPLINK, &tcp(SITE.0, CLIENT.0, SITE.1, CLIENT.1, SYN | ACK)), Verdict::Forward(A));
    assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &hello(Some(MINE)))), Verdict::Forward(UPLINK));
}

#[test]
fn a_fragment_of_a_connection_whose_name_is_not_compared_is_dropped() {
    let mut bed = checking(ServerNameCheck::Drop);
    open(&mut bed);
    for fragment in fragments_v4(&segment(CLIENT, SITE, 0, &hello(Some(OTHER))), 3, 64).iter().take(1) {
        assert_eq!(bed.verdict(A, fragment), dropped(DropReason::ServerName));
    }
}

#[test]
fn a_session_whose_reader_is_lost_is_cut_and_one_that_says_nothing_stays_open() {
    let mut bed = checking(ServerNameCheck::Drop);
    open(&mut bed);
    bed.worker.learning.hellos.retain(|_| false);
    assert_eq!(bed.verdict(A, &tcp(CLIENT.0, SITE.0, CLIENT.1, SITE.1, ACK)), Verdict::Forward(UPLINK));
    assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, &hello(Some(MINE)))), dropped(DropReason::ServerName));
}

#[test]
fn other_ports_other_pods_and_rules_without_names_are_not_checked() {
    let mut bed = checking(ServerNameCheck::Drop);
    let plain = b"SSH-2.0-x\r\n";
    for (port, src, dst, dport) in [(A, "10.0.0.1", WEB, 8443), (B, "10.0.0.2", WEB, 443)] {
        assert_eq!(bed.verdict(port, &tcp(src, dst, 7000, dport, SYN)), Verdict::Forward(UPLINK));
        assert_eq!(bed.verdict(port, &segment((src, 7000), (dst, dport), 0, plain)), Verdict::Forward(UPLINK));
    }
    let mut bed = checking(ServerNameCheck::Off);
    open(&mut bed);
    assert_eq!(bed.verdict(A, &segment(CLIENT, SITE, 0, plain)), Verdict::Forward(UPLINK));
    assert_eq!(*bed.worker.name_counters(), NameCounters { matched: 0, mismatched: 0, ..*bed.worker.name_counters() });
}

#[test]
fn datagrams_that_are_not_quic_are_dropped_one_by_one() {
    let mut bed = checking(ServerNameCheck::Drop);
    for _ in 0..2 {
        let packet = datagram(CLIENT, SITE, b"no packet of QUIC");
        assert_eq!(bed.verdict(A, &packet), dropped(DropReason::ServerName));
    }
    let mut bed = checking(ServerNameCheck::Audit);
    assert_eq!(bed.verdict(A, &datagram(CLIENT, SITE, b"no packet of QUIC")), Verdict::Forward(UPLINK));
}
