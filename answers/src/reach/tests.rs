//! Compares all forms of the answer with the simulated vswitches. For each pair of ends, a form must state what the vswitches decide about
//! a first packet and its reply.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use bulkhead_control::object::Enforcement;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::reachability::Protocol;
use bulkhead_control::source::{Strictness, load_text};

use super::ends::{NamedEnd, askable, ends, family};
use super::kinds::{Answer, Kinds, States};
use super::merged::Merged;
use super::text::Grouped;
use crate::args::{Focus, PortProtocol};
use crate::fabric::{Fabric, Reached};

const PORTS: [PortProtocol; 3] = [
    PortProtocol { port: 80, protocol: Protocol::Tcp },
    PortProtocol { port: 53, protocol: Protocol::Udp },
    PortProtocol { port: 53, protocol: Protocol::Tcp },
];

/// One outside address of each family, an address of a node's pods that no pod has, and a node's address.
const OUTSIDE: [&str; 4] = ["192.0.2.1", "2001:db8::1", "10.7.1.9", "172.18.0.2"];

fn states(text: &str) -> [Pipeline; 2] {
    [Pipeline::without_tables(Default::default()), Pipeline::new(Scope::Cluster)].map(|pipeline| {
        let mut pipeline = pipeline.auditing(Enforcement::Enforce);
        pipeline.resync(load_text("state", text, Strictness::Strict).unwrap().objects).unwrap();
        pipeline
    })
}

/// Returns a state: pods of workloads on two nodes and on one without an object, some of them dual-stack, in the host network or on no node,
/// and policies by labels, blocks and nodes.
fn state(pods: &[(u8, u8, u8)], policies: &[(u8, u8, u8)]) -> String {
    let mut text = String::new();
    for node in [1, 2] {
        let _ = writeln!(
            text,
            "---\napiVersion: v1\nkind: Node\nmetadata: {{name: n{node}}}\nspec: {{podCIDR: 10.7.{node}.0/24}}\nstatus: {{addresses: \
             [{{type: InternalIP, address: 172.18.0.{node}}}, {{type: ExternalIP, address: 172.18.1.{node}}}]}}"
        );
    }
    for (at, (workload, node, kind)) in (1u8..).zip(pods) {
        let (namespace, node) = (["x", "z"][usize::from(workload % 2)], if node % 7 == 6 { 3 } else { node % 2 + 1 });
        let (is_host, is_bound) = (kind % 8 == 0, kind % 11 != 10 || kind % 8 == 0);
        let bound = if is_bound { format!("nodeName: n{node}, ") } else { String::new() };
        let v6 = if kind % 3 == 0 { format!(", {{ip: 'fd00::{at}'}}") } else { String::new() };
        let ips = if is_host {
            format!("{{ip: 172.18.{}.{node}}}", kind / 8 % 2)
        } else {
            format!("{{ip: 10.0.0.{at}}}{v6}")
        };
        let _ = writeln!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p{at}, namespace: {namespace}, labels: {{app: w{workload}}}, \
             ownerReferences: [{{apiVersion: apps/v1, kind: StatefulSet, name: w{workload}, uid: u, controller: true}}]}}\n\
             spec: {{{bound}hostNetwork: {is_host}, containers: [{{name: c}}]}}\nstatus: {{phase: Running, podIPs: [{ips}]}}"
        );
    }
    for (at, (subject, named, kind)) in policies.iter().enumerate() {
        let (direction, word) = if kind % 2 == 0 { ("ingress", "from") } else { ("egress", "to") };
        let peer = match kind % 5 {
            0 => format!("ipBlock: {{cidr: 10.0.0.{}/30}}", named % 4 * 4),
            1 => "ipBlock: {cidr: '::/0'}".to_owned(),
            _ => format!("namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: w{named}}}}}"),
        };
        let ports = if kind % 3 == 0 { "" } else { ", ports: [{port: 80}, {port: 53, protocol: UDP}]" };
        let annotation = if *kind >= 160 { ", annotations: {bulkhead.dev/enforcement: audit}" } else { "" };
        let selector = if kind % 7 == 0 { String::new() } else { format!("matchLabels: {{app: w{subject}}}") };
        let namespace = ["x", "z"][usize::from(subject % 2)];
        if kind % 13 == 7 {
            let peer = if kind % 2 == 1 && named % 2 == 0 { "nodes: {}" } else { "namespaces: {}" };
            let (tier, action) = (["Admin", "Baseline"][usize::from(named / 2 % 2)], ["Deny", "Accept"][at % 2]);
            let _ = writeln!(
                text,
                "---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {{name: c{at}{annotation}}}\n\
                 spec: {{tier: {tier}, priority: {at}, subject: {{pods: {{namespaceSelector: {{}}, podSelector: {{matchLabels: {{app: w{subject}}}}}}}}}, \
                 {direction}: [{{action: {action}, {word}: [{{{peer}}}]}}]}}"
            );
            continue;
        }
        let _ = writeln!(
            text,
            "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: n{at}, namespace: {namespace}{annotation}}}\n\
             spec: {{podSelector: {{{selector}}}, policyTypes: [{}], {direction}: [{{{word}: [{{{peer}}}]{ports}}}]}}",
            if kind % 2 == 0 { "Ingress" } else { "Egress" }
        );
    }
    text
}

