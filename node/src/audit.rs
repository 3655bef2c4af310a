//! Counts the connections that audited policies would deny, in a thread.
//!
//! ```text
//!   workers --Audited, a bounded channel--> [ audit thread ] --names of addresses--> policy thread
//!                                                |   `--> Ledger --> `bulkhead audit report`, /metrics, status
//!                                                `--once a second at most--> audit-NODE.gz
//! ```
//! Workers never wait: connections that do not fit the channel are counted as untold. The first connection wakes the thread, which then
//! rests before it reads the channel, so that workers need not wake it for each.
//!
//! **Invariant.** A connection that a worker counted is in the ledger or counted as untold. The ledger is on disk a second later.

mod file;
mod ledger;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bulkhead_classifier::protocol;
use bulkhead_control::origin::Origin;
use bulkhead_control::pipeline::AuditedPolicy;
use bulkhead_dataplane::{AuditTap, Audited};
use crossbeam_channel::{Receiver, Sender, never, select};

use super::composer::Composer;
use super::log;
use super::names::Names;
use super::origins::SharedOrigins;
use bulkhead_observe::admin::{AuditReport, AuditedConnection, AuditedPolicyRow};
use file::AuditFile;
use ledger::{Connection, Ledger};

/// Time in which connections gather after the first one. The channel holds 8,192, which suffices for 40,000 new audited connections per
/// second.
const INTERVAL: Duration = Duration::from_millis(200);
/// Minimum time between two writes of the file.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Time until the thread wakes up if there is nothing to write.
const IDLE: Duration = Duration::from_secs(3600);
/// How long to wait for the names of addresses. Without names, connections are counted by address.
const PATIENCE: Duration = Duration::from_secs(1);

/// The counts of connections that audited policies would deny, and the file that preserves them. Shared by the audit thread and readers.
#[derive(Debug)]
pub(super) struct Audit {
    ledger: Mutex<Ledger>,
    /// The file that preserves the counts. `None` if they end with the process.
    file: Option<AuditFile>,
    refused_files: AtomicU64,
    origins: SharedOrigins,
}

/// Number of connections that audited policies would have denied, for metrics and status.
#[derive(Clone, Debug, Default)]
pub(super) struct AuditTotals {
    /// The audited policies by name, with the number of connections that each would have denied since its audit began.
    pub(super) policies: BTreeMap<String, u64>,
    /// Number of files refused as damaged or of another version.
    pub(super) refused_files: u64,
}

impl Audit {
    /// Creates the ledger. If `folder` is set, continues the counts that an earlier process saved there; otherwise counts are not saved.
    pub(super) fn new(folder: Option<PathBuf>, node: &Arc<str>, origins: SharedOrigins) -> Self {
        let file = folder.map(|folder| AuditFile::new(&folder, node));
        let read = file.as_ref().map_or_else(|| Ok(None), AuditFile::read);
        let (ledger, refused_files) = match read {
            Ok(ledger) => (ledger.unwrap_or_default(), 0),
            Err(error) => {
                log::error(&format!(
                    "the earlier audit counts are lost: {error:#}\n\
                     help: the counts restart at zero; repeat the audit before you enforce"
                ));
                (Ledger::default(), 1)
            }
        };
        let refused_files = AtomicU64::new(refused_files);
        Self { ledger: Mutex::new(ledger), file, refused_files, origins }
    }

