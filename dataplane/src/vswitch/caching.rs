//! Selects flows for the flow cache.
//!
//! Each burst samples some hits. Cached flows do not reach the worker, so the busiest of the remaining flows are sampled most often. No
//! counters per flow are needed.
//!
//! A flow in use asks for a renewal before its lease ends, with a copy of a packet. The worker judges the copy and renews the flow without
//! forwarding its packets.
//!
//! A TCP connection is added as a whole at its SYN or SYN-ACK (`openings.rs`), because short connections would end before they are sampled.
//!
//! A latch is opened when a round has sent all packets that were in the ports' queues at its begin, and the flow was quiet long enough that
//! no packet can be overtaken. See [`crate::io::FlowCache`].
//!
//! A flow through the uplink depends on a neighbour's MAC address. If it changes, all flows of the uplink end ([`FlowCache::moved`]). A
//! neighbour that has not answered for a while gets no flows.

mod allowance;
mod openings;

use std::sync::Arc;
use std::time::Duration;

use allowance::Allowance;
use openings::Openings;

use super::stage::Chain;
use super::stream::StreamWriter;
use crate::forward::Forwarder;
use crate::io::{CachedFlow, FlowCache, FlowLatch, FlowSlot, FlowStart, ForwardedFlow, RENEWED_IN_LAST, Translation};
use crate::packet::{self, LinkType};
use crate::translations::Translated;
use crate::worker::JudgedFlow;
use crate::{Flow, Judged, Names, PortId, Received, SessionState, Snapshot, Worker};

/// Hits sampled per burst, and thus the maximum number of system calls (1.3 to 1.7 µs each): a twentieth of the time for sending a full
/// burst.
const SAMPLES: usize = 8;

/// Number of recently added flows that are remembered.
const RECENT: usize = 1 << 10;

/// A flow is not added again within this time, 10 ms in nanoseconds. Otherwise each of its packets still in flight, or excluded from the
/// cache, would cost a system call.
const PAUSE: u64 = 10_000_000;

/// Maximum number of watched latches. Further latches are opened at once. A busy worker adds fewer within [`LONGEST_WAIT`].
const MOST_LATCHED: usize = 1 << 12;

/// How long a latch's count must be unchanged, 80 µs in nanoseconds. A counted packet is in the port's queue when the kernel's poll of at
/// most 64 packets ends, so a round then finds all of them. With this pause, bursts of 16 were never overtaken in 300 changes; without it,
/// in a few. Shorter than the time after which an idle worker sleeps.
const QUIET: u64 = 80_000;

/// Like [`QUIET`], for flows whose packets change workers: 1 ms in nanoseconds. Each round reads the lanes, and sending a full burst takes
/// a quarter of this time.
const QUIET_LANES: u64 = 1_000_000;

/// Maximum time to wait for a quiet flow, 5 ms in nanoseconds. Then one complete round suffices, and packets in the kernel's poll or a lane
/// may be overtaken once. Sequential requests of a program pass through the worker during that time, which should affect fewer than one in
/// a hundred per second.
const WAIT: u64 = 5_000_000;

/// Time after which a latch is opened unconditionally, 100 ms in nanoseconds. A worker that is still behind loses packets, which is worse
/// than one reordering.
const LONGEST_WAIT: u64 = 100_000_000;

/// Number of flows of one receiving port that a worker may add or renew per renewal period of the longest lease: a quarter of the kernel's
/// map. So no port displaces the others' flows. Packets of further flows go through the workers.
const SHARE: u64 = 1 << 15;

/// A flow that was added to the cache and whose latch is not open yet.
#[derive(Clone, Copy, Debug)]
struct LatchedFlow {
    latch: FlowLatch,
    since: u64,
    /// The latch's packet count, and since when it is unchanged. `None` before the first round.
    passed: u64,
    quiet_since: Option<u64>,
    /// Whether packets of the flow may change workers.
    is_shared: bool,
}

