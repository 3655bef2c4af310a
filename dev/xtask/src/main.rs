//! The project's tasks: `cargo xtask VERB`. CI runs `full`. A Rust program instead of a justfile: contributors have cargo already and need
//! to install nothing else.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a task runner talks to the terminal")]

mod budget;
mod circles;
mod cluster;
mod e2e;
mod playground;
mod prose;
mod step;

use std::env;
use std::process::{Command, ExitCode};
use std::time::Instant;

use step::{Step, cargo, tests};

const USAGE: &str = "\
cargo xtask VERB

  quick          formatting, wording, budgets, lints and unit tests of libraries and programs; run it before each commit
  check          everything that needs only this workspace: all lints, documentation, all tests, short fuzzing
  full           what CI runs: check, the playground, a real API server and kubelet, the SIMD code under valgrind, licences
  fmt            checks formatting; changes nothing
  clippy         lints; warnings are errors
  doc            documentation; warnings are errors
  deny           licences, sources and banned crates (needs cargo-deny)
  test           unit, property, golden, conformance and command-line tests
  e2e [SECONDS]  real programs through the vswitch, in network namespaces (needs root; flows of 3 seconds); `check` runs tests
                 that do not depend on the attachment with only one of them
  budget         compares dependencies, sizes and times with budgets.tsv; changes nothing
  circles        lists modules of a crate that use each other's items, with the items' names
  prose          lists unclear phrases in comments, messages and documents
  cluster        a real etcd, kube-apiserver and kubelet, built from Debian's source package on the first run (needs root)
  valgrind       the SIMD code under valgrind
  golden         compares every case in pcaps/ with its expected output
  golden bless   rewrites the expected output and shows the changes
  playground     builds the web page, runs the golden cases with it, and tests it in a headless Chromium
  playground build  only builds the page: target/playground/index.html
  reference      rewrites docs/configuration.md from the examples, and the output in docs/tour.md
  fuzz [SECONDS] parses random and damaged captures and packets (default 30 s, 3 s in check)
  growth [EVENTS]  memory of the control plane under changes of all objects (default 10,000,000 events: hours)
  bench          in-memory benchmarks
  bench-wire [ARGUMENTS]  the vswitch compared with the kernel, in network namespaces (needs root)
  bench-nodes [ARGUMENTS]  pods of two nodes over a wire, compared with the kernel, in network namespaces (needs root)
  bench-cluster [ARGUMENTS]  the vswitch with an API server and a CNI plugin, in network namespaces (needs root)";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["quick"] => in_turn(
            "quick",
            &[("fmt", fmt), ("prose", prose::run), ("budget", budget::run), ("lints and unit tests", unit)],
        ),
        ["check"] => check(),
        ["full"] => full(),
        ["fmt"] => fmt(),
        ["clippy"] => clippy(),
        ["doc"] => doc().run(),
        ["deny"] => deny(),
        ["test"] => test(),
        ["e2e"] => e2e::run("3", e2e::Part::All),
        ["e2e", seconds] => e2e::run(seconds, e2e::Part::All),
        ["budget"] => budget::run(),
        ["circles"] => circles::run(),
        ["cluster"] => cluster::run(),
        ["prose"] => prose::run(),
        ["valgrind"] => valgrind(),
        ["golden"] => tests(&["--test", "all", "--", "golden::"]).run(),
        ["golden", "bless"] => bless(),
        ["playground"] => playground::run(),
        ["playground", "build"] => playground::build(),
        ["reference"] => reference(),
        ["fuzz"] => fuzz("30"),
        ["fuzz", seconds] => fuzz(seconds),
        ["growth"] => growth("10000000"),
        ["growth", events] => growth(events),
        ["bench"] => cargo(&["bench", "--profile", "dist", "--workspace"]).run(),
        ["bench-wire", arguments @ ..] => bench_program("wire", arguments),
        ["bench-nodes", arguments @ ..] => bench_program("nodes", arguments),
        ["bench-cluster", arguments @ ..] => bench_program("cluster", arguments),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

