//! Runs commands from the project's root.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

pub(crate) struct Step(Command, String);

pub(crate) fn cargo(args: &[&str]) -> Step {
    Step::new("cargo", args)
}

/// Returns `cargo test` for the workspace with these arguments. Uses `build`'s packages, features and compiler, so that nothing is rebuilt.
pub(crate) fn tests(args: &[&str]) -> Step {
    linted(cargo(&[&["test", "--workspace"], args].concat()))
}

/// Compiles the workspace's crates with clippy's driver, with warnings as errors.
pub(crate) fn linted(step: Step) -> Step {
    // `cargo clippy -- -D warnings` passes its arguments in this form.
    step.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
        .env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__")
}

impl Step {
    pub(crate) fn new(program: &str, args: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(args).current_dir(root());
        // Removes variables that cargo sets for this program. Build scripts that read them (ring's) would otherwise run again whenever
        // cargo is started elsewhere, and everything that depends on them would be rebuilt.
        let of_this_program = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        for (name, _) in env::vars_os().filter(|(name, _)| name.to_str().is_some_and(of_this_program)) {
            command.env_remove(name);
        }
        Self(command, format!("{program} {}", args.join(" ")))
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    /// Runs the command at idle priority, if `chrt` is installed.
    pub(crate) fn idle(self) -> Self {
        if !Command::new("chrt").arg("--version").output().is_ok_and(|output| output.status.success()) {
            return self;
        }
        let mut command = Command::new("chrt");
        command.args(["--idle", "0"]).arg(self.0.get_program()).args(self.0.get_args()).current_dir(root());
        for (name, value) in self.0.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Self(command, self.1)
    }

    /// Starts the command. Prints a message and returns `None` if it cannot be started.
    pub(crate) fn start(mut self) -> Option<Running> {
        println!("+ {}", self.1);
        match self.0.spawn() {
            Ok(child) => Some(Running { child, words: self.1, started: Instant::now() }),
            Err(error) => {
                eprintln!("cannot run {}: {error}", self.1);
                None
            }
        }
    }

    /// Runs `cargo test` and passes its output on. Returns whether it succeeded, and the names of the failed tests.
    pub(crate) fn run_tests(mut self) -> (bool, Vec<String>) {
        self.0.stdout(Stdio::piped());
        let Some(mut running) = self.start() else { return (false, Vec::new()) };
        let mut failed = Vec::new();
        for line in
            running.child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines).map_while(Result::ok)
        {
            println!("{line}");
            let name = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"));
            failed.extend(name.map(ToOwned::to_owned));
        }
        (running.finish(), failed)
    }

    /// Runs the command. Returns whether it succeeded.
    pub(crate) fn run(self) -> bool {
        self.start().is_some_and(Running::finish)
    }
}

pub(crate) struct Running {
    child: Child,
    words: String,
    started: Instant,
}

impl Running {
    /// Waits for the end. Returns whether the command succeeded.
    pub(crate) fn finish(mut self) -> bool {
        match self.child.wait() {
            Ok(status) if status.success() => {
                println!("{} s: {}", self.started.elapsed().as_secs(), self.words);
                true
            }
            Ok(status) => {
                eprintln!("failed ({status}): {}", self.words);
                false
            }
            Err(error) => {
                eprintln!("cannot wait for {}: {error}", self.words);
                false
            }
        }
    }
}

/// Returns the project's folder.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().find(|folder| folder.join("Cargo.lock").is_file()).unwrap_or(here).to_path_buf()
}
