//! Packets waiting for the classifier.
//!
//! A miss needs a table lookup, and lookups are cheaper in batches. So misses are collected during the burst and classified together, one
//! batch per table. If a later packet may belong to a waiting session ([`Pending::may_hold`]), the waiting packets are classified first.

use std::num::NonZeroU32;

use bulkhead_classifier::{Key as PolicyKey, Verdict as PolicyVerdict};

use super::audit::{self, Audited, Noted};
use super::claim::flow_of;
use super::column::Burst;
use super::exit::{self, Bound};
use super::names::{Asked, Learning, Ruling};
use crate::packet::TcpFlags;
use crate::session::{Direction, Key, Moment, NewSession, SessionTable, Slot};
use crate::{BURST, Decision, DropReason, PortId, SessionState, Snapshot, Verdict};

/// Bits of the filter: 16 per packet of a burst, so that less than one packet in 16 causes an early classification by chance.
const FILTER_BITS: usize = 16 * BURST;

/// What to do with a packet if policy allows it.
#[derive(Clone, Copy, Debug)]
pub(super) enum IfAllowed {
    /// Start this session, with the table's decision filled in.
    Start(NewSession),
    /// Renew a session that an older generation allowed.
    Keep(Renewal),
}

/// A session that an older generation allowed, and the packet of it that the current tables judge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewal {
    pub(super) key: Key,
    pub(super) hash: u64,
    /// Hash of the key of the packet as received.
    pub(super) wire_hash: u64,
    /// The worker's number for the current generation.
    pub(super) epoch: u32,
    /// Receiving and output port of the session's forward direction in the current generation.
    pub(super) ports: (PortId, PortId),
    pub(super) direction: Direction,
    /// TCP flags to add to the session, or `Some(None)` for other protocols. `None` if the packet changes nothing.
    pub(super) news: Option<Option<TcpFlags>>,
    /// Whether the packet is an ICMP error, which does not extend the session's life.
    pub(super) is_error: bool,
}

impl Renewal {
    /// Renews the session, which the new generation allows.
    pub(super) fn apply(&self, sessions: &mut SessionTable, slot: Slot, decision: Decision, now: Moment) {
        sessions.renew(slot, self.epoch, &decision, self.ports, now);
        if let Some(flags) = self.news {
            sessions.touch(slot, self.direction, flags, now);
        }
        if !self.is_error && !sessions.is_unchecked(slot) {
            sessions.set_checked(slot, self.direction);
        }
    }
}

/// A waiting packet: it belongs to no session that the current tables have judged.
#[derive(Clone, Copy, Debug)]
struct Miss {
    /// The packet's position in the burst.
    at: usize,
    bound: Bound,
    /// The verdict that the packet gets if policy allows it.
    allowed: Verdict,
    now: Moment,
    /// Position of the packet's translation. `None` if the packet is not translated.
    translation: Option<NonZeroU32>,
    if_allowed: IfAllowed,
}

