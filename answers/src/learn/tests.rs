//! Random clusters with traffic. Learned policies must deny no seen session, and the surplus must equal that of trying all connections.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod by_name;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use bulkhead_control::object::{Peer, Policy, PolicyPort, PolicyRule, Transport};
use bulkhead_control::source::ServiceKinds;

use super::*;
use crate::args::PortProtocol;
use crate::fabric::{End, Fabric};
use crate::flows::verdict::Fate;

/// A repeatable generator of pseudo-random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

const PORTS: [u16; 5] = [53, 80, 81, 443, 8080];

struct Cluster {
    state: String,
    log: String,
}

struct Made {
    workload: usize,
    v4: String,
    v6: Option<String>,
}

fn pods(random: &mut Random, state: &mut String) -> Vec<Made> {
    let mut made: Vec<Made> = Vec::new();
    for workload in 0..2 + random.below(4) {
        let namespace = random.one(&["a", "b", "kube-system"]);
        let labels = match random.below(5) {
            0 => "{k8s-app: kube-dns}".to_owned(),
            1 => format!("{{app: w, tier: t{workload}}}"),
            2 => format!("{{app: w{workload}, pod-template-hash: x{workload}}}"),
            3 => "{app: w}".to_owned(),
            _ => format!("{{run: r{}}}", random.below(2)),
        };
        let named = random.below(2) == 0;
        // Some pods have an owner, and some of these have labels that the owner's other pods lack.
        let owned = random.below(3);
        for _ in 0..1 + random.below(3) {
            let at = made.len() + 1;
            let node = 1 + random.below(2);
            let v6 = (random.below(3) == 0).then(|| format!("fd00:{node}::{at}"));
            let v4 = format!("10.244.{node}.{at}");
            let ips = v6.iter().fold(format!("{{ip: {v4}}}"), |ips, v6| format!("{ips}, {{ip: '{v6}'}}"));
            let ports =
                if named { "[{name: http, containerPort: 80}, {name: web, containerPort: 8080}]" } else { "[]" };
            let owner = if owned == 0 {
                String::new()
            } else {
                format!(
                    ", ownerReferences: [{{apiVersion: apps/v1, kind: StatefulSet, name: s{workload}, uid: u, controller: true}}]"
                )
            };
            let labels = match owned {
                2 => labels.replacen('{', &format!("{{rank: r{at}, "), 1),
                _ => labels.clone(),
            };
            let _ = writeln!(
                state,
                "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{at}, namespace: {namespace}, labels: {labels}{owner}}}\n\
                 spec: {{nodeName: n{node}, containers: [{{name: c, ports: {ports}}}]}}\nstatus: {{phase: Running, podIPs: [{ips}]}}"
            );
            made.push(Made { workload, v4, v6 });
        }
    }
    made
}

