//! Known answers: states with truth tables, with which the pipeline and the oracle are compared. The cases are not part of the project;
//! `BULKHEAD_CASES` names their folder. If it is absent, the tests print that and pass, but fail under CI.
#![allow(dead_code, reason = "each test file uses a part of this")]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use bulkhead_control::object::Policy;
use bulkhead_control::origin::Direction;
use bulkhead_control::source::{Strictness, load_text};
use serde_json::{Value, json};

use crate::oracle::changes::events;
use crate::oracle::{Flow, State};
use crate::vswitch::Vswitches;

/// The maximum number of printed differences. One fault often causes a thousand.
const SHOWN: usize = 40;

/// The cases of a file. `None`, with a printed reason, if the file is absent.
pub(crate) fn load(file: &str) -> Option<Vec<Value>> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases");
    let path = env::var_os("BULKHEAD_CASES").map_or_else(beside, PathBuf::from).join(file);
    let Ok(text) = fs::read_to_string(&path) else {
        assert!(env::var_os("CI").is_none(), "{} is absent and CI must run this test", path.display());
        println!("skipped: {} is absent; set BULKHEAD_CASES", path.display());
        return None;
    };
    Some(serde_json::from_str(&text).unwrap())
}

/// The objects of one step, read like a file.
pub(crate) fn state(step: &Value, strictness: Strictness) -> State {
    let mut items: Vec<Value> = Vec::new();
    let list = |key: &str| step[key].as_array().cloned().unwrap_or_default();
    for (name, labels) in step["namespaces"].as_object().unwrap() {
        items.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}));
    }
    items.extend(list("nodes").iter().map(node));
    items.extend(list("pods").iter().map(pod));
    for (at, mut policy) in list("policies").into_iter().enumerate() {
        // One case has two policies of one name, which is impossible in a cluster.
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
    // A policy that only moved to another line is the same policy.
    state.policies.values_mut().for_each(|policy| policy.position = None);
    state.cluster_policies.values_mut().for_each(|policy| policy.position = None);
    state
}

fn node(node: &Value) -> Value {
    let addresses = node["addresses"].as_array().unwrap().iter();
    let mut addresses: Vec<Value> =
        addresses.map(|address| json!({"type": "InternalIP", "address": address})).collect();
    addresses.push(json!({"type": "Hostname", "address": node["name"]}));
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": node["name"], "labels": node["labels"]},
        "status": {"addresses": addresses},
    })
}

fn pod(pod: &Value) -> Value {
    let addresses: Vec<Value> = texts_of(pod).iter().map(|address| json!({"ip": address})).collect();
    let mut containers = Vec::new();
    for port in pod["ports"].as_array().into_iter().flatten() {
        let mut port = port.clone();
        let number = port.as_object_mut().unwrap().remove("port").unwrap();
        port["containerPort"] = number;
        containers.push(json!({"name": "c", "ports": [port]}));
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": pod["namespace"], "name": pod["name"], "labels": pod["labels"]},
        "spec": {"nodeName": node_of(pod), "hostNetwork": pod["hostNetwork"], "containers": containers},
        "status": {"phase": "Running", "podIPs": addresses},
    })
}

/// A pod's addresses, as written in the case.
fn texts_of(pod: &Value) -> Vec<Value> {
    pod["ips"].as_array().cloned().unwrap_or_else(|| vec![pod["ip"].clone()])
}

/// The pod's node. If the case names none, the node whose block contains the pod's address.
pub(crate) fn node_of(pod: &Value) -> Option<&str> {
    if let Some(node) = pod.get("node") {
        return node.as_str();
    }
    let of_first = pod["ip"].as_str().unwrap().starts_with("10.244.1.");
    Some(if of_first { "node-1" } else { "node-2" })
}

/// Selects one of a step's truth tables.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Question {
    Combined,
    Only(Direction),
}

pub(crate) const QUESTIONS: [Question; 3] =
    [Question::Combined, Question::Only(Direction::Ingress), Question::Only(Direction::Egress)];

impl Question {
    fn table(self) -> &'static str {
        match self {
            Self::Combined => "combined",
            Self::Only(direction) => direction.name(),
        }
    }

    /// Reduces the state to the rules of this question's direction.
    pub(crate) fn asked_of(self, mut state: State) -> State {
        let Self::Only(direction) = self else { return state };
        for policy in state.policies.values_mut() {
            let Policy { ingress, egress, .. } = policy;
            match direction {
                Direction::Ingress => *egress = None,
                Direction::Egress => *ingress = None,
            }
        }
        for policy in state.cluster_policies.values_mut() {
            match direction {
                Direction::Ingress => policy.egress.clear(),
                Direction::Egress => policy.ingress.clear(),
            }
        }
        state
    }
}

