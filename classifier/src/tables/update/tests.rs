//! Rules removed from a compiled list, and addresses that move in it.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::tests::{choices, key, rule};
use super::*;
use crate::engine::Choice;
use crate::simd::Level;
use crate::{Action, AddressSet, Addresses, Key, OriginId, linear};

/// Rules behind a catch-all match nothing, so they are not compiled. They must take effect once it is removed.
#[test]
fn rules_behind_one_for_everything_count_once_it_is_gone() {
    let rules = vec![
        rule("10.9.0.0/24", 80, Action::Allow, 1),
        Rule::any(Action::Allow, OriginId(2)),
        rule("10.0.0.0/24", 80, Action::Allow, 3),
        Rule::any(Action::Deny, OriginId(4)),
    ];
    for choice in choices() {
        let tables = Tables::build_as(rules.clone(), &BuildOptions::default(), choice).unwrap();
        let tables = tables.update_as(&[Change::Remove { at: 1 }], &BuildOptions::default(), 0).unwrap();
        for (src, expected) in [("10.9.0.1", Some(0)), ("10.0.0.1", Some(1)), ("10.1.0.1", Some(2))] {
            assert_eq!(tables.lookup(&key(src, 80)).rule(), expected, "{src}, {}", tables.describe());
        }
    }
}

/// An address has left a rule's set, and another rule with the same set is removed.
#[test]
fn a_point_that_left_its_set_does_not_stand_for_its_class() {
    let rules = vec![rule("10.0.0.0/30", 80, Action::Deny, 1), rule("10.0.0.0/30", 80, Action::Allow, 2)];
    let three: AddressSet =
        ["10.0.0.0/31", "10.0.0.2/32"].iter().map(|net| net.parse::<ipnet::IpNet>().unwrap()).collect();
    let changes =
        [Change::Replace { at: 1, rule: Rule { src: three.into(), ..rules[1].clone() } }, Change::Remove { at: 0 }];
    for choice in choices() {
        let tables = Tables::build_as(rules.clone(), &BuildOptions::default(), choice).unwrap();
        let tables = tables.update_as(&changes, &BuildOptions::default(), 0).unwrap();
        for (src, expected) in [("10.0.0.0", Some(0)), ("10.0.0.2", Some(0)), ("10.0.0.3", None)] {
            assert_eq!(tables.lookup(&key(src, 80)).rule(), expected, "{src}, {}", tables.describe());
        }
    }
}

/// Returns a pod's table: `pods` sources times `ports`, and one rule for all sources.
fn pod(pods: u32, ports: u16) -> Vec<Rule> {
    let one = |at: u32| {
        let port = 1000 + u16::try_from(at).unwrap() % ports;
        let src = std::net::Ipv4Addr::from(0x0a01_0000 + at / u32::from(ports));
        rule(&format!("{src}/32"), port, if at.is_multiple_of(3) { Action::Deny } else { Action::Allow }, at)
    };
    let mut rules: Vec<Rule> = (0..pods * u32::from(ports)).map(one).collect();
    rules.push(rule("10.1.0.0/26", 1000, Action::Allow, 9000));
    rules.push(rule("10.1.0.0/24", 1001, Action::Deny, 9001));
    rules.push(rule("10.0.0.0/8", 1000, Action::Deny, 9002));
    rules
}

fn keys_of_pod(pods: u32, ports: u16) -> Vec<Key> {
    let src = |at: u32| std::net::Ipv4Addr::from(0x0a01_0000 + at).to_string();
    (0..pods + 2).flat_map(|at| (999..1001 + ports).step_by(3).map(move |port| key(&src(at), port))).collect()
}

