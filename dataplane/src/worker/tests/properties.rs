//! Properties of all sequences of packets.

use std::cell::Cell;

use proptest::prelude::*;

use crate::probe::{Probe, ProbeKind};
use crate::testbed::*;
use crate::*;

/// A frame with its port and the seconds since the previous one.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) in_port: PortId,
    pub(super) link: LinkType,
    pub(super) frame: Vec<u8>,
    cut: usize,
    pub(super) wait: u64,
}

const ADDRESSES: [(&str, &str, PortId); 4] = [
    ("10.0.0.1", "fd00::1", A),
    ("10.0.0.2", "fd00::2", B),
    ("8.8.8.8", "2001:db8::8", UPLINK),
    ("192.168.0.1", "fd00:1::1", HOST),
];

/// Packets of few conversations, so that they interact.
fn packet() -> impl Strategy<Value = (Vec<u8>, PortId)> {
    // All combinations of flags, and as often those of a conversation.
    let flags = prop_oneof![0u8..64, prop::sample::select(vec![SYN, SYN | ACK, ACK, FIN | ACK])];
    // All pairs of ends, and as often the two pods, whose packets interact.
    let pair = prop_oneof![(0usize..4, 0usize..4), prop::sample::select(vec![(0, 1), (1, 0)])];
    let packet = (pair, prop::bool::weighted(0.3), 0u8..8, 0u16..3, flags, 0u8..16);
    packet.prop_map(|((from, to), six, what, port, flags, error)| {
        let address = |at: usize| if six { ADDRESSES[at].1 } else { ADDRESSES[at].0 };
        let (src, dst) = (address(from), address(to));
        let kind = [ProbeKind::Tcp, ProbeKind::Udp, ProbeKind::Sctp, ProbeKind::IcmpEcho][usize::from(what % 4)];
        let (sport, dport) = if port == 2 { (80, 40_000) } else { (40_000, 80 + port) };
        let probe = Probe { src: ip(src), dst: ip(dst), kind, sport, dport };
        let mut bytes = if what < 4 { probe.request() } else { probe.reply() }.unwrap();
        if kind == ProbeKind::Tcp {
            set_flags(&mut bytes, flags);
        }
        if error == 0 {
            // An ICMP error about the packet, sent to its source by the destination's side.
            return (error_about(&bytes, dst, src), ADDRESSES[to].2);
        }
        (bytes, ADDRESSES[if what < 4 { from } else { to }].2)
    })
}

/// One packet, or its fragments.
fn frames() -> impl Strategy<Value = Vec<(Vec<u8>, PortId)>> {
    (packet(), 0u8..6, 0u16..3, any::<bool>()).prop_map(|((bytes, port), kind, id, reverse)| {
        let is_v6 = bytes[0] >> 4 == 6;
        if kind > 0 || bytes.len() < if is_v6 { 64 } else { 44 } {
            return vec![(bytes, port)];
        }
        let longer = [&bytes[..], &[0; 24]].concat();
        let parts = if is_v6 { fragments_v6(&longer, id, 24) } else { fragments_v4(&longer, id, 24) };
        let mut parts: Vec<_> = parts.into_iter().map(|f| (f, port)).collect();
        if reverse {
            parts.reverse();
        }
        parts
    })
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let framed = (frames(), any::<bool>(), 0u64..200).prop_map(|(frames, tagged, wait)| {
        let wait = if wait < 190 { 0 } else { wait };
        frames
            .into_iter()
            .map(|(packet, in_port)| {
                let ethertype = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
                let mac = if in_port == A { A_MAC } else { [2, 0, 0, 0, 0, 8] };
                let (link, frame) = match tagged {
                    true => (LinkType::Ethernet, ethernet(mac, ethertype, &packet)),
                    false => (LinkType::Raw, packet),
                };
                Step { in_port, link, frame, cut: usize::MAX, wait }
            })
            .collect::<Vec<_>>()
    });
    proptest::collection::vec(framed, 1..120).prop_map(|list| list.concat())
}

/// Returns the session counters except those that depend on when expired sessions are swept. Checks that every session is accounted for.
pub(super) fn session_counts(worker: &Worker) -> SessionCounters {
    let counts = worker.counters().sessions();
    let ended = counts.expired + counts.recycled + counts.revoked + counts.replaced;
    assert_eq!(counts.created + counts.restored + counts.adopted, ended + worker.sessions_in_use() as u64);
    SessionCounters { expired: 0, ..counts }
}

