//! Changes and reads the node's nftables with the program `nft`.
//!
//! nft rather than netlink: a person can read, check (`nft -c`) and load the same text, and nft knows the running kernel's encoding. Each
//! change costs a process of a few milliseconds. Only changes of set elements use netlink ([`set_elements`]).

use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use bulkhead_control::renderer::nftables::{Change, Epoch, TABLE};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{MembarrierCommand, membarrier};
use serde_json::Value;

use crate::preflight::version_of;
use crate::set_elements;

/// Maximum length of nft's error text, in characters. nft repeats the refused line, which may have all addresses of a cluster.
const TOLD: usize = 400;

/// The abstract name of the owner's listening socket.
const NAME: &str = "bulkhead-nftables";

/// Ownership of the table in this network namespace, for the life of the process.
pub(super) struct Ownership(#[expect(dead_code, reason = "it is what holds the name")] UnixListener);

impl Ownership {
    /// Takes the ownership.
    ///
    /// # Errors
    /// If another process has it.
    pub(super) fn take() -> anyhow::Result<Self> {
        let name = SocketAddr::from_abstract_name(NAME)?;
        match UnixListener::bind_addr(&name) {
            Ok(listener) => Ok(Self(listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                bail!("another process enforces policy by nftables in this network namespace\n  help: stop it first")
            }
            Err(error) => Err(error).context("cannot check whether another process enforces policy by nftables here"),
        }
    }
}

/// Returns a connection to the process with the ownership. It ends with the ownership. `None` if no process has it.
pub(super) fn owner() -> Option<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(NAME).ok()?).ok()
}

/// Runs an nft script in one transaction.
///
/// # Errors
/// If nft is missing or refuses the script. The ruleset is then unchanged.
pub(super) fn run(script: &str) -> anyhow::Result<()> {
    nft(&["-f", "-"], script).map(drop)
}

/// How long to wait for packets in transit if the kernel has no barrier. From chain to chain of a hook, a packet takes microseconds.
const UNTOLD: Duration = Duration::from_millis(200);

/// Waits until every packet that is now between two chains of a hook has passed the last one. This is exact: the chains of a hook run in
/// one read section of RCU (Linux, `nf_hook`), and the chains that judge and that remember share a hook. Both barriers return only after
/// all read sections that have begun. `MEMBARRIER_CMD_GLOBAL` is `synchronize_rcu` (`kernel/sched/membarrier.c`). A kernel with `nohz_full`
/// lacks it, but closing a packet socket calls `synchronize_net` (`net/packet/af_packet.c`, `packet_release`).
pub(super) fn wait_for_packets() {
    if membarrier(MembarrierCommand::Global).is_ok() {
        return;
    }
    match socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None) {
        Ok(socket) => drop(socket),
        Err(_) => std::thread::sleep(UNTOLD),
    }
}

/// Makes a change in one transaction. Changes of set elements go over netlink: nft takes longer to parse them than the kernel to load them.
///
/// # Errors
/// As for [`run`].
pub(super) fn change(change: &Change, epoch: Epoch) -> anyhow::Result<()> {
    // Refused if it is too large for one message, or for a reason that only nft explains.
    if change.sets.as_ref().is_some_and(|sets| set_elements::change(sets, epoch).is_ok()) {
        return Ok(());
    }
    run(&change.script)
}

/// Returns the epoch of the kernel's ruleset. `None` if the table does not exist.
///
/// # Errors
/// If nft cannot be run or fails.
pub(super) fn epoch() -> anyhow::Result<Option<Epoch>> {
    let mut words = vec!["-j", "list", "set"];
    words.extend(TABLE.split(' '));
    words.push("epoch");
    let Some(listed) = listed(&words)? else { return Ok(None) };
    let sets = listed["nftables"].as_array().into_iter().flatten();
    let marks = sets.filter_map(|item| item["set"]["elem"].as_array()).flatten().filter_map(Value::as_u64);
    Ok(marks.filter_map(|mark| Epoch::of_mark(u32::try_from(mark).ok()?)).next())
}

/// A named counter of the nftables table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    pub name: String,
    pub packets: u64,
}

/// Reads the table's counters. `None` if the table does not exist.
///
/// # Errors
/// If nft cannot be run or fails.
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

/// Removes the table. Returns whether it existed.
///
/// # Errors
/// If nft cannot remove it.
pub(super) fn remove() -> anyhow::Result<bool> {
    // A node without nft, or whose kernel lacks nftables, counts as one without the table.
    if !matches!(epoch(), Ok(Some(_))) {
        return Ok(false);
    }
    run(&format!("delete table {TABLE}\n")).map(|()| true)
}

/// Oldest supported kernel. Before 5.5, rules in postrouting do not know the input interface and would pass all packets from pods. Versions
/// from 5.5 to 5.13 are untested.
const OLDEST: (u32, u32) = (5, 14);

/// Checks the kernel's version, that nft is installed, and that the process may change nftables.
///
/// # Errors
/// If one of the checks fails, with the remedy.
pub(crate) fn check() -> anyhow::Result<()> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    check_release(release.trim())?;
    // For this, nft lists the kernel's tables, which needs the same capability as a change.
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

/// Runs nft and parses its JSON output. `None` if the listed object does not exist.
fn listed(words: &[&str]) -> anyhow::Result<Option<Value>> {
    match nft(words, "") {
        Ok(text) => Ok(Some(serde_json::from_str(&text).context("the output of nft is not JSON")?)),
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
    // Another thread writes the script: nft may block on its own output, which nobody reads before `wait_with_output`.
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
        bail!("nft did not read its whole script");
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
