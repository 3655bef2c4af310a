//! Network namespaces, removed when their [`Netns`] is dropped or the benchmark is interrupted.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use bulkhead_dataplane::io::in_namespace;

use super::programs::{Running, output, run, until};
use super::remains::{prefix, remains};

/// A network namespace.
#[derive(Debug)]
pub(crate) struct Netns {
    name: String,
}

impl Netns {
    /// Creates a namespace without IPv6, so that it carries only the benchmark's packets.
    ///
    /// # Errors
    /// If the system refuses. This needs root and `ip`.
    pub(crate) fn new(what: &str) -> anyhow::Result<Self> {
        Ok(Self::many(&[what])?.remove(0))
    }

    /// Creates several namespaces.
    ///
    /// # Errors
    /// As for [`Netns::new`].
    pub(crate) fn many(what: &[&str]) -> anyhow::Result<Vec<Self>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut made = Vec::with_capacity(what.len());
        let mut lines = Vec::with_capacity(what.len());
        // Locked during creation, so that an interruption does not miss one.
        let mut remains = remains();
        for what in what {
            let name = format!("{}{}-{what}", prefix(), NEXT.fetch_add(1, Ordering::Relaxed));
            lines.push(format!("netns add {name}"));
            remains.namespaces.insert(name.clone());
            made.push(Self { name });
        }
        let done = batch(&lines);
        drop(remains);
        done?;
        for netns in &made {
            netns.sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
            netns.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
            // A new namespace inherits the machine's setting.
            netns.sysctl("net/ipv4/conf/all/rp_filter", "0")?;
            netns.sysctl("net/ipv4/conf/default/rp_filter", "0")?;
            // The kernel's default. BBR, which a machine may have chosen, paces by its estimate of the bandwidth: throughput would show
            // that estimate. Such a machine may also withhold CUBIC from namespaces (`tcp_allowed_congestion_control`), but never Reno.
            let choose = |name| netns.sysctl("net/ipv4/tcp_congestion_control", name);
            choose("cubic").or_else(|_| choose("reno"))?;
        }
        Ok(made)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Calls `inside` in the namespace. Sockets that it opens stay in the namespace and can be used anywhere.
    ///
    /// # Errors
    /// If the namespace cannot be entered, and the errors of `inside`.
    pub(crate) fn inside<T: Send>(&self, inside: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        in_namespace(&Path::new("/run/netns").join(&self.name), inside)?
    }

    /// Writes a kernel parameter of the namespace. `path` is relative to `/proc/sys`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn sysctl(&self, path: &str, value: &str) -> anyhow::Result<()> {
        let file = Path::new("/proc/sys").join(path);
        self.inside(|| std::fs::write(&file, value).with_context(|| format!("cannot write {}", file.display())))
    }

    /// Returns the number of packets that an interface has received.
    ///
    /// # Errors
    /// If the interface does not exist.
    pub(crate) fn received(&self, interface: &str) -> anyhow::Result<u64> {
        // `/proc/net` would be the process's, not the thread's.
        let table = self.inside(|| Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
        let line = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
        let packets = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(packets.with_context(|| format!("no packets of {interface} in /proc/net/dev"))?.parse()?)
    }

    /// Reads a counter of the namespace. Protocol and name are as in `/proc/net/snmp`.
    ///
    /// # Errors
    /// If the counter does not exist.
    pub(crate) fn counter(&self, protocol: &str, name: &str) -> anyhow::Result<u64> {
        let text = self.inside(|| Ok(std::fs::read_to_string("/proc/thread-self/net/snmp")?))?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(": "));
        let (names, values) = lines.next().zip(lines.next()).with_context(|| format!("no counters of {protocol}"))?;
        let mut pairs = names.split_whitespace().zip(values.split_whitespace());
        let value = pairs.find_map(|(counter, value)| (counter == name).then_some(value));
        Ok(value.with_context(|| format!("no {name} of {protocol} in /proc/net/snmp"))?.parse()?)
    }

    /// Runs one `ip` command in the namespace.
    ///
    /// # Errors
    /// If the command fails.
    pub(crate) fn ip(&self, line: &str) -> anyhow::Result<()> {
        run("ip", &format!("-n {} {line}", self.name)).map(drop)
    }

    /// Runs several `ip` commands in the namespace with one process.
    ///
    /// # Errors
    /// If a command fails.
    pub(crate) fn ip_lines(&self, lines: &[String]) -> anyhow::Result<()> {
        feed(Command::new("ip").args(["-n", &self.name, "-batch", "-"]), &lines.join("\n"))
    }

    /// Starts an `ip` process in the namespace that waits for commands.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub(crate) fn prepared_ip(&self) -> anyhow::Result<PreparedIp> {
        let mut command = Command::new("ip");
        command
            .args(["-n", &self.name, "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        Ok(PreparedIp(Running::start(&mut command)?))
    }

    /// Runs a program in the namespace. Returns its output.
    ///
    /// # Errors
    /// If the program fails, with its error output.
    pub(crate) fn run(&self, line: &str) -> anyhow::Result<String> {
        output(&mut self.command(line), line)
    }

    /// Returns the command of a program in the namespace.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).args(line.split_whitespace()).stdin(Stdio::null());
        command
    }

    /// Starts a program that runs until it is dropped. Its output is discarded.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub(crate) fn spawn(&self, line: &str) -> anyhow::Result<Running> {
        Running::start(self.command(line).stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// Starts a server and waits until it listens on the TCP port.
    ///
    /// # Errors
    /// If the server cannot be started or does not listen.
    pub(crate) fn serve(&self, line: &str, port: u16) -> anyhow::Result<Running> {
        let server = self.spawn(line)?;
        let pattern = format!(":{port} ");
        until(&format!("`{line}` does not listen"), Duration::from_secs(10), || {
            Ok(self.run("ss -Htln")?.contains(&pattern))
        })?;
        Ok(server)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        // Also removes its interfaces and their veth peers.
        remove_namespaces(std::iter::once(&self.name));
        remains().namespaces.remove(&self.name);
    }
}

/// Removes namespaces. Ignores names that do not exist.
pub(crate) fn remove_namespaces<'a>(names: impl Iterator<Item = &'a String>) {
    let lines: Vec<String> = names.map(|name| format!("netns del {name}")).collect();
    let _ = feed(Command::new("ip").args(["-force", "-batch", "-"]), &lines.join("\n"));
}

/// A started `ip` process that waits for commands, so that measurements exclude its start.
#[derive(Debug)]
pub(crate) struct PreparedIp(Running);

impl PreparedIp {
    /// Runs the commands and waits until all are done.
    ///
    /// # Errors
    /// If a command fails.
    pub(crate) fn run(mut self, lines: &[String]) -> anyhow::Result<()> {
        // The statement's end closes standard input, so `ip` exits.
        self.0.0.stdin.take().context("no input")?.write_all(lines.join("\n").as_bytes())?;
        let output = self.0.wait()?;
        if !output.status.success() {
            bail!("ip: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

/// Runs several `ip` commands with one process.
///
/// # Errors
/// If a command fails.
pub(crate) fn batch(lines: &[String]) -> anyhow::Result<()> {
    feed(Command::new("ip").args(["-batch", "-"]), &lines.join("\n"))
}

/// Runs a program with a text on its standard input.
fn feed(command: &mut Command, text: &str) -> anyhow::Result<()> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot run `ip`; help: install iproute2")?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("ip: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
