use super::*;

fn key(id: u32) -> DatagramKey {
    let any = IpAddr::from([10, 0, 0, 1]);
    DatagramKey { src: any, dst: any, id, protocol: Some(17), in_port: PortId(0) }
}

fn part(start: u32, end: u32, more: bool) -> Fragment {
    Fragment { id: 0, start, end, more }
}

fn table(capacity: usize) -> FragmentTable {
    let (pod_share, outside_share) = (Percent::ALL, Percent::ALL);
    let config = FragmentConfig { capacity, lifetime: 30, pod_share, outside_share };
    FragmentTable::new(config, RandomState::with_seeds(1, 2, 3, 4))
}

/// Returns the length of the longest queue.
fn queued(table: &FragmentTable) -> usize {
    let queues = [&table.all, &table.ports[0]].into_iter();
    queues.map(|queues| queues.begun.len().max(queues.dropped.len())).max().unwrap()
}

const PASSED: FirstFragment = FirstFragment {
    verdict: Verdict::Forward(PortId(1)),
    decision: None,
    generation: 1,
    transport_ports: (0, 0),
    translated: None,
    elsewhere: None,
};

fn begun() -> FragmentTable {
    let mut table = table(4);
    table.begin(key(1), PortKind::Pod, part(0, 8, true), 0).unwrap();
    table.settle(&key(1), PASSED);
    table
}

#[test]
fn a_datagram_whose_first_fragment_is_not_judged_yet_passes_nowhere() {
    let mut table = table(4);
    table.begin(key(1), PortKind::Pod, part(0, 8, true), 0).unwrap();
    let first = table.inherit(&key(1), part(8, 16, true), 0).unwrap();
    assert_eq!(first.verdict, Verdict::Drop(DropReason::Unjudged));
}

#[test]
fn a_complete_datagram_is_forgotten_and_its_identification_may_come_again() {
    let mut table = begun();
    assert_eq!(table.inherit(&key(1), part(16, 20, false), 1), Ok(PASSED));
    assert_eq!(table.inherit(&key(1), part(8, 16, true), 1), Ok(PASSED), "out of order");
    assert_eq!(table.inherit(&key(1), part(8, 16, true), 1), Err(DropReason::FragmentWithoutFirst));
    assert_eq!(table.begin(key(1), PortKind::Pod, part(0, 8, true), 1), Ok(()));
}

#[test]
fn the_same_fragment_again_is_dropped_alone() {
    let mut table = begun();
    table.inherit(&key(1), part(8, 16, true), 1).unwrap();
    assert_eq!(table.inherit(&key(1), part(8, 16, true), 1), Err(DropReason::FragmentOverlap));
    assert_eq!(table.begin(key(1), PortKind::Pod, part(0, 8, true), 1), Err(DropReason::FragmentOverlap));
    assert_eq!(table.inherit(&key(1), part(16, 24, true), 1), Ok(PASSED));
}

#[test]
fn any_other_overlap_spoils_the_datagram() {
    for bad in [part(8, 24, true), part(0, 16, true), part(8, 9, false), part(12, 20, true)] {
        let mut table = begun();
        table.inherit(&key(1), part(8, 16, true), 1).unwrap();
        assert_eq!(table.inherit(&key(1), bad, 1), Err(DropReason::FragmentOverlap), "{bad:?}");
        assert_eq!(table.inherit(&key(1), part(24, 32, true), 1), Err(DropReason::FragmentOverlap), "{bad:?}");
    }
}

#[test]
fn nothing_lies_beyond_the_last_fragment() {
    for (first, then) in [
        (part(16, 20, false), part(24, 32, true)),
        (part(24, 32, true), part(8, 12, false)),
        (part(16, 20, false), part(24, 28, false)),
    ] {
        let mut table = begun();
        table.inherit(&key(1), first, 1).unwrap();
        assert_eq!(table.inherit(&key(1), then, 1), Err(DropReason::FragmentMalformed), "{then:?}");
        assert_eq!(table.inherit(&key(1), part(8, 16, true), 1), Err(DropReason::FragmentOverlap), "spoiled");
    }
}

#[test]
fn a_datagram_of_more_than_64_fragments_is_spoiled() {
    let mut table = begun();
    for n in 1..64 {
        assert_eq!(table.inherit(&key(1), part(n * 8, n * 8 + 8, true), 1), Ok(PASSED));
    }
    assert_eq!(table.inherit(&key(1), part(512, 520, true), 1), Err(DropReason::FragmentLimit));
    assert_eq!(table.inherit(&key(1), part(520, 528, false), 1), Err(DropReason::FragmentOverlap));
}

#[test]
fn memory_stays_bounded_when_datagrams_complete_and_begin_again_at_one_instant() {
    let mut table = table(4);
    for _ in 0..1000 {
        table.begin(key(1), PortKind::Pod, part(0, 8, true), 5).unwrap();
        table.inherit(&key(1), part(8, 16, false), 5).unwrap();
    }
    assert!(queued(&table) <= 9 && table.spare.len() <= 4 && table.datagrams.is_empty());
}

#[test]
fn a_datagram_does_not_inherit_the_age_of_an_earlier_one_with_its_key() {
    let mut table = begun();
    table.inherit(&key(1), part(8, 16, false), 20).unwrap();
    table.begin(key(1), PortKind::Pod, part(0, 8, true), 20).unwrap();
    table.settle(&key(1), PASSED);
    assert_eq!(table.inherit(&key(1), part(8, 16, true), 49), Ok(PASSED));
    assert_eq!(table.inherit(&key(1), part(16, 24, true), 50), Err(DropReason::FragmentWithoutFirst));
}

#[test]
fn memory_stays_bounded_when_dropped_datagrams_complete_and_begin_again_at_one_instant() {
    let mut table = table(4);
    for _ in 0..1000 {
        table.begin(key(1), PortKind::Pod, part(0, 8, true), 5).unwrap();
        table.settle(&key(1), FirstFragment { verdict: Verdict::Drop(DropReason::PolicyDenied), ..PASSED });
        table.inherit(&key(1), part(8, 16, false), 5).unwrap();
    }
    assert!(queued(&table) <= 9 && table.datagrams.is_empty());
}
