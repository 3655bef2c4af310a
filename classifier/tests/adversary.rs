//! Lookups against an adversary who writes rules and sends packets. The adversary knows the structures, the family of the hashes and the
//! counters, and wants a lookup to cost more than the engine's bound. The tests check counters, never times. Sources: Csikor et al., "Tuple
//! Space Explosion", CoNEXT 2019; CVE-2019-25076; Crosby and Wallach, "Denial of Service via Algorithmic Complexity Attacks", USENIX
//! Security 2003.

use std::net::Ipv4Addr;

use bulkhead_classifier::{
    Action, Addresses, BuildError, Cost, Key, OriginId, PortRange, Rule, Service, ServiceSet, Services, Tables,
    Verdict, linear, protocol,
};
use ipnet::{IpNet, Ipv4Net};
use proptest::prelude::*;

/// Checks the engine's bounds, which hold for all rules. The engine's module states them.
fn within_the_stated_bounds(worst: Cost) {
    let in_segments = worst.probes == 0 && worst.entries == 0 && worst.chunks <= 64 * 2 && worst.steps <= 64 * 4 * 8;
    let whole = worst.probes <= 64 && worst.entries <= 64 * 16 && worst.chunks <= 32 && worst.steps <= 4 * 8;
    assert!(whole || in_segments, "{worst:?}");
}

/// Checks answers and costs, on keys that the adversary improves step by step.
fn holds(rules: &[Rule], keys: &[Key]) -> Option<Tables> {
    let tables = match Tables::build(rules.to_vec()) {
        Ok(tables) => tables,
        Err(BuildError::TooComplex) => return None,
        Err(error) => panic!("{error}"),
    };
    let worst = tables.worst_case();
    within_the_stated_bounds(worst);
    let keys: Vec<Key> = keys.iter().map(|&key| climb(&tables, rules, key)).collect();
    let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
    tables.lookup_batch(&keys, &mut verdicts);
    for (key, &verdict) in keys.iter().zip(&verdicts) {
        assert_eq!(verdict, linear::scan(rules, key), "{key:?}, {}", tables.describe());
        let cost = tables.cost(key);
        assert!(cost.probes <= worst.probes && cost.entries <= worst.entries && cost.steps <= worst.steps, "{cost:?}");
    }
    Some(tables)
}

/// Moves the key into one rule after another where that increases its cost.
fn climb(tables: &Tables, rules: &[Rule], mut key: Key) -> Key {
    let price = |key: &Key| {
        let cost = tables.cost(key);
        cost.probes * 16 + cost.entries
    };
    let mut paid = price(&key);
    for rule in rules.iter().step_by(rules.len().div_ceil(64)) {
        let corner = |addresses: &Addresses, old| {
            let first = addresses.members().and_then(|set| set.v4_intervals().first());
            first.map_or(old, |&(first, _)| Ipv4Addr::from(first).into())
        };
        let (src, dst) = (corner(&rule.src, key.src()), corner(&rule.dst, key.dst()));
        for (src, dst) in [(src, dst), (src, key.dst()), (key.src(), dst)] {
            let moved = Key::new(src, dst, key.protocol(), key.src_port(), key.dst_port());
            let cost = price(&moved);
            if cost > paid {
                (key, paid) = (moved, cost);
            }
        }
    }
    key
}

fn prefix(bits: u32, length: u32) -> Addresses {
    Addresses::prefix(IpNet::V4(Ipv4Net::new(bits.into(), u8::try_from(length).unwrap()).unwrap()))
}

fn tcp(first: u16, last: u16) -> Services {
    let service = Service { protocols: (protocol::TCP, protocol::TCP), ports: PortRange { first, last } };
    Services::from([service].into_iter().collect::<ServiceSet>())
}

fn key(src: u32, dst: u32, src_port: u16, dst_port: u16) -> Key {
    Key::new(Ipv4Addr::from(src).into(), Ipv4Addr::from(dst).into(), protocol::TCP, src_port, dst_port)
}

/// Returns a range around the port `most`. A larger `at` gives a longer range, so all are nested.
fn nested(at: u32, most: u16) -> PortRange {
    let reach = u16::try_from(at).unwrap();
    PortRange { first: most - reach.min(most), last: most + reach }
}

