//! DNS answers in IP fragments and behind IPv6 extension headers.

use super::*;
use crate::testbed::{fragments_v4, fragments_v6};

/// The addresses of an answer of about 3 KB. The last one is [`WEB`], at the answer's end.
fn long_answer() -> Vec<String> {
    (0..100).map(|at| format!("198.51.100.{at}")).chain([WEB.to_owned()]).collect()
}

/// Lets pod B send to other pods, as B is the server of the IPv6 addresses and of Services here.
fn bed_with_server_b() -> Bed {
    let mut bed = bed();
    let mut ports = bed.snapshot.ports().to_vec();
    ports[B.index()].egress = Some(OPEN);
    bed.snapshot = Snapshot::new(3, ports, bed.snapshot.tables().to_vec(), bed.snapshot.routes().clone())
        .unwrap()
        .with_names(Some(Arc::new(bed.snapshot.names().unwrap().clone())));
    bed
}

/// Sends fragments that arrive at `port`. Pod A may connect to [`WEB`] after the last one and no earlier.
fn opens_with_the_last(bed: &mut Bed, port: PortId, fragments: &[Vec<u8>]) {
    assert!(fragments.len() > 2);
    for (sport, fragment) in (1..).zip(fragments) {
        assert!(!connects(bed, sport, WEB), "before fragment {sport}");
        assert_eq!(bed.verdict(port, fragment), Verdict::Forward(A));
    }
    assert!(connects(bed, 100, WEB));
    assert_eq!(bed.worker.name_counters().incomplete, 0);
}

#[test]
fn an_answer_in_ipv4_fragments_counts_before_its_last_fragment_is_forwarded() {
    for (from, order) in [(0, [1, 2, 3]), (10, [3, 1, 2])] {
        let mut bed = bed();
        let (client, server) = (("10.0.0.1", 4000), (SERVER, 53));
        assert_eq!(bed.verdict(A, &datagram(client, server, &query(1, "www.example.com"))), Verdict::Forward(UPLINK));
        let all = long_answer();
        let records: Vec<_> = all.iter().map(|address| ("www.example.com", 60, address.as_str())).collect();
        let mut fragments =
            fragments_v4(&datagram(server, client, &answer(1, "www.example.com", &records)), from, 1000);
        let first = fragments.remove(0);
        let fragments: Vec<_> = [first].into_iter().chain(order.map(|at| fragments[at - 1].clone())).collect();
        opens_with_the_last(&mut bed, UPLINK, &fragments);
        assert!(connects(&mut bed, 101, "198.51.100.0") && connects(&mut bed, 102, "198.51.100.99"));
    }
}

#[test]
fn an_answer_in_ipv6_fragments_counts_and_so_does_one_behind_extension_headers() {
    let (client, server) = (("fd00::1", 4000), ("fd00::2", 53));
    let all = long_answer();
    let records: Vec<_> = all.iter().map(|address| ("www.example.com", 60, address.as_str())).collect();
    let mut bed = bed_with_server_b();
    assert_eq!(bed.verdict(A, &datagram(client, server, &query(1, "www.example.com"))), Verdict::Forward(B));
    let whole = datagram(server, client, &answer(1, "www.example.com", &records));
    opens_with_the_last(&mut bed, B, &fragments_v6(&whole, 7, 1000));

    let mut bed = bed_with_server_b();
    let extended = |packet: &[u8]| {
        let mut extended = [&packet[..40], &[packet[6], 0, 1, 4, 0, 0, 0, 0], &packet[40..]].concat();
        let len = u16::try_from(extended.len() - 40).unwrap();
        extended[4..6].copy_from_slice(&len.to_be_bytes());
        extended[6] = 60;
        extended
    };
    let ask = extended(&datagram(client, server, &query(1, "www.example.com")));
    assert_eq!(bed.verdict(A, &ask), Verdict::Forward(B));
    let reply = extended(&datagram(server, client, &answer(1, "www.example.com", &records)));
    assert_eq!(bed.verdict(B, &reply), Verdict::Forward(A));
    assert!(connects(&mut bed, 1, WEB));
}

#[test]
fn a_fragmented_answer_of_a_server_behind_a_service_counts() {
    let mut bed = bed_with_server_b();
    let mut services = services(1, &[(VIP, service(&[backend("10.0.0.2", 53)]))]);
    services.set_vip(Vip { address: ip(VIP), protocol: 17, port: 53 }, Some(VipEntry { port: 0, ..ENTRY }));
    bed.snapshot = bed.snapshot.with_services(Some(Arc::new(services)));
    let (client, server) = (("10.0.0.1", 4000), ("10.0.0.2", 53));
    let ask = datagram(client, (VIP, 53), &query(1, "www.example.com"));
    assert_eq!(bed.verdict(A, &ask), Verdict::Forward(B));
    let all = long_answer();
    let records: Vec<_> = all.iter().map(|address| ("www.example.com", 60, address.as_str())).collect();
    let whole = datagram(server, client, &answer(1, "www.example.com", &records));
    opens_with_the_last(&mut bed, B, &fragments_v4(&whole, 7, 1000));
}

#[test]
fn a_forged_fragment_cannot_replace_part_of_an_answer() {
    let mut bed = bed();
    let (client, server) = (("10.0.0.1", 4000), (SERVER, 53));
    assert_eq!(bed.verdict(A, &datagram(client, server, &query(1, "www.example.com"))), Verdict::Forward(UPLINK));
    let all = long_answer();
    let records: Vec<_> = all.iter().map(|address| ("www.example.com", 60, address.as_str())).collect();
    let whole = datagram(server, client, &answer(1, "www.example.com", &records));
    let mut forged = whole.clone();
    let end = forged.len();
    forged[end - 4..].copy_from_slice(&[203, 0, 113, 66]);
    let (true_ones, forged) = (fragments_v4(&whole, 7, 1000), fragments_v4(&forged, 7, 1000));
    assert_eq!(bed.verdict(UPLINK, &true_ones[0]), Verdict::Forward(A));
    let last = true_ones.len() - 1;
    for fragment in &true_ones[1..=last] {
        assert_eq!(bed.verdict(UPLINK, fragment), Verdict::Forward(A));
    }
    // The datagram is complete, so a later fragment of the same identification belongs to none.
    assert_eq!(bed.verdict(UPLINK, &forged[last]), dropped(DropReason::FragmentWithoutFirst));
    assert!(connects(&mut bed, 1, WEB) && !connects(&mut bed, 2, "203.0.113.66"));
}
