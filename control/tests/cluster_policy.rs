//! ClusterNetworkPolicy and its ancestors against known answers.
//!
//! The cases lie outside the project (`BULKHEAD_CASES` names their folder). Where they are absent the tests say so and pass; under CI
//! that is a failure.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails, and a skipped one says so")]

mod oracle;
mod vswitch;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use bulkhead_control::object::Policy;
use bulkhead_control::origin::Direction;
use bulkhead_control::pipeline::Pipeline;
use bulkhead_control::processor::Scope;
use bulkhead_control::source::{Strictness, load_text};
use bulkhead_control::ties::ties;
use oracle::changes::events;
use oracle::{Flow, State};
use serde_json::{Value, json};
use vswitch::Vswitches;

/// The cases of a group, none (with a printed reason) where they are absent.
fn cases(group: &str) -> Option<Vec<Value>> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases");
    let path = env::var_os("BULKHEAD_CASES").map_or_else(beside, PathBuf::from).join("cnp_cases.json");
    let Ok(text) = fs::read_to_string(&path) else {
        assert!(env::var_os("CI").is_none(), "{} is absent and CI must run this test", path.display());
        println!("skipped: {} is absent; set BULKHEAD_CASES", path.display());
        return None;
    };
    let mut all: Vec<Value> = serde_json::from_str(&text).unwrap();
    all.retain(|case| case["group"] == group);
    Some(all)
}

#[test]
fn what_is_to_be_refused_is_refused_with_its_object_field_and_remedy() {
    let Some(cases) = cases("refuse") else { return };
    for case in &cases {
        let (id, step) = (&case["id"], &case["steps"][0]);
        let [policy] = &step["policies"].as_array().unwrap()[..] else { panic!("case {id}: one object expected") };
        let errors = load_text("case.json", &policy.to_string(), Strictness::Strict).expect_err(&id.to_string());
        let [error] = errors.shown() else { panic!("case {id}: one error expected\n{errors}") };
        assert_eq!(
            error.object.as_deref().map(|name| name.replace(' ', "/")).as_deref(),
            step["refuse"]["object"].as_str()
        );
        assert_eq!(Some(error.path.as_str()), step["refuse"]["field"].as_str(), "case {id}: {error}");
        assert!(error.line == Some(1) && !error.help.is_empty(), "case {id}: {error}");
    }
    assert_eq!(cases.len(), 60);
}

/// The objects of one step, read as a file would be.
fn state(step: &Value, strictness: Strictness) -> State {
    let mut items: Vec<Value> = Vec::new();
    let list = |key: &str| step[key].as_array().cloned().unwrap_or_default();
    for (name, labels) in step["namespaces"].as_object().unwrap() {
        items.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}));
    }
    for node in list("nodes") {
        let addresses = node["addresses"].as_array().unwrap().iter();
        let mut addresses: Vec<Value> =
            addresses.map(|address| json!({"type": "InternalIP", "address": address})).collect();
        addresses.push(json!({"type": "Hostname", "address": node["name"]}));
        items.push(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": node["name"], "labels": node["labels"]},
            "status": {"addresses": addresses},
        }));
    }
    for pod in list("pods") {
        let many = pod["ips"].as_array().cloned().unwrap_or_else(|| vec![pod["ip"].clone()]);
        let addresses: Vec<Value> = many.iter().map(|address| json!({"ip": address})).collect();
        let mut containers = Vec::new();
        for port in pod["ports"].as_array().into_iter().flatten() {
            let mut port = port.clone();
            let number = port.as_object_mut().unwrap().remove("port").unwrap();
            port["containerPort"] = number;
            containers.push(json!({"name": "c", "ports": [port]}));
        }
        items.push(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": pod["namespace"], "name": pod["name"], "labels": pod["labels"]},
            "spec": {"nodeName": pod["node"], "hostNetwork": pod["hostNetwork"], "containers": containers},
            "status": {"phase": "Running", "podIPs": addresses},
        }));
    }
    for (at, mut policy) in list("policies").into_iter().enumerate() {
        // One case writes two of the same name, which no cluster can have.
        let metadata = &policy["metadata"];
        if list("policies")[..at]
            .iter()
            .any(|earlier| earlier["kind"] == policy["kind"] && earlier["metadata"] == *metadata)
        {
            policy["metadata"]["name"] = format!("{}-{at}", metadata["name"].as_str().unwrap()).into();
        }
        if policy["kind"].is_null() {
            policy["apiVersion"] = "networking.k8s.io/v1".into();
            policy["kind"] = "NetworkPolicy".into();
        }
        items.push(policy);
    }
    let text = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let loaded = load_text("case.json", &text, strictness).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    let mut state = State::of(&loaded.objects);
    // A policy that only stands on another line is the same policy.
    state.policies.values_mut().for_each(|policy| policy.position = None);
    state.cluster_policies.values_mut().for_each(|policy| policy.position = None);
    state
}