    /// Whether the counts have changed since they were last saved.
    fn is_unwritten(&self) -> bool {
        self.file.is_some() && self.lock().has_changed()
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        // A panic here leaves counts that are slightly too small.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of connections per audited policy, and of refused files.
    pub(super) fn totals(&self) -> AuditTotals {
        let policies = self.lock().policies().map(|(name, totals)| (name.clone(), totals.connections)).collect();
        AuditTotals { policies, refused_files: self.refused_files.load(Ordering::Relaxed) }
    }

    /// Reports the connections that enforcing would deny. `known` are the current audited policies, which the thread may not have read yet.
    pub(super) fn report(&self, node: &str, untold: u64, known: Option<&BTreeSet<AuditedPolicy>>) -> AuditReport {
        let (mut ledger, now) = (self.lock(), seconds());
        if let Some(known) = known {
            ledger.follow(known.iter().map(ToString::to_string), now);
        }
        let policies = ledger.policies().map(|(name, totals)| AuditedPolicyRow {
            policy: name.clone(),
            since: rfc3339(totals.since),
            connections: totals.connections,
            first_seen: totals.seen.map(|seen| rfc3339(seen.first)),
            last_seen: totals.seen.map(|seen| rfc3339(seen.last)),
            quiet_seconds: now.saturating_sub(totals.seen.map_or(totals.since, |seen| seen.last)),
        });
        let mut connections: Vec<_> = ledger.connections().collect();
        connections.sort_by_key(|(_, row)| std::cmp::Reverse(row.connections));
        let connections = connections.into_iter().map(|(connection, row)| AuditedConnection {
            from: connection.from.clone(),
            to: connection.to.clone(),
            protocol: protocol_name(connection.protocol),
            port: has_ports(connection.protocol).then_some(connection.port),
            denied_by: connection.origin.clone(),
            policies: row.policies.clone(),
            connections: row.connections,
            first_seen: rfc3339(row.seen.first),
            last_seen: rfc3339(row.seen.last),
        });
        AuditReport {
            node: node.to_owned(),
            at: rfc3339(now),
            file: self.file.as_ref().map(|file| file.path().display().to_string()),
            policies: policies.collect(),
            connections: connections.collect(),
            left_out: ledger.left_out(),
            untold,
        }
    }

    /// Adds audited connections to the ledger, by the names of their ends. Uses addresses if the policy thread is busy.
    fn take(&self, audited: &[Audited], names: &Names, known: &BTreeSet<AuditedPolicy>) {
        if audited.is_empty() {
            return;
        }
        let addresses: BTreeSet<IpAddr> =
            audited.iter().flat_map(|audited| [audited.flow.src, audited.flow.dst]).collect();
        let addresses: Vec<IpAddr> = addresses.into_iter().collect();
        // The policy thread may be busy compiling.
        let owners = names.owners(addresses.clone(), PATIENCE).unwrap_or_default();
        let owners: HashMap<IpAddr, String> = addresses.into_iter().zip(owners).collect();
        let name = |address: IpAddr| owners.get(&address).cloned().unwrap_or_else(|| address.to_string());
        let mut ledger = self.lock();
        for Audited { time, flow, decision, .. } in audited {
            let origin = decision.origin.and_then(|id| self.origins.get(id));
            let policies = origin.as_ref().map(policies_of).unwrap_or_default();
            // Enforced policies may contribute to the denial, but without the audited policies it would not occur.
            let audited: Vec<&AuditedPolicy> = policies.iter().filter(|policy| known.contains(policy)).collect();
            let policies = if audited.is_empty() { policies.iter().collect() } else { audited };
            let connection = Connection {
                origin: origin.map_or_else(|| "unknown".to_owned(), |origin| origin.to_string()),
                from: name(flow.src),
                to: name(flow.dst),
                protocol: flow.protocol,
                port: if has_ports(flow.protocol) { flow.dport } else { 0 },
            };
            ledger.count(connection, policies.into_iter().map(ToString::to_string).collect(), time / NANOSECONDS);
        }
    }
}

/// Returns the policies that an origin names. Empty for an origin that is not a policy's.
pub(super) fn policies_of(origin: &Origin) -> Vec<AuditedPolicy> {
    match origin {
        Origin::Policy { policy, .. } => vec![AuditedPolicy::Namespaced(policy.clone())],
        Origin::ClusterPolicy { policy, .. } => vec![AuditedPolicy::Cluster(policy.clone())],
        Origin::Isolation { policies, others, .. } => {
            let own = policies.iter().cloned().map(AuditedPolicy::Namespaced);
            own.chain(others.iter().cloned().map(AuditedPolicy::Cluster)).collect()
        }
        Origin::NotIsolated(_) | Origin::OwnNode | Origin::OwnPod => Vec::new(),
    }
}

const NANOSECONDS: u64 = 1_000_000_000;

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Formats a time in seconds since 1970.
fn rfc3339(seconds: u64) -> String {
    /// The last second of the year 9999, in seconds since 1970: the format's maximum.
    const LAST: u64 = 253_402_300_799;
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds.min(LAST))).to_string()
}

