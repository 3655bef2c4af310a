//! Measures a worker of the vswitch between two ports: packets arrive on the uplink and leave to the pod.
//! ```text
//!   generator --send--> LoopbackPort ==> [ uplink: receive -> judge -> forward -> send :pod ] ==> LoopbackPort --receive-.
//!       ^                                                 a worker's round                                               |
//!       `----------------------------------------- the same frames again --------------------------------------------------'
//! ```
//!
//! The two outer ports belong to the generator, and their time counts as the generator's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, ensure};
use bulkhead_dataplane::io::{Frame, FramePool, LoopbackPort, Port, Umem};
use bulkhead_dataplane::vswitch::{
    LEASE, PollMode, SteppedWorker, Vswitch, VswitchConfig, VswitchCounters, WorkerCounters,
};
use bulkhead_dataplane::{Affinity, BURST, DropReason, PortId, Publisher, SessionConfig, SessionState, WorkerConfig};

use super::measure::{Counts, Subject};
use super::node::Node;
use super::shared::Lines;
use super::traffic::{self, Order, Traffic};
use super::{Setup, Spread};

/// Frames that a generator uses in turn: two bursts, as if one were still being sent.
const IN_USE: usize = 2 * BURST;

/// Frames per worker: those in use, and those kept in the pools of generator and worker.
const FRAMES: u32 = 4096;

/// Upper bound of packets in flight. Fits into a lane between two workers, so none is dropped while a worker waits for its core.
const UNDER_WAY: usize = 1536;

/// A worker and its generator.
pub(super) struct Through<'a> {
    node: &'a Node,
    worker: SteppedWorker,
    /// The generator's end of the worker's uplink; `pod` is that of the pod's port.
    uplink: LoopbackPort,
    pod: LoopbackPort,
    umem: Arc<Umem>,
    pool: FramePool,
    idle: VecDeque<Frame>,
    burst: Vec<Frame>,
    received: Vec<Frame>,
    traffic: Traffic,
    /// Whether to generate packets of other workers' flows, too, after the checks.
    strangers: bool,
    has_begun: bool,
    /// Number of packets in flight between all generators and workers; `limit` is its upper bound.
    under_way: Arc<AtomicUsize>,
    limit: usize,
    /// Simulated session entries, written for each packet as in a shared table. `None` without this comparison.
    lines: Option<Lines>,
    /// The flow number of each packet of the burst: the index of its entry in `lines`.
    flows: Vec<u64>,
    now: u64,
    step: u64,
    /// Keeps the vswitch alive as long as a worker.
    _control: Arc<(Vswitch, Publisher)>,
}

/// Creates a vswitch with this number of workers, each with one queue of both ports.
pub(super) fn vswitch<'a>(setup: &Setup, node: &'a Node, workers: u16) -> anyhow::Result<Vec<Through<'a>>> {
    let sessions = setup.engine.sessions;
    let sessions = SessionConfig { capacity: sessions.capacity * usize::from(workers), ..sessions };
    let config = VswitchConfig {
        affinity: Affinity::new(),
        lease: LEASE,
        cores: vec![None; workers.into()],
        poll: PollMode::Spin,
        engine: WorkerConfig { sessions, ..setup.engine },
        frames: FRAMES * u32::from(workers),
        tap: None,
        flow_cache: None,
    };
    let publisher = Publisher::new(node.snapshot.clone());
    let (mut vswitch, stepped) = Vswitch::stepped(&config, &publisher).context("cannot make the vswitch")?;
    let pools: Vec<FramePool> = stepped.iter().map(|_| vswitch.pool().sibling()).collect();
    let control = Arc::new((vswitch, publisher));
    if let Some(plan) = setup.watch.plan() {
        let (mut reader, control) = (control.0.open_stream(&plan), Arc::downgrade(&control));
        // Reads like the vswitch's thread, as long as workers exist.
        let interval = setup.watch.interval();
        std::thread::spawn(move || {
            while control.strong_count() > 0 {
                reader.read(usize::MAX, |_, record, bytes| {
                    std::hint::black_box((record, bytes));
                });
                std::thread::sleep(interval);
            }
        });
    }
    let under_way = Arc::new(AtomicUsize::new(0));
    let limit = (IN_USE * usize::from(workers)).min(UNDER_WAY);
    let one = |(number, (worker, mut pool)): (u16, (SteppedWorker, FramePool))| {
        let plug = |id: PortId| {
            // Room for all packets at one worker, and no more: a longer queue takes more of the cache.
            let (inner, outer) = LoopbackPort::pair(limit);
            // Queue q of port p is worker (p + q) % workers'.
            let of_queue_0 = id.0 % workers;
            control.0.add_port(id, u32::from((number + workers - of_queue_0) % workers), Box::new(inner));
            outer
        };
        Through {
            node,
            uplink: plug(Node::UPLINK),
            pod: plug(Node::POD),
            worker,
            umem: Arc::clone(pool.umem()),
            idle: std::iter::from_fn(|| pool.take()).take(IN_USE).collect(),
            pool,
            burst: Vec::with_capacity(BURST),
            received: Vec::with_capacity(limit),
            traffic: Traffic::new(setup.size, setup.flows, number, node.is_translated),
            strangers: setup.spread == Spread::Any,
            has_begun: false,
            under_way: Arc::clone(&under_way),
            limit,
            lines: None,
            flows: Vec::with_capacity(BURST),
            now: Setup::BEGIN,
            step: setup.step,
            _control: Arc::clone(&control),
        }
    };
    Ok((0..).zip(stepped.into_iter().zip(pools)).map(one).collect())
}

