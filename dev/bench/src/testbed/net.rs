//! Network namespaces, gone with the value that stands for them, and also when the benchmark is interrupted.

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
    /// Makes one without IPv6: nothing moves in it but what the benchmark sends.
    ///
    /// # Errors
    /// When the system refuses: this needs root and `ip`.
    pub(crate) fn new(what: &str) -> anyhow::Result<Self> {
        Ok(Self::many(&[what])?.remove(0))
    }

    /// Makes many at once.
    ///
    /// # Errors
    /// As for [`Netns::new`].
    pub(crate) fn many(what: &[&str]) -> anyhow::Result<Vec<Self>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut made = Vec::with_capacity(what.len());
        let mut lines = Vec::with_capacity(what.len());
        // Held while they are made, so that an interruption does not miss them.
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
            // What a namespace has here depends on the machine's own settings.
            netns.sysctl("net/ipv4/conf/all/rp_filter", "0")?;
            netns.sysctl("net/ipv4/conf/default/rp_filter", "0")?;
            // The kernel's own default. A machine may have chosen BBR, which paces by its estimate of the bandwidth, so that
            // throughput would show the estimate instead of the way through the node. One that has may keep CUBIC from namespaces
            // (`tcp_allowed_congestion_control`), and Reno from nobody.
            let choose = |name| netns.sysctl("net/ipv4/tcp_congestion_control", name);
            choose("cubic").or_else(|_| choose("reno"))?;
        }
        Ok(made)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Calls `inside` in the namespace. Sockets that it makes stay there and may be used anywhere.
    ///
    /// # Errors
    /// When it cannot be entered, and those of `inside`.
    pub(crate) fn inside<T: Send>(&self, inside: impl FnOnce() -> anyhow::Result<T> + Send) -> anyhow::Result<T> {
        in_namespace(&Path::new("/run/netns").join(&self.name), inside)?
    }

    /// Writes a kernel parameter of the namespace: a path below `/proc/sys`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn sysctl(&self, path: &str, value: &str) -> anyhow::Result<()> {
        let file = Path::new("/proc/sys").join(path);
        self.inside(|| std::fs::write(&file, value).with_context(|| format!("cannot write {}", file.display())))
    }

    /// How many packets one of its interfaces has received.
    ///
    /// # Errors
    /// When there is no such interface.
    pub(crate) fn received(&self, interface: &str) -> anyhow::Result<u64> {
        // `/proc/net` is that of the process, not of the thread.
        let table = self.inside(|| Ok(std::fs::read_to_string("/proc/thread-self/net/dev")?))?;
        let line = table.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
        let packets = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(packets.with_context(|| format!("no packets of {interface} in /proc/net/dev"))?.parse()?)
    }

    /// A counter of the namespace: the protocol and the name as in `/proc/net/snmp`.
    ///
    /// # Errors
    /// When there is no such counter.
    pub(crate) fn counter(&self, protocol: &str, name: &str) -> anyhow::Result<u64> {
        let text = self.inside(|| Ok(std::fs::read_to_string("/proc/thread-self/net/snmp")?))?;
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(": "));
        let (names, values) = lines.next().zip(lines.next()).with_context(|| format!("no counters of {protocol}"))?;
        let mut pairs = names.split_whitespace().zip(values.split_whitespace());
        let value = pairs.find_map(|(counter, value)| (counter == name).then_some(value));
        Ok(value.with_context(|| format!("no {name} of {protocol} in /proc/net/snmp"))?.parse()?)
    }

    /// `ip` inside.
    ///
    /// # Errors
    /// When it fails.
    pub(crate) fn ip(&self, line: &str) -> anyhow::Result<()> {
        run("ip", &format!("-n {} {line}", self.name)).map(drop)
    }

    /// `ip` inside, with many lines at once.
    ///
    /// # Errors
    /// When one of them fails.
    pub(crate) fn ip_lines(&self, lines: &[String]) -> anyhow::Result<()> {
        feed(Command::new("ip").args(["-n", &self.name, "-batch", "-"]), &lines.join("\n"))
    }

    /// Starts `ip` inside, which waits for its lines.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn prepared_ip(&self) -> anyhow::Result<PreparedIp> {
        let mut command = Command::new("ip");
        command
            .args(["-n", &self.name, "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        Ok(PreparedIp(Running::start(&mut command)?))
    }

    /// Runs a program inside. Returns what it printed.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub(crate) fn run(&self, line: &str) -> anyhow::Result<String> {
        output(&mut self.command(line), line)
    }

    /// The command of a program inside.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).args(line.split_whitespace()).stdin(Stdio::null());
        command
    }

    /// Starts a program that goes on until it is dropped. What it says is not of interest.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn spawn(&self, line: &str) -> anyhow::Result<Running> {
        Running::start(self.command(line).stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// Starts a server and waits until it listens on the TCP port.
    ///
    /// # Errors
    /// When it cannot be started or does not listen.
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
        // Also removes its interfaces, and with them the other ends of its veths.
        remove_namespaces(std::iter::once(&self.name));
        remains().namespaces.remove(&self.name);
    }
}

/// Removes namespaces; those that are gone already do not matter.
pub(crate) fn remove_namespaces<'a>(names: impl Iterator<Item = &'a String>) {
    let lines: Vec<String> = names.map(|name| format!("netns del {name}")).collect();
    let _ = feed(Command::new("ip").args(["-force", "-batch", "-"]), &lines.join("\n"));
}

/// An `ip` that is loaded and waits for its lines, so that its start is not measured.
#[derive(Debug)]
pub(crate) struct PreparedIp(Running);

impl PreparedIp {
    /// Gives it the lines and waits until it has done them.
    ///
    /// # Errors
    /// When one of them fails.
    pub(crate) fn run(mut self, lines: &[String]) -> anyhow::Result<()> {
        // Closed at the end of the statement, upon which it ends.
        self.0.0.stdin.take().context("no input")?.write_all(lines.join("\n").as_bytes())?;
        let output = self.0.wait()?;
        if !output.status.success() {
            bail!("ip: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

/// Many lines for `ip` at once.
///
/// # Errors
/// When one of them fails.
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
