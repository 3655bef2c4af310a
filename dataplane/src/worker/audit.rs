//! Audited connections: allowed by the tables in force, denied if all policies were enforced.
//!
//! ```text
//!   miss, or a session of an older generation -> table in force --deny--> dropped, as ever
//!                                                      `--allow--> has the port an audit table? --no--> as ever
//!                                                                     `--yes--> it denies --> marked, counted, told
//! ```
//! A port has an audit table ([`PortConfig::audit`](crate::PortConfig::audit)) only if enforcing the audited policies would change its
//! verdicts. Without audited policies a miss costs one extra branch and a hit nothing.
//!
//! **Once per connection.** A session keeps an audit mark across generations and restarts. A connection that is judged again is reported
//! again only if it had no mark.
//!
//! [`Pending::settle`](super::pending::Pending::settle) notes audited connections. An [`AuditTap`] delivers them as [`Audited`] to its
//! reader.

use crossbeam_channel::{Receiver, Sender};

use bulkhead_classifier::Key;

use super::Worker;
use crate::{Decision, Flow, PortId, Snapshot, TableId};

/// Maximum number of audited connections that wait for the reader, about 100 bytes each. If the reader is slower, further ones are lost and
/// counted. Workers never wait.
const WAITING: usize = 8192;

/// A connection that is allowed, but would be denied if all policies were enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audited {
    /// Time of the audited packet, in nanoseconds since 1970.
    pub time: u64,
    /// The connection with the original client address and, for a Service, the backend's address.
    pub flow: Flow,
    /// The port that receives the connection's packets.
    pub in_port: PortId,
    /// The port that sends the connection's packets.
    pub out_port: PortId,
    /// The rule that would deny the connection.
    pub decision: Decision,
    /// Whether the connection begins with this packet. False if it was open when the policy was added or changed.
    pub is_new: bool,
}

/// An audited connection of the current burst, which is not reported yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    /// The packet's position in the burst.
    pub(super) at: usize,
    pub(super) audited: Audited,
}

/// The workers' end of the channel of audited connections.
#[derive(Clone, Debug)]
pub struct AuditTap {
    sender: Sender<Audited>,
}

impl AuditTap {
    /// Creates a tap and its receiver. Waking a blocked reader costs a worker a system call, so a reader should rest before it blocks again.
    pub fn new() -> (Self, Receiver<Audited>) {
        let (sender, receiver) = crossbeam_channel::bounded(WAITING);
        (Self { sender }, receiver)
    }
}

/// Returns the decision of the audit table if it denies, otherwise `None`.
#[cold]
#[inline(never)]
pub(super) fn denial(snapshot: &Snapshot, table: TableId, key: &Key) -> Option<Decision> {
    let tables = snapshot.table(table)?;
    let verdict = tables.lookup(key);
    (!verdict.is_allow()).then(|| snapshot.decision(table, verdict))
}

impl Worker {
    /// Reports audited connections to this tap.
    pub fn tell_audits_to(&mut self, tap: AuditTap) {
        self.audit_tap = Some(tap);
    }

    /// Counts the burst's audited connections.
    #[cold]
    #[inline(never)]
    pub(super) fn count_audits(&mut self) {
        for noted in &self.audits {
            self.counters.audit(noted.audited.decision.origin);
        }
    }

    /// Sends the burst's audited connections to the tap.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_audits(&mut self) {
        for Noted { audited, .. } in self.audits.drain(..) {
            let is_told = self.audit_tap.as_ref().is_none_or(|tap| tap.sender.try_send(audited).is_ok());
            self.counters.untold_audits += u64::from(!is_told);
        }
    }
}
