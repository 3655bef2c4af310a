//! Compares the engines with the scan, and tests the interface.

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;

use super::*;
use crate::Change;
use crate::{Addresses, OriginId, PortRange, Service, Services, protocol};

pub(super) fn key(src: &str, port: u16) -> Key {
    Key::new(src.parse().unwrap(), "10.0.0.9".parse().unwrap(), protocol::TCP, 40_000, port)
}

pub(super) fn rule(src: &str, port: u16, action: Action, origin: u32) -> Rule {
    Rule {
        src: Addresses::prefix(src.parse().unwrap()),
        services: Services::Set(Arc::new(
            [Service { protocols: (protocol::TCP, protocol::TCP), ports: PortRange::one(port) }].into_iter().collect(),
        )),
        ..Rule::any(action, OriginId(origin))
    }
}

#[test]
fn the_first_matching_rule_wins_and_is_named() {
    let tables =
        Tables::build(vec![rule("10.0.0.1/32", 80, Action::Deny, 7), rule("10.0.0.0/24", 80, Action::Allow, 8)])
            .unwrap();
    let verdict = tables.lookup(&key("10.0.0.1", 80));
    assert_eq!((verdict.action(), verdict.rule()), (Action::Deny, Some(0)));
    assert_eq!(tables.deciding_rule(verdict).map(|r| r.origin), Some(OriginId(7)));
    assert_eq!(tables.lookup(&key("10.0.0.2", 80)).rule(), Some(1));
}

#[test]
fn no_match_is_a_deny_that_names_no_rule() {
    let tables = Tables::build(vec![rule("10.0.0.0/24", 80, Action::Allow, 1)]).unwrap();
    assert_eq!(tables.lookup(&key("10.0.1.1", 80)), Verdict::NO_MATCH);
    assert_eq!(Tables::build(vec![]).unwrap().lookup(&key("10.0.0.1", 80)), Verdict::NO_MATCH);
}

#[test]
fn a_burst_gets_the_answers_of_single_lookups() {
    let tables = Tables::build(vec![rule("10.0.0.0/24", 80, Action::Allow, 1)]).unwrap();
    let keys = [key("10.0.0.1", 80), key("10.0.0.1", 81), key("10.1.0.1", 80)];
    let mut verdicts = [Verdict::by(Action::Allow, 0); 3];
    tables.lookup_batch(&keys, &mut verdicts);
    assert_eq!(verdicts.map(Verdict::is_allow), [true, false, false]);
}

#[test]
fn tables_that_are_scanned_give_the_answers_of_compiled_ones_also_after_a_change() {
    let rules = vec![rule("10.0.0.1/32", 80, Action::Deny, 7), rule("10.0.0.0/24", 80, Action::Allow, 8)];
    let (mut scanned, mut built) = (Tables::scanned(rules.clone()).unwrap(), Tables::build(rules).unwrap());
    let keys = [key("10.0.0.1", 80), key("10.0.0.2", 80), key("10.0.0.1", 81), key("10.0.1.1", 80)];
    for _ in 0..2 {
        let (mut a, mut b) = ([Verdict::NO_MATCH; 4], [Verdict::NO_MATCH; 4]);
        scanned.lookup_batch(&keys, &mut a);
        built.lookup_batch(&keys, &mut b);
        assert_eq!(a, b);
        assert_eq!(keys.map(|key| scanned.lookup(&key)), a);
        assert_eq!(scanned.worst_case().entries, scanned.rules().len());
        let change = [Change::Remove { at: 0 }];
        scanned = scanned.update(&change, &BuildOptions::default()).unwrap();
        built = built.update(&change, &BuildOptions::default()).unwrap();
    }
}

#[test]
fn an_empty_set_matches_nothing() {
    let nothing = Rule { src: Addresses::from(crate::AddressSet::default()), ..Rule::any(Action::Allow, OriginId(0)) };
    assert!(!Tables::build(vec![nothing]).unwrap().lookup(&key("10.0.0.1", 80)).is_allow());
}

/// Rules over a small universe, so that they overlap in all ways: nested and equal prefixes, /0, crossing ranges, full ranges, protocol 0,
/// duplicates, sets of several members, both families.
mod random {
    use super::*;
    use crate::{AddressSet, ServiceSet};
    use ipnet::{IpNet, Ipv4Net, Ipv6Net};
    use proptest::prelude::*;
    use std::net::IpAddr;

