//! A worker's ports, and its paths to the ports of other workers.

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

/// A queue of a port, owned by this worker.
pub(super) struct OwnPort {
    pub(super) id: PortId,
    queue: u32,
    pub(super) port: Box<dyn Port>,
    /// Frames to send at the end of the round.
    transmit: Vec<Frame>,
    pub(super) traffic: PortTraffic,
}

/// The path by which this worker sends packets out of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Closed,
    /// The worker owns a queue of the port, at this index of its ports.
    Own(usize),
    /// The worker with this number, from 0, owns the port's queue.
    Worker(usize),
    /// The port is reached over the trunk, with this tag.
    Trunk(FlowSlot),
}

/// All ports that a worker can reach.
pub(super) struct Ports {
    own: Vec<OwnPort>,
    trunk: Option<Trunk>,
    /// How the worker reaches each port, indexed by port id.
    exits: Vec<Exit>,
    /// Lanes to the other workers, indexed by worker. `None` at the worker's own index.
    pub(super) outgoing: Vec<Option<Outgoing>>,
    events: Sender<VswitchEvent>,
    /// Traffic of ports whose queues were closed.
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

    /// Whether a port has [work](Port::is_waiting) for which its descriptor does not wake the worker.
    pub(super) fn is_waiting(&self) -> bool {
        self.own.iter().any(|own| own.port.is_waiting()) || self.trunk.as_ref().is_some_and(Trunk::is_waiting)
    }

    /// Calls `each` with the descriptors to poll. Returns false if a port has none and must be polled actively.
    pub(super) fn descriptors(&self, mut each: impl FnMut(RawFd)) -> bool {
        let trunk = self.trunk.iter().map(Trunk::descriptor);
        self.own.iter().map(|own| own.port.descriptor()).chain(trunk).all(|told| told.map(&mut each).is_some())
    }

    pub(super) fn add_trunk(&mut self, queue: Box<dyn Port>, umem: &Arc<Umem>) {
        self.trunk = Some(Trunk::new(queue, umem));
    }

    /// Connects a port over the trunk. The control thread ensures that the trunk exists.
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

    /// Registers a port of another worker, unless this worker owns a queue of the port.
    pub(super) fn reach(&mut self, id: PortId, worker: usize) {
        let exit = self.exit(id);
        if *exit == Exit::Closed {
            *exit = Exit::Worker(worker);
        }
    }

    /// Closes this worker's queues of a port and forgets other workers' queues.
    pub(super) fn remove(&mut self, id: PortId, pool: &mut FramePool, ledger: &mut Ledger) {
        while let Some(at) = self.own.iter().position(|own| own.id == id) {
            self.close(at, pool, ledger);
        }
        if let Some(trunk) = &mut self.trunk {
            trunk.detach(id);
        }
        *self.exit(id) = Exit::Closed;
    }

    /// Closes all queues and forgets other workers' ports.
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

    /// Counts a packet that the flow cache has sent through a port.
    pub(super) fn count_sent(&mut self, out: PortId, len: usize) {
        if let (Some(&Exit::Trunk(slot)), Some(trunk)) = (self.exits.get(out.index()), &mut self.trunk) {
            trunk.count_sent(slot, 1, len);
        }
    }

    /// Closes the trunk after an error and reports it to the control thread.
    pub(super) fn fail_trunk(&mut self, error: PortError, pool: &mut FramePool, ledger: &mut Ledger) {
        self.close_trunk(pool, ledger);
        // As in `fail`.
        let _ = self.events.send(VswitchEvent::TrunkGone { error });
    }

    /// Closes a port after an error and reports it to the control thread.
    pub(super) fn fail(&mut self, at: usize, error: PortError, pool: &mut FramePool, ledger: &mut Ledger) {
        let (port, queue) = (self.own[at].id, self.own[at].queue);
        self.close(at, pool, ledger);
        // Sending fails only if the receiver was dropped; then the event is not needed.
        let _ = self.events.send(VswitchEvent::PortGone { port, queue, error });
    }

    /// Queues packets of one frame each for a port of this worker or of the trunk. Returns false, without changes, for other ports.
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

    /// Like [`Ports::put`], for a packet of one frame.
    #[inline]
    pub(super) fn put_one(&mut self, out: PortId, frame: Frame, pool: &mut FramePool, ledger: &mut Ledger) {
        match self.exits.get(out.index()) {
            Some(&Exit::Own(at)) => self.own[at].transmit.push(frame),
            Some(&Exit::Trunk(slot)) if let Some(trunk) = &mut self.trunk => trunk.put(slot, frame),
            _ => self.put(out, 1, std::iter::once(frame), pool, ledger),
        }
    }

    /// Queues a packet of `count` frames for a port, or drops it.
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

    /// Passes a packet received on `port` to the worker that owns its session, or drops it.
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

    /// Returns the lane to another worker. `None` if the lane is missing or has no room for this number of frames.
    fn lane(&mut self, worker: usize, frames: usize) -> Option<&mut Outgoing> {
        let lane = self.outgoing.get_mut(worker)?.as_mut()?;
        if lane.has_room(frames) { Some(lane) } else { None }
    }

    /// Queues a packet that another worker forwarded. It is not passed on again.
    pub(super) fn put_own(&mut self, out: PortId, frame: Frame, pool: &mut FramePool, ledger: &mut Ledger) {
        if let Some(&Exit::Own(at)) = self.exits.get(out.index()) {
            self.own[at].transmit.push(frame);
            return;
        }
        ledger.lose(frame, DropReason::PortDown, pool);
    }

    /// Sends queued frames, and services each port once per round.
    pub(super) fn flush(&mut self, pool: &mut FramePool, ledger: &mut Ledger) {
        let mut at = 0;
        while at < self.own.len() {
            match self.own[at].flush(pool, ledger) {
                Ok(()) => at += 1,
                // `fail` moved another port to this position.
                Err(error) => self.fail(at, error, pool, ledger),
            }
        }
        if let Some(Err(error)) = self.trunk.as_mut().map(|trunk| trunk.flush(pool, ledger)) {
            self.fail_trunk(error, pool, ledger);
        }
    }

    /// Traffic of each port, including closed ones.
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
        // Read before closing, because the kernel's counters end with the socket.
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
        // The worker may own another queue of the port.
        if let Some(other) = self.own.iter().position(|other| other.id == own.id) {
            *self.exit(own.id) = Exit::Own(other);
        }
    }

    /// Adds a closed queue's traffic to that of the port. Keeps one element per port, even if the port is closed repeatedly.
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
            // The kernel may have taken frames meanwhile.
            sent = self.port.send(&mut self.transmit).and_then(|()| self.port.service(pool));
        }
        ledger.end_to_send(&self.transmit);
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
