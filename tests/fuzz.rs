//! Input that nobody would send: damaged captures, hostile packets, mangled objects. The program answers with an error or
//! counted drops, never with a panic, and never loses a packet.
//!
//! The targets are bolero properties: `cargo test` runs each for a moment, `cargo xtask fuzz SECONDS` for that time, and
//! `cargo bolero test --test fuzz TARGET` under a coverage-guided fuzzer. Input is a list of edits to real files, because
//! random bytes do not get past the first magic number.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

mod support;

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_classifier::{
    Action, Addresses, Key, OriginId, PortRange, Rule, Service, ServiceSet, Services, Tables, Verdict,
};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::source::{Strictness, load_text};
use bulkhead_dataplane::io::{CaptureError, CaptureReader};
use bulkhead_dataplane::{LinkType, Outcome, Packet, SessionConfig, Snapshot, Worker, WorkerConfig};
use ipnet::IpNet;
use support::root;

/// How long each target runs in a plain `cargo test`.
const MOMENT: Duration = Duration::from_millis(500);

fn duration() -> Duration {
    let seconds = std::env::var("BULKHEAD_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    seconds.map_or(MOMENT, Duration::from_secs)
}

/// Files of all cases whose name starts so.
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
    bulkhead::run::snapshot(&pipeline.node_tables("node-1").unwrap()).unwrap()
}

/// One edit: where (as a part of the whole), what to do there, and with which byte.
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

/// A rule in few bits, so that random ones overlap in every way: source and destination (host byte, prefix length),
/// protocol, first port and width, family, action.
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