    /// Addresses with few high and few low bits, so that short and long prefixes meet.
    fn v4() -> impl Strategy<Value = u32> {
        (0u32..4, 0u32..8).prop_map(|(high, low)| high << 30 | low)
    }

    fn v6() -> impl Strategy<Value = u128> {
        (0u128..4, 0u128..8).prop_map(|(high, low)| high << 126 | low)
    }

    fn prefix() -> impl Strategy<Value = IpNet> {
        let len4 = prop_oneof![Just(0u8), 0u8..4, 28u8..=32, Just(32u8), Just(16u8)];
        let len6 = prop_oneof![Just(0u8), 0u8..4, 124u8..=128, Just(128u8), Just(64u8)];
        prop_oneof![
            3 => (v4(), len4).prop_map(|(bits, len)| Ipv4Net::new(bits.into(), len).unwrap().into()),
            1 => (v6(), len6).prop_map(|(bits, len)| Ipv6Net::new(bits.into(), len).unwrap().into()),
        ]
    }

    pub(super) fn addresses() -> impl Strategy<Value = Addresses> {
        prop_oneof![
            1 => Just(Addresses::Any),
            4 => prefix().prop_map(Addresses::prefix),
            2 => (prop::collection::vec(prefix(), 0..4), prop::collection::vec(prefix(), 0..3)).prop_map(|(all, except)| {
                let set = |prefixes: Vec<IpNet>| prefixes.into_iter().collect::<AddressSet>();
                Addresses::from(set(all).subtract(&set(except)))
            }),
        ]
    }

    fn port() -> impl Strategy<Value = u16> {
        prop_oneof![0u16..6, Just(u16::MAX), Just(u16::MAX - 1), 1000u16..1004]
    }

    fn ports() -> impl Strategy<Value = PortRange> {
        prop_oneof![
            2 => Just(PortRange::ALL),
            2 => port().prop_map(PortRange::one),
            2 => (port(), port()).prop_map(|(a, b)| PortRange { first: a.min(b), last: a.max(b) }),
        ]
    }

    fn number() -> impl Strategy<Value = u8> {
        prop_oneof![Just(0u8), Just(1), Just(6), Just(17), Just(255), Just(58)]
    }

    fn services() -> impl Strategy<Value = Services> {
        let service = (number(), number(), any::<bool>(), ports()).prop_map(|(a, b, one, ports)| Service {
            protocols: if one { (a, a) } else { (a.min(b), a.max(b)) },
            ports,
        });
        prop_oneof![
            1 => Just(Services::Any),
            4 => prop::collection::vec(service, 0..3).prop_map(|all| Services::from(all.into_iter().collect::<ServiceSet>())),
        ]
    }

    pub(super) fn rule() -> impl Strategy<Value = Rule> {
        (addresses(), addresses(), ports(), services(), any::<bool>()).prop_map(
            |(src, dst, src_ports, services, allow)| {
                let action = if allow { Action::Allow } else { Action::Deny };
                Rule { src, dst, src_ports, services, ..Rule::any(action, OriginId(0)) }
            },
        )
    }

    /// Returns a list in which catch-all rules are rare. Otherwise most rules would never be reached.
    pub(super) fn rules() -> impl Strategy<Value = Vec<Rule>> {
        (prop::collection::vec(rule(), 0..40), any::<bool>(), any::<bool>()).prop_map(
            |(mut rules, twice, every_port)| {
                if every_port {
                    // As in all rules of NetworkPolicy.
                    rules.iter_mut().for_each(|rule| rule.src_ports = PortRange::ALL);
                }
                rules.retain(|rule| *rule != Rule::any(rule.action, rule.origin));
                if twice {
                    rules.extend_from_within(..rules.len() / 2);
                }
                rules
            },
        )
    }

    pub(super) fn key() -> impl Strategy<Value = Key> {
        let pair = prop_oneof![
            6 => (v4(), v4()).prop_map(|(a, b)| (IpAddr::from(a.to_be_bytes()), IpAddr::from(b.to_be_bytes()))),
            3 => (v6(), v6()).prop_map(|(a, b)| (IpAddr::from(a.to_be_bytes()), IpAddr::from(b.to_be_bytes()))),
            1 => (v4(), v6()).prop_map(|(a, b)| (IpAddr::from(a.to_be_bytes()), IpAddr::from(b.to_be_bytes()))),
        ];
        (pair, number(), port(), port()).prop_map(|((src, dst), number, from, to)| Key::new(src, dst, number, from, to))
    }
}