/// Returns a cluster and traffic that a policy between its workloads has allowed.
fn cluster(seed: u64) -> Cluster {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut state = String::new();
    for namespace in ["a", "b", "kube-system"] {
        let _ = writeln!(state, "---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}}}");
    }
    for node in 1..=2 {
        let _ = writeln!(
            state,
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: n{node}}}\nspec: {{podCIDRs: [10.244.{node}.0/24]}}\n\
             status: {{addresses: [{{type: InternalIP, address: 172.18.0.{node}}}]}}"
        );
    }
    let pods = pods(&mut random, &mut state);
    if random.below(3) == 0 {
        let _ = writeln!(
            state,
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: own, namespace: a}}\n\
             spec: {{podSelector: {{}}, ingress: [{{from: [{{podSelector: {{}}}}], ports: [{{port: 80}}]}}]}}"
        );
    }
    let workloads = pods.last().unwrap().workload + 1;
    // Allowed connections: from a workload or from outside, to a workload or to outside, at a port.
    let allowed: Vec<(usize, usize, &str, u16)> = (0..1 + random.below(6))
        .map(|_| {
            let (from, to) = (random.below(workloads + 1), random.below(workloads + 1));
            (from, to, *random.one(&["tcp      6", "udp      17"]), *random.one(&PORTS))
        })
        .collect();
    let mut log = String::new();
    for at in 0..3 + random.below(20) {
        let &(from, to, protocol, port) = random.one(&allowed);
        let mut end = |of: usize| {
            let its: Vec<&Made> = pods.iter().filter(|pod| pod.workload == of).collect();
            if its.is_empty() {
                let host = random.below(6);
                return (format!("192.0.2.{host}"), Some(format!("2001:db8::{host}")));
            }
            let pod = random.one(&its);
            (pod.v4.clone(), pod.v6.clone())
        };
        let ((from, from6), (to, to6)) = (end(from), end(to));
        let (from, to) = if at % 3 == 0 { from6.zip(to6).unwrap_or((from, to)) } else { (from, to) };
        let sport = 40_000 + at;
        let _ = writeln!(
            log,
            "[17954666{at:02}.000000]\t[NEW] {protocol} 30 src={from} dst={to} sport={sport} dport={port} src={to} dst={from} sport={port} dport={sport}"
        );
    }
    Cluster { state, log }
}

type Pair = (IpAddr, IpAddr, Transport, u16);

fn lesson(cluster: &Cluster, slack: u64) -> Lesson {
    lesson_for(cluster, slack, &[])
}

fn lesson_for(cluster: &Cluster, slack: u64, namespaces: &[&str]) -> Lesson {
    let mut seen = Observations::new(false).by_name();
    crate::flows::read("log", cluster.log.as_bytes(), &mut seen).unwrap();
    let namespaces = namespaces.iter().map(|&name| name.into()).collect();
    let wanted = Wanted { direction: Learned::Both, namespaces, slack };
    let state = State {
        pipeline: compiled(&cluster.state),
        services: Vec::new(),
        settings: Settings::default(),
        strictness: Strictness::Strict,
    };
    learn(state, &seen.flows().unwrap(), wanted).unwrap()
}

pub(super) fn compiled(state: &str) -> Pipeline {
    let options = bulkhead_control::source::Options {
        services: ServiceKinds::Read,
        ..bulkhead_control::source::Options::default()
    };
    let loaded = load_text("state", state, options).unwrap();
    let mut pipeline = Pipeline::without_tables(Default::default());
    pipeline.resync(loaded.objects).unwrap();
    pipeline
}

/// Whether a rule of the policy allows the connection. One end is a pod that the policy selects.
fn names(policy: &Policy, pipeline: &Pipeline, from: &End, to: &End, port: PortProtocol) -> bool {
    let cache = pipeline.cache();
    let pod = |end: &End| match end {
        End::Pod { name, .. } => cache.pod_key(name).and_then(|key| cache.pod(key)).cloned(),
        _ => None,
    };
    let is_port = |wanted: &PolicyPort| match wanted {
        PolicyPort::All(transport) => port.protocol == (*transport).into(),
        PolicyPort::Range { transport, first, last } => {
            port.protocol == (*transport).into() && (*first..=*last).contains(&port.port)
        }
        PolicyPort::Numbers { .. } => false,
        PolicyPort::Named { transport, name } => pod(to).is_some_and(|pod| {
            let is = |of: &bulkhead_control::object::ContainerPort| {
                (&of.name, of.transport, of.port) == (name, *transport, port.port)
                    && port.protocol == (*transport).into()
            };
            pod.ports.iter().any(is)
        }),
    };
    let is_peer = |peer: &Peer, end: &End| match peer {
        Peer::Pods(peer) => pod(end).is_some_and(|pod| {
            peer.pods.matches(&pod.labels) && cache.scope_covers(&peer.namespaces, &pod.name.namespace)
        }),
        Peer::Block(block) => block.cidr.contains(&end.address()),
        Peer::Nodes(_) | Peer::OwnNode | Peer::Names(_) | Peer::Region(_) => false,
    };
    let by = |rules: &Option<Vec<PolicyRule>>, subject: &End, peer: &End| {
        let is_subject = pod(subject)
            .is_some_and(|pod| pod.name.namespace == policy.name.namespace && policy.subject.matches(&pod.labels));
        is_subject
            && rules.iter().flatten().any(|rule| {
                rule.peers.as_ref().is_none_or(|peers| peers.iter().any(|of| is_peer(of, peer)))
                    && rule.ports.as_ref().is_none_or(|ports| ports.iter().any(is_port))
            })
    };
    by(&policy.ingress, to, from) || by(&policy.egress, from, to)
}

