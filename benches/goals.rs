//! Measures the control plane's promises, one line each: time (median and 99th percentile) and peak memory. `cargo bench --bench goals [--
//! TEXT...]` measures all lines, or those whose name contains one of the texts. Each line runs in its own process, so its peak memory is
//! its own. A line about a command runs the program on files and reports the program's time and peak. On a busy machine, `BULKHEAD_NET=1`
//! excludes the time in which the thread waited for a core.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints, and may panic")]

#[path = "goals/commands.rs"]
mod commands;
mod support;

use std::env;
use std::net::IpAddr;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bulkhead_classifier::{Key, protocol};
use bulkhead_control::cache::Event;
use bulkhead_control::inventory::Inventory;
use bulkhead_control::object::{IngressIsolation, Object, ObjectName, Pod, Policy, PolicyPort, Transport};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::reachability::Reachability;
use bulkhead_control::reachability::difference::Difference;
use bulkhead_control::reachability::removal::{Removal, Removals};
use bulkhead_control::renderer::acl::{Attachment, Interface};
use bulkhead_control::service::{Resolver, Settings, Vip};
use commands::{PEAK_OF_COMMAND, diff, diff_bundled, learn, test_claims};
use support::{
    HTTP, METRICS, Random, Shape, cluster, local_shape, namespace, naming_all, naming_team, node_name, pod,
    pod_address, policy, services, stress,
};

const LARGE: Shape = Shape { pods: 100_000, namespaces: 1_000, policies: 5_000, pods_per_node: 250, broad: 0 };
const SMALL: Shape = Shape { pods: 1_000, namespaces: 10, policies: 50, pods_per_node: 250, broad: 0 };

/// The cluster for questions about a state before it is rolled out.
const MEDIUM: Shape = Shape { pods: 10_000, namespaces: 100, policies: 1_000, pods_per_node: 250, broad: 0 };

/// Ten policies of each broad kind among the 5,000 others.
const BROAD: Shape = Shape { broad: 10, ..LARGE };

/// Events per line: enough that the 99th percentile has ten events above it.
const EVENTS: u32 = 1_000;

type Line = (&'static str, &'static str, fn() -> Vec<Duration>);

const LINES: &[Line] = &[
    ("full compile, 100,000 pods, 5,000 policies", "<= 2 s, <= 1 GiB", full_compile),
    ("one remote pod goes or comes, 100,000 pods", "<= 1 ms, p99 <= 5 ms", || remote_pod(LARGE)),
    ("one remote pod goes or comes, 1,000 pods", "flat", || remote_pod(SMALL)),
    ("the same pod, 1,000 pods around it", "flat within 2x of the next", || same_affected(1_000, 0)),
    ("the same pod, 100,000 pods around it", "flat within 2x of the last", || same_affected(100_000, 0)),
    ("one remote pod, 20 broad policies, 100,000 pods", "<= 1 ms, p99 <= 5 ms", || remote_pod(BROAD)),
    ("the same pod, 12 broad policies, 1,000 pods", "flat within 2x of the next", || same_affected(1_000, 6)),
    ("the same pod, 12 broad policies, 100,000 pods", "flat within 2x of the last", || same_affected(100_000, 6)),
    ("one policy changes, 100,000 pods", "p99 <= 10 ms", || policy_changes(LARGE)),
    ("one policy changes among 20 broad, 100,000 pods", "p99 <= 10 ms", || policy_changes(BROAD)),
    ("one namespace relabelled, named by 660 policies", "<= 100 ms", namespace_relabelled),
    ("Contiv's stress policy", "<= 1 s, <= 512 MiB", stress_policy),
    ("a batch of 1,000 pod events, 100,000 pods", "<= 20 ms", batch_of_pods),
    ("a namespace of 1,000 pods relabelled, 100 policies", "<= 20 ms", large_namespace_relabelled),
    ("one remote pod, 100 policies name all pods", "<= 1 ms", || all_pods_named(100)),
    ("one local pod goes or comes among 250", "<= 2 ms", local_pod),
    ("difference of two states, 10,000 pods, 1,000 policies", "<= 5 s, <= 1 GiB", difference),
    ("diff, 10,000 pods, 1,000 policies, as files", "<= 5 s, <= 1 GB", || diff(&["-o", "json"])),
    ("diff, the same, with a capture of 1,000,000 packets", "", || diff(&["-o", "json", "CAPTURE"])),
    ("diff of a bundled case", "<= 50 ms", diff_bundled),
    ("test, 100 claims, 10,000 pods, 1,000 policies", "<= 5 s", test_claims),
    ("learn, 1,000,000 packets between 1,000 pods", "<= 3 s", || learn(SMALL, false)),
    ("learn, 1,000,000 packets between 10,000 pods", "<= 3 s", || learn(MEDIUM, false)),
    ("learn, the same, any pod to any other", "", || learn(MEDIUM, true)),
    ("dead rules and policies, 10,000 pods, 1,000 policies", "<= 5 s, <= 1 GiB", dead),
    ("readiness of an endpoint, 10,000 Services of 10", "<= 1 ms, <= 64 MiB", endpoint_flips),
];