use crate::engine::Choice;
use proptest::prelude::*;
use std::collections::HashSet;

/// Choices that make each structure work on short lists.
pub(super) fn choices() -> [Choice; 9] {
    let all = Choice::default();
    let narrow = Choice { narrow: 0, ..all };
    let vectors = Choice { cells: 0, pruned: false, ..all };
    [
        all,
        narrow,
        Choice { cells: 0, ..narrow },
        Choice { segment: Some(3), ..all },
        Choice { segment: Some(70), ..all },
        vectors,
        Choice { all_direct: 0, ..vectors },
        Choice { all_direct: 0, dissolved: 0, narrow: 0, ..vectors },
        Choice { side: 12, ..vectors },
    ]
}

/// Checks that each structure at each level answers like the scan, singly and in bursts.
fn all_agree(rules: &[Rule], keys: &[Key], structures: &mut HashSet<String>) -> Vec<Verdict> {
    let truth: Vec<Verdict> = keys.iter().map(|key| linear::scan(rules, key)).collect();
    for choice in choices() {
        let tables = Tables::build_as(rules.to_vec(), &BuildOptions::default(), choice).unwrap();
        let described = tables.describe();
        structures.extend(described.split_whitespace().take(3).last().map(str::to_owned));
        let sides = ["sides of the sources", "sides of the destinations"];
        structures.extend(sides.into_iter().filter(|sides| described.contains(sides)).map(str::to_owned));
        for level in Level::available() {
            let tables = tables.clone().at(level);
            for burst in [1, 7, 32, 256] {
                let mut verdicts = vec![Verdict::by(Action::Allow, 7); keys.len()];
                for (keys, verdicts) in keys.chunks(burst).zip(verdicts.chunks_mut(burst)) {
                    tables.lookup_batch(keys, verdicts);
                }
                for ((key, &verdict), &truth) in keys.iter().zip(&verdicts).zip(&truth) {
                    assert_eq!(verdict, truth, "{key:?}, burst {burst}, {}", tables.describe());
                }
            }
            assert_eq!(tables.lookup(&keys[0]), truth[0]);
        }
    }
    truth
}

#[test]
fn every_structure_level_and_burst_answers_like_the_scan() {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    let reached: [AtomicUsize; 5] = Default::default();
    let structures = std::cell::RefCell::new(HashSet::new());
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&(random::rules(), prop::collection::vec(random::key(), 1..70)), |(rules, keys)| {
            let truth = all_agree(&rules, &keys, &mut structures.borrow_mut());
            for (verdict, key) in truth.iter().zip(&keys) {
                let outcome = match verdict.rule() {
                    Some(_) if verdict.is_allow() => 0,
                    Some(_) => 1,
                    None => 2,
                };
                reached[outcome].fetch_add(1, Relaxed);
                reached[if key.src().is_ipv6() { 4 } else { 3 }].fetch_add(1, Relaxed);
            }
            Ok(())
        })
        .unwrap();
    for (count, what) in reached.iter().zip(["an allow", "a deny", "no match", "an IPv4 key", "an IPv6 key"]) {
        assert!(count.load(Relaxed) > 0, "the random lists never reached {what}");
    }
    assert_eq!(structures.borrow().len(), 6, "structures reached: {structures:?}");
}

