//! How long lists take to compile and lookups in them take: `cargo bench -p bulkhead-classifier --bench rulesets [SET...]`. Reads the
//! ClassBench sets of the folder that `BULKHEAD_RULESETS` names, or of `shared/rulesets` beside the checkout, and adds lists that the sets
//! have no example of. A line a list: the best of several builds in milliseconds, the best of several passes in nanoseconds per key at
//! burst 1 and 32, bytes, and what the list was compiled to. The best, because passes are shorter than what other work on the machine takes
//! the core for. Sets of at most 10,000 rules are measured a second time with their addresses in an IPv6 network.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people")]
#![expect(clippy::cast_precision_loss, reason = "figures are shown with a few digits")]

use std::hint::black_box;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bulkhead_classifier::{
    Action, AddressSet, Addresses, BuildError, BuildOptions, Key, OriginId, PortRange, Rule, Service, ServiceSet,
    Services, Tables, Verdict, classbench, protocol,
};
use ipnet::{IpNet, Ipv4Net};

/// Duration of repeated builds. Long enough for one of them to run on an undisturbed core.
const BUILDING: Duration = Duration::from_millis(600);

/// Number of passes over the keys. Together they take a tenth of a second for each set.
const PASSES: usize = 31;

fn read(path: &Path) -> String {
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text
}

type Build = fn(Vec<Rule>) -> Result<Tables, BuildError>;

fn measure(name: &str, rules: &[Rule], keys: &[Key], build: Build) {
    let (mut best, started) = (f64::MAX, Instant::now());
    let mut tables = None;
    while tables.is_none() || started.elapsed() < BUILDING {
        let copy = rules.to_vec();
        let start = Instant::now();
        match build(copy) {
            Ok(built) => tables = Some(built),
            Err(error) => {
                let refused = start.elapsed().as_secs_f64() * 1e3;
                println!("{name:24} {} rules, refused after {refused:.3} ms: {error}", rules.len());
                return;
            }
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    let Some(tables) = tables else { return };
    let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
    let [one, burst] = [1, 32].map(|burst| {
        (0..PASSES)
            .map(|_| {
                let start = Instant::now();
                for (keys, verdicts) in keys.chunks(burst).zip(verdicts.chunks_mut(burst)) {
                    tables.lookup_batch(keys, verdicts);
                }
                black_box(&verdicts);
                start.elapsed().as_secs_f64() * 1e9 / keys.len() as f64
            })
            .fold(f64::MAX, f64::min)
    });
    let (build, kilobytes) = (best * 1e3, tables.bytes() / 1000);
    println!(
        "{name:24} build {build:9.3} ms  b1 {one:8.1}  b32 {burst:8.1} ns  {kilobytes:6} kB  {}",
        tables.describe()
    );
}

/// Measures how long tables take to follow their list when a pod enters a set, over 32 such changes.
fn follow(name: &str, rules: &[Rule]) {
    let (mut rules, mut tables) = (rules.to_vec(), Tables::build(rules.to_vec()).unwrap());
    let (mut all, mut worst) = (Duration::ZERO, Duration::ZERO);
    for pod in 0..32u32 {
        let changed = rules[rules.len() - 1].dst.clone();
        let Addresses::Set(set) = &changed else { return };
        let more = [IpAddr::from(Ipv4Addr::from(0x0a80_0000 + 2 * pod))].into_iter().collect();
        let set = Addresses::from(set.union(&more));
        rules.iter_mut().filter(|rule| rule.dst == changed).for_each(|rule| rule.dst = set.clone());
        let start = Instant::now();
        tables = tables.changed_to(&rules, &BuildOptions::default()).unwrap();
        (all, worst) = (all + start.elapsed(), worst.max(start.elapsed()));
    }
    println!("{name:24} follows {} rules in {:?} a change, {worst:?} at most", rules.len(), all / 32);
}

/// Returns a list and keys with each IPv4 address as the last 32 bits of an IPv6 address in one network. A rule for all IPv4 addresses becomes one for
/// all IPv6 addresses.
fn in_ipv6(rules: &[Rule], keys: &[Key]) -> (Vec<Rule>, Vec<Key>) {
    let network = u128::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0));
    let wide = |address: u32| IpAddr::from(Ipv6Addr::from(network | u128::from(address)));
    let addresses = |addresses: &Addresses| match addresses.members() {
        None => Addresses::Any,
        Some(set) => {
            let ranges = set.v4_intervals().iter().map(|&range| match range {
                (0, u32::MAX) => (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::from(u128::MAX).into()),
                (first, last) => (wide(first), wide(last)),
            });
            Addresses::from(AddressSet::of_ranges(ranges))
        }
    };
    let rules = rules.iter().map(|rule| Rule { src: addresses(&rule.src), dst: addresses(&rule.dst), ..rule.clone() });
    let address = |address: IpAddr| match address {
        IpAddr::V4(v4) => wide(v4.into()),
        IpAddr::V6(_) => address,
    };
    let keys = keys
        .iter()
        .map(|key| Key::new(address(key.src()), address(key.dst()), key.protocol(), key.src_port(), key.dst_port()));
    (rules.collect(), keys.collect())
}

