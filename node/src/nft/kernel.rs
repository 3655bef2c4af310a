//! The node's nftables, by way of the program `nft`.
//!
//! The program and not netlink: a ruleset is a text that a person can read, check (`nft -c`) and load, and nft knows how the kernel of
//! the day wants it encoded. It costs a process of some milliseconds for a change.

use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use bulkhead_control::renderer::nftables::{Change, Epoch, TABLE};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{MembarrierCommand, membarrier};
use serde_json::Value;

use crate::preflight::version_of;
use crate::set_elements;

/// Bytes of what nft says that are told: it repeats the line that it does not take, which may have all addresses of a cluster.
const TOLD: usize = 400;

/// Held by the process that owns the table: in this network namespace, and for as long as the process lives.
pub(super) struct Ownership(#[expect(dead_code, reason = "it is what holds the name")] UnixListener);

impl Ownership {
    /// Takes it.
    ///
    /// # Errors
    /// When another process has it.
    pub(super) fn take() -> anyhow::Result<Self> {
        let name = SocketAddr::from_abstract_name("bulkhead-nftables")?;
        match UnixListener::bind_addr(&name) {
            Ok(listener) => Ok(Self(listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                bail!("another process enforces policy by nftables in this network namespace\n  help: stop it first")
            }
            Err(error) => Err(error).context("cannot check whether another process enforces policy by nftables here"),
        }
    }
}

/// Has nft run a script, in one transaction.
///
/// # Errors
/// When there is no nft, or it does not take the script; then the kernel has what it had.
pub(super) fn run(script: &str) -> anyhow::Result<()> {
    nft(&["-f", "-"], script).map(drop)
}

/// How long a packet is waited for where the kernel does not tell. From chain to chain of a hook takes one some microseconds.
const UNTOLD: Duration = Duration::from_millis(200);

/// Waits until every packet that is between two chains of a hook now is past the last one. That is exact: the chains of a hook run in one
/// read section of RCU (Linux, `nf_hook`), what judges and what remembers are chains of one hook each, and both ways end no earlier than
/// all read sections that have begun. `MEMBARRIER_CMD_GLOBAL` is `synchronize_rcu` (`kernel/sched/membarrier.c`); a kernel with `nohz_full`
/// has it not, but ends every packet socket with `synchronize_net` (`net/packet/af_packet.c`, `packet_release`).
pub(super) fn wait_for_packets() {
    if membarrier(MembarrierCommand::Global).is_ok() {
        return;
    }
    match socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None) {
        Ok(socket) => drop(socket),
        Err(error) => {
            tracing::debug!("cannot wait until the kernel has processed its packets: {error}");
            std::thread::sleep(UNTOLD);
        }
    }
}

/// Has the kernel make a change, in one transaction: addresses of sets without nft, which takes longer to read them than the kernel.
///
/// # Errors
/// As for [`run`].
pub(super) fn change(change: &Change, epoch: Epoch) -> anyhow::Result<()> {
    if let Some(sets) = &change.sets {
        match set_elements::change(sets, epoch) {
            Ok(()) => return Ok(()),
            // More than a message may have, or what only nft can explain.
            Err(error) => tracing::debug!("the kernel refuses set elements over netlink; using nft: {error}"),
        }
    }
    run(&change.script)
}

/// The epoch in the kernel, none where there is no table.
///
/// # Errors
/// When there is no nft.
pub(super) fn epoch() -> anyhow::Result<Option<Epoch>> {
    let mut words = vec!["-j", "list", "set"];
    words.extend(TABLE.split(' '));
    words.push("epoch");
    let Some(listed) = listed(&words)? else { return Ok(None) };
    let sets = listed["nftables"].as_array().into_iter().flatten();
    let marks = sets.filter_map(|item| item["set"]["elem"].as_array()).flatten().filter_map(Value::as_u64);
    Ok(marks.filter_map(|mark| Epoch::of_mark(u32::try_from(mark).ok()?)).next())
}

/// A counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    pub name: String,
    pub packets: u64,
}