/// One cell of a truth table.
pub(crate) struct Cell {
    pub(crate) flow: Flow,
    pub(crate) passes: bool,
    /// The cell's description in messages.
    pub(crate) what: String,
}

/// The cells of the tables, without those of a pod's traffic to itself.
pub(crate) fn cells(step: &Value, tables: &Value, question: Question, v6: bool) -> Vec<Cell> {
    let question = question.table();
    let order: Vec<&str> = step["order"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let mut addresses: BTreeMap<String, IpAddr> = BTreeMap::new();
    for pod in step["pods"].as_array().unwrap() {
        let many = texts_of(pod);
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
            "ICMP" if v6 => 58,
            "ICMP" => 1,
            other => panic!("unknown protocol {other}"),
        };
        let Some(table) = tables[question].as_array() else { continue };
        for (row, from) in table.iter().zip(&order) {
            for (cell, to) in row.as_str().unwrap().chars().zip(&order) {
                if from != to && matches!(cell, '.' | 'X') {
                    let (src, dst) = (address(from).unwrap(), address(to).unwrap());
                    let flow = Flow { src, dst, protocol, port: port.parse().unwrap() };
                    let what = format!("{from} -> {to} {service} {question}");
                    cells.push(Cell { flow, passes: cell == '.', what });
                }
            }
        }
    }
    cells
}

/// All cells of a step for one question.
pub(crate) fn asked(step: &Value, question: Question) -> Vec<Cell> {
    let tables = [("tables", false), ("tables6", true), ("derived", false)];
    let tables = tables.into_iter().filter(|(key, _)| step[key].is_object());
    tables.flat_map(|(key, v6)| cells(step, &step[key], question, v6)).collect()
}

pub(crate) fn nodes_of(steps: &[Value]) -> BTreeSet<String> {
    let list = |step: &'_ Value, key: &str| step[key].as_array().cloned().unwrap_or_default();
    let mut nodes: BTreeSet<String> = BTreeSet::new();
    for step in steps {
        nodes.extend(list(step, "nodes").iter().filter_map(|node| node["name"].as_str()).map(str::to_owned));
        nodes.extend(list(step, "pods").iter().filter_map(node_of).map(str::to_owned));
    }
    nodes
}

/// The numbers of compared cases and cells.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Compared {
    pub(crate) cases: usize,
    pub(crate) steps: usize,
    pub(crate) cells: usize,
}

/// Runs all cases for one question: step by step in one pipeline and in one per node (deletions first in one, last in the other), each step
/// from scratch, and with the oracle.
pub(crate) fn run(cases: &[Value], question: Question) -> Compared {
    compare(cases, question, |nodes| vec![Vswitches::cluster(), Vswitches::nodes(nodes)], |_| Vswitches::cluster())
}

/// As [`run`], on vswitches that `make` creates from a case's nodes: step by step, and each step from scratch.
pub(crate) fn run_on(cases: &[Value], question: Question, make: impl Fn(&[&str]) -> Vswitches) -> Compared {
    compare(cases, question, |nodes| vec![make(nodes)], &make)
}

fn compare(
    cases: &[Value],
    question: Question,
    running: impl Fn(&[&str]) -> Vec<Vswitches>,
    scratch: impl Fn(&[&str]) -> Vswitches,
) -> Compared {
    let (mut compared, mut wrong) = (Compared::default(), Vec::new());
    for (at_case, case) in cases.iter().enumerate() {
        compared.cases += 1;
        let steps = case["steps"].as_array().unwrap();
        let nodes = nodes_of(steps);
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let mut running = running(&nodes);
        let mut before = State::default();
        for (at, step) in steps.iter().enumerate() {
            compared.steps += 1;
            let state = question.asked_of(state(step, Strictness::Strict));
            for (nth, vswitches) in running.iter_mut().enumerate() {
                let deletions_first = (nth + at_case) % 2 == 1;
                events(&before, &state, deletions_first).iter().for_each(|event| vswitches.apply(event));
            }
            let mut scratch = scratch(&nodes);
            scratch.resync(&state.objects());
            for Cell { flow, passes, what } in asked(step, question) {
                compared.cells += 1;
                let followed = running.iter().map(|vswitches| vswitches.allow(&state, &flow));
                let mut answers: Vec<bool> = followed.collect();
                answers.extend([scratch.allow(&state, &flow), state.allowed(&flow)]);
                if answers.iter().any(|answer| *answer != passes) {
                    let (id, named) = (&case["id"], &case["description"]);
                    wrong.push(format!("case {id} step {at}: {what} must be {passes}: {answers:?}: {named}"));
                }
            }
            before = state;
        }
    }
    let shown = wrong.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("\n  ");
    assert!(
        wrong.is_empty(),
        "{} cells are wrong (step by step, from scratch, by the oracle):\n  {shown}",
        wrong.len()
    );
    compared
}