fn main() {
    if let Ok(at) = env::var("BULKHEAD_GOAL") {
        let (_, _, run) = LINES[at.parse::<usize>().unwrap()];
        return report(run());
    }
    println!("{:<50} {:>10} {:>10} {:>10}  goal", "work", "median", "p99", "peak");
    // Ignores the options that cargo adds.
    let wanted: Vec<String> = env::args().skip(1).filter(|text| !text.starts_with("--")).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|text| name.contains(&**text));
    for (at, (name, goal, _)) in LINES.iter().enumerate().filter(|(_, (name, ..))| is_wanted(name)) {
        let output = Command::new(env::current_exe().unwrap()).env("BULKHEAD_GOAL", at.to_string()).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        println!("{name:<50} {}  {goal}", String::from_utf8(output.stdout).unwrap().trim_end());
    }
}

fn report(mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let own = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).map_or("?", |text| text.trim());
    let peak = match PEAK_OF_COMMAND.load(Ordering::Relaxed) {
        0 => own.to_owned(),
        kilobytes => format!("{kilobytes} kB"),
    };
    println!("{:>10} {:>10} {:>10}", format!("{:.2?}", at(50)), format!("{:.2?}", at(99)), peak);
}

/// Measures the duration of one piece of work.
struct Watch {
    started: Instant,
    waited: Duration,
}

impl Watch {
    fn start() -> Self {
        Self { waited: waited(), started: Instant::now() }
    }

    fn stop(self) -> Duration {
        let took = self.started.elapsed();
        took.saturating_sub(waited().saturating_sub(self.waited))
    }
}