#[test]
fn a_rule_leaves_a_cross_product_without_a_build() {
    let mut list = pod(60, 40);
    let before = Tables::build(list.clone()).unwrap();
    assert!(before.describe().contains("cross product"), "{}", before.describe());
    let keys = keys_of_pod(60, 40);
    let mut tables = before.clone();
    // Single rules, rules of many cells (the last ones), and neighbours that hid each other.
    let removed = [0, 0, 700, 701, 1500, 2395, 2396, 2395, 1];
    for at in removed {
        list.remove(at);
        tables = tables.update(&[Change::Remove { at }], &BuildOptions::default()).unwrap();
        assert!(tables.compiled.as_ref().unwrap().is(before.compiled.as_ref().unwrap()), "built again without {at}");
        assert!(tables.bytes() <= before.bytes());
        for level in Level::available() {
            let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
            tables.clone().at(level).lookup_batch(&keys, &mut verdicts);
            for (key, verdict) in keys.iter().zip(verdicts) {
                assert_eq!(verdict, linear::scan(&list, key), "{key:?} without {at}");
                assert_eq!(tables.lookup(key), verdict);
            }
        }
    }
    // A lookup costs as much as before, and the previous tables still give their answers.
    assert_eq!(tables.worst_case(), before.worst_case());
    let full = pod(60, 40);
    assert!(keys.iter().all(|key| before.lookup(key) == linear::scan(&full, key)));
}

/// The search for the rule behind a removed one is bounded: if the removed rule decides in too many cells, the list is compiled again.
#[test]
fn a_rule_of_too_many_cells_is_taken_out_by_a_build() {
    let mut list = pod(120, 120);
    // In front: the next rule for a source and a port is one of 14,400.
    list.insert(0, Rule { services: crate::Services::Any, ..rule("10.1.0.0/16", 0, Action::Allow, 1) });
    let before = Tables::build(list.clone()).unwrap();
    assert!(before.describe().contains("cross product"), "{}", before.describe());
    list.remove(0);
    let tables = before.update(&[Change::Remove { at: 0 }], &BuildOptions::default()).unwrap();
    assert!(tables.delta.is_none(), "more rules were looked at than may be");
    let keys = keys_of_pod(120, 120);
    assert!(keys.iter().step_by(7).all(|key| tables.lookup(key) == linear::scan(&list, key)));
}

/// Returns rules as in a pod's table: denials of some sources, then one rule with a port for each set of pods of both families.
fn named_pods(sets: &[BTreeSet<u32>]) -> Vec<Rule> {
    let denied = (0..20u32).map(|at| rule(&format!("10.8.0.{at}/32"), 80, Action::Deny, at));
    let named = (0u16..).zip(sets).map(|(at, pods)| {
        let members: AddressSet = pods.iter().map(|&pod| pod_address(pod)).collect();
        Rule { src: members.into(), ..rule("::/0", 80 + at % 2, Action::Allow, 100 + u32::from(at)) }
    });
    denied.chain(named).chain([Rule::any(Action::Deny, OriginId(999))]).collect()
}

/// Returns a pod's address. Each fifth pod has an IPv6 address; some neighbours are adjacent.
fn pod_address(pod: u32) -> std::net::IpAddr {
    if pod.is_multiple_of(5) {
        std::net::Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(pod)).into()
    } else {
        std::net::Ipv4Addr::from(0x0a02_0000 + pod + pod / 9).into()
    }
}

fn agrees(tables: &Tables, list: &[Rule], pods: impl Iterator<Item = u32>) {
    assert!(*tables.rules() == *list);
    let keys = pods.flat_map(|pod| {
        let to = if pod.is_multiple_of(5) { "fd00::ffff:1" } else { "10.0.0.9" }.parse().unwrap();
        (80..83).map(move |port| Key::new(pod_address(pod), to, crate::protocol::TCP, 40_000, port))
    });
    let keys: Vec<Key> = keys.collect();
    let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
    tables.lookup_batch(&keys, &mut verdicts);
    for (key, verdict) in keys.iter().zip(verdicts) {
        assert_eq!(verdict, linear::scan(list, key), "{key:?} {}", tables.describe());
        assert_eq!(tables.lookup(key), verdict);
    }
}

