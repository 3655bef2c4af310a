//! The kernel's verdicts with rules of the nftables renderer equal the known answers and `bulkhead reach`.
//! ```text
//!   cluster --Pipeline, NftRenderer--> change --nft--> kernel of a router <--first packets of all pairs, written by hand
//!           `-known answers, bulkhead reach--> expected        |
//!                       `------------------- the same? --------'--> arrived or not
//! ```
//! One router serves all clusters one after the other, so that the test covers the changes from each cluster to the next.

use crate::require;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::lab::router::{First, Router};
use crate::support::{bulkhead_with_input, cases, stdout};
use bulkhead_control::object::PodName;
use bulkhead_control::pipeline::{Pipeline, RendererHandle};
use bulkhead_control::processor::Scope;
use bulkhead_control::renderer::nftables::{Epoch, NftRenderer, remember};
use bulkhead_control::source::{Strictness, load_text};
use serde_json::{Value, json};

/// The maximum number of ends of a cluster: pods and addresses outside.
const WIRES: usize = 14;

const NODE: &str = "node-1";

/// The router as a cluster's only node, with the rules that its kernel has.
struct Kernel {
    router: Router,
    pipeline: Pipeline,
    renderer: RendererHandle<NftRenderer>,
    epoch: Epoch,
    sport: u16,
}

impl Kernel {
    fn new() -> Self {
        let router = Router::new(WIRES);
        // Hand-made SCTP packets have no checksum.
        router
            .node
            .shell("nft add table inet none; nft add chain inet none c '{ type filter hook input priority 0; }'");
        router.node.shell("nft add rule inet none c ct state invalid counter");
        router.node.sysctl("net.netfilter.nf_conntrack_checksum", "0");
        let mut pipeline = Pipeline::new(Scope::Node(NODE.into()));
        let renderer = pipeline.register(NftRenderer::of_node(NODE.into()));
        Self { router, pipeline, renderer, epoch: Epoch::any(7), sport: 9_999 }
    }

    /// Makes the kernel enforce this state, as a change from the last one. `ends` are the wires' pods and addresses.
    fn enforce(&mut self, state: &str, ends: &[End]) {
        let behind: Vec<Vec<IpAddr>> = ends.iter().map(|end| end.addresses.clone()).collect();
        self.router.place(&behind);
        self.pipeline.resync(load_text("state", state, Strictness::Strict).unwrap().objects).unwrap();
        let interfaces: BTreeMap<Arc<str>, Option<PodName>> =
            ends.iter().enumerate().map(|(at, end)| (format!("w{at}").into(), end.pod.clone())).collect();
        self.epoch = self.epoch.next();
        let renderer = self.pipeline.renderer_mut(self.renderer);
        renderer.set_interfaces(interfaces);
        let change = self.pipeline.renderer(self.renderer).change(self.epoch, self.pipeline.origins());
        if let Some(change) = change {
            self.router.nft(&change.script);
            self.pipeline.renderer_mut(self.renderer).take();
        }
        self.router.nft(&remember(self.epoch));
    }

    /// Sends the first packet of each connection. Returns for each whether it arrived.
    fn probe(&mut self, cells: &[Cell]) -> Vec<bool> {
        let packets: Vec<First> = cells
            .iter()
            .map(|cell| {
                self.sport = if self.sport == u16::MAX { 10_000 } else { self.sport + 1 };
                First { from: cell.from, to: cell.to, protocol: cell.protocol, sport: self.sport, dport: cell.port }
            })
            .collect();
        let arrived = self.router.probe(&packets);
        packets.iter().map(|packet| arrived.contains(packet)).collect()
    }
}

/// A pod, or addresses outside, behind one wire.
#[derive(Clone, Debug)]
struct End {
    name: String,
    pod: Option<PodName>,
    addresses: Vec<IpAddr>,
}

/// A connection, and whether policy allows it.
#[derive(Clone, Debug)]
struct Cell {
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    port: u16,
    passes: bool,
    what: String,
}

fn protocol(name: &str) -> u8 {
    match name {
        "TCP" => 6,
        "UDP" => 17,
        "SCTP" => 132,
        other => panic!("{other}"),
    }
}