/// The state in which only the rules of this direction are left.
fn only(direction: Direction, state: &State) -> State {
    let mut only = state.clone();
    for policy in only.policies.values_mut() {
        let Policy { ingress, egress, .. } = policy;
        match direction {
            Direction::Ingress => *egress = None,
            Direction::Egress => *ingress = None,
        }
    }
    for policy in only.cluster_policies.values_mut() {
        match direction {
            Direction::Ingress => policy.egress.clear(),
            Direction::Egress => policy.ingress.clear(),
        }
    }
    only
}

/// The probed cells of the table: flow, whether it passes, and how to say it. A pod's way to itself is left out.
fn cells(step: &Value, tables: &Value, question: &str, v6: bool) -> Vec<(Flow, bool, String)> {
    let order: Vec<&str> = step["order"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let mut addresses: BTreeMap<String, IpAddr> = BTreeMap::new();
    for pod in step["pods"].as_array().unwrap() {
        let many = pod["ips"].as_array().cloned().unwrap_or_else(|| vec![pod["ip"].clone()]);
        let mut many = many.iter().map(|address| address.as_str().unwrap().parse::<IpAddr>().unwrap());
        let name = format!("{}/{}", pod["namespace"].as_str().unwrap(), pod["name"].as_str().unwrap());
        addresses.extend(many.find(|address| address.is_ipv6() == v6).map(|address| (name, address)));
    }
    let address = |name: &str| addresses.get(name).copied().or_else(|| name.parse().ok());
    let mut cells = Vec::new();
    for (service, tables) in tables.as_object().unwrap() {
        let (name, port) = service.split_once('/').unwrap_or((service, "0"));
        let protocol = match name {
            "TCP" => 6,
            "UDP" => 17,
            "SCTP" => 132,
            "ICMP" => {
                if v6 {
                    58
                } else {
                    1
                }
            }
            other => panic!("unknown protocol {other}"),
        };
        let Some(table) = tables[question].as_array() else { continue };
        for (row, from) in table.iter().zip(&order) {
            for (cell, to) in row.as_str().unwrap().chars().zip(&order) {
                if from != to && matches!(cell, '.' | 'X') {
                    let (src, dst) = (address(from).unwrap(), address(to).unwrap());
                    let flow = Flow { src, dst, protocol, port: port.parse().unwrap() };
                    cells.push((flow, cell == '.', format!("{from} -> {to} {service} {question}")));
                }
            }
        }
    }
    cells
}

/// All cells of a step that ask the question.
fn asked(step: &Value, question: &str) -> Vec<(Flow, bool, String)> {
    let mut all = Vec::new();
    for (key, v6) in [("tables", false), ("tables6", true), ("derived", false)] {
        if step[key].is_object() {
            all.extend(cells(step, &step[key], question, v6));
        }
    }
    all
}

/// Runs the cases for one question. Returns how many cells it compared.
fn run(cases: &[Value], question: &str) -> usize {
    let (mut compared, mut wrong) = (0, Vec::new());
    for (at_case, case) in cases.iter().enumerate() {
        let steps = case["steps"].as_array().unwrap();
        let nodes = steps.iter().flat_map(|step| step["nodes"].as_array().into_iter().chain(step["pods"].as_array()));
        let nodes: BTreeSet<&str> = nodes
            .flatten()
            .filter_map(|one| one["node"].as_str().or(one["addresses"].as_array().and(one["name"].as_str())))
            .collect();
        let nodes: Vec<_> = nodes.into_iter().collect();
        let mut running = [(true, Vswitches::cluster()), (false, Vswitches::nodes(&nodes))];
        let mut before = State::default();
        for (at, step) in steps.iter().enumerate() {
            let whole = state(step, Strictness::Strict);
            let state = match question {
                "ingress" => only(Direction::Ingress, &whole),
                "egress" => only(Direction::Egress, &whole),
                _ => whole,
            };
            for (deletions_first, vswitches) in &mut running {
                let deletions_first = *deletions_first ^ (at_case % 2 == 0);
                events(&before, &state, deletions_first).iter().for_each(|event| vswitches.apply(event));
            }
            let mut scratch = Vswitches::cluster();
            scratch.resync(&state.objects());
            for (flow, expected, what) in asked(step, question) {
                compared += 1;
                let answers = [
                    running[0].1.allow(&state, &flow),
                    running[1].1.allow(&state, &flow),
                    scratch.allow(&state, &flow),
                    state.allowed(&flow),
                ];
                if answers != [expected; 4] {
                    let (id, named) = (&case["id"], &case["description"]);
                    wrong.push(format!("case {id} step {at}: {what} must be {expected}: {answers:?}: {named}"));
                }
            }
            before = state;
        }
    }
    let shown = wrong.iter().take(40).cloned().collect::<Vec<_>>().join("\n  ");
    assert!(
        wrong.is_empty(),
        "{} cells are wrong (running, a pipeline a node, scratch, oracle):\n  {shown}",
        wrong.len()
    );
    compared
}

fn run_group(group: &str) -> Option<[usize; 3]> {
    let cases = cases(group)?;
    let compared = ["combined", "ingress", "egress"].map(|question| run(&cases, question));
    println!("{} cases, {compared:?} cells", cases.len());
    Some(compared)
}

#[test]
fn the_conformance_suite_of_the_api_is_right_step_by_step_and_from_scratch() {
    let Some(compared) = run_group("upstream") else { return };
    assert!(compared[0] > 301, "{compared:?}");
}

#[test]
fn every_trap_is_right_step_by_step_and_from_scratch() {
    let Some(compared) = run_group("trap") else { return };
    assert!(compared.iter().all(|&cells| cells > 5_000), "{compared:?}");
}

#[test]
fn every_story_is_right_step_by_step_and_from_scratch() {
    let Some(compared) = run_group("story") else { return };
    assert!(compared.iter().all(|&cells| cells > 100), "{compared:?}");
}

#[test]
fn where_faults_are_survived_a_rule_fails_closed_and_what_does_not_say_for_whom_it_is_stays_refused() {
    let Some(cases) = cases("refuse") else { return };
    let mut survived = 0;
    for case in &cases {
        let (id, step) = (&case["id"], &case["steps"][0]);
        let tables = step.get("lenient").or(case.get("lenient"));
        let Some(tables) = tables else {
            let field = step["refuse"]["field"].as_str().unwrap();
            let vital = ["spec.tier", "spec.priority", "spec.subject", "metadata"];
            let is_vital = vital.iter().any(|vital| field.starts_with(vital));
            let policy = step["policies"][0].to_string();
            assert_eq!(load_text("case.json", &policy, Strictness::Lenient).is_err(), is_vital, "case {id}");
            continue;
        };
        survived += 1;
        let state = state(step, Strictness::Lenient);
        let mut vswitches = Vswitches::cluster();
        vswitches.resync(&state.objects());
        for (flow, expected, what) in cells(step, tables, "combined", false) {
            let answers = [vswitches.allow(&state, &flow), state.allowed(&flow)];
            assert_eq!(answers, [expected; 2], "case {id}: {what}");
        }
    }
    assert_eq!(survived, 21);
}

/// A cluster policy for every pod.
fn policy(name: &str, tier: &str, priority: u16, rules: &str) -> String {
    format!(
        "{{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {{name: {name}}}, \
          spec: {{tier: {tier}, priority: {priority}, subject: {{namespaces: {{}}}}, {rules}}}}}\n---\n"
    )
}

const POD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: x}, spec: {nodeName: node-1}, status: {podIP: 10.0.0.1}}";

