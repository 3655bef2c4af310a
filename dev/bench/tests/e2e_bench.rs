//! The benchmark measures every path and row, and cleans up. The measured values are not checked.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::lab::netns::{eventually, ip};
use crate::require;
use serde_json::Value;

fn bench(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead-bench"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Returns the output of a run, after checking that the run succeeded and left nothing behind.
fn finished(child: Child) -> Result<Value, String> {
    let id = child.id();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    assert_nothing_is_left(id);
    let errors = String::from_utf8_lossy(&stderr).into_owned();
    if status.success() { Ok(serde_json::from_slice(&stdout).unwrap()) } else { Err(errors) }
}

/// Checks by the process id, which is part of the names of a benchmark's namespaces, processes and files.
fn assert_nothing_is_left(id: u32) {
    for prefix in [format!("bhwire{id}-"), format!("bhb{id}-")] {
        assert!(!ip("netns list").contains(&prefix));
        assert!(running(&prefix).is_empty(), "{:?}", running(&prefix));
        let files = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
        assert!(!files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with(&prefix)));
        assert!(!std::fs::read_to_string("/proc/mounts").unwrap().contains(&prefix));
    }
}

/// Returns the command lines of processes that contain this text.
fn running(text: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(text)).collect()
}

/// Returns the measured program, and builds it if it does not exist.
fn bulkhead() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_bulkhead-bench")).with_file_name("bulkhead");
    if !path.exists() {
        let built = Command::new(env!("CARGO")).args(["build", "--package", "bulkhead", "--bin", "bulkhead"]).status();
        assert!(built.unwrap().success() && path.exists(), "{} cannot be built", path.display());
    }
    path
}

fn two_cores() -> bool {
    let enough = std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2);
    if !enough {
        println!("skipped: this needs two cores");
    }
    enough
}

#[test]
fn frames_take_every_path_and_nothing_is_left_behind() {
    require!("iperf3", "nft", "ss", "taskset");
    if !two_cores() {
        return;
    }
    let report = finished(bench(&["frames", "--seconds", "1", "--rounds", "1", "-o", "json"])).unwrap();
    println!("{report:#}");
    for path in ["pipeline", "bare", "kernel", "kernel_rps"] {
        assert!(report["packets_per_second"][path].as_f64() > Some(1_000.0), "{path}: {report:#}");
    }
    for path in ["pipeline", "kernel"] {
        assert!(report["tcp_bits_per_second"][path].as_f64() > Some(1e6), "{path}: {report:#}");
    }
    for (list, ratio) in [("ratios", "pipeline/bare"), ("ratios", "pipeline/kernel"), ("tcp_ratios", "pipeline/kernel")]
    {
        assert!(report[list][ratio].as_f64() > Some(0.0), "{ratio}: {report:#}");
    }
}

#[test]
fn every_row_of_the_table_is_measured_and_nothing_is_left_behind() {
    require!("iperf3", "nft", "ss", "taskset", "timeout", "redis-server", "redis-benchmark");
    if !two_cores() {
        return;
    }
    let program = bulkhead();
    // All rows with the first attachment that the program supports. With the other one, `udp` alone shows that it forwards.
    let mut rows: Vec<(&str, usize)> = vec![
        ("tcp", 6),
        ("node2", 2),
        ("host", 2),
        ("udp", 1),
        ("redis", 4),
        ("connect", 1),
        ("service", 3),
        ("xdp", 5),
        ("pods", 5),
        ("restart", 2),
        ("flood", 2),
    ];
    for attach in ["tc", "xdp"] {
        let args = ["wire", "--bulkhead", program.to_str().unwrap(), "--attach", attach, "--seconds", "0.1"];
        let small = ["--rounds", "1", "--pods", "4", "--connections", "8", "-o", "json", "--before"];
        let only: Vec<&str> = rows.iter().flat_map(|&(row, _)| ["--only", row]).collect();
        let report = match finished(bench(&[&args[..], &small, &[program.to_str().unwrap()], &only].concat())) {
            Err(why) if why.contains("does not know") => {
                println!("{why}");
                continue;
            }
            report => report.unwrap(),
        };
        println!("{report:#}");
        let lines = report["lines"].as_array().unwrap();
        let of = |row: &str| lines.iter().filter(|line| line["row"] == row).collect::<Vec<_>>();
        for &(row, count) in &rows {
            assert_eq!(of(row).len(), count, "{row}: {:#?}", of(row));
            assert!(of(row).iter().all(|line| line["value"].is_number() && line["met"].is_boolean()), "{report:#}");
        }
        let ratios = lines.iter().filter(|line| line["unit"] == "x");
        assert!(ratios.into_iter().all(|line| line["value"].as_f64() > Some(0.0)), "{report:#}");
        rows = vec![("udp", 1)];
    }
}