/// The part of a worker that selects flows for the flow cache, adds and renews them.
#[derive(Debug)]
pub(super) struct Caching {
    cache: Arc<dyn FlowCache>,
    /// The longest lease, in nanoseconds.
    lease: u64,
    /// Whether the vswitch has only one worker.
    is_alone: bool,
    latched: Vec<LatchedFlow>,
    /// By port: its slot, and whether the kernel steers its packets to the worker that owns their sessions.
    slots: Vec<Option<FlowSlot>>,
    is_steered: Vec<bool>,
    /// The budget of added flows for each receiving port, indexed by port id.
    allowances: Vec<Allowance>,
    openings: Openings,
    /// Recently added flows, indexed by a part of the flow's hash: the whole hash, and the time when the flow was added.
    recent: Vec<(u64, u64)>,
    /// Position of the first sampled packet in the next burst.
    turn: usize,
    /// For each port, how often the cache has ended its flows, and the total, both read before the round's snapshot.
    moves: Vec<u16>,
    endings: Option<u64>,
}

/// The ports and the translation of a flow's packets.
#[derive(Clone, Copy, Debug)]
struct FlowWay {
    from: FlowSlot,
    to: FlowSlot,
    out: PortId,
    translation: Option<Translation>,
}

/// What is known about a judged burst: the engine, forwarder and snapshot that processed it.
pub(super) struct About<'a> {
    pub(super) engine: &'a Worker,
    pub(super) forwarder: &'a Forwarder<Chain>,
    pub(super) snapshot: &'a Snapshot,
    pub(super) now: u64,
    /// The attached stream, whose tracepoints may exclude flows from the cache. `None` without a stream.
    pub(super) stream: Option<&'a StreamWriter>,
}

impl About<'_> {
    /// Whether workers must see all packets of a flow: because of a tracepoint, or because the flow is DNS of a pod with rules that name
    /// domains. `ports` are the receiving and the output port in `snapshot`. `sent` is `None` if the flow is not translated.
    fn keeps_from_cache(
        &self,
        snapshot: &Snapshot,
        [in_port, out]: [PortId; 2],
        flow: impl Fn() -> Option<Flow>,
        sent: Option<&Translation>,
    ) -> bool {
        let is_dns = |names: &Names| flow().is_some_and(|flow| names.part((in_port, out), &flow, sent).is_some());
        snapshot.names().is_some_and(is_dns) || self.stream.is_some_and(|stream| stream.keeps_from_cache(&flow, sent))
    }

    /// Returns a packet with the port from which its session expects it. That is another one than its own if it is another node's and has passed
    /// the node's kernel; the cache takes the flow's next packets before the kernel.
    fn as_sent<'p>(&self, packet: Received<'p>) -> Received<'p> {
        let shared = self.snapshot.shared_uplink().filter(|_| self.snapshot.host() == Some(packet.in_port));
        let expected = shared.filter(|&uplink| self.engine.cacheable(packet.frame, uplink).is_some());
        Received { in_port: expected.unwrap_or(packet.in_port), ..packet }
    }
}

impl Caching {
    /// Creates the caching part of worker `worker`, from 0, of a vswitch with `workers` workers.
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

    /// Reads which flows the cache has ended. Call it before loading a round's snapshot, whose publication precedes their end.
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

    /// Reads how many packets the closed latches have counted. Call it at the begin of a round, before it receives.
    #[inline]
    pub(super) fn begin(&mut self, now: u64) {
        for latched in &mut self.latched {
            let passed = self.cache.passed(latched.latch);
            if latched.quiet_since.is_none() || passed != latched.passed {
                (latched.passed, latched.quiet_since) = (passed, Some(now));
            }
        }
    }

    /// Opens latches at the end of a round. `is_done` returns whether the round has sent all packets that arrived before it.
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

    /// Sets or removes a port's slot in the cache. `is_steered` tells whether the kernel steers its packets to the worker that owns their
    /// sessions.
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

