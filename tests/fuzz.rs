//! Hostile input: damaged captures, malformed packets, invalid objects. The program reports errors or counts drops, never panics, and
//! accounts for every packet.
//!
//! The targets are bolero properties. `cargo test` runs each briefly, `cargo xtask fuzz SECONDS` for that time, and `cargo bolero test
//! --test fuzz TARGET` under a coverage-guided fuzzer. Input is a list of edits to real files, because random bytes do not get past the
//! first magic number.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::root;
use bulkhead_classifier::{
    Action, Addresses, BuildError, BuildOptions, Change, Key, OriginId, PortRange, Rule, Service, ServiceSet, Services,
    Tables, Verdict,
};
use bulkhead_control::inventory::Inventory;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::service::{Client, Place, Resolver, Settings};
use bulkhead_control::source::{Options, ServiceKinds, Strictness, load_text};
use bulkhead_dataplane::filter::{Filter, LONGEST};
use bulkhead_dataplane::io::{CaptureError, CaptureReader};
use bulkhead_dataplane::{Flow, LinkType, Outcome, Packet, SessionConfig, Snapshot, Worker, WorkerConfig};
use ipnet::IpNet;

/// The duration of each target in `cargo test`.
const MOMENT: Duration = Duration::from_millis(500);

fn duration() -> Duration {
    let seconds = std::env::var("BULKHEAD_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    seconds.map_or(MOMENT, Duration::from_secs)
}

/// The files of all golden cases whose names start with `prefix`.
fn seeds(prefix: &str) -> Vec<PathBuf> {
    let folders = fs::read_dir(root().join("pcaps")).unwrap().map(|entry| entry.unwrap().path());
    let files = folders.filter(|path| path.is_dir()).flat_map(|folder| fs::read_dir(folder).unwrap());
    let mut files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix));
    files.sort();
    assert!(!files.is_empty());
    files
}

fn snapshot(case: &Path) -> Snapshot {
    let mut pipeline = Pipeline::new(Scope::Node("node-1".into()));
    let text = fs::read_to_string(case.join("state.yaml")).unwrap();
    pipeline.resync(load_text("state.yaml", &text, Strictness::Strict).unwrap().objects).unwrap();
    bulkhead_answers::run::snapshot(&pipeline.node_tables("node-1").unwrap()).unwrap()
}

/// One edit: the position as a fraction of the length, the kind of edit, and its byte.
type Edit = (u16, u8, u8);

fn edited(seed: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for &(place, kind, byte) in edits {
        if bytes.is_empty() {
            break;
        }
        let at = usize::from(place) * bytes.len() / (usize::from(u16::MAX) + 1);
        match kind % 8 {
            0..=3 => bytes[at] = byte,
            4 => bytes[at] ^= 1 << (byte % 8),
            5 => bytes.truncate(at),
            6 => bytes.insert(at, byte),
            _ => drop(bytes.drain(at..(at + usize::from(byte)).min(bytes.len()))),
        }
    }
    bytes
}

fn worker(tcp_pickup: bool) -> Worker {
    let sessions = SessionConfig { tcp_pickup, capacity: 64, ..SessionConfig::default() };
    Worker::new(WorkerConfig { sessions, ..WorkerConfig::default() })
}

fn assert_conservation(worker: &Worker) {
    let counters = worker.counters();
    let drops: u64 = counters.drops().map(|(_, n)| n).sum();
    assert_eq!(counters.received(), counters.forwarded() + drops, "rx = tx + sum(drops)");
}

