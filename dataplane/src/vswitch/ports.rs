//! A worker's ports, and how it reaches those of the others.

use std::os::fd::RawFd;
use std::sync::Arc;

use crossbeam_channel::Sender;

use super::lane::{Errand, Outgoing};
use super::ledger::{Ledger, size};
use super::stream::Known;
use super::trunk::Trunk;
use super::{PortTraffic, VswitchEvent};
use crate::io::{FlowSlot, Frame, FramePool, Port, PortError, Umem};
use crate::{DropReason, PortId};

/// One queue of a port, owned by this worker.
pub(super) struct OwnPort {
    pub(super) id: PortId,
    queue: u32,
    pub(super) port: Box<dyn Port>,
    /// What goes out at the end of the round.
    transmit: Vec<Frame>,
    pub(super) traffic: PortTraffic,
}

/// How a port is reached from this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    /// Not at all.
    Closed,
    /// By a queue of this worker, at this place among its own.
    Own(usize),
    /// By that worker.
    Worker(usize),
    /// Over the trunk, with this tag.
    Trunk(FlowSlot),
}

/// All of them.
pub(super) struct Ports {
    own: Vec<OwnPort>,
    trunk: Option<Trunk>,
    /// By port id.
    exits: Vec<Exit>,
    /// The lanes to the other workers, by worker.
    pub(super) outgoing: Vec<Option<Outgoing>>,
    events: Sender<VswitchEvent>,
    /// What the queues that were closed had counted.
    closed: Vec<(PortId, PortTraffic)>,
}