/// Returns the connections that a learned rule names and that are allowed but were not seen, by trying each pair of ends at each port.
fn tried(cluster: &Cluster, lesson: &Lesson) -> BTreeSet<Pair> {
    let pipeline = compiled(&format!("{}---\n{}", cluster.state, lesson.yaml));
    let learned: Vec<_> = pipeline
        .cache()
        .policies()
        .values()
        .filter(|policy| policy.name.name.starts_with("learned-"))
        .cloned()
        .collect();
    let outside = (0..16).flat_map(|host| [format!("192.0.2.{host}"), format!("2001:db8::{host:x}")]);
    let outside = outside.map(|address| End::External(address.parse().unwrap()));
    let ends: Vec<End> =
        pipeline.cache().pods().flat_map(|(_, pod)| End::of_pod(pod).collect::<Vec<_>>()).chain(outside).collect();
    let mut fabric = Fabric::new(&pipeline, Strictness::Strict);
    let mut found = BTreeSet::new();
    for (from, to) in ends.iter().flat_map(|from| ends.iter().map(move |to| (from, to))) {
        let (a, b) = (from.address(), to.address());
        if a == b || a.is_ipv4() != b.is_ipv4() || (from.node().is_none() && to.node().is_none()) {
            continue;
        }
        for (transport, port) in
            [Transport::Tcp, Transport::Udp].into_iter().flat_map(|of| PORTS.map(|port| (of, port)))
        {
            let key = (a, b, transport, port);
            let asked = PortProtocol::new(port, transport);
            if !lesson.evidence.contacts.contains_key(&key)
                && learned.iter().any(|policy| names(policy, &pipeline, from, to, asked))
                && fabric.allowed(from, to, asked).unwrap()
            {
                found.insert(key);
            }
        }
    }
    found
}

fn expanded(surplus: &Surplus) -> BTreeSet<Pair> {
    let addresses = |(first, last): (IpAddr, IpAddr)| -> Vec<IpAddr> {
        match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                (u32::from(first)..=u32::from(last)).map(|address| IpAddr::V4(address.into())).collect()
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                (u128::from(first)..=u128::from(last)).map(|address| IpAddr::V6(address.into())).collect()
            }
            _ => panic!("two families"),
        }
    };
    let mut pairs = BTreeSet::new();
    for excess in &surplus.excess {
        let all = |ranges: &[(IpAddr, IpAddr)]| ranges.iter().flat_map(|&range| addresses(range)).collect::<Vec<_>>();
        let (sources, destinations) = (all(&excess.from), all(&excess.to));
        let of_both = sources.iter().flat_map(|&from| destinations.iter().map(move |&to| (from, to)));
        let meant: Vec<_> = of_both.filter(|pair| !excess.but.contains(pair)).collect();
        assert_eq!(excess.pairs(), meant.len() as u128, "{excess:?}");
        for (from, to) in meant {
            let ports = excess.ports.iter().flat_map(|&(first, last)| first..=last);
            for pair in ports.map(|port| (from, to, excess.transport, port)) {
                assert!(pairs.insert(pair), "{pair:?} is reported twice");
            }
        }
    }
    pairs
}