proptest! {
    /// An address may move to any combination of sets, including a new one, and after rules were removed.
    #[test]
    fn addresses_move_between_the_classes_of_a_cross_product(
        sets in prop::collection::vec(prop::collection::btree_set(0u32..60, 20..40), 2..5),
        steps in prop::collection::vec(
            (prop::collection::vec((0usize..4, 0u32..60), 0..9), prop::option::weighted(0.2, 0usize..20)),
            1..12,
        ),
        is_narrow: bool,
    ) {
        let mut sets = sets;
        // One member of each family stays, so that no rule loses all members.
        sets.iter_mut().for_each(|set| set.extend([0, 1]));
        let mut gone = BTreeSet::new();
        let all = Choice::default();
        let choice = if is_narrow { Choice { narrow: 0, ..all } } else { all };
        let before = Tables::build_as(named_pods(&sets), &BuildOptions::default(), choice).unwrap();
        prop_assert_eq!(before.describe().contains("32-bit numbers"), is_narrow);
        let mut tables = before.clone();
        for (moves, leaves) in steps {
            for (set, pod) in moves {
                let count = sets.len();
                let set = &mut sets[set % count];
                if pod > 1 && !set.remove(&pod) {
                    set.insert(pod);
                }
            }
            gone.extend(leaves.map(|at| u32::try_from(at).unwrap()));
            let mut list = named_pods(&sets);
            list.retain(|rule| !gone.contains(&rule.origin.0));
            tables = tables.changed_to_as(&list, &BuildOptions::default(), 0).unwrap();
            prop_assert!(tables.compiled.as_ref().unwrap().is(before.compiled.as_ref().unwrap()), "compiled again");
            let exceptions = tables.delta.as_ref().map_or(0, |delta| delta.exceptions().len());
            prop_assert_eq!((exceptions, tables.delta.is_some()), (0, !gone.is_empty()));
            agrees(&tables, &list, 0..62);
        }
    }
}

#[test]
fn a_batch_that_changes_more_addresses_than_exceptions_hold_moves_them_in_a_large_table() {
    let mut sets: Vec<BTreeSet<u32>> = (0..4).map(|at| (0..9_000).filter(|pod| pod % 4 == at).collect()).collect();
    sets.iter_mut().for_each(|set| set.extend([0, 1]));
    let before = Tables::build(named_pods(&sets)).unwrap();
    let change = |sets: &mut Vec<BTreeSet<u32>>, pods: std::ops::Range<u32>| {
        for pod in pods {
            for at in [pod as usize % 4, (pod as usize + 1) % 4] {
                if !sets[at].remove(&pod) {
                    sets[at].insert(pod);
                }
            }
        }
    };
    // A few addresses are exceptions. Too many are moved instead.
    change(&mut sets, 7_000..7_020);
    let few = before.changed_to(&named_pods(&sets), &BuildOptions::default()).unwrap();
    assert!(few.delta.as_ref().is_some_and(|delta| delta.exceptions().len() > 4), "{}", few.describe());
    agrees(&few, &named_pods(&sets), (6_990..7_030).chain(20..30));
    change(&mut sets, 2..400);
    let many = few.changed_to(&named_pods(&sets), &BuildOptions::default()).unwrap();
    assert!(many.delta.is_none() && many.compiled.as_ref().unwrap().is(before.compiled.as_ref().unwrap()));
    agrees(&many, &named_pods(&sets), (0..500).chain(6_990..7_030));
    // The compiled list stays about as small as a new build.
    change(&mut sets, 2..400);
    change(&mut sets, 7_000..7_020);
    let back = many.changed_to(&named_pods(&sets), &BuildOptions::default()).unwrap();
    agrees(&back, &named_pods(&sets), (0..500).chain(6_990..7_030));
    assert!(back.bytes() < before.bytes() + before.bytes() / 10, "{} and {}", back.bytes(), before.bytes());
}

/// Each pod gets its own combination of sets. Empty classes are kept for reuse, but not forever.
#[test]
fn a_list_with_too_many_new_classes_is_compiled_anew() {
    let mut sets: Vec<BTreeSet<u32>> = vec![(0..600).collect(); 10];
    let (mut tables, mut builds) = (Tables::build(named_pods(&sets)).unwrap(), 0);
    for round in 0..60u32 {
        for pod in round * 8..round * 8 + 8 {
            // The bits of the pod's number select the sets that it leaves.
            let left = sets.iter_mut().enumerate().filter(|(at, _)| (pod + 2) >> at & 1 == 1);
            left.for_each(|(_, set)| set.retain(|&other| other != pod + 2));
        }
        let next = tables.changed_to_as(&named_pods(&sets), &BuildOptions::default(), 0).unwrap();
        builds += usize::from(!next.compiled.as_ref().unwrap().is(tables.compiled.as_ref().unwrap()));
        agrees(&next, &named_pods(&sets), (round * 8..round * 8 + 12).chain([0, 1, 599]));
        tables = next;
    }
    assert!((1..4).contains(&builds), "{builds} builds");
}

