//! Compares the merged table with the vswitches, which must give each pod of an end the end's verdict on a first packet and its reply.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bulkhead_control::object::{Enforcement, Transport};
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::source::{Strictness, load_text};

use super::merged::Merged;
use super::{NamedEnd, askable, ends, family};
use crate::args::PortProtocol;
use crate::fabric::{Fabric, Reached};

const PORTS: [PortProtocol; 3] = [
    PortProtocol { port: 80, transport: Transport::Tcp },
    PortProtocol { port: 53, transport: Transport::Udp },
    PortProtocol { port: 53, transport: Transport::Tcp },
];

/// One outside address of each family, and a node's address.
const OUTSIDE: [&str; 3] = ["192.0.2.1", "2001:db8::1", "172.18.0.2"];

fn states(text: &str) -> [Pipeline; 2] {
    [Pipeline::without_tables(Default::default()), Pipeline::new(Scope::Cluster)].map(|pipeline| {
        let mut pipeline = pipeline.auditing(Enforcement::Enforce);
        pipeline.resync(load_text("state", text, Strictness::Strict).unwrap().objects).unwrap();
        pipeline
    })
}

/// Returns a state: pods of workloads on two nodes, some of them dual-stack or in the host network, and policies by labels and blocks.
fn state(pods: &[(u8, u8, u8)], policies: &[(u8, u8, u8)]) -> String {
    let mut text = String::new();
    for node in [1, 2] {
        let _ = writeln!(
            text,
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: n{node}}}\nstatus: {{addresses: [{{type: InternalIP, address: 172.18.0.{node}}}]}}"
        );
    }
    for (at, (workload, node, kind)) in (1u8..).zip(pods) {
        let (namespace, node) = (["x", "z"][usize::from(workload % 2)], node % 2 + 1);
        let is_host = kind % 8 == 0;
        let v6 = if kind % 3 == 0 { format!(", {{ip: 'fd00::{at}'}}") } else { String::new() };
        let ips = if is_host { format!("{{ip: 172.18.0.{node}}}") } else { format!("{{ip: 10.0.0.{at}}}{v6}") };
        let _ = writeln!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{at}, namespace: {namespace}, labels: {{app: w{workload}}}, \
             ownerReferences: [{{apiVersion: apps/v1, kind: StatefulSet, name: w{workload}, uid: u, controller: true}}]}}\n\
             spec: {{nodeName: n{node}, hostNetwork: {is_host}, containers: [{{name: c}}]}}\nstatus: {{phase: Running, podIPs: [{ips}]}}"
        );
    }
    for (at, (subject, peer, kind)) in policies.iter().enumerate() {
        let (direction, word) = if kind % 2 == 0 { ("ingress", "from") } else { ("egress", "to") };
        let peer = match kind % 5 {
            0 => format!("ipBlock: {{cidr: 10.0.0.{}/30}}", peer % 4 * 4),
            1 => "ipBlock: {cidr: '::/0'}".to_owned(),
            _ => format!("namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: w{peer}}}}}"),
        };
        let ports = if kind % 3 == 0 { "" } else { ", ports: [{port: 80}, {port: 53, protocol: UDP}]" };
        let annotation = if *kind >= 160 { ", annotations: {bulkhead.dev/enforcement: audit}" } else { "" };
        let selector = if kind % 7 == 0 { String::new() } else { format!("matchLabels: {{app: w{subject}}}") };
        let namespace = ["x", "z"][usize::from(subject % 2)];
        let _ = writeln!(
            text,
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: n{at}, namespace: {namespace}{annotation}}}\n\
             spec: {{podSelector: {{{selector}}}, policyTypes: [{}], {direction}: [{{{word}: [{{{peer}}}]{ports}}}]}}",
            if kind % 2 == 0 { "Ingress" } else { "Egress" }
        );
    }
    text
}

fn check(text: &str) -> Merged {
    let [sets, tables] = states(text);
    let outside = OUTSIDE.map(|address| address.parse().unwrap());
    let named = ends(&sets, &outside).unwrap();
    let merged = Merged::of(sets, &named, &PORTS).unwrap();
    let mut told: BTreeMap<(String, String, &str, String), Reached> = BTreeMap::new();
    for line in merged.lines() {
        let names = |end: &super::merged::End| match end.pods.as_slice() {
            [] => vec![end.name.clone()],
            pods => pods.iter().map(ToString::to_string).collect(),
        };
        for from in names(line.from) {
            for to in names(line.to).into_iter().filter(|to| *to != from) {
                let key = (from.clone(), to, line.family, line.port.to_string());
                assert_eq!(told.insert(key, line.reached), None, "told once");
            }
        }
    }
    let mut fabric = Fabric::new(&tables).unwrap();
    let all = ends(&tables, &outside).unwrap();
    let mut asked = 0;
    for (from, to) in all.iter().flat_map(|from| all.iter().map(move |to| (from, to))) {
        if !askable(from, to) {
            continue;
        }
        for port in PORTS {
            let key = (from.name.clone(), to.name.clone(), family(to.end.address()), port.to_string());
            let reached = fabric.reached(&from.end, &to.end, port).unwrap();
            assert_eq!(told.get(&key), Some(&reached), "{key:?}");
            asked += 1;
        }
    }
    assert_eq!(told.len(), asked, "nothing else is reported");
    merged
}

