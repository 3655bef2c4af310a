//! Later fragments get the first fragment's verdict.

use super::dropped;
use crate::testbed::*;
use crate::*;

/// Returns a UDP datagram of 48 bytes from A to B in fragments of 16 bytes.
fn pieces(dport: u16, id: u16) -> Vec<Vec<u8>> {
    let mut payload = vec![0x9c, 0x40];
    payload.extend(dport.to_be_bytes());
    payload.extend([0, 48, 0, 0]);
    payload.extend([7; 40]);
    fragments_v4(&v4("10.0.0.1", "10.0.0.2", 17, 64, &payload), id, 16)
}

#[test]
fn later_fragments_follow_a_first_one_that_passes() {
    let mut bed = Bed::new();
    let verdicts: Vec<_> = pieces(80, 1).iter().map(|piece| bed.send(A, piece)).collect();
    assert_eq!(verdicts[0].session, Some(SessionState::New));
    for later in &verdicts[1..] {
        assert_eq!((later.verdict, later.session), (Verdict::Forward(B), Some(SessionState::Hit)));
        assert_eq!(later.decision, verdicts[0].decision);
    }
}

#[test]
fn later_fragments_share_the_reason_of_a_first_one_that_is_dropped() {
    let mut bed = Bed::new();
    for piece in pieces(81, 1) {
        let outcome = bed.send(A, &piece);
        assert_eq!(outcome.verdict, dropped(DropReason::PolicyDenied));
        assert!(outcome.decision.is_some());
    }
}

#[test]
fn a_later_fragment_without_a_first_one_is_dropped() {
    let mut bed = Bed::new();
    let pieces = pieces(80, 1);
    assert_eq!(bed.verdict(A, &pieces[1]), dropped(DropReason::FragmentWithoutFirst));
    bed.send(A, &pieces[0]);
    assert_eq!(bed.verdict(A, &pieces[1]), Verdict::Forward(B));
    let other_id = &self::pieces(80, 2)[2];
    assert_eq!(bed.verdict(A, other_id), dropped(DropReason::FragmentWithoutFirst));
}

#[test]
fn fragments_wait_for_their_first_one_only_so_long() {
    let mut bed = Bed::new();
    let pieces = pieces(80, 1);
    bed.send(A, &pieces[0]);
    bed.wait(29);
    assert_eq!(bed.verdict(A, &pieces[1]), Verdict::Forward(B));
    bed.wait(1);
    assert_eq!(bed.verdict(A, &pieces[2]), dropped(DropReason::FragmentWithoutFirst));
}

#[test]
fn rfc_5722_an_overlap_spoils_the_datagram() {
    let mut bed = Bed::new();
    let pieces = pieces(80, 1);
    bed.send(A, &pieces[0]);
    let mut overlapping = pieces[1].clone();
    overlapping[6..8].copy_from_slice(&0x2001u16.to_be_bytes());
    assert_eq!(bed.verdict(A, &overlapping), dropped(DropReason::FragmentOverlap));
    assert_eq!(bed.verdict(A, &pieces[1]), dropped(DropReason::FragmentOverlap));
    assert_eq!(bed.verdict(A, &pieces[2]), dropped(DropReason::FragmentOverlap));
}

#[test]
fn rfc_3128_a_second_first_fragment_does_not_get_in() {
    let mut bed = Bed::new();
    let allowed = pieces(80, 1);
    bed.send(A, &allowed[0]);
    let other = pieces(22, 1);
    assert_eq!(bed.verdict(A, &other[0]), dropped(DropReason::FragmentOverlap));
    // Nor does a fragment at offset 8, which overlaps the bytes behind the ports.
    let mut over_header = allowed[2].clone();
    over_header[6..8].copy_from_slice(&1u16.to_be_bytes());
    assert_eq!(bed.verdict(A, &over_header), dropped(DropReason::FragmentOverlap));
}

#[test]
fn rfc_1858_a_first_fragment_without_its_header_is_dropped_and_so_is_the_rest() {
    let mut bed = Bed::new();
    let segment = tcp("10.0.0.1", "10.0.0.2", 40_000, 80, SYN);
    let tiny = fragments_v4(&segment, 1, 8);
    assert_eq!(bed.verdict(A, &tiny[0]), dropped(DropReason::FragmentTiny));
    assert_eq!(bed.verdict(A, &tiny[1]), dropped(DropReason::FragmentWithoutFirst));
}

#[test]
fn fragments_in_the_name_of_another_pod_are_spoofed_like_whole_packets() {
    let mut bed = Bed::new();
    let pieces = pieces(80, 1);
    bed.send(A, &pieces[0]);
    assert_eq!(bed.verdict(B, &pieces[1]), dropped(DropReason::SpoofedSource));
    assert_eq!(bed.verdict(UPLINK, &pieces[1]), dropped(DropReason::SpoofedSource));
}

#[test]
fn fragments_of_a_whole_burst_are_judged_in_order() {
    let mut bed = Bed::new();
    let frames: Vec<Vec<u8>> = (0..90).flat_map(|n| pieces(if n % 2 == 0 { 80 } else { 81 }, n)).collect();
    let packets: Vec<Packet<'_>> = frames
        .iter()
        .map(|frame| Packet { frame, wire_len: frame.len(), link: LinkType::Raw, in_port: A, time: 5 })
        .collect();
    let mut outcomes = vec![Outcome::UNJUDGED; packets.len()];
    bed.worker.process(&bed.snapshot, &packets, &mut outcomes);
    for (n, outcome) in outcomes.iter().enumerate() {
        let allowed = (n / 3) % 2 == 0;
        let expected = if allowed { Verdict::Forward(B) } else { dropped(DropReason::PolicyDenied) };
        assert_eq!(outcome.verdict, expected, "piece {n}");
    }
}

