//! Programs that run beside the benchmark and end when their [`Running`] is dropped.

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::Signal;

use super::remains::{kill, remains};

/// A running program, ended on drop.
#[derive(Debug)]
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// # Errors
    /// If the program cannot be started.
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        // Locked during the start, so that an interruption does not miss the process.
        let mut remains = remains();
        let child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        remains.processes.insert(child.id());
        Ok(Self(child))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Waits for the program's end. Returns its output.
    ///
    /// # Errors
    /// If its output cannot be read.
    pub(crate) fn wait(mut self) -> anyhow::Result<Output> {
        let (mut text, mut errors) = (Vec::new(), Vec::new());
        if let Some(mut pipe) = self.0.stdout.take() {
            pipe.read_to_end(&mut text)?;
        }
        // Read after standard output: no program used here writes more errors than a pipe holds before it closes its output.
        if let Some(mut pipe) = self.0.stderr.take() {
            pipe.read_to_end(&mut errors)?;
        }
        Ok(Output { status: self.0.wait()?, stdout: text, stderr: errors })
    }

    /// Whether the program has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// Sends SIGTERM and waits for the end, at most for `most`.
    ///
    /// # Errors
    /// If the program does not end in time.
    pub(crate) fn terminate(&mut self, most: Duration) -> anyhow::Result<()> {
        kill(self.id(), Signal::TERM);
        until("a program does not end after SIGTERM", most, || Ok(self.has_ended()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        remains().processes.remove(&self.0.id());
    }
}

/// Repeats a check until it succeeds.
///
/// # Errors
/// The message `otherwise` if the check does not succeed in time, and the check's errors.
pub(crate) fn until(
    otherwise: &str,
    most: Duration,
    mut holds: impl FnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + most;
    while !holds()? {
        if Instant::now() > deadline {
            bail!("{otherwise} (waited {} s)", most.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Runs a program. Returns its output.
///
/// # Errors
/// If the program fails, with its error output.
pub(crate) fn run(program: &str, line: &str) -> anyhow::Result<String> {
    output(Command::new(program).args(line.split_whitespace()), &format!("{program} {line}"))
}

/// Runs a command. Returns its output.
///
/// # Errors
/// If the command fails, with its error output.
pub(crate) fn output(command: &mut Command, line: &str) -> anyhow::Result<String> {
    let output = Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?.wait()?;
    if !output.status.success() {
        bail!("`{line}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