proptest! {
    /// After any insertions and removals, single or batched, the tables are those of the present list.
    #[test]
    fn changed_tables_answer_like_the_changed_list(
        rules in random::rules(),
        changes in prop::collection::vec((0u8..4, any::<prop::sample::Index>(), random::rule(), random::addresses()), 1..12),
        together in 1usize..4,
        keys in prop::collection::vec(random::key(), 1..40),
    ) {
        for choice in &choices() {
            let mut list = rules.clone();
            let mut tables = Tables::build_as(rules.clone(), &BuildOptions::default(), *choice).unwrap();
            for changes in changes.chunks(together) {
                let mut list_changes = Vec::new();
                for (kind, at, rule, addresses) in changes {
                    if *kind == 0 || list.is_empty() {
                        let at = at.index(list.len() + 1);
                        list.insert(at, rule.clone());
                        list_changes.push(Change::Insert { at, rule: rule.clone() });
                    } else if *kind == 1 {
                        let at = at.index(list.len());
                        list[at] = rule.clone();
                        list_changes.push(Change::Replace { at, rule: rule.clone() });
                    } else if *kind == 2 {
                        let at = at.index(list.len());
                        let rule = Rule { src: addresses.clone(), ..list[at].clone() };
                        list[at] = rule.clone();
                        list_changes.push(Change::Replace { at, rule });
                    } else {
                        let at = at.index(list.len());
                        list.remove(at);
                        list_changes.push(Change::Remove { at });
                    }
                }
                let next = tables.update_as(&list_changes, &BuildOptions::default(), 0).unwrap();
                let shares = next.compiled.as_ref().unwrap().is(tables.compiled.as_ref().unwrap());
                tables = next;
                // In a cross product, a rule that was not compiled may get members.
                let is_cross = choice.cells > 0 && choice.segment.is_none();
                prop_assert!(shares || is_cross, "nothing was shared");
                prop_assert!(*tables.rules() == *list);
                for level in Level::available() {
                    let tables = tables.clone().at(level);
                    let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
                    tables.lookup_batch(&keys, &mut verdicts);
                    for (key, verdict) in keys.iter().zip(verdicts) {
                        prop_assert_eq!(verdict, linear::scan(&list, key), "{:?} {}", key, tables.describe());
                        prop_assert_eq!(tables.lookup(key), verdict);
                    }
                }
            }
        }
    }

    #[test]
    fn tables_changed_to_another_list_answer_like_it(
        rules in random::rules(),
        other in random::rules(),
        kept in any::<prop::sample::Index>(),
        keys in prop::collection::vec(random::key(), 1..40),
    ) {
        let mut list = rules.clone();
        list.truncate(kept.index(rules.len() + 1));
        list.extend(other);
        for choice in &choices() {
            let tables = Tables::build_as(rules.clone(), &BuildOptions::default(), *choice).unwrap();
            let tables = tables.changed_to_as(&list, &BuildOptions::default(), 0).unwrap();
            prop_assert!(*tables.rules() == *list);
            let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
            tables.lookup_batch(&keys, &mut verdicts);
            for (key, verdict) in keys.iter().zip(verdicts) {
                prop_assert_eq!(verdict, linear::scan(&list, key), "{:?} {}", key, tables.describe());
            }
        }
    }

    #[test]
    fn a_shadowed_rule_changes_nothing(rules in random::rules(), at in any::<prop::sample::Index>(), keys in prop::collection::vec(random::key(), 1..40)) {
        prop_assume!(!rules.is_empty());
        let mut more = rules.clone();
        let shadowed = Rule { action: Action::Allow, ..rules[at.index(rules.len())].clone() };
        more.push(shadowed);
        let (a, b) = (Tables::build(rules).unwrap(), Tables::build(more).unwrap());
        for key in &keys {
            prop_assert_eq!(a.lookup(key), b.lookup(key));
        }
    }

    #[test]
    fn splitting_a_rule_by_its_source_ports_changes_no_action(rules in random::rules(), at in any::<prop::sample::Index>(), cut in 1u16..2000, keys in prop::collection::vec(random::key(), 1..40)) {
        prop_assume!(!rules.is_empty());
        let at = at.index(rules.len());
        let mut split = rules.clone();
        let PortRange { first, last } = rules[at].src_ports;
        prop_assume!(first < cut && cut <= last);
        split[at].src_ports = PortRange { first, last: cut - 1 };
        split.insert(at + 1, Rule { src_ports: PortRange { first: cut, last }, ..rules[at].clone() });
        let (a, b) = (Tables::build(rules).unwrap(), Tables::build(split).unwrap());
        for key in &keys {
            prop_assert_eq!(a.lookup(key).action(), b.lookup(key).action());
        }
    }
}

/// Returns a node's exit: few rules, whose sets contain the cluster's pods.
fn exit(pods: &[u32]) -> Vec<Rule> {
    let set = |step: u32| -> Addresses {
        let members =
            pods.iter().filter(|&pod| pod / 2 % step == 0).map(|pod| std::net::IpAddr::from(pod.to_be_bytes()));
        Addresses::from(members.collect::<crate::AddressSet>())
    };
    let (all, some) = (set(1), set(3));
    vec![
        Rule { src: some.clone(), dst: all.clone(), ..rule("10.0.0.0/8", 80, Action::Allow, 1) },
        Rule { src: all.clone(), ..rule("10.0.0.0/8", 443, Action::Allow, 2) },
        Rule { src: some, ..Rule::any(Action::Deny, OriginId(3)) },
        Rule { dst: all, ..Rule::any(Action::Allow, OriginId(4)) },
    ]
}