#[test]
fn damaged_captures_end_in_an_error_or_counted_drops() {
    let seeds: Vec<_> = seeds("in")
        .into_iter()
        .filter(|path| fs::metadata(path).unwrap().len() < 50_000)
        .map(|path| (fs::read(&path).unwrap(), snapshot(path.parent().unwrap())))
        .collect();
    bolero::check!().with_type::<(u8, bool, Vec<Edit>)>().with_test_time(duration()).for_each(
        |(seed, tcp_pickup, edits)| {
            let (bytes, snapshot) = &seeds[usize::from(*seed) % seeds.len()];
            let bytes = edited(bytes, edits);
            let mut worker = worker(*tcp_pickup);
            let mut seen = 0;
            if let Ok(mut reader) = CaptureReader::new("fuzz", bytes.as_slice()) {
                let _ = bulkhead_dataplane::replay(&mut reader, snapshot, &mut worker, |_, _| {
                    seen += 1;
                    Ok::<(), CaptureError>(())
                });
            }
            assert_eq!(worker.counters().received(), seen, "every packet that was judged was reported");
            assert_conservation(&worker);
        },
    );
}

#[test]
fn hostile_packets_end_in_counted_drops() {
    let mut frames: Vec<(LinkType, Vec<u8>)> = Vec::new();
    for path in seeds("in") {
        let mut reader = CaptureReader::new("seed", fs::File::open(&path).unwrap()).unwrap();
        while let Some(packet) = reader.next_packet().unwrap() {
            if frames.len() < 2_000 {
                frames.push((packet.link, packet.data.to_vec()));
            }
        }
    }
    let snapshot = snapshot(&root().join("pcaps/ipv6"));
    bolero::check!().with_type::<Vec<(u16, u8, i8, Vec<Edit>)>>().with_test_time(duration()).for_each(|script| {
        let mut worker = worker(true);
        let hostile: Vec<(LinkType, Vec<u8>, u8, i8)> = script
            .iter()
            .map(|(seed, port, longer, edits)| {
                let (link, frame) = &frames[usize::from(*seed) % frames.len()];
                (*link, edited(frame, edits), *port, *longer)
            })
            .collect();
        let packets: Vec<Packet<'_>> = hostile
            .iter()
            .map(|(link, frame, port, longer)| Packet {
                frame,
                wire_len: frame.len().saturating_add_signed(isize::from(*longer)),
                link: *link,
                in_port: bulkhead_dataplane::PortId(u16::from(*port % 8)),
                time: u64::from(*port) << 32,
            })
            .collect();
        let mut outcomes = vec![Outcome::UNJUDGED; packets.len()];
        worker.process(&snapshot, &packets, &mut outcomes);
        assert_eq!(worker.counters().received(), packets.len() as u64);
        assert_conservation(&worker);
    });
}

/// The packets of the capture `names`: DNS over UDP and TCP, with the connections that it allows.
fn conversations() -> Vec<(u64, LinkType, Vec<u8>)> {
    let file = fs::File::open(root().join("pcaps/names/in.pcap")).unwrap();
    let (mut reader, mut packets) = (CaptureReader::new("names", file).unwrap(), Vec::new());
    while let Some(packet) = reader.next_packet().unwrap() {
        packets.push((packet.time, packet.link, packet.data.to_vec()));
    }
    packets
}

