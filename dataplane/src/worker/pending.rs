//! Packets that wait for the classifier.
//!
//! A miss costs a table lookup, and lookups are cheaper many at a time. So misses are put aside while the burst goes
//! on and are classified together, one batch per table. What makes that safe: [`Pending::may_hold`] tells when a
//! packet comes whose session may be among them; then they are settled first.

use std::num::NonZeroU32;

use bulkhead_classifier::{Key as PolicyKey, Verdict as PolicyVerdict};

use super::audit::{self, Audited, Noted};
use super::column::Burst;
use super::exit::Bound;
use crate::packet::TcpFlags;
use crate::session::{Direction, Key, Moment, NewSession, SessionTable, Slot};
use crate::{BURST, Decision, DropReason, PortId, SessionState, Snapshot, TableId, Verdict};

/// Bits of the filter: 16 per packet of a burst, so that fewer than one packet in 16 settles a burst for nothing.
const FILTER_BITS: usize = 16 * BURST;

/// What to do when policy says yes.
#[derive(Clone, Copy, Debug)]
pub(super) enum IfAllowed {
    /// Start a session. The decision in it is filled in.
    Start(NewSession),
    /// Keep a session of an older generation.
    Keep(Renewal),
}

/// A session of an older generation, and the packet that asks for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewal {
    pub(super) key: Key,
    pub(super) hash: u64,
    /// The hash of the packet's own key.
    pub(super) wire_hash: u64,
    /// The new generation's.
    pub(super) epoch: u32,
    /// The session's ports in the new generation, in its forward direction.
    pub(super) ports: (PortId, PortId),
    pub(super) direction: Direction,
    /// What the session learns from the packet; none for nothing.
    pub(super) news: Option<Option<TcpFlags>>,
    /// An ICMP error about the session does not keep it alive.
    pub(super) is_error: bool,
}

impl Renewal {
    /// The new generation allows the session.
    pub(super) fn apply(&self, sessions: &mut SessionTable, slot: Slot, decision: Decision, now: Moment) {
        sessions.renew(slot, self.epoch, &decision, self.ports, now);
        if let Some(flags) = self.news {
            sessions.touch(slot, self.direction, flags, now);
        }
        if !self.is_error {
            sessions.set_checked(slot, self.direction);
        }
    }
}

/// A packet that no session has, and that waits.
#[derive(Clone, Copy, Debug)]
struct Miss {
    /// The packet's place in the burst.
    at: usize,
    table: TableId,
    /// The table that says what would be denied, while policies are audited.
    audit: Option<TableId>,
    /// What becomes of the packet if policy allows it.
    allowed: Verdict,
    /// When the packet came.
    now: Moment,
    /// What is written into the packet then.
    translation: Option<NonZeroU32>,
    if_allowed: IfAllowed,
}

/// The packets that wait, side by side with their keys.
#[derive(Debug)]
pub(super) struct Pending {
    misses: Vec<Miss>,
    keys: Vec<PolicyKey>,
    verdicts: Vec<PolicyVerdict>,
    /// Positions by table, and keys and verdicts of one table, when the burst has packets for several.
    order: Vec<usize>,
    gathered: Vec<PolicyKey>,
    answers: Vec<PolicyVerdict>,
    filter: Box<[u64; FILTER_BITS / 64]>,
}