#[test]
fn a_member_of_a_large_set_comes_and_goes_without_a_build() {
    let mut pods: Vec<u32> = (0..6000).map(|at| 0x0a00_0000 + 2 * at).collect();
    let tables = Tables::build(exit(&pods)).unwrap();
    let before = tables.clone();
    let mut tables = tables;
    let mut shared = 0;
    for at in 0..100 {
        // Adds and removes a pod in turn.
        if at % 2 == 0 {
            pods.push(0x0a10_0000 + 2 * at);
        } else {
            pods.remove(at as usize);
        }
        let list = exit(&pods);
        tables = tables.changed_to(&list, &BuildOptions::default()).unwrap();
        shared += usize::from(tables.compiled.as_ref().unwrap().is(before.compiled.as_ref().unwrap()));
        let pod = |at: usize| std::net::IpAddr::from(pods[at * 7 % pods.len()].to_be_bytes());
        let keys: Vec<Key> = (0..200)
            .map(|key| (key * 31, key + pods.len() - 50))
            .flat_map(|(a, b)| [80, 443, 81].map(|port| Key::new(pod(a), pod(b), protocol::TCP, 1, port)))
            .chain([Key::new("10.16.0.0".parse().unwrap(), "10.0.0.2".parse().unwrap(), 6, 1, 80)])
            .collect();
        let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
        tables.lookup_batch(&keys, &mut verdicts);
        for (key, verdict) in keys.iter().zip(verdicts) {
            assert_eq!(verdict, linear::scan(&list, key), "{key:?}");
            assert_eq!(verdict, tables.lookup(key));
        }
    }
    assert!(shared > 30, "compiled again after {shared} changes");
}

/// A long list of rules for single sources and for sets of all pods: a changed pod costs as much as the rules that name it.
#[test]
fn a_changed_member_of_a_long_lists_sets_costs_the_rules_that_name_it_and_no_more() {
    let list = |pods: &[u32]| -> Vec<Rule> {
        let sets = [1, 3, 7].map(|step| {
            let members = pods.iter().filter(|&pod| pod / 2 % step == 0);
            Addresses::from(members.map(|pod| std::net::IpAddr::from(pod.to_be_bytes())).collect::<crate::AddressSet>())
        });
        let one = |at: u32| {
            let source = format!("172.16.{}.{}/32", at / 200, at % 200);
            let set = if at.is_multiple_of(20) { at as usize % 3 } else { 2 };
            let action = if at.is_multiple_of(5) { Action::Deny } else { Action::Allow };
            Rule { dst: sets[set].clone(), ..rule(&source, u16::try_from(at % 9).unwrap(), action, at) }
        };
        (0..3000).map(one).chain([Rule::any(Action::Deny, OriginId(9))]).collect()
    };
    let mut pods: Vec<u32> = (0..2000).map(|at| 0x0a00_0000 + 2 * at).collect();
    let before = Tables::build(list(&pods)).unwrap();
    // A pod in the first set only.
    let pod = 0x0a10_0002;
    pods.push(pod);
    let rules = list(&pods);
    let after = before.changed_to(&rules, &BuildOptions::default()).unwrap();
    assert!(after.compiled.as_ref().unwrap().is(before.compiled.as_ref().unwrap()), "compiled again");
    assert!(
        after.describe().contains("exceptions: 1 addresses, at most 51 rules verified for one"),
        "{}",
        after.describe()
    );
    let to = |src: u32, dst: u32, port: u16| {
        let address = |bits: u32| std::net::IpAddr::from(bits.to_be_bytes());
        Key::new(address(0xac10_0000 + src), address(dst), protocol::TCP, 1, port)
    };
    let keys: Vec<Key> = (0..200)
        .flat_map(|src| [pod, pods[0], 1].map(|dst| to(src, dst, u16::try_from(src % 9).unwrap())))
        .chain([to(60, pod, 6), to(61, pod, 6)])
        .collect();
    let mut decided = HashSet::new();
    for key in &keys {
        assert_eq!(after.lookup(key), linear::scan(&rules, key), "{key:?}");
        decided.insert(after.lookup(key).rule().filter(|_| key.dst() == std::net::IpAddr::from(pod.to_be_bytes())));
        assert!(after.cost(key).entries <= after.worst_case().entries && after.worst_case().entries < 100);
    }
    assert!(decided.len() > 2, "{decided:?}");
    assert_eq!(after.cost(&keys[0]).entries, 51);
}