type Named = (&'static str, fn() -> bool);

/// Runs parts until one fails, and prints how many seconds each took.
fn in_turn(what: &str, parts: &[Named]) -> bool {
    let (started, mut took) = (Instant::now(), Vec::new());
    let done = parts.iter().all(|(name, part)| {
        let since = Instant::now();
        let done = part();
        took.push(format!("{name} {} s", since.elapsed().as_secs()));
        done
    });
    let seconds = started.elapsed().as_secs();
    println!("{what}: {} in {seconds} s: {}", if done { "passed" } else { "FAILED" }, took.join(", "));
    done
}

const CHECK: [Named; 8] = [
    ("fmt", fmt),
    ("prose", prose::run),
    ("build", build),
    ("budget", budget::run),
    ("deny", deny_with_the_rest),
    ("test", test),
    ("e2e and doc", || beside(doc(), || e2e::run("3", e2e::Part::Check))),
    ("fuzz", || fuzz("3")),
];

fn check() -> bool {
    in_turn("check", &CHECK)
}

/// Runs `check` and the parts that need programs that `.ci/run` builds or installs. Each part names what is missing.
fn full() -> bool {
    let behind: [Named; 3] = [("cluster", cluster::run), ("playground", playground::run), ("valgrind", valgrind)];
    in_turn("full", &[&CHECK[..], &behind].concat())
}

/// Runs a step at idle priority beside `work`: end-to-end tests mostly wait.
fn beside(step: Step, work: impl FnOnce() -> bool) -> bool {
    let Some(running) = step.idle().start() else { return false };
    let done = work();
    running.finish() && done
}

fn fmt() -> bool {
    cargo(&["fmt", "--all", "--check"]).run()
}

/// Compiles everything that `test` and `e2e` run, and the benchmarks, with lints as errors. One pass does both: `cargo clippy` would check
/// all code once more, with separate libraries.
fn build() -> bool {
    step::linted(cargo(&["build", "--workspace", "--all-targets"])).run()
}

fn clippy() -> bool {
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]).run()
}

fn doc() -> Step {
    cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]).env("RUSTDOCFLAGS", "-D warnings")
}

/// Runs `deny`, except in CI, which runs it as a separate step once cargo-deny is built.
fn deny_with_the_rest() -> bool {
    env::var_os("BULKHEAD_DENY").is_some_and(|when| when == "apart") || deny()
}

/// Checks the dependencies' licences and sources, and for banned crates. Skipped without cargo-deny, except under CI.
fn deny() -> bool {
    let installed = Command::new("cargo").args(["deny", "--version"]).output().is_ok_and(|out| out.status.success());
    match (installed, env::var_os("CI").is_some()) {
        (true, _) => cargo(&["deny", "--all-features", "check", "bans", "licenses", "sources"]).run(),
        (false, false) => {
            println!(
                "deny: skipped, because cargo-deny is missing; install it with `cargo install --locked cargo-deny`"
            );
            true
        }
        (false, true) => {
            eprintln!("deny: cargo-deny is required under CI; .ci/run installs it");
            false
        }
    }
}

fn unit() -> bool {
    tests(&["--lib", "--bins"]).run()
}

/// Runs all tests. Those that need root skip here and run in `e2e`, so that nothing runs twice.
fn test() -> bool {
    tests(&["--lib", "--bins", "--tests"]).env("BULKHEAD_E2E", "skip").run()
        // Examples in documentation run in a separate program.
        && tests(&["--doc"]).run()
}

/// Runs the SIMD code's tests under valgrind. Without AVX-512, which valgrind does not support; tests with guard pages cover it.
fn valgrind() -> bool {
    let has_avx2 = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" avx2 "));
    let installed = Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success());
    if !has_avx2 || !installed {
        println!("valgrind: skipped, because valgrind or AVX2 is missing");
        return true;
    }
    tests(&["--lib", "simd"])
        .env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", "valgrind -q --error-exitcode=9")
        .env("BULKHEAD_LEVELS", "scalar,avx2")
        .run()
}

fn growth(events: &str) -> bool {
    let test = ["test", "--release", "-p", "bulkhead-control", "--lib", "memory_does_not_grow", "--"];
    cargo(&[&test[..], &["--ignored", "--nocapture"]].concat()).env("BULKHEAD_EVENTS", events).run()
}

/// Builds the program first, because the benchmark starts it.
fn bench_program(subcommand: &str, arguments: &[&str]) -> bool {
    let run = [&["run", "--profile", "dist", "-p", "bulkhead-bench", "--", subcommand], arguments].concat();
    cargo(&["build", "--profile", "dist", "--bin", "bulkhead"]).run() && cargo(&run).run()
}

fn bless() -> bool {
    let blessed = tests(&["--test", "all", "--", "golden::"]).env("BULKHEAD_BLESS", "1").run();
    blessed && Step::new("git", &["--no-pager", "diff", "--stat", "--patch", "--", "pcaps"]).run()
}

fn reference() -> bool {
    let written = tests(&["--test", "all", "--", "the_reference_is_what", "the_tour_shows"]);
    let pictures = tests(&["--lib", "the_picture_of_top"]);
    [written, pictures].into_iter().all(|test| test.env("BULKHEAD_BLESS", "1").run())
}

/// Runs the fuzz targets, which are ordinary tests, for `seconds`. Uses the profile and features of the other tests: already built, and
/// with overflow checks.
fn fuzz(seconds: &str) -> bool {
    let Ok(seconds) = seconds.parse::<u64>() else {
        eprintln!("fuzz: `{seconds}` is not a number of seconds");
        return false;
    };
    tests(&["--test", "all", "--", "fuzz::", "bad_input::"]).env("BULKHEAD_FUZZ_SECONDS", &seconds.to_string()).run()
}
