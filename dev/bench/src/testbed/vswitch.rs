//! The real program: its start and its end.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::folder::Folder;
use super::net::Netns;
use super::programs::Running;

/// See the module.
#[derive(Debug)]
pub(crate) struct Vswitch {
    running: Option<Running>,
    path: PathBuf,
    folder: Folder,
}

impl Vswitch {
    /// The program at this path, whose `config.yaml` is in this folder.
    pub(crate) const fn new(path: PathBuf, folder: Folder) -> Self {
        Self { running: None, path, folder }
    }

    /// Where its files are.
    pub(crate) const fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Starts it in the node and waits until it says that it forwards. Returns how long that took.
    ///
    /// # Errors
    /// When it ends or does not say so in time, with what it logged.
    pub(crate) fn start(&mut self, node: &Netns, patience: Duration) -> anyhow::Result<Duration> {
        let started = Instant::now();
        self.launch(node)?;
        self.wait_until_ready(patience)?;
        Ok(started.elapsed())
    }

    /// Starts it without waiting.
    ///
    /// # Errors
    /// When it cannot be started.
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

    /// Waits, no longer than `patience`, until it has said that links have taken the place of filters: it does that in the background.
    pub(crate) fn wait_for_links(&self, patience: Duration) {
        let (log, started) = (self.folder.path("log"), Instant::now());
        let has_links =
            || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("programs are attached by tcx links"));
        while !has_links() && started.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The last lines that it logged.
    pub(crate) fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }

    /// Its process.
    ///
    /// # Errors
    /// When it is not running.
    pub(crate) fn running(&mut self) -> anyhow::Result<&mut Running> {
        self.running.as_mut().context("the vswitch is not running")
    }

    /// Asks it to end, and waits.
    ///
    /// # Errors
    /// When it does not end in time.
    pub(crate) fn stop(&mut self, patience: Duration) -> anyhow::Result<()> {
        self.running()?.terminate(patience)?;
        self.running = None;
        Ok(())
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }
}