/// Waiting packets and their policy keys, in parallel vectors.
#[derive(Debug)]
pub(super) struct Pending {
    misses: Vec<Miss>,
    keys: Vec<PolicyKey>,
    verdicts: Vec<PolicyVerdict>,
    /// Positions sorted by table, and the keys and verdicts of one table, for a burst with several tables.
    order: Vec<usize>,
    gathered: Vec<PolicyKey>,
    answers: Vec<PolicyVerdict>,
    filter: Box<[u64; FILTER_BITS / 64]>,
    /// Number of batches classified so far, in tests only.
    #[cfg(test)]
    pub(super) batches: u64,
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
            #[cfg(test)]
            batches: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.misses.len()
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.misses.is_empty()
    }

    /// Returns the verdict that packet `at` of the burst gets if policy allows it, and the position of its translation. `None` if the packet
    /// is not the last one that waits.
    pub(super) fn last(&self, at: usize) -> Option<(Verdict, Option<NonZeroU32>)> {
        let miss = self.misses.last().filter(|miss| miss.at == at)?;
        Some((miss.allowed, miss.translation))
    }

    /// Whether a packet with this session hash may be waiting. May be true although none is waiting, but is never false if one is.
    pub(super) fn may_hold(&self, hash: u64) -> bool {
        let (word, bit) = filter_bit(hash);
        self.filter[word] & bit != 0
    }

    pub(super) fn push(
        &mut self,
        at: usize,
        (bound, key): (Bound, PolicyKey),
        allowed: Verdict,
        now: Moment,
        translation: Option<NonZeroU32>,
        if_allowed: IfAllowed,
    ) {
        // A translated session is found by two keys.
        let hashes = match &if_allowed {
            IfAllowed::Start(new) => [new.hash, new.wire_hash],
            IfAllowed::Keep(renewal) => [renewal.hash, renewal.wire_hash],
        };
        for hash in hashes {
            let (word, bit) = filter_bit(hash);
            self.filter[word] |= bit;
        }
        self.misses.push(Miss { at, bound, allowed, now, translation, if_allowed });
        self.keys.push(key);
    }

    /// Classifies all waiting packets and applies the verdicts in packet order. Appends audited connections to `audits`.
    pub(super) fn settle(
        &mut self,
        sessions: &mut SessionTable,
        burst: &mut Burst<'_>,
        learning: &Learning,
        audits: &mut Vec<Noted>,
    ) {
        if self.misses.is_empty() {
            return;
        }
        #[cfg(test)]
        (self.batches += 1);
        self.classify(burst.snapshot);
        let has_named = burst.snapshot.has_named_ports();
        for ((miss, key), verdict) in self.misses.iter_mut().zip(&self.keys).zip(&self.verdicts) {
            if has_named && exit::is_named(burst.snapshot, miss.ports(), (key.src(), key.dst())) {
                miss.settle_named(key, *verdict, sessions, burst, learning, audits);
                continue;
            }
            let is_allowed = verdict.is_allow();
            let decision = burst.snapshot.decision(miss.bound.table, *verdict);
            let denial = match miss.bound.audit {
                Some(audit) if is_allowed => audit::denial(burst.snapshot, audit, key),
                _ => None,
            };
            miss.settle(key, Ruling { is_allowed, decision, denial }, sessions, burst, audits);
        }
        self.misses.clear();
        self.keys.clear();
        self.filter.fill(0);
    }

    /// Looks up the keys of all waiting packets, one batch per table, and stores the verdicts.
    fn classify(&mut self, snapshot: &Snapshot) {
        let Self { misses, keys, verdicts, order, gathered, answers, .. } = self;
        verdicts.clear();
        verdicts.resize(keys.len(), PolicyVerdict::NO_MATCH);
        let first = misses[0].bound.table;
        if misses.iter().all(|packet| packet.bound.table == first) {
            if let Some(table) = snapshot.table(first) {
                table.lookup_batch(keys, verdicts);
            }
            return;
        }
        order.clear();
        order.extend(0..misses.len());
        order.sort_unstable_by_key(|&at| (misses[at].bound.table, at));
        for same in order.chunk_by(|&one, &other| misses[one].bound.table == misses[other].bound.table) {
            let Some(table) = snapshot.table(misses[same[0]].bound.table) else { continue };
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
    /// Creates, renews or ends the session by the table's verdict. Also returns whether the connection is newly audited.
    #[inline(always)]
    fn act(
        &mut self,
        sessions: &mut SessionTable,
        decision: Decision,
        allowed: bool,
        is_audited: bool,
    ) -> Result<(SessionState, bool), DropReason> {
        let unreachable = self.unreachable();
        match &mut self.if_allowed {
            IfAllowed::Start(new) => {
                new.decision = decision;
                if !allowed {
                    sessions.refuse(new, DropReason::PolicyDenied, self.now);
                    return Err(DropReason::PolicyDenied);
                }
                if let Some(reason) = unreachable {
                    return Err(reason);
                }
                // A SYN of the other side on an open connection is left to its receiver (RFC 5961 §4).
                if new.flags.is_some() && sessions.is_open_against(new, self.now.time) {
                    return Ok((SessionState::Hit, false));
                }
                let slot = sessions.create(new, self.now)?;
                if is_audited {
                    sessions.set_audited(slot, true);
                }
                Ok((SessionState::New, is_audited))
            }
            IfAllowed::Keep(renewal) => {
                // Looked up again, because the slot may have been reused.
                let slot = sessions.find(renewal.hash, &renewal.key, self.now.time);
                if !allowed {
                    let reason = DropReason::PolicyDenied;
                    let now = self.now;
                    slot.into_iter().for_each(|slot| sessions.revoke(slot, renewal.epoch, &decision, reason, now));
                    return Err(reason);
                }
                let slot = slot.ok_or(DropReason::SessionTableFull)?;
                if let Some(reason) = unreachable {
                    sessions.abandon(slot, renewal.epoch, &decision, self.now);
                    return Err(reason);
                }
                let was_audited = sessions.is_audited(slot);
                renewal.apply(sessions, slot, decision, self.now);
                sessions.set_audited(slot, is_audited);
                Ok((SessionState::Hit, is_audited && !was_audited))
            }
        }
    }

    /// Applies a ruling to the packet and its session. Appends an audited connection to `audits`.
    #[inline(always)]
    fn settle(
        &mut self,
        key: &PolicyKey,
        ruling: Ruling,
        sessions: &mut SessionTable,
        burst: &mut Burst<'_>,
        audits: &mut Vec<Noted>,
    ) {
        let Ruling { is_allowed, decision, denial } = ruling;
        burst.decisions.set(self.at, Some(decision));
        // Dropped packets are reported with the backend that policy judged.
        burst.translate(self.at, self.translation);
        match self.act(sessions, decision, is_allowed, denial.is_some()) {
            Ok((state, is_news)) => {
                burst.allow(self.at, self.allowed, decision, state);
                if let (true, Some(denial)) = (is_news, denial) {
                    audits.push(Noted { at: self.at, audited: self.audited(key, denial) });
                }
            }
            Err(reason) => burst.drop(self.at, reason),
        }
    }

    /// Like [`Miss::settle`], for a packet of a connection whose initiator has rules that name domains. `verdict` is that of the table
    /// without names. Apart from the loop over misses, which nodes without such rules run.
    #[cold]
    #[inline(never)]
    fn settle_named(
        &mut self,
        key: &PolicyKey,
        verdict: PolicyVerdict,
        sessions: &mut SessionTable,
        burst: &mut Burst<'_>,
        learning: &Learning,
        audits: &mut Vec<Noted>,
    ) {
        let slot = match &self.if_allowed {
            IfAllowed::Start(_) => None,
            IfAllowed::Keep(renewal) => sessions.lookup(renewal.hash, &renewal.key),
        };
        let kept = slot.and_then(|slot| sessions.name(slot));
        let (in_port, out) = self.ports();
        let asked = Asked { snapshot: burst.snapshot, in_port, out, key, kept, now: self.now.time };
        let ruling = learning.judge(&asked, self.bound, verdict);
        // The client has named a server that it may not reach. What it says later does not matter.
        let is_cut = slot.is_some_and(|slot| sessions.entry(slot).refused() == Some(DropReason::ServerName));
        if is_cut {
            burst.drop(self.at, DropReason::ServerName);
            return;
        }
        self.settle(key, ruling, sessions, burst, audits);
        if let IfAllowed::Start(new) = &self.if_allowed
            && ruling.decision.name().is_some()
            && burst.snapshot.names().is_some_and(|names| names.checks(&asked))
            && let Some(slot) = sessions.lookup(new.hash, &new.key)
        {
            sessions.set_unchecked(slot, true);
        }
    }

    /// Returns the receiving and the output port of the connection's forward direction.
    const fn ports(&self) -> (PortId, PortId) {
        match &self.if_allowed {
            IfAllowed::Start(new) => (new.in_port, new.out_port),
            IfAllowed::Keep(renewal) => renewal.ports,
        }
    }

    /// Returns the drop reason of a packet that may learn that no host has its destination. `None` for all other packets. Such a packet
    /// starts and renews no session: a later pod with the address has its own.
    fn unreachable(&self) -> Option<DropReason> {
        self.allowed.drop_reason().filter(|reason| *reason == DropReason::NoSuchPod)
    }

    /// Returns the audit record of an allowed connection that `denial` would deny.
    #[cold]
    fn audited(&self, key: &PolicyKey, denial: Decision) -> Audited {
        let (in_port, out_port) = self.ports();
        let is_new = matches!(self.if_allowed, IfAllowed::Start(_));
        Audited { time: self.now.time, flow: flow_of(key), in_port, out_port, decision: denial, is_new }
    }
}

fn filter_bit(hash: u64) -> (usize, u64) {
    // The index uses the lowest and highest bits of the hash, so the filter uses bits between them.
    let bit = (hash >> 20) as usize % FILTER_BITS;
    (bit / 64, 1 << (bit % 64))
}