#[test]
fn an_address_that_too_many_rules_name_has_the_list_compiled() {
    let list = |last: &str| -> Vec<Rule> {
        let set: crate::AddressSet =
            ["10.0.0.1", last].iter().map(|one| one.parse::<std::net::IpAddr>().unwrap()).collect();
        let set = Addresses::from(set);
        let one = |at: u16| Rule { src: set.clone(), ..rule("::/0", at, Action::Allow, at.into()) };
        (0..1025).map(one).collect()
    };
    let before = Tables::build(list("10.0.0.9")).unwrap();
    let after = before.changed_to(&list("10.0.0.7"), &BuildOptions::default()).unwrap();
    assert!(after.delta.is_none(), "{}", after.describe());
    for (src, port) in [("10.0.0.7", 1024), ("10.0.0.9", 1024), ("10.0.0.1", 7)] {
        let key = key(src, port);
        assert_eq!(after.lookup(&key), linear::scan(after.rules().iter(), &key), "{key:?}");
    }
}

#[test]
fn a_cancelled_build_stops() {
    let options = BuildOptions { cancelled: &|| true, ..BuildOptions::default() };
    assert_eq!(
        Tables::build_with(vec![rule("10.0.0.0/8", 80, Action::Allow, 1)], &options),
        Err(BuildError::Cancelled)
    );
}

#[test]
fn a_long_list_is_given_up_before_it_is_copied_out() {
    let rules: Vec<Rule> = (0..3000u32)
        .map(|at| Rule {
            src: Addresses::prefix(std::net::IpAddr::from(at.to_be_bytes()).into()),
            ..rule("::/0", 1, Action::Allow, at)
        })
        .collect();
    let options = BuildOptions { max_bytes: 20_000, ..BuildOptions::default() };
    let built = Tables::build_as(rules, &options, choices()[5]);
    assert_eq!(built.err(), Some(BuildError::TooLarge { max_bytes: 20_000 }));
}

#[test]
fn a_list_that_takes_more_than_it_may_is_an_error() {
    let options = BuildOptions { max_bytes: 8, ..BuildOptions::default() };
    let built = Tables::build_with(vec![rule("10.0.0.0/8", 80, Action::Allow, 1)], &options);
    assert_eq!(built, Err(BuildError::TooLarge { max_bytes: 8 }));
}

mod parted;

/// Rules whose IPv6 addresses take all 32-bit numbers, so that no number is left for the addresses around them.
#[test]
fn addresses_without_a_number_are_looked_up_as_addresses() {
    let address = |low: u64| Ipv6Addr::from_bits((0x2001_0db8 << 96) + u128::from(low));
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut rules = Vec::new();
    for at in 0..400 {
        let mut block = |rule: u32| match rule % 7 {
            0 => Addresses::Any,
            _ => Addresses::prefix(
                Ipv6Net::new(address(next(1 << 32)), 96 + u8::try_from(next(33)).unwrap()).unwrap().trunc().into(),
            ),
        };
        let (src, dst) = (block(at), block(at / 7));
        rules.push(Rule {
            src,
            dst,
            ..Rule::any(if at % 2 == 0 { Action::Allow } else { Action::Deny }, OriginId(at))
        });
    }
    // The first and last address with a number.
    for (at, low) in [(400, 0), (401, u32::MAX.into())] {
        let src = Addresses::prefix(Ipv6Net::new(address(low), 128).unwrap().into());
        rules.insert(0, Rule { src: src.clone(), dst: src, ..Rule::any(Action::Deny, OriginId(at)) });
    }
    let ends = [Ipv6Addr::from_bits(address(0).to_bits() - 1), address(0), address(u32::MAX.into()), address(1 << 32)];
    let mut end = |at: usize| if at.is_multiple_of(5) { ends[at / 5 % 4] } else { address(next(1 << 32)) };
    let keys: Vec<Key> =
        (0..2_000).map(|at| Key::new(end(at).into(), end(at / 3).into(), protocol::TCP, 1, 80)).collect();
    let mut tables = Tables::build(rules.clone()).unwrap();
    assert!(tables.describe().contains("for 32-bit numbers; beside it"), "{}", tables.describe());
    for _ in 0..2 {
        // 7 keys have numbers more often than 32.
        for burst in [1, 7, 32] {
            let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
            for (keys, verdicts) in keys.chunks(burst).zip(verdicts.chunks_mut(burst)) {
                tables.lookup_batch(keys, verdicts);
            }
            let truth: Vec<Verdict> = keys.iter().map(|key| linear::scan(&rules, key)).collect();
            assert!(verdicts == truth, "burst {burst}: {}", tables.describe());
        }
        // Once more without a rule.
        rules.remove(5);
        tables = tables.update(&[Change::Remove { at: 5 }], &BuildOptions::default()).unwrap();
    }
    // Both forms exceed a limit that the one for addresses keeps.
    let numbers = |max_bytes| {
        let options = BuildOptions { max_bytes, ..BuildOptions::default() };
        Tables::build_with(rules.clone(), &options).map(|tables| tables.describe().contains("32-bit numbers"))
    };
    let most = tables.bytes();
    let built = [most, most * 3 / 4, most / 2].map(numbers);
    assert!(matches!(built, [Ok(true), Ok(false), Err(BuildError::TooLarge { .. })]), "{built:?}");
}

