//! TCP connections that the kernel forwards from their SYN or SYN-ACK on.
//!
//! A short connection ends before it is sampled, so all of its packets would pass through the workers. At the SYN both directions are known,
//! and no other packet is in flight: the initiator waits for the SYN-ACK, and the responder for the answer. So both directions are added
//! before the SYN is sent, without a latch.
//!
//! ```text
//!   initiator               worker                responder
//!      | SYN ----------> judge, add both ------------> |
//!      | <===================  kernel  ===== SYN-ACK  |
//!      | ACK, data ==========  kernel  =============> |
//!      | <===================  kernel  ======== data |
//!      | FIN ================  kernel  =============> |    the first FIN of each side, within the lease of the opening
//!      | FIN, RST, SYN -------> judge ---------------> |    all others
//! ```
//!
//! A cache that forwards no SYN-ACKs ([`FlowCache::forwards_answers`](crate::io::FlowCache::forwards_answers)) gets the connection at its
//! SYN-ACK. So does one whose entry did not fit the SYN-ACK, for example because a router answers from another MAC address.
//!
//! **What a SYN-ACK proves.** The responder exists and accepted this SYN, because the worker or the cache checked the acknowledgement
//! number. It does not prove the initiator's address. So the kernel forwards neither direction until the initiator sends the acknowledgement
//! number that only the SYN-ACK's receiver knows. Until then packets go to the worker.
//!
//! **Session state.** The worker sees none of these segments, and an unacknowledged session expires after `tcp_new`. So the kernel records
//! the steps ([`FlowSteps`]), and the worker asks for them: before the opening's flows ask for renewal, when none of them can be in use any
//! more, and before it judges a SYN, FIN or reset of the connection. So a client that reuses its port within the lease gets a new session.
//!
//! **Why not a cache of verdicts** in the kernel, which would let a known client's next SYN pass at once: the kernel would have to make the
//! session's flows, and a worker to end a connection that it would have refused, for a full table or a share. That is a second judge. It
//! would save one more packet of a connection's nine.
//!
//! **Floods.** Only a SYN that made or repeated a session and its first SYN-ACK add flows, and each initiating port has an allowance. The
//! kernel's map evicts unused flows first.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use ahash::RandomState;

use super::{About, Allowance, Caching};
use crate::io::{
    CachedFlow, FlowHandshake, FlowLatch, FlowStart, FlowSteps, HANDSHAKES, Initiator, RENEWED_IN_LAST, Translation,
};
use crate::session::Slot;
use crate::worker::Opened;
use crate::{Flow, Judged, PortId, Received, SessionState, Worker};

/// Lease of flows added with a SYN or SYN-ACK, 500 ms in nanoseconds. Most short connections end within it.
const LEASE: u64 = 500_000_000;

/// The worker first asks the cache for the connection's steps when this fraction of the lease (1/n) is left, before the flows ask for
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
    /// `None` if the connection is over, or has a newer opening.
    session: Option<Opened>,
    /// Time of the SYN or SYN-ACK, of the first query and of the last query, in nanoseconds.
    since: u64,
    asked: u64,
    due: u64,
}

impl Opening {
    /// Brings the connection's session up to date. Returns false if the session has ended.
    fn follow(&self, engine: &mut Worker, steps: &FlowSteps, now: u64) -> bool {
        self.session.is_some_and(|session| engine.follow_steps(&session, steps, self.since, now))
    }
}

/// A worker's openings. Handshake numbers are assigned in order and wrap around.
#[derive(Debug)]
pub(super) struct Openings {
    numbers: Range<u32>,
    /// Number of the oldest opening in `waiting`.
    first: u32,
    /// Connections whose last query is still due, oldest first.
    waiting: VecDeque<Opening>,
    /// The numbers of the waiting openings that have a session, by its slot.
    of_slots: HashMap<Slot, FlowHandshake, RandomState>,
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
        Self {
            numbers,
            first,
            waiting: VecDeque::new(),
            of_slots: HashMap::default(),
            asked: 0,
            allowances: Vec::new(),
        }
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

