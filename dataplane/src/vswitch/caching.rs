//! Which flows go into the flow cache.
//!
//! Some hits of each burst are sampled. Flows in the cache do not come any more, so what comes is what is not in there, and
//! the busiest of it is sampled most: no count per flow is needed to find the flows that are worth it.
//!
//! A flow that is in use asks to be renewed before its lease ends, with a copy of a packet. The worker judges the copy and renews the
//! flow, none of whose packets it forwards itself.
//!
//! A TCP connection is added whole, with its SYN-ACK (`openings.rs`): a short one would be over before it is sampled.
//!
//! A latch is opened when a round has sent everything that was in the ports' queues when it began, and nothing of the flow has come
//! for long enough that nothing is left that could be overtaken. See [`crate::io::FlowCache`].
//!
//! A flow through the uplink depends on a neighbour that may move: then all flows of the uplink end
//! ([`FlowCache::moved`]), and a neighbour that has not answered for a while gets no flows.

mod openings;

use std::sync::Arc;
use std::time::Duration;

use openings::Openings;

use super::stage::Chain;
use super::stream::StreamWriter;
use crate::forward::Forwarder;
use crate::io::{CachedFlow, FlowCache, FlowLatch, FlowSlot, FlowStart, RENEWED_IN_LAST, Translation};
use crate::translations::Translated;
use crate::{Judged, PortId, Received, SessionState, Snapshot, Worker};

/// Hits of a burst that are sampled, and so the system calls (1.3 to 1.7 us each) that a burst can cost: a twentieth
/// of the time that a full burst takes to be sent.
const SAMPLES: usize = 8;

/// Flows that are remembered to have been added just now.
const RECENT: usize = 1 << 10;

/// A flow is not added again for this long, 10 ms in nanoseconds: its packets that are still under way through the worker,
/// and those that the cache leaves to the worker whatever it knows, would cost a system call each.
const PAUSE: u64 = 10_000_000;

/// Latches that are watched until they can be opened; beyond that a latch is opened at once. More than are added in the
/// [`LONGEST_WAIT`] of a worker that has its hands full.
const MOST_LATCHED: usize = 1 << 12;

/// A packet that was counted at a latch is in a port's queue at the end of the kernel's poll of that interface, which takes 64
/// packets at the most. When the count has been the same for this long, 80 us in nanoseconds, a round finds all of them: bursts
/// of 16 were then never overtaken in some 300 changes, and without the pause in a few. Less than a worker's patience, so that it
/// does not go to sleep before.
const QUIET: u64 = 80_000;

/// Where packets change hands they may besides be under way between two workers: 1 ms in nanoseconds. A lane is looked at in every round,
/// and to send a full burst takes a quarter of that.
const QUIET_LANES: u64 = 1_000_000;

/// A flow that is never quiet for so long is not waited for longer than this, 5 ms in nanoseconds: then a round that has sent
/// all that it found is enough. What the kernel's poll or a lane still had may be overtaken, once. All requests that a program makes
/// meanwhile, one after the other, go through the worker: they must be fewer than one in a hundred of those that are made in a second.
const WAIT: u64 = 5_000_000;

/// After this long, 100 ms in nanoseconds, a latch is opened in any case. A worker that has not caught up until then loses
/// packets, which is worse than some that change places, once.
const LONGEST_WAIT: u64 = 100_000_000;

/// How many flows that come in on one port a worker adds or renews within the longest lease, less its part in which flows are renewed: a
/// quarter of what the kernel keeps. So no port takes the others' places, however many sessions it has; what is beyond goes through the
/// workers.
const SHARE: u64 = 1 << 14;

/// What a port may still add: as much as its share at once, and as much again within a certain time.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: u64,
    /// When it was made up last, in nanoseconds.
    at: u64,
}

impl Allowance {
    const fn full(share: u64) -> Self {
        Self { left: share, at: 0 }
    }

    /// Takes one, if there is one at this time. `within` is the time of a share, in nanoseconds.
    fn take(&mut self, share: u64, within: u64, now: u64) -> bool {
        let each = (within / share).max(1);
        let gained = now.saturating_sub(self.at) / each;
        if gained > 0 {
            self.left = self.left.saturating_add(gained).min(share);
            self.at = if self.left == share { now } else { self.at + gained * each };
        }
        let has_one = self.left > 0;
        self.left -= u64::from(has_one);
        has_one
    }
}

/// A flow that was added, and whose latch is still closed.
#[derive(Clone, Copy, Debug)]
struct LatchedFlow {
    latch: FlowLatch,
    since: u64,
    /// How many had passed it at the beginning of the round, and since which round they are so many; none before the first.
    passed: u64,
    quiet_since: Option<u64>,
    /// Whether its packets may change hands.
    is_shared: bool,
}