/// All masks that an attacker can write: each pair of prefix lengths with each of 60 port ranges, all around one packet. 65,340 rules, the
/// most expensive first.
#[test]
fn sixty_five_thousand_mask_shapes_around_one_packet() {
    let (src, dst) = (0x0a14_1e28, 0xc0a8_0101);
    let mut rules = Vec::new();
    for ports in 0..60 {
        for lengths in 0..33 * 33 {
            let (a, b) = (32 - lengths / 33, 32 - lengths % 33);
            let PortRange { first, last } = nested(ports, 1000);
            let action = if lengths % 2 == 0 { Action::Allow } else { Action::Deny };
            let rule = Rule::any(action, OriginId(lengths));
            rules.push(Rule { src: prefix(src, a), dst: prefix(dst, b), services: tcp(first, last), ..rule });
        }
    }
    assert_eq!(rules.len(), 65_340);
    let keys: Vec<Key> = (0..33)
        .flat_map(|bit| [1000, 1030, 1059, 1060].map(|port| (bit, port)))
        .map(|(bit, port)| {
            key(src ^ 1u32.checked_shl(bit).unwrap_or(0), dst ^ 1u32.checked_shl(bit).unwrap_or(0), 9, port)
        })
        .collect();
    assert!(holds(&rules, &keys).is_some(), "nested prefixes and ranges have few combinations");
}

/// Ranges of source ports nested against ranges of destination ports: no pair contains another.
#[test]
fn ranges_nested_against_each_other() {
    let rules: Vec<Rule> = (0..3000u32)
        .map(|at| {
            let PortRange { first, last } = nested(3000 - at, 20_000);
            let rule = Rule::any(Action::Allow, OriginId(at));
            Rule {
                src: prefix(0x0a00_0000 | ((at % 7) << 8), 24),
                src_ports: nested(at, 30_000),
                services: tcp(first, last),
                ..rule
            }
        })
        .collect();
    let ports = [17_000u16, 18_500, 20_000, 21_500, 23_000, 27_000, 30_000, 33_000];
    let keys: Vec<Key> =
        ports.iter().flat_map(|&a| ports.map(|b| key(0x0a00_0001 | ((u32::from(a) % 7) << 8), 1, a, b))).collect();
    assert!(holds(&rules, &keys).is_some());
}

/// Rules of every source to one destination, and of one source to every destination. Each pair is a combination: a quarter of a million for
/// a thousand rules.
#[test]
fn wildcards_on_either_side_are_not_multiplied_out() {
    let rules: Vec<Rule> = (0..4000u32)
        .map(|at| {
            let (one, port) = (prefix(0x0a00_0000 + at / 2 * 3, 32), u16::try_from(at % 1000).unwrap());
            let rule = Rule { services: tcp(port, port), ..Rule::any(Action::Allow, OriginId(at)) };
            if at % 2 == 0 { Rule { src: one, ..rule } } else { Rule { dst: one, ..rule } }
        })
        .collect();
    let keys: Vec<Key> = (0..400u32)
        .map(|at| key(0x0a00_0000 + at * 15, 0x0a00_0000 + at * 9, 1, u16::try_from(at * 5 % 1000).unwrap()))
        .collect();
    let tables = holds(&rules, &keys).unwrap();
    assert!(tables.bytes() < 4 << 20, "{} bytes of {}", tables.bytes(), tables.describe());
}

/// One more rule at a point than the list of a class may hold.
#[test]
fn a_crowd_at_one_point_is_left_to_the_bit_vectors() {
    let crowd = |count: u32| -> Vec<Rule> {
        let quiet = (0..2000u32).map(|at| (0x0a00_0000 + at, 0x0b00_0000 + at * 7, u16::try_from(at).unwrap()));
        let loud = (0..count).map(|at| (0x0c00_0000, 0x0d00_0000, u16::try_from(at * 2).unwrap()));
        let rule = |(src, dst, port)| Rule {
            src: prefix(src, 32),
            dst: prefix(dst, 32),
            services: tcp(port, port),
            ..Rule::any(Action::Allow, OriginId(u32::from(port)))
        };
        quiet.chain(loud).map(rule).collect()
    };
    let keys: Vec<Key> = (0..100).map(|port| key(0x0c00_0000, 0x0d00_0000, 1, port)).collect();
    let worst = |count| {
        let tables = holds(&crowd(count), &keys).unwrap();
        (tables.describe().contains("set pruning"), tables.worst_case().entries)
    };
    assert_eq!(worst(32), (true, 32));
    assert!(!worst(33).0);
}

/// Returns rules with source ports between `spread` hosts on either side, one subnet per eight hosts, and `crowd` more rules between two
/// hosts.
fn with_source_ports(spread: u32, crowd: u32) -> Vec<Rule> {
    let mut rules: Vec<Rule> = (0..2000u32)
        .map(|at| {
            let (a, b) = (at % spread, at * 7 / 3 % spread);
            let length = if at % 5 == 0 { 29 } else { 32 };
            let (src, dst) = (prefix(0x0a00_0000 + a, length), prefix(0x0b00_0000 + b, length));
            let src_ports = PortRange { first: 0, last: u16::try_from(30_000 + at).unwrap() };
            Rule { src, dst, src_ports, services: tcp(80, 80 + 3), ..Rule::any(Action::Allow, OriginId(at)) }
        })
        .collect();
    rules.extend((0..crowd).map(|at| {
        let (src, dst) = (prefix(0x0c00_0000, 32), prefix(0x0d00_0000, 32));
        let port = u16::try_from(at).unwrap();
        let src_ports = PortRange { first: port, last: port + 1 };
        Rule { src, dst, src_ports, services: tcp(port, port), ..Rule::any(Action::Deny, OriginId(9000 + at)) }
    }));
    // Everywhere.
    let everywhere = (0..1024u32).map(|at| {
        let port = u16::try_from(10_000 + at).unwrap();
        let src_ports = PortRange { first: port, last: u16::MAX };
        Rule { src_ports, services: tcp(port, port), ..Rule::any(Action::Deny, OriginId(20_000 + at)) }
    });
    rules.extend(everywhere);
    rules
}

