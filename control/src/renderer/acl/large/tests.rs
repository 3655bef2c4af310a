use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bulkhead_classifier::{
    Action, AddressSet, Addresses, Key, OriginId, PortRange, Service, ServiceSet, Verdict, linear, protocol,
};
use proptest::prelude::*;

use super::*;

/// Addresses of both families, none adjacent.
fn address(at: u32) -> IpAddr {
    if at.is_multiple_of(3) {
        Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(2 * at)).into()
    } else {
        Ipv4Addr::from(0x0a00_0000 + 2 * at).into()
    }
}

/// More intervals than the classifier copies with each change, so that it collects exceptions and a build is due.
const MEMBERS: u32 = 4_000;

/// The contents of a list: the members of a large set, and the ports of the rules before and after it.
#[derive(Clone, Debug)]
struct List {
    members: BTreeSet<u32>,
    ports: Vec<u16>,
}

impl List {
    fn new() -> Self {
        Self { members: (0..MEMBERS).collect(), ports: vec![80] }
    }

    fn rules(&self) -> Vec<Rule> {
        let set: Arc<AddressSet> = Arc::new(self.members.iter().map(|&at| address(at)).collect());
        let services = |port: u16| -> ServiceSet {
            [Service { protocols: (protocol::TCP, protocol::TCP), ports: PortRange::one(port) }].into_iter().collect()
        };
        let rule = |(at, &port): (u32, &u16)| {
            let action = if at.is_multiple_of(2) { Action::Allow } else { Action::Deny };
            let src = Addresses::Set(set.clone());
            Rule { src, services: services(port).into(), ..Rule::any(action, OriginId(u32::from(port))) }
        };
        let rules = (0..).zip(&self.ports).map(rule);
        rules.chain([Rule::any(Action::Deny, OriginId(1))]).collect()
    }

    fn flip(&mut self, at: u32) {
        if !self.members.remove(&at) {
            self.members.insert(at);
        }
    }
}

fn key(at: u32, port: u16) -> Key {
    let src = address(at);
    let dst: IpAddr = if src.is_ipv4() { "192.0.2.1" } else { "2001:db8::1" }.parse().unwrap();
    Key::new(src, dst, protocol::TCP, 40_000, port)
}

fn scan(rules: &[Rule], key: &Key) -> Verdict {
    linear::scan(rules.iter(), key)
}

#[test]
fn addresses_that_come_and_go_compile_nothing_in_the_events_thread() {
    let (mut list, mut beside) = (List::new(), Beside::new(false));
    let mut tables = Compiled::of(list.rules(), || None, &mut beside).unwrap();
    assert_eq!(beside.work, TableWork { built: 1, ..TableWork::default() });
    for at in 0..1_000 {
        list.flip(at * 7 % (2 * MEMBERS));
        let rules = list.rules();
        tables = Compiled::of(rules.clone(), || Some(&tables), &mut beside).unwrap();
        beside.begin([(Owner::Exit, &tables)].into_iter());
        beside.wait(|_| Some(&mut tables));
        for probe in [at * 7 % (2 * MEMBERS), at] {
            assert_eq!(tables.tables.lookup(&key(probe, 80)), scan(&rules, &key(probe, 80)));
        }
    }
    assert_eq!((beside.work.built, beside.work.followed), (1, 1_000), "one event compiled a large table");
    assert!(beside.work.beside > 7, "{:?}", beside.work);
    assert!(!tables.tables.describe().contains("scan"), "{}", tables.tables.describe());
}

#[test]
fn a_build_serves_the_tables_that_its_owner_has_now_unless_they_are_younger() {
    for (more, served) in [(5, true), (0, true)].into_iter().chain([(u32::MAX, false)]) {
        let (mut list, mut beside) = (List::new(), Beside::new(false));
        let mut tables = Compiled::of(list.rules(), || None, &mut beside).unwrap();
        let mut follow = |tables: &mut Compiled, beside: &mut Beside, at| {
            list.flip(at);
            *tables = Compiled::of(list.rules(), || Some(&*tables), beside).unwrap();
            list.rules()
        };
        for at in 0..REBUILD_AT {
            follow(&mut tables, &mut beside, at);
        }
        let pod = Owner::Pod(PodName::new("x", "a"));
        beside.begin([(pod.clone(), &tables)].into_iter());
        assert_eq!(beside.work.beside, 1);
        let mut last = follow(&mut tables, &mut beside, 0);
        if more == u32::MAX {
            tables = Compiled::of(last.clone(), || None, &mut beside).unwrap();
        } else {
            last = (0..more).map(|at| follow(&mut tables, &mut beside, at)).last().unwrap_or(last);
        }
        beside.wait(|owner| (*owner == pod).then_some(&mut tables));
        assert_eq!(tables.large.as_ref().unwrap().rebuilt.is_some(), served);
        let next = Compiled::of(last.clone(), || Some(&tables), &mut beside).unwrap();
        // Tables of an unchanged list have no change to follow.
        let age = if served { more + 2 } else { 0 };
        assert_eq!(next.large.as_ref().map(|large| large.age), Some(age));
        for probe in 0..2 * MEMBERS {
            assert_eq!(next.tables.lookup(&key(probe, 80)), scan(&last, &key(probe, 80)));
        }
    }
}

