//! A small run of `bulkhead-bench names`: its rows and their form, and the values that do not depend on the machine.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

use std::process::Command;

use serde_json::Value;

#[test]
fn no_first_connection_is_denied_and_no_forged_answer_opens_an_address() {
    let small = ["--connections", "2000", "--forged", "700", "--answers", "64", "--rounds", "2"];
    let memory = ["--names", "100", "--pods", "70", "--addresses", "3", "-o", "json"];
    let args = [&["names"], &small[..], &memory].concat();
    let output = Command::new(env!("CARGO_BIN_EXE_bulkhead-bench")).args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    println!("{report:#}");
    let lines = report["lines"].as_array().unwrap();
    for (row, count) in [("memory", 5), ("connections", 1), ("forged", 1), ("latency", 3)] {
        let of: Vec<&Value> = lines.iter().filter(|line| line["row"] == row).collect();
        assert_eq!(of.len(), count, "{row}: {of:#?}");
        assert!(of.iter().all(|line| line["value"].is_number()), "{report:#}");
    }
    for line in lines.iter().filter(|line| line["unit"] == "SYNs") {
        assert_eq!((&line["value"], &line["met"]), (&Value::from(0.0), &Value::from(true)), "{line:#}");
    }
    let detail = |row: &str| &lines.iter().find(|line| line["row"] == row).unwrap()["detail"];
    assert_eq!(detail("memory")["holdings"], 100 * 70 * 3);
    assert!(lines.iter().filter(|line| line["row"] == "memory").all(|line| line["met"].is_null()), "{report:#}");
    assert!(detail("connections")["on_another_thread"].as_u64() > Some(0), "{report:#}");
    let kinds = detail("forged")["kinds"].as_object().unwrap();
    assert!(kinds.len() == 7 && kinds.values().all(|kind| kind["forged"] == 100), "{kinds:#?}");
    assert_eq!(detail("forged")["true_answers"], 600, "all but the late ones");
}
