//! Scenarios of NetworkPolicy: the 48 end-to-end tests of Kubernetes and fifteen recipes, each with its expectations in `scenarios/*.yaml`.
//! The policies in these files are read like a user's file. Every step is applied to two running pipelines (one for the cluster, one per
//! node) and to a fresh one. The oracle must agree.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use crate::oracle::{Flow, State};
use crate::vswitch::Vswitches;
use bulkhead_control::cache::Event;
use bulkhead_control::object::{Object, PolicyName};
use bulkhead_control::source::{Strictness, load_text};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    steps: Vec<Change>,
}

/// A step's changes, and the verdicts that must hold afterwards.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Change {
    #[serde(default)]
    apply: BTreeMap<String, String>,
    #[serde(default)]
    delete: Vec<String>,
    #[serde(default)]
    labels: BTreeMap<String, Labels>,
    #[serde(default)]
    namespace_labels: BTreeMap<String, Labels>,
    expect: Vec<String>,
}

type Labels = BTreeMap<String, String>;

/// The pods: namespace, pod, address, node. The address ends with the namespace's and the pod's number.
const PODS: [(&str, &str, &str, &str); 9] = [
    ("x", "a", "10.1.1.1", "node-1"),
    ("x", "b", "10.1.2.2", "node-2"),
    ("x", "c", "10.1.1.3", "node-1"),
    ("y", "a", "10.1.2.11", "node-2"),
    ("y", "b", "10.1.1.12", "node-1"),
    ("y", "c", "10.1.2.13", "node-2"),
    ("z", "a", "10.1.1.21", "node-1"),
    ("z", "b", "10.1.2.22", "node-2"),
    ("z", "c", "10.1.1.23", "node-1"),
];

/// An address outside the cluster (RFC 5737).
const WORLD: &str = "192.0.2.1";
const PORTS: [u16; 4] = [53, 80, 81, 5000];
const PROTOCOLS: [(&str, u8); 3] = [("TCP", 6), ("UDP", 17), ("SCTP", 132)];
const ICMP: u8 = 1;

fn pod_manifest(namespace: &str, name: &str, labels: &Labels) -> String {
    let (.., address, node) = PODS.into_iter().find(|(ns, pod, ..)| (*ns, *pod) == (namespace, name)).unwrap();
    let mut ports = String::new();
    for port in [80, 81] {
        for (protocol, _) in PROTOCOLS {
            let lower = protocol.to_lowercase();
            write!(ports, "{{name: serve-{port}-{lower}, containerPort: {port}, protocol: {protocol}}}, ").unwrap();
        }
    }
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{namespace: {namespace:?}, name: {name}, labels: {}}}\n\
         spec: {{nodeName: {node}, containers: [{{name: c, ports: [{ports}]}}]}}\n\
         status: {{phase: Running, podIPs: [{{ip: {address}}}]}}\n",
        serde_json::to_string(labels).unwrap()
    )
}

fn namespace_manifest(name: &str, labels: &Labels) -> String {
    let labels = serde_json::to_string(labels).unwrap();
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name:?}, labels: {labels}}}\n")
}

fn policy_manifest(full_name: &str, spec: &str) -> String {
    let (namespace, name) = full_name.split_once('/').unwrap();
    let spec: String = spec.lines().map(|line| format!("  {line}\n")).collect();
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n\
         metadata: {{namespace: {namespace:?}, name: {name}}}\nspec:\n{spec}"
    )
}

fn read(manifests: &[String]) -> Vec<Object> {
    if manifests.is_empty() {
        return Vec::new();
    }
    let text = manifests.join("---\n");
    load_text("scenario.yaml", &text, Strictness::Strict).unwrap_or_else(|errors| panic!("{errors}\n{text}")).objects
}

fn one(key: &str, value: &str) -> Labels {
    Labels::from([(key.to_owned(), value.to_owned())])
}

fn fixture() -> Vec<Object> {
    let mut manifests: Vec<String> = ["x", "y", "z"].map(|name| namespace_manifest(name, &one("ns", name))).into();
    manifests.extend(PODS.map(|(namespace, name, ..)| pod_manifest(namespace, name, &one("pod", name))));
    for (node, address) in [("node-1", "192.168.0.1"), ("node-2", "192.168.0.2")] {
        let status = format!("status: {{addresses: [{{type: InternalIP, address: {address}}}]}}");
        manifests.push(format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {node}}}\n{status}\n"));
    }
    read(&manifests)
}

fn events(change: &Change) -> Vec<Event> {
    let mut manifests = Vec::new();
    for (full_name, labels) in &change.labels {
        let (namespace, name) = full_name.split_once('/').unwrap();
        manifests.push(pod_manifest(namespace, name, labels));
    }
    manifests.extend(change.namespace_labels.iter().map(|(name, labels)| namespace_manifest(name, labels)));
    manifests.extend(change.apply.iter().map(|(name, spec)| policy_manifest(name, spec)));
    let deletions = change.delete.iter().map(|full_name| {
        let (namespace, name) = full_name.split_once('/').unwrap();
        Event::DeletePolicy(PolicyName::new(namespace, name))
    });
    deletions.chain(read(&manifests).into_iter().map(Event::Apply)).collect()
}

