//! Learns from DNS answers to pods, and judges packets of pods with rules that name domains. See [`crate::names`].

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_classifier::{Key as PolicyKey, Tables, Verdict as PolicyVerdict, protocol};

use super::Worker;
use super::audit;
use super::column::Burst;
use super::exit::Bound;
use super::stages::Times;
use crate::names::{
    Added, Datagrams, Fault, Hellos, KeptNames, Learned, Message, NameCounters, NameId, Names, Part, Questions,
    Segment, Streams,
};
use crate::packet::{Data, Payload};
use crate::{Decider, Decision, PortConfig, PortId, PortKind, Snapshot, TableId};

/// The state with which a worker learns names.
#[derive(Debug, Default)]
pub(super) struct Learning {
    streams: Streams,
    datagrams: Datagrams,
    pub(super) hellos: Hellos,
    pub(super) reader: Reader,
}

/// The part of [`Learning`] that reads complete DNS messages.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The addresses that all workers have learned.
    learned: Arc<Learned>,
    /// The file in which learned addresses outlive the process. `None` if sessions are not kept in files.
    kept: Option<Arc<KeptNames>>,
    questions: Questions,
    /// The stored addresses of the current answer and their ends in nanoseconds since 1970, if `kept` is `Some`.
    stored: Vec<(IpAddr, u64)>,
    pub(super) counters: NameCounters,
}

/// A packet of a connection whose initiator has rules that name domains.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) snapshot: &'a Snapshot,
    /// The port that receives the connection's forward direction.
    pub(super) in_port: PortId,
    /// The port that sends the connection's forward direction.
    pub(super) out: PortId,
    pub(super) key: &'a PolicyKey,
    /// The name by which the packet's session was allowed, which counts even if its address has expired. `None` for a new session and for
    /// one that was not allowed by name.
    pub(super) kept: Option<NameId>,
    /// Nanoseconds since 1970.
    pub(super) now: u64,
}

/// The verdict of all tables about a packet.
#[derive(Clone, Copy)]
pub(super) struct Ruling {
    pub(super) is_allowed: bool,
    pub(super) decision: Decision,
    /// The decision of the audit table that denies. `None` if the packet is denied, or if no audit table denies.
    pub(super) denial: Option<Decision>,
}

/// The first matching rule in a table with rules that name domains.
struct FirstMatch<'a> {
    table: TableId,
    /// `None` if the snapshot lacks the table. No rule matches then.
    tables: Option<&'a Tables>,
    verdict: PolicyVerdict,
    /// The name by which the rule matched. `None` if the rule names no domains.
    name: Option<NameId>,
}

impl FirstMatch<'_> {
    /// Compares the rules that name this name of the destination with the first match so far.
    fn consider(&mut self, key: &PolicyKey, id: NameId, name: &str) {
        let verdict = self.tables.map_or(PolicyVerdict::NO_MATCH, |tables| tables.lookup_name(key, name));
        if verdict.precedes(self.verdict) {
            (self.verdict, self.name) = (verdict, Some(id));
        }
    }

    fn decision(&self, snapshot: &Snapshot) -> Decision {
        let decision = snapshot.decision(self.table, self.verdict);
        Decision { by: self.name.map(Decider::Name).or(decision.by), ..decision }
    }
}

impl Asked<'_> {
    /// Returns the verdict of the initiator's table with rules that name domains, as if `name` were the destination's only name. Without a
    /// name, only rules that name no domains match.
    pub(super) fn judge_as(&self, table: TableId, name: Option<&str>) -> PolicyVerdict {
        let Some(tables) = self.snapshot.table(table) else { return PolicyVerdict::NO_MATCH };
        let (first, named) = (tables.lookup(self.key), name.map(|name| tables.lookup_name(self.key, name)));
        named.filter(|named| named.precedes(first)).unwrap_or(first)
    }
}

