//! The real program: its configuration, its start and its end.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::folder::Folder;
use super::net::Netns;
use super::node::{Attach, NODE, Program, SINK};
use super::programs::Running;
use crate::policy;

/// A port of the configuration.
#[derive(Clone, Debug)]
pub(super) enum Port {
    Pod { name: String, interface: String, netns: String },
    Uplink,
    Host,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Vswitch {
    running: Option<Running>,
    path: PathBuf,
    folder: Folder,
}

impl Vswitch {
    /// Writes the configuration and the state. `pods` are names and addresses.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn new(program: &Program, ports: &[Port], pods: &[(String, String)]) -> anyhow::Result<Self> {
        let folder = Folder::new()?;
        folder.write("state.yaml", &state(pods))?;
        // Sessions and pins of its own for each node, or the next one would go on with what this one leaves.
        let mut own = String::new();
        if program.known.pins && program.attach == Attach::Tc {
            let _ = writeln!(own, "pins: {}", folder.mount("bpf")?.join("pins").display());
        }
        if program.known.session_folder {
            let _ = writeln!(own, "sessions: {{folder: {}}}", folder.mount("tmpfs")?.join("sessions").display());
        }
        folder.write("config.yaml", &configuration(program, &own, ports))?;
        Ok(Self { running: None, path: program.path.clone(), folder })
    }

    /// Starts it in the node and waits until it says that it forwards. Returns how long that took.
    ///
    /// # Errors
    /// When it ends or does not say so in time, with what it logged.
    pub(super) fn start(&mut self, node: &Netns, patience: Duration) -> anyhow::Result<Duration> {
        let started = Instant::now();
        self.launch(node)?;
        self.wait_until_ready(patience)?;
        Ok(started.elapsed())
    }

    /// Starts it without waiting.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn launch(&mut self, node: &Netns) -> anyhow::Result<()> {
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
    pub(super) fn wait_until_ready(&mut self, patience: Duration) -> anyhow::Result<()> {
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
    pub(super) fn wait_for_links(&self, patience: Duration) {
        let (log, started) = (self.folder.path("log"), Instant::now());
        let has_links = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("taken the place of filters"));
        while !has_links() && started.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The last lines that it logged.
    pub(super) fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }

    /// Its process.
    ///
    /// # Errors
    /// When it is not running.
    pub(super) fn running(&mut self) -> anyhow::Result<&mut Running> {
        self.running.as_mut().context("the vswitch is not running")
    }

    /// Asks it to end, and waits.
    ///
    /// # Errors
    /// When it does not end in time.
    pub(super) fn stop(&mut self, patience: Duration) -> anyhow::Result<()> {
        self.running()?.terminate(patience)?;
        self.running = None;
        Ok(())
    }

    /// `kill -9`.
    pub(super) fn kill(&mut self) {
        self.running = None;
    }
}

/// The cluster: the node, its pods and the policy of the sink.
fn state(pods: &[(String, String)]) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: x}}\n---\napiVersion: v1\nkind: Node\n\
         metadata: {{name: node-1}}\nspec: {{podCIDRs: [10.244.0.0/16]}}\n\
         status: {{addresses: [{{type: InternalIP, address: {NODE}}}]}}\n"
    );
    for (name, address) in pods {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: x, labels: {{app: {name}}}}}\n\
             spec: {{nodeName: node-1, containers: []}}\n\
             status: {{phase: Running, podIP: {address}, podIPs: [{{ip: {address}}}]}}\n"
        );
    }
    if pods.iter().any(|(name, _)| name == SINK) {
        text.push_str(&policy::network_policy());
    }
    text
}

fn configuration(program: &Program, own: &str, ports: &[Port]) -> String {
    let mut text = format!("node: node-1\nstate: {{paths: [state.yaml]}}\nworkers: {{cores: {:?}}}\n", program.cores);
    text.push_str(own);
    if program.known.attach {
        let _ = writeln!(text, "attach: {}", program.attach.name());
    }
    if !program.more.is_empty() {
        let _ = writeln!(text, "{}", program.more);
    }
    text.push_str("ports:\n");
    let xdp = program.attach == Attach::Xdp;
    for port in ports {
        let line = match port {
            Port::Pod { name, interface, netns } => {
                let fix = if xdp { format!(", netns: {netns}, fix_offloads: true") } else { String::new() };
                format!("kind: pod, pod: x/{name}, interface: {interface}{fix}")
            }
            Port::Uplink => "kind: uplink, interface: ul0".to_owned(),
            Port::Host if xdp => "kind: host, interface: hv, peer: host0, fix_offloads: true".to_owned(),
            Port::Host => "kind: host, interface: hv".to_owned(),
        };
        let _ = writeln!(text, "  - {{{line}}}");
    }
    text
}

/// Keys of the configuration that a program may know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// How interfaces are attached. A program that does not know the key knows AF_XDP sockets on the interfaces only.
    attach: bool,
    /// Where links and maps are pinned.
    pins: bool,
    /// Where sessions outlive the process.
    session_folder: bool,
}

/// What the configuration of the program at this path may say.
///
/// # Errors
/// When the program cannot be run, or does not know this way of attaching.
pub(super) fn known(path: &Path, attach: Attach) -> anyhow::Result<Known> {
    let said = complaints(path, &format!("attach: {}", attach.name()))?;
    let refuses = |what: &str| said.contains(what) && said.contains("attach");
    let knows_attach = match (refuses("unknown field"), attach) {
        (true, Attach::Xdp) => false,
        (false, _) if !refuses("unknown variant") => true,
        _ => bail!("{} does not know `attach: {}`; help: --attach xdp", path.display(), attach.name()),
    };
    Ok(Known {
        attach: knows_attach,
        pins: !complaints(path, "pins: none")?.contains("unknown field"),
        session_folder: !complaints(path, "sessions: {folder: none}")?.contains("unknown field"),
    })
}

/// What the program says of a configuration with this line.
fn complaints(path: &Path, line: &str) -> anyhow::Result<String> {
    let folder = Folder::new()?;
    folder.write("state.yaml", &state(&[]))?;
    let text = format!("node: node-1\n{line}\nstate: {{paths: [state.yaml]}}\nports: []\n");
    let config = folder.write("config.yaml", &text)?;
    let output = Command::new(path)
        .args(["run", "--check", "--config"])
        .arg(&config)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", path.display()))?;
    Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}
