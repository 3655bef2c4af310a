//! The project's verbs. `cargo xtask VERB`; CI runs `check` and `cluster`.
//!
//! A small program instead of a justfile: a newcomer has cargo already, so nothing needs to be installed first.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a task runner talks to the terminal")]

mod cluster;
mod playground;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

const USAGE: &str = "\
cargo xtask VERB

  check          everything that CI checks but `cluster`, in its order
  fmt            formatting, changes nothing
  clippy         lints, warnings are errors
  doc            documentation, warnings are errors
  deny           licences, sources and banned crates (needs cargo-deny)
  test           unit, property, golden, conformance and command-line tests
  e2e [SECONDS]  real programs through the vswitch, in network namespaces (needs root; flows of 3 seconds); in `check` what lies
                 behind the attachment runs with one of them only
  cluster        a real etcd, kube-apiserver and kubelet, built from Debian's source package on the first run (needs root)
  golden         compares every case of pcaps/ with its expectations
  golden bless   rewrites the expectations and shows what changed
  playground     builds the page with the program inside, runs the golden cases with it and looks at it in a headless Chromium
  playground build  only builds it: target/playground/index.html
  reference      rewrites docs/configuration.md from the examples, and what docs/tour.md shows
  fuzz [SECONDS] captures and packets that nobody would send (default 30, 3 in check)
  growth [EVENTS]  memory of the control plane while everything in a cluster comes and goes (default 10,000,000 events: hours)
  bench          the benchmarks in memory
  bench-wire [ARGUMENTS]  the vswitch beside the kernel, in network namespaces (needs root)
  bench-cluster [ARGUMENTS]  the vswitch with an API server and a CNI plugin, in network namespaces (needs root)";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["check"] => check(),
        ["fmt"] => fmt(),
        ["clippy"] => clippy(),
        ["doc"] => doc(),
        ["deny"] => deny(),
        ["test"] => test(),
        ["e2e"] => e2e("3", Part::All),
        ["e2e", seconds] => e2e(seconds, Part::All),
        ["cluster"] => cluster::run(),
        ["golden"] => cargo(&["test", "--test", "golden"]).run(),
        ["golden", "bless"] => bless(),
        ["playground"] => playground::run(),
        ["playground", "build"] => playground::build(),
        ["reference"] => reference(),
        ["fuzz"] => fuzz("30"),
        ["fuzz", seconds] => fuzz(seconds),
        ["growth"] => growth("10000000"),
        ["growth", events] => growth(events),
        ["bench"] => cargo(&["bench", "--workspace"]).run(),
        ["bench-wire", arguments @ ..] => bench_program("wire", arguments),
        ["bench-cluster", arguments @ ..] => bench_program("cluster", arguments),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check() -> bool {
    type Named = (&'static str, fn() -> bool);
    let parts: [Named; 7] = [
        ("fmt", fmt),
        ("clippy", clippy),
        ("doc", doc),
        ("deny", deny_with_the_rest),
        ("test", test),
        ("e2e", || e2e("3", Part::Check)),
        ("fuzz", || fuzz("3")),
    ];
    let (started, mut took) = (Instant::now(), Vec::new());
    let done = parts.iter().all(|(name, part)| {
        let since = Instant::now();
        let done = part();
        took.push(format!("{name} {} s", since.elapsed().as_secs()));
        done
    });
    println!(
        "check: {} in {} s: {}",
        if done { "passed" } else { "FAILED" },
        started.elapsed().as_secs(),
        took.join(", ")
    );
    done
}

fn fmt() -> bool {
    cargo(&["fmt", "--all", "--check"]).run()
}

fn clippy() -> bool {
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]).run()
}

fn doc() -> bool {
    cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]).env("RUSTDOCFLAGS", "-D warnings").run()
}

/// CI runs it apart, when cargo-deny is built.
fn deny_with_the_rest() -> bool {
    env::var_os("BULKHEAD_DENY").is_some_and(|when| when == "apart") || deny()
}

/// Optional for a newcomer, required under CI.
fn deny() -> bool {
    let installed = Command::new("cargo").args(["deny", "--version"]).output().is_ok_and(|out| out.status.success());
    match (installed, env::var_os("CI").is_some()) {
        (true, _) => cargo(&["deny", "--all-features", "check", "bans", "licenses", "sources"]).run(),
        (false, false) => {
            println!("deny: skipped, cargo-deny is not installed (cargo install --locked cargo-deny)");
            true
        }
        (false, true) => {
            eprintln!("deny: cargo-deny is required under CI; .ci/run installs it");
            false
        }
    }
}

/// The tests that need root are in here too; without `e2e` they skip, so that nothing runs twice.
fn test() -> bool {
    cargo(&["test", "--workspace"]).env("BULKHEAD_E2E", "skip").run()
}

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