#[test]
fn one_build_goes_on_at_a_time_and_one_that_nobody_waits_for_is_given_up() {
    let (mut list, mut beside) = (List::new(), Beside::new(false));
    let mut tables = Compiled::of(list.rules(), || None, &mut beside).unwrap();
    for at in 0..REBUILD_AT {
        beside.begin([(Owner::Exit, &tables)].into_iter());
        assert_eq!(beside.work.beside, 0, "after {at} changes");
        list.flip(at);
        tables = Compiled::of(list.rules(), || Some(&tables), &mut beside).unwrap();
    }
    beside.begin([(Owner::Exit, &tables)].into_iter());
    beside.begin([(Owner::Exit, &tables)].into_iter());
    assert_eq!(beside.work.beside, 1);
    let cancelled = beside.running.as_ref().unwrap()._cancel.0.clone();
    drop(beside);
    assert!(cancelled.load(Ordering::Relaxed));
}

#[test]
fn where_many_nodes_tables_are_kept_the_very_large_ones_are_scanned() {
    let mut list = List::new();
    list.ports = (0..6).collect();
    for (scans, is_scan) in [(true, true), (false, false)] {
        let mut beside = Beside::new(scans);
        let first = Compiled::of(list.rules(), || None, &mut beside).unwrap();
        let tables = Compiled::of(list.rules(), || Some(&first), &mut beside).unwrap().tables;
        assert_eq!(tables.describe().contains("scan"), is_scan, "{}", tables.describe());
        assert_eq!(tables.lookup(&key(1, 0)), scan(&list.rules(), &key(1, 0)));
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Members are added or removed.
    Flip(Vec<u32>),
    /// A rule is added or removed.
    Port(u16),
    /// The background build is finished.
    Wait,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        30 => prop::collection::vec(0..2 * MEMBERS, 1..8).prop_map(Step::Flip),
        1 => prop::collection::vec(0..2 * MEMBERS, 100..300).prop_map(Step::Flip),
        2 => (80u16..90).prop_map(Step::Port),
        2 => Just(Step::Wait),
    ];
    prop::collection::vec(step, 40..100)
}

#[test]
fn lookups_over_histories_equal_the_scan() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(24));
    let (allowed, denied, reached) = (Cell::new(0_u64), Cell::new(0_u64), Cell::new(TableWork::default()));
    let run = |(steps, probes): (Vec<Step>, Vec<u32>)| {
        let (mut list, mut beside) = (List::new(), Beside::new(false));
        let mut tables = Compiled::of(list.rules(), || None, &mut beside).unwrap();
        for step in &steps {
            match step {
                Step::Flip(members) => members.iter().for_each(|&at| list.flip(at)),
                Step::Port(port) => match list.ports.iter().position(|one| one == port) {
                    Some(at) => drop(list.ports.remove(at)),
                    None => list.ports.insert(usize::from(*port) % (list.ports.len() + 1), *port),
                },
                Step::Wait => beside.wait(|_| Some(&mut tables)),
            }
            let rules = list.rules();
            tables = Compiled::of(rules.clone(), || Some(&tables), &mut beside).unwrap();
            beside.begin([(Owner::Exit, &tables)].into_iter());
            prop_assert!(*tables.tables.rules() == *rules);
            let changed = if let Step::Flip(members) = step { members.clone() } else { Vec::new() };
            for &at in probes.iter().chain(changed.iter().take(8)) {
                for &port in list.ports.iter().take(2).chain(&[79]) {
                    let (found, truth) = (tables.tables.lookup(&key(at, port)), scan(&rules, &key(at, port)));
                    prop_assert_eq!(found, truth, "address {} port {}", at, port);
                    let count = if truth.is_allow() { &allowed } else { &denied };
                    count.set(count.get() + 1);
                }
            }
        }
        reached.set(reached.get().plus(beside.work));
        Ok(())
    };
    runner.run(&(steps(), prop::collection::vec(0..2 * MEMBERS, 20)), run).unwrap();
    let work = reached.get();
    assert!(work.followed > 100 && work.built > 24 && work.beside > 5, "{work:?}");
    assert!(allowed.get() > 1_000 && denied.get() > 1_000);
}