/// The part of a worker that fills a flow cache.
#[derive(Debug)]
pub(super) struct Caching {
    cache: Arc<dyn FlowCache>,
    /// The longest lease, in nanoseconds.
    lease: u64,
    /// Whether there is no other worker.
    is_alone: bool,
    latched: Vec<LatchedFlow>,
    /// By port: its slot, and whether the kernel has chosen the worker of what comes in there.
    slots: Vec<Option<FlowSlot>>,
    is_steered: Vec<bool>,
    /// By port.
    allowances: Vec<Allowance>,
    openings: Openings,
    /// By a flow's hash: which one, and when it was added.
    recent: Vec<(u64, u64)>,
    /// Which packet of the burst is sampled first.
    turn: usize,
    /// How often each port's flows were ended, and flows in all, before the round's snapshot was read.
    moves: Vec<u16>,
    endings: Option<u64>,
}

/// The way of a flow's packets.
#[derive(Clone, Copy, Debug)]
struct FlowWay {
    from: FlowSlot,
    to: FlowSlot,
    out: PortId,
    translation: Option<Translation>,
}

/// What a burst was judged and is sent by.
pub(super) struct About<'a> {
    pub(super) engine: &'a Worker,
    pub(super) forwarder: &'a Forwarder<Chain>,
    pub(super) snapshot: &'a Snapshot,
    pub(super) now: u64,
    /// What may want to see all packets of some flows.
    pub(super) stream: Option<&'a StreamWriter>,
}

impl Caching {
    /// The part of one of so many workers.
    pub(super) fn new(cache: Arc<dyn FlowCache>, lease: Duration, worker: usize, workers: usize) -> Self {
        let lease = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        let (slots, recent, latched) = (Vec::new(), vec![(0, 0); RECENT], Vec::new());
        Self {
            cache,
            lease,
            is_alone: workers == 1,
            latched,
            slots,
            is_steered: Vec::new(),
            allowances: Vec::new(),
            openings: Openings::new(worker, workers),
            recent,
            turn: 0,
            moves: Vec::new(),
            endings: None,
        }
    }

    /// To be called before a round's snapshot is read: what ends flows comes behind the snapshot for whose sake they end.
    #[inline]
    pub(super) fn read_moves(&mut self) {
        let endings = Some(self.cache.endings());
        if self.endings != endings {
            self.endings = endings;
            let cache = &self.cache;
            self.moves.clear();
            self.moves.extend((0..).map(PortId).zip(&self.slots).map(|(port, slot)| match slot {
                Some(_) => cache.moves(port),
                None => 0,
            }));
        }
    }

    /// To be called before a round samples at neighbours and receives, with its time.
    #[inline]
    pub(super) fn begin(&mut self, now: u64) {
        for latched in &mut self.latched {
            let passed = self.cache.passed(latched.latch);
            if latched.quiet_since.is_none() || passed != latched.passed {
                (latched.passed, latched.quiet_since) = (passed, Some(now));
            }
        }
    }

    /// To be called when a round has sent. `is_done` says that it has received and sent all that had come before it began.
    #[inline]
    pub(super) fn end(&mut self, is_done: impl FnOnce() -> bool, now: u64) {
        if !self.latched.is_empty() {
            self.open_latches(is_done(), now);
        }
    }

    #[cold]
    #[inline(never)]
    fn open_latches(&mut self, is_done: bool, now: u64) {
        let Self { cache, latched, .. } = self;
        latched.retain(|latched| {
            let Some(quiet_since) = latched.quiet_since else { return true };
            let (quiet, age) = (now.saturating_sub(quiet_since), now.saturating_sub(latched.since));
            let enough = if latched.is_shared { QUIET_LANES } else { QUIET };
            let is_clear = is_done && (quiet >= enough || age >= WAIT);
            let is_open = (is_clear && cache.open(latched.latch, Some(latched.passed)))
                || (age >= LONGEST_WAIT && cache.open(latched.latch, None));
            !is_open
        });
    }

    fn watch(&mut self, latch: FlowLatch, is_shared: bool, now: u64) {
        if self.latched.len() == MOST_LATCHED {
            self.cache.open(latch, None);
            return;
        }
        self.latched.push(LatchedFlow { latch, since: now, passed: 0, quiet_since: None, is_shared });
    }

    /// A port has this place in the cache, or none. `is_steered` says whether the kernel gives what comes in there to the worker that has
    /// its sessions.
    pub(super) fn know(&mut self, port: PortId, slot: Option<FlowSlot>, is_steered: bool) {
        self.endings = None;
        let at = port.index();
        if self.slots.len() <= at {
            self.slots.resize(at + 1, None);
            self.is_steered.resize(at + 1, false);
            self.allowances.resize(at + 1, Allowance::full(SHARE));
            self.openings.know_ports(at + 1);
        }
        (self.slots[at], self.is_steered[at]) = (slot, is_steered);
    }

