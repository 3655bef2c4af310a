//! Audited connections: what passes, and what the tables of all policies would deny.
//!
//! ```text
//!   miss, or a session of an older generation -> table in force --deny--> dropped, as ever
//!                                                      `--allow--> has the port an audit table? --no--> as ever
//!                                                                     `--yes--> it denies --> marked, counted, told
//! ```
//! A port has an audit table ([`PortConfig::audit`](crate::PortConfig::audit)) only while some policy is audited whose enforcement would
//! change what may leave there. So without audited policies a miss pays for one branch, and a hit for nothing at all.
//!
//! **Once for each connection.** A session keeps a mark, which outlives generations and the process: judged again it is told again only
//! where it was not audited before.
//!
//! **The place where a worker learns of it** is [`Pending::settle`](super::pending::Pending::settle), which notes it; whoever wants to
//! know gets an [`Audited`] over an [`AuditTap`].

use crossbeam_channel::{Receiver, Sender};

use bulkhead_classifier::Key;

use super::Worker;
use crate::{Decision, Flow, PortId, Snapshot, TableId};

/// Audited connections that wait for their reader, some 100 bytes each. A reader that is further behind misses some, which are counted;
/// no worker waits for it.
const WAITING: usize = 8192;

/// A connection that passes, and that the tables of all policies deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audited {
    /// When its packet came, in nanoseconds since 1970.
    pub time: u64,
    /// Who talks to whom: the true client, and of a connection to a Service the backend.
    pub flow: Flow,
    /// Where its packets come in.
    pub in_port: PortId,
    /// Where they leave.
    pub out_port: PortId,
    /// What of the tables of all policies denies it.
    pub decision: Decision,
    /// Whether it begins with this packet. Otherwise it was open when the policy came, or became an audited one.
    pub is_new: bool,
}

/// What was noted of a packet of the burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    /// Its place in the burst.
    pub(super) at: usize,
    pub(super) audited: Audited,
}

/// The workers' end of what is told of audited connections.
#[derive(Clone, Debug)]
pub struct AuditTap {
    sender: Sender<Audited>,
}

impl AuditTap {
    /// A tap, and where its connections arrive. To be read without blocking: a reader that sleeps in the channel would have to be woken
    /// by a system call of a worker.
    pub fn new() -> (Self, Receiver<Audited>) {
        let (sender, receiver) = crossbeam_channel::bounded(WAITING);
        (Self { sender }, receiver)
    }
}

/// What the tables of all policies say, where they deny.
#[cold]
#[inline(never)]
pub(super) fn denial(snapshot: &Snapshot, table: TableId, key: &Key) -> Option<Decision> {
    let tables = snapshot.table(table)?;
    let verdict = tables.lookup(key);
    (!verdict.is_allow()).then(|| snapshot.decision(table, verdict))
}

/// Who talks to whom, of the key that the tables were asked about.
pub(super) const fn flow_of(key: &Key) -> Flow {
    let (src, dst, protocol) = (key.src(), key.dst(), key.protocol());
    Flow { src, dst, protocol, sport: key.src_port(), dport: key.dst_port(), icmp: None }
}

impl Worker {
    /// Has audited connections told to this tap.
    pub fn tell_audits_to(&mut self, tap: AuditTap) {
        self.audit_tap = Some(tap);
    }

    /// Counts what was noted of a burst.
    #[cold]
    #[inline(never)]
    pub(super) fn count_audits(&mut self) {
        for noted in &self.audits {
            self.counters.audit(noted.audited.decision.origin);
        }
    }

    /// Tells what was noted.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_audits(&mut self) {
        for Noted { audited, .. } in self.audits.drain(..) {
            let is_told = self.audit_tap.as_ref().is_none_or(|tap| tap.sender.try_send(audited).is_ok());
            self.counters.untold_audits += u64::from(!is_told);
        }
    }
}