    /// Whether the port may start one more connection now.
    fn may_start(&mut self, port: PortId, now: u64) -> bool {
        self.allowances[port.index()].take(SHARE, LEASE, now)
    }

    /// Adds an opening with the number from [`next`](Self::next). It replaces an earlier one of the same session.
    fn add(&mut self, number: FlowHandshake, opening: Opening) {
        self.waiting.push_back(opening);
        let earlier = opening.session.and_then(|session| self.of_slots.insert(session.slot, number));
        if let Some(earlier) = earlier {
            self.waiting_with(earlier).session = None;
        }
    }

    /// Returns the waiting opening with this number.
    fn waiting_with(&mut self, number: FlowHandshake) -> &mut Opening {
        let (number, count) = (u32::from(number.0), self.numbers.end - self.numbers.start);
        &mut self.waiting[((number + count - self.first) % count) as usize]
    }

    /// Returns the opening of the session in a slot, and its number. `None` if there is none.
    fn of_slot(&mut self, slot: Slot) -> Option<(FlowHandshake, Opening)> {
        let number = *self.of_slots.get(&slot)?;
        Some((number, *self.waiting_with(number)))
    }

    /// Forgets the connection of the opening of the session in a slot.
    fn forget(&mut self, slot: Slot) {
        if let Some(number) = self.of_slots.remove(&slot) {
            self.waiting_with(number).session = None;
        }
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
        if let Some(session) = opening.session {
            self.of_slots.remove(&session.slot);
        }
        self.waiting.pop_front();
        self.asked = self.asked.saturating_sub(1);
        self.first = if self.first + 1 == self.numbers.end { self.numbers.start } else { self.first + 1 };
        Some((number, opening))
    }
}