    /// Adds flows of a burst that was judged; its frames are as they came. A function of its own: a worker without a cache should not have
    /// it in its loop.
    #[cold]
    #[inline(never)]
    pub(super) fn offer<'a>(
        &mut self,
        about: &About<'_>,
        burst: impl ExactSizeIterator<Item = (Received<'a>, &'a Judged)> + Clone,
    ) {
        let len = burst.len();
        self.turn = if self.turn + SAMPLES < len { self.turn + SAMPLES } else { 0 };
        let mut samples = SAMPLES;
        for (packet, judged) in burst.clone().skip(self.turn).chain(burst.take(self.turn)) {
            let Some(way) = self.flow_way(about, &packet, judged) else { continue };
            if let Some((flow, latch)) = self.flow(about, &packet, way) {
                self.cache.add(&flow);
                // Sessions to Services may be another worker's than the packet's own addresses say.
                let is_own = self.is_steered[packet.in_port.index()] && flow.translation.is_none();
                self.watch(latch, !self.is_alone && !is_own, about.now);
            }
            samples -= 1;
            if samples == 0 {
                return;
            }
        }
    }

    /// Renews the flows of copies that were judged; their frames are as they came.
    pub(super) fn renew<'a>(&mut self, about: &About<'_>, copies: impl Iterator<Item = (Received<'a>, &'a Judged)>) {
        for (packet, judged) in copies {
            // A long packet comes as several segments, of which the first one renews the flow: see `PAUSE`.
            let way = self.flow_way(about, &packet, judged);
            if let Some((flow, _)) = way.and_then(|way| self.flow(about, &packet, way)) {
                self.cache.renew(&flow);
            }
        }
    }

    /// The way of a packet whose flow may go into the cache.
    fn flow_way(&self, about: &About<'_>, packet: &Received<'_>, judged: &Judged) -> Option<FlowWay> {
        // What goes back to where it came from is left to the worker: a program has not been seen to send it there.
        let (from, to, out) = self.way(packet, judged).filter(|(from, to, _)| from != to)?;
        let translated = about.engine.translated(judged);
        if matches!(translated, Some(Translated::Error(_))) {
            return None;
        }
        let translation = translated.map(|translated| translated.sent());
        let is_kept = about.stream.is_some_and(|stream| stream.keeps_from_cache(packet, translation.as_ref()));
        (!is_kept).then_some(FlowWay { from, to, out, translation })
    }

    /// Where a hit comes from and goes to in the cache, when it can.
    fn way(&self, packet: &Received<'_>, judged: &Judged) -> Option<(FlowSlot, FlowSlot, PortId)> {
        let slot = |port: PortId| self.slots.get(port.index()).copied().flatten();
        let out = judged.verdict.out_port().filter(|_| judged.session == Some(SessionState::Hit))?;
        let (from, to) = (slot(packet.in_port)?, slot(out)?);
        // A packet in several frames does not end where its first one does.
        let is_whole = packet.wire_len <= packet.frame.len();
        (is_whole && self.cache.reaches(to)).then_some((from, to, out))
    }

    fn moves_of(&self, port: PortId) -> u16 {
        self.moves.get(port.index()).copied().unwrap_or_default()
    }

    fn flow(
        &mut self,
        about: &About<'_>,
        packet: &Received<'_>,
        FlowWay { from, to, out, translation }: FlowWay,
    ) -> Option<(CachedFlow, FlowLatch)> {
        let way = about.forwarder.way(about.snapshot, (packet.in_port, out), packet.frame, translation.as_ref())?;
        let found = about.engine.cacheable(packet.frame, packet.in_port)?;
        let lease = found.lease.min(way.good_for).min(self.lease);
        if lease == 0 {
            return None;
        }
        // The two directions of a session have one hash, and a latch each. (The odd number is 2^64 over the golden ratio.)
        let name = found.hash.wrapping_add(u64::from(from.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (recent, latch) = (&mut self.recent[(name >> 32) as usize % RECENT], FlowLatch((name >> 48) as u16));
        if recent.0 == name && about.now.saturating_sub(recent.1) < PAUSE {
            return None;
        }
        let until_renewed = self.lease - self.lease / RENEWED_IN_LAST;
        if !self.allowances[packet.in_port.index()].take(SHARE, until_renewed, about.now) {
            return None;
        }
        *recent = (name, about.now);
        let flow = CachedFlow {
            from,
            to,
            flow: found.flow,
            received: *packet.frame.first_chunk()?,
            sent: way.addresses,
            is_hop: way.is_hop,
            translation,
            longest: u16::try_from(way.longest).unwrap_or(u16::MAX),
            origin: found.origin,
            ports: [packet.in_port, out],
            epochs: [packet.in_port, out].map(|port| about.snapshot.epoch(port)),
            moves: [packet.in_port, out].map(|port| self.moves_of(port)),
            lease,
            start: FlowStart::Latch(latch),
        };
        Some((flow, latch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_adds_no_more_flows_within_a_lease_than_its_share() {
        const LEASE: u64 = 30_000_000_000;
        let mut allowance = Allowance::full(SHARE);
        let taken = (0..10 * SHARE).filter(|_| allowance.take(SHARE, LEASE, 1_000)).count();
        assert_eq!(taken as u64, SHARE);
        // Over a lease as many again, however they are spread.
        let taken =
            (1..=1_000_000).filter(|step| allowance.take(SHARE, LEASE, 1_000 + step * (LEASE / 1_000_000))).count();
        assert!((SHARE - 2..=SHARE + 1).contains(&(taken as u64)), "{taken}");
        assert_eq!((0..2 * SHARE).filter(|_| allowance.take(SHARE, LEASE, 10 * LEASE)).count() as u64, SHARE);
    }
}