/// If no rule is shared with the compiled list, the list is compiled at once. Following 100,000 changes first took 11 seconds, the
/// subsequent build 0.07.
#[test]
fn a_list_that_shares_nothing_is_not_followed_change_by_change() {
    let list = |from: u32| -> Vec<Rule> {
        (from..from + 3000).map(|at| rule("10.0.0.0/8", u16::try_from(at).unwrap(), Action::Allow, at)).collect()
    };
    let before = Tables::build(list(0)).unwrap();
    let changes = |count: usize| {
        let insert = |at| Change::Insert { at, rule: rule("10.9.0.0/16", 7, Action::Deny, 1) };
        (0..count).map(insert).chain((0..count).map(|_| Change::Remove { at: count })).collect::<Vec<_>>()
    };
    let mut update = Update::of(&before);
    changes(2000).iter().for_each(|change| update.apply(change));
    assert!(update.compiled.is_none());
    assert_eq!(update.delta.changes(), (65, 0), "the first change that is one too many was the last that counted");
    assert_eq!(update.rules.len(), 3000);
    let after = list(5000);
    for tables in
        [before.changed_to(&after, &BuildOptions::default()), before.update(&changes(2000), &BuildOptions::default())]
    {
        let tables = tables.unwrap();
        assert!(tables.delta.is_none());
        let rules: Vec<Rule> = tables.rules().iter().cloned().collect();
        for port in [0, 7, 1999, 2000, 2999, 5000, 7999, 8000] {
            let key = key("10.9.0.1", port);
            assert_eq!(tables.lookup(&key), linear::scan(&rules, &key), "{key:?}");
        }
    }
    assert!(*before.changed_to(&after, &BuildOptions::default()).unwrap().rules() == *after);
    let scanned = Tables::scanned(list(0)).unwrap().changed_to(&after, &BuildOptions::default()).unwrap();
    assert!(scanned.compiled.is_none() && *scanned.rules() == *after);
}

/// A pod of the node is removed: its rules leave the exit's list, and its address leaves the sets of other rules.
#[test]
fn rules_leave_a_cross_product_together_also_after_addresses_have_entered_and_left_sets() {
    let member = |at: u32| std::net::IpAddr::from(std::net::Ipv4Addr::from(0x0a02_0000 + 2 * at));
    let set = |without: &[u32]| -> AddressSet { (0..600).filter(|at| !without.contains(at)).map(member).collect() };
    let list = |first: u32, without: &[u32]| -> Vec<Rule> {
        let members: Addresses = set(without).into();
        let class = |of: u32| {
            let src = format!("10.1.0.{of}/32");
            (0..4u16).map(move |at| (src.clone(), at, of))
        };
        let rules = (first..20).flat_map(class).map(|(src, at, of)| {
            let rule = rule(&src, 80 + at, if at == 3 { Action::Deny } else { Action::Allow }, of);
            Rule { dst: if at < 2 { members.clone() } else { Addresses::Any }, ..rule }
        });
        rules.chain([Rule::any(Action::Deny, OriginId(99))]).collect()
    };
    let before = Tables::build(list(0, &[])).unwrap();
    assert!(before.describe().contains("cross product"), "{}", before.describe());
    // In ascending order; the last is the point that identifies a class: the highest members of the set.
    let gone: Vec<u32> = (590..600).collect();
    let mut tables = before.clone();
    for first in 0..8u32 {
        let without = &gone[gone.len() - first as usize..];
        let present = list(first, without);
        tables = tables.changed_to(&present, &BuildOptions::default()).unwrap();
        let shared = tables.compiled.as_ref().unwrap().is(before.compiled.as_ref().unwrap());
        assert!(shared, "built again for class {first}: {}", tables.describe());
        for of in 0..20u32 {
            for to in (580..600).chain([0, 1, 300]) {
                for port in 79..85 {
                    let src = std::net::Ipv4Addr::from(0x0a01_0000 + of).into();
                    let key = Key::new(src, member(to), crate::protocol::TCP, 40_000, port);
                    assert_eq!(tables.lookup(&key), linear::scan(&present, &key), "{key:?} without {first}");
                }
            }
        }
    }
}
