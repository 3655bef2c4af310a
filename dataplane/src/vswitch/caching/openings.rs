//! TCP connections that the kernel forwards from their SYN-ACK on.
//!
//! A short connection ends before it is sampled, so all of its packets would pass through the workers. At the SYN-ACK both directions are
//! known, and no other packet is in flight: the initiator waits for the SYN-ACK, and the responder for the answer. So both directions are
//! added before the SYN-ACK is sent, without a latch.
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
//! **What a SYN-ACK proves.** The responder exists and accepted this SYN, because the worker checked the acknowledgement number. It does
//! not prove the initiator's address. So the kernel forwards neither direction until the initiator sends the acknowledgement number that
//! only the SYN-ACK's receiver knows. Until then packets go to the worker.
//!
//! **Session state.** The worker sees neither that segment nor the following ones, and an unacknowledged session expires after `tcp_new`.
//! So the kernel records that the handshake has ended, and the worker asks for it twice: before the opening's flows ask for renewal, and
//! when none of them can be in use any more. If the handshake has ended, the session becomes established and its flows are renewed
//! normally.
//!
//! **Floods.** Only the first SYN-ACK of a session adds flows, and each initiating port has an allowance. The kernel's map evicts unused
//! flows first.

use std::collections::VecDeque;
use std::ops::Range;

use super::{About, Allowance, Caching};
use crate::io::{CachedFlow, FlowHandshake, FlowStart, HANDSHAKES, Initiator, RENEWED_IN_LAST, Translation};
use crate::worker::SessionKey;
use crate::{Flow, Judged, Received, Worker};

/// Lease of flows added with a SYN-ACK, 500 ms in nanoseconds. Most short connections end within it.
const LEASE: u64 = 500_000_000;

/// The worker first asks the cache whether the handshake has ended when this fraction of the lease (1/n) is left, before the flows ask for
/// renewal. Only flows of established sessions are renewed, and later segments of a bulk connection cannot establish the session, because
/// they are too far beyond the handshake.
const ASKED_IN_LAST: u64 = 4;
const _: () = assert!(ASKED_IN_LAST < RENEWED_IN_LAST);

/// Time from the end of the lease until the worker asks the cache again, 250 ms in nanoseconds. A worker is never delayed so long between
/// reading the clock and adding the flows.
const MARGIN: u64 = 250_000_000;

/// Lease and margin are at most these fractions (1/n) of the handshake timeout, so that the worker asks before it ends.
const LEASES_PER_TIMEOUT: u64 = 16;
const MARGINS_PER_TIMEOUT: u64 = 4;

/// Connections of one initiating port that a worker adds within [`LEASE`]: a quarter of all handshakes, or 32,000 a second, more than a
/// core can open.
const SHARE: u64 = HANDSHAKES as u64 / 4;

/// A connection whose handshake may end in the kernel.
#[derive(Clone, Copy, Debug)]
struct Opening {
    session: SessionKey,
    /// Time of the SYN-ACK, of the first query and of the last query, in nanoseconds.
    since: u64,
    asked: u64,
    due: u64,
}

/// A worker's openings. Handshake numbers are assigned in order and wrap around.
#[derive(Debug)]
pub(super) struct Openings {
    numbers: Range<u32>,
    /// Number of the oldest opening in `waiting`.
    first: u32,
    /// Connections whose handshake has not been reported to the engine, oldest first.
    waiting: VecDeque<Opening>,
    /// Number of openings in `waiting`, from the oldest on, whose first query is done.
    asked: usize,
    /// The budget of added connections for each initiating port, indexed by port id.
    allowances: Vec<Allowance>,
}

impl Openings {
    /// Creates the empty openings of worker `worker`, from 0, of a vswitch with `workers` workers.
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

    /// Returns the number for the next opening. `None` if all are in use.
    fn next(&self) -> Option<FlowHandshake> {
        let waiting = self.waiting.len();
        if waiting < self.numbers.len() { self.number(waiting) } else { None }
    }

    /// Returns the number of the opening at this position.
    fn number(&self, at: usize) -> Option<FlowHandshake> {
        let offset = (self.first - self.numbers.start) as usize + at;
        let number = self.numbers.start + u32::try_from(offset % self.numbers.len()).ok()?;
        u16::try_from(number).ok().map(FlowHandshake)
    }

    /// Returns the oldest opening whose first query is due at `now`. `None` if none is due.
    fn ask_next(&mut self, now: u64) -> Option<(FlowHandshake, Opening)> {
        let opening = *self.waiting.get(self.asked).filter(|opening| opening.asked <= now)?;
        let number = self.number(self.asked)?;
        self.asked += 1;
        Some((number, opening))
    }

    /// Removes and returns the oldest opening whose last query is due at `now`. `None` if none is due.
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
    /// Adds the connections of a burst's SYN-ACKs. The burst must be judged but not sent.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn open_connections<'a>(
        &mut self,
        about: &About<'_>,
        burst: impl Iterator<Item = (Received<'a>, &'a Judged)>,
    ) {
        let mut burst = burst.enumerate();
        for &opening in about.engine.openings() {
            // Openings are in ascending order.
            let Some((_, (packet, judged))) = burst.find(|(at, _)| *at == opening) else { break };
            let flows = self.open_connection(about, &packet, judged);
            flows.iter().flatten().for_each(|flow| self.cache.add(flow));
        }
    }

    /// Returns the flows of both directions for a SYN-ACK. `None` if the connection cannot be cached.
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
            timeout: opening.established,
            start: FlowStart::Handshake(handshake, Initiator::Destination),
        };
        let forward = CachedFlow {
            from: initiator,
            to: responder,
            flow: sent.map_or_else(|| turned(&opening.flow), |sent| turned(&with(&opening.flow, &sent))),
            // The frame's source is the next hop of the SYN-ACK.
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

    /// Reports to the engine which handshakes have ended in the kernel. Call it once per round, and at the end with the maximal `due`.
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

/// Returns the flow of the opposite direction.
fn turned(flow: &Flow) -> Flow {
    Flow { src: flow.dst, dst: flow.src, sport: flow.dport, dport: flow.sport, ..*flow }
}

/// Returns the flow with the addresses and ports of the translation.
fn with(flow: &Flow, &Translation { src, dst, sport, dport }: &Translation) -> Flow {
    Flow { src, dst, sport, dport, ..*flow }
}

/// Swaps destination and source MAC address.
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
