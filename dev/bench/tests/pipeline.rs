//! Runs of `bulkhead-bench pipeline` on small tables: contents and form of the answers. Times are not checked.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

use std::process::{Command, Output};

use serde_json::Value;

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bulkhead-bench")).args(args).output().unwrap()
}

/// Returns the output of a run that must have succeeded.
fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn measured(more: &[&str]) -> Value {
    let args = [&["pipeline", "--flows", "1000", "--rules", "50", "--duration", "20", "-o", "json"], more].concat();
    serde_json::from_str(&stdout(&bench(&args))).unwrap()
}

#[test]
fn the_answer_has_rates_and_what_they_are_about() {
    let answer = measured(&["--size", "128"]);
    for (key, expected) in [("flows", 1000), ("rules", 50), ("workers", 1), ("size", 128), ("new_sessions", 0)] {
        assert_eq!(answer[key], expected, "{key}");
    }
    let number = |key: &str| answer[key].as_f64().unwrap();
    assert!(number("packets") > 0.0 && number("ns_per_packet") > 0.0);
    assert!((number("packets_per_second") * number("ns_per_packet") / 1e9 - 1.0).abs() < 1e-6);
    assert_eq!(answer["session_hits"], answer["packets"], "every packet that was timed was a hit");
}

#[test]
fn every_packet_starts_a_session_when_that_is_asked_for() {
    let answer = measured(&["--new-sessions"]);
    assert_eq!((&answer["session_hits"], &answer["new_sessions"]), (&Value::from(0), &answer["packets"]));
}

#[test]
fn packets_may_be_for_a_services_address() {
    for more in [&["--translated"][..], &["--translated", "--new-sessions"]] {
        let answer = measured(more);
        assert_eq!((&answer["translated"], &answer["dropped"]), (&Value::from(true), &Value::from(0)), "{answer:#}");
        assert!(answer["packets"].as_u64() > Some(0), "{answer:#}");
    }
}

#[test]
fn workers_have_flows_of_their_own() {
    let answer = measured(&["--workers", "2"]);
    assert_eq!(answer["workers"], 2);
    assert_eq!(answer["session_hits"], answer["packets"]);
}

#[test]
fn the_vswitch_is_measured_unless_only_the_engine_is_asked_for() {
    for (more, path) in [(&[][..], "vswitch"), (&["--engine"], "engine"), (&["--engine", "--workers", "2"], "engine")] {
        let answer = measured(more);
        assert_eq!((answer["path"].as_str(), &answer["dropped"]), (Some(path), &Value::from(0)), "{answer:#}");
        assert_eq!(answer["session_hits"], answer["packets"]);
    }
}

#[test]
fn packets_may_come_to_any_worker() {
    for spread in ["any", "shared", "locked", "unshared"] {
        let answer = measured(&["--workers", "2", "--spread", spread]);
        assert_eq!((answer["spread"].as_str(), &answer["new_sessions"]), (Some(spread), &Value::from(0)), "{answer:#}");
        assert!(answer["packets"].as_u64() > Some(0), "{answer:#}");
    }
}

#[test]
fn what_cannot_be_measured_together_is_refused() {
    for more in ["--engine", "--new-sessions"] {
        let output = bench(&["pipeline", "--spread", "any", more]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains("--spread any"), "{text}");
    }
}

#[test]
fn a_services_address_is_one_workers() {
    for more in [&["--engine"][..], &["--workers", "2"]] {
        let output = bench(&[&["pipeline", "--translated"], more].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains("--translated"), "{text}");
    }
}

#[test]
fn the_answer_for_people_says_that_the_generator_is_not_counted() {
    let text = stdout(&bench(&["pipeline", "--flows", "10", "--rules", "1", "--duration", "1"]));
    assert!(text.contains("net of the generator's"), "{text}");
}
