//! Lists that name very large sets, and the versions of these sets.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::Change;
use crate::{AddressSet, PartedSet};

/// The members of a large set by number, of both families.
type Members = Vec<u16>;

fn address(at: u16) -> IpAddr {
    // Some of the addresses in random rules and keys, and others.
    match at % 4 {
        0 => IpAddr::from((u128::from(at / 4 % 4) << 126 | u128::from(at / 16)).to_be_bytes()),
        _ => Ipv4Addr::from(u32::from(at / 4 % 4) << 30 | u32::from(at / 16)).into(),
    }
}

/// Returns the set in parts of four addresses.
fn parted(members: &Members) -> Arc<PartedSet> {
    let mut members: Vec<IpAddr> = members.iter().map(|&at| address(at)).collect();
    members.sort_unstable();
    members.dedup();
    let parts = members.chunks(4).map(|part| Arc::new(part.iter().copied().collect::<AddressSet>()));
    Arc::new(PartedSet::new(parts.collect()))
}

/// The large sets that a rule names as source and destination. 0 keeps the rule's own addresses.
type Named = (u8, u8);

fn list(rules: &[(Rule, Named)], sets: &[Arc<PartedSet>]) -> Vec<Rule> {
    let large = |at: u8, own: &Addresses| match usize::from(at) {
        0 => own.clone(),
        at => Addresses::Parted(sets[(at - 1) % sets.len()].clone()),
    };
    let named = |(rule, (src, dst)): &(Rule, Named)| Rule {
        src: large(*src, &rule.src),
        dst: large(*dst, &rule.dst),
        ..rule.clone()
    };
    rules.iter().map(named).collect()
}

/// Number of cases that were projected, followed by a replaced version, or compiled again though only a version changed.
static REACHED: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

fn answers_like_the_scan(tables: &Tables, list: &[Rule], keys: &[Key]) {
    assert_eq!(*tables.rules(), *list);
    for level in Level::available() {
        let tables = tables.clone().at(level);
        let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
        tables.lookup_batch(keys, &mut verdicts);
        for (key, verdict) in keys.iter().zip(verdicts) {
            assert_eq!(verdict, linear::scan(list, key), "{key:?} {}", tables.describe());
            assert_eq!(tables.lookup(key), verdict);
        }
    }
}

