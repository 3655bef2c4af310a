//! `bulkhead run` without privileges: its messages about the configuration and this machine.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

use std::fs;

use crate::support::{bulkhead, root};
use serde_json::Value;

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn the_readme_command_and_the_help_example_check_this_machine_and_give_a_remedy_for_each_finding() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let commands = readme.lines().filter_map(|line| line.strip_prefix("cargo run --release -- "));
    let from_readme = commands.filter(|command| command.starts_with("run ")).map(str::to_owned).next().unwrap();
    let help = String::from_utf8(bulkhead(&["run", "--help"]).stdout).unwrap();
    let from_help = help.lines().find_map(|line| line.strip_prefix("  bulkhead ")).unwrap().to_owned();
    for command in [from_readme, from_help] {
        let output = bulkhead(&words(&format!("{command} -o json")));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        // This machine may be unable to run the configuration. The answer and the exit code must agree.
        assert_eq!(output.status.code(), Some(i32::from(report["ok"] == false)), "{report:#}");
        let findings = report["findings"].as_array().unwrap();
        assert!(findings.iter().any(|finding| finding["what"].as_str().unwrap().contains("veth-db")), "{report:#}");
        for finding in findings {
            for part in ["what", "why", "remedy"] {
                assert!(!finding[part].as_str().unwrap().is_empty(), "{part}: {finding:#}");
            }
        }
    }
}

#[test]
fn a_wrong_configuration_is_an_error_with_file_line_and_remedy() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong-config.yaml");
    fs::write(&path, "node: n1\nstate: {paths: [s]}\nports: []\nworkers:\n  pol: spin\n").unwrap();
    let output = bulkhead(&["run", "--config", path.to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("wrong-config.yaml:5: pol: unknown field") && text.contains("help: "), "{text}");
    let output = bulkhead(&["run", "--config", "absent.yaml"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && text.contains("absent.yaml: cannot be read"), "{text}");
}

#[test]
fn events_are_objects_for_a_program_that_wants_them_also_the_last_one() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join("log-config.yaml");
    fs::write(&path, "node: n1\nstate: {paths: [absent-state.yaml]}\nports: []\nlog: {format: json}\n").unwrap();
    let events = |more: &[&str]| -> Vec<Value> {
        let words = [&["run", "--config", path.to_str().unwrap()], more].concat();
        let text = String::from_utf8(bulkhead(&words).stderr).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or(Value::Null)).collect()
    };
    let objects = events(&[]);
    assert!(!objects.is_empty());
    for event in &objects {
        assert!(event["time"].is_string() && event["level"].is_string() && event["message"].is_string(), "{objects:?}");
    }
    assert_eq!(objects.last().unwrap()["level"], "error");
    assert!(events(&["--log-format", "text"]).iter().any(Value::is_null), "the command line counts more");
    fs::write(&path, "ports: 7\n").unwrap();
    let objects = events(&["--log-format", "json"]);
    assert!(objects[0]["message"].as_str().unwrap().contains("log-config.yaml") && objects[0]["help"].is_string());
}

#[test]
fn a_state_that_does_not_load_ends_the_start() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join("no-state.yaml");
    fs::write(&path, "node: n1\nstate: {paths: [absent-state.yaml]}\nports: []\n").unwrap();
    let output = bulkhead(&["run", "--config", path.to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    // Without privileges the checks fail before the state is read.
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("absent-state.yaml") || text.contains("CAP_NET_ADMIN"), "{text}");
}

#[test]
fn a_check_says_how_many_services_there_are_or_what_will_not_work_without_them() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join("services-config.yaml");
    let state = root().join("examples/services.yaml");
    let check = |services: &str| -> Vec<String> {
        let text = format!("node: node-1\nstate: {{paths: [{}]}}\nports: []\n{services}\n", state.display());
        fs::write(&path, text).unwrap();
        let output = bulkhead(&["run", "--check", "-o", "json", "--config", path.to_str().unwrap()]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap().iter();
        findings.map(|finding| format!("{}: {}", finding["what"], finding["why"])).collect()
    };
    let on = check("services: {service_cidrs: [10.96.0.0/16]}");
    assert!(on.iter().any(|finding| finding.contains("2 Services, 5 VIPs and 5 backends")), "{on:#?}");
    let off = check("services: off");
    assert!(
        off.iter().any(|finding| finding.contains("Services are off") && finding.contains("cluster's DNS")),
        "{off:#?}"
    );
    assert!(!off.iter().any(|finding| finding.contains("VIPs")), "{off:#?}");
}
