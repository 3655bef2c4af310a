//! That the benchmark of forwarding measures something on every path and cleans up. What it measures is not judged here.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and print")]

#[allow(dead_code, unreachable_pub, reason = "this uses a part of it")]
#[path = "../../tests/support/netns.rs"]
mod netns;

/// Where `require!` looks for it.
mod lab {
    pub(crate) use super::netns;
}

use std::process::Command;

use lab::netns::ip;
use serde_json::Value;

#[test]
fn frames_take_every_path_and_nothing_is_left_behind() {
    require!("iperf3", "nft", "ss", "taskset");
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        println!("skipped: this needs two cores");
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead-bench"));
    let child = command.args(["frames", "--seconds", "1", "--rounds", "1", "-o", "json"]);
    let child = child.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let namespaces = format!("bhwire{}-", child.id());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
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
    assert!(!ip("netns list").contains(&namespaces));
}