/// Keys that no rule matches by design, and keys at the edges of all ports.
#[test]
fn lists_with_source_ports_answer_for_every_edge_of_their_ports() {
    let rules = with_source_ports(97, 20);
    let edges = [0u16, 1, 79, 80, 83, 84, 9_999, 10_000, 10_511, 10_512, 11_023, 11_024, 30_000, 31_999, 65_535];
    let keys: Vec<Key> = (0..400u32)
        .flat_map(|at| {
            let (src, dst) = (0x0a00_0000 + at % 110, 0x0b00_0000 + at * 7 / 3 % 110);
            [(at as usize) % 15, (at as usize * 7) % 15]
                .map(|edge| key(src, dst, edges[edge], edges[at as usize / 15 % 15]))
        })
        .collect();
    let tables = holds(&rules, &keys).unwrap();
    let decided: std::collections::HashSet<_> =
        keys.iter().map(|key| tables.lookup(key).rule().map(|at| at < 2020)).collect();
    assert_eq!(decided.len(), 3, "a rule between hosts, one everywhere and none decide");
}

/// Structured addresses, which weak multiplications map to few buckets for any key of the hash.
#[test]
fn structured_addresses_do_not_share_buckets() {
    type Structure = fn(u32) -> (u32, u32);
    let structures: [Structure; 6] = [
        |at| (at << 20, at << 12),
        |at| (at, at),
        |at| (at.reverse_bits(), 0),
        |at| (1 << (at % 32), (1 << (at / 32 % 32)) | (at / 1024)),
        |at| (at * 0x0001_0001, !(at * 0x0001_0001)),
        |at| (at.wrapping_mul(0x9e37_79b9), at.wrapping_mul(0x9e37_79b9)),
    ];
    let mut with_tuples = 0;
    for structure in structures {
        // A source port excludes set pruning, so the list has tuples.
        let rules: Vec<Rule> = (0..5000u32)
            .map(|at| {
                let (src, dst) = structure(at);
                let src_ports = PortRange { first: 0, last: 60_000 };
                Rule { src: prefix(src, 32), dst: prefix(dst, 32), src_ports, ..Rule::any(Action::Allow, OriginId(at)) }
            })
            .collect();
        let keys: Vec<Key> = (0..100).map(|at| structure(at * 50)).map(|(src, dst)| key(src, dst, 7, 7)).collect();
        let tables = holds(&rules, &keys).unwrap();
        with_tuples += usize::from(tables.describe().contains("tuples"));
        assert!(tables.worst_case().entries <= 2 * 16, "{}", tables.describe());
    }
    // The structures with one destination and with 32 sources are cross products.
    assert_eq!(with_tuples, 4);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Lists grown from a few prefixes, lengths and ranges around one packet, as in all known attacks.
    #[test]
    fn lists_grown_around_a_packet_stay_within_the_stated_bounds(
        lengths in prop::collection::vec((0u32..=32, 0u32..=32), 1..40),
        spread in 0u32..6,
        ports in prop::collection::vec((0u32..2000, 0u32..2000), 1..8),
        every_port in any::<bool>(),
        count in 1100u32..2500,
    ) {
        let rules: Vec<Rule> = (0..count)
            .map(|at| {
                let pick = at as usize;
                let ((a, b), (c, d)) = (lengths[pick % lengths.len()], ports[pick / 3 % ports.len()]);
                let (src, dst) = (0x0a00_0000 ^ ((at % (1 << spread)) << 4), 0x0b00_0000 ^ ((at / 5 % (1 << spread)) << 9));
                let PortRange { first, last } = nested(c, 9000);
                let src_ports = if every_port { PortRange::ALL } else { nested(d, 12_000) };
                let action = if at % 3 == 0 { Action::Deny } else { Action::Allow };
                let rule = Rule::any(action, OriginId(at));
                Rule { src: prefix(src, a), dst: prefix(dst, b), src_ports, services: tcp(first, last), ..rule }
            })
            .collect();
        let keys: Vec<Key> = (0..24u32)
            .map(|at| key(0x0a00_0000 ^ ((at % 8) << 4), 0x0b00_0000 ^ ((at / 3) << 9), 12_000, 9000))
            .collect();
        holds(&rules, &keys);
    }
}
