//! Executes verdicts, and sends the vswitch's own packets.

mod fragments;

use super::super::arrivals::{Arrival, Arrivals};
use super::super::stream::Known;
use super::Stage;
use super::translation::write_sent;
use crate::forward::{ERROR_MAX, Forwarder, MESSAGE_MAX, NeighbourId, Step, rewrite, translate, write_plain_v4};
use crate::io::{Frame, Translation};
use crate::translations::Translated;
use crate::{DropReason, Judged, LinkType, Outcome, Packet, PortId, Snapshot, Verdict};

/// A packet held for a neighbour, outside of a burst. `rest` is empty, and thus not allocated, except for jumbo packets.
#[derive(Debug)]
pub(in crate::vswitch) struct Chain {
    first: Frame,
    rest: Vec<Frame>,
    /// The packet's addresses and ports before translation, to be quoted in ICMP errors. `None` if the packet is not translated.
    received: Option<Translation>,
    /// The engine's result for the packet, to be reported if the packet is lost. `None` if no stream wants losses.
    outcome: Option<Box<Outcome>>,
}

impl Chain {
    /// Creates the chain of a frame that the vswitch itself has written.
    pub(super) const fn originated(frame: Frame) -> Self {
        Self { first: frame, rest: Vec::new(), received: None, outcome: None }
    }

    /// Returns the data about this packet that the stream reports if it is lost.
    fn known(&self) -> Known {
        self.outcome.as_deref().map_or(Known::LetThrough, |outcome| Known::Judged(*outcome))
    }

    pub(super) fn into_frames(self) -> impl Iterator<Item = Frame> {
        std::iter::once(self.first).chain(self.rest)
    }
}

impl Stage {
    /// Executes the verdicts of all packets: sends, holds, absorbs or drops each.
    pub(super) fn depart(&mut self, snapshot: &Snapshot, arrivals: &mut Arrivals) {
        let mut judged = std::mem::take(&mut self.judged);
        let ready = if self.engine.translates() {
            let (ready, written) = self.make_ready::<true>(snapshot, arrivals, &judged);
            if written < arrivals.len() {
                self.translate(arrivals, &mut judged, written);
            }
            ready
        } else {
            self.make_ready::<false>(snapshot, arrivals, &judged).0
        };
        match common_exit(&judged).filter(|_| ready == arrivals.len()) {
            Some(out) if self.ports.put_all(out, arrivals.frames()) => arrivals.clear(),
            _ => self.depart_each(snapshot, arrivals, &judged, ready),
        }
        self.judged = judged;
    }

    /// Prepares packets on the fast path until one needs the slow path. Returns the number of prepared packets, and the number of
    /// translated packets, which may be one higher.
    ///
    /// A separate loop that moves no frames and does not change the stage, so that it has enough registers. It ends at the first slow
    /// packet, because that packet may affect later ones.
    #[inline(never)]
    fn make_ready<const TRANSLATES: bool>(
        &self,
        snapshot: &Snapshot,
        arrivals: &mut Arrivals,
        judged: &[Judged],
    ) -> (usize, usize) {
        let Self { engine, forwarder, umem, .. } = self;
        let (packets, frames) = arrivals.parts_mut();
        let mut ready = 0;
        for ((arrival, frame), judged) in packets.iter().zip(frames).zip(judged) {
            let Verdict::Forward(out) = judged.verdict else { break };
            // After a packet of several frames, positions of packets and frames differ.
            if arrival.rest() != 0 {
                break;
            }
            let bytes = umem.bytes_mut(frame);
            if TRANSLATES {
                let is_written = match engine.translated(judged) {
                    None => true,
                    Some(Translated::PlainV4(packet)) if write_plain_v4(bytes, packet) => true,
                    Some(translated) => write_sent(bytes, arrival.len(), &translated),
                };
                if !is_written {
                    break;
                }
            }
            if !forwarder.pass(snapshot, bytes, arrival.len(), arrival.port, out) {
                return (ready, ready + 1);
            }
            ready += 1;
        }
        (ready, ready)
    }

