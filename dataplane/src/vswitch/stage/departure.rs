//! What becomes of a packet that was judged, and what the vswitch sends of its own.

mod fragments;

use super::super::arrivals::{Arrival, Arrivals};
use super::super::stream::Known;
use super::Stage;
use super::translation::write_sent;
use crate::forward::{ERROR_MAX, Forwarder, MESSAGE_MAX, NeighbourId, Step, rewrite, translate, write_plain_v4};
use crate::io::{Frame, Translation};
use crate::translations::Translated;
use crate::{DropReason, Judged, LinkType, Outcome, Packet, PortId, Snapshot, Verdict};

/// A packet's frames outside of a burst, while it is held for a neighbour. `rest` is empty, and so not allocated, but
/// for jumbo packets.
#[derive(Debug)]
pub(in crate::vswitch) struct Chain {
    first: Frame,
    rest: Vec<Frame>,
    /// What its sender has addressed it to, for an error that quotes it, where other addresses have been written into it.
    received: Option<Translation>,
    /// What was known when it was let through, where somebody wants to know of it when it is lost.
    outcome: Option<Box<Outcome>>,
}

impl Chain {
    /// What is known of it when it is lost.
    fn known(&self) -> Known {
        self.outcome.as_deref().map_or(Known::LetThrough, |outcome| Known::Judged(*outcome))
    }

    pub(super) fn into_frames(self) -> impl Iterator<Item = Frame> {
        std::iter::once(self.first).chain(self.rest)
    }
}

impl Stage {
    /// What comes of all packets' verdicts.
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

    /// Makes the first packets ready, up to one that is to be looked at more closely: nearly always all. Returns how many, and into how
    /// many is written what is translated, which may be one more.
    ///
    /// A loop of its own that moves no frames and changes nothing of the stage, as it then has registers enough. It ends at
    /// the first packet that needs more, because what comes of that one may matter for those behind it.
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
            // A packet of several frames: those behind it are not beside their frames.
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

    /// One packet after the other; the first ones are `ready`.
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

    /// Gives a packet to another worker that is to judge it.
    #[inline(never)]
    pub(super) fn hand_over(&mut self, worker: usize, arrival: Arrival, packet: impl Iterator<Item = Frame>) {
        self.ports.hand_over(worker, 1 + arrival.rest(), packet, arrival.port, &mut self.pool, &mut self.ledger);
    }

    /// What comes of the verdict of one packet, the `at`th that was judged. Its frames are the next ones of `frames`.
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

    /// All but the most frequent case.
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
                // Without a host port the engine finds no way for a pod's ARP and has counted a drop; it is answered
                // all the same.
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

    /// What the engine knows of the `at`th packet that it was last asked about, where somebody wants to know it when the packet is lost.
    fn outcome(&self, at: usize) -> Option<Box<Outcome>> {
        self.ledger.wants_losses().then(|| self.engine.outcome(at).map(Box::new)).flatten()
    }

    /// Loses a packet that was let through.
    fn lose(&mut self, packet: Chain, reason: DropReason) {
        let known = packet.known();
        packet.into_frames().for_each(|frame| self.ledger.lose_as(frame, reason, &mut self.pool, known));
    }

    /// Queues a packet for its port, or loses it.
    fn put(&mut self, out: PortId, count: usize, frames: impl Iterator<Item = Frame>) {
        self.ports.put(out, count, frames, &mut self.pool, &mut self.ledger);
    }

    fn hold(&mut self, snapshot: &Snapshot, neighbour: NeighbourId, port: PortId, packet: Chain) {
        if let Some(crowded_out) = self.forwarder.hold(snapshot, neighbour, port, packet) {
            self.lose(crowded_out, DropReason::NeighbourQueueFull);
        }
    }

    /// Tells the sender of a packet that is dropped, where a router does.
    fn report(&mut self, snapshot: &Snapshot, first: &Frame, arrival: Arrival, verdict: Verdict, reason: DropReason) {
        if !Forwarder::<Chain>::reports(snapshot, reason) {
            return;
        }
        // Without a frame there is no report, as with a lost one.
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

    /// Sends a packet that the vswitch made itself.
    fn originate(&mut self, out: PortId, mut frame: Frame, len: usize) {
        self.ledger.counters.originated += 1;
        frame.shorten(len);
        self.put(out, 1, std::iter::once(frame));
    }

    /// Packets whose next hop is known now, or given up.
    pub(super) fn send_released(&mut self, snapshot: &Snapshot) {
        while let Some(released) = self.forwarder.next_released() {
            let Chain { mut first, rest, received, outcome } = released.packet;
            let len = first.len() + rest.iter().map(Frame::len).sum::<usize>();
            let addresses = released.addresses.and_then(|addresses| {
                // The MTU may be another one than when the packet was held.
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

    /// ARP and neighbour discovery, answers and questions.
    pub(super) fn send_messages(&mut self) {
        while self.forwarder.has_messages() {
            // Without a frame the messages wait for the next round.
            let Some(mut frame) = self.pool.take() else { return };
            frame.reset(MESSAGE_MAX);
            match self.forwarder.write_message(self.umem.bytes_mut(&mut frame)) {
                Some((out, len)) => self.originate(out, frame, len),
                None => self.pool.give(frame),
            }
        }
    }
}

/// Where all packets go, if that is one port.
fn common_exit(judged: &[Judged]) -> Option<PortId> {
    let first = judged.first()?.verdict;
    if judged.iter().all(|judged| judged.verdict == first) { first.out_port() } else { None }
}
