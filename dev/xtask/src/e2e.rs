//! End-to-end tests: real programs through the vswitch, each test in its own network namespaces. Tests mostly wait, so several run in
//! parallel. Tests that measure or fill the machine run alone: parallel flows on two cores would measure each other. A test that fails in
//! parallel runs once more, alone, because a busy machine may exceed its time limits. The second result counts.

use crate::step::tests;

/// Parallel tests. Four keep two cores busy, and their waits still end within the limits.
const SIDE_BY_SIDE: &str = "4";

/// Tests that run alone, as prefixes of module names.
const ALONE: [&str; 11] = [
    "e2e_attacks",
    "e2e_bench",
    "e2e_big_tcp",
    "e2e_bulk",
    "e2e_changes",
    "e2e_cni::a_hundred_and_ten",
    "e2e_flow_cache",
    "e2e_flow_program",
    "e2e_service_flood",
    "e2e_traffic",
    "e2e_tc_takeover",
];

/// Tests that do not depend on the attachment and run with one only, as prefixes of module names.
const ONCE: [&str; 9] = [
    "e2e_big_tcp",
    "e2e_identity",
    "e2e_nftables",
    "e2e_progress",
    "e2e_prometheus",
    "e2e_service_flood",
    "e2e_service_health",
    "e2e_source",
    "e2e_top",
];

/// Tests of code behind the attachment, which `check` does not repeat with `attach: xdp` to save minutes. `cargo xtask e2e` does.
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

/// Tests of crates below the vswitch, which have no attachment and run once.
const BELOW: [&str; 5] = ["e2e_bench", "e2e_flow_program", "e2e_tc_programs", "e2e_translation", "e2e_xsk"];

/// Which end-to-end tests to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    Check,
}

/// Runs the tests that the machine and the user allow. Under CI, with BULKHEAD_E2E=require, a skipped test fails. Flows run for `seconds`.
pub(crate) fn run(seconds: &str, part: Part) -> bool {
    if seconds.parse::<u32>().is_err() {
        eprintln!("e2e: `{seconds}` is not a number of seconds");
        return false;
    }
    let behind = if part == Part::Check { &BEHIND[..] } else { &[] };
    let skipped = [&ONCE[..], behind, &BELOW].concat();
    let done = [
        both(seconds, &["e2e_"], &[], &[("BULKHEAD_ATTACH", "tc")]),
        // The vswitch again, with the other attachment.
        both(seconds, &["e2e_"], &skipped, &[("BULKHEAD_ATTACH", "xdp")]),
        // The tests about tc again, as on a kernel without tcx links.
        both(seconds, &["e2e_tc"], &BELOW, &[("BULKHEAD_ATTACH", "tc"), ("BULKHEAD_TCX", "off")]),
    ];
    done.iter().all(|&done| done)
}

/// Runs the `wanted` tests that can share the machine in parallel, then the others one by one.
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
    println!("e2e: running the failed tests again, one by one: {}", failed.join(", "));
    let mut again = vec!["--no-fail-fast", "--test", "all", "--", "--test-threads", "1", "--show-output", "--exact"];
    again.extend(failed.iter().map(String::as_str));
    run(&again).0
}
