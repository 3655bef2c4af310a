//! Measures the engine alone: `Worker::judge` and the rewrite, without ports, frames and forwarding state.

use anyhow::ensure;
use bulkhead_dataplane::forward::rewrite;
use bulkhead_dataplane::{BURST, BodyKind, Judged, Received, SessionState, Verdict, Worker};

use super::measure::{Counts, Subject};
use super::node::Node;
use super::traffic::{self, Order, Traffic};
use super::{Setup, Share};

/// Number of buffers, used in turn: two bursts, as if one were still being sent.
const BUFFERS: usize = 2 * BURST;

/// Distance of two buffers in bytes. With a power of two, all headers would share a few sets of the cache. VPP's distance is similar.
const STRIDE: usize = 2048 + 256;

/// A worker with its traffic and buffers.
pub(super) struct Engine<'a> {
    node: &'a Node,
    worker: Worker,
    traffic: Traffic,
    share: Share,
    buffers: Vec<u8>,
    /// The burst's first buffer: 0 or [`BURST`].
    at: usize,
    /// Number of packets in the burst.
    len: usize,
    judged: Vec<Judged>,
    /// Positions in the burst of the packets forwarded to the pod.
    sent: Vec<usize>,
    now: u64,
    step: u64,
}

impl<'a> Engine<'a> {
    pub(super) fn new(setup: &Setup, node: &'a Node, share: Share) -> Self {
        Self {
            node,
            worker: Worker::new(setup.engine),
            traffic: Traffic::new(setup.size, setup.flows, share.number, false),
            share,
            buffers: vec![0; BUFFERS * STRIDE],
            at: 0,
            len: 0,
            judged: Vec::with_capacity(BURST),
            sent: Vec::with_capacity(BURST),
            now: Setup::BEGIN,
            step: setup.step,
        }
    }

    #[inline]
    fn frames(&self) -> impl Iterator<Item = &[u8]> + '_ {
        let size = self.traffic.size();
        let buffers = &self.buffers[self.at * STRIDE..(self.at + self.len) * STRIDE];
        buffers.chunks_exact(STRIDE).map(move |buffer| &buffer[..size])
    }
}

impl Subject for Engine<'_> {
    #[inline(never)]
    fn generate(&mut self, order: Order) -> usize {
        self.at = BURST - self.at;
        self.len = 0;
        let size = self.traffic.size();
        while self.len < BURST {
            let frame = &mut self.buffers[(self.at + self.len) * STRIDE..][..size];
            match self.traffic.write(order, frame) {
                Some(flow) => self.len += usize::from(flow % u64::from(self.share.of) == u64::from(self.share.number)),
                None => break,
            }
        }
        self.len
    }

    #[inline]
    fn work(&mut self) {
        self.now += self.step;
        let Self { worker, node, now, judged, .. } = self;
        let (size, in_port) = (self.traffic.size(), Node::UPLINK);
        let burst = &mut self.buffers[self.at * STRIDE..(self.at + self.len) * STRIDE];
        let packets =
            burst.chunks_exact(STRIDE).map(|buffer| Received { frame: &buffer[..size], wire_len: size, in_port });
        worker.judge(&node.snapshot, *now, packets, judged);
        self.sent.clear();
        for ((at, judged), buffer) in self.judged.iter().enumerate().zip(burst.chunks_exact_mut(STRIDE)) {
            if let Verdict::Forward(out) = judged.verdict
                && rewrite::hop(&mut buffer[..size], &node.addresses[out.index()])
            {
                self.sent.push(at);
            }
        }
    }

    fn collect(&mut self) -> usize {
        self.sent.len()
    }

    fn check(&mut self, order: Order, session: SessionState) -> anyhow::Result<()> {
        let count = self.generate(order);
        let before: Vec<Vec<u8>> = self.frames().map(<[u8]>::to_vec).collect();
        self.work();
        ensure!(self.sent.len() == count, "{} packets of {count} were forwarded", self.sent.len());
        let right = (Verdict::Forward(Node::POD), BodyKind::Ip, Some(session));
        let wrong = self.judged.iter().find(|judged| (judged.verdict, judged.body, judged.session) != right);
        ensure!(wrong.is_none(), "a packet got the wrong answer: {wrong:?}");
        let addresses = &self.node.addresses[Node::POD.index()];
        let wrong = before
            .iter()
            .zip(self.frames())
            .find(|(before, after)| !traffic::is_one_hop(before, after, addresses, false));
        ensure!(wrong.is_none(), "a packet was rewritten wrongly: {wrong:?}");
        Ok(())
    }

    fn counts(&self) -> Counts {
        let counters = self.worker.counters();
        Counts {
            forwarded: counters.forwarded(),
            created: counters.sessions().created,
            dropped: counters.received() - counters.forwarded(),
            sessions: self.worker.sessions_in_use(),
            session_bytes: self.worker.session_memory(),
        }
    }
}
