//! Connections that go on in the kernel from their SYN-ACK.
//!
//! A short connection ends before it is ever sampled among hits, so all of it would go through the workers. The SYN-ACK is the
//! first packet by which the way of both directions is known, and the only one at which nothing of the connection is under way:
//! the initiator waits for it, and the responder for the answer to it. So both directions are added before it is sent, without a latch.
//!
//! ```text
//!   initiator               worker                responder
//!      | SYN ---------------> judge -----------------> |
//!      | <------------------ judge, add both <- SYN-ACK |
//!      | ACK, data ==========  kernel  =============> |
//!      | <===================  kernel  ======== data |
//!      | FIN ---------------> judge -----------------> |    and whatever else has SYN, FIN or RST
//! ```
//!
//! **What a SYN-ACK proves.** That the responder is there and has taken this SYN: the worker has compared its acknowledgement number.
//! It does not prove that the initiator is where its address says. So the kernel forwards nothing of either direction until the
//! initiator sends the acknowledgement number that only the SYN-ACK has told; the rest is left to the worker as ever.
//!
//! **What the session learns.** The worker sees neither that segment nor what follows, and a session that nobody has
//! acknowledged ends after `tcp_new`. So the kernel remembers that the handshake has ended, and the worker asks for it twice: before the
//! flows of the opening ask to be renewed, and when none of them can be in use any more. If it has ended, the session is established,
//! and flows that are in use are renewed as any others.
//!
//! **What a flood costs.** Only the first SYN-ACK of a session adds flows, and each port that begins connections has an allowance.
//! Flows that nobody uses are the first ones that the kernel's map drops.

use std::collections::VecDeque;
use std::ops::Range;

use super::{About, Allowance, Caching};
use crate::io::{CachedFlow, FlowHandshake, FlowStart, HANDSHAKES, Initiator, RENEWED_IN_LAST, Translation};
use crate::worker::SessionKey;
use crate::{Flow, Judged, Received, Worker};

/// How long flows that are added with a SYN-ACK are good, 500 ms in nanoseconds: most short connections are over by then.
const LEASE: u64 = 500_000_000;

/// The handshake is asked for first when this part of the lease is left, before the flows ask to be renewed. Only flows of an established
/// session are renewed, and the segments of a bulk connection cannot establish it: they are too far ahead of its handshake by then.
const ASKED_IN_LAST: u64 = 4;
const _: () = assert!(ASKED_IN_LAST < RENEWED_IN_LAST);

/// How long after the lease the handshake is asked for once more, 250 ms in nanoseconds: more than a worker may be held up between
/// its look at the clock and the call that adds the flows.
const MARGIN: u64 = 250_000_000;

/// Both are at most these parts of the time that a session has for its handshake, so that it is asked for before that is up.
const LEASES_PER_TIMEOUT: u64 = 16;
const MARGINS_PER_TIMEOUT: u64 = 4;

/// How many connections that are begun on one port a worker adds within [`LEASE`]: a quarter of all handshakes. That is 32,000 a second, more than a
/// core can open through the workers.
const SHARE: u64 = HANDSHAKES as u64 / 4;

/// A connection whose handshake may end in the kernel.
#[derive(Clone, Copy, Debug)]
struct Opening {
    session: SessionKey,
    /// When its SYN-ACK came, when it is asked for first, and when once more.
    since: u64,
    asked: u64,
    due: u64,
}

/// The openings of a worker. Their handshakes are the worker's numbers in order, round and round.
#[derive(Debug)]
pub(super) struct Openings {
    numbers: Range<u32>,
    /// The number of the first one that waits.
    first: u32,
    /// The oldest first.
    waiting: VecDeque<Opening>,
    /// How many of them were asked for once.
    asked: usize,
    /// By port.
    allowances: Vec<Allowance>,
}

impl Openings {
    /// Those of one of so many workers.
    pub(super) fn new(worker: usize, workers: usize) -> Self {
        let each = HANDSHAKES / u32::try_from(workers).unwrap_or(HANDSHAKES).max(1);
        let first = each * u32::try_from(worker).unwrap_or(0);
        let numbers = first..first + each;
        Self { numbers, first, waiting: VecDeque::new(), asked: 0, allowances: Vec::new() }
    }

    pub(super) fn know_ports(&mut self, ports: usize) {
        if self.allowances.len() < ports {
            self.allowances.resize(ports, Allowance::full(SHARE));
        }
    }

    /// The number that the next opening gets; none while all are in use.
    fn next(&self) -> Option<FlowHandshake> {
        let waiting = self.waiting.len();
        if waiting < self.numbers.len() { self.number(waiting) } else { None }
    }

    /// The number of the one in this place.
    fn number(&self, at: usize) -> Option<FlowHandshake> {
        let offset = (self.first - self.numbers.start) as usize + at;
        let number = self.numbers.start + u32::try_from(offset % self.numbers.len()).ok()?;
        u16::try_from(number).ok().map(FlowHandshake)
    }

    /// The oldest one that was not asked for, when that is to be done by this time.
    fn ask_next(&mut self, now: u64) -> Option<(FlowHandshake, Opening)> {
        let opening = *self.waiting.get(self.asked).filter(|opening| opening.asked <= now)?;
        let number = self.number(self.asked)?;
        self.asked += 1;
        Some((number, opening))
    }