/// One line of `expect`: `allow|deny FROM -> TO [SERVICE]`. FROM and TO are a pod, with `*` for any part of its name, or `world`. SERVICE
/// is `TCP` or `TCP/80`; without it, the line applies to all protocols, ICMP included.
struct Line<'a> {
    allows: bool,
    from: &'a str,
    to: &'a str,
    service: Option<(u8, Option<u16>)>,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Self {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (action, from, to, service) = match words.as_slice() {
            [action, from, "->", to] => (*action, *from, *to, None),
            [action, from, "->", to, service] => (*action, *from, *to, Some(*service)),
            _ => panic!("not an expectation: {line}"),
        };
        for end in [from, to] {
            assert!(ends().iter().any(|(name, _)| names(end, name)), "{line}: there is no {end}");
        }
        let service = service.map(|service| {
            let (protocol, port) = service.split_once('/').map_or((service, None), |(name, port)| (name, Some(port)));
            let number = PROTOCOLS.into_iter().find(|(name, _)| *name == protocol).unwrap().1;
            (number, port.map(|port| port.parse().unwrap()))
        });
        assert!(matches!(action, "allow" | "deny"), "{line}");
        Self { allows: action == "allow", from, to, service }
    }

    fn concerns(&self, from: &str, to: &str, protocol: u8, port: u16) -> bool {
        let service = self.service.is_none_or(|(p, number)| p == protocol && number.is_none_or(|n| n == port));
        service && names(self.from, from) && names(self.to, to)
    }
}

/// Whether a pattern matches an end. `*` matches every pod, but not the world.
fn names(pattern: &str, end: &str) -> bool {
    match (pattern.split_once('/'), end.split_once('/')) {
        (Some((ns, pod)), Some((end_ns, end_pod))) => (ns == "*" || ns == end_ns) && (pod == "*" || pod == end_pod),
        (None, Some(_)) => pattern == "*",
        (_, None) => pattern == end,
    }
}

fn ends() -> Vec<(String, IpAddr)> {
    let pods =
        PODS.iter().map(|(namespace, name, address, _)| (format!("{namespace}/{name}"), address.parse().unwrap()));
    pods.chain([("world".to_owned(), WORLD.parse().unwrap())]).collect()
}

/// The probes of a step: each flow with the names of its ends.
fn probes() -> Vec<(Flow, String, String)> {
    let mut probes = Vec::new();
    for (from, src) in ends() {
        for (to, dst) in ends().into_iter().filter(|(to, _)| *to != from) {
            let mut add = |protocol, port| probes.push((Flow { src, dst, protocol, port }, from.clone(), to.clone()));
            add(ICMP, 0);
            for (_, protocol) in PROTOCOLS {
                PORTS.into_iter().for_each(|port| add(protocol, port));
            }
        }
    }
    probes
}

/// Runs a scenario. Returns the differences.
fn play(scenario: &Scenario) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut state = State::of(&fixture());
    let mut running = [Vswitches::cluster(), Vswitches::nodes(&["node-1", "node-2"])];
    running.iter_mut().for_each(|vswitches| vswitches.resync(&state.objects()));
    for (at, change) in scenario.steps.iter().enumerate() {
        for event in events(change) {
            state.apply(&event);
            running.iter_mut().for_each(|vswitches| vswitches.apply(&event));
        }
        let mut scratch = Vswitches::cluster();
        scratch.resync(&state.objects());
        let lines: Vec<Line<'_>> = change.expect.iter().map(|line| Line::parse(line)).collect();
        let mut used = vec![false; lines.len()];
        for (flow, from, to) in probes() {
            let decides = lines.iter().rposition(|line| line.concerns(&from, &to, flow.protocol, flow.port));
            lines.iter().zip(&mut used).for_each(|(l, used)| *used |= l.concerns(&from, &to, flow.protocol, flow.port));
            let expected = decides.is_none_or(|at| lines[at].allows);
            let answers = [
                running[0].allow(&state, &flow),
                running[1].allow(&state, &flow),
                scratch.allow(&state, &flow),
                state.allowed(&flow),
            ];
            if answers != [expected; 4] {
                let what = format!("{from} -> {to} protocol {} port {}", flow.protocol, flow.port);
                wrong.push(format!("{}, step {at}: {what} must be {expected}, is {answers:?}", scenario.name));
            }
        }
        assert!(used.iter().all(|used| *used), "{}, step {at}: a line of expect concerns nothing", scenario.name);
    }
    wrong
}

fn play_all(text: &str, count: usize) {
    let scenarios: Vec<Scenario> = serde_saphyr::from_str(text).unwrap();
    let mut seen: Vec<&str> = scenarios.iter().map(|scenario| scenario.name.as_str()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!((scenarios.len(), seen.len()), (count, count), "each scenario once");
    let wrong: Vec<String> = scenarios.iter().flat_map(play).collect();
    let shown = wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n  ");
    assert!(
        wrong.is_empty(),
        "{} probes are wrong (running, a pipeline a node, scratch, oracle):\n  {shown}",
        wrong.len()
    );
}

#[test]
fn the_end_to_end_scenarios_of_kubernetes_hold_step_by_step_and_from_scratch() {
    play_all(include_str!("scenarios/e2e.yaml"), 48);
}

#[test]
fn the_recipes_hold_step_by_step_and_from_scratch() {
    play_all(include_str!("scenarios/recipes.yaml"), 15);
}