#[test]
fn hostile_dns_teaches_a_pod_no_name_that_its_rules_do_not_name() {
    let text = fs::read_to_string(root().join("pcaps/names/state.yaml")).unwrap();
    let mut pipeline = Pipeline::new(Scope::Node("node-1".into()));
    pipeline.resync(load_text("state.yaml", &text, Strictness::Strict).unwrap().objects).unwrap();
    let names = bulkhead_answers::run::NameSettings::default();
    let loaded = bulkhead_answers::run::node_snapshot(&pipeline, &[], &Settings::default(), "node-1", &names);
    let (snapshot, _) = loaded.unwrap();
    let (conversations, uplink) = (conversations(), snapshot.port_named("uplink").unwrap());
    let owner = |address: IpAddr| snapshot.owner(address).unwrap_or(uplink);
    let sender = |frame: &[u8]| owner(<[u8; 4]>::try_from(&frame[26..30]).unwrap().into());
    let ports = ["10.244.1.2", "10.244.1.3", "10.244.1.4", "192.0.2.10"].map(|own| owner(own.parse().unwrap()));
    // Judges the conversations, each packet after its damaged copies. Returns the counts, and the number of learned addresses.
    let judge = |script: &[(u8, u8, Vec<Edit>)]| {
        let mut worker = worker(false);
        let mut judge = |time, link, frame: &[u8], in_port| {
            let packet = Packet { frame, wire_len: frame.len(), link, in_port, time };
            worker.process(&snapshot, &[packet], &mut [Outcome::UNJUDGED]);
        };
        for (at, (time, link, frame)) in conversations.iter().enumerate() {
            for (_, port, edits) in script.iter().filter(|(place, ..)| usize::from(*place) % conversations.len() == at)
            {
                let in_port = ports.get(usize::from(*port)).copied().unwrap_or_else(|| sender(frame));
                judge(*time, *link, &edited(frame, edits), in_port);
            }
            judge(*time, *link, frame, sender(frame));
        }
        assert_conservation(&worker);
        let mut learned = 0;
        worker.learned().for_each(0, |_, name, _, _| {
            learned += 1;
            assert!(name == "api.example.com" || name.ends_with(".models.example.org"), "{name}");
        });
        (*worker.name_counters(), learned)
    };
    // Each packet with each 64th of it overwritten.
    let places = 0..u8::try_from(conversations.len()).unwrap();
    let each = places.flat_map(|place| (0..64).map(move |part| (place, u8::MAX, vec![(part << 10, 0, u8::MAX)])));
    let (counters, learned) = judge(&each.collect::<Vec<_>>());
    assert!(counters.malformed > 0 && counters.unasked > 0 && learned > 0, "{counters:?}, {learned} learned");
    bolero::check!().with_type::<Vec<(u8, u8, Vec<Edit>)>>().with_test_time(duration()).for_each(|script| {
        judge(script);
    });
}

/// Words of filters, and separators between them.
const FILTER_WORDS: [&str; 32] = [
    "host",
    "net",
    "port",
    "portrange",
    "proto",
    "src",
    "dst",
    "ip",
    "ip6",
    "tcp",
    "udp",
    "sctp",
    "icmp",
    "icmp6",
    "and",
    "or",
    "not",
    "(",
    ")",
    "!",
    "&&",
    "||",
    "10.0.0.1",
    "10.1",
    "fd00::/8",
    "80",
    "8000-8080",
    "ether",
    "0",
    "\u{e9}",
    "&",
    "/",
];

#[test]
fn hostile_filters_end_in_an_error_that_points_into_the_text_or_in_a_filter() {
    let taken = AtomicU64::new(0);
    bolero::check!().with_type::<(Vec<u8>, Vec<u8>)>().with_test_time(duration()).for_each(|(words, bytes)| {
        let words = words.iter().map(|&at| FILTER_WORDS[usize::from(at) % FILTER_WORDS.len()]);
        let text = words.collect::<Vec<_>>().join(" ") + &String::from_utf8_lossy(bytes);
        match Filter::parse(&text) {
            Ok(filter) => {
                taken.fetch_add(1, Ordering::Relaxed);
                let [src, dst] = ["10.0.0.1", "10.1.0.2"].map(|address| address.parse().unwrap());
                let _ = filter.matches(&Flow { src, dst, protocol: 6, sport: 4000, dport: 80, icmp: None });
            }
            Err(error) => {
                assert!(text.get(error.span.0..error.span.1).is_some(), "{text:?}: {:?}", error.span);
                assert!(!error.to_string().contains('\u{1b}'));
            }
        }
    });
    assert!(taken.load(Ordering::Relaxed) > 0, "no filter was ever taken");
}