fn pipeline(text: &str) -> Pipeline {
    let mut pipeline = Pipeline::new(Scope::Cluster);
    pipeline.resync(load_text("t.yaml", text, Strictness::Strict).unwrap().objects).unwrap();
    pipeline
}

#[test]
fn policies_of_one_priority_that_disagree_about_a_pod_are_a_tie() {
    let rule = |action: &str| format!("egress: [{{action: {action}, to: [{{namespaces: {{}}}}]}}]");
    let [accept, deny] = ["Accept", "Deny"].map(rule);
    let one = policy("b", "Admin", 5, &accept);
    let told = |other: &str, pod: &str| -> Vec<String> {
        ties(pipeline(&(one.clone() + other + pod)).cache()).iter().map(ToString::to_string).collect()
    };
    let tie = "ClusterNetworkPolicy a and ClusterNetworkPolicy b have the same tier and priority, different actions, and both \
               select x/a";
    assert_eq!(told(&policy("a", "Admin", 5, &deny), POD), [tie]);
    for other in [
        policy("a", "Admin", 6, &deny),
        policy("a", "Baseline", 5, &deny),
        policy("a", "Admin", 5, &accept),
        policy("a", "Admin", 5, "ingress: [{action: Deny, from: [{namespaces: {}}]}]"),
        policy("a", "Admin", 5, &deny)
            .replace("{namespaces: {}}, egress", "{namespaces: {matchLabels: {no: pod}}}, egress"),
    ] {
        assert!(told(&other, POD).is_empty(), "{other}");
    }
    assert!(told(&policy("a", "Admin", 5, &deny), "").is_empty(), "without a pod");
}

