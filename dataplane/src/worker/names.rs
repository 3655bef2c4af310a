//! Learns from DNS answers to pods, and judges packets of pods with rules that name domains. See [`crate::names`].

use std::sync::Arc;

use bulkhead_classifier::{Key as PolicyKey, Verdict as PolicyVerdict, protocol};

use super::Worker;
use super::audit;
use super::column::Burst;
use super::stages::Times;
use crate::names::{
    Asker, DNS, Fault, KeptNames, Learned, Message, NameCounters, NameId, Names, Part, Questions, Segment, Streams,
};
use crate::packet::Data;
use crate::{Decider, Decision, PortId, PortKind, Snapshot, TableId, Verdict};

/// The state with which a worker learns names.
#[derive(Debug, Default)]
pub(super) struct Learning {
    /// The addresses that all workers have learned.
    pub(super) learned: Arc<Learned>,
    /// The file in which learned addresses outlive the process. `None` if sessions are not kept in files.
    kept: Option<Arc<KeptNames>>,
    questions: Questions,
    streams: Streams,
    pub(super) counters: NameCounters,
}

/// A packet of a connection whose initiator has rules that name domains.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) snapshot: &'a Snapshot,
    /// The receiving and the output port of the connection's forward direction.
    pub(super) ports: (PortId, PortId),
    pub(super) key: &'a PolicyKey,
    /// The name by which the packet's session was allowed, which counts even if its address has expired. `None` for a new session and for
    /// one that was not allowed by name.
    pub(super) kept: Option<NameId>,
    /// Nanoseconds since 1970.
    pub(super) now: u64,
}

impl Learning {
    /// Decides about a packet for which `table`, the one without names, has returned `verdict`. Returns whether both this table and the
    /// initiator's `named_table` allow the packet, and the decision to report.
    #[cold]
    #[inline(never)]
    pub(super) fn decide(&self, asked: &Asked<'_>, table: TableId, verdict: PolicyVerdict) -> (bool, Decision) {
        let Asked { snapshot, ports: (in_port, out), .. } = *asked;
        let by_table = (verdict.is_allow(), snapshot.decision(table, verdict));
        let Some(named) = snapshot.port(in_port).and_then(|port| port.named_table) else { return by_table };
        let (by_sender, name) = self.judge(asked, named);
        let decision = named_decision(snapshot, named, by_sender, name);
        // If both tables allow, the decision is that of the receiving pod's table. It is the initiator's if the receiver is no pod, or if a
        // name decided.
        let is_pods = snapshot.port(out).is_some_and(|port| port.kind == PortKind::Pod && port.ingress.is_none());
        match (by_sender.is_allow(), verdict.is_allow()) {
            (false, _) => (false, decision),
            (true, true) if name.is_some() || !is_pods => (true, decision),
            (true, _) => by_table,
        }
    }

    /// Returns the decision of the first audit table that denies: the initiator's `named_audit`, then `audit`, that of the output port.
    /// `None` if neither denies.
    pub(super) fn audited_denial(&self, asked: &Asked<'_>, audit: Option<TableId>) -> Option<Decision> {
        let by_sender = asked.snapshot.port(asked.ports.0).and_then(|port| port.named_audit).and_then(|table| {
            let (verdict, name) = self.judge(asked, table);
            (!verdict.is_allow()).then(|| named_decision(asked.snapshot, table, verdict, name))
        });
        by_sender.or_else(|| audit::denial(asked.snapshot, audit?, asked.key))
    }

    /// Returns the verdict of a table with rules that name domains, and the name by which the deciding rule matched. The name is `None` if
    /// that rule names no domains.
    fn judge(&self, asked: &Asked<'_>, table: TableId) -> (PolicyVerdict, Option<NameId>) {
        let Asked { snapshot, ports, key, kept, now } = *asked;
        let Some(tables) = snapshot.table(table) else { return (PolicyVerdict::NO_MATCH, None) };
        let (mut first, mut by) = (tables.lookup(key), None);
        let mut consider = |id: NameId, name: &str| {
            let verdict = tables.lookup_name(key, name);
            if verdict.precedes(first) {
                (first, by) = (verdict, Some(id));
            }
        };
        // A session keeps its name as long as a rule names it, even if the pod has learned other names since.
        if let Some(id) = kept {
            self.learned.with_name(id, |name| consider(id, name));
        }
        if let Some(holder) = snapshot.names().and_then(|names| names.holder(ports.0)) {
            self.learned.names_of(holder, key.dst(), now, &mut consider);
        }
        (first, by)
    }

    /// Drops the questions and streams of holders that the snapshot does not have.
    pub(super) fn follow(&mut self, snapshot: &Snapshot) {
        let kept: ahash::AHashSet<_> = snapshot.names().into_iter().flat_map(Names::holders).collect();
        self.questions.retain(|holder| kept.contains(&holder));
        self.streams.retain(|holder| kept.contains(&holder));
    }

    fn read(
        &mut self,
        part: &Part,
        message: &[u8],
        names: &Names,
        is_named: impl Fn(&str) -> bool,
        now: u64,
    ) -> Result<(), Fault> {
        let message = Message::parse(message)?;
        let (id, question) = (message.id(), message.question());
        match part {
            Part::Query(asker) if !message.is_response() => {
                self.counters.queries += 1;
                // No rule names other names, so nothing is learned from their answers.
                if message.name().is_ok_and(|name| is_named(name.as_str())) {
                    self.questions.ask(asker, id, question, now);
                }
            }
            Part::Answer(asker) if message.is_response() => {
                let name = message.name()?;
                if !is_named(name.as_str()) {
                    return Ok(());
                }
                if !self.questions.close(asker, id, question, now) {
                    self.counters.unasked += 1;
                    return Ok(());
                }
                self.counters.answers += 1;
                if message.response_code() == 0 {
                    let Self { learned, kept, counters, .. } = self;
                    message.addresses(|address, ttl| {
                        let until = names.until(now, ttl);
                        match learned.learn(asker.holder, name.as_str(), address, now, until) {
                            Ok(id) => {
                                counters.addresses += 1;
                                if let Some(kept) = kept {
                                    kept.keep(asker.client.0, (id, name.as_str()), address, until);
                                }
                            }
                            Err(_) => counters.full += 1,
                        }
                    })?;
                }
            }
            Part::Query(_) | Part::Answer(_) => {}
        }
        Ok(())
    }
}