    /// Adds flows of a judged burst. Its frames must be unchanged. Not inlined, so that it stays out of the loop of a worker without a
    /// cache.
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
            if judged.session != Some(SessionState::Hit) {
                continue;
            }
            let packet = about.as_sent(packet);
            let Some(way) = self.flow_way(about, &packet, judged) else { continue };
            if let Some((flow, latch)) = self.flow(about, &packet, way) {
                self.cache.add(&flow);
                // A translated session may belong to another worker than the packet's addresses select.
                let is_own = self.is_steered[packet.in_port.index()] && flow.translation.is_none();
                self.watch(latch, !self.is_alone && !is_own, about.now);
            }
            samples -= 1;
            if samples == 0 {
                return;
            }
        }
    }

    /// Renews the flows of judged copies. Their frames must be unchanged.
    pub(super) fn renew<'a>(&mut self, about: &About<'_>, copies: impl Iterator<Item = (Received<'a>, &'a Judged)>) {
        for (packet, judged) in copies {
            let packet = about.as_sent(packet);
            // A long packet arrives as several segments. The first one renews the flow: see `PAUSE`.
            let way = self.flow_way(about, &packet, judged);
            if let Some((flow, _)) = way.and_then(|way| self.flow(about, &packet, way)) {
                self.cache.renew(&flow);
            }
        }
    }

    /// Confirms a flow in the kernel if the next snapshot allows it by the same way. Changes neither the session nor the forwarder.
    pub(super) fn judge_again(&self, about: &About<'_>, next: &Snapshot, forwarded: &ForwardedFlow) -> Option<()> {
        let ForwardedFlow { slots: [from, to], from: in_port, flow, received } = *forwarded;
        let JudgedFlow { out, translation, decision } = about.engine.judge_flow(next, &flow, in_port)?;
        let ports = [in_port, out];
        let slot = |port: PortId| self.slots.get(port.index()).copied().flatten();
        // The forwarder knows the ports of the snapshot in force.
        let is_reached_alike = |id: PortId| {
            let both = about.snapshot.port(id).zip(next.port(id));
            both.is_some_and(|(old, new)| old.is_reached_like(new))
        };
        if ports.map(slot) != [Some(from), Some(to)] || !ports.into_iter().all(is_reached_alike) {
            return None;
        }
        if about.keeps_from_cache(next, ports, || Some(flow), translation.as_ref()) {
            return None;
        }
        let destination = translation.as_ref().map_or(flow.dst, |sent| sent.dst);
        let way = about.forwarder.way_of(next, (in_port, out), &received, destination)?;
        self.cache.confirm(&CachedFlow {
            from,
            to,
            flow,
            received,
            sent: way.addresses,
            is_hop: way.is_hop,
            translation,
            longest: u16::try_from(way.longest).unwrap_or(u16::MAX),
            origin: decision.origin,
            ports,
            epochs: ports.map(|port| next.epoch(port)),
            moves: ports.map(|port| self.moves_of(port)),
            lease: 0,
            timeout: 0,
            start: FlowStart::Latch(FlowLatch(0)),
        });
        Some(())
    }

    /// Returns the ports and the translation of a packet's flow. `None` if the flow may not be cached.
    fn flow_way(&self, about: &About<'_>, packet: &Received<'_>, judged: &Judged) -> Option<FlowWay> {
        // Packets that leave by their ingress slot stay with the worker: in tests, the kernel did not send them back there.
        let is_hit = judged.session == Some(SessionState::Hit);
        let (from, to, out) = self.way(packet, judged).filter(|(from, to, _)| is_hit && from != to)?;
        let translated = about.engine.translated(judged);
        if matches!(translated, Some(Translated::Error(_))) {
            return None;
        }
        let translation = translated.map(|translated| translated.sent());
        let flow = || packet::parse(LinkType::Ethernet, packet.frame, packet.wire_len).flow;
        let is_kept = about.keeps_from_cache(about.snapshot, [packet.in_port, out], flow, translation.as_ref());
        (!is_kept).then_some(FlowWay { from, to, out, translation })
    }

    /// Returns the slots of the receiving and the output port, and the output port, of a forwarded packet. `None` if the cache does not reach
    /// them.
    fn way(&self, packet: &Received<'_>, judged: &Judged) -> Option<(FlowSlot, FlowSlot, PortId)> {
        let slot = |port: PortId| self.slots.get(port.index()).copied().flatten();
        let out = judged.verdict.out_port()?;
        let (from, to) = (slot(packet.in_port)?, slot(out)?);
        // A packet in several frames is longer than its first frame.
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
        // Both directions of a session have the same hash but need different latches. The odd number is 2^64 divided by the golden ratio.
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
            timeout: found.timeout,
            start: FlowStart::Latch(latch),
        };
        Some((flow, latch))
    }
}