#[test]
fn a_verdict_names_tier_policy_and_rule() {
    let rules = "egress: [{action: Pass, to: [{networks: [192.0.2.1/32]}]}, \
                 {name: no-world, action: Deny, to: [{networks: [0.0.0.0/0]}]}]";
    let text = policy("edge", "Baseline", 7, rules) + POD;
    let state = State::of(&load_text("t.yaml", &text, Strictness::Strict).unwrap().objects);
    let mut vswitches = Vswitches::cluster();
    vswitches.resync(&state.objects());
    let origin = |to: &str| {
        let (src, dst) = ("10.0.0.1".parse().unwrap(), to.parse().unwrap());
        let hops = vswitches.hops(&state, &Flow { src, dst, protocol: 6, port: 80 }, true);
        hops.last().unwrap().origin.clone().unwrap().to_string()
    };
    assert_eq!(origin("192.0.2.2"), "Baseline tier, ClusterNetworkPolicy edge egress[1] (no-world)");
    assert_eq!(origin("192.0.2.1"), "no egress isolation");
}

#[test]
fn subjects_follow_the_labels_of_namespaces_and_pods() {
    let rules = "egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]";
    let of = |subject: &str| policy("p", "Admin", 0, rules).replace("{namespaces: {}}", subject);
    let namespace =
        |labels: &str| format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: x, labels: {labels}}}}}\n---\n");
    let labelled = POD.replace("namespace: x", "namespace: x, labels: {app: web}");
    let by_namespace = of("{namespaces: {matchLabels: {team: red}}}");
    let by_pod = of("{pods: {podSelector: {matchLabels: {app: web}}}}");
    let steps = [
        (namespace("{}") + &by_namespace + POD, false),
        (namespace("{team: red}") + &by_namespace + POD, true),
        (namespace("{team: blue}") + &by_namespace + POD, false),
        (by_namespace.clone() + POD, false),
        (namespace("{team: red}") + &by_namespace + &labelled, true),
        (namespace("{team: red}") + &by_pod + &labelled, true),
        (namespace("{team: red}") + &by_pod + POD, false),
        (namespace("{team: red}") + &by_pod + &labelled, true),
        (namespace("{team: red}") + &labelled, false),
    ];
    let (mut running, mut before) = (Vswitches::cluster(), State::default());
    for (at, (text, denied)) in steps.iter().enumerate() {
        let state = State::of(&load_text("t.yaml", text, Strictness::Strict).unwrap().objects);
        events(&before, &state, at % 2 == 0).iter().for_each(|event| running.apply(event));
        let (src, dst) = ("10.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
        assert_eq!(running.allow(&state, &Flow { src, dst, protocol: 17, port: 1 }), !denied, "step {at}");
        before = state;
    }
}