impl Pending {
    pub(super) fn new() -> Self {
        Self {
            misses: Vec::with_capacity(BURST),
            keys: Vec::with_capacity(BURST),
            verdicts: Vec::with_capacity(BURST),
            order: Vec::with_capacity(BURST),
            gathered: Vec::with_capacity(BURST),
            answers: Vec::with_capacity(BURST),
            filter: Box::new([0; FILTER_BITS / 64]),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.misses.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.misses.is_empty()
    }

    /// Whether a session with this hash may be waiting. May say yes by mistake, never no.
    pub(super) fn may_hold(&self, hash: u64) -> bool {
        let (word, bit) = filter_bit(hash);
        self.filter[word] & bit != 0
    }

    pub(super) fn push(
        &mut self,
        at: usize,
        (Bound { table, audit }, key): (Bound, PolicyKey),
        allowed: Verdict,
        now: Moment,
        translation: Option<NonZeroU32>,
        if_allowed: IfAllowed,
    ) {
        // A session to a Service is found by two keys.
        let hashes = match &if_allowed {
            IfAllowed::Start(new) => [new.hash, new.wire_hash],
            IfAllowed::Keep(renewal) => [renewal.hash, renewal.wire_hash],
        };
        for hash in hashes {
            let (word, bit) = filter_bit(hash);
            self.filter[word] |= bit;
        }
        self.misses.push(Miss { at, table, audit, allowed, now, translation, if_allowed });
        self.keys.push(key);
    }

    /// Classifies all and acts on the answers in the order of the packets. Notes the connections that pass and are audited.
    pub(super) fn settle(&mut self, sessions: &mut SessionTable, burst: &mut Burst<'_>, audits: &mut Vec<Noted>) {
        if self.misses.is_empty() {
            return;
        }
        self.classify(burst.snapshot);
        for ((miss, key), verdict) in self.misses.iter().zip(&self.keys).zip(&self.verdicts) {
            let decision = burst.snapshot.decision(miss.table, *verdict);
            burst.decisions.set(miss.at, Some(decision));
            // A packet that is dropped is told with the backend that it was judged for.
            burst.translate(miss.at, miss.translation);
            let denial = match miss.audit {
                Some(audit) if verdict.is_allow() => audit::denial(burst.snapshot, audit, key),
                _ => None,
            };
            match miss.act(sessions, decision, verdict.is_allow(), denial.is_some()) {
                Ok((state, is_news)) => {
                    burst.allow(miss.at, miss.allowed, decision, state);
                    if let (true, Some(denial)) = (is_news, denial) {
                        audits.push(Noted { at: miss.at, audited: miss.audited(key, denial) });
                    }
                }
                Err(reason) => burst.drop(miss.at, reason),
            }
        }
        self.misses.clear();
        self.keys.clear();
        self.filter.fill(0);
    }

    /// One batch per table that occurs.
    fn classify(&mut self, snapshot: &Snapshot) {
        let Self { misses, keys, verdicts, order, gathered, answers, .. } = self;
        verdicts.clear();
        verdicts.resize(keys.len(), PolicyVerdict::NO_MATCH);
        let first = misses[0].table;
        if misses.iter().all(|packet| packet.table == first) {
            if let Some(table) = snapshot.table(first) {
                table.lookup_batch(keys, verdicts);
            }
            return;
        }
        order.clear();
        order.extend(0..misses.len());
        order.sort_unstable_by_key(|&at| (misses[at].table, at));
        for same in order.chunk_by(|&one, &other| misses[one].table == misses[other].table) {
            let Some(table) = snapshot.table(misses[same[0]].table) else { continue };
            gathered.clear();
            gathered.extend(same.iter().map(|&at| keys[at]));
            answers.clear();
            answers.resize(gathered.len(), PolicyVerdict::NO_MATCH);
            table.lookup_batch(gathered, answers);
            for (&at, answer) in same.iter().zip(answers.iter()) {
                verdicts[at] = *answer;
            }
        }
    }
}

impl Miss {
    /// Creates, renews or ends the session. Returns besides whether it is news that it is audited.
    fn act(
        &self,
        sessions: &mut SessionTable,
        decision: Decision,
        allowed: bool,
        is_audited: bool,
    ) -> Result<(SessionState, bool), DropReason> {
        match &self.if_allowed {
            IfAllowed::Start(new) => {
                let new = NewSession { decision, ..*new };
                if !allowed {
                    sessions.refuse(&new, DropReason::PolicyDenied, self.now);
                    return Err(DropReason::PolicyDenied);
                }
                // The other side's SYN on an open connection: its receiver knows what it means (RFC 5961 §4).
                if new.flags.is_some() && sessions.is_open_against(&new, self.now.time) {
                    return Ok((SessionState::Hit, false));
                }
                let slot = sessions.create(&new, self.now)?;
                if is_audited {
                    sessions.set_audited(slot, true);
                }
                Ok((SessionState::New, is_audited))
            }
            IfAllowed::Keep(renewal) => {
                // Found again by its key: a slot may have changed hands since.
                let slot = sessions.find(renewal.hash, &renewal.key, self.now.time);
                if !allowed {
                    let reason = DropReason::PolicyDenied;
                    let now = self.now;
                    slot.into_iter().for_each(|slot| sessions.revoke(slot, renewal.epoch, &decision, reason, now));
                    return Err(reason);
                }
                let slot = slot.ok_or(DropReason::SessionTableFull)?;
                let was_audited = sessions.is_audited(slot);
                renewal.apply(sessions, slot, decision, self.now);
                sessions.set_audited(slot, is_audited);
                Ok((SessionState::Hit, is_audited && !was_audited))
            }
        }
    }

    /// The connection, which passes and which this denies.
    #[cold]
    fn audited(&self, key: &PolicyKey, denial: Decision) -> Audited {
        let (in_port, out_port) = match &self.if_allowed {
            IfAllowed::Start(new) => (new.in_port, new.out_port),
            IfAllowed::Keep(renewal) => renewal.ports,
        };
        let is_new = matches!(self.if_allowed, IfAllowed::Start(_));
        Audited { time: self.now.time, flow: audit::flow_of(key), in_port, out_port, decision: denial, is_new }
    }
}

fn filter_bit(hash: u64) -> (usize, u64) {
    // The index uses the hash's low and highest bits; the filter takes some from between.
    let bit = (hash >> 20) as usize % FILTER_BITS;
    (bit / 64, 1 << (bit % 64))
}