/// The objects of a step with all pods on one node, because the node changes no verdict between pods.
fn state(step: &Value) -> String {
    let mut items: Vec<Value> = Vec::new();
    for (name, labels) in step["namespaces"].as_object().unwrap() {
        items.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}));
    }
    for node in step["nodes"].as_array().into_iter().flatten() {
        let addresses: Vec<Value> = node["addresses"]
            .as_array()
            .unwrap()
            .iter()
            .map(|address| json!({"type": "InternalIP", "address": address}))
            .collect();
        items.push(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node["name"], "labels": node["labels"]},
            "status": {"addresses": addresses}}),
        );
    }
    for pod in step["pods"].as_array().unwrap() {
        let containers: Vec<Value> = pod["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
            .map(|(at, port)| {
                let port = json!({"containerPort": port["port"], "protocol": port["protocol"], "name": port["name"]});
                json!({"name": format!("c{at}"), "ports": [port]})
            })
            .collect();
        let addresses: Vec<Value> = addresses(pod).iter().map(|ip| json!({"ip": ip})).collect();
        items.push(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": pod["namespace"], "name": pod["name"], "labels": pod["labels"]},
            "spec": {"nodeName": NODE, "containers": containers},
            "status": {"phase": "Running", "podIPs": addresses},
        }));
    }
    let policies = step["policies"].as_array().unwrap();
    for (at, policy) in policies.iter().enumerate() {
        let mut policy = policy.clone();
        // One case has two policies of the same name, which a real cluster refuses.
        let metadata = &policies[at]["metadata"];
        if policies[..at].iter().any(|earlier| earlier["kind"] == policy["kind"] && earlier["metadata"] == *metadata) {
            policy["metadata"]["name"] = format!("{}-{at}", metadata["name"].as_str().unwrap()).into();
        }
        if policy.get("apiVersion").is_none() {
            policy["apiVersion"] = "networking.k8s.io/v1".into();
            policy["kind"] = "NetworkPolicy".into();
        }
        items.push(policy);
    }
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn addresses(pod: &Value) -> Vec<IpAddr> {
    let several = pod["ips"].as_array().cloned().unwrap_or_else(|| vec![pod["ip"].clone()]);
    several.iter().map(|ip| ip.as_str().unwrap().parse().unwrap()).collect()
}

/// The ends in a step: its pods, then addresses outside the cluster.
fn ends(step: &Value) -> Vec<End> {
    let pods = step["pods"].as_array().unwrap().iter().map(|pod| {
        let name = PodName::new(pod["namespace"].as_str().unwrap(), pod["name"].as_str().unwrap());
        End { name: name.to_string(), pod: Some(name), addresses: addresses(pod) }
    });
    let mut ends: Vec<End> = pods.collect();
    for name in step["order"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()) {
        if let Ok(address) = name.parse() {
            ends.push(End { name: name.to_owned(), pod: None, addresses: vec![address] });
        }
    }
    ends
}