fn prefix(bits: u32, length: u8) -> Addresses {
    Addresses::prefix(IpNet::V4(Ipv4Net::new(bits.into(), length).unwrap()))
}

fn tcp(first: u16, last: u16) -> Services {
    let service = Service { protocols: (protocol::TCP, protocol::TCP), ports: PortRange { first, last } };
    Services::from([service].into_iter().collect::<ServiceSet>())
}

fn key(src: u32, dst: u32, src_port: u16, dst_port: u16) -> Key {
    Key::new(Ipv4Addr::from(src).into(), Ipv4Addr::from(dst).into(), protocol::TCP, src_port, dst_port)
}

/// Returns an element of a pseudo-random sequence, which is the same in every run.
fn scattered(at: u32) -> u32 {
    at.wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b)
}

fn port(at: u32, below: u32) -> u16 {
    u16::try_from(scattered(at) % below).unwrap()
}

/// Groups of pods that overlap, each named by rules for some ports: a node's exit in a large cluster.
fn groups(groups: u32, members: u32) -> (Vec<Rule>, Vec<Key>) {
    let pod = |at: u32| 0x0a00_0000 + at * 2;
    let mut rules = Vec::new();
    for group in 0..groups {
        let set: AddressSet =
            (0..members).map(|at| IpAddr::from(Ipv4Addr::from(pod(group * members / 3 + at)))).collect();
        let dst = Addresses::from(set);
        for rule in 0..4u16 {
            let services = tcp(80 + rule, 80 + 2 * rule);
            let src = prefix(0x0b00_0000 + group % 16, 32);
            rules.push(Rule { src, dst: dst.clone(), services, ..Rule::any(Action::Allow, OriginId(group)) });
        }
    }
    let keys = (0..1 << 16)
        .map(|at| {
            let dst = pod(scattered(at) % (groups * members / 3 + members)) + at % 8 / 7;
            key(0x0b00_0000 + at % 20, dst, 9, 79 + port(at, 9))
        })
        .collect();
    (rules, keys)
}

/// Returns rules for every address whose ranges of both ports cross each other, so that no structure can share parts. Also returns keys.
fn crossing(count: u32) -> (Vec<Rule>, Vec<Key>) {
    let rules = (0..count).map(|at| {
        let (from, to) = (port(2 * at, 60_000), port(2 * at + 1, 60_000));
        let src_ports = PortRange { first: from, last: from + 500 };
        Rule { src_ports, services: tcp(to, to + 500), ..Rule::any(Action::Allow, OriginId(at)) }
    });
    let keys = (0..1 << 14).map(|at| key(at, at, port(3 * at, 65_536), port(5 * at + 1, 65_536)));
    (rules.collect(), keys.collect())
}

/// Returns rules with prefixes nested around each other, all of which cover one address. Also returns keys.
fn nested(count: u32) -> (Vec<Rule>, Vec<Key>) {
    let interval = |at: u32| {
        let nets = ipnet::Ipv4Subnets::new((0x0a00_0000 + at).into(), (0x0c00_0000 - at).into(), 0);
        Addresses::from(nets.map(IpNet::V4).collect::<AddressSet>())
    };
    let rules = (0..count).map(|at| {
        let services = tcp(port(at, 60_000), 60_000);
        Rule { src: interval(count - at), services, ..Rule::any(Action::Allow, OriginId(at)) }
    });
    let keys = (0..1 << 14).map(|at| key(0x0a00_0000 + at % count, at, 9, port(at, 65_536)));
    (rules.collect(), keys.collect())
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with("--")).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|other| other == name);
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/rulesets");
    let folder = std::env::var_os("BULKHEAD_RULESETS").map_or(beside, PathBuf::from);
    let mut sets: Vec<String> = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".rules.gz")?.to_owned()))
        .collect();
    sets.sort_unstable();
    for name in sets.iter().filter(|name| is_wanted(name)) {
        let rules = classbench::parse_rules(&read(&folder.join(format!("{name}.rules.gz")))).unwrap();
        let trace = classbench::parse_trace(&read(&folder.join(format!("{name}.rnd.trace.gz")))).unwrap();
        let keys: Vec<Key> = trace.into_iter().map(|(key, _)| key).collect();
        measure(name, &rules, &keys, Tables::build);
        if rules.len() <= 10_000 {
            let (rules, keys) = in_ipv6(&rules, &keys);
            measure(&format!("{name} in IPv6"), &rules, &keys, Tables::build);
        }
    }
    type Made = (&'static str, fn() -> (Vec<Rule>, Vec<Key>));
    let made: [Made; 6] = [
        ("groups_20x4000", || groups(20, 4_000)),
        ("groups_200x1000", || groups(200, 1_000)),
        ("crossing_2000", || crossing(2_000)),
        ("crossing_8000", || crossing(8_000)),
        ("crossing_40000", || crossing(40_000)),
        ("nested_4000", || nested(4_000)),
    ];
    for (name, make) in made.into_iter().filter(|(name, _)| is_wanted(name)) {
        let (rules, keys) = make();
        measure(name, &rules, &keys, Tables::build);
        if name.starts_with("groups") {
            follow(name, &rules);
        }
        if name == "crossing_40000" {
            measure("crossing_40000 scanned", &rules, &keys[..256], Tables::scanned);
        }
    }
}