fn check(seeds: std::ops::Range<u64>) {
    let mut reached: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in seeds {
        let cluster = cluster(seed);
        let slack = [0, 0, 8][usize::try_from(seed % 3).unwrap()];
        let lesson = lesson(&cluster, slack);
        assert!(lesson.proof.holds(), "seed {seed}: {:?}\n{}\n{}", lesson.proof.denied, cluster.state, lesson.yaml);
        let (told, tried) = (expanded(&lesson.surplus), tried(&cluster, &lesson));
        assert_eq!(told, tried, "seed {seed}:\n{}\n{}\n{}", cluster.state, cluster.log, lesson.yaml);
        let again = self::lesson(&cluster, slack);
        assert_eq!(again.yaml, lesson.yaml, "seed {seed}: the order is stable");
        let of_one = lesson_for(&cluster, slack, &["a"]);
        let is_of_one = |policy: &LearnedPolicy| &*of_one.workloads.all[policy.workload].namespace == "a";
        assert!(of_one.proof.holds() && of_one.policies.iter().all(is_of_one), "seed {seed}: {}", of_one.yaml);
        let wanted = lesson.policies.iter().filter(|policy| is_of_one(policy)).count();
        assert_eq!(of_one.policies.len(), wanted, "seed {seed}: {}", of_one.yaml);
        for (what, is) in [
            ("policies", !lesson.policies.is_empty()),
            ("surplus", !told.is_empty()),
            ("no surplus", told.is_empty() && !lesson.policies.is_empty()),
            ("IPv6", lesson.evidence.contacts.keys().any(|(from, ..)| from.is_ipv6())),
            ("named port", lesson.yaml.contains("port: http")),
            ("block", lesson.yaml.contains("ipBlock")),
            ("other namespace", lesson.yaml.contains("namespaceSelector")),
            ("told apart by absence", lesson.yaml.contains("DoesNotExist")),
            (
                "one owner, several labels",
                lesson
                    .workloads
                    .all
                    .iter()
                    .any(|of| of.pods.iter().any(|pod| pod.labels.get("rank") != of.pods[0].labels.get("rank"))),
            ),
            ("DNS", lesson.yaml.contains("protocol: UDP\n          port: 53")),
            ("not answered", lesson.evidence.refused > 0),
        ] {
            *reached.entry(what).or_default() += u32::from(is);
        }
    }
    reached.remove("not answered");
    assert!(reached.values().all(|&count| count > 0), "{reached:?}");
}

#[test]
fn no_seen_session_is_denied_and_the_surplus_is_what_trying_everything_finds() {
    check(0..60);
}

#[test]
#[ignore = "slow: the same on 1,000 clusters"]
fn the_same_on_a_thousand_clusters() {
    check(1000..2000);
}

#[test]
fn slack_joins_addresses_and_counts_what_it_adds() {
    let state = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: p, \
                 namespace: a, labels: {app: p}}\nspec: {nodeName: node-1, containers: [{name: c}]}\nstatus: {phase: Running, podIPs: [{ip: \
                 10.0.0.1}]}\n";
    let line = |to: u8| {
        format!(
            "udp 17 29 src=10.0.0.1 dst=192.0.2.{to} sport=9 dport=80 src=192.0.2.{to} dst=10.0.0.1 sport=80 dport=9\n"
        )
    };
    let cluster = Cluster { state: state.to_owned(), log: [0, 1, 2, 6].map(line).concat() };
    let exact = lesson(&cluster, 0);
    for block in ["192.0.2.0/31", "192.0.2.2/32", "192.0.2.6/32"] {
        assert!(exact.yaml.contains(block), "{}", exact.yaml);
    }
    assert_eq!(exact.surplus.excess.len(), 0);
    let one = lesson(&cluster, 1);
    assert!(one.yaml.contains("192.0.2.0/30") && one.yaml.contains("192.0.2.6/32"), "{}", one.yaml);
    assert_eq!(expanded(&one.surplus).len(), 1);
    let all = lesson(&cluster, 5);
    assert!(all.yaml.contains("192.0.2.0/29"), "{}", all.yaml);
    assert_eq!(expanded(&all.surplus).len(), 4);
}