/// The cells of a step's truth tables that can be probed.
fn cells(step: &Value, ends: &[End]) -> Vec<Cell> {
    let order: Vec<&str> = step["order"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let mut cells = Vec::new();
    for (tables, v4) in [("tables", true), ("tables6", false)] {
        let address = |name: &str| {
            let end = ends.iter().find(|end| end.name == name)?;
            end.addresses.iter().copied().find(|address| address.is_ipv4() == v4)
        };
        for (service, tables) in step.get(tables).and_then(Value::as_object).into_iter().flatten() {
            let (name, port) = service.split_once('/').unwrap();
            for (row, source) in tables["combined"].as_array().unwrap().iter().zip(&order) {
                for (cell, destination) in row.as_str().unwrap().chars().zip(&order) {
                    let (Some(from), Some(to)) = (address(source), address(destination)) else { continue };
                    if from != to && matches!(cell, '.' | 'X') {
                        let what = format!("{source} -> {destination} {service}: expected {cell}");
                        let (protocol, port) = (protocol(name), port.parse().unwrap());
                        cells.push(Cell { from, to, protocol, port, passes: cell == '.', what });
                    }
                }
            }
        }
    }
    cells
}

/// A file's cases that one node can test. Excludes cases with host-network pods, whose addresses are nodes'. `None` if the known answers
/// are absent.
fn askable(file: &str) -> Option<Vec<Value>> {
    let text = fs::read_to_string(cases()?.join(file)).unwrap();
    let mut all: Vec<Value> = serde_json::from_str(&text).unwrap();
    all.retain(|case| {
        let steps = case["steps"].as_array().unwrap();
        case["group"] != "refuse"
            && steps.iter().all(|step| {
                let on_host = |pod: &Value| pod["hostNetwork"] == true;
                !step["pods"].as_array().unwrap().iter().any(on_host) && ends(step).len() <= WIRES
            })
    });
    Some(all)
}

#[test]
fn the_kernel_gives_the_verdicts_of_the_known_answers() {
    require!("nft", "python3");
    let mut kernel = Kernel::new();
    let (mut count, mut steps, mut reached, mut wrong) = (0, 0, BTreeMap::<(bool, u8, bool), u32>::new(), Vec::new());
    // A sample from each file: all cases would take twenty seconds.
    for (file, every) in [("cyclonus_cases.json", 10), ("trap_cases.json", 1), ("cnp_cases.json", 2)] {
        let Some(cases) = askable(file) else { return };
        let started = Instant::now();
        let has_both_families = |case: &Value| case["steps"][0].get("tables6").is_some();
        let chosen = cases.iter().enumerate().filter(|(at, case)| at % every == 0 || has_both_families(case));
        for (_, case) in chosen {
            count += 1;
            for (at, step) in case["steps"].as_array().unwrap().iter().enumerate() {
                steps += 1;
                let ends = ends(step);
                kernel.enforce(&state(step), &ends);
                let cells = cells(step, &ends);
                for (cell, arrived) in cells.iter().zip(kernel.probe(&cells)) {
                    *reached.entry((cell.from.is_ipv4(), cell.protocol, cell.passes)).or_default() += 1;
                    if arrived != cell.passes {
                        wrong.push(format!("{file} case {} step {at}: {}, {arrived}", case["id"], cell.what));
                    }
                }
            }
        }
        println!("{file}: {:?}", started.elapsed());
    }
    println!("{count} cases, {steps} steps, {reached:?}");
    let shown: Vec<&String> = wrong.iter().take(10).collect();
    assert!(wrong.is_empty(), "{} cells are wrong:\n{shown:#?}", wrong.len());
    assert!(count >= 60, "{count}");
    for protocol in [6, 17, 132] {
        for passes in [true, false] {
            assert!(reached[&(true, protocol, passes)] > 500, "{protocol} {passes}");
        }
    }
    assert!(reached[&(false, 6, true)] > 20 && reached[&(false, 6, false)] > 20, "IPv6 as well");
}

/// Random policies and tiers for six dual-stack pods in two namespaces.
fn random_state(seed: u64) -> (Value, Vec<End>) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = move |end: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % end
    };
    let mut items = Vec::new();
    let mut ends = Vec::new();
    for namespace in ["x", "y"] {
        items.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": {"ns": namespace}}}));
    }
    for at in 0..6_u8 {
        let namespace = if at < 3 { "x" } else { "y" };
        let name = format!("p{at}");
        let v4 = format!("10.244.1.{}", 10 + at);
        let v6 = format!("fd00:244:1::{:x}", 16 + at);
        items.push(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": format!("a{}", at % 2), "tier": format!("t{}", at % 3)}},
            "spec": {"nodeName": NODE, "containers": [{"name": "c", "ports": [{"containerPort": 80 + u16::from(at % 2), "name": "web"}]}]},
            "status": {"phase": "Running", "podIPs": [{"ip": v4}, {"ip": v6}]}}));
        let pod = Some(PodName::new(namespace, name.clone()));
        ends.push(End {
            name: format!("{namespace}/{name}"),
            pod,
            addresses: vec![v4.parse().unwrap(), v6.parse().unwrap()],
        });
    }
    let selector = |key: u64, at: u64| match key {
        0 => json!({}),
        1 => json!({"matchLabels": {"app": format!("a{}", at % 2)}}),
        2 => json!({"matchLabels": {"tier": format!("t{}", at % 3)}}),
        _ => json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": [format!("t{}", at % 3)]}]}),
    };
    for number in 0..2 + below(3) {
        let mut lists = serde_json::Map::new();
        for (list, peers) in [("ingress", "from"), ("egress", "to")] {
            let rules: Vec<Value> = (0..below(3))
                .map(|_| {
                    let peer = match below(6) {
                        0 => json!({"ipBlock": {"cidr": "10.244.1.0/24", "except": ["10.244.1.12/31"]}}),
                        1 => json!({"ipBlock": {"cidr": "fd00:244:1::/64"}}),
                        2 => json!({"ipBlock": {"cidr": "0.0.0.0/0"}}),
                        3 => json!({"namespaceSelector": selector(below(2), 0), "podSelector": selector(below(4), below(3))}),
                        _ => json!({"podSelector": selector(below(4), below(3))}),
                    };
                    let ports = match below(5) {
                        0 => json!([]),
                        1 => json!([{"port": 80}, {"protocol": "UDP"}]),
                        2 => json!([{"port": 70, "endPort": 80}]),
                        3 => json!([{"port": "web"}]),
                        _ => json!([{"protocol": "UDP", "port": 81}, {"protocol": "SCTP", "port": 80}]),
                    };
                    json!({peers: [peer], "ports": ports})
                })
                .collect();
            lists.insert(list.to_owned(), json!(rules));
        }
        let types = [json!(["Ingress"]), json!(["Egress"]), json!(["Ingress", "Egress"])];
        let mut spec = json!({"podSelector": selector(below(4), below(3)), "policyTypes": types[usize::try_from(below(3)).unwrap()]});
        spec.as_object_mut().unwrap().extend(lists);
        items.push(json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": format!("n{number}"), "namespace": (if below(2) == 0 { "x" } else { "y" })}, "spec": spec}));
    }
    for number in 0..below(4) {
        let mut rule = |peers: &str| {
            let action = ["Accept", "Deny", "Pass"][usize::try_from(below(3)).unwrap()];
            let peer =
                json!({"pods": {"podSelector": selector(below(4), below(3)), "namespaceSelector": selector(0, 0)}});
            let mut rule = json!({"action": action, peers: [peer]});
            if below(2) == 0 {
                rule["protocols"] = json!([{"tcp": {"destinationPort": {"number": 80 + below(2)}}}]);
            }
            rule
        };
        let (ingress, egress) = ([rule("from"), rule("from")], [rule("to"), rule("to")]);
        items.push(json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": format!("c{number}")},
            "spec": {"tier": (if number % 2 == 0 { "Admin" } else { "Baseline" }), "priority": number,
                "subject": {"namespaces": {}}, "ingress": ingress, "egress": egress}}));
    }
    (json!({"apiVersion": "v1", "kind": "List", "items": items}), ends)
}

