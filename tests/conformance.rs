//! `bulkhead reach` against known answers: every cell of the truth tables of cyclonus' generated cases and of the trap cases. Each step
//! runs the program once.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

use std::collections::BTreeMap;
use std::fs;

use crate::known_states::objects;
use crate::support::{bulkhead_with_input, cases, stdout};
use serde_json::Value;

/// The program's verdicts: (protocol/port, from, to) -> allowed.
fn probed(step: &Value) -> BTreeMap<(String, String, String), bool> {
    let mut args = vec!["reach", "-o", "json", "--state", "-"];
    let ports: Vec<String> = step["tables"].as_object().unwrap().keys().map(|key| turned(key)).collect();
    for port in &ports {
        args.extend(["--port", port]);
    }
    let output = bulkhead_with_input(&args, &objects(step).to_string());
    let answer: Value = serde_json::from_str(&stdout(&output, 0)).unwrap();
    let probe = |probe: &Value| {
        let text = |field: &str| probe[field].as_str().unwrap().to_owned();
        ((format!("{}/{}", text("protocol"), probe["port"]), text("from"), text("to")), text("verdict") == "allow")
    };
    answer["probes"].as_array().unwrap().iter().map(probe).collect()
}

/// Turns `TCP/80` into the program's form, `80/TCP`.
fn turned(key: &str) -> String {
    let (protocol, port) = key.split_once('/').unwrap();
    format!("{port}/{protocol}")
}

/// Compares one step. Returns the number of compared cells and the differences.
fn compare(step: &Value) -> (usize, Vec<String>) {
    let verdicts = probed(step);
    let order: Vec<&str> = step["order"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let (mut cells, mut differences) = (0, Vec::new());
    for (service, tables) in step["tables"].as_object().unwrap() {
        for (row, from) in tables["combined"].as_array().unwrap().iter().zip(&order) {
            for (cell, to) in row.as_str().unwrap().chars().zip(&order) {
                if from == to || !matches!(cell, '.' | 'X') {
                    continue;
                }
                cells += 1;
                let key = (service.clone(), (*from).to_owned(), (*to).to_owned());
                if verdicts.get(&key) != Some(&(cell == '.')) {
                    differences
                        .push(format!("{from} -> {to} {service}: expected {cell}, got {:?}", verdicts.get(&key)));
                }
            }
        }
    }
    (cells, differences)
}

/// Runs all cases of a file. Returns the numbers of cases, steps and cells. `None` if the known answers are absent.
fn run(file: &str) -> Option<(usize, usize, usize)> {
    let text = fs::read_to_string(cases()?.join(file)).unwrap();
    let all: Vec<Value> = serde_json::from_str(&text).unwrap();
    let (mut steps, mut cells, mut wrong) = (0, 0, Vec::new());
    for case in &all {
        for (at, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let (compared, differences) = compare(step);
            steps += 1;
            cells += compared;
            if !differences.is_empty() {
                let shown = differences.iter().take(5).cloned().collect::<Vec<_>>().join("\n    ");
                wrong.push(format!("case {} ({}) step {at}:\n    {shown}", case["id"], case["description"]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {steps} steps are wrong:\n  {}", wrong.len(), wrong.join("\n  "));
    Some((all.len(), steps, cells))
}

#[test]
fn reach_is_right_on_every_trap_case() {
    if let Some((cases, _, cells)) = run("trap_cases.json") {
        assert_eq!(cases, 29);
        assert!(cells > 10_000, "only {cells} cells were compared");
    }
}

#[test]
fn reach_is_right_on_every_cyclonus_case() {
    if let Some((cases, steps, cells)) = run("cyclonus_cases.json") {
        assert_eq!((cases, steps), (230, 256));
        assert!(cells > 100_000, "only {cells} cells were compared");
    }
}