/// The verdicts on all pairs: by the names of the ends, the family and the port.
type Told = BTreeMap<(String, String, &'static str, String), Reached>;

/// Returns the vswitches' verdicts on all pairs of ends. The slow truth.
fn by_vswitches(tables: &Pipeline, ends: &[NamedEnd], ports: &[PortProtocol]) -> Told {
    let mut fabric = Fabric::new(tables, Strictness::Strict);
    let mut told = Told::new();
    for (from, to) in ends.iter().flat_map(|from| ends.iter().map(move |to| (from, to))).filter(|(a, b)| askable(a, b))
    {
        for &port in ports {
            let key = (from.name.clone(), to.name.clone(), family(to.end.address()), port.to_string());
            let reached = fabric.reached(&from.end, &to.end, port).unwrap();
            // The strictest verdict counts for ends with several addresses of one family.
            told.entry(key).and_modify(|known| *known = reached.min(*known)).or_insert(reached);
        }
    }
    told
}

/// Returns the verdicts that the cells of the text and JSON forms have.
fn by_kinds(ends: &[NamedEnd], kinds: &Kinds<'_>, ports: &[PortProtocol]) -> Told {
    let mut told = Told::new();
    for &port in ports {
        let table = kinds.table(port);
        for (at, from) in ends.iter().enumerate() {
            for (other, to) in ends.iter().enumerate().filter(|(_, to)| askable(from, to)) {
                let reached = table.answer(kinds.of_end(at), kinds.of_end(other)).between(from, to);
                let key = (from.name.clone(), to.name.clone(), family(to.end.address()), port.to_string());
                told.entry(key).and_modify(|known| *known = reached.min(*known)).or_insert(reached);
            }
        }
    }
    told
}

/// Returns the verdicts that the lines of the text form have if the ends do not fit a screen.
fn by_groups(ends: &[NamedEnd], kinds: &Kinds<'_>, ports: &[PortProtocol]) -> Told {
    let mut told = Told::new();
    for v4 in [true, false] {
        let of_family = ends.iter().enumerate().filter(|(_, end)| end.is_ipv4() == v4);
        let (ends, kinds_of): (Vec<&NamedEnd>, Vec<usize>) = of_family.map(|(at, end)| (end, kinds.of_end(at))).unzip();
        for &port in ports {
            let grouped = Grouped::of((&ends, &kinds_of), kinds, &kinds.table(port));
            for (at, source) in grouped.sources.iter().enumerate() {
                for (answer, to) in grouped.by_answer(at) {
                    let pairs = source.ends.iter().flat_map(|&from| to.iter().map(move |&to| (from, to)));
                    for (from, to) in pairs.map(|(from, to)| (ends[from], ends[to])).filter(|(a, b)| askable(a, b)) {
                        let reached = answer.unwrap().between(from, to);
                        let key = (from.name.clone(), to.name.clone(), family(to.end.address()), port.to_string());
                        told.entry(key).and_modify(|known| *known = reached.min(*known)).or_insert(reached);
                    }
                }
            }
        }
    }
    told
}

/// Returns the verdicts that the merged forms have.
fn by_workloads(merged: &Merged, ends: &[NamedEnd]) -> Told {
    let by_name: BTreeMap<&str, &NamedEnd> = ends.iter().map(|end| (&*end.name, end)).collect();
    let mut told = Told::new();
    for line in merged.lines() {
        let names = |end: &super::merged::End| match end.pods.as_slice() {
            [] => vec![end.name.clone()],
            pods => pods.iter().map(ToString::to_string).collect(),
        };
        let has = |name: &str| ends.iter().any(|end| end.name == *name && family(end.end.address()) == line.family);
        for from in names(line.from) {
            for to in names(line.to) {
                let (one, other) = (by_name[&*from], by_name[&*to]);
                if one.is_same(other) || !has(&from) || !has(&to) {
                    continue;
                }
                let reached = line.answer.between(one, other);
                let key = (from.clone(), to, line.family, line.port.to_string());
                assert_eq!(told.insert(key, reached), None, "told once");
            }
        }
    }
    told
}

/// Compares all forms with the vswitches. Returns the merged form and the number of compared cells.
fn checked(text: &str) -> (Merged, usize) {
    let [sets, tables] = states(text);
    let outside = OUTSIDE.map(|address| address.parse().unwrap());
    let ends = ends(&sets, &outside).unwrap();
    let truth = by_vswitches(&tables, &ends, &PORTS);
    let states = States::of(&sets).unwrap();
    let kinds = Kinds::of(&ends, &states);
    assert_eq!(by_kinds(&ends, &kinds, &PORTS), truth, "{text}");
    assert_eq!(by_groups(&ends, &kinds, &PORTS), truth, "{text}");
    let merged = Merged::of(sets.cache(), &ends, &kinds, &PORTS);
    assert_eq!(by_workloads(&merged, &ends), truth, "{text}");
    (merged, truth.len())
}

fn check(text: &str) -> Merged {
    checked(text).0
}

/// Returns the merged form of a state for these external addresses.
fn merged(text: &str, external: &[IpAddr]) -> Merged {
    let [sets, _] = states(text);
    let ends = ends(&sets, external).unwrap();
    let states = States::of(&sets).unwrap();
    Merged::of(sets.cache(), &ends, &Kinds::of(&ends, &states), &PORTS)
}

/// A repeatable generator of pseudo-random numbers (xorshift64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn byte(&mut self) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.to_be_bytes()[0]
    }
}