/// The verdicts of `bulkhead reach` for every pair, protocol and port, over both families.
fn reached(state: &str, ends: &[End]) -> Vec<Cell> {
    let mut args = vec!["reach", "-o", "json", "--state", "-"];
    for port in ["80/TCP", "81/TCP", "81/UDP", "80/SCTP"] {
        args.extend(["--port", port]);
    }
    let answer: Value = serde_json::from_str(&stdout(&bulkhead_with_input(&args, state), 0)).unwrap();
    let mut cells = Vec::new();
    for probe in answer["probes"].as_array().unwrap() {
        let text = |field: &str| probe[field].as_str().unwrap();
        let v4 = text("family") == "IPv4";
        let of = |name: &str| {
            let end = ends.iter().find(|end| end.name == name).unwrap();
            end.addresses.iter().copied().find(|address| address.is_ipv4() == v4).unwrap()
        };
        let (from, to, what) = (of(text("from")), of(text("to")), probe.to_string());
        let (protocol, port) = (protocol(text("protocol")), u16::try_from(probe["port"].as_u64().unwrap()).unwrap());
        cells.push(Cell { from, to, protocol, port, passes: text("verdict") == "allow", what });
    }
    cells
}

#[test]
fn the_kernel_gives_the_verdicts_of_reach_on_random_clusters() {
    require!("nft", "python3");
    let mut kernel = Kernel::new();
    let (mut reached_verdicts, mut kinds) = (BTreeMap::<(bool, bool), u32>::new(), BTreeSet::new());
    for seed in 1..=24 {
        let (state, ends) = random_state(seed);
        let state = state.to_string();
        kernel.enforce(&state, &ends);
        let cells = reached(&state, &ends);
        for (cell, arrived) in cells.iter().zip(kernel.probe(&cells)) {
            assert_eq!(arrived, cell.passes, "seed {seed}: {}\n{state}", cell.what);
            *reached_verdicts.entry((cell.from.is_ipv4(), arrived)).or_default() += 1;
            kinds.insert((cell.protocol, arrived));
        }
    }
    println!("{reached_verdicts:?}");
    assert_eq!(kinds.len(), 6, "{kinds:?}");
}