    /// Executes verdicts one by one. The first `ready` packets are prepared.
    #[inline(never)]
    fn depart_each(&mut self, snapshot: &Snapshot, arrivals: &mut Arrivals, judged: &[Judged], ready: usize) {
        let (packets, mut frames) = arrivals.drain();
        let mut packets = packets.zip(judged);
        for ((_, judged), frame) in packets.by_ref().take(ready).zip(frames.by_ref()) {
            if let Verdict::Forward(out) = judged.verdict {
                self.ports.put_one(out, frame, &mut self.pool, &mut self.ledger);
            }
        }
        for (at, (arrival, judged)) in (ready..).zip(packets) {
            match judged.elsewhere {
                None => self.act(snapshot, at, arrival, judged, &mut frames),
                Some(worker) => {
                    let packet = frames.by_ref().take(1 + arrival.rest());
                    self.hand_over(usize::from(worker.get()) - 1, arrival, packet);
                }
            }
        }
    }

    /// Passes a packet to the worker that must judge it.
    #[inline(never)]
    pub(super) fn hand_over(&mut self, worker: usize, arrival: Arrival, packet: impl Iterator<Item = Frame>) {
        self.ports.hand_over(worker, 1 + arrival.rest(), packet, arrival.port, &mut self.pool, &mut self.ledger);
    }

    /// Executes the verdict of packet `at`. Its frames are next in `frames`.
    #[inline]
    fn act(
        &mut self,
        snapshot: &Snapshot,
        at: usize,
        arrival: Arrival,
        judged: &Judged,
        frames: &mut impl Iterator<Item = Frame>,
    ) {
        let Some(mut first) = frames.next() else { return };
        let (port, bytes) = (arrival.port, self.umem.bytes_mut(&mut first));
        match self.forwarder.forward(snapshot, bytes, arrival.len(), port, judged.verdict) {
            Step::Send(out) if arrival.rest() == 0 => {
                self.ports.put_one(out, first, &mut self.pool, &mut self.ledger);
            }
            step => {
                let place = (at, arrival);
                self.act_on(snapshot, place, judged, step, first, &mut frames.take(arrival.rest()));
            }
        }
    }

    /// Executes a verdict in all cases except the most frequent one, which [`Stage::act`] handles.
    #[inline(never)]
    fn act_on(
        &mut self,
        snapshot: &Snapshot,
        (at, arrival): (usize, Arrival),
        judged: &Judged,
        step: Step,
        mut first: Frame,
        rest: &mut dyn Iterator<Item = Frame>,
    ) {
        let verdict = judged.verdict;
        match step {
            Step::Send(out) => self.put(out, 1 + arrival.rest(), std::iter::once(first).chain(rest)),
            Step::Fragment(out) => {
                let outcome = self.outcome(at);
                self.put_fragments(out, Chain { first, rest: rest.collect(), received: None, outcome });
            }
            Step::Hold(neighbour) => {
                let (received, outcome) = (self.received(judged), self.outcome(at));
                let chain = Chain { first, rest: rest.collect(), received, outcome };
                self.hold(snapshot, neighbour, arrival.port, chain);
            }
            Step::Consumed => {
                // Without a host port the engine drops a pod's ARP as `no_route`, but the vswitch still answers it.
                self.ledger.counters.absorbed += u64::from(verdict.out_port().is_some());
                self.ledger.leave(&first);
                self.pool.give_all(std::iter::once(first).chain(rest));
            }
            Step::Drop(reason) => {
                if verdict.out_port().is_some() && judged.translation.is_some() {
                    self.restore(self.umem.bytes_mut(&mut first), arrival.len(), judged);
                }
                self.report(snapshot, &first, arrival, verdict, reason);
                if verdict.out_port().is_some() {
                    let known = self.outcome(at).map_or(Known::LetThrough, |outcome| Known::Judged(*outcome));
                    self.ledger.tell_loss(&self.umem, &first, arrival.len(), reason, known);
                }
                self.pool.give_all(std::iter::once(first).chain(rest));
            }
        }
    }

    /// Returns the engine's result for packet `at`. `None` unless a stream reports the losses of allowed packets.
    fn outcome(&self, at: usize) -> Option<Box<Outcome>> {
        self.ledger.wants_losses().then(|| self.engine.outcome(at).map(Box::new)).flatten()
    }

