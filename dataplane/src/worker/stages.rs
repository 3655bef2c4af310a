//! The pipeline's stages for a parsed burst: see the picture of [the worker](super).

use super::admission::Arrival;
use super::column::{Burst, Columns, Frames};
use super::{Worker, neighbours};
use crate::packet::{Body, Ip, Transport};
use crate::{BodyKind, DropReason, Packet, Snapshot};

/// Maximum number of expired sessions ended per burst: twice as many as a burst can create, so that the sweep keeps up, and few enough not
/// to delay the burst.
const SWEEP: usize = 2 * super::BURST;

/// The times of a burst's packets.
#[derive(Clone, Copy)]
pub(super) enum Times<'a> {
    One(u64),
    Each(&'a [Packet<'a>]),
}

impl Worker {
    /// Judges a parsed burst. `EXPLAIN` also records the decisions of hits.
    pub(super) fn run<const EXPLAIN: bool>(
        &mut self,
        snapshot: &Snapshot,
        columns: &mut Columns,
        frames: Frames<'_>,
        times: Times<'_>,
    ) {
        if let Times::One(time) = times {
            self.now.time = self.now.time.max(time);
        }
        self.sessions.sweep(self.now.time, SWEEP);
        if self.review_from.is_some() {
            self.review_sessions(snapshot);
        }
        #[expect(clippy::cast_possible_truncation, reason = "sessions keep the lower half")]
        let epochs = (self.epoch, self.services as u32);
        let mut burst = columns.burst(snapshot, epochs, frames);
        self.read_ahead(burst.metas);
        if let Some(names) = snapshot.names() {
            self.judge_each_and_learn::<EXPLAIN>(&mut burst, times, names);
        } else {
            self.judge_all::<EXPLAIN>(&mut burst, times);
        }
        self.settle_pending(&mut burst);
        if !self.audits.is_empty() {
            self.count_audits();
        }
        self.count(&burst);
    }

    fn judge_all<const EXPLAIN: bool>(&mut self, burst: &mut Burst<'_>, times: Times<'_>) {
        // Separate loops, because one that handles rewrites has fewer registers.
        match self.sessions.has_rewrites() {
            true => self.judge_each::<EXPLAIN, true>(burst, times),
            false => self.judge_each::<EXPLAIN, false>(burst, times),
        }
    }

    #[inline(never)]
    fn judge_each<const EXPLAIN: bool, const TRANSLATES: bool>(&mut self, burst: &mut Burst<'_>, times: Times<'_>) {
        for at in 0..burst.metas.len() {
            self.judge_next::<EXPLAIN, TRANSLATES>(burst, at, times);
        }
    }

    /// Judges packet `at` of a burst, which must be the one after the last judged packet.
    #[inline(always)]
    pub(super) fn judge_next<const EXPLAIN: bool, const TRANSLATES: bool>(
        &mut self,
        burst: &mut Burst<'_>,
        at: usize,
        times: Times<'_>,
    ) {
        if let Times::Each(packets) = times {
            self.now.time = self.now.time.max(packets[at].time);
        }
        self.now.number += 1;
        if !self.is_hit::<EXPLAIN, TRANSLATES>(burst, at) {
            self.judge_fully(burst, at);
        }
    }

    fn count(&mut self, burst: &Burst<'_>) {
        for (at, (meta, judged)) in burst.metas.iter().zip(burst.judged.iter()).enumerate() {
            // The worker that judges it counts it.
            if judged.elsewhere.is_some() {
                continue;
            }
            self.counters.count(meta.in_port, judged.verdict);
            if let Some(decision) = burst.decisions.get(at) {
                self.counters.decide(decision.origin, judged.verdict);
            }
        }
        self.counters.sessions = self.sessions.counts;
    }

    /// Judges a packet that missed the fast path. Not inlined into the loop over the burst, which needs its registers for hits.
    #[inline(never)]
    fn judge_fully(&mut self, burst: &mut Burst<'_>, at: usize) {
        burst.misses.push(at);
        if let Err(reason) = self.judge_one(burst, at) {
            burst.drop(at, reason);
        }
    }

    /// Judges one packet, or adds it to the packets that wait for the classifier.
    fn judge_one(&mut self, burst: &mut Burst<'_>, at: usize) -> Result<(), DropReason> {
        let meta = burst.metas[at];
        let arrival = Arrival::new(burst.snapshot, meta.in_port)?;
        let Some(general) = meta.general() else {
            // The port is known, and the MAC address was checked.
            let ip = meta.ip();
            burst.is(at, BodyKind::Ip);
            arrival.check_addresses(&ip.flow)?;
            return self.judge_packet(burst, at, &ip);
        };
        let parsed = burst.parsed[general];
        let body = parsed.body?;
        burst.is(at, kind(&body));
        arrival.check_mac(parsed.source_mac)?;
        let ip = match body {
            Body::Arp(arp) => {
                burst.forward(at, neighbours::forward_arp(&arrival, &arp)?);
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
            None => self.judge_packet(burst, at, &ip),
            Some(part) => self.judge_fragment(burst, at, &ip, part),
        }
    }

    pub(super) fn judge_packet(&mut self, burst: &mut Burst<'_>, at: usize, ip: &Ip) -> Result<(), DropReason> {
        match &ip.transport {
            Transport::IcmpRedirect => Err(DropReason::IcmpRedirect),
            Transport::IcmpError(embedded) => self.judge_error(burst, at, ip, embedded.as_ref()),
            _ => self.judge_conversation(burst, at, ip),
        }
    }

    /// Classifies the pending packets and applies the verdicts in packet order.
    pub(super) fn settle_pending(&mut self, burst: &mut Burst<'_>) {
        self.pending.settle(&mut self.sessions, burst, &self.learning, &mut self.audits);
    }
}

fn kind(body: &Body) -> BodyKind {
    match body {
        Body::Arp(_) => BodyKind::Arp,
        Body::Ip(Ip { transport: Transport::Neighbour(_), .. }) => BodyKind::Neighbour,
        Body::Ip(_) => BodyKind::Ip,
    }
}