/// Parts of filters to repeat: nesting, long, out of range, or with characters of several bytes.
const FILTER_PARTS: [&str; 16] = [
    "(",
    ")",
    "not ",
    "tcp and ",
    "tcp or (",
    "host fd00::1 or ",
    "!",
    " ",
    "port 99999999999999999999 or ",
    "portrange 0-65536 and ",
    "net 10.0.0.0/33 or ",
    "proto -1 ",
    "\u{1f980}",
    "\u{202e}",
    "\u{0}",
    "10.0.0.1 ",
];

/// The time limit for one expression in an unoptimized build beside other tests. It usually takes some milliseconds.
const AT_MOST: Duration = Duration::from_secs(2);

#[test]
fn filters_that_are_long_deep_or_out_of_range_are_answered_at_once() {
    bolero::check!().with_type::<Vec<(u8, u16)>>().with_test_time(duration()).for_each(|parts| {
        let text: String = parts
            .iter()
            .take(8)
            .map(|&(part, times)| {
                FILTER_PARTS[usize::from(part) % FILTER_PARTS.len()].repeat(usize::from(times) % 5000)
            })
            .collect();
        let began = Instant::now();
        match Filter::parse(&text) {
            Ok(filter) => {
                assert!(text.len() <= LONGEST);
                let [src, dst] = ["10.0.0.1", "10.1.0.2"].map(|address| address.parse().unwrap());
                let _ = filter.matches(&Flow { src, dst, protocol: 6, sport: 4000, dport: 80, icmp: None });
            }
            Err(error) => {
                let shown = error.to_string();
                assert!(shown.len() <= 4 * LONGEST && !shown.contains('\u{0}'), "{shown:?}");
            }
        }
        assert!(began.elapsed() < AT_MOST, "{:?} for {} bytes: {:.80}", began.elapsed(), text.len(), text);
    });
}

#[test]
fn mangled_objects_end_in_an_error_and_both_modes_agree_on_what_is_understood() {
    let seeds: Vec<_> = seeds("state").into_iter().map(|path| fs::read(path).unwrap()).collect();
    bolero::check!().with_type::<(u8, Vec<Edit>)>().with_test_time(duration()).for_each(|(seed, edits)| {
        let text = edited(&seeds[usize::from(*seed) % seeds.len()], edits);
        let text = String::from_utf8_lossy(&text);
        let strict = load_text("fuzz", &text, Strictness::Strict);
        let lenient = load_text("fuzz", &text, Strictness::Lenient);
        if let Ok(strict) = &strict {
            assert_eq!(strict.objects, lenient.as_ref().unwrap().objects, "what is understood means the same to both");
        }
        for loaded in strict.into_iter().chain(lenient) {
            let mut pipeline = Pipeline::new(Scope::Cluster);
            pipeline.resync(loaded.objects).unwrap();
        }
    });
}

#[test]
fn mangled_services_end_in_an_error_or_in_the_same_answer_whatever_came_before() {
    let seed = fs::read(root().join("examples/services.yaml")).unwrap();
    let read = |text: &str, strictness| {
        let options = Options { strictness, services: ServiceKinds::Read, ..Options::default() };
        load_text("fuzz", text, options).map(|loaded| loaded.objects).unwrap_or_default()
    };
    let whole = read(&String::from_utf8_lossy(&seed), Strictness::Strict);
    bolero::check!().with_type::<Vec<Edit>>().with_test_time(duration()).for_each(|edits| {
        let text = edited(&seed, edits);
        let objects = read(&String::from_utf8_lossy(&text), Strictness::Lenient);
        let [mut fresh, mut changed] = [(); 2].map(|()| Resolver::new("node-1".into(), Settings::default()));
        let mut inventory = Inventory::default();
        for (resolver, states) in [(&mut fresh, vec![&objects]), (&mut changed, vec![&whole, &objects])] {
            resolver.listed();
            inventory = Inventory::default();
            for state in states {
                resolver.apply_batch(inventory.replace(state.clone()));
            }
        }
        assert_eq!(fresh.vips().count(), changed.vips().count(), "{inventory:?}");
        let client = Client { address: "203.0.113.7".parse().unwrap(), place: Place::Outside };
        for vip in fresh.vips() {
            let [one, other] = [&fresh, &changed].map(|resolver| {
                let decision = resolver.decide(client, vip.address, Some((vip.transport, vip.port))).unwrap();
                let port = resolver.port(decision.reached.unwrap().port).unwrap();
                let backends: Vec<_> = port.cluster.iter().map(|&id| resolver.backend(id).socket()).collect();
                (decision.service, decision.answer.action(), backends)
            });
            assert_eq!(one, other, "{vip}");
        }
    });
}