    /// The oldest one, when it is to be asked for once more by this time.
    fn take_due(&mut self, now: u64) -> Option<(FlowHandshake, Opening)> {
        let opening = *self.waiting.front().filter(|opening| opening.due <= now)?;
        let number = self.number(0)?;
        self.waiting.pop_front();
        self.asked = self.asked.saturating_sub(1);
        self.first = if self.first + 1 == self.numbers.end { self.numbers.start } else { self.first + 1 };
        Some((number, opening))
    }
}

impl Caching {
    /// Adds the connections whose SYN-ACKs are in a burst that was judged and not sent yet.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn open_connections<'a>(
        &mut self,
        about: &About<'_>,
        burst: impl Iterator<Item = (Received<'a>, &'a Judged)>,
    ) {
        let mut burst = burst.enumerate();
        for &opening in about.engine.openings() {
            // They are in order.
            let Some((_, (packet, judged))) = burst.find(|(at, _)| *at == opening) else { break };
            let flows = self.open_connection(about, &packet, judged);
            flows.iter().flatten().for_each(|flow| self.cache.add(flow));
        }
    }

    /// Both directions of the connection whose SYN-ACK this is.
    fn open_connection(
        &mut self,
        about: &About<'_>,
        packet: &Received<'_>,
        judged: &Judged,
    ) -> Option<[CachedFlow; 2]> {
        let (responder, initiator, out) = self.way(packet, judged).filter(|(from, to, _)| from != to)?;
        if !self.cache.reaches(responder) {
            return None;
        }
        let (back, translated) = (packet.in_port, about.engine.translated(judged));
        let (received, sent) = match translated {
            Some(translated) => (Some(translated.received()?), Some(translated.sent())),
            None => (None, None),
        };
        let opening = about.engine.opening(packet.frame, back)?;
        let way = about.forwarder.way(about.snapshot, (back, out), packet.frame, sent.as_ref())?;
        let way_back = about.forwarder.way_to(about.snapshot, out, back, opening.flow.src)?;
        let lease = LEASE.min(opening.timeout / LEASES_PER_TIMEOUT).min(way.good_for).min(way_back.good_for);
        let lease = lease.min(self.lease);
        let handshake = self.openings.next()?;
        if lease == 0 || !self.openings.allowances[out.index()].take(SHARE, LEASE, about.now) {
            return None;
        }
        self.cache.await_handshake(handshake, opening.acknowledgement);
        let asked = about.now + lease - lease / ASKED_IN_LAST;
        let due = about.now + lease + MARGIN.min(opening.timeout / MARGINS_PER_TIMEOUT);
        self.openings.waiting.push_back(Opening { session: opening.session, since: about.now, asked, due });
        let reply = CachedFlow {
            from: responder,
            to: initiator,
            flow: opening.flow,
            received: *packet.frame.first_chunk()?,
            sent: way.addresses,
            is_hop: way.is_hop,
            translation: sent,
            longest: u16::try_from(way.longest).unwrap_or(u16::MAX),
            origin: opening.origin,
            ports: [back, out],
            epochs: [back, out].map(|port| about.snapshot.epoch(port)),
            moves: [back, out].map(|port| self.moves_of(port)),
            lease,
            start: FlowStart::Handshake(handshake, Initiator::Destination),
        };
        let forward = CachedFlow {
            from: initiator,
            to: responder,
            flow: sent.map_or_else(|| turned(&opening.flow), |sent| turned(&with(&opening.flow, &sent))),
            // From whom the SYN-ACK goes to.
            received: swapped(way.addresses),
            sent: way_back.addresses,
            is_hop: way_back.is_hop,
            translation: received.map(|Translation { src, dst, sport, dport }| Translation {
                src: dst,
                dst: src,
                sport: dport,
                dport: sport,
            }),
            longest: u16::try_from(way_back.longest).unwrap_or(u16::MAX),
            ports: [out, back],
            epochs: [reply.epochs[1], reply.epochs[0]],
            moves: [reply.moves[1], reply.moves[0]],
            start: FlowStart::Handshake(handshake, Initiator::Source),
            ..reply
        };
        Some([reply, forward])
    }

    /// Tells the engine of handshakes that have ended in the kernel. To be called once a round, and at the end with a time
    /// when all are due.
    #[inline]
    pub(in super::super) fn end_handshakes(&mut self, engine: &mut Worker, due: u64, now: u64) {
        let Self { openings, cache, .. } = self;
        let asked = std::iter::from_fn(|| openings.ask_next(due).or_else(|| openings.take_due(due)));
        for (handshake, opening) in asked {
            if cache.has_ended(handshake) {
                engine.end_handshake(&opening.session, opening.since, now);
            }
        }
    }
}

/// The other direction.
fn turned(flow: &Flow) -> Flow {
    Flow { src: flow.dst, dst: flow.src, sport: flow.dport, dport: flow.sport, ..*flow }
}

/// With other addresses and ports.
fn with(flow: &Flow, &Translation { src, dst, sport, dport }: &Translation) -> Flow {
    Flow { src, dst, sport, dport, ..*flow }
}

/// MAC addresses of the other direction.
fn swapped(addresses: [u8; 12]) -> [u8; 12] {
    let mut swapped = addresses;
    swapped.rotate_left(6);
    swapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_have_numbers_of_their_own() {
        let [first, second, third] = [0, 1, 2].map(|worker| Openings::new(worker, 3).numbers);
        assert_eq!((first.start, first.end, second.end), (0, second.start, third.start));
        assert!(third.end <= HANDSHAKES);
    }
}