#[test]
fn every_form_tells_what_the_vswitches_do() {
    let (mut merged, mut parts, mut denied, mut audited, mut own, mut cells) = (0, 0, 0, 0, 0, 0);
    for seed in 1..=200u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let pods: Vec<_> =
            (0..1 + random.byte() % 21).map(|_| (random.byte() % 4, random.byte(), random.byte())).collect();
        let policies: Vec<_> =
            (0..random.byte() % 6).map(|_| (random.byte() % 4, random.byte() % 4, random.byte())).collect();
        let (table, compared) = checked(&state(&pods, &policies));
        cells += compared;
        merged += table.ends.iter().filter(|end| end.pods.len() > 1).count();
        parts += titles(&table).iter().filter(|title| title.contains(" of ")).count();
        let lines = |is: &dyn Fn(Answer) -> bool| table.lines().filter(|line| is(line.answer)).count();
        denied += lines(&|answer| answer == Answer::of(Reached::No));
        audited += lines(&|answer| answer.elsewhere == Reached::Audited);
        own += lines(&|answer| answer.own_node != answer.elsewhere);
    }
    let reached =
        format!("{merged} merged, {parts} parts, {denied} denied, {audited} audited, {own} own nodes, {cells} cells");
    assert!(merged > 50 && parts > 20 && denied > 500 && audited > 500 && own > 100 && cells > 100_000, "{reached}");
}

#[test]
fn every_form_tells_what_the_vswitches_do_in_the_bundled_states() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folders = fs::read_dir(root.join("pcaps")).unwrap().map(|entry| entry.unwrap().path().join("state.yaml"));
    let files = folders.filter(|path| path.exists());
    let mut cells = 0;
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        // Another policy kind than this state has would be refused.
        let more = if path.ends_with("shop/state.yaml") { "examples/shop/policies.yaml" } else { "" };
        let more = fs::read_to_string(root.join(more)).unwrap_or_default();
        cells += checked(&format!("{text}\n---\n{more}")).1;
    }
    assert!(cells > 300, "{cells}");
}

fn titles(merged: &Merged) -> Vec<String> {
    merged.ends.iter().map(super::merged::End::title).collect()
}

#[test]
fn equal_pods_of_a_workload_are_one_end_and_a_block_tells_them_apart() {
    // Four pods of w0 at 10.0.0.1 to 10.0.0.4, one of w1.
    let pods = [(0, 0, 1), (0, 1, 1), (0, 0, 1), (0, 1, 1), (1, 0, 1)];
    let open = check(&state(&pods, &[]));
    assert_eq!(titles(&open), ["x/w0 (4 pods)", "z/w1", "192.0.2.1", "2001:db8::1", "10.7.1.9", "172.18.0.2"]);
    // w1 admits only traffic from 10.0.0.0/30.
    let with_block = check(&state(&pods, &[(1, 0, 10)]));
    assert_eq!(titles(&with_block)[..3], ["x/w0 (3 of 4 pods: p1, p2, p3)", "x/p4", "z/w1"]);
}