/// Processes the packets still in flight, and checks that none was lost without a drop reason.
pub(super) fn finish(mut all: Vec<Through<'_>>) -> anyhow::Result<()> {
    while all.iter_mut().map(Through::let_out).max() == Some(true) {}
    let workers: Vec<WorkerCounters> = all.into_iter().map(|through| through.worker.stop()).collect();
    let lost = VswitchCounters { workers, ..VswitchCounters::default() }.lost();
    ensure!(lost == 0, "{lost} packets were lost");
    Ok(())
}

impl Through<'_> {
    /// Adds simulated session entries, to which each packet writes.
    pub(super) fn with(mut self, lines: Lines) -> Self {
        self.lines = Some(lines);
        self
    }

    /// Generates a burst. It is shorter when the flows end, and empty while many packets are in flight.
    fn write(&mut self, order: Order) {
        let only_own = !(self.strangers && self.has_begun);
        self.flows.clear();
        if self.under_way.load(Ordering::Relaxed) + BURST > self.limit {
            return;
        }
        while self.burst.len() < BURST {
            let Some(mut frame) = self.idle.pop_front().or_else(|| self.pool.take()) else { return };
            frame.reset(self.traffic.size());
            let bytes = self.umem.bytes_mut(&mut frame);
            let flow = loop {
                let flow = self.traffic.write(order, bytes);
                if !only_own || flow.is_none() || self.worker.owns(bytes) {
                    break flow;
                }
            };
            let Some(flow) = flow else { return self.idle.push_front(frame) };
            self.flows.push(flow);
            self.burst.push(frame);
        }
    }

    /// Sends the burst to the worker.
    fn send(&mut self) -> usize {
        let count = self.burst.len();
        // These ports are never closed. Packets that do not fit stay in the next burst.
        let _open = self.uplink.send(&mut self.burst);
        let sent = count - self.burst.len();
        self.under_way.fetch_add(sent, Ordering::Relaxed);
        sent
    }

    /// Receives the packets that the worker has sent.
    fn receive(&mut self) {
        // Never closed, as above.
        let _open = self.pod.receive(&mut self.received, usize::MAX);
    }

    /// Runs a round without new packets. Returns whether it had work.
    fn let_out(&mut self) -> bool {
        let worked = self.worker.round(self.now);
        self.collect();
        worked
    }
}

impl Subject for Through<'_> {
    fn begin(&mut self) {
        self.has_begun = true;
    }

    #[inline(never)]
    fn generate(&mut self, order: Order) -> usize {
        self.write(order);
        self.send()
    }

    #[inline]
    fn work(&mut self) {
        self.now += self.step;
        if !self.worker.round(self.now) {
            // The other worker may wait for this core.
            std::thread::yield_now();
        }
        if let Some(lines) = &self.lines {
            lines.touch(&self.flows, self.now);
        }
    }

    #[inline(never)]
    fn collect(&mut self) -> usize {
        self.receive();
        let count = self.received.len();
        self.under_way.fetch_sub(count, Ordering::Relaxed);
        self.idle.extend(self.received.drain(..));
        // With several workers, frames may accumulate at one of them.
        let surplus = self.idle.len().saturating_sub(IN_USE);
        self.pool.give_all(self.idle.drain(..surplus));
        count
    }

    fn check(&mut self, order: Order, session: SessionState) -> anyhow::Result<()> {
        let counts = self.counts();
        self.write(order);
        let bytes = |umem: &Umem, frames: &[Frame]| frames.iter().map(|frame| umem.bytes(frame).to_vec()).collect();
        let before: Vec<Vec<u8>> = bytes(&self.umem, &self.burst);
        self.send();
        self.work();
        self.receive();
        let after: Vec<Vec<u8>> = bytes(&self.umem, &self.received);
        self.collect();
        ensure!(after.len() == before.len(), "{} packets of {} were sent", after.len(), before.len());
        let addresses = &self.node.addresses[Node::POD.index()];
        let is_right =
            |before: &[u8], after: &[u8]| traffic::is_one_hop(before, after, addresses, self.node.is_translated);
        let wrong = before.iter().zip(&after).find(|(before, after)| !is_right(before, after));
        ensure!(wrong.is_none(), "a packet was rewritten wrongly: {wrong:?}");
        let created = self.counts().created - counts.created;
        let expected = if session == SessionState::New { before.len() as u64 } else { 0 };
        ensure!(created == expected, "{created} sessions were made by packets of which {expected} begin one");
        Ok(())
    }

    fn counts(&self) -> Counts {
        let counters = self.worker.counters();
        Counts {
            forwarded: counters.engine.forwarded(),
            created: counters.engine.sessions().created,
            dropped: DropReason::ALL.iter().map(|&reason| counters.dropped(reason)).sum(),
            sessions: usize::try_from(counters.sessions).unwrap_or(usize::MAX),
            session_bytes: self.worker.session_memory(),
        }
    }
}