/// Time that this thread has waited for a core. 0 unless `BULKHEAD_NET` is set.
fn waited() -> Duration {
    if env::var_os("BULKHEAD_NET").is_none() {
        return Duration::ZERO;
    }
    // Source: Linux, Documentation/scheduler/sched-stats.rst: nanoseconds on a core, then on a run queue.
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split_whitespace().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// Compiles a state and checks for each rule and policy whether any verdict would change without it, as `lint` does. Every tenth policy has
/// a copy, so neither of the two ever decides.
fn dead() -> Vec<Duration> {
    let mut objects = cluster(MEDIUM);
    let copies = objects.iter().filter_map(|object| match object {
        Object::Policy(policy) => Some(policy.clone()),
        _ => None,
    });
    let copies: Vec<Object> = copies
        .step_by(10)
        .map(|policy| {
            let name = ObjectName::new(policy.name.namespace.clone(), format!("{}-again", policy.name.name));
            Object::from(Policy { name, ..Policy::clone(&policy) })
        })
        .collect();
    let names: Vec<ObjectName> = objects
        .iter()
        .chain(&copies)
        .filter_map(|object| match object {
            Object::Policy(policy) => Some(policy.name.clone()),
            _ => None,
        })
        .collect();
    objects.extend(copies);
    let watch = Watch::start();
    let mut pipeline = Pipeline::with_every_rule(IngressIsolation::ClusterDefault);
    pipeline.resync(objects).unwrap();
    let reachability = Reachability::of(&pipeline, pipeline.mirror().unwrap());
    let mut removals = Removals::of(&reachability, pipeline.origins());
    let rules = names.iter().flat_map(|policy| removals.rules_of(policy));
    let dead: Vec<_> = rules.filter(|&rule| removals.is_harmless(&Removal::of_rule(rule))).collect();
    let explained = dead.iter().filter(|&&rule| !removals.reason(rule).by.is_empty()).count();
    let whole = |name: &&ObjectName| {
        removals.is_harmless(&Removal { policies: [(*name).clone()].into(), ..Removal::default() })
    };
    let policies = names.iter().filter(whole).count();
    let mut together = 0;
    for &rule in &dead {
        if removals.is_harmless(&Removal::of_rule(rule)) {
            removals.remove(&Removal::of_rule(rule));
            together += 1;
        }
    }
    let took = watch.stop();
    assert!(policies >= 200 && explained >= 200 && together < dead.len(), "{policies}, {explained}, {together}");
    vec![took]
}

/// Compiles and compares two states. In the new one, one tenth of the policies is missing, and one tenth has another port.
fn difference() -> Vec<Duration> {
    let old = cluster(MEDIUM);
    let changed = |(at, object): (usize, &Object)| match object {
        Object::Policy(_) if at % 10 == 0 => None,
        Object::Policy(policy) if at % 10 == 1 => {
            let mut policy = Policy::clone(policy);
            for rule in policy.ingress.iter_mut().flatten() {
                let port = PolicyPort::Range { transport: Transport::Tcp, first: 7_000, last: 7_010 };
                rule.ports.iter_mut().for_each(|ports| ports.push(port.clone()));
            }
            Some(policy.into())
        }
        object => Some(object.clone()),
    };
    let new: Vec<Object> = old.iter().enumerate().filter_map(changed).collect();
    let watch = Watch::start();
    let states = [old, new].map(|objects| {
        let mut pipeline = Pipeline::without_tables(IngressIsolation::ClusterDefault);
        pipeline.resync(objects).unwrap();
        let reachability = Reachability::of(&pipeline, pipeline.mirror().unwrap());
        (pipeline, reachability)
    });
    let difference = Difference::of(&states[0].1, &states[1].1);
    let took = watch.stop();
    assert!(difference.pairs().len() > 1_000 && difference.only_before().is_empty());
    vec![took]
}

fn compiled(objects: Vec<Object>) -> Pipeline {
    let mut pipeline = Pipeline::new(Scope::Node(node_name(0)));
    pipeline.resync(objects).unwrap();
    let tables = pipeline.node_tables(&node_name(0)).unwrap();
    assert!(tables.tables.iter().any(|table| table.tables.rules().len() >= 3), "the node's pods are isolated");
    pipeline
}

fn timed(events: impl Iterator<Item = Event>, pipeline: &mut Pipeline) -> Vec<Duration> {
    events
        .map(|event| {
            let watch = Watch::start();
            pipeline.apply(event).unwrap();
            watch.stop()
        })
        .collect()
}

fn full_compile() -> Vec<Duration> {
    compiles(&cluster(LARGE))
}

fn stress_policy() -> Vec<Duration> {
    compiles(&stress())
}

fn compiles(objects: &[Object]) -> Vec<Duration> {
    (0..5)
        .map(|_| {
            let objects = objects.to_vec();
            let watch = Watch::start();
            let pipeline = compiled(objects);
            let took = watch.stop();
            drop(pipeline);
            took
        })
        .collect()
}

/// Deletes and adds pods of other nodes, spread over all namespaces and apps.
fn remote_pod(shape: Shape) -> Vec<Duration> {
    let mut pipeline = compiled(cluster(shape));
    if shape.broad > 0 {
        check_broad(&mut pipeline, &pod(shape, shape.pods - 1), 0);
    }
    let remote = (0..EVENTS).map(|at| pod(shape, shape.pods - 1 - at % (shape.pods - shape.pods_per_node)));
    let events = remote.flat_map(|pod| [Event::DeletePod(pod.name.clone()), Event::Apply(pod.into())]);
    timed(events, &mut pipeline)
}

/// Deletes and adds a pod that a fixed number of local pods admits, in clusters of different sizes.
fn same_affected(pods: u32, broad: u32) -> Vec<Duration> {
    let (objects, remote) = local_shape(pods, broad);
    let mut pipeline = compiled(objects);
    if broad > 0 {
        check_broad(&mut pipeline, &remote, 0);
    }
    let events = (0..EVENTS).flat_map(|_| [Event::DeletePod(remote.name.clone()), Event::Apply(remote.clone().into())]);
    timed(events, &mut pipeline)
}

/// Checks that broad policies allow traffic from local pod number `local` to a remote pod only while the remote pod exists.
fn check_broad(pipeline: &mut Pipeline, remote: &Pod, local: u32) {
    let (local, there, nobody) = (pod_address(local), remote.addresses[0], "10.255.0.1".parse().unwrap());
    let verdicts = |pipeline: &Pipeline| {
        let tables = pipeline.node_tables(&node_name(0)).unwrap();
        let allows = |to: IpAddr, from: IpAddr, port: u16| {
            let has = |interface: &&Interface| interface.addresses.contains(&to);
            let uplink = |interface: &&Interface| interface.attachment == Attachment::Uplink;
            let interface = tables.interfaces.iter().find(has).or(tables.interfaces.iter().find(uplink)).unwrap();
            let key = Key::new(from, to, protocol::TCP, 40_000, port);
            tables.tables[interface.table].tables.lookup(&key).is_allow()
        };
        [(local, there, METRICS), (there, local, HTTP), (local, there, 1), (nobody, local, HTTP)]
            .map(|(to, from, port)| allows(to, from, port))
    };
    assert_eq!(verdicts(pipeline), [true, true, false, false], "the pod is there");
    pipeline.apply(Event::DeletePod(remote.name.clone())).unwrap();
    assert_eq!(verdicts(pipeline), [false; 4], "the pod is gone");
    pipeline.apply(Event::Apply(remote.clone().into())).unwrap();
    assert_eq!(verdicts(pipeline), [true, true, false, false], "the pod is back");
}

fn policy_changes(shape: Shape) -> Vec<Duration> {
    let mut pipeline = compiled(cluster(shape));
    let mut random = Random(7);
    let events = (0..EVENTS).map(|at| Event::Apply(policy(shape, at * 7 % shape.policies, &mut random).into()));
    timed(events.collect::<Vec<_>>().into_iter(), &mut pipeline)
}

/// Deletes pods of other nodes in one batch and adds them in the next.
fn batch_of_pods() -> Vec<Duration> {
    let mut pipeline = compiled(cluster(LARGE));
    let batches = (0..EVENTS / 25).map(|at| {
        let pods = (0..1_000).map(|of| pod(LARGE, LARGE.pods - 1 - (at / 2 * 1_000 + of) * 7 % 90_000));
        let event = |pod: Pod| match at % 2 {
            0 => Event::DeletePod(pod.name),
            _ => Event::Apply(pod.into()),
        };
        pods.map(event).collect::<Vec<_>>()
    });
    let batches: Vec<_> = batches.collect();
    timed_batches(batches, &mut pipeline)
}

/// Moves a namespace with 1,000 of the 100,000 pods into and out of the team that 100 policies of local pods name.
fn large_namespace_relabelled() -> Vec<Duration> {
    let shape = Shape { namespaces: 100, policies: 0, ..LARGE };
    let mut objects = cluster(shape);
    objects.extend((0..100).map(|at| naming_team(at, shape)));
    let mut pipeline = compiled(objects);
    let events = (0..EVENTS / 10).map(|at| vec![Event::Apply(Object::Namespace(namespace(50, at % 2)))]);
    timed_batches(events.collect(), &mut pipeline)
}

/// Deletes and adds a pod of another node, where each of `policies` local policies names all pods in both directions.
fn all_pods_named(policies: u32) -> Vec<Duration> {
    let mut objects = cluster(Shape { policies: 0, ..LARGE });
    objects.extend((0..policies).map(|at| naming_all(at, LARGE)));
    let mut pipeline = compiled(objects);
    let remote = (0..EVENTS).map(|at| pod(LARGE, LARGE.pods - 1 - at % (LARGE.pods - LARGE.pods_per_node)));
    let events = remote.flat_map(|pod| [Event::DeletePod(pod.name.clone()), Event::Apply(pod.into())]);
    timed(events, &mut pipeline)
}

/// Deletes and adds pods of the node.
fn local_pod() -> Vec<Duration> {
    let mut pipeline = compiled(cluster(LARGE));
    let local = (0..EVENTS).map(|at| pod(LARGE, at % LARGE.pods_per_node));
    let events = local.flat_map(|pod| [Event::DeletePod(pod.name.clone()), Event::Apply(pod.into())]);
    timed(events, &mut pipeline)
}

fn timed_batches(batches: Vec<Vec<Event>>, pipeline: &mut Pipeline) -> Vec<Duration> {
    batches
        .into_iter()
        .map(|batch| {
            let watch = Watch::start();
            pipeline.apply_batch(batch).unwrap();
            watch.stop()
        })
        .collect()
}

/// Changes a namespace's team. About 660 of the 5,000 policies name each team.
fn namespace_relabelled() -> Vec<Duration> {
    let mut pipeline = compiled(cluster(LARGE));
    let events = (0..EVENTS / 10).map(|at| Event::Apply(Object::Namespace(namespace(500, at % 10))));
    timed(events, &mut pipeline)
}

/// Changes the readiness of one endpoint of 100,000. The peak memory is that of the resolver and of the inventory with all objects.
fn endpoint_flips() -> Vec<Duration> {
    const SERVICES: u32 = 10_000;
    let mut resolver = Resolver::new(node_name(0), Settings::default());
    let mut inventory = Inventory::default();
    let node = std::iter::once(Object::Node(services::own_node()));
    let others = (0..SERVICES).flat_map(|at| {
        let (service, slice) = (services::service(at), services::slice(at, None));
        [Object::Service(service.into()), Object::EndpointSlice(slice.into())]
    });
    assert!(resolver.apply_batch(inventory.replace(node.chain(others))).is_empty());
    assert_eq!(resolver.listed().ports.len(), SERVICES as usize);
    assert_eq!(resolver.backend_count(), (SERVICES * services::ENDPOINTS) as usize);
    let mut times = Vec::new();
    for at in 0..EVENTS {
        let service = at / 2 * 17 % SERVICES;
        let unready = at.is_multiple_of(2).then_some(0);
        let slice = Event::Apply(Object::EndpointSlice(services::slice(service, unready).into()));
        let watch = Watch::start();
        let changes = resolver.apply(slice);
        times.push(watch.stop());
        let vip = Vip { address: services::cluster_ip(service), transport: Transport::Tcp, port: 80 };
        let (port, _) = resolver.vip(&vip).unwrap();
        assert_eq!((changes.ports, changes.backends.len(), changes.vips.len()), ([port].into(), 1, 0));
    }
    times
}