#[test]
fn the_addresses_of_selected_nodes_follow_their_labels() {
    let rules = "egress: [{action: Deny, to: [{nodes: {matchLabels: {role: edge}}}]}]";
    let text = |labels: &str, address: &str| {
        let node = format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: node-1, labels: {labels}}}, \
              status: {{addresses: [{{type: InternalIP, address: {address}}}]}}}}\n---\n"
        );
        policy("p", "Admin", 0, rules) + &node + POD
    };
    // The pod's own node too: it is exempt from NetworkPolicies only.
    let steps = [
        ("{}", "192.0.2.1", false),
        ("{role: edge}", "192.0.2.1", true),
        ("{role: edge}", "192.0.2.2", false),
        ("{role: edge}", "192.0.2.1", true),
        ("{role: core}", "192.0.2.1", false),
    ];
    let (mut running, mut before) = (Vswitches::cluster(), State::default());
    for (labels, address, denied) in steps {
        let state = State::of(&load_text("t.yaml", &text(labels, address), Strictness::Strict).unwrap().objects);
        events(&before, &state, true).iter().for_each(|event| running.apply(event));
        let (src, dst) = ("10.0.0.1".parse().unwrap(), "192.0.2.1".parse().unwrap());
        assert_eq!(running.allow(&state, &Flow { src, dst, protocol: 6, port: 1 }), !denied, "{labels} {address}");
        before = state;
    }
}

#[test]
fn the_address_of_a_host_network_pod_is_its_nodes() {
    let rules = "egress: [{action: Deny, to: [{nodes: SELECTOR}]}]";
    let shares = |node: &str, phase: &str| {
        format!(
            "\n---\n{{apiVersion: v1, kind: Pod, metadata: {{name: agent, namespace: x}}, spec: {{nodeName: {node}, hostNetwork: true}}, \
              status: {{phase: {phase}, podIP: 192.0.2.7}}}}\n"
        )
    };
    let node = "{apiVersion: v1, kind: Node, metadata: {name: node-2, labels: {role: edge}}, \
                status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}}\n---\n";
    let text =
        |selector: &str, agent: &str| policy("p", "Admin", 0, rules).replace("SELECTOR", selector) + node + POD + agent;
    let steps = [
        (text("{matchLabels: {role: edge}}", ""), false),
        (text("{matchLabels: {role: edge}}", &shares("node-2", "Running")), true),
        (text("{matchLabels: {role: edge}}", &shares("node-2", "Succeeded")), false),
        (text("{matchLabels: {role: core}}", &shares("node-2", "Running")), false),
        // Of a node without an object no label is known.
        (text("{matchExpressions: [{key: role, operator: DoesNotExist}]}", &shares("node-3", "Running")), false),
        (text("{}", &shares("node-3", "Running")), true),
        (text("{}", ""), false),
    ];
    let (mut running, mut before) = (Vswitches::cluster(), State::default());
    for (at, (text, denied)) in steps.iter().enumerate() {
        let state = State::of(&load_text("t.yaml", text, Strictness::Strict).unwrap().objects);
        events(&before, &state, at % 2 == 0).iter().for_each(|event| running.apply(event));
        let flow = Flow { src: "10.0.0.1".parse().unwrap(), dst: "192.0.2.7".parse().unwrap(), protocol: 6, port: 1 };
        assert_eq!((running.allow(&state, &flow), state.allowed(&flow)), (!denied, !denied), "step {at}");
        before = state;
    }
}

/// A pod of another node with the address 10.0.1.1, as another one has too; whose it is cannot be told.
fn claimant(name: &str, labels: &str) -> String {
    format!(
        "\n---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: x, labels: {labels}}}, spec: {{nodeName: node-2}}, \
          status: {{phase: Running, podIP: 10.0.1.1}}}}"
    )
}

