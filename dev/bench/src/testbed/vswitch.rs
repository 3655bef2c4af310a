//! Starts and ends the measured program.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::folder::Folder;
use super::net::Netns;
use super::programs::Running;

/// The measured program, with its configuration in a folder.
#[derive(Debug)]
pub(crate) struct Vswitch {
    running: Option<Running>,
    path: PathBuf,
    folder: Folder,
}

/// The longest time to wait until a vswitch of a few pods has replaced its filters by links. It takes two seconds, on a busy machine more.
pub(crate) const SETTLING: Duration = Duration::from_secs(10);

impl Vswitch {
    /// Returns the program at `path`, whose `config.yaml` is in `folder`. Does not start it.
    pub(crate) const fn new(path: PathBuf, folder: Folder) -> Self {
        Self { running: None, path, folder }
    }

    /// Returns the folder with the program's files.
    pub(crate) const fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Starts the program in the node's namespace and waits until it reports that it forwards. Returns the duration.
    ///
    /// # Errors
    /// If the program ends or does not report in time, with the end of its log.
    pub(crate) fn start(&mut self, node: &Netns, patience: Duration) -> anyhow::Result<Duration> {
        let started = Instant::now();
        self.launch(node)?;
        self.wait_until_ready(patience)?;
        Ok(started.elapsed())
    }

    /// Starts the program without waiting.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub(crate) fn launch(&mut self, node: &Netns) -> anyhow::Result<()> {
        let ready = self.folder.path("ready");
        let _ = std::fs::remove_file(&ready);
        let file = |name| OpenOptions::new().create(true).append(true).open(self.folder.path(name));
        let mut command = Command::new(&self.path);
        command.args(["run", "-o", "json", "--config"]).arg(self.folder.path("config.yaml"));
        command.arg("--ready-file").arg(&ready);
        command.stdin(Stdio::null()).stdout(file("summary")?).stderr(file("log")?);
        // Not by `ip netns exec`, which hides the machine's own /sys with the pinned programs and maps from the next process.
        self.running = Some(node.inside(|| Running::start(&mut command))?);
        Ok(())
    }

    /// # Errors
    /// As for [`Vswitch::start`].
    pub(crate) fn wait_until_ready(&mut self, patience: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience;
        while !self.folder.path("ready").exists() {
            let ended = self.running.as_mut().is_none_or(Running::has_ended);
            if ended || Instant::now() > deadline {
                let why = if ended { "ended" } else { "does not forward" };
                bail!("the vswitch {why}; the end of its log:\n{}", self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Waits, at most for `patience`, until the program logs that it is attached by links. It replaces filters by links in the background,
    /// which would slow the first seconds down. Returns at once on a kernel without links.
    pub(crate) fn wait_for_links(&self, patience: Duration) {
        if !has_tcx() {
            return;
        }
        let (log, started) = (self.folder.path("log"), Instant::now());
        let has_links =
            || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("programs are attached by tcx links"));
        while !has_links() && started.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the last lines of the log.
    pub(crate) fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }

    /// Returns the running process.
    ///
    /// # Errors
    /// If the program is not running.
    pub(crate) fn running(&mut self) -> anyhow::Result<&mut Running> {
        self.running.as_mut().context("the vswitch is not running")
    }

    /// Sends SIGTERM and waits for the program's end.
    ///
    /// # Errors
    /// If the program does not end in time.
    pub(crate) fn stop(&mut self, patience: Duration) -> anyhow::Result<()> {
        self.running()?.terminate(patience)?;
        self.running = None;
        Ok(())
    }

    /// Ends the program by SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }
}

/// Whether the kernel attaches programs to interfaces by links: Linux 6.6 added tcx. True if its release cannot be read.
fn has_tcx() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    numbers.next().zip(numbers.next()).is_none_or(|release| release >= (6, 6))
}
