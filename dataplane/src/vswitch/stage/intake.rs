//! Receives packets from the worker's ports, from the trunk and from other workers.

use std::vec::Drain;

use super::super::lane::Errand;
use super::Stage;
use crate::io::Frame;
use crate::{Affinity, BURST, PortId, Received, Snapshot};

impl Stage {
    /// Receives from all ports, and judges each full burst at once. Returns false if no port had a packet.
    pub(super) fn receive(&mut self, snapshot: &Snapshot) -> bool {
        let mut worked = false;
        let count = self.ports.len();
        // Each round begins with another port, for fairness.
        self.first_port = if self.first_port + 1 < count { self.first_port + 1 } else { 0 };
        for at in (self.first_port..count).chain(0..self.first_port.min(count)) {
            let frames = self.arrivals.frames();
            let first = frames.len();
            let own = self.ports.get(at);
            let (id, result) = (own.id, own.port.receive(frames, BURST));
            // Less than half a burst: a packet of several frames that did not fit may still be in the port.
            self.is_drained &= frames.len() - first < BURST / 2;
            if frames.len() > first {
                worked = true;
                self.sort(id, at, first);
                if self.arrivals.len() >= BURST {
                    self.judge(snapshot);
                }
            }
            if let Err(error) = result {
                self.ports.fail(at, error, &mut self.pool, &mut self.ledger);
                // Positions of ports have changed. The others are served in the next round.
                self.is_drained = false;
                return true;
            }
        }
        worked | self.receive_from_trunk(snapshot)
    }

    /// Like [`receive`](Self::receive), for the worker's queue of the trunk.
    fn receive_from_trunk(&mut self, snapshot: &Snapshot) -> bool {
        let Some(trunk) = self.ports.trunk() else { return false };
        let frames = self.arrivals.frames();
        let first = frames.len();
        let result = trunk.receive(frames, BURST, &mut self.in_ports);
        let count = self.arrivals.frames().len() - first;
        self.is_drained &= count < BURST / 2;
        if count > 0 {
            self.sort_from_trunk(first);
            if self.arrivals.len() >= BURST {
                self.judge(snapshot);
            }
        }
        if let Err(error) = result {
            self.ports.fail_trunk(error, &mut self.pool, &mut self.ledger);
        }
        count > 0
    }

    /// Like [`sort`](Self::sort), for frames of several ports.
    fn sort_from_trunk(&mut self, first: usize) {
        let Self { id, forwarder, affinity, umem, arrivals, bells, in_ports, .. } = self;
        let is_mine = |port: PortId, frame: &Frame| {
            let bytes = umem.bytes(frame);
            forwarder.admit(port, bytes).is_ok() && owner(affinity, bells.len(), bytes) == *id
        };
        let (mut packets, _) = arrivals.accept(first, |at| in_ports[at], is_mine);
        if arrivals.frames().len() > first + packets {
            let (mut rest, in_ports) = (std::mem::take(&mut self.received), std::mem::take(&mut self.in_ports));
            rest.extend(self.arrivals.frames().drain(first + packets..));
            let (mut frames, mut at) = (rest.drain(..), packets);
            while let Some(first) = frames.next() {
                let before = frames.len();
                packets += 1;
                self.deliver(in_ports[at], first, &mut frames);
                at += 1 + before - frames.len();
            }
            drop(frames);
            (self.received, self.in_ports) = (rest, in_ports);
        }
        self.ledger.counters.received += packets as u64;
    }

    /// Keeps this worker's packets and passes the others on. `first` is the port's first frame in the arrivals. Frames stay in place as
    /// long as they are this worker's, which is nearly always all of them.
    fn sort(&mut self, port: PortId, at: usize, first: usize) {
        let Self { id, forwarder, affinity, umem, arrivals, bells, .. } = self;
        let is_mine = |port: PortId, frame: &Frame| {
            let bytes = umem.bytes(frame);
            forwarder.admit(port, bytes).is_ok() && owner(affinity, bells.len(), bytes) == *id
        };
        let (mut packets, mut bytes) = arrivals.accept(first, |_| port, is_mine);
        if arrivals.frames().len() > first + packets {
            let mut rest = std::mem::take(&mut self.received);
            rest.extend(self.arrivals.frames().drain(first + packets..));
            let mut frames = rest.drain(..);
            while let Some(first) = frames.next() {
                packets += 1;
                bytes += self.deliver(port, first, &mut frames);
            }
            drop(frames);
            self.received = rest;
        }
        self.ledger.counters.received += packets as u64;
        let traffic = &mut self.ports.get(at).traffic;
        traffic.received += packets as u64;
        traffic.received_bytes += bytes;
    }

    /// Keeps a packet, passes it to its worker, or drops it. Returns its length in bytes.
    fn deliver(&mut self, port: PortId, first: Frame, frames: &mut Drain<'_, Frame>) -> u64 {
        let bytes = self.umem.bytes(&first);
        let owner = self.forwarder.admit(port, bytes).map(|()| owner(&self.affinity, self.bells.len(), bytes));
        let following = frames.as_slice();
        let is_last = |frame: &Frame| !frame.has_more();
        let rest = match first.has_more() {
            false => 0,
            true => following.iter().position(is_last).map_or(following.len(), |last| last + 1),
        };
        let len = first.len() + following[..rest].iter().map(Frame::len).sum::<usize>();
        let owner = match owner {
            Ok(owner) => owner,
            Err(reason) => {
                let packet = Received { frame: bytes, wire_len: len, in_port: port };
                self.ledger.tell_arrived(&packet, reason);
                self.pool.give_all(std::iter::once(first).chain(frames.take(rest)));
                return len as u64;
            }
        };
        let arrivals = if first.is_copy() { &mut self.copies } else { &mut self.arrivals };
        let mut packet = std::iter::once(first).chain(frames.take(rest));
        if owner == self.id {
            packet.for_each(|frame| arrivals.push(port, frame));
        } else {
            self.ports.hand_over(owner, rest + 1, &mut packet, port, &mut self.pool, &mut self.ledger);
        }
        len as u64
    }

    /// Takes packets from the lanes of other workers, and judges or sends them. Returns false if there were none.
    pub(super) fn open_mail(&mut self, snapshot: &Snapshot) -> bool {
        let mut worked = false;
        for at in 0..self.incoming.len() {
            if self.incoming[at].is_empty() {
                continue;
            }
            worked = true;
            let Self { incoming, arrivals, copies, ports, pool, ledger, umem, .. } = self;
            let first = arrivals.frames().len();
            incoming[at].take(BURST, |frame, errand| match errand {
                Errand::Judge(port) if frame.is_copy() || copies.is_open() => copies.push(port, frame),
                Errand::Judge(port) => arrivals.push(port, frame),
                Errand::Send(out) => ports.put_own(out, frame, pool, ledger),
            });
            arrivals.read_ahead(umem, first);
            if self.arrivals.len() >= BURST {
                self.judge(snapshot);
            }
        }
        worked
    }
}

/// Returns the worker, from 0, that owns the sessions of the packet with these first bytes.
#[inline]
fn owner(affinity: &Affinity, workers: usize, frame: &[u8]) -> usize {
    match workers {
        1 => 0,
        _ => affinity.worker(frame, workers),
    }
}