/// A state whose policy allows ingress to `server` from these pods.
fn large(members: impl Iterator<Item = u32>) -> String {
    let mut items = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x", "labels": {}}}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "p", "namespace": "x"},
            "spec": {"podSelector": {"matchLabels": {"app": "server"}}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]}]}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "server", "namespace": "x", "labels": {"app": "server"}},
            "spec": {"nodeName": NODE}, "status": {"phase": "Running", "podIPs": [{"ip": "10.1.0.1"}]}}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client", "namespace": "x", "labels": {"app": "client"}},
            "spec": {"nodeName": NODE}, "status": {"phase": "Running", "podIPs": [{"ip": "10.1.0.2"}]}}),
    ];
    items.extend(members.map(|number| {
        // Every second address, so that none can be merged with a neighbour into a CIDR.
        let address = std::net::Ipv4Addr::from(0x0a40_0000 + 2 * number);
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("far-{number}"), "namespace": "x", "labels": {"app": "client"}},
            "spec": {"nodeName": "elsewhere"}, "status": {"phase": "Running", "podIPs": [{"ip": address.to_string()}]}})
    }));
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// The example of an article on Calico's felix: the server accepts everything from client1's pods on all nodes, and TCP 3456 from
/// 10.16.2.0/24 except 10.16.2.122. Its egress is unrestricted.
const ARTICLE: &str = r#"
{apiVersion: v1, kind: Namespace, metadata: {name: x}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: server, namespace: x, labels: {hyapp: server}}, spec: {nodeName: node-1}, status: {podIP: 10.16.1.9}}
---
{apiVersion: v1, kind: Pod, metadata: {name: here, namespace: x, labels: {hyapp: client1}}, spec: {nodeName: node-1}, status: {podIP: 10.16.3.7}}
---
{apiVersion: v1, kind: Pod, metadata: {name: there, namespace: x, labels: {hyapp: client1}}, spec: {nodeName: node-2}, status: {podIP: 10.16.4.8}}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: server, namespace: x}
spec:
  podSelector: {matchLabels: {hyapp: server}}
  policyTypes: [Ingress, Egress]
  egress:
  - {}
  ingress:
  - from:
    - podSelector: {matchLabels: {hyapp: client1}}
  - from:
    - ipBlock: {cidr: 10.16.2.0/24, except: [10.16.2.122/32]}
    ports:
    - {port: 3456, protocol: TCP}
"#;

#[test]
fn the_kernel_gives_the_verdicts_of_the_articles_example() {
    require!("nft", "python3");
    let mut kernel = Kernel::new();
    let end = |name: &str, is_pod: bool, address: &str| End {
        name: name.to_owned(),
        pod: is_pod.then(|| PodName::new("x", name)),
        addresses: vec![address.parse().unwrap()],
    };
    let ends = [
        end("server", true, "10.16.1.9"),
        end("here", true, "10.16.3.7"),
        end("there", false, "10.16.4.8"),
        end("near", false, "10.16.2.5"),
        end("excepted", false, "10.16.2.122"),
        end("others", false, "10.16.5.5"),
    ];
    kernel.enforce(ARTICLE, &ends);
    let (tcp, udp) = (6, 17);
    let answers = [
        ("here", "server", tcp, 80, true),
        ("here", "server", udp, 53, true),
        ("there", "server", tcp, 80, true),
        ("there", "server", tcp, 3456, true),
        ("near", "server", tcp, 3456, true),
        ("near", "server", tcp, 3457, false),
        ("near", "server", udp, 3456, false),
        ("excepted", "server", tcp, 3456, false),
        ("others", "server", tcp, 3456, false),
        ("server", "others", tcp, 80, true),
        ("server", "excepted", udp, 53, true),
        ("others", "here", tcp, 80, true),
    ];
    let address = |name: &str| ends.iter().find(|end| end.name == name).unwrap().addresses[0];
    let cells = answers.map(|(from, to, protocol, port, passes)| {
        let what = format!("{from} to {to}, protocol {protocol}, port {port}");
        Cell { from: address(from), to: address(to), protocol, port, passes, what }
    });
    for (cell, arrived) in cells.iter().zip(kernel.probe(&cells)) {
        assert_eq!(arrived, cell.passes, "{}", cell.what);
    }
}

