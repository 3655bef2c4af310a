//! The project's verbs. `cargo xtask VERB`; CI runs `full`.
//!
//! A small program instead of a justfile: a newcomer has cargo already, so nothing needs to be installed first.
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

  quick          formatting, budgets, lints and unit tests of libraries and programs: what to run before each commit
  check          everything that needs no other build than this workspace's: all lints, documentation, all tests, a short fuzzing
  full           what CI runs: check, the playground, a real API server and kubelet, the SIMD code under valgrind, licences
  fmt            formatting, changes nothing
  clippy         lints, warnings are errors
  doc            documentation, warnings are errors
  deny           licences, sources and banned crates (needs cargo-deny)
  test           unit, property, golden, conformance and command-line tests
  e2e [SECONDS]  real programs through the vswitch, in network namespaces (needs root; flows of 3 seconds); in `check` what lies
                 behind the attachment runs with one of them only
  budget         how heavy the project is, against budgets.tsv; changes nothing
  circles        modules of a crate that use each other's items, and the names that tie them
  prose          phrases in comments, texts and documents that a reader has to guess at; changes nothing
  cluster        a real etcd, kube-apiserver and kubelet, built from Debian's source package on the first run (needs root)
  valgrind       the SIMD code under valgrind
  golden         compares every case of pcaps/ with its expectations
  golden bless   rewrites the expectations and shows what changed
  playground     builds the page with the program inside, runs the golden cases with it and looks at it in a headless Chromium
  playground build  only builds it: target/playground/index.html
  reference      rewrites docs/configuration.md from the examples, and what docs/tour.md shows
  fuzz [SECONDS] random and damaged captures and packets (default 30, 3 in check)
  growth [EVENTS]  memory of the control plane while everything in a cluster comes and goes (default 10,000,000 events: hours)
  bench          the benchmarks in memory
  bench-wire [ARGUMENTS]  the vswitch beside the kernel, in network namespaces (needs root)
  bench-cluster [ARGUMENTS]  the vswitch with an API server and a CNI plugin, in network namespaces (needs root)";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["quick"] => in_turn("quick", &[("fmt", fmt), ("budget", budget::run), ("lints and unit tests", unit)]),
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
        ["circles"] => circles::count(true).is_ok(),
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
        ["bench-cluster", arguments @ ..] => bench_program("cluster", arguments),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    if done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

type Named = (&'static str, fn() -> bool);

/// Runs parts until one fails, and prints the seconds of each.
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

const CHECK: [Named; 7] = [
    ("fmt", fmt),
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

/// The parts behind `check` need programs that `.ci/run` builds or installs; each of them says what it misses.
fn full() -> bool {
    let behind: [Named; 3] = [("cluster", cluster::run), ("playground", playground::run), ("valgrind", valgrind)];
    in_turn("full", &[&CHECK[..], &behind].concat())
}

/// Runs a step with what `work` leaves of the machine: end-to-end tests mostly wait.
fn beside(step: Step, work: impl FnOnce() -> bool) -> bool {
    let Some(running) = step.idle().start() else { return false };
    let done = work();
    running.finish() && done
}

fn fmt() -> bool {
    cargo(&["fmt", "--all", "--check"]).run()
}

/// Compiles everything that `test` and `e2e` run, with the lints as errors, and the benchmarks. One pass of the compiler does both:
/// `cargo clippy` would read all code once more, with libraries of its own.
fn build() -> bool {
    step::linted(cargo(&["build", "--workspace", "--all-targets"])).run()
}

fn clippy() -> bool {
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]).run()
}

fn doc() -> Step {
    cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]).env("RUSTDOCFLAGS", "-D warnings")
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

fn unit() -> bool {
    tests(&["--lib", "--bins"]).run()
}

/// The tests that need root are in here too; without `e2e` they skip, so that nothing runs twice.
fn test() -> bool {
    tests(&["--lib", "--bins", "--tests"]).env("BULKHEAD_E2E", "skip").run()
        // The examples in comments have a program of their own.
        && tests(&["--doc"]).run()
}

/// valgrind knows no AVX-512; the tests with guard pages cover that.
fn valgrind() -> bool {
    let has_avx2 = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains(" avx2 "));
    let installed = Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success());
    if !has_avx2 || !installed {
        println!("valgrind: skipped, valgrind or AVX2 is not here");
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

/// In two steps: the benchmark starts the program that lies beside it.
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

/// The fuzz targets are tests that run for this time instead of a moment. In the profile of the other tests, and with their features: it
/// is built already, and it checks arithmetic.
fn fuzz(seconds: &str) -> bool {
    let Ok(seconds) = seconds.parse::<u64>() else {
        eprintln!("fuzz: `{seconds}` is not a number of seconds");
        return false;
    };
    tests(&["--test", "all", "--", "fuzz::", "bad_input::"]).env("BULKHEAD_FUZZ_SECONDS", &seconds.to_string()).run()
}
