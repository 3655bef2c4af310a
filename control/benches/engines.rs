//! Rule lists beside identities, on one node of clusters of three sizes: memory, one event, one lookup. `cargo bench -p bulkhead-control
//! --bench engines [-- PODS...]`: three sizes, or these. Each line is measured in a process of its own, so that its memory is its own. Both
//! engines give the same answers to the same packets, or the bench fails.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints, and may panic")]

#[path = "../../benches/support/mod.rs"]
mod support;

use std::env;
use std::hint::black_box;
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use bulkhead_classifier::{Key, Verdict, protocol};
use bulkhead_control::cache::Event;
use bulkhead_control::object::IngressIsolation;
use bulkhead_control::pipeline::{Engine, Pipeline};
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::acl::{Attachment, NodeTables};
use support::{Random, Shape, cluster, naming_all, node_name, pod, pod_address};

const SIZES: [u32; 3] = [1_000, 10_000, 100_000];

/// Pods of the node: the default bound of a kubelet is 110, and 250 is what large clusters allow.
const LOCAL: u32 = 250;

/// Policies that name all pods, in clusters that have such.
const BROAD: u32 = 100;

/// Keys that are asked in turns: enough that neither engine has all of their ways in its nearest cache.
const KEYS: u32 = 1 << 14;

/// Remote pods that go and come again.
const EVENTS: u32 = 500;

/// Packets are judged a burst at a time.
const BURST: usize = 32;

fn shape(pods: u32) -> Shape {
    Shape { pods, namespaces: pods / 100, policies: pods / 20, pods_per_node: LOCAL, broad: 0 }
}

fn main() {
    if let Ok(line) = env::var("BULKHEAD_ENGINES") {
        let words: Vec<&str> = line.split(' ').collect();
        let engine = if words[1] == "acl" { Engine::Acl } else { Engine::Identity };
        return measure(words[0].parse().unwrap(), engine, words[2] == "broad");
    }
    let wanted: Vec<u32> = env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    println!(
        "{:>7} {:<8} {:<6} {:>9} {:>9} {:>10} {:>9} {:>9} {:>9} {:>9}",
        "pods", "engine", "", "compile", "peak MB", "tables KiB", "event", "p99", "burst ns", "single ns"
    );
    for pods in if wanted.is_empty() { SIZES.to_vec() } else { wanted } {
        for kind in ["usual", "broad"] {
            let answers = ["acl", "identity"].map(|engine| {
                let line = format!("{pods} {engine} {kind}");
                let output = Command::new(env::current_exe().unwrap()).env("BULKHEAD_ENGINES", &line).output().unwrap();
                assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
                let text = String::from_utf8(output.stdout).unwrap();
                let (answers, figures) = text.trim_end().split_once('\n').unwrap();
                println!("{pods:>7} {engine:<8} {kind:<6} {figures}");
                answers.to_owned()
            });
            assert_eq!(answers[0], answers[1], "the engines have the same verdicts");
        }
    }
}

/// Keys with the position of the table that judges each: half to local pods, half from them.
fn keys(pods: u32, tables: &NodeTables) -> Vec<(usize, Key)> {
    let mut random = Random(11);
    let table_of = |address: IpAddr| {
        let has = |at: &&bulkhead_control::renderer::acl::Interface| at.addresses.contains(&address);
        let uplink = tables.interfaces.iter().find(|at| at.attachment == Attachment::Uplink);
        tables.interfaces.iter().find(has).or(uplink).unwrap().table
    };
    (0..KEYS)
        .map(|at| {
            let ends = [pod_address(random.below(LOCAL)), pod_address(random.below(pods))];
            let [local, remote] = if at % 8 == 0 { [ends[0], [203, 0, 113, at.to_le_bytes()[1]].into()] } else { ends };
            let (src, dst) = if at % 2 == 0 { (local, remote) } else { (remote, local) };
            let port = [443, 8_080, 9_090, 1_007, 22][usize::try_from(random.below(5)).unwrap()];
            (table_of(dst), Key::new(src, dst, protocol::TCP, 40_000, port))
        })
        .collect()
}

fn measure(pods: u32, engine: Engine, is_broad: bool) {
    let shape = shape(pods);
    let mut objects = cluster(shape);
    objects.extend((0..if is_broad { BROAD } else { 0 }).map(|at| naming_all(at, shape)));
    let mut pipeline = Pipeline::with_engine(Scope::Node(node_name(0)), IngressIsolation::ClusterDefault, engine);
    let started = Instant::now();
    pipeline.resync(objects).unwrap();
    let compiled = started.elapsed();
    let tables = pipeline.node_tables(&node_name(0)).unwrap();
    let keys = keys(pods, &tables);
    let allowed: Vec<u8> =
        keys.iter().map(|(table, key)| u8::from(tables.tables[*table].tables.lookup(key).is_allow())).collect();
    let count = allowed.iter().filter(|&&allowed| allowed == 1).count();
    assert!(count > 100 && count + 100 < allowed.len(), "{count} of {} are allowed", allowed.len());
    println!("{:x}", allowed.iter().fold(7_u64, |sum, &one| sum.wrapping_mul(31).wrapping_add(one.into())));
    let bytes: usize = tables.tables.iter().map(|table| table.tables.bytes()).sum();
    let mut events: Vec<Duration> = Vec::new();
    for at in 0..EVENTS {
        let remote = pod(shape, pods - 1 - at % (pods - LOCAL));
        for event in [Event::DeletePod(remote.name.clone()), Event::Apply(remote.into())] {
            let started = Instant::now();
            pipeline.apply(event).unwrap();
            events.push(started.elapsed());
        }
    }
    events.sort_unstable();
    let (median, p99) = (events[events.len() / 2], events[events.len() * 99 / 100]);
    drop(pipeline);
    let (burst, single) = (nanoseconds(&tables, &keys, BURST), nanoseconds(&tables, &keys, 1));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    let peak: u64 = peak.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0);
    println!(
        "{:>9} {:>9} {:>10} {:>9} {:>9} {burst:>9.1} {single:>9.1}",
        format!("{compiled:.1?}"),
        peak >> 10,
        bytes >> 10,
        format!("{median:.1?}"),
        format!("{p99:.1?}"),
    );
}

/// Nanoseconds per key, the best of some rounds: all keys of a table at a time, as a worker gathers them.
fn nanoseconds(tables: &NodeTables, keys: &[(usize, Key)], burst: usize) -> f64 {
    let mut sorted = keys.to_vec();
    // A burst is for some tables; the keys of one follow each other within 256.
    sorted.chunks_mut(256).for_each(|keys| keys.sort_by_key(|(table, _)| *table));
    let runs: Vec<(usize, Vec<Key>)> = sorted
        .chunk_by(|one, other| one.0 == other.0)
        .flat_map(|same| same.chunks(burst))
        .map(|run| (run[0].0, run.iter().map(|(_, key)| *key).collect()))
        .collect();
    let mut verdicts = vec![Verdict::NO_MATCH; burst];
    let round = |verdicts: &mut Vec<Verdict>| {
        let started = Instant::now();
        for (table, keys) in &runs {
            tables.tables[*table].tables.lookup_batch(keys, &mut verdicts[..keys.len()]);
            black_box(&verdicts);
        }
        started.elapsed().as_secs_f64() * 1e9 / f64::from(KEYS)
    };
    (0..30).map(|_| round(&mut verdicts)).fold(f64::INFINITY, f64::min)
}
