//! Shared test helpers: running the program, finding the known answers.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "each test file uses a part of this; tests may panic and print"
)]

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns the repository's root folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the program under test. If `BULKHEAD_RUNNER` is set, its words are the command that runs another build, for example the
/// WebAssembly build.
fn program() -> Command {
    let Ok(runner) = env::var("BULKHEAD_RUNNER") else { return Command::new(env!("CARGO_BIN_EXE_bulkhead")) };
    let mut words = runner.split_whitespace();
    let mut command = Command::new(words.next().expect("BULKHEAD_RUNNER has a word"));
    command.args(words);
    command
}

/// Runs the program with these arguments in the repository's root.
pub(crate) fn bulkhead(args: &[&str]) -> Output {
    program().args(args).current_dir(root()).output().unwrap()
}

/// Runs the program with `input` on its standard input.
pub(crate) fn bulkhead_with_input(args: &[&str], input: &str) -> Output {
    let mut child = program()
        .args(args)
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    // The write fails if the program rejects its arguments and exits without reading.
    let _ = writer.join().unwrap();
    output
}

/// Writes a scratch file and returns its path. The write is atomic: another test may write and read a file of the same name.
pub(crate) fn scratch(name: &str, contents: &(impl AsRef<[u8]> + ?Sized)) -> String {
    static WRITTEN: AtomicU32 = AtomicU32::new(0);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let (path, draft) = (folder.join(name), folder.join(format!("{}-{number}.draft", std::process::id())));
    std::fs::write(&draft, contents).unwrap();
    std::fs::rename(&draft, &path).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Returns the program's standard output. Panics if its exit code differs from `code`.
pub(crate) fn stdout(output: &Output, code: i32) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "standard error: {errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the folder of the known answers. If it is absent, prints the reason and returns `None`; under CI, panics.
pub(crate) fn cases() -> Option<PathBuf> {
    folder("BULKHEAD_CASES", "../shared/cases")
}

fn folder(variable: &str, beside: &str) -> Option<PathBuf> {
    let path = env::var_os(variable).map_or_else(|| root().join(beside), PathBuf::from);
    if path.is_dir() {
        return Some(path);
    }
    assert!(env::var_os("CI").is_none(), "{} is absent and CI must run this test", path.display());
    println!("skipped: {} is absent; set {variable}", path.display());
    None
}
