//! One round of a worker: receive, judge, forward, send.
//!
//! ```text
//!   own ports --receive--> whose? --mine--> [arrivals] --judge--> step --send--> [transmit of a port] --flush--> kernel
//!                            |                 ^                   |--hold--> forwarder's queue --released--^
//!                            `--lane--> other  |                   |--absorbed, drop--> pool
//!   lanes of the others --judge---------------'                    `--ICMP error, ARP, ND: a new frame--^
//! ```
//!
//! Copies of packets that the flow cache has forwarded are judged after the others and then discarded.

mod copies;
mod departure;
mod intake;
mod judging;
mod recovery;
mod survivors;
mod translation;

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;

use super::arrivals::Arrivals;
use super::bell::Bell;
use super::caching::{About, Caching};
use super::lane::{Incoming, Outgoing};
use super::ledger::Ledger;
use super::ports::Ports;
use super::stream::StreamWriter;
use super::{Tap, VswitchEvent, WorkerCounters};
use crate::forward::Forwarder;
use crate::io::{FlowCache, FlowChange, FlowSlot, ForwardedFlow, Frame, FramePool, Port, Umem};
use crate::{
    Affinity, AuditTap, BURST, DropReason, EndedSessions, Judged, PortId, SessionPage, SessionSelector, Snapshot,
    Worker,
};
pub(super) use departure::Chain;
use recovery::MAX_FAULTS;

/// How often an idle worker lets the engine sweep expired sessions: 100 ms, in nanoseconds.
const SWEEP_EVERY: u64 = 100_000_000;

/// The longest sleep of a worker in milliseconds, so that sessions expire and neighbours are probed. A wake-up takes 0.1 ms on a virtual
/// machine.
const NAP: u32 = 150;
/// The longest sleep in milliseconds while packets are held. It bounds their delay when another worker receives the neighbour's answer.
const SHORT_NAP: u32 = 1;

/// Longer than any packet is held: an hour in nanoseconds.
const FOR_EVER: u64 = 3_600_000_000_000;

/// A worker's connections to other workers and to the control thread, from which its [`Stage`] is made.
pub(super) struct Surroundings {
    pub(super) id: usize,
    pub(super) outgoing: Vec<Option<Outgoing>>,
    pub(super) incoming: Vec<Incoming>,
    pub(super) bells: Vec<Arc<Bell>>,
    /// Assigns each pair of addresses to the worker that owns its sessions. All workers have the same keys.
    pub(super) affinity: Affinity,
    pub(super) events: Sender<VswitchEvent>,
    pub(super) tap: Option<Tap>,
    pub(super) flow_cache: Option<Arc<dyn FlowCache>>,
    pub(super) lease: Duration,
}

/// A worker's engine, forwarder, ports and buffers, with the methods that run one round: receive, judge, forward and send.
pub(super) struct Stage {
    id: usize,
    engine: Worker,
    forwarder: Forwarder<Chain>,
    affinity: Affinity,
    pool: FramePool,
    umem: Arc<Umem>,
    ports: Ports,
    incoming: Vec<Incoming>,
    bells: Vec<Arc<Bell>>,
    tap: Option<Tap>,
    caching: Option<Caching>,
    /// Index of the port from which the last round received first. Each round begins with the next port.
    first_port: usize,
    /// Whether the current round has emptied the receive queues of all ports.
    is_drained: bool,
    /// Frames that a port has just received, before they are sorted.
    received: Vec<Frame>,
    /// Receiving port of each frame of a burst from the trunk.
    in_ports: Vec<PortId>,
    arrivals: Arrivals,
    /// Copies of packets that the flow cache has forwarded.
    copies: Arrivals,
    judged: Vec<Judged>,
    ledger: Ledger,
    events: Sender<VswitchEvent>,
    /// Times of the worker's last panics, oldest first.
    faults: [u64; MAX_FAULTS],
    /// Whether the last round had work. Then the time until the next round's begin counts as busy.
    has_worked: bool,
    now: u64,
    swept_at: u64,
}

impl Stage {
    pub(super) fn new(
        engine: Worker,
        forwarder: Forwarder<Chain>,
        pool: FramePool,
        surroundings: Surroundings,
    ) -> Self {
        let Surroundings { id, outgoing, incoming, bells, affinity, events, tap, flow_cache, lease } = surroundings;
        let caching = flow_cache.map(|cache| Caching::new(cache, lease, id, bells.len()));
        Self {
            id,
            engine,
            forwarder,
            affinity,
            umem: Arc::clone(pool.umem()),
            pool,
            ports: Ports::new(outgoing, events.clone()),
            incoming,
            bells,
            tap,
            caching,
            first_port: 0,
            is_drained: false,
            received: Vec::with_capacity(BURST),
            in_ports: Vec::with_capacity(BURST),
            arrivals: Arrivals::default(),
            copies: Arrivals::default(),
            judged: Vec::with_capacity(BURST),
            ledger: Ledger::new(),
            events,
            faults: [0; MAX_FAULTS],
            has_worked: false,
            now: 0,
            swept_at: 0,
        }
    }

