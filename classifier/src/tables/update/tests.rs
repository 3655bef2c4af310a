//! Rules that are taken out of a compiled list.

use super::super::tests::{choices, key, rule};
use super::*;
use crate::simd::Level;
use crate::{Action, AddressSet, Addresses, Key, OriginId, linear};

/// Behind a rule for everything no rule can match, so none is compiled. When it goes, they have to be there.
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

/// An address left a set, so packets with it are decided by a scan. It may be the point that stands for a class of the
/// cross product, and says nothing about the other points any more.
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

/// A pod's table: `pods` sources times `ports`, and what everybody may reach.
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
    // Single rules, those of many cells (the last ones), and neighbours that hid each other.
    let removed = [0, 0, 700, 701, 1500, 2395, 2396, 2395, 1];
    for at in removed {
        list.remove(at);
        tables = tables.update(&[Change::Remove { at }], &BuildOptions::default()).unwrap();
        assert!(tables.compiled.as_ref().unwrap().is(before.compiled.as_ref().unwrap()), "built anew without {at}");
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
    // A lookup costs what it did before, and the table before says what it said.
    assert_eq!(tables.worst_case(), before.worst_case());
    let full = pod(60, 40);
    assert!(keys.iter().all(|key| before.lookup(key) == linear::scan(&full, key)));
}

/// Looking for what comes behind a rule is bounded: where it decides in too many cells, the list is compiled anew.
#[test]
fn a_rule_of_too_many_cells_is_taken_out_by_a_build() {
    let mut list = pod(60, 40);
    // Before all others, so that for 61 classes of sources 2,400 rules behind it would be looked at.
    list.insert(0, rule("10.1.0.0/16", 1000, Action::Allow, 1));
    let before = Tables::build(list.clone()).unwrap();
    list.remove(0);
    let tables = before.update(&[Change::Remove { at: 0 }], &BuildOptions::default()).unwrap();
    assert!(tables.delta.is_none(), "more rules were looked at than may be");
    let keys = keys_of_pod(60, 40);
    assert!(keys.iter().all(|key| tables.lookup(key) == linear::scan(&list, key)));
}

/// Another list than the compiled one is compiled as soon as that is known. Following each of 100,000 changes first took
/// 11 seconds, and the build that comes after 0.07.
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

/// A pod of the node goes: its rules leave the exit's list, and its address the sets of other rules.
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
    // Ascending, the last of them the point that a class is known by: the highest members of the set.
    let gone: Vec<u32> = (590..600).collect();
    let mut tables = before;
    for first in 0..8u32 {
        let without = &gone[gone.len() - first as usize..];
        let present = list(first, without);
        tables = tables.changed_to(&present, &BuildOptions::default()).unwrap();
        let shared = tables.delta.as_ref().is_some_and(|delta| !delta.exceptions().is_empty() && delta.changes().1 > 0);
        assert!(shared || first == 0, "built anew for class {first}: {}", tables.describe());
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