fn run(
    steps: &[Step],
    sizes: &[usize],
    (capacity, share): (usize, u8),
    change_at: usize,
) -> (Vec<Outcome>, Counters, SessionCounters) {
    let [half_open, pod_share, outside_share] = [share, share / 2, share].map(Percent);
    let mut sessions = SessionConfig { capacity, half_open, pod_share, outside_share, ..SessionConfig::default() };
    sessions.tcp_pickup = change_at.is_multiple_of(2);
    let mut bed = Bed::with(sessions);
    let packets: Vec<Packet<'_>> = steps
        .iter()
        .map(|step| {
            bed.now += step.wait * SECOND;
            let frame = &step.frame[..step.cut.min(step.frame.len())];
            Packet { frame, wire_len: step.frame.len(), link: step.link, in_port: step.in_port, time: bed.now }
        })
        .collect();
    let mut outcomes = vec![Outcome::UNJUDGED; packets.len()];
    let (mut at, mut sizes) = (0, sizes.iter().cycle());
    while at < packets.len() {
        if at >= change_at {
            bed.snapshot = snapshot_with(2, B, Some(OPEN));
        }
        // A burst ends when the snapshot changes.
        let limit = if at < change_at { change_at.min(packets.len()) } else { packets.len() };
        let end = (at + sizes.next().unwrap()).min(limit);
        bed.worker.process(&bed.snapshot, &packets[at..end], &mut outcomes[at..end]);
        at = end;
    }
    let sessions = session_counts(&bed.worker);
    (outcomes, bed.worker.counters().clone(), sessions)
}

#[test]
fn a_burst_has_the_outcomes_of_its_packets_one_by_one() {
    let (hits, news, denies, full) = (Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(0));
    let (parts_v6, quota) = (Cell::new(0), Cell::new(0));
    proptest!(ProptestConfig::with_cases(400), |(
        steps in steps(),
        sizes in proptest::collection::vec(1usize..300, 1..6),
        // A small table is often so full that nothing can make room.
        capacity in prop_oneof![2 => 1usize..3, 1 => 3usize..8, 1 => Just(1000)],
        share in prop_oneof![2 => Just(200u8), 1 => 20u8..100],
        change_at in 0usize..200,
    )| {
        let limits = (capacity, share);
        let (single, single_counts, single_sessions) = run(&steps, &[1], limits, change_at);
        let (burst, burst_counts, burst_sessions) = run(&steps, &sizes, limits, change_at);
        for (at, (one, many)) in single.iter().zip(&burst).enumerate() {
            prop_assert_eq!(one, many, "packet {} of {}", at, steps.len());
        }
        prop_assert!(single_counts.drops().eq(burst_counts.drops()));
        prop_assert_eq!(single_sessions, burst_sessions);
        let is_part_v6 = |step: &Step| {
            let at = if step.link == LinkType::Ethernet { 14 } else { 0 };
            step.frame[at] >> 4 == 6 && step.frame[at + 6] == 44
        };
        let passed = |outcome: &Outcome| outcome.verdict.out_port().is_some();
        parts_v6.set(parts_v6.get() + steps.iter().zip(&single).filter(|(s, o)| is_part_v6(s) && passed(o)).count());
        let count = |verdict| single.iter().filter(|o| o.verdict == Verdict::Drop(verdict)).count();
        denies.set(denies.get() + count(DropReason::PolicyDenied));
        full.set(full.get() + count(DropReason::SessionTableFull));
        quota.set(quota.get() + count(DropReason::SessionQuota));
        hits.set(hits.get() + single.iter().filter(|o| o.session == Some(SessionState::Hit)).count());
        news.set(news.get() + single.iter().filter(|o| o.session == Some(SessionState::New)).count());
    });
    for (what, count) in [
        ("hit", hits),
        ("new", news),
        ("deny", denies),
        ("full", full),
        ("over quota", quota),
        ("passing IPv6 fragment", parts_v6),
    ] {
        assert!(count.get() > 0, "no packet was a {what}");
    }
}

#[test]
fn whatever_bytes_come_every_packet_is_counted_once_and_nothing_panics() {
    let reached = Cell::new([false; DropReason::COUNT]);
    let forwarded = Cell::new(0);
    let edits = proptest::collection::vec((0usize..80, any::<u8>()), 0..4);
    let mutated = (steps(), proptest::collection::vec((edits, 0usize..200), 1..40));
    proptest!(ProptestConfig::with_cases(200), |((mut steps, mutations) in mutated, link in 0usize..40)| {
        for (step, (edits, cut)) in steps.iter_mut().zip(mutations.iter().cycle()) {
            for &(at, value) in edits {
                if let Some(byte) = step.frame.get_mut(at) {
                    *byte = value;
                }
            }
            step.cut = if *cut < 100 { *cut } else { usize::MAX };
            step.link = LinkType::ALL.get(link).copied().unwrap_or(step.link);
        }
        let (outcomes, counters, _) = run(&steps, &[256], (50, 100), 40);
        prop_assert_eq!(counters.received(), outcomes.len() as u64);
        prop_assert_eq!(counters.received(), counters.forwarded() + counters.dropped_in_all());
        prop_assert_eq!(counters.dropped(DropReason::Unjudged), 0);
        let mut seen = reached.get();
        for (reason, count) in counters.drops() {
            seen[reason.index()] |= count > 0;
        }
        reached.set(seen);
        forwarded.set(forwarded.get() + counters.forwarded());
    });
    let distinct = reached.get().iter().filter(|seen| **seen).count();
    assert!(distinct >= 15, "only {distinct} drop reasons were reached");
    assert!(forwarded.get() > 0);
}