impl Learning {
    /// Judges a packet for which the table of `bound`, the one without names, has returned `verdict`. The initiator's `named_table` must
    /// allow the packet, too.
    #[cold]
    #[inline(never)]
    pub(super) fn judge(&self, asked: &Asked<'_>, bound: Bound, verdict: PolicyVerdict) -> Ruling {
        let Asked { snapshot, in_port, out, key, .. } = *asked;
        let sender = snapshot.port(in_port);
        let of_sender = |table: fn(&PortConfig) -> Option<TableId>| {
            let table = sender.and_then(table)?;
            let tables = snapshot.table(table);
            let verdict = tables.map_or(PolicyVerdict::NO_MATCH, |tables| tables.lookup(key));
            Some(FirstMatch { table, tables, verdict, name: None })
        };
        let mut matches = [of_sender(|port| port.named_table), of_sender(|port| port.named_audit)];
        self.each_name(asked, |id, name| {
            matches.iter_mut().flatten().for_each(|first| first.consider(key, id, name));
        });
        let [named, audit] = matches;
        let by_sender = named.filter(|named| {
            // If both tables allow, the decision is that of the receiving pod's table. It is the initiator's if the receiver is no pod, or if
            // a name decided.
            let is_pods = snapshot.port(out).is_some_and(|port| port.kind == PortKind::Pod && port.ingress.is_none());
            !named.verdict.is_allow() || (verdict.is_allow() && (named.name.is_some() || !is_pods))
        });
        let (is_allowed, decision) = match by_sender {
            Some(named) => (named.verdict.is_allow(), named.decision(snapshot)),
            None => (verdict.is_allow(), snapshot.decision(bound.table, verdict)),
        };
        let denial = || {
            let by_sender = audit.filter(|audit| !audit.verdict.is_allow()).map(|audit| audit.decision(snapshot));
            by_sender.or_else(|| audit::denial(snapshot, bound.audit?, key))
        };
        Ruling { is_allowed, decision, denial: is_allowed.then(denial).flatten() }
    }

    /// Calls `each` with the names by which a packet's destination may match: that of its session, and all that the initiator has learned.
    fn each_name(&self, asked: &Asked<'_>, mut each: impl FnMut(NameId, &str)) {
        let learned = &self.reader.learned;
        // A session keeps its name as long as a rule names it, even if the pod has learned other names since.
        if let Some(id) = asked.kept {
            learned.with_name(id, |name| each(id, name));
        }
        if let Some(holder) = asked.snapshot.names().and_then(|names| names.holder(asked.in_port)) {
            learned.names_of(holder, asked.key.dst(), asked.now, each);
        }
    }

    /// Drops the questions and streams of holders that the snapshot does not have.
    pub(super) fn follow(&mut self, snapshot: &Snapshot) {
        let kept: ahash::AHashSet<_> = snapshot.names().into_iter().flat_map(Names::holders).collect();
        self.reader.questions.retain(|holder| kept.contains(&holder));
        self.streams.retain(|holder| kept.contains(&holder));
        self.datagrams.retain(|holder| kept.contains(&holder));
        self.hellos.retain(|holder| kept.contains(&holder));
    }
}

impl Reader {
    /// Reads a message of a conversation of the pod behind `port`: opens the question of a query, and stores the addresses of an answer.
    /// `is_named` returns whether the pod learns the addresses of a name, usually because one of its rules names it. `now` is in nanoseconds
    /// since 1970.
    ///
    /// # Errors
    /// If the message cannot be parsed. Its question stays open.
    fn read(
        &mut self,
        (part, port): (&Part, &str),
        message: &[u8],
        names: &Names,
        is_named: impl Fn(&str) -> bool,
        now: u64,
    ) -> Result<(), Fault> {
        let message = Message::parse(message)?;
        if message.is_response() == part.is_query {
            return Ok(());
        }
        let (asker, id, question) = (&part.asker, message.id(), message.question());
        let name = message.name()?;
        if !is_named(name.as_str()) {
            return Ok(());
        }
        if part.is_query {
            self.counters.queries += 1;
            self.questions.ask(asker, id, question, now);
            return Ok(());
        }
        if !self.questions.is_open(asker, id, question, now) {
            self.counters.unasked += 1;
            return Ok(());
        }
        let Self { learned, kept, counters, questions, stored } = self;
        if message.response_code() == 0 {
            let mut known = None;
            stored.clear();
            message.addresses(|address, ttl| {
                let until = names.until(now, ttl);
                match learned.learn(asker.holder, name.as_str(), address, now, until) {
                    Ok(name) => {
                        (counters.addresses, known) = (counters.addresses + 1, Some(name));
                        if kept.is_some() {
                            stored.push((address, until));
                        }
                    }
                    Err(_) => counters.full += 1,
                }
            })?;
            if let Some((kept, known)) = kept.as_ref().zip(known) {
                kept.keep((port, asker.client.0), (known, name.as_str()), stored);
            }
        }
        questions.close(asker, id, question);
        counters.answers += 1;
        Ok(())
    }
}

