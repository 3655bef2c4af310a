//! Three namespaces and two veths, removed when [`Lab`] is dropped.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail};
use bulkhead_dataplane::io::{LinkInfo, in_namespace};

/// The generator's address. The sink's has the same prefix, so that a bridge can connect the two.
pub(super) const GENERATOR: &str = "10.244.1.2";
pub(super) const SINK: &str = "10.244.1.3";

/// The namespaces `gen`, `node` and `sink`, removed on drop.
pub(super) struct Lab {
    prefix: String,
}

impl Lab {
    /// Creates the namespaces and the veths.
    ///
    /// # Errors
    /// If the system refuses. This needs root and `ip`.
    pub(super) fn new() -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let lab = Self { prefix: format!("bhwire{}-{number}-", std::process::id()) };
        for namespace in ["gen", "node", "sink"] {
            command("ip", &["netns", "add", &lab.name(namespace)])?;
        }
        for (end, host, address) in [("gen", "hA", GENERATOR), ("sink", "hB", SINK)] {
            let (node, far) = (lab.name("node"), lab.name(end));
            command(
                "ip",
                &["link", "add", host, "netns", &node, "type", "veth", "peer", "name", "eth0", "netns", &far],
            )?;
            // No packets except the benchmark's.
            lab.run("node", &format!("sysctl -qw net.ipv6.conf.{host}.disable_ipv6=1"))?;
            lab.run(end, "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1")?;
            lab.run("node", &format!("ip link set {host} up"))?;
            lab.run(end, &format!("ip addr add {address}/24 dev eth0"))?;
            lab.run(end, "ip link set eth0 up")?;
            // The same for every path. A veth accepts packets of an XDP program, which the flow cache sends, only with GRO. It does not
            // affect the other paths.
            lab.run(end, "ethtool -K eth0 tx off gro on")?;
        }
        Ok(lab)
    }

    fn name(&self, namespace: &str) -> String {
        format!("{}{namespace}", self.prefix)
    }

    pub(super) fn path(&self, namespace: &str) -> PathBuf {
        PathBuf::from("/run/netns").join(self.name(namespace))
    }

    /// Runs a program in a namespace. Returns its output.
    ///
    /// # Errors
    /// If the program fails, with its error output.
    pub(super) fn run(&self, namespace: &str, line: &str) -> anyhow::Result<String> {
        let name = self.name(namespace);
        let words: Vec<&str> = ["netns", "exec", &name].into_iter().chain(line.split_whitespace()).collect();
        command("ip", &words)
    }

    /// Runs a line of shell in a namespace.
    ///
    /// # Errors
    /// As for [`Lab::run`].
    pub(super) fn shell(&self, namespace: &str, line: &str) -> anyhow::Result<String> {
        command("ip", &["netns", "exec", &self.name(namespace), "sh", "-c", line])
    }

    pub(super) fn command(&self, namespace: &str, line: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(namespace)]).args(line.split_whitespace());
        command
    }

    /// Reads an interface's properties from the kernel.
    ///
    /// # Errors
    /// If the interface does not exist.
    pub(super) fn link(&self, namespace: &str, interface: &str) -> anyhow::Result<LinkInfo> {
        Ok(in_namespace(&self.path(namespace), || LinkInfo::read(interface))??)
    }

    /// Returns the number of packets that have arrived at the sink.
    ///
    /// # Errors
    /// If the kernel's counter cannot be read.
    pub(super) fn arrived(&self) -> anyhow::Result<u64> {
        let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
        let table = in_namespace(&self.path("sink"), read)??;
        let line = table.lines().find_map(|line| line.trim().strip_prefix("eth0:")).context("the sink has no eth0")?;
        let packets = line.split_whitespace().nth(1).context("/proc/net/dev has no packets")?;
        Ok(packets.parse()?)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for namespace in ["gen", "node", "sink"] {
            let _ = Command::new("ip").args(["netns", "del", &self.name(namespace)]).output();
        }
    }
}

fn command(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(args).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{program} {}: {}\n  help: this needs root, iproute2, ethtool, nftables and iperf3",
            args.join(" "),
            errors.trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