/// A rule in few bits, so that random rules overlap in every way: source and destination (host byte, prefix length), protocol, first port
/// and width, family, action.
type SmallRule = ((u8, u8), (u8, u8), u8, (u8, u8), bool, bool);

fn prefix((host, length): (u8, u8), v6: bool) -> Addresses {
    let (host, length) = (host % 32, length % 10);
    if length == 9 {
        return Addresses::Any;
    }
    let net = match v6 {
        false => IpNet::new(IpAddr::from([10, 0, 0, host]), 24 + length),
        true => IpNet::new(IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host)]), 120 + length),
    };
    Addresses::prefix(net.unwrap())
}

fn small_rule(at: usize, &(src, dst, protocol, (port, width), v6, allow): &SmallRule) -> Rule {
    let service = Service {
        protocols: ([0, 6, 17, 132][usize::from(protocol % 4)], [5, 6, 17, 255][usize::from(protocol % 4)]),
        ports: PortRange { first: u16::from(port % 16), last: u16::from(port % 16) + u16::from(width % 16) },
    };
    let services = if protocol > 200 { Services::Any } else { ServiceSet::from_iter([service]).into() };
    let action = if allow { Action::Allow } else { Action::Deny };
    let origin = OriginId(u32::try_from(at).unwrap());
    Rule { src: prefix(src, v6), dst: prefix(dst, v6), services, ..Rule::any(action, origin) }
}

#[test]
fn compiled_tables_answer_as_a_scan_of_the_rules() {
    type Probe = (u8, u8, u8, u8, bool);
    bolero::check!().with_type::<(Vec<SmallRule>, Vec<Probe>)>().with_test_time(duration()).for_each(
        |(rules, probes)| {
            let rules: Vec<Rule> = rules.iter().enumerate().map(|(at, rule)| small_rule(at, rule)).collect();
            let compiled = Tables::build(rules.clone()).unwrap();
            let scanned = Tables::scanned(rules).unwrap();
            let address = |host: u8, v6: bool| match v6 {
                false => IpAddr::from([10, 0, 0, host % 32]),
                true => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host % 32)]),
            };
            let key = |&(src, dst, protocol, port, v6): &Probe| {
                let protocol = [0, 6, 17, 58, 132, 255][usize::from(protocol % 6)];
                Key::new(address(src, v6), address(dst, v6), protocol, 40_000, u16::from(port % 32))
            };
            let keys: Vec<Key> = probes.iter().map(key).collect();
            let (mut fast, mut slow) = (vec![Verdict::NO_MATCH; keys.len()], vec![Verdict::NO_MATCH; keys.len()]);
            compiled.lookup_batch(&keys, &mut fast);
            scanned.lookup_batch(&keys, &mut slow);
            assert_eq!(fast, slow);
            for (key, verdict) in keys.iter().zip(slow) {
                assert_eq!(compiled.lookup(key), verdict);
            }
        },
    );
}

/// The number of rules in a grown list: more than the 1,024 that are matched directly, so that others are found through address classes.
const GROWN: usize = 1100;

/// The numbers of hosts on each side of a grown list, and of ports: more combinations than a cross product table accepts.
const HOSTS: usize = 47;
const PORTS: usize = 331;

