//! The pipeline against known answers: the truth tables of the cyclonus generator's cases and of the trap cases, step
//! after step in one running pipeline and each step from scratch, with ingress and egress also on their own.
//!
//! The cases lie outside the project (`BULKHEAD_CASES` names their folder). Where they are absent the tests say so and
//! pass; under CI that is a failure.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails, and a skipped one says so")]

mod oracle;
mod vswitch;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_control::object::Policy;
use bulkhead_control::origin::Direction;
use bulkhead_control::source::{Strictness, load_text};
use oracle::changes::events;
use oracle::{Flow, State};
use serde_json::{Value, json};
use vswitch::Vswitches;

/// The folder of the cases, none (with a printed reason) where it is absent.
fn cases() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases");
    let path = env::var_os("BULKHEAD_CASES").map_or_else(beside, PathBuf::from);
    if path.is_dir() {
        return Some(path);
    }
    assert!(env::var_os("CI").is_none(), "{} is absent and CI must run this test", path.display());
    println!("skipped: {} is absent; set BULKHEAD_CASES", path.display());
    None
}

/// The objects of one step, read as a file would be.
fn state(step: &Value) -> State {
    let mut items: Vec<Value> = Vec::new();
    for (name, labels) in step["namespaces"].as_object().unwrap() {
        items.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}));
    }
    for pod in step["pods"].as_array().unwrap() {
        let address = pod["ip"].as_str().unwrap();
        let port =
            |port: &Value| json!({"containerPort": port["port"], "protocol": port["protocol"], "name": port["name"]});
        let ports: Vec<Value> = pod["ports"].as_array().unwrap().iter().map(port).collect();
        let node = if address.starts_with("10.244.1.") { "node-1" } else { "node-2" };
        items.push(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": pod["namespace"], "name": pod["name"], "labels": pod["labels"]},
            "spec": {"nodeName": node, "containers": [{"name": "c", "ports": ports}]},
            "status": {"phase": "Running", "podIPs": [{"ip": address}]},
        }));
    }
    for policy in step["policies"].as_array().unwrap() {
        let mut policy = policy.clone();
        policy["apiVersion"] = "networking.k8s.io/v1".into();
        policy["kind"] = "NetworkPolicy".into();
        items.push(policy);
    }
    let text = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    let mut state = State::of(&load_text("case.json", &text, Strictness::Strict).unwrap().objects);
    // A policy that only stands on another line is the same policy.
    state.policies.values_mut().for_each(|policy| policy.position = None);
    state
}

/// Which of a step's tables is asked.
#[derive(Clone, Copy, Debug)]
enum Question {
    Combined,
    Only(Direction),
}

const QUESTIONS: [Question; 3] =
    [Question::Combined, Question::Only(Direction::Ingress), Question::Only(Direction::Egress)];

impl Question {
    fn table(self) -> &'static str {
        match self {
            Self::Combined => "combined",
            Self::Only(direction) => direction.name(),
        }
    }

    /// The state in which only the policies' rules of this direction are left.
    fn asked_of(self, state: &State) -> State {
        let Self::Only(direction) = self else { return state.clone() };
        let mut only = state.clone();
        for policy in only.policies.values_mut() {
            let Policy { ingress, egress, .. } = policy;
            match direction {
                Direction::Ingress => *egress = None,
                Direction::Egress => *ingress = None,
            }
        }
        only
    }
}

/// The probed cells of a table: flow, whether it passes, and how to say it. A pod's way to itself is left out.
fn cells(step: &Value, state: &State, table: &str) -> Vec<(Flow, bool, String)> {
    let order: Vec<&str> = step["order"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let addresses: BTreeMap<String, _> =
        state.pods.values().map(|pod| (pod.name.to_string(), pod.addresses[0])).collect();
    let mut cells = Vec::new();
    for (service, tables) in step["tables"].as_object().unwrap() {
        let (name, port) = service.split_once('/').unwrap();
        let protocol = match name {
            "TCP" => 6,
            "UDP" => 17,
            "SCTP" => 132,
            other => panic!("unknown protocol {other}"),
        };
        for (row, from) in tables[table].as_array().unwrap().iter().zip(&order) {
            for (cell, to) in row.as_str().unwrap().chars().zip(&order) {
                if from != to && matches!(cell, '.' | 'X') {
                    let (src, dst) = (addresses[*from], addresses[*to]);
                    let flow = Flow { src, dst, protocol, port: port.parse().unwrap() };
                    cells.push((flow, cell == '.', format!("{from} -> {to} {service} {table}")));
                }
            }
        }
    }
    cells
}

/// How many cases, steps and cells of the combined tables were compared.
#[derive(Debug, Default, PartialEq, Eq)]
struct Compared {
    cases: usize,
    steps: usize,
    cells: usize,
}

/// Runs all cases of a file for one question.
fn run(all: &[Value], question: Question) -> Compared {
    let (mut compared, mut wrong) = (Compared::default(), Vec::new());
    for (at_case, case) in all.iter().enumerate() {
        compared.cases += 1;
        let mut running = [(true, Vswitches::cluster()), (false, Vswitches::nodes(&["node-1", "node-2"]))];
        let mut before = State::default();
        for (at, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            compared.steps += 1;
            let state = question.asked_of(&state(step));
            for (deletions_first, vswitches) in &mut running {
                let deletions_first = *deletions_first ^ (at_case % 2 == 0);
                events(&before, &state, deletions_first).iter().for_each(|event| vswitches.apply(event));
            }
            let mut scratch = Vswitches::cluster();
            scratch.resync(&state.objects());
            for (flow, expected, what) in cells(step, &state, question.table()) {
                compared.cells += 1;
                let answers = [
                    running[0].1.allow(&state, &flow),
                    running[1].1.allow(&state, &flow),
                    scratch.allow(&state, &flow),
                    state.allowed(&flow),
                ];
                if answers != [expected; 4] {
                    wrong.push(format!("case {} step {at}: {what} must be {expected}: {answers:?}", case["id"]));
                }
            }
            before = state;
        }
    }
    let shown = wrong.iter().take(10).cloned().collect::<Vec<_>>().join("\n  ");
    assert!(
        wrong.is_empty(),
        "{} cells are wrong (running, a pipeline a node, scratch, oracle):\n  {shown}",
        wrong.len()
    );
    compared
}

fn run_file(file: &str) -> Option<[Compared; 3]> {
    let text = fs::read_to_string(cases()?.join(file)).unwrap();
    let all: Vec<Value> = serde_json::from_str(&text).unwrap();
    Some(QUESTIONS.map(|question| run(&all, question)))
}

#[test]
fn every_cyclonus_case_is_right_step_by_step_and_from_scratch() {
    let Some(compared) = run_file("cyclonus_cases.json") else { return };
    for Compared { cases, steps, cells } in compared {
        println!("{cases} cases, {steps} steps, {cells} cells");
        assert_eq!((cases, steps), (230, 256));
        // All 123,669 but the diagonal.
        assert_eq!(cells, 123_669 - 13_713);
    }
}

#[test]
fn every_trap_case_is_right_step_by_step_and_from_scratch() {
    let Some(compared) = run_file("trap_cases.json") else { return };
    for Compared { cases, steps, cells } in compared {
        println!("{cases} cases, {steps} steps, {cells} cells");
        assert_eq!(cases, 29);
        assert!(cells > 10_000, "only {cells} cells were compared");
    }
}