impl Ports {
    pub(super) const fn new(outgoing: Vec<Option<Outgoing>>, events: Sender<VswitchEvent>) -> Self {
        Self { own: Vec::new(), trunk: None, exits: Vec::new(), outgoing, events, closed: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.own.len()
    }

    pub(super) fn get(&mut self, at: usize) -> &mut OwnPort {
        &mut self.own[at]
    }

    pub(super) const fn trunk(&mut self) -> Option<&mut Trunk> {
        self.trunk.as_mut()
    }

    /// Whether a port has something to do that nothing will wake the worker for.
    pub(super) fn is_waiting(&self) -> bool {
        self.own.iter().any(|own| own.port.is_waiting()) || self.trunk.as_ref().is_some_and(Trunk::is_waiting)
    }

    /// Tells what to wait on. False when a port can only be asked.
    pub(super) fn descriptors(&self, mut each: impl FnMut(RawFd)) -> bool {
        let trunk = self.trunk.iter().map(Trunk::descriptor);
        self.own.iter().map(|own| own.port.descriptor()).chain(trunk).all(|told| told.map(&mut each).is_some())
    }

    pub(super) fn add_trunk(&mut self, queue: Box<dyn Port>, umem: &Arc<Umem>) {
        self.trunk = Some(Trunk::new(queue, umem));
    }

    /// The port's packets come and go over the trunk. It is the control thread's business that there is one.
    pub(super) fn attach(&mut self, id: PortId, slot: FlowSlot) {
        if let Some(trunk) = &mut self.trunk {
            trunk.attach(id, slot);
            *self.exit(id) = Exit::Trunk(slot);
        }
    }

    pub(super) fn add(&mut self, id: PortId, queue: u32, port: Box<dyn Port>) {
        let traffic = PortTraffic::default();
        self.own.push(OwnPort { id, queue, port, transmit: Vec::new(), traffic });
        *self.exit(id) = Exit::Own(self.own.len() - 1);
    }

    /// The port is at another worker; a queue of one's own is nearer.
    pub(super) fn reach(&mut self, id: PortId, worker: usize) {
        let exit = self.exit(id);
        if *exit == Exit::Closed {
            *exit = Exit::Worker(worker);
        }
    }

    /// Closes this worker's queues of a port and forgets the way to the others'.
    pub(super) fn remove(&mut self, id: PortId, pool: &mut FramePool, ledger: &mut Ledger) {
        while let Some(at) = self.own.iter().position(|own| own.id == id) {
            self.close(at, pool, ledger);
        }
        if let Some(trunk) = &mut self.trunk {
            trunk.detach(id);
        }
        *self.exit(id) = Exit::Closed;
    }

    /// Closes everything, and forgets the way to the other workers' ports.
    pub(super) fn close_all(&mut self, pool: &mut FramePool, ledger: &mut Ledger) {
        while !self.own.is_empty() {
            self.close(0, pool, ledger);
        }
        self.close_trunk(pool, ledger);
        self.exits.clear();
    }

    fn close_trunk(&mut self, pool: &mut FramePool, ledger: &mut Ledger) {
        let Some(mut trunk) = self.trunk.take() else { return };
        trunk.close(pool, ledger);
        for (id, traffic) in trunk.traffic() {
            self.keep(id, traffic);
        }
        for exit in self.exits.iter_mut().filter(|exit| matches!(exit, Exit::Trunk(_))) {
            *exit = Exit::Closed;
        }
    }

    /// Counts a packet that the flow cache has sent out of a port in the worker's place.
    pub(super) fn count_sent(&mut self, out: PortId, len: usize) {
        if let (Some(&Exit::Trunk(slot)), Some(trunk)) = (self.exits.get(out.index()), &mut self.trunk) {
            trunk.count_sent(slot, 1, len);
        }
    }

    /// The worker's queue of the trunk does not work any more: the control thread is told.
    pub(super) fn fail_trunk(&mut self, error: PortError, pool: &mut FramePool, ledger: &mut Ledger) {
        self.close_trunk(pool, ledger);
        // As above.
        let _ = self.events.send(VswitchEvent::TrunkGone { error });
    }

    /// The port does not work any more: it is closed, and the control thread is told.
    pub(super) fn fail(&mut self, at: usize, error: PortError, pool: &mut FramePool, ledger: &mut Ledger) {
        let (port, queue) = (self.own[at].id, self.own[at].queue);
        self.close(at, pool, ledger);
        // Nobody listens any more: then nobody wants to know.
        let _ = self.events.send(VswitchEvent::PortGone { port, queue, error });
    }

    /// Queues packets of one frame each for a port of this worker, all at once. False, with nothing taken, for another port.
    pub(super) fn put_all(&mut self, out: PortId, frames: &mut Vec<Frame>) -> bool {
        match self.exits.get(out.index()) {
            Some(&Exit::Own(at)) => {
                self.own[at].transmit.append(frames);
                true
            }
            Some(&Exit::Trunk(slot)) => {
                let Some(trunk) = &mut self.trunk else { return false };
                frames.drain(..).for_each(|frame| trunk.put(slot, frame));
                true
            }
            _ => false,
        }
    }

    /// As [`Ports::put`], for a packet of one frame.
    #[inline]
    pub(super) fn put_one(&mut self, out: PortId, frame: Frame, pool: &mut FramePool, ledger: &mut Ledger) {
        match self.exits.get(out.index()) {
            Some(&Exit::Own(at)) => self.own[at].transmit.push(frame),
            Some(&Exit::Trunk(slot)) if let Some(trunk) = &mut self.trunk => trunk.put(slot, frame),
            _ => self.put(out, 1, std::iter::once(frame), pool, ledger),
        }
    }

    /// Queues a packet of `count` frames for a port. What cannot be queued is lost.
    pub(super) fn put(
        &mut self,
        out: PortId,
        count: usize,
        mut frames: impl Iterator<Item = Frame>,
        pool: &mut FramePool,
        ledger: &mut Ledger,
    ) {
        let refused = match (self.exits.get(out.index()), &mut self.trunk) {
            (Some(&Exit::Own(at)), _) => {
                self.own[at].transmit.extend(frames.take(count));
                return;
            }
            (Some(&Exit::Trunk(slot)), Some(trunk)) => {
                if let Some(first) = frames.next() {
                    trunk.put(slot, first);
                    trunk.put_rest(slot, frames.take(count - 1));
                }
                return;
            }
            (Some(&Exit::Worker(worker)), _) => match self.lane(worker, count) {
                Some(lane) => {
                    lane.push(frames.take(count), Errand::Send(out));
                    return;
                }
                None => DropReason::WorkerBusy,
            },
            (Some(Exit::Closed | Exit::Trunk(_)) | None, _) => DropReason::PortDown,
        };
        frames.take(count).for_each(|frame| ledger.lose(frame, refused, pool));
    }

    /// Gives a packet that came in on `port` to the worker that has its sessions, or loses it.
    pub(super) fn hand_over(
        &mut self,
        worker: usize,
        count: usize,
        frames: impl Iterator<Item = Frame>,
        port: PortId,
        pool: &mut FramePool,
        ledger: &mut Ledger,
    ) {
        match self.lane(worker, count) {
            Some(lane) => lane.push(frames, Errand::Judge(port)),
            None => {
                let known = Known::Arrived(port);
                frames.for_each(|frame| ledger.lose_as(frame, DropReason::WorkerBusy, pool, known));
            }
        }
    }

    /// The lane to another worker, if so many frames fit in.
    fn lane(&mut self, worker: usize, frames: usize) -> Option<&mut Outgoing> {
        let lane = self.outgoing.get_mut(worker)?.as_mut()?;
        if lane.has_room(frames) { Some(lane) } else { None }
    }

    /// Queues a packet that another worker has forwarded; it does not travel further.
    pub(super) fn put_own(&mut self, out: PortId, frame: Frame, pool: &mut FramePool, ledger: &mut Ledger) {
        if let Some(&Exit::Own(at)) = self.exits.get(out.index()) {
            self.own[at].transmit.push(frame);
            return;
        }
        ledger.lose(frame, DropReason::PortDown, pool);
    }

    /// Sends what is queued, and does what the ports need once per round.
    pub(super) fn flush(&mut self, pool: &mut FramePool, ledger: &mut Ledger) {
        let mut at = 0;
        while at < self.own.len() {
            match self.own[at].flush(pool, ledger) {
                Ok(()) => at += 1,
                // Another one takes its place.
                Err(error) => self.fail(at, error, pool, ledger),
            }
        }
        if let Some(Err(error)) = self.trunk.as_mut().map(|trunk| trunk.flush(pool, ledger)) {
            self.fail_trunk(error, pool, ledger);
        }
    }

    /// What went through each port, those that were closed included.
    pub(super) fn traffic(&self) -> Vec<(PortId, PortTraffic)> {
        let open = self.own.iter().map(|own| (own.id, own.traffic_so_far()));
        let trunk = self.trunk.iter().flat_map(Trunk::traffic);
        open.chain(trunk).chain(self.closed.iter().copied()).collect()
    }

    fn exit(&mut self, id: PortId) -> &mut Exit {
        if self.exits.len() <= id.index() {
            self.exits.resize(id.index() + 1, Exit::Closed);
        }
        &mut self.exits[id.index()]
    }

    fn close(&mut self, at: usize, pool: &mut FramePool, ledger: &mut Ledger) {
        let mut own = self.own.swap_remove(at);
        own.drop_queued(DropReason::PortDown, pool, ledger);
        // The kernel's counts are gone with the socket.
        let traffic = own.traffic_so_far();
        own.port.close(pool);
        self.keep(own.id, traffic);
        for exit in &mut self.exits {
            match *exit {
                Exit::Own(place) if place == at => *exit = Exit::Closed,
                Exit::Own(place) if place == self.own.len() => *exit = Exit::Own(at),
                _ => {}
            }
        }
        // A port with several queues may still have another one here.
        if let Some(other) = self.own.iter().position(|other| other.id == own.id) {
            *self.exit(own.id) = Exit::Own(other);
        }
    }

    /// One line per port, however often it comes and goes.
    fn keep(&mut self, id: PortId, traffic: PortTraffic) {
        match self.closed.iter_mut().find(|(port, _)| *port == id) {
            Some((_, sum)) => *sum = sum.plus(&traffic),
            None => self.closed.push((id, traffic)),
        }
    }
}

impl OwnPort {
    fn flush(&mut self, pool: &mut FramePool, ledger: &mut Ledger) -> Result<(), PortError> {
        if self.transmit.is_empty() {
            return self.port.service(pool);
        }
        let (packets, bytes) = size(&self.transmit);
        ledger.begin_to_send(&self.transmit);
        let mut sent = self.port.send(&mut self.transmit).and_then(|()| self.port.service(pool));
        if sent.is_ok() && !self.transmit.is_empty() {
            // The kernel has just taken some out of the queue.
            sent = self.port.send(&mut self.transmit).and_then(|()| self.port.service(pool));
        }
        ledger.end_to_send(&self.transmit);
        // Mostly nothing.
        let (left, left_bytes) = size(&self.transmit);
        self.traffic.sent += packets - left;
        self.traffic.sent_bytes += bytes - left_bytes;
        ledger.counters.sent += packets - left;
        if sent.is_ok() {
            self.drop_queued(DropReason::TxFull, pool, ledger);
        }
        sent
    }

    fn drop_queued(&mut self, reason: DropReason, pool: &mut FramePool, ledger: &mut Ledger) {
        self.transmit.drain(..).for_each(|frame| ledger.lose(frame, reason, pool));
    }

    fn traffic_so_far(&self) -> PortTraffic {
        PortTraffic { statistics: self.port.statistics(), ..self.traffic }
    }
}