/// The table's counters, none where there is no table.
///
/// # Errors
/// When there is no nft.
pub(super) fn counters() -> anyhow::Result<Option<Vec<Counter>>> {
    let mut words = vec!["-j", "list", "counters", "table"];
    words.extend(TABLE.split(' '));
    let Some(listed) = listed(&words)? else { return Ok(None) };
    let counters = listed["nftables"].as_array().into_iter().flatten().filter_map(|item| {
        let counter = item.get("counter")?;
        Some(Counter { name: counter["name"].as_str()?.to_owned(), packets: counter["packets"].as_u64()? })
    });
    Ok(Some(counters.collect()))
}

/// Removes the table. Returns whether there was one.
///
/// # Errors
/// When nft refuses.
pub(super) fn remove() -> anyhow::Result<bool> {
    // A node without nft, or whose kernel has no nftables, has no table either, as far as anybody can tell.
    if !matches!(epoch(), Ok(Some(_))) {
        return Ok(false);
    }
    run(&format!("delete table {TABLE}\n")).map(|()| true)
}

/// The oldest kernel. Before 5.5 a rule in postrouting does not know the interface that a packet came in on, and would let all that pods
/// send pass; what lies between was not tried.
const OLDEST: (u32, u32) = (5, 14);

/// Whether the kernel is new enough, and there is an nft that may change something.
///
/// # Errors
/// Why not.
pub(crate) fn check() -> anyhow::Result<()> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    check_release(release.trim())?;
    // It asks the kernel for its tables, which takes the same capability as to change them.
    nft(&["-c", "-f", "-"], &format!("table {TABLE} {{ }}\n")).map(drop)
}

fn check_release(release: &str) -> anyhow::Result<()> {
    if version_of(release).is_some_and(|version| version < OLDEST) {
        let (major, minor) = OLDEST;
        bail!(
            "Linux {release} is too old for dataplane: nftables\n  help: use Linux {major}.{minor} or newer, or leave out dataplane: nftables"
        );
    }
    Ok(())
}

/// A JSON document, none where what is listed is not there.
fn listed(words: &[&str]) -> anyhow::Result<Option<Value>> {
    match nft(words, "") {
        Ok(text) => Ok(Some(serde_json::from_str(&text).context("nft does not answer in JSON")?)),
        Err(error) if error.to_string().contains("No such file or directory") && !is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some()
}

fn nft(words: &[&str], input: &str) -> anyhow::Result<String> {
    let mut command = Command::new("nft");
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        let found = if error.kind() == io::ErrorKind::NotFound { "is not installed" } else { "cannot be run" };
        let help = "install nftables (apt install nftables), or leave out dataplane: nftables";
        anyhow::Error::new(error).context(format!("the program nft {found}\n  help: {help}"))
    })?;
    // A script is read while it is parsed, and what nft says is read by nobody until it has ended: so it is written by another thread.
    let mut stdin = child.stdin.take().context("nft has no standard input")?;
    let script = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(script.as_bytes()));
    let output = child.wait_with_output().context("cannot wait for nft")?;
    let written = writer.join();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let errors: Vec<&str> = said.lines().filter(|line| line.contains("Error:")).collect();
        let told: String = if errors.is_empty() { said.to_string() } else { errors.join("\n") };
        bail!("nft refuses the ruleset: {}", told.chars().take(TOLD).collect::<String>());
    }
    if !matches!(written, Ok(Ok(()))) {
        bail!("nft has not read all of its script");
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_kernel_is_refused_with_the_remedy() {
        for release in ["6.18.44", "5.14.0-1-amd64", "5.15", "of nobody"] {
            assert!(check_release(release).is_ok(), "{release}");
        }
        for release in ["5.4.0-150-generic", "5.13.9", "4.19.0"] {
            let error = check_release(release).unwrap_err().to_string();
            assert!(error.contains(release) && error.contains("help: use Linux 5.14"), "{error}");
        }
    }

    #[test]
    fn one_process_has_the_table_at_a_time() {
        let name = "the name is that of this network namespace, so that another test may have it";
        let Ok(first) = Ownership::take() else { return println!("skipped: {name}") };
        let Err(error) = Ownership::take() else { panic!("two owners") };
        assert!(error.to_string().contains("help: "), "{error}");
        drop(first);
        assert!(Ownership::take().is_ok());
    }
}