/// Returns the decision of a table with rules that name domains. `name` is the name by which the rule matched, `None` if the rule names no
/// domains.
fn named_decision(snapshot: &Snapshot, table: TableId, verdict: PolicyVerdict, name: Option<NameId>) -> Decision {
    let decision = snapshot.decision(table, verdict);
    Decision { by: name.map(Decider::Name).or(decision.by), ..decision }
}

impl Worker {
    /// Replaces the table of learned addresses by one that the worker shares with others.
    pub fn share_names(&mut self, learned: Arc<Learned>) {
        self.learning.learned = learned;
    }

    /// Writes the addresses that pods learn from now on to this file, too.
    #[cfg(target_os = "linux")]
    pub(crate) fn keep_names_in(&mut self, kept: Arc<KeptNames>) {
        self.learning.kept = Some(kept);
    }

    /// Returns the file of learned addresses. `None` if sessions are not kept in files.
    #[cfg(target_os = "linux")]
    pub(crate) const fn kept_names(&self) -> Option<&Arc<KeptNames>> {
        self.learning.kept.as_ref()
    }

    /// Returns the table of addresses that pods have learned, which all workers share.
    pub const fn learned(&self) -> &Arc<Learned> {
        &self.learning.learned
    }

    /// Returns the counts of DNS messages.
    pub const fn name_counters(&self) -> &NameCounters {
        &self.learning.counters
    }

    /// Judges a burst like [`Worker::judge_each`], and learns from the DNS answers in it. `names` are the snapshot's.
    #[cold]
    #[inline(never)]
    pub(super) fn judge_each_and_learn<const EXPLAIN: bool>(
        &mut self,
        burst: &mut Burst<'_>,
        times: Times<'_>,
        names: &Names,
    ) {
        for at in 0..burst.metas.len() {
            self.judge_next::<EXPLAIN, true>(burst, at, times);
            if self.may_be_dns(burst, at, names) {
                // Judges the packets before the answer without its addresses.
                self.settle_pending(burst);
                self.hear(burst, at, names);
            }
        }
    }

    /// Whether packet `at` may belong to a DNS conversation of a pod with rules that name domains. False if it surely does not.
    fn may_be_dns(&self, burst: &Burst<'_>, at: usize, names: &Names) -> bool {
        let Some(flow) = burst.flow(at) else { return false };
        if !matches!(flow.protocol, protocol::UDP | protocol::TCP) {
            return false;
        }
        if names.holder(burst.in_port(at)).is_some() && flow.dport == DNS {
            return true;
        }
        match burst.judged[at].verdict {
            Verdict::Forward(out) => names.holder(out).is_some(),
            // The packet may still wait for the classifier, as an answer does after a change of tables.
            Verdict::Drop(_) => !self.pending.is_empty(),
        }
    }

    /// Reads the DNS messages in packet `at`, if it is forwarded: opens the questions of queries, and stores the addresses of answers.
    fn hear(&mut self, burst: &Burst<'_>, at: usize, names: &Names) {
        let Verdict::Forward(out) = burst.judged[at].verdict else { return };
        if burst.judged[at].elsewhere.is_some() {
            return;
        }
        let Some(flow) = burst.flow(at) else { return };
        let Some(part) = names.part((burst.in_port(at), out), &flow, burst.sent(at).as_ref()) else { return };
        let (Part::Query(asker) | Part::Answer(asker)) = &part;
        let pod = match part {
            Part::Query(_) => burst.in_port(at),
            Part::Answer(_) => out,
        };
        let snapshot = burst.snapshot;
        let tables = snapshot.port(pod).map(|port| [port.named_table, port.named_audit]).unwrap_or_default();
        let tables = tables.map(|table| table.and_then(|table| snapshot.table(table)));
        let is_named = |name: &str| tables.iter().flatten().any(|table| table.names(name));
        let now = self.now.time;
        let Some(Data { bytes, is_whole, segment }) = burst.payload(at).and_then(|payload| payload.data()) else {
            self.learning.counters.incomplete += 1;
            return;
        };
        let learning = &mut self.learning;
        let mut faults = 0;
        let is_followed = match segment {
            None => {
                faults += u64::from(is_whole && learning.read(&part, bytes, names, is_named, now).is_err());
                is_whole
            }
            Some((seq, flags)) => {
                let segment = Segment { seq, flags, data: bytes, is_whole };
                learning.hear_segment(&part, asker, &segment, |learning, message| {
                    faults += u64::from(learning.read(&part, message, names, is_named, now).is_err());
                })
            }
        };
        learning.counters.malformed += faults;
        learning.counters.incomplete += u64::from(!is_followed);
    }
}

impl Learning {
    fn hear_segment(
        &mut self,
        part: &Part,
        asker: &Asker,
        segment: &Segment<'_>,
        mut each: impl FnMut(&mut Self, &[u8]),
    ) -> bool {
        let mut streams = std::mem::take(&mut self.streams);
        let is_query = matches!(part, Part::Query(_));
        let is_followed = streams.take(asker, is_query, segment, |message| each(self, message));
        self.streams = streams;
        is_followed
    }
}
