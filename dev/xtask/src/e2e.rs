//! The end-to-end tests: real programs through the vswitch, in network namespaces of each test's own.
//!
//! Most of a test's time is waiting, so several run side by side. Those that measure the machine, or fill it, run alone: flows that
//! share two cores would only measure each other. A test that fails beside others runs once more, alone: its waiting has bounds, which a busy
//! machine may miss. If it fails alone, it has failed.

use crate::step::tests;

/// Tests at a time: with four, two cores are busy most of the time, and what a test waits for still comes within its margins.
const SIDE_BY_SIDE: &str = "4";

/// Tests that need the machine for themselves. The beginnings of modules' names.
const ALONE: [&str; 9] = [
    "e2e_attacks",
    "e2e_bench",
    "e2e_bulk",
    "e2e_changes",
    "e2e_flow_cache",
    "e2e_flow_program",
    "e2e_service_flood",
    "e2e_traffic",
    "e2e_tc_takeover",
];

/// What these tests are about lies beside the attachment: they run with one of them. The beginnings of modules' names.
const ONCE: [&str; 7] = [
    "e2e_identity",
    "e2e_nftables",
    "e2e_prometheus",
    "e2e_service_flood",
    "e2e_service_health",
    "e2e_source",
    "e2e_top",
];

/// What these are about lies behind the attachment. Once more with `attach: xdp` they would take `check` some minutes, so that is left
/// to `cargo xtask e2e`.
const BEHIND: [&str; 20] = [
    "e2e_admin::",
    "e2e_audit::",
    "e2e_changes::",
    "e2e_cni_live::",
    "e2e_explain_live::",
    "e2e_hubble::",
    "e2e_hubble_tls::",
    "e2e_kubernetes::",
    "e2e_masquerade::",
    "e2e_monitor::",
    "e2e_nodes::",
    "e2e_pod_host_port::",
    "e2e_reasons::",
    "e2e_redis::",
    "e2e_refusals::",
    "e2e_replay::",
    "e2e_services::",
    "e2e_sessions::",
    "e2e_wait::",
    "e2e_why::",
];

/// The tests of crates below the vswitch, which know no attachment: they run once.
const BELOW: [&str; 5] = ["e2e_bench", "e2e_flow_program", "e2e_tc_programs", "e2e_translation", "e2e_xsk"];

/// How much of the end-to-end tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    Check,
}

/// Runs what the machine and its user allow; all of it under CI, which sets BULKHEAD_E2E=require. Flows run for `seconds`.
pub(crate) fn run(seconds: &str, part: Part) -> bool {
    if seconds.parse::<u32>().is_err() {
        eprintln!("e2e: `{seconds}` is not a number of seconds");
        return false;
    }
    let behind = if part == Part::Check { &BEHIND[..] } else { &[] };
    let skipped = [&ONCE[..], behind, &BELOW].concat();
    let done = [
        both(seconds, &["e2e_"], &[], &[("BULKHEAD_ATTACH", "tc")]),
        // The vswitch once more as it is with the other attachment.
        both(seconds, &["e2e_"], &skipped, &[("BULKHEAD_ATTACH", "xdp")]),
        // And what is about tc, as on a kernel without links.
        both(seconds, &["e2e_tc"], &BELOW, &[("BULKHEAD_ATTACH", "tc"), ("BULKHEAD_TCX", "off")]),
    ];
    done.iter().all(|&done| done)
}

/// Runs those of `wanted` that share the machine side by side, then those that do not, one after the other.
fn both(seconds: &str, wanted: &[&str], skipped: &[&str], environment: &[(&str, &str)]) -> bool {
    let shared = some(seconds, SIDE_BY_SIDE, wanted, &[skipped, &ALONE].concat(), environment);
    let is_wanted = |name: &&&str| wanted.iter().any(|wanted| name.starts_with(wanted));
    let is_skipped = |name: &str| skipped.iter().any(|skipped| name.starts_with(skipped.trim_end_matches("::")));
    let alone: Vec<&str> = ALONE.iter().filter(is_wanted).copied().filter(|name| !is_skipped(name)).collect();
    let alone = alone.is_empty() || some(seconds, "1", &alone, &[], environment);
    shared && alone
}

fn some(seconds: &str, threads: &str, wanted: &[&str], skipped: &[&str], environment: &[(&str, &str)]) -> bool {
    let mut args = vec!["--no-fail-fast", "--test", "all", "--", "--test-threads", threads, "--show-output"];
    args.extend(skipped.iter().flat_map(|name| ["--skip", name]));
    args.extend(wanted);
    let run = |args: &[&str]| {
        let step = tests(args).env("BULKHEAD_E2E_SECONDS", seconds);
        environment.iter().fold(step, |step, (name, value)| step.env(name, value)).run_tests()
    };
    let (done, failed) = run(&args);
    if done || threads == "1" || failed.is_empty() {
        return done;
    }
    println!("e2e: once more, alone: {}", failed.join(", "));
    let mut again = vec!["--no-fail-fast", "--test", "all", "--", "--test-threads", "1", "--show-output", "--exact"];
    again.extend(failed.iter().map(String::as_str));
    run(&again).0
}