/// Rules for one address, except that each tenth is for a network of up to 512 addresses. Rules of many addresses are on several sides.
#[test]
fn a_list_of_two_chunks_is_divided_into_sides_and_its_rules_can_be_removed() {
    let http = rule("::/0", 80, Action::Deny, 0).services;
    let one = |at: u32, is_src: bool| {
        let length = if at.is_multiple_of(10) { 23 + at / 10 % 10 } else { 32 };
        let net = format!("10.0.{}.{}/{length}", at / 256, at % 256);
        let one = Rule { services: http.clone(), ..Rule::any(Action::Deny, OriginId(at)) };
        let addresses = Addresses::prefix(net.parse::<ipnet::IpNet>().unwrap().trunc());
        if is_src { Rule { src: addresses, ..one } } else { Rule { dst: addresses, ..one } }
    };
    for (is_src, count, sides) in [(false, 600, "2 sides of the destinations"), (true, 950, "2 sides of the sources")] {
        let any = |at: u32| Rule { services: http.clone(), ..Rule::any(Action::Allow, OriginId(at)) };
        let everywhere = (0..5).map(|at| Rule { src_ports: PortRange::one(at), ..any(at.into()) });
        let mut list: Vec<Rule> =
            everywhere.chain((0..count).rev().map(|at| one(at, is_src))).chain([any(9)]).collect();
        let choice = Choice { cells: 0, pruned: false, ..Choice::default() };
        let mut tables = Tables::build_as(list.clone(), &BuildOptions::default(), choice).unwrap();
        let keys: Vec<Key> = (0..count + 9)
            .flat_map(|at| [3, 7].map(|port| (std::net::IpAddr::from((0x0a00_0000 + at).to_be_bytes()), port)))
            .map(|(at, port)| {
                if is_src { Key::new(at, [9; 4].into(), 6, port, 80) } else { Key::new([9; 4].into(), at, 6, port, 80) }
            })
            .collect();
        for gone in [None, Some(3), Some(0), Some(100), Some(550)] {
            if let Some(at) = gone {
                list.remove(at);
                tables = tables.update_as(&[Change::Remove { at }], &BuildOptions::default(), 0).unwrap();
            }
            assert!(tables.describe().contains(sides), "{}", tables.describe());
            assert_eq!((tables.cost(&keys[0]).chunks, tables.worst_case().chunks), (1, 1));
            for level in Level::available() {
                let tables = tables.clone().at(level);
                let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
                tables.lookup_batch(&keys, &mut verdicts);
                for (key, verdict) in keys.iter().zip(verdicts) {
                    assert_eq!(verdict, linear::scan(&list, key), "{key:?} without {gone:?}");
                    assert_eq!(tables.lookup(key), verdict);
                }
            }
        }
        // Sides may take more memory while they are made, so a list close to its limit is not divided.
        let options = BuildOptions { max_bytes: 300_000, ..BuildOptions::default() };
        let tables = Tables::build_as(list, &options, choice).unwrap();
        assert!(!tables.describe().contains("sides"), "{}", tables.describe());
    }
}