/// How much of the end-to-end tests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    Check,
}

/// What the machine and its user allow; all of it under CI, which sets BULKHEAD_E2E=require. One after the other: flows
/// that share two cores would only measure each other.
fn e2e(seconds: &str, part: Part) -> bool {
    if seconds.parse::<u32>().is_err() {
        eprintln!("e2e: `{seconds}` is not a number of seconds");
        return false;
    }
    // With the features of `test`, so that nothing is built twice.
    let run = |binaries: &[&str], filter: &[&str], environment: &[(&str, &str)]| {
        let mut args = vec!["test", "--workspace", "--no-fail-fast"];
        args.extend(binaries.iter().flat_map(|name| ["--test", name]));
        args.extend(["--", "--test-threads", "1", "--show-output"]);
        args.extend(filter);
        let step = cargo(&args).env("BULKHEAD_E2E_SECONDS", seconds);
        environment.iter().fold(step, |step, (name, value)| step.env(name, value)).run()
    };
    // The vswitch once more as it is with the other attachment: what its own crates test knows nothing of that.
    let behind = if part == Part::Check { &BEHIND[..] } else { &[] };
    let skipped: Vec<&str> = ONCE.iter().chain(behind).flat_map(|name| ["--skip", name]).collect();
    let done = [
        run(&["e2e*"], &[], &[("BULKHEAD_ATTACH", "tc")]),
        run(&["e2e"], &skipped, &[("BULKHEAD_ATTACH", "xdp")]),
        // And what is about tc, as on a kernel without links.
        run(&["e2e"], &["e2e_tc"], &[("BULKHEAD_ATTACH", "tc"), ("BULKHEAD_TCX", "off")]),
    ];
    done.iter().all(|&done| done)
}

fn growth(events: &str) -> bool {
    let test = ["test", "--release", "-p", "bulkhead-control", "--lib", "memory_does_not_grow", "--"];
    cargo(&[&test[..], &["--ignored", "--nocapture"]].concat()).env("BULKHEAD_EVENTS", events).run()
}

/// In two steps: the benchmark starts the program that lies beside it.
fn bench_program(subcommand: &str, arguments: &[&str]) -> bool {
    let run = [&["run", "--release", "-p", "bulkhead-bench", "--", subcommand], arguments].concat();
    cargo(&["build", "--release", "--bin", "bulkhead"]).run() && cargo(&run).run()
}

fn bless() -> bool {
    let blessed = cargo(&["test", "--workspace", "--test", "golden"]).env("BULKHEAD_BLESS", "1").run();
    blessed && Step::new("git", &["--no-pager", "diff", "--stat", "--patch", "--", "pcaps"]).run()
}

fn reference() -> bool {
    let written = ["the_reference_is_what", "the_tour_shows"];
    let test = [&["test", "--workspace", "--test", "documentation", "--"], &written[..]].concat();
    let pictures = ["test", "--workspace", "--lib", "the_picture_of_top"];
    [&test[..], &pictures].into_iter().all(|test| cargo(test).env("BULKHEAD_BLESS", "1").run())
}

/// The fuzz targets are tests that run for this time instead of a moment. In the profile of the other tests, and with their features: it
/// is built already, and it checks arithmetic.
fn fuzz(seconds: &str) -> bool {
    let Ok(seconds) = seconds.parse::<u64>() else {
        eprintln!("fuzz: `{seconds}` is not a number of seconds");
        return false;
    };
    let timed = |step: Step| step.env("BULKHEAD_FUZZ_SECONDS", &seconds.to_string()).run();
    ["fuzz", "bad_input"].iter().all(|name| timed(cargo(&["test", "--workspace", "--test", name])))
}

/// One command, run from the project's root.
struct Step(Command, String);

fn cargo(args: &[&str]) -> Step {
    Step::new("cargo", args)
}

impl Step {
    fn new(program: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(args).current_dir(root());
        // What cargo says of this program. Build scripts that look at it (ring's) would run again after each cargo that was not started
        // here, and all that depends on them would be built once more.
        let of_this_program = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_this_program)) {
            command.env_remove(name);
        }
        Self(command, format!("{program} {}", args.join(" ")))
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    fn run(mut self) -> bool {
        println!("+ {}", self.1);
        let started = Instant::now();
        match self.0.status() {
            Ok(status) if status.success() => {
                println!("{} s: {}", started.elapsed().as_secs(), self.1);
                true
            }
            Ok(status) => {
                eprintln!("failed ({status}): {}", self.1);
                false
            }
            Err(error) => {
                eprintln!("cannot run {}: {error}", self.1);
                false
            }
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}
