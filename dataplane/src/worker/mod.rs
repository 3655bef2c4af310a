//! The worker: a burst of packets in, one outcome each out.
//!
//! **Purpose.** [`Worker::process`] runs the stages of the pipeline over a burst. A worker owns its sessions and
//! fragments; it shares nothing but the snapshot, takes no lock and, once its tables have grown, does not allocate.
//!
//! **Not its purpose.** It does not receive, send or rewrite frames, and it knows no clock: time is what the packets
//! say, made monotonic.
//!
//! ```text
//!   frames  ->  parse  ->  [column of parsed packets]
//!   each in order:
//!     port known? -> MAC -> ARP, neighbour discovery ------------------------------> forward to whom it concerns
//!                        -> martian? multicast? spoofed?
//!                        -> fragment: later ones share the first one's fate -------> forward or drop
//!                        -> session --hit, same generation-------------------------> forward, remember the time
//!                               |    |`refused, same generation ---------------------> drop
//!                               |    `hit, older generation -> route -\
//!                               `miss -> may it start one? -> route --+-> [pending] -> classify per table
//!                                                                            -> remember -> forward or drop
//! ```
//!
//! **Invariant.** Every outcome starts as a drop ([`DropReason::Unjudged`]) and every stage must earn the pass; the
//! counters always satisfy `received == forwarded + drops`; and a burst has the outcomes of its packets one by one.
//! For the last one the pending packets are classified early whenever a packet comes that may depend on one of them.

mod admission;
mod conversation;
mod exit;
mod neighbours;
mod pending;

use ahash::RandomState;

use crate::fragment::{DatagramKey, Fate, FragmentTable};
use crate::packet::{self, Body, Fragment, Ip, Parsed, Transport};
use crate::session::{Moment, SessionTable};
use crate::{
    Counters, Decision, DropReason, FragmentConfig, Outcome, Packet, PortId, SessionConfig, SessionState, Snapshot,
    Verdict,
};

use admission::Arrival;
use pending::Pending;

/// The most packets that are judged together: what VPP takes as one vector. More gains nothing, as the columns would
/// no longer fit the first cache level.
pub const BURST: usize = 256;

/// The most sessions that are ended per burst because their time is up. Twice what a burst can create, so that the
/// sweep keeps up, and few enough that no burst waits for it.
const SWEEP: usize = 2 * BURST;

/// How a worker is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerConfig {
    /// How sessions are kept.
    pub sessions: SessionConfig,
    /// How fragmented datagrams are remembered.
    pub fragments: FragmentConfig,
}

/// One engine with its own sessions and counters.
#[derive(Debug)]
pub struct Worker {
    tcp_pickup: bool,
    sessions: SessionTable,
    fragments: FragmentTable,
    counters: Counters,
    /// The latest time that a packet had, and how many there were. Captures may hold packets out of order; time never
    /// runs backwards.
    now: Moment,
    parsed: Vec<Parsed>,
    pending: Pending,
}

/// A burst on its way through the stages.
struct Burst<'a> {
    snapshot: &'a Snapshot,
    packets: &'a [Packet<'a>],
    parsed: &'a [Parsed],
    outcomes: &'a mut [Outcome],
}

impl Worker {
    /// A worker without sessions. Its hashes are keyed at random.
    pub fn new(config: WorkerConfig) -> Self {
        Self::with_hasher(config, &RandomState::new())
    }

    /// A worker whose hashes are the same in every run.
    #[cfg(test)]
    pub(crate) fn with_fixed_seed(config: WorkerConfig) -> Self {
        Self::with_hasher(config, &RandomState::with_seeds(1, 2, 3, 4))
    }

    fn with_hasher(config: WorkerConfig, hasher: &RandomState) -> Self {
        Self {
            tcp_pickup: config.sessions.tcp_pickup,
            sessions: SessionTable::new(config.sessions, hasher.clone()),
            fragments: FragmentTable::new(config.fragments, hasher.clone()),
            counters: Counters::default(),
            now: Moment::default(),
            parsed: Vec::with_capacity(BURST),
            pending: Pending::new(),
        }
    }