fn v4(net: u8, host: usize, length: u8) -> IpNet {
    IpNet::new(IpAddr::from([10, net, 0, u8::try_from(host % HOSTS * 2).unwrap()]), length).unwrap()
}

/// A rule between two hosts with a source port. Random bits widen its prefixes, ports and services.
fn grown_rule(at: usize, bits: u8) -> Rule {
    let wider = |often: usize, length: u8| {
        if (at + usize::from(bits)).is_multiple_of(often + usize::from(bits)) { length } else { 32 }
    };
    let port = u16::try_from(at * 7 % PORTS).unwrap();
    let service = Service {
        protocols: ([6, 17, 1][at % 3], [6, 17, 1][at % 3]),
        ports: PortRange { first: port, last: port + u16::from(bits & 3) },
    };
    let first = u16::try_from(at * 5 % PORTS).unwrap();
    let action = if at.is_multiple_of(3) { Action::Deny } else { Action::Allow };
    Rule {
        src: Addresses::prefix(v4(0, at, wider(29, 30))),
        dst: Addresses::prefix(v4(1, at / HOSTS + at, wider(31, 29))),
        src_ports: PortRange { first, last: if bits & 4 == 0 { u16::MAX } else { first + 9 } },
        services: ServiceSet::from_iter([service]).into(),
        ..Rule::any(action, OriginId(u32::try_from(at).unwrap()))
    }
}

/// Scales a fraction of 65,536 to an index below `whole`.
fn scaled(place: u16, whole: usize) -> usize {
    usize::from(place) * whole / (usize::from(u16::MAX) + 1)
}

/// A key that matches the rule, or misses it narrowly in the fields whose bits are set in `miss`.
fn near(rule: &Rule, miss: u8) -> Key {
    let address = |addresses: &Addresses, miss: bool| {
        let first = match addresses.members() {
            Some(set) => set.v4_intervals().first().map_or(0, |&(first, _)| first),
            None => 0x0a00_0000,
        };
        IpAddr::from((first + u32::from(miss)).to_be_bytes())
    };
    let (number, port) = match &rule.services {
        Services::Set(set) => set.services().next().map_or((6, 0), |service| (service.protocols.0, service.ports.last)),
        Services::Any => (17, 80),
    };
    let bit = |bit: u8| miss >> bit & 3 == 3;
    let src_port = rule.src_ports.first.wrapping_sub(u16::from(bit(0)));
    let (src, dst) = (address(&rule.src, bit(2)), address(&rule.dst, bit(4)));
    Key::new(src, dst, number, src_port, port + u16::from(bit(6)))
}

/// An edit of a rule list: the kind, the position, and the bits of a rule.
type ListEdit = (u8, u16, u8);

/// Edits the list. Returns the edit as a change, or `None` if the tables must compare the whole list.
fn edited_list(list: &mut Vec<Rule>, (kind, place, bits): ListEdit) -> Option<Change> {
    let at = scaled(place, list.len());
    let any = |rule: &Rule| *rule == Rule::any(rule.action, rule.origin);
    match kind % 8 {
        0 | 1 => {
            let rule =
                if kind >= 240 { Rule::any(Action::Deny, OriginId(9)) } else { grown_rule(usize::from(place), bits) };
            list.insert(at, rule.clone());
            Some(Change::Insert { at, rule })
        }
        2 | 3 if !list.is_empty() => {
            let at = if kind >= 128 { list.iter().position(any).unwrap_or(at) } else { at };
            list.remove(at);
            Some(Change::Remove { at })
        }
        4 | 5 if !list.is_empty() => {
            // Adds a host to the rule's set, or removes one.
            let mut rule = list[at].clone();
            if let Addresses::Set(set) = &rule.src {
                let host = [v4(0, usize::from(bits), 32)].into_iter().collect();
                rule.src = if bits < 128 { set.union(&host) } else { set.subtract(&host) }.into();
            }
            list[at] = rule.clone();
            Some(Change::Replace { at, rule })
        }
        6 if !list.is_empty() => {
            let rule = grown_rule(usize::from(place), bits);
            list[at] = rule.clone();
            Some(Change::Replace { at, rule })
        }
        _ => {
            let end = (at + usize::from(bits % 16)).min(list.len());
            list[at..end].reverse();
            None
        }
    }
}