#[test]
fn every_row_between_two_nodes_is_measured_and_nothing_is_left_behind() {
    require!("iperf3", "nft", "ss", "taskset", "timeout", "ethtool", "bridge");
    if !two_cores() {
        return;
    }
    let program = bulkhead();
    let args = ["nodes", "--bulkhead", program.to_str().unwrap(), "--seconds", "0.1", "--rounds", "1", "-o", "json"];
    let report = finished(bench(&args)).unwrap();
    println!("{report:#}");
    let lines = report["lines"].as_array().unwrap();
    for (row, count) in [("route", 4), ("tunnel", 6), ("connect", 1), ("datagrams", 1), ("latency", 2)] {
        let of: Vec<&Value> = lines.iter().filter(|line| line["row"] == row).collect();
        assert_eq!(of.len(), count, "{row}: {of:#?}");
        assert!(of.iter().all(|line| line["value"].is_number()), "{report:#}");
    }
    let ratios = lines.iter().filter(|line| line["unit"] == "x");
    assert!(ratios.into_iter().all(|line| line["value"].as_f64() > Some(0.0)), "{report:#}");
    // Only the ratio of the round trips to the kernel's has no goal.
    assert_eq!(lines.iter().filter(|line| line["met"].is_null()).count(), 1, "{report:#}");
}

#[test]
fn every_row_of_a_cluster_is_measured_and_nothing_is_left_behind() {
    require!();
    if !two_cores() {
        return;
    }
    let program = bulkhead();
    let args =
        ["cluster", "--bulkhead", program.to_str().unwrap(), "--pods", "20", "--policies", "5", "--changes", "4"];
    let small =
        ["--ports", "3", "--many-pods", "600", "--events", "200", "--seconds", "0.2", "--rounds", "1", "-o", "json"];
    let report = finished(bench(&[&args[..], &small].concat())).unwrap();
    println!("{report:#}");
    let lines = report["lines"].as_array().unwrap();
    for (row, count) in [("policy", 4), ("add", 3), ("memory", 1), ("status", 1), ("events", 2)] {
        let of: Vec<&Value> = lines.iter().filter(|line| line["row"] == row).collect();
        assert_eq!(of.len(), count, "{row}: {of:#?}");
        assert!(of.iter().all(|line| line["value"].is_number() && line["met"].is_boolean()), "{report:#}");
    }
    let timed = lines.iter().filter(|line| line["unit"] != "packets");
    assert!(timed.into_iter().all(|line| line["value"].as_f64() > Some(0.0)), "{report:#}");
    let lost: Vec<&Value> = lines.iter().filter(|line| line["unit"] == "packets").collect();
    assert!(lost.len() == 2 && lost.iter().all(|line| line["value"] == 0.0), "{lost:#?}");
}

#[test]
fn an_interrupted_benchmark_leaves_nothing_behind() {
    require!("iperf3", "nft", "ss", "taskset", "timeout");
    if !two_cores() {
        return;
    }
    let program = bulkhead();
    let args = ["wire", "--bulkhead", program.to_str().unwrap(), "--attach", "xdp", "--only", "tcp", "--seconds", "30"];
    let mut child = bench(&args);
    let id = child.id();
    let prefix = format!("bhb{id}-");
    // The vswitch's command line contains the folder.
    eventually("the vswitch runs", || !running(&prefix).is_empty() && ip("netns list").contains(&prefix));
    crate::netns::run("kill", &["-s", "INT", &id.to_string()]);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_nothing_is_left(id);
}