#[test]
fn a_pod_and_its_own_node_are_a_remark_and_tell_no_pods_apart() {
    // Isolated pods of one workload on two nodes, and a third one on the second node.
    let table = check(&state(&[(0, 0, 1), (0, 1, 1), (0, 1, 1)], &[(0, 1, 2)]));
    assert_eq!(titles(&table)[..1], ["x/w0 (3 pods)"]);
    let node = table.ends.iter().position(|end| end.name == "172.18.0.2").unwrap();
    assert_eq!(table.services(node, 0), "80/TCP (own node only), 53/UDP (own node only), 53/TCP (own node only)");
    // If all pods are at the node, all get through. If none is, none does.
    let here = check(&state(&[(0, 1, 1), (0, 1, 1)], &[(0, 1, 2)]));
    assert_eq!(here.services(here.ends.len() - 1, 0), "80/TCP, 53/UDP, 53/TCP");
    let there = check(&state(&[(0, 0, 1), (0, 0, 1)], &[(0, 1, 2)]));
    assert_eq!(there.services(there.ends.len() - 1, 0), "");
}

#[test]
fn nobody_reaches_an_address_of_a_nodes_pods_that_no_pod_has() {
    let table = check(&state(&[(0, 0, 1)], &[]));
    let nowhere = table.ends.iter().position(|end| end.name == "10.7.1.9").unwrap();
    assert_eq!([table.services(0, nowhere), table.services(nowhere, 0)], ["", "80/TCP, 53/UDP, 53/TCP"]);
}

#[test]
fn ends_on_the_network_of_one_node_are_the_same_end() {
    // Two host-network pods of the first node, one of the second, and the second node's address.
    let table = check(&state(&[(0, 0, 8), (1, 0, 8), (2, 1, 8)], &[]));
    assert_eq!(titles(&table), ["x/w0", "x/w2", "z/w1", "192.0.2.1", "2001:db8::1", "10.7.1.9", "172.18.0.2"]);
    let asked: Vec<(usize, usize)> = (0..7).flat_map(|a| (0..7).map(move |b| (a, b))).collect();
    let asked: Vec<_> = asked.into_iter().filter(|&(from, to)| from < to && table.is_asked(from, to)).collect();
    assert_eq!(asked, [(0, 1), (0, 3), (0, 5), (0, 6), (1, 2), (1, 3), (1, 5), (2, 3), (2, 5), (2, 6)]);
}

#[test]
fn the_focus_keeps_what_talks_with_it() {
    let pods = [(0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 0, 1)];
    // w1 talks with w0 only.
    let text = state(&pods, &[(1, 0, 4), (1, 0, 13)]);
    let [sets, _] = states(&text);
    let merged = |focus: &[&str]| {
        let mut merged = merged(&text, &[]);
        let names: Vec<Focus> = focus.iter().map(|name| name.parse().unwrap()).collect();
        merged.focus(sets.cache(), &names).map(|()| merged)
    };
    assert_eq!(titles(&merged(&[]).unwrap()), ["x/w0", "x/w2", "z/w1", "z/w3"]);
    assert_eq!(titles(&merged(&["z/w1"]).unwrap()), ["x/w0", "z/w1"]);
    assert_eq!(titles(&merged(&["x/w2", "z/p2"]).unwrap()), ["x/w0", "x/w2", "z/w1", "z/w3"]);
    let of_x = merged(&["x"]).unwrap();
    assert!(of_x.is_focused() && of_x.lines().all(|line| line.from.path() != "z/w1" || line.to.path() != "z/w3"));
    let error = merged(&["z/w"]).unwrap_err().to_string();
    assert!(
        error.starts_with("--focus z/w: no pod z/w in the state") && error.contains("it has z/p2, z/p4, z/w1, z/w3"),
        "{error}"
    );
    let error = merged(&["node/n1"]).unwrap_err().to_string();
    assert!(error.contains("--focus node/n1: it is none of the ends"), "{error}");
    // A node's host-network pods have its address.
    let text = state(&[(0, 0, 8), (1, 0, 1)], &[]);
    let mut of_node = super::tests::merged(&text, &[]);
    of_node.focus(states(&text)[0].cache(), &["node/n1".parse().unwrap()]).unwrap();
    assert!(
        of_node.is_focused() && of_node.lines().all(|line| [line.from, line.to].iter().any(|end| end.path() == "x/w0"))
    );
}