#[test]
fn a_list_with_large_sets_answers_like_the_scan_through_all_their_versions() {
    let members = || prop::collection::vec(0u16..512, 0..80);
    let named = || (prop_oneof![2 => Just(0u8), 5 => 1u8..7], prop_oneof![2 => Just(0u8), 5 => 1u8..7]);
    let change = (0u8..7, any::<prop::sample::Index>(), members(), random::rule(), any::<bool>());
    let input = (
        random::rules(),
        prop::collection::vec(named(), 1..8),
        prop::collection::vec(members(), 6),
        prop::collection::vec(change, 1..8),
        prop::collection::vec(random::key(), 1..40),
    );
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(300));
    let outcome = runner.run(&input, |(rules, named, members, changes, keys)| {
        for choice in choices() {
            let mut rules: Vec<(Rule, Named)> = rules.iter().cloned().zip(named.iter().copied().cycle()).collect();
            let mut sets: Vec<_> = members.iter().map(parted).collect();
            let mut present = list(&rules, &sets);
            let mut tables = Tables::build_as(present.clone(), &BuildOptions::default(), choice).unwrap();
            answers_like_the_scan(&tables, &present, &keys);
            let projected = |tables: &Tables| tables.compiled.as_ref().unwrap().projection().is_some();
            REACHED[0].fetch_add(u64::from(projected(&tables)), Ordering::Relaxed);
            for (kind, at, members, rule, all) in &changes {
                let before = present.clone();
                let is_version = (3..6).contains(kind);
                match kind {
                    // Adds, removes or replaces a rule.
                    0 => rules.insert(at.index(rules.len() + 1), (rule.clone(), named[0])),
                    1 if !rules.is_empty() => drop(rules.remove(at.index(rules.len()))),
                    // Gives a large set another version, sometimes that of another set.
                    2 => {
                        let at = at.index(sets.len());
                        sets[at] = sets[(at + 1) % sets.len()].clone();
                    }
                    // Changes a rule's own set by one address or entirely.
                    6 if !rules.is_empty() => {
                        let at = at.index(rules.len());
                        let Addresses::Set(own) = &rules[at].0.src else { continue };
                        let few = members.first().map(|&at| address(at)).into_iter().collect();
                        let set = if *all { own.difference(&few).into() } else { rule.src.clone() };
                        rules[at].0.src = set;
                    }
                    _ => {
                        let at = at.index(sets.len());
                        let parts = sets[at].parts();
                        let keeps = parts.iter().take(parts.len() / 2).cloned();
                        let highest = parts.get((parts.len() / 2).wrapping_sub(1)).map(|part| AddressSet::clone(part));
                        let is_above = |address: &IpAddr| {
                            highest.as_ref().is_none_or(|part| {
                                let last = part.prefixes().last().map(|net| net.broadcast());
                                last.is_none_or(|last| last < *address)
                            })
                        };
                        let rest = parted(members)
                            .flat()
                            .prefixes()
                            .map(|net| net.addr())
                            .filter(is_above)
                            .collect::<AddressSet>();
                        sets[at] = Arc::new(PartedSet::new(keeps.chain([Arc::new(rest)]).collect()));
                    }
                }
                present = list(&rules, &sets);
                if !all && is_version && !present.is_empty() {
                    // One rule names the previous version.
                    let at = at.index(present.len().min(before.len()));
                    present[at] = before[at].clone();
                }
                let next = tables.changed_to_as(&present, &BuildOptions::default(), 0).unwrap();
                answers_like_the_scan(&next, &present, &keys);
                if is_version && projected(&tables) && present != before {
                    let shared = next.compiled.as_ref().unwrap().is(tables.compiled.as_ref().unwrap());
                    REACHED[if shared { 1 } else { 2 }].fetch_add(1, Ordering::Relaxed);
                }
                tables = next;
            }
        }
        Ok(())
    });
    outcome.unwrap();
    let [projected, followed, built] = REACHED.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert!(
        projected > 500 && followed > 500 && built > 20,
        "{projected} projected, {followed} followed, {built} built"
    );
}

/// Returns a set in one part, of these addresses in 10.0.0.0/24.
fn set_of(members: &[u8]) -> AddressSet {
    members.iter().map(|&at| IpAddr::from([10, 0, 0, at])).collect()
}

fn large_of(members: &[u8]) -> Addresses {
    Addresses::Parted(Arc::new(PartedSet::new(vec![Arc::new(set_of(members))])))
}

fn from(src: Addresses, port: u16) -> Rule {
    Rule { src, ..rule("0.0.0.0/0", port, Action::Allow, port.into()) }
}

/// An address that is an exception is decided by the rules that name it, including one that names it later.
#[test]
fn an_address_that_has_changed_sets_enters_a_large_set_afterwards() {
    let list = |small: &[u8], large: &[u8]| {
        vec![from(set_of(small).into(), 80), from(large_of(large), 81), Rule::any(Action::Deny, OriginId(99))]
    };
    for choice in choices() {
        let mut tables = Tables::build_as(list(&[1, 3], &[5, 7]), &BuildOptions::default(), choice).unwrap();
        let built = tables.compiled.clone().unwrap();
        for (small, large) in [(vec![1, 3, 9], vec![5, 7]), (vec![1, 3, 9], vec![5, 7, 9]), (vec![1, 3, 9], vec![5])] {
            let present = list(&small, &large);
            tables = tables.changed_to_as(&present, &BuildOptions::default(), 0).unwrap();
            assert!(tables.compiled.as_ref().unwrap().is(&built) && tables.delta.is_some(), "{}", tables.describe());
            for (at, port) in (0..10).flat_map(|at| [(at, 80), (at, 81), (at, 82)]) {
                let key = key(&format!("10.0.0.{at}"), port);
                assert_eq!(tables.lookup(&key), linear::scan(&present, &key), "{key:?} {}", tables.describe());
            }
        }
    }
}

