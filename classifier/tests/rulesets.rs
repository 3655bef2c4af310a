//! Tests rule sets and traces with known answers, and lists built to be expensive. The rule sets are not part of the project. The tests
//! read the folder in `BULKHEAD_RULESETS`, or `shared/rulesets` beside the checkout, and print a message if it is absent.

use std::io::Read;
use std::path::{Path, PathBuf};

use bulkhead_classifier::{
    Action, AddressSet, Addresses, BuildError, BuildOptions, Change, Key, OriginId, PortRange, Rule, Service,
    ServiceSet, Services, Tables, Verdict, classbench, linear, protocol,
};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

fn folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/rulesets");
    let folder = std::env::var_os("BULKHEAD_RULESETS").map_or(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no rule sets in {} (BULKHEAD_RULESETS names another folder)", folder.display());
    None
}

fn read(path: &Path) -> String {
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text
}

#[test]
fn every_packet_of_every_trace_gets_the_rule_that_brute_force_found() {
    let Some(folder) = folder() else { return };
    let mut checked = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path.to_str().and_then(|path| path.strip_suffix(".rules.gz")) else { continue };
        let rules = classbench::parse_rules(&read(&path)).unwrap();
        let trace = classbench::parse_trace(&read(Path::new(&format!("{name}.rnd.trace.gz")))).unwrap();
        let tables = Tables::build(rules).unwrap();
        for burst in [1, 8, 32, 256] {
            assert_eq!(
                classbench::mismatches(&tables, &trace, burst),
                0,
                "{name}, burst {burst}, {}",
                tables.describe()
            );
        }
        let worst = tables.worst_case();
        for (key, _) in trace.iter().step_by(16) {
            let cost = tables.cost(key);
            assert!(cost.probes <= worst.probes && cost.entries <= worst.entries, "{name}: {cost:?} above {worst:?}");
        }
        checked += 1;
    }
    assert!(checked > 0, "{} holds no rule set", folder.display());
}

fn v4(bits: u32, length: u8) -> Addresses {
    Addresses::prefix(IpNet::V4(Ipv4Net::new(bits.into(), length).unwrap()))
}

fn tcp(first: u16, last: u16) -> Services {
    Services::from(
        [Service { protocols: (protocol::TCP, protocol::TCP), ports: PortRange { first, last } }]
            .into_iter()
            .collect::<ServiceSet>(),
    )
}

/// A generator with a fixed seed, so that each run has the same lists. Source: Steele et al., splitmix64, 2014.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 32) as u32
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.next() % limit
    }
}

fn holds(rules: &[Rule], tables: &Tables, keys: &[Key]) {
    let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
    tables.lookup_batch(keys, &mut verdicts);
    let worst = tables.worst_case();
    for (key, &verdict) in keys.iter().zip(&verdicts) {
        assert_eq!(verdict, linear::scan(rules, key), "{key:?}, {}", tables.describe());
        let cost = tables.cost(key);
        assert!(cost.probes <= worst.probes && cost.entries <= worst.entries && cost.steps <= worst.steps);
    }
}

/// Checks the engine's bounds, which hold for all rules. The engine's module states them.
fn within_the_stated_bounds(tables: &Tables) {
    let worst = tables.worst_case();
    let in_segments = worst.probes == 0 && worst.entries == 0 && worst.chunks <= 64 * 2 && worst.steps <= 64 * 4 * 8;
    let whole = worst.probes <= 64 && worst.entries <= 64 * 16 && worst.chunks <= 32 && worst.steps <= 4 * 8;
    assert!(whole || in_segments, "{worst:?}");
}