/// A repeatable generator of pseudo-random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn byte(&mut self) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.to_be_bytes()[0]
    }
}

#[test]
fn each_pod_of_a_merged_end_gets_what_the_vswitches_do() {
    let (mut merged, mut parts, mut denied, mut audited) = (0, 0, 0, 0);
    for seed in 1..=60u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let pods: Vec<_> =
            (0..1 + random.byte() % 11).map(|_| (random.byte() % 4, random.byte(), random.byte())).collect();
        let policies: Vec<_> =
            (0..random.byte() % 6).map(|_| (random.byte() % 4, random.byte() % 4, random.byte())).collect();
        let table = check(&state(&pods, &policies));
        merged += table.ends.iter().filter(|end| end.pods.len() > 1).count();
        parts += titles(&table).iter().filter(|title| title.contains(" of ")).count();
        denied += table.lines().filter(|line| line.reached == Reached::No).count();
        audited += table.lines().filter(|line| line.reached == Reached::Audited).count();
    }
    let reached = format!("{merged} merged, {parts} parts, {denied} denied, {audited} audited");
    assert!(merged > 20 && parts > 5 && denied > 500 && audited > 500, "{reached}");
}

fn titles(merged: &Merged) -> Vec<String> {
    merged.ends.iter().map(super::merged::End::title).collect()
}

#[test]
fn equal_pods_of_a_workload_are_one_end_and_a_block_tells_them_apart() {
    // Four pods of w0 at 10.0.0.1 to 10.0.0.4, one of w1.
    let pods = [(0, 0, 1), (0, 1, 1), (0, 0, 1), (0, 1, 1), (1, 0, 1)];
    let open = check(&state(&pods, &[]));
    assert_eq!(titles(&open), ["x/w0 (4 pods)", "z/w1", "192.0.2.1", "2001:db8::1", "172.18.0.2"]);
    // w1 admits only traffic from 10.0.0.0/30.
    let with_block = check(&state(&pods, &[(1, 0, 10)]));
    assert_eq!(titles(&with_block)[..3], ["x/w0 (3 of 4 pods: p1, p2, p3)", "x/p4", "z/w1"]);
}

#[test]
fn a_pod_that_talks_with_its_own_node_is_told_apart_only_where_nodes_are_asked_about() {
    // Isolated pods of one workload on two nodes.
    let text = state(&[(0, 0, 1), (0, 1, 1)], &[(0, 1, 2)]);
    assert_eq!(titles(&check(&text))[..2], ["x/p1", "x/p2"]);
    let [sets, _] = states(&text);
    let without: Vec<NamedEnd> = ends(&sets, &[]).unwrap();
    assert_eq!(titles(&Merged::of(sets, &without, &PORTS).unwrap()), ["x/w0 (2 pods)"]);
}

#[test]
fn the_focus_keeps_what_talks_with_it() {
    let pods = [(0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 0, 1)];
    // w1 talks with w0 only.
    let merged = |focus: &[&str]| {
        let [sets, _] = states(&state(&pods, &[(1, 0, 4), (1, 0, 13)]));
        let named = ends(&sets, &[]).unwrap();
        let mut merged = Merged::of(sets, &named, &PORTS).unwrap();
        let names: Vec<String> = focus.iter().map(ToString::to_string).collect();
        merged.focus(&names).map(|()| merged)
    };
    assert_eq!(titles(&merged(&[]).unwrap()), ["x/w0", "x/w2", "z/w1", "z/w3"]);
    assert_eq!(titles(&merged(&["z/w1"]).unwrap()), ["x/w0", "z/w1"]);
    assert_eq!(titles(&merged(&["x/w2", "z/p2"]).unwrap()), ["x/w0", "x/w2", "z/w1", "z/w3"]);
    let of_x = merged(&["x"]).unwrap();
    assert!(of_x.is_focused() && of_x.lines().all(|line| line.from.path() != "z/w1" || line.to.path() != "z/w3"));
    let error = merged(&["z/w"]).unwrap_err().to_string();
    assert!(
        error.contains("no namespace, workload, pod or address has this name") && error.contains("did you mean `z/w"),
        "{error}"
    );
}