    /// Drops a packet that policy allowed.
    fn lose(&mut self, packet: Chain, reason: DropReason) {
        let known = packet.known();
        packet.into_frames().for_each(|frame| self.ledger.lose_as(frame, reason, &mut self.pool, known));
    }

    /// Queues a packet for its port, or drops it.
    fn put(&mut self, out: PortId, count: usize, frames: impl Iterator<Item = Frame>) {
        self.ports.put(out, count, frames, &mut self.pool, &mut self.ledger);
    }

    pub(super) fn hold(&mut self, snapshot: &Snapshot, neighbour: NeighbourId, port: PortId, packet: Chain) {
        if let Some(crowded_out) = self.forwarder.hold(snapshot, neighbour, port, packet) {
            self.lose(crowded_out, DropReason::NeighbourQueueFull);
        }
    }

    /// Notifies the sender of a dropped packet, as a router does.
    fn report(&mut self, snapshot: &Snapshot, first: &Frame, arrival: Arrival, verdict: Verdict, reason: DropReason) {
        if !Forwarder::<Chain>::reports(snapshot, reason) {
            return;
        }
        // Without a free frame no report is sent.
        let Some(mut fresh) = self.pool.take() else { return };
        fresh.reset(ERROR_MAX);
        let packet = Packet {
            frame: self.umem.bytes(first),
            wire_len: arrival.len(),
            link: LinkType::Ethernet,
            in_port: arrival.port,
            time: self.now,
        };
        let into = self.umem.bytes_mut(&mut fresh);
        match self.forwarder.report(snapshot, &packet, verdict.out_port(), reason, into) {
            Some(len) => self.originate(arrival.port, fresh, len),
            None => self.pool.give(fresh),
        }
    }

    /// Sends a packet that the vswitch itself has created. `len` is its length in bytes.
    pub(super) fn originate(&mut self, out: PortId, mut frame: Frame, len: usize) {
        self.ledger.counters.originated += 1;
        frame.shorten(len);
        self.put(out, 1, std::iter::once(frame));
    }

    /// Sends held packets whose next hop was resolved, and drops those whose next hop was given up.
    pub(super) fn send_released(&mut self, snapshot: &Snapshot) {
        while let Some(released) = self.forwarder.next_released() {
            let Chain { mut first, rest, received, outcome } = released.packet;
            let len = first.len() + rest.iter().map(Frame::len).sum::<usize>();
            let addresses = released.addresses.and_then(|addresses| {
                // The MTU may have changed since the packet was held.
                let fits = self.forwarder.fits(released.out, len);
                let may_leave = fits || self.forwarder.fragmentation(self.umem.bytes(&first), released.out).is_some();
                if may_leave { Ok((addresses, fits)) } else { Err(DropReason::PacketTooBig) }
            });
            match addresses {
                Ok((addresses, fits)) => {
                    rewrite::ethernet(self.umem.bytes_mut(&mut first), &addresses);
                    match fits {
                        true => self.put(released.out, 1 + rest.len(), std::iter::once(first).chain(rest)),
                        false => self.put_fragments(released.out, Chain { first, rest, received, outcome }),
                    }
                }
                Err(reason) => {
                    if let Some(received) = &received {
                        translate(self.umem.bytes_mut(&mut first), len, received);
                    }
                    let arrival = Arrival::new(released.in_port, 1 + rest.len(), len);
                    self.report(snapshot, &first, arrival, Verdict::Forward(released.out), reason);
                    self.lose(Chain { first, rest, received, outcome }, reason);
                }
            }
        }
    }

    /// Sends ARP and neighbour discovery messages.
    pub(super) fn send_messages(&mut self) {
        while self.forwarder.has_messages() {
            // Without a free frame the messages wait for the next round.
            let Some(mut frame) = self.pool.take() else { return };
            frame.reset(MESSAGE_MAX);
            match self.forwarder.write_message(self.umem.bytes_mut(&mut frame)) {
                Some((out, len)) => self.originate(out, frame, len),
                None => self.pool.give(frame),
            }
        }
    }
}

/// Returns the output port of the packets if all are forwarded through the same one. Otherwise `None`.
fn common_exit(judged: &[Judged]) -> Option<PortId> {
    let first = judged.first()?.verdict;
    if judged.iter().all(|judged| judged.verdict == first) { first.out_port() } else { None }
}