#[test]
fn an_address_that_is_nobodys_is_denied_where_a_rule_denies_or_passes_pods_and_only_there() {
    let red = "pods: {podSelector: {matchLabels: {team: red}}}";
    let rule = |action: &str, peer: &str, more: &str| format!("{{action: {action}, PEERS: [{{{peer}}}]{more}}}");
    let port_80 = ", protocols: [{tcp: {destinationPort: {number: 80}}}]";
    let net = "networks: [10.0.0.0/8]";
    // The rules, both ways where ingress can say them, and whether TCP 80 and TCP 81 pass.
    let cases = [
        (vec![rule("Deny", red, "")], [false, false]),
        (vec![rule("Deny", red, port_80)], [false, true]),
        (vec![rule("Accept", red, ""), rule("Deny", "namespaces: {}", port_80)], [false, true]),
        // Nobody may be passed to others that are kinder.
        (vec![rule("Pass", red, ""), rule("Accept", "namespaces: {}", "")], [false, false]),
        (vec![rule("Accept", red, "")], [true, true]),
        // Egress only: what a network rule decides before does not depend on pods.
        (vec![rule("Accept", net, port_80), rule("Deny", red, "")], [true, false]),
        (vec![rule("Pass", net, port_80), rule("Deny", red, "")], [true, false]),
        (vec![rule("Deny", net, port_80), rule("Accept", red, "")], [false, true]),
    ];
    let two = claimant("c", "{team: red}") + &claimant("d", "{team: blue}");
    for tier in ["Admin", "Baseline"] {
        for (rules, expected) in &cases {
            for direction in [Direction::Ingress, Direction::Egress] {
                let rules = rules.join(", ");
                if direction == Direction::Ingress && rules.contains(net) {
                    continue;
                }
                let word = if direction == Direction::Ingress { "from" } else { "to" };
                let text = policy("p", tier, 0, &format!("{direction}: [{}]", rules.replace("PEERS", word))) + POD;
                let (mut running, mut before) = (Vswitches::cluster(), State::default());
                // One pod, two that cannot be told apart, and one again.
                for pods in [claimant("d", "{team: blue}"), two.clone(), claimant("d", "{team: blue}")] {
                    let state =
                        State::of(&load_text("t.yaml", &(text.clone() + &pods), Strictness::Strict).unwrap().objects);
                    events(&before, &state, true).iter().for_each(|event| running.apply(event));
                    let mut scratch = Vswitches::cluster();
                    scratch.resync(&state.objects());
                    let (pod, other) = ("10.0.0.1".parse().unwrap(), "10.0.1.1".parse().unwrap());
                    let (src, dst) = if direction == Direction::Ingress { (other, pod) } else { (pod, other) };
                    for (port, expected) in [80, 81].into_iter().zip(expected) {
                        let flow = Flow { src, dst, protocol: 6, port };
                        let answers =
                            [running.allow(&state, &flow), scratch.allow(&state, &flow), state.allowed(&flow)];
                        let is_quarantined = state.is_quarantined(other);
                        assert_eq!(is_quarantined, pods == two);
                        if is_quarantined {
                            assert_eq!(answers, [*expected; 3], "{tier} {direction} {rules} port {port}");
                        } else {
                            assert!(answers == [answers[0]; 3], "{tier} {direction} {rules} port {port}: {answers:?}");
                        }
                    }
                    before = state;
                }
            }
        }
    }
}

#[test]
fn a_namespace_whose_labels_cannot_be_read_is_refused_where_a_cluster_policy_asks_for_labels() {
    let faulty = "{apiVersion: v1, kind: Namespace, metadata: {name: x, labels: {team: [red]}}}\n---\n";
    let rules = "egress: [{action: Deny, to: [{namespaces: {}}]}]";
    let by_label = policy("p", "Admin", 0, rules)
        .replace("to: [{namespaces: {}}]", "to: [{namespaces: {matchLabels: {team: red}}}]");
    let error = load_text("t.yaml", &(by_label + faulty + POD), Strictness::Lenient).unwrap_err().to_string();
    assert!(error.starts_with("t.yaml:1: ClusterNetworkPolicy p: whether it is about namespace \"x\""), "{error}");
    assert!(load_text("t.yaml", &(policy("p", "Admin", 0, rules) + faulty + POD), Strictness::Lenient).is_ok());
}

#[test]
fn a_node_that_cannot_be_read_is_refused_where_a_cluster_policy_denies_nodes() {
    let faulty = "{apiVersion: v1, kind: Node, metadata: {name: node-2, labels: []}}\n---\n";
    let text = |action: &str| {
        policy("p", "Admin", 0, &format!("egress: [{{action: {action}, to: [{{nodes: {{}}}}]}}]")) + faulty + POD
    };
    let error = load_text("t.yaml", &text("Deny"), Strictness::Lenient).unwrap_err().to_string();
    assert!(error.starts_with("t.yaml:1: ClusterNetworkPolicy p: whether it is about a node"), "{error}");
    assert!(load_text("t.yaml", &text("Accept"), Strictness::Lenient).is_ok());
}