/// Tuple Space Explosion (Csikor et al., CoNEXT 2019) against rules: each pair of prefix lengths, in thousands of rules, so that every
/// packet is in reach of every tuple.
#[test]
fn every_pair_of_prefix_lengths_stays_within_the_stated_bounds() {
    let mut random = Random(1);
    let mut rules = Vec::new();
    for at in 0..20_000u32 {
        let (a, b) = (random.below(33), random.below(33));
        let (src, dst) = (random.below(64) << 26 | random.below(8), random.below(64) << 26 | random.below(8));
        let port = u16::try_from(random.below(4)).unwrap();
        let (src, dst) = (v4(src, u8::try_from(a).unwrap()), v4(dst, u8::try_from(b).unwrap()));
        rules.push(Rule { src, dst, services: tcp(port, port), ..Rule::any(Action::Allow, OriginId(at)) });
    }
    match Tables::build(rules.clone()) {
        Ok(tables) => {
            within_the_stated_bounds(&tables);
            let mut address = || std::net::Ipv4Addr::from(random.below(64) << 26 | random.below(8)).into();
            let keys: Vec<Key> = (0..200).map(|at| Key::new(address(), address(), protocol::TCP, 1, at % 5)).collect();
            holds(&rules, &tables, &keys);
        }
        Err(error) => assert_eq!(error, BuildError::TooComplex),
    }
}

/// Bucket chains: many rules whose prefixes all hash into one bucket, and that differ only in their port ranges.
#[test]
fn rules_apart_by_ranges_only_do_not_make_long_chains() {
    let mut random = Random(2);
    let rules: Vec<Rule> = (0..6000u32)
        .map(|at| {
            let first = u16::try_from(random.below(60_000)).unwrap();
            let from = u16::try_from(random.below(60_000)).unwrap();
            Rule {
                src: v4(0x0a00_0000 | random.below(4) << 8, 24),
                src_ports: PortRange { first: from, last: from + 3000 },
                services: tcp(first, first + 40),
                ..Rule::any(Action::Allow, OriginId(at))
            }
        })
        .collect();
    let tables = Tables::build(rules.clone()).unwrap();
    within_the_stated_bounds(&tables);
    let keys: Vec<Key> = (0..500)
        .map(|_| {
            let src = std::net::Ipv4Addr::from(0x0a00_0000 | random.below(4) << 8 | 7).into();
            let port = |random: &mut Random| u16::try_from(random.below(65_536)).unwrap();
            Key::new(src, src, protocol::TCP, port(&mut random), port(&mut random))
        })
        .collect();
    holds(&rules, &tables, &keys);
}

/// Returns rules with crossing ranges of both ports, which no structure shares.
fn crossing(count: u32) -> Vec<Rule> {
    let mut random = Random(3);
    let rule = |at: u32| {
        let first = u16::try_from(random.below(60_000)).unwrap();
        let from = u16::try_from(random.below(60_000)).unwrap();
        let src_ports = PortRange { first: from, last: from + 500 };
        let action = if at.is_multiple_of(3) { Action::Deny } else { Action::Allow };
        Rule { src_ports, services: tcp(first, first + 500), ..Rule::any(action, OriginId(at)) }
    };
    (0..count).map(rule).collect()
}

/// A list that no structure holds whole still gives exact answers within the stated costs. This includes a key without a matching rule,
/// which only the last segment decides.
#[test]
fn a_list_too_complex_for_one_structure_is_answered_in_segments() {
    let rules = crossing(40_000);
    let tables = Tables::build(rules.clone()).unwrap();
    assert!(tables.describe().contains("IPv4: 40 segments"), "{}", tables.describe());
    within_the_stated_bounds(&tables);
    let (mut random, address) = (Random(7), std::net::Ipv4Addr::LOCALHOST.into());
    let mut port = || u16::try_from(random.below(65_536)).unwrap();
    let mut keys: Vec<Key> = (0..600).map(|_| Key::new(address, address, protocol::TCP, port(), port())).collect();
    keys.push(Key::new(address, address, protocol::UDP, 1, 1));
    holds(&rules, &tables, &keys);
    let decided: Vec<usize> = keys.iter().filter_map(|key| tables.lookup(key).rule()).collect();
    assert!(decided.iter().any(|&rule| rule < 1024) && decided.iter().any(|&rule| rule > 20_000), "{decided:?}");
    assert_eq!(tables.cost(&keys[600]), tables.worst_case(), "a key that nobody decides is asked about everywhere");
    // The list without a deciding rule is exact, too.
    let at = *decided.iter().max().unwrap();
    let without = tables.update(&[Change::Remove { at }], &BuildOptions::default()).unwrap();
    let rules: Vec<Rule> = without.rules().iter().cloned().collect();
    assert!(without.describe().contains("segments") && without.describe().contains("changed since"));
    holds(&rules, &without, &keys);
}