    /// Reads which flows have ended in the flow cache. Call it before loading the round's snapshot.
    #[inline]
    pub(super) fn begin(&mut self) {
        if let Some(caching) = &mut self.caching {
            caching.read_moves();
        }
    }

    /// Runs a round with one snapshot. Returns false if there was no work.
    pub(super) fn round(&mut self, snapshot: &Snapshot, now: u64) -> bool {
        if self.has_worked {
            self.ledger.counters.busy_ns += now.saturating_sub(self.now);
        }
        self.now = now;
        if let Some(caching) = &mut self.caching {
            caching.begin(now);
            caching.follow_due(&mut self.engine, now);
        }
        if let Some(stream) = &mut self.ledger.stream {
            stream.begin_round(now, snapshot.generation());
        }
        self.forwarder.begin(snapshot, now);
        self.is_drained = true;
        let mut worked = self.receive(snapshot);
        // Posted early, so that other workers process it in parallel.
        self.post();
        worked |= self.open_mail(snapshot);
        self.judge(snapshot);
        self.judge_copies(snapshot);
        self.sweep(snapshot);
        worked |= self.tell_survivors(snapshot);
        self.forwarder.tick(snapshot);
        self.send_released(snapshot);
        self.send_messages();
        // Posted before the system calls, which may take long.
        self.post();
        self.ports.flush(&mut self.pool, &mut self.ledger);
        if let Some(caching) = &mut self.caching {
            caching.end(|| self.is_drained && !self.ports.is_waiting(), now);
        }
        if let Some(stream) = &mut self.ledger.stream {
            stream.end_round(&mut self.engine, &self.ledger.counters.other_drops);
        }
        self.ledger.counters.busy_rounds += u64::from(worked);
        self.ledger.counters.idle_rounds += u64::from(!worked);
        self.has_worked = worked;
        worked
    }

    pub(super) fn add(&mut self, id: PortId, queue: u32, port: Box<dyn Port>) {
        self.engine.add_port(id);
        self.know_slot(id, port.slot(), false);
        self.ports.add(id, queue, port);
    }

    pub(super) fn reach(&mut self, id: PortId, worker: usize, slot: Option<FlowSlot>) {
        self.engine.add_port(id);
        self.know_slot(id, slot, false);
        self.ports.reach(id, worker);
    }

    pub(super) fn add_trunk(&mut self, queue: Box<dyn Port>) {
        self.ports.add_trunk(queue, &self.umem);
    }

    /// Connects a port over the trunk. `slot` becomes the VLAN tag of its packets there.
    pub(super) fn attach(&mut self, id: PortId, slot: FlowSlot) {
        self.engine.add_port(id);
        self.know_slot(id, Some(slot), true);
        self.ports.attach(id, slot);
    }

    pub(super) fn remove(&mut self, id: PortId) {
        self.know_slot(id, None, false);
        self.ports.remove(id, &mut self.pool, &mut self.ledger);
    }

    /// Begins to end the sessions of a port whose pod is gone.
    pub(super) fn end(&mut self, id: PortId) {
        if let Some(caching) = &mut self.caching {
            caching.follow_all(&mut self.engine, self.now);
        }
        self.engine.end_port(id);
    }

    /// Announces the conventional gateways on a port, in the next round.
    pub(super) fn announce(&mut self, id: PortId) {
        self.forwarder.announce(id);
    }

    /// Attaches a stream, which replaces the current one. `None` detaches the current stream.
    pub(super) fn set_stream(&mut self, stream: Option<Box<StreamWriter>>) {
        self.ledger.stream = stream;
        match &mut self.ledger.stream {
            Some(stream) => stream.begin(&mut self.engine, &self.ledger.counters.other_drops),
            None => self.engine.listen(false),
        }
    }

    pub(super) fn learn(&mut self, changes: &[FlowChange], now: u64) {
        changes.iter().for_each(|change| self.engine.learn(change, now));
    }