/// Adds and removes ten thousand set elements while an allowed and a denied client open connections. No allowed connection is dropped, and
/// no denied one passes. Prints the duration of each change.
#[test]
fn ten_thousand_elements_change_without_a_verdict_in_between() {
    require!("nft", "python3");
    let mut kernel = Kernel::new();
    let [server, client, other] = ["10.1.0.1", "10.1.0.2", "10.9.0.9"].map(|text| text.parse::<IpAddr>().unwrap());
    let end = |name: &str, pod: Option<&str>, address| End {
        name: name.to_owned(),
        pod: pod.map(|pod| PodName::new("x", pod)),
        addresses: vec![address],
    };
    let ends =
        [end("server", Some("server"), server), end("client", Some("client"), client), end("other", None, other)];
    const ELEMENTS: u32 = 10_000;
    kernel.enforce(&large(0..1), &ends);
    let mut times = Vec::new();
    for round in 0..4_u32 {
        // In the first round all elements are added; later rounds replace half of them.
        let members = if round % 2 == 0 { 0..ELEMENTS } else { ELEMENTS / 2..ELEMENTS + ELEMENTS / 2 };
        kernel.pipeline.resync(load_text("state", &large(members), Strictness::Strict).unwrap().objects).unwrap();
        kernel.epoch = kernel.epoch.next();
        let change = kernel.pipeline.renderer(kernel.renderer).change(kernel.epoch, kernel.pipeline.origins());
        let sets = change.unwrap().sets.expect("no rule changes");
        let elements: usize = sets.iter().map(|set| set.gone.len() + set.new.len()).sum();
        assert!(elements >= ELEMENTS as usize - 2, "{elements} elements");
        let (netns, epoch) = (kernel.router.node.name().to_owned(), kernel.epoch);
        // The thread is already in the node's namespace, as the vswitch's process is.
        let change = std::thread::spawn(move || {
            bulkhead_dataplane::io::in_namespace(&std::path::Path::new("/run/netns").join(netns), move || {
                let started = Instant::now();
                bulkhead_node::set_elements::change(&sets, epoch).unwrap();
                started.elapsed()
            })
            .unwrap()
        });
        let (mut passed, mut refused) = (0, 0);
        while !change.is_finished() {
            let cell = |from, passes| Cell { from, to: server, protocol: 17, port: 80, passes, what: String::new() };
            let cells: Vec<Cell> =
                (0..40).map(|at| cell(if at % 2 == 0 { client } else { other }, at % 2 == 0)).collect();
            for (cell, arrived) in cells.iter().zip(kernel.probe(&cells)) {
                assert_eq!(arrived, cell.passes, "round {round}");
                *(if arrived { &mut passed } else { &mut refused }) += 1;
            }
        }
        kernel.pipeline.renderer_mut(kernel.renderer).take();
        kernel.router.nft(&remember(kernel.epoch));
        times.push(change.join().unwrap());
        println!("{elements} elements in {:?}, meanwhile {passed} passed and {refused} did not", times.last().unwrap());
        assert!(passed > 0 && refused > 0);
    }
    times.sort_unstable();
    println!("median beside the probes {:?}", times[times.len() / 2]);
    // Measures the change without probes, for information only.
    let netns = std::path::Path::new("/run/netns").join(kernel.router.node.name());
    let mut times = Vec::new();
    for round in 0..6_u32 {
        let members = if round % 2 == 0 { 0..ELEMENTS } else { ELEMENTS / 2..ELEMENTS + ELEMENTS / 2 };
        kernel.pipeline.resync(load_text("state", &large(members), Strictness::Strict).unwrap().objects).unwrap();
        kernel.epoch = kernel.epoch.next();
        let change = kernel.pipeline.renderer(kernel.renderer).change(kernel.epoch, kernel.pipeline.origins());
        let (sets, epoch) = (change.unwrap().sets.unwrap(), kernel.epoch);
        let timed = bulkhead_dataplane::io::in_namespace(&netns, move || {
            let started = Instant::now();
            bulkhead_node::set_elements::change(&sets, epoch).unwrap();
            started.elapsed()
        });
        kernel.pipeline.renderer_mut(kernel.renderer).take();
        times.push(timed.unwrap());
    }
    println!("without probes {times:?}");
}