/// Applies edits to a list and to its tables, and compares both. Returns how many edits the tables followed without a rebuild.
fn follow(rules: Vec<Rule>, edits: &[ListEdit], probes: &[(u16, u8)]) -> usize {
    let mut list = rules;
    let mut tables = Tables::build(list.clone()).unwrap();
    let mut followed = 0;
    for &edit in edits {
        let (before, before_list) = (tables.clone(), list.clone());
        let change = edited_list(&mut list, edit);
        let cancelled = edit.2 % 16 == 15;
        let options = BuildOptions { cancelled: &|| cancelled, ..BuildOptions::default() };
        let changed = match change {
            Some(change) => tables.update(&[change], &options),
            None => tables.changed_to(&list, &options),
        };
        match changed {
            Ok(changed) => tables = changed,
            // On failure the tables in use stay valid.
            Err(error) => {
                assert_eq!((error, cancelled), (BuildError::Cancelled, true));
                list.clone_from(&before_list);
                tables = before;
            }
        }
        followed += usize::from(tables.describe().contains("changed since"));
        assert_eq!(*tables.rules(), *list);
        // Also probes keys of rules that were just removed.
        let keys: Vec<Key> = probes
            .iter()
            .flat_map(|probe| {
                [&list, &before_list].map(|list| list.get(scaled(probe.0, list.len())).map(|rule| near(rule, probe.1)))
            })
            .flatten()
            .collect();
        let mut verdicts = vec![Verdict::NO_MATCH; keys.len()];
        tables.lookup_batch(&keys, &mut verdicts);
        for (key, verdict) in keys.iter().zip(verdicts) {
            assert_eq!(verdict, bulkhead_classifier::linear::scan(&list, key), "{key:?}, {}", tables.describe());
            assert_eq!(verdict, tables.lookup(key));
        }
    }
    followed
}

#[test]
fn tables_that_follow_their_list_answer_as_a_scan_of_it() {
    // Some inputs have a rule for everything before the last fifty rules, which are not compiled until it is removed.
    let grown = |bits: &[u8]| -> Vec<Rule> {
        let all = (0..GROWN).map(|at| grown_rule(at, bits.get(at % bits.len().max(1)).copied().unwrap_or(0)));
        let mut list: Vec<Rule> = all.collect();
        if bits.first().is_some_and(|bits| bits % 2 == 1) {
            list.insert(GROWN - 50, Rule::any(Action::Allow, OriginId(7)));
        }
        list
    };
    // The initial list has the structure under test, and its tables follow all edits except the last.
    assert!(Tables::build(grown(&[])).unwrap().describe().contains("tuples"));
    let every_edit: Vec<ListEdit> = (0..8).map(|kind| (kind, u16::from(kind) * 5000, 3)).collect();
    let probes: Vec<(u16, u8)> = (0..250).map(|at| (u16::from(at) * 262, at)).collect();
    assert_eq!(follow(grown(&[]), &every_edit, &probes), every_edit.len());
    assert_eq!(follow(grown(&[1]), &[(130, 0, 0)], &probes), 0, "the rule for everything was taken out by a build");
    type Input = (Vec<u8>, Vec<ListEdit>, Vec<(u16, u8)>);
    bolero::check!().with_type::<Input>().with_test_time(duration()).for_each(|(bits, edits, probes)| {
        follow(grown(bits), edits, probes);
    });
}