impl Caching {
    /// Adds the connections of a burst's SYNs and SYN-ACKs. The burst must be judged but not sent.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn open_connections<'a>(
        &mut self,
        about: &About<'_>,
        burst: impl Iterator<Item = (Received<'a>, &'a Judged)>,
    ) {
        let mut hits = about.engine.openings().iter().copied().peekable();
        for (at, (packet, judged)) in burst.enumerate() {
            // Openings are in ascending order.
            if hits.next_if_eq(&at).is_some() || judged.session == Some(SessionState::New) {
                let flows = self.open_connection(about, &packet, judged).unwrap_or_default();
                flows.iter().flatten().for_each(|flow| self.cache.add(flow));
            }
        }
    }

    /// Returns the flows of both directions for a SYN or SYN-ACK. `None` if the connection cannot be cached.
    ///
    /// If workers must see all packets of a connection through a shared uplink, only the flow of the answers is returned, without a lease: the
    /// programs then send the answers to a worker instead of the node's kernel, which has not seen the SYN.
    ///
    /// If the server name is not compared yet, both flows have no lease. They replace those of an earlier connection with the same ports, by
    /// which the programs would forward the name unread.
    fn open_connection(
        &mut self,
        about: &About<'_>,
        packet: &Received<'_>,
        judged: &Judged,
    ) -> Option<[Option<CachedFlow>; 2]> {
        let (from, to, out) = self.way(packet, judged).filter(|(from, to, _)| from != to)?;
        if !self.cache.reaches(from) {
            return None;
        }
        let (in_port, translated) = (packet.in_port, about.engine.translated(judged));
        let (received, sent) = match translated {
            Some(translated) => (Some(translated.received()?), Some(translated.sent())),
            None => (None, None),
        };
        let opening = about.engine.opening(packet.frame, in_port)?;
        let (starter, opposite) = match opening.initiator {
            Initiator::Source if !self.cache.forwards_answers() && !opening.is_unchecked => return None,
            Initiator::Source => (in_port, Initiator::Destination),
            Initiator::Destination => (out, Initiator::Source),
        };
        let way = about.forwarder.way(about.snapshot, (in_port, out), packet.frame, sent.as_ref())?;
        let way_back = about.forwarder.way_to(about.snapshot, out, in_port, opening.flow.src)?;
        let lease = LEASE.min(opening.timeout / LEASES_PER_TIMEOUT).min(way.good_for).min(way_back.good_for);
        let lease = lease.min(self.lease);
        // Without a lease, the latch does not matter.
        let start = FlowStart::Latch(FlowLatch(opening.flow.sport));
        let own = CachedFlow {
            from,
            to,
            flow: opening.flow,
            received: *packet.frame.first_chunk()?,
            sent: way.addresses,
            is_hop: way.is_hop,
            translation: sent,
            longest: u16::try_from(way.longest).unwrap_or(u16::MAX),
            origin: opening.origin,
            ports: [in_port, out],
            epochs: [in_port, out].map(|port| about.snapshot.epoch(port)),
            moves: [in_port, out].map(|port| self.moves_of(port)),
            lease,
            timeout: opening.established,
            start,
        };
        let other = CachedFlow {
            from: to,
            to: from,
            flow: sent.map_or_else(|| turned(&opening.flow), |sent| turned(&with(&opening.flow, &sent))),
            // The frame's source is the next hop of this packet.
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
            ports: [out, in_port],
            epochs: [own.epochs[1], own.epochs[0]],
            moves: [own.moves[1], own.moves[0]],
            ..own
        };
        let flows = [own, other];
        if opening.is_unchecked {
            return Some(flows.map(|flow| Some(CachedFlow { lease: 0, timeout: 0, ..flow })));
        }
        let is_kept = |flow: &CachedFlow| {
            about.keeps_from_cache(about.snapshot, flow.ports, || Some(flow.flow), flow.translation.as_ref())
        };
        if flows.iter().any(is_kept) {
            let is_shared = opposite == Initiator::Destination && about.snapshot.shared_uplink() == Some(out);
            return is_shared.then_some([None, Some(CachedFlow { lease: 0, ..other })]);
        }
        let handshake = self.openings.next()?;
        if lease == 0 || !self.openings.may_start(starter, about.now) {
            return None;
        }
        self.cache.await_handshake(handshake, opening.numbers);
        let asked = about.now + lease - lease / ASKED_IN_LAST;
        let due = about.now + lease + MARGIN.min(opening.timeout / MARGINS_PER_TIMEOUT);
        self.openings.add(handshake, Opening { session: Some(opening.session), since: about.now, asked, due });
        let sides = [(own, opening.initiator), (other, opposite)];
        Some(sides.map(|(flow, side)| Some(CachedFlow { start: FlowStart::Handshake(handshake, side), ..flow })))
    }

    /// Reports to the engine what the kernel has forwarded of connections that are due. Call it once per round.
    #[inline]
    pub(in super::super) fn follow_due(&mut self, engine: &mut Worker, now: u64) {
        let Self { openings, cache, .. } = self;
        let due = std::iter::from_fn(|| openings.ask_next(now).or_else(|| openings.take_due(now)));
        for (handshake, opening) in due {
            opening.follow(engine, &cache.steps(handshake), now);
        }
    }

    /// Reports to the engine what the kernel has forwarded of all connections. Call it before sessions end with their pod, so that the
    /// other ends' sequence numbers are known, and at the end.
    pub(in super::super) fn follow_all(&mut self, engine: &mut Worker, now: u64) {
        let Self { openings, cache, .. } = self;
        for (at, opening) in openings.waiting.iter().enumerate() {
            if let Some(handshake) = openings.number(at) {
                opening.follow(engine, &cache.steps(handshake), now);
            }
        }
    }

    /// Reports to the engine what the kernel has forwarded of the connections whose SYNs, FINs and resets are in a burst. Call it before the
    /// burst is judged.
    #[inline]
    pub(in super::super) fn catch_up<'a>(
        &mut self,
        engine: &mut Worker,
        burst: impl Iterator<Item = Received<'a>>,
        now: u64,
    ) {
        if self.openings.of_slots.is_empty() {
            return;
        }
        for packet in burst {
            let Some((slot, opens)) = engine.controlled(packet.frame) else { continue };
            let Some((handshake, opening)) = self.openings.of_slot(slot) else { continue };
            let is_alive = opening.follow(engine, &self.cache.steps(handshake), now);
            if opens || !is_alive {
                // The SYN begins the next connection with these ports, or changes nothing.
                self.openings.forget(slot);
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