const fn has_ports(number: u8) -> bool {
    matches!(number, protocol::TCP | protocol::UDP | protocol::SCTP)
}

fn protocol_name(number: u8) -> String {
    match number {
        protocol::TCP => "TCP".to_owned(),
        protocol::UDP => "UDP".to_owned(),
        protocol::SCTP => "SCTP".to_owned(),
        protocol::ICMP => "ICMP".to_owned(),
        protocol::ICMPV6 => "ICMPv6".to_owned(),
        number => number.to_string(),
    }
}

/// A handle to the audit thread.
pub(super) struct Handle {
    /// Channel of one message: other policies may be audited. Closing it ends the thread.
    look: Sender<()>,
    thread: JoinHandle<()>,
}

impl Handle {
    /// Makes the thread read which policies are audited.
    pub(super) fn look(&self) {
        // A message that is already in the channel suffices.
        let _ = self.look.try_send(());
    }

    /// Adds the workers' remaining connections, writes the file and ends the thread.
    pub(super) fn stop(self) {
        drop(self.look);
        // A panicked thread has already logged its panic.
        let _ = self.thread.join();
    }
}

/// Starts the thread. Also returns the workers' channel to it.
///
/// # Errors
/// If the thread cannot be started.
pub(super) fn start(audit: Arc<Audit>, composer: Arc<Composer>, names: Names) -> std::io::Result<(Handle, AuditTap)> {
    let (tap, told) = AuditTap::new();
    let (look, looks) = crossbeam_channel::bounded(1);
    // So that a report right after the start includes the audited policies.
    know(&audit, &composer);
    let follow = move || follow(&audit, &composer, &names, told, &looks);
    let thread = std::thread::Builder::new().name("audit".into()).spawn(follow)?;
    Ok((Handle { look, thread }, tap))
}

fn follow(audit: &Audit, composer: &Composer, names: &Names, mut told: Receiver<Audited>, looks: &Receiver<()>) {
    let (mut written, mut failed) = (Instant::now(), None);
    let (mut waiting, nothing) = (Vec::new(), never());
    loop {
        let to_write = audit.is_unwritten().then(|| WRITE_EVERY.saturating_sub(written.elapsed()));
        let (first, patience) = match waiting.is_empty() {
            true => (&told, to_write.unwrap_or(IDLE)),
            // Nobody waits for the channel while connections gather in it.
            false => (&nothing, INTERVAL),
        };
        let mut is_over = false;
        select! {
            recv(first) -> audited => {
                match audited {
                    Ok(audited) => waiting.push(audited),
                    // The workers have ended.
                    Err(_) => told = never(),
                }
                continue;
            }
            recv(looks) -> look => is_over = look.is_err(),
            default(patience) => {}
        }
        if let Some(known) = know(audit, composer) {
            waiting.extend(told.try_iter());
            audit.take(&std::mem::take(&mut waiting), names, &known);
        }
        if is_over || written.elapsed() >= WRITE_EVERY {
            written = Instant::now();
            write(audit, &mut failed);
        }
        if is_over {
            return;
        }
    }
}

/// Updates the ledger's audited policies and returns them. `None` before a state is loaded.
fn know(audit: &Audit, composer: &Composer) -> Option<Arc<BTreeSet<AuditedPolicy>>> {
    let known = composer.audited()?;
    audit.lock().follow(known.iter().map(ToString::to_string), seconds());
    Some(known)
}

/// Writes the ledger if it has changed. Logs a repeated error once.
fn write(audit: &Audit, failed: &mut Option<String>) {
    let Some(file) = &audit.file else { return };
    let encoded = {
        let mut ledger = audit.lock();
        if !ledger.take_changed() {
            return;
        }
        file.encode(&ledger)
    };
    match encoded.and_then(|text| file.write(&text)) {
        Ok(()) => *failed = None,
        Err(error) => {
            audit.lock().keep_changed();
            let why = format!("{error:#}");
            if failed.as_ref() != Some(&why) {
                log::error(&format!("cannot save the audit counts, which will be lost when the vswitch stops: {why}"));
            }
            *failed = Some(why);
        }
    }
}