/// The fifth large set of an axis is compiled by its members. The rule that names it then names a version of another set, whose only
/// compiled rule is removed.
#[test]
fn a_rule_that_was_compiled_for_members_does_not_come_to_refer_to_a_set() {
    let first: Vec<Rule> = (0..5).map(|at| from(large_of(&[at, 100 + at, 200]), u16::from(at))).collect();
    let first = [&first[..], &[Rule::any(Action::Deny, OriginId(99))]].concat();
    let follow = |tables: &Tables, present: &mut Vec<Rule>, changes: &[Change]| {
        for change in changes {
            match change {
                Change::Insert { at, rule } => present.insert(*at, rule.clone()),
                Change::Remove { at } => drop(present.remove(*at)),
                Change::Replace { at, rule } => present[*at] = rule.clone(),
            }
        }
        let tables = tables.update_as(changes, &BuildOptions::default(), 0).unwrap();
        for (at, port) in (0..=255).flat_map(|at| (0..6).map(move |port| (at, port))) {
            let key = key(&format!("10.0.0.{at}"), port);
            assert_eq!(tables.lookup(&key), linear::scan(&*present, &key), "{key:?}");
        }
        tables
    };
    let version = large_of(&[4, 100, 200]);
    let replace = |at: usize, src: &Addresses, rule: &Rule| Change::Replace {
        at,
        rule: Rule { src: src.clone(), ..rule.clone() },
    };
    let mut followed = 0;
    for choice in choices() {
        let mut present = first.clone();
        let built = Tables::build_as(present.clone(), &BuildOptions::default(), choice).unwrap();
        let changes = [replace(0, &version, &present[0]), replace(4, &version, &present[4]), Change::Remove { at: 0 }];
        let tables = follow(&built, &mut present, &changes);
        let changes = [replace(3, &large_of(&[4, 9, 100, 200]), &present[3])];
        follow(&tables, &mut present, &changes);
        let without = built.update_as(&[Change::Remove { at: 0 }], &BuildOptions::default(), 0).unwrap();
        followed += u32::from(without.compiled.unwrap().is(&built.compiled.unwrap()));
    }
    assert!(followed > 2, "where the rule that goes is not the reason for a build: {followed}");
}

/// One event of a cluster with 100,000 pods, all of which a hundred rules name.
#[test]
fn a_member_of_a_set_that_many_rules_name_comes_and_goes_without_a_build_or_an_exception() {
    let part = |at: u32| (0..100).map(move |of| IpAddr::from(Ipv4Addr::from(0x0a00_0000 + at * 1_000 + 2 * of)));
    let parts: Vec<Arc<AddressSet>> = (0..100).map(|at| Arc::new(part(at).collect())).collect();
    let rules = |set: &Arc<PartedSet>| -> Vec<Rule> {
        let named =
            |at| Rule { src: Addresses::Parted(set.clone()), ..rule("10.0.0.0/8", at, Action::Allow, at.into()) };
        (0..100).map(named).chain([Rule::any(Action::Deny, OriginId(200))]).collect()
    };
    let first = Tables::build(rules(&Arc::new(PartedSet::new(parts.clone())))).unwrap();
    assert!(first.bytes() < 100_000, "{} bytes beside the set", first.bytes());
    let mut tables = first.clone();
    for at in 0..1_000u32 {
        let mut parts = parts.clone();
        let changed = (at % 100) as usize;
        let new = IpAddr::from(Ipv4Addr::from(0x0a00_0000 + at % 100 * 1_000 + 2 * (at / 100) + 1));
        parts[changed] = Arc::new(parts[changed].union(&[new].into_iter().collect()));
        let list = rules(&Arc::new(PartedSet::new(parts)));
        tables = tables.changed_to(&list, &BuildOptions::default()).unwrap();
        assert!(tables.compiled.as_ref().unwrap().is(first.compiled.as_ref().unwrap()) && tables.delta.is_none());
        let from = |src: IpAddr| tables.lookup(&Key::new(src, "10.0.0.9".parse().unwrap(), protocol::TCP, 1, 7));
        assert_eq!(from(new).rule(), Some(7));
        let odd = IpAddr::from(Ipv4Addr::from(0x0a00_0000 + at % 100 * 1_000 + 301));
        assert_eq!(from(odd).rule(), Some(100));
    }
}