/// Whether rules judge a log's sessions as packets do. Returns the fates of the sessions.
fn judged_alike(pipeline: &Pipeline, services: &[Object], log: &str) -> Vec<Fate> {
    let mut seen = Observations::new(false);
    crate::flows::read("log", log.as_bytes(), &mut seen).unwrap();
    let reachability = Reachability::of(pipeline, pipeline.mirror().unwrap());
    let judge = || Judge::new(pipeline, services.to_vec(), Settings::default(), Strictness::Strict);
    let mut rules = Rules::new(judge(), &reachability);
    let mut packets = judge();
    let judged = seen.flows().unwrap().into_iter().map(|flow| {
        let fate = packets.judge(&flow.conversation).unwrap().fate;
        for asked in [Fate::Allow, Fate::Deny] {
            assert_eq!(rules.is(&asked, &flow).unwrap(), asked == fate, "{flow:?} is {fate:?}");
        }
        fate
    });
    judged.collect()
}

#[test]
fn rules_judge_every_session_as_packets_do() {
    let mut fates: Vec<Fate> = Vec::new();
    for seed in 0..100 {
        let Cluster { state, log } = cluster(seed);
        fates.extend(judged_alike(&compiled(&state), &[], &log));
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let files = ["examples/services.yaml", "examples/service-policy.yaml"];
    let text = files.map(|file| std::fs::read_to_string(root.join(file)).unwrap()).join("\n---\n");
    let options = bulkhead_control::source::Options {
        services: ServiceKinds::Read,
        ..bulkhead_control::source::Options::default()
    };
    let is_service = |object: &Object| matches!(object, Object::Service(_) | Object::EndpointSlice(_));
    let (services, objects): (Vec<Object>, Vec<Object>) =
        load_text("state", &text, options).unwrap().objects.into_iter().partition(is_service);
    let mut pipeline = Pipeline::without_tables(Default::default());
    pipeline.resync(objects).unwrap();
    // Clients: pods of both nodes, a backend, the nodes, outside. Servers: the Services, node ports of either node, backends, a client.
    let clients = [
        "10.244.1.2",
        "10.244.2.3",
        "10.244.1.20",
        "10.244.2.20",
        "192.0.2.11",
        "192.0.2.12",
        "203.0.113.9",
        "8.8.8.8",
    ];
    let servers = [
        ("10.96.0.20", 80),
        ("10.96.0.21", 80),
        ("198.51.100.1", 80),
        ("192.0.2.11", 30080),
        ("192.0.2.12", 30081),
        ("192.0.2.12", 22),
        ("10.244.1.20", 8080),
        ("10.244.2.20", 80),
        ("10.244.1.2", 8080),
    ];
    let line = |from: &str, (to, port): (&str, u16)| {
        format!(
            "[1795466600.000000]\t[NEW] tcp      6 30 src={from} dst={to} sport=40000 dport={port} src={to} dst={from} sport={port} dport=40000\n"
        )
    };
    let log: String = clients.iter().flat_map(|&from| servers.iter().map(move |&to| line(from, to))).collect();
    fates.extend(judged_alike(&pipeline, &services, &log));
    let count = |is: fn(&Fate) -> bool| fates.iter().filter(|fate| is(fate)).count();
    let counts = [
        count(|fate| *fate == Fate::Allow),
        count(|fate| *fate == Fate::Deny),
        count(|fate| matches!(fate, Fate::Unknown(_))),
    ];
    assert!(counts[0] > 500 && counts[1] > 30 && counts[2] > 3, "{counts:?}");
}