    /// Confirms the flows in the kernel that the next snapshot allows. `snapshot` is the one in force.
    pub(super) fn judge_again(&mut self, snapshot: &Snapshot, next: &Snapshot, flows: &[ForwardedFlow], now: u64) {
        self.forwarder.begin(snapshot, now);
        let Self { caching: Some(caching), engine, forwarder, ledger, .. } = self else { return };
        let about = About { engine, forwarder, snapshot, now, stream: ledger.stream.as_deref() };
        flows.iter().for_each(|flow| _ = caching.judge_again(&about, next, flow));
    }

    pub(super) fn tell_audits_to(&mut self, tap: AuditTap) {
        self.engine.tell_audits_to(tap);
    }

    fn know_slot(&mut self, id: PortId, slot: Option<FlowSlot>, is_steered: bool) {
        if let Some(caching) = &mut self.caching {
            caching.know(id, slot, is_steered);
        }
    }

    /// Whether a lane from another worker has packets.
    pub(super) fn has_mail(&self) -> bool {
        self.incoming.iter().any(|lane| !lane.is_empty())
    }

    /// Calls `each` with the descriptors to poll. Returns false if a port has none and must be polled actively.
    pub(super) fn descriptors(&self, each: impl FnMut(RawFd)) -> bool {
        self.ports.descriptors(each)
    }

    pub(super) const fn slept(&mut self) {
        self.ledger.counters.sleeps += 1;
    }

    /// Returns the worker's counters since its start.
    pub(super) fn counters(&self) -> WorkerCounters {
        WorkerCounters {
            engine: self.engine.counters().clone(),
            sessions: self.engine.sessions_in_use() as u64,
            translated: self.engine.translated_in_use() as u64,
            names: *self.engine.name_counters(),
            held: self.forwarder.held() as u64,
            forward: self.forwarder.counters(),
            ports: self.ports.traffic(),
            ..self.ledger.counters.clone()
        }
    }

    /// Returns one page of the session table: the sessions in the slots from `from` on, and where the next page begins.
    pub(super) fn session_page(&self, from: u32) -> SessionPage {
        self.engine.session_page(from)
    }

    /// Ends the sessions that match `selector` in one page of the session table, which begins at slot `from`.
    pub(super) fn end_sessions(&mut self, from: u32, selector: &SessionSelector) -> EndedSessions {
        self.engine.end_sessions(from, selector)
    }

    /// Returns the memory used by the worker's sessions, in bytes.
    pub(super) fn session_memory(&self) -> usize {
        self.engine.session_memory()
    }

    /// Closes all ports. Afterwards the worker neither receives nor hands over packets.
    pub(super) fn halt(&mut self) {
        if let Some(caching) = &mut self.caching {
            // The process that adopts the sessions does not know the openings, so they are settled now.
            caching.follow_all(&mut self.engine, self.now);
        }
        self.ports.close_all(&mut self.pool, &mut self.ledger);
    }

    /// Returns the longest sleep in milliseconds. It is short while packets wait for a neighbour, while messages wait for a frame, or while
    /// a port [waits](Port::is_waiting): none of these wakes the worker.
    pub(super) fn nap(&self) -> u32 {
        let waits = self.forwarder.held() > 0 || self.forwarder.has_messages();
        if waits || self.ports.is_waiting() { SHORT_NAP } else { NAP }
    }

    /// Ends the worker and drops all packets in flight.
    pub(super) fn close(mut self) -> WorkerCounters {
        self.halt();
        // With no ports and a time far in the future, the forwarder gives up every held packet.
        let nothing = Snapshot::empty();
        self.forwarder.begin(&nothing, self.now.saturating_add(FOR_EVER));
        self.forwarder.tick(&nothing);
        while let Some(released) = self.forwarder.next_released() {
            for frame in released.packet.into_frames() {
                self.ledger.lose(frame, DropReason::PortDown, &mut self.pool);
            }
        }
        for lane in &mut self.incoming {
            lane.take(usize::MAX, |frame, _| self.ledger.lose(frame, DropReason::PortDown, &mut self.pool));
        }
        self.counters()
    }

    /// Ends expired sessions if the last sweep was [`SWEEP_EVERY`] ago, so that they also end when no packets arrive.
    fn sweep(&mut self, snapshot: &Snapshot) {
        if self.now.saturating_sub(self.swept_at) >= SWEEP_EVERY {
            self.swept_at = self.now;
            self.engine.judge(snapshot, self.now, std::iter::empty(), &mut self.judged);
        }
    }

    /// Makes the packets in the lanes visible to the other workers, and wakes workers that sleep.
    fn post(&mut self) {
        for (lane, bell) in self.ports.outgoing.iter_mut().zip(&self.bells) {
            if lane.as_mut().is_some_and(Outgoing::post) {
                bell.ring();
            }
        }
    }
}