    /// Judges packets, in order, by one snapshot. `outcomes[i]` is what became of `packets[i]`.
    ///
    /// Sessions are tied to the generation: two snapshots with the same number must be the same.
    ///
    /// # Panics
    /// When the two slices differ in length.
    pub fn process(&mut self, snapshot: &Snapshot, packets: &[Packet<'_>], outcomes: &mut [Outcome]) {
        assert_eq!(packets.len(), outcomes.len(), "one outcome slot per packet");
        self.counters.know_ports(snapshot.ports().len());
        for (packets, outcomes) in packets.chunks(BURST).zip(outcomes.chunks_mut(BURST)) {
            let mut parsed = std::mem::take(&mut self.parsed);
            parsed.clear();
            parsed.extend(packets.iter().map(|packet| packet::parse(packet.link, packet.frame, packet.wire_len)));
            self.run(Burst { snapshot, packets, parsed: &parsed, outcomes });
            self.parsed = parsed;
        }
    }

    /// What was counted since the worker was made.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many sessions there are, those included whose time is up and that were not swept out yet.
    pub fn sessions_in_use(&self) -> usize {
        self.sessions.len()
    }

    /// Forgets all sessions and fragments, and what time it is; counters stay. Costs what was in use.
    pub fn clear(&mut self) {
        self.sessions.clear();
        self.fragments.clear();
        self.now = Moment::default();
    }

    fn run(&mut self, mut burst: Burst<'_>) {
        self.sessions.sweep(self.now.time, SWEEP);
        for (at, packet) in burst.packets.iter().enumerate() {
            self.now = Moment { time: self.now.time.max(packet.time), number: self.now.number + 1 };
            let flow = burst.parsed[at].flow;
            burst.outcomes[at] = Outcome { in_port: packet.in_port, flow, ..Outcome::UNJUDGED };
            if let Err(reason) = self.judge(&mut burst, at) {
                burst.outcomes[at].verdict = Verdict::Drop(reason);
            }
        }
        self.settle_pending(&mut burst);
        for outcome in burst.outcomes.iter() {
            self.counters.count(outcome);
        }
        self.counters.sessions = self.sessions.counts;
    }

    /// Judges one packet, or puts it among the pending ones.
    fn judge(&mut self, burst: &mut Burst<'_>, at: usize) -> Result<(), DropReason> {
        let (packet, parsed) = (&burst.packets[at], &burst.parsed[at]);
        let arrival = Arrival::new(burst.snapshot, packet.in_port)?;
        let body = match &parsed.body {
            Ok(body) => body,
            Err(reason) => return Err(*reason),
        };
        arrival.check_mac(parsed.source_mac)?;
        let ip = match body {
            Body::Arp(arp) => {
                burst.forward(at, neighbours::forward_arp(&arrival, arp)?);
                return Ok(());
            }
            Body::Ip(ip) => ip,
        };
        if let Transport::Neighbour(message) = ip.transport {
            burst.forward(at, neighbours::forward_neighbour(&arrival, message, &ip.flow)?);
            return Ok(());
        }
        arrival.check_addresses(&ip.flow)?;
        match ip.fragment {
            None => self.judge_packet(burst, at, ip),
            Some(part) => self.judge_fragment(burst, at, ip, part),
        }
    }

    fn judge_packet(&mut self, burst: &mut Burst<'_>, at: usize, ip: &Ip) -> Result<(), DropReason> {
        match &ip.transport {
            Transport::IcmpRedirect => Err(DropReason::IcmpRedirect),
            Transport::IcmpError(embedded) => self.judge_error(burst, at, ip, embedded.as_ref()),
            _ => self.judge_conversation(burst, at, ip),
        }
    }

    /// Fragments are judged one at a time: they are rare, and a later one depends on the first.
    fn judge_fragment(&mut self, burst: &mut Burst<'_>, at: usize, ip: &Ip, part: Fragment) -> Result<(), DropReason> {
        let generation = burst.snapshot.generation();
        let key = DatagramKey::of(ip, part, burst.packets[at].in_port);
        if !part.is_first() {
            let fate = self.fragments.inherit(&key, part, self.now.time)?;
            if fate.generation != generation {
                return Err(DropReason::FragmentWithoutFirst);
            }
            if let Verdict::Forward(out) = fate.verdict {
                exit::check_hop_limit(burst.snapshot, ip.hop_limit, out)?;
                burst.outcomes[at].session = Some(SessionState::Hit);
            }
            let outcome = &mut burst.outcomes[at];
            (outcome.verdict, outcome.decision) = (fate.verdict, fate.decision);
            if let Some(flow) = &mut outcome.flow {
                (flow.sport, flow.dport) = fate.transport_ports;
            }
            return Ok(());
        }
        self.fragments.begin(key, part, self.now.time)?;
        let judged = self.judge_packet(burst, at, ip);
        self.settle_pending(burst);
        let outcome = &mut burst.outcomes[at];
        if let Err(reason) = judged {
            outcome.verdict = Verdict::Drop(reason);
        }
        let transport_ports = (ip.flow.sport, ip.flow.dport);
        let fate = Fate { verdict: outcome.verdict, decision: outcome.decision, generation, transport_ports };
        self.fragments.settle(&key, fate);
        Ok(())
    }

    /// Classifies the pending packets and acts on the answers, in the packets' order.
    fn settle_pending(&mut self, burst: &mut Burst<'_>) {
        self.pending.settle(burst.snapshot, &mut self.sessions, burst.outcomes);
    }
}

impl Burst<'_> {
    /// The packet passes without policy and without a session.
    fn forward(&mut self, at: usize, out: PortId) {
        self.outcomes[at].verdict = Verdict::Forward(out);
    }

    /// The packet is allowed as part of a session.
    fn allow(&mut self, at: usize, verdict: Verdict, decision: Decision, session: SessionState) {
        let outcome = &mut self.outcomes[at];
        outcome.verdict = verdict;
        outcome.decision = Some(decision);
        outcome.session = Some(session);
    }
}

#[cfg(test)]
mod tests;