impl Worker {
    /// Replaces the table of learned addresses by one that the worker shares with others.
    pub fn share_names(&mut self, learned: Arc<Learned>) {
        self.learning.reader.learned = learned;
    }

    /// Writes the addresses that pods learn from now on to this file, too.
    #[cfg(target_os = "linux")]
    pub(crate) fn keep_names_in(&mut self, kept: Arc<KeptNames>) {
        self.learning.reader.kept = Some(kept);
    }

    /// Returns the file of learned addresses. `None` if sessions are not kept in files.
    #[cfg(target_os = "linux")]
    pub(crate) const fn kept_names(&self) -> Option<&Arc<KeptNames>> {
        self.learning.reader.kept.as_ref()
    }

    /// Returns the table of addresses that pods have learned, which all workers share.
    pub const fn learned(&self) -> &Arc<Learned> {
        &self.learning.reader.learned
    }

    /// Returns the counts of DNS messages.
    pub const fn name_counters(&self) -> &NameCounters {
        &self.learning.reader.counters
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
            if let Some(part) = self.dns_part(burst, at, names) {
                // Judges the packets before the answer without its addresses.
                self.settle_pending(burst);
                if burst.judged[at].verdict.out_port().is_some() {
                    self.hear(burst, at, &part, names);
                }
            }
            if self.may_be_hello(burst, at, names) {
                self.settle_pending(burst);
                self.check_server_name(burst, at, names);
            }
        }
    }

    /// Returns the place of packet `at` in a DNS conversation of a pod with rules that name domains, if the packet is forwarded or waits for
    /// the classifier. `None` for all other packets.
    fn dns_part(&self, burst: &Burst<'_>, at: usize, names: &Names) -> Option<Part> {
        let judged = &burst.judged[at];
        let (verdict, translation) = self.pending.last(at).unwrap_or((judged.verdict, judged.translation));
        let ports = (burst.in_port(at), verdict.out_port()?);
        names.holder(ports.0).or_else(|| names.holder(ports.1))?;
        names.part(ports, &burst.flow(at)?, burst.sent(translation).as_ref())
    }

    /// Reads the DNS messages in packet `at`, which is forwarded: opens the questions of queries, and stores the addresses of answers.
    fn hear(&mut self, burst: &Burst<'_>, at: usize, part: &Part, names: &Names) {
        let snapshot = burst.snapshot;
        let pod = if part.is_query { Some(burst.in_port(at)) } else { burst.judged[at].verdict.out_port() };
        let Some(port) = pod.and_then(|pod| snapshot.port(pod)) else { return };
        let tables = [port.named_table, port.named_audit].map(|table| table.and_then(|table| snapshot.table(table)));
        let is_named = |name: &str| names.learns_all() || tables.iter().flatten().any(|table| table.names(name));
        let Learning { streams, datagrams, reader, .. } = &mut self.learning;
        let reassembled;
        let payload = match burst.piece(at) {
            None => burst.payload(at),
            Some(piece) if !part.is_query && part.asker.protocol == protocol::UDP => {
                match datagrams.add(&part.asker, &piece) {
                    Added::Complete(datagram) => {
                        reassembled = datagram;
                        Some(Payload::of_datagram(&reassembled))
                    }
                    Added::Incomplete => return,
                    Added::Lost => None,
                }
            }
            Some(_) => None,
        };
        let Some(Data { bytes, is_whole, segment }) = payload.and_then(|payload| payload.data()) else {
            reader.counters.incomplete += 1;
            return;
        };
        let now = self.now.time;
        let mut read = |message: &[u8]| {
            let is_malformed = reader.read((part, &port.name), message, names, is_named, now).is_err();
            reader.counters.malformed += u64::from(is_malformed);
        };
        let is_followed = match segment {
            None => {
                if is_whole {
                    read(bytes);
                }
                is_whole
            }
            Some((seq, flags)) => {
                streams.take(&part.asker, part.is_query, &Segment { seq, flags, data: bytes, is_whole }, read)
            }
        };
        reader.counters.incomplete += u64::from(!is_followed);
    }
}