/// A list that no structure of bounded size holds is an error, which is found soon.
#[test]
fn a_list_beyond_all_bounds_is_an_error() {
    assert_eq!(Tables::build(crossing(64 * 1024 + 1)).err(), Some(BuildError::TooComplex));
}

#[test]
fn ten_thousand_ipv6_rules_answer_like_the_scan() {
    let mut random = Random(4);
    let mut prefix = |length: u8| {
        let bits =
            u128::from(random.below(200)) << 96 | u128::from(random.below(16)) << 64 | u128::from(random.below(50));
        Addresses::prefix(IpNet::V6(Ipv6Net::new((0x2001 << 112 | bits).into(), length).unwrap()))
    };
    let mut rules: Vec<Rule> = (0..10_000u32)
        .map(|at| {
            let (src, dst) = (prefix([128, 64, 48, 128][at as usize % 4]), prefix([128, 64, 0][at as usize % 3]));
            let port = u16::try_from(at % 7).unwrap();
            Rule { src, dst, services: tcp(port, port), ..Rule::any(Action::Allow, OriginId(at)) }
        })
        .collect();
    rules.push(Rule { dst: prefix(32), ..Rule::any(Action::Deny, OriginId(10_000)) });
    let tables = Tables::build(rules.clone()).unwrap();
    within_the_stated_bounds(&tables);
    let mut address = || {
        let bits =
            u128::from(random.below(200)) << 96 | u128::from(random.below(16)) << 64 | u128::from(random.below(50));
        std::net::Ipv6Addr::from(0x2001 << 112 | bits).into()
    };
    let keys: Vec<Key> = (0..400).map(|at| Key::new(address(), address(), protocol::TCP, 9, at % 8)).collect();
    holds(&rules, &tables, &keys);
    assert!(keys.iter().any(|key| tables.lookup(key).is_allow()), "the keys reach no rule");
}

/// A policy of large sets is one rule, not the product of its sets.
#[test]
fn product_rules_of_big_sets_are_not_multiplied_out() {
    let pods = |start: u32, step: u32| {
        let address = |at: u32| IpNet::from(std::net::IpAddr::from(std::net::Ipv4Addr::from(start + at * step)));
        Addresses::from((0..50_000).map(address).collect::<AddressSet>())
    };
    let (a, b) = (pods(0x0a00_0000, 3), pods(0x0b00_0000, 5));
    let ports: ServiceSet =
        (1..200).map(|port| Service { protocols: (6, 6), ports: PortRange::one(port * 2) }).collect();
    let rules = vec![
        Rule {
            src: a.clone(),
            dst: b.clone(),
            services: Services::from(ports),
            ..Rule::any(Action::Allow, OriginId(1))
        },
        Rule { src: b, dst: a, ..Rule::any(Action::Allow, OriginId(2)) },
        Rule::any(Action::Deny, OriginId(3)),
    ];
    let tables = Tables::build(rules.clone()).unwrap();
    assert!(tables.bytes() < 8 << 20, "{} bytes for 200,000 intervals", tables.bytes());
    let mut random = Random(5);
    let keys: Vec<Key> = (0..2000)
        .map(|at| {
            let mut pod =
                |start: u32, step: u32| std::net::Ipv4Addr::from(start + random.below(1000) * step + at % 3 / 2).into();
            let (a, b) = (pod(0x0a00_0000, 3), pod(0x0b00_0000, 5));
            let (src, dst) = if at % 2 == 0 { (a, b) } else { (b, a) };
            Key::new(src, dst, 6, 1, u16::try_from(at % 500).unwrap())
        })
        .collect();
    holds(&rules, &tables, &keys);
}
