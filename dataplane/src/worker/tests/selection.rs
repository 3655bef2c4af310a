//! Selection of a burst's packets by a filter: the fast selection equals a test of each packet.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::super::{Chosen, Judgements, Witness};
use super::properties::{Step, steps};
use crate::filter::Filter;
use crate::testbed::*;
use crate::*;

/// Compares both selections for each burst.
struct Comparing<'a> {
    filters: &'a [Filter],
    /// Number of packets that a filter selected, and of translated ones.
    selected: usize,
    translated: usize,
}

impl Witness for Comparing<'_> {
    fn see(&mut self, burst: &mut Judgements<'_>) {
        self.translated += burst.judged().iter().filter(|judged| judged.translation.is_some()).count();
        for filter in self.filters {
            let (mut all, mut dropped) = (Chosen::NONE, Chosen::NONE);
            for (at, judged) in burst.judged().iter().enumerate().filter(|(at, _)| burst.is_selected(*at, filter)) {
                all.add(at);
                if judged.verdict.out_port().is_none() {
                    dropped.add(at);
                }
            }
            assert_eq!((burst.select(filter), burst.select_dropped(filter)), (all, dropped), "{filter:?}");
            all.each(|_| self.selected += 1);
        }
    }
}

/// Filters about the packets of [`steps`], their Services, and addresses that do not occur.
fn filter() -> impl Strategy<Value = Filter> {
    let test = prop::sample::select(vec![
        "tcp",
        "udp",
        "icmp",
        "icmp6",
        "sctp",
        "ip",
        "ip6",
        "port 80",
        "port 40000",
        "src port 80",
        "portrange 81-90",
        "host 10.0.0.1",
        "src host 10.0.0.2",
        "net 10.0.0.0/8",
        "dst net 10.0.0.0/30",
        "host fd00::1",
        "net fd00::/16",
        "host 10.96.0.1",
        "port 8080",
        "net 10.96.0.0/12",
        "host 203.0.113.77",
        "port 9",
        "host 8.8.8.8",
        "proto 47",
    ]);
    let tree = test.prop_map(str::to_owned).prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|text| format!("not ({text})")),
            (inner.clone(), inner.clone()).prop_map(|(one, other)| format!("({one}) and ({other})")),
            (inner.clone(), inner).prop_map(|(one, other)| format!("({one}) or ({other})")),
        ]
    });
    let ends = prop::sample::subsequence(vec!["10.0.0.1", "10.0.0.2", "fd00::2", VIP, "203.0.113.77"], 0..4);
    (prop_oneof![tree, Just(String::new())], prop::option::weighted(0.3, ends)).prop_map(|(text, ends)| {
        let filter = Filter::parse(&text).unwrap();
        match ends {
            Some(ends) => filter.with_an_end_in(Arc::new(ends.into_iter().map(ip).collect::<HashSet<_>>())),
            None => filter,
        }
    })
}

/// Judges the steps' frames in bursts, on the fast path where possible.
fn play(steps: &[Step], filters: &[Filter], to_service: bool) -> (usize, usize) {
    let mut bed = Bed::with(SessionConfig::live(1000));
    let mut comparing = Comparing { filters, selected: 0, translated: 0 };
    let services = services(1, &[(VIP, service(&[backend("10.0.0.2", 80)]))]);
    bed.snapshot = bed.snapshot.with_services(Some(Arc::new(services)));
    let opening = [SYN, ACK, ACK].map(|flags| ethernet(A_MAC, 0x0800, &tcp("10.0.0.1", VIP, 40_001, 8080, flags)));
    let opening = opening.iter().filter(|_| to_service).map(|frame| (A, frame));
    let frames = steps.iter().filter(|step| step.link == LinkType::Ethernet).map(|step| (step.in_port, &step.frame));
    // Twice, so that packets hit sessions.
    let frames: Vec<(PortId, &Vec<u8>)> = opening.chain(frames.clone()).chain(frames).collect();
    let mut judged = Vec::new();
    for burst in frames.chunks(70) {
        let received = burst.iter().map(|(port, frame)| Received { frame, wire_len: frame.len(), in_port: *port });
        bed.worker.judge_before(&bed.snapshot, bed.now, received, &mut judged, &mut comparing);
    }
    (comparing.selected, comparing.translated)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_is_found_quickly_is_what_asking_about_each_packet_finds(
        steps in steps(), filters in prop::collection::vec(filter(), 1..12), to_service in any::<bool>(),
    ) {
        let (_, translated) = play(&steps, &filters, to_service);
        prop_assert!(!to_service || translated > 0);
    }
}

#[test]
fn packets_to_a_service_are_selected_by_its_address_and_by_its_endpoints() {
    for (text, packets) in [
        ("host 10.96.0.1 and tcp", 3),
        ("port 8080", 3),
        ("dst host 10.0.0.2 and dst port 80", 3),
        ("host 10.0.0.1", 3),
        ("udp", 0),
        ("host 10.0.0.2 and port 8080", 0),
        ("not host 10.0.0.2", 3),
        ("", 3),
    ] {
        assert_eq!(play(&[], &[Filter::parse(text).unwrap()], true), (packets, 3), "{text}");
    }
}