#[test]
fn fragments_of_an_older_generation_are_not_let_through() {
    let mut bed = Bed::new();
    let pieces = pieces(80, 1);
    bed.send(A, &pieces[0]);
    bed.snapshot = snapshot_with(2, B, Some(CLOSED));
    assert_eq!(bed.verdict(A, &pieces[1]), dropped(DropReason::FragmentWithoutFirst));
}

#[test]
fn ipv6_fragments_are_one_datagram_whatever_next_header_the_later_ones_claim() {
    let mut bed = Bed::new();
    let first = [&[17, 0, 0, 1, 0, 0, 0, 5][..], &[0x9c, 0x40, 0, 80, 0, 16, 0, 0]].concat();
    assert_eq!(bed.verdict(A, &v6("fd00::1", "fd00::2", 44, 64, &first)), Verdict::Forward(B));
    let later = [&[6, 0, 0, 8, 0, 0, 0, 5][..], &[0; 8]].concat();
    assert_eq!(bed.verdict(A, &v6("fd00::1", "fd00::2", 44, 64, &later)), Verdict::Forward(B));
}

#[test]
fn a_full_fragment_table_forgets_the_datagram_that_began_first() {
    let fragments = FragmentConfig { capacity: 2, pod_share: Percent::ALL, ..FragmentConfig::default() };
    let mut bed = Bed::new();
    bed.worker = Worker::with_fixed_seed(WorkerConfig { fragments, ..WorkerConfig::default() });
    for id in 1..=3 {
        assert_eq!(bed.verdict(A, &pieces(80, id)[0]), Verdict::Forward(B));
    }
    assert_eq!(bed.verdict(A, &pieces(80, 1)[1]), dropped(DropReason::FragmentWithoutFirst));
    for id in 2..=3 {
        for piece in &pieces(80, id)[1..] {
            assert_eq!(bed.verdict(A, piece), Verdict::Forward(B));
        }
    }
}

#[test]
fn datagrams_that_are_never_completed_do_not_stop_those_that_are() {
    let fragments = FragmentConfig { capacity: 8, pod_share: Percent::ALL, ..FragmentConfig::default() };
    let mut bed = Bed::new();
    bed.worker = Worker::with_fixed_seed(WorkerConfig { fragments, ..WorkerConfig::default() });
    for id in 1..=100 {
        bed.send(A, &pieces(80, 1000 + id)[0]);
        for piece in &pieces(80, id) {
            assert_eq!(bed.verdict(A, piece), Verdict::Forward(B));
        }
    }
}

#[test]
fn without_room_for_any_datagram_no_fragment_passes() {
    let fragments = FragmentConfig { capacity: 0, pod_share: Percent::ALL, ..FragmentConfig::default() };
    let mut bed = Bed::new();
    bed.worker = Worker::with_fixed_seed(WorkerConfig { fragments, ..WorkerConfig::default() });
    assert_eq!(bed.verdict(A, &pieces(80, 1)[0]), dropped(DropReason::FragmentTableFull));
}

#[test]
fn denied_datagrams_do_not_stand_in_the_way_of_an_allowed_one() {
    let mut bed = Bed::new();
    // As many datagrams as a pod may have.
    for id in 0..1024 {
        assert_eq!(bed.verdict(A, &pieces(81, id)[0]), dropped(DropReason::PolicyDenied));
    }
    for piece in pieces(80, 5000) {
        assert_eq!(bed.verdict(A, &piece), Verdict::Forward(B));
    }
    // The oldest datagram made room, so none of its fragments pass.
    assert_eq!(bed.verdict(A, &pieces(81, 0)[1]), dropped(DropReason::FragmentWithoutFirst));
    assert_eq!(bed.verdict(A, &pieces(81, 1)[1]), dropped(DropReason::PolicyDenied));
}

#[test]
fn a_port_over_its_share_of_the_fragment_memory_loses_its_own_oldest_and_nobody_elses() {
    let mut bed = Bed::new();
    let from_b = |id| {
        let payload = [&[0x9c, 0x40, 0, 53, 0, 48, 0, 0][..], &[7; 40]].concat();
        fragments_v4(&v4("10.0.0.2", "10.0.0.1", 17, 64, &payload), id, 16)
    };
    for id in 0..10 {
        assert_eq!(bed.verdict(B, &from_b(id)[0]), Verdict::Forward(A));
    }
    // Twice the capacity of the fragment table.
    for id in 0..8192 {
        assert_eq!(bed.verdict(A, &pieces(80, id)[0]), Verdict::Forward(B));
    }
    for id in 0..10 {
        for piece in &from_b(id)[1..] {
            assert_eq!(bed.verdict(B, piece), Verdict::Forward(A));
        }
    }
    assert_eq!(bed.verdict(A, &pieces(80, 8192 - 1025)[1]), dropped(DropReason::FragmentWithoutFirst));
    assert_eq!(bed.verdict(A, &pieces(80, 8192 - 1024)[1]), Verdict::Forward(B), "a quarter is its share");
}
