//! A worker's queue of the trunk: packets of many ports on one wire, told apart by a tag.
//!
//! ```text
//!   destination, source | 88 a8 | slot | type, packet      on the trunk (IEEE 802.1ad)
//!                 destination, source | type, packet       in the worker: the MAC addresses moved by four bytes
//! ```
//!
//! The tag is the slot of the port where a packet came in, or through which it leaves. A pod's own VLAN tags are behind it.

use std::os::fd::RawFd;
use std::sync::Arc;

use super::ports::size;
use super::{PortTraffic, WorkerCounters};
use crate::io::{FlowSlot, Frame, FramePool, Port, PortError, Umem};
use crate::{DropReason, PortId};

/// 802.1ad's type, in the network's order.
const SERVICE_TAG: [u8; 2] = [0x88, 0xa8];
/// Bytes of a tag.
const TAG: u16 = 4;
/// Both MAC addresses.
const ADDRESSES: usize = 12;
/// The bits of a tag that are the number; the others are a priority.
const NUMBER: u16 = 0x0fff;

/// Where a frame came in whose tag is no port's.
const NOBODY: PortId = PortId(u16::MAX);

/// See the module.
pub(super) struct Trunk {
    queue: Box<dyn Port>,
    umem: Arc<Umem>,
    /// By slot.
    ports: Vec<PortId>,
    /// By port.
    traffic: Vec<PortTraffic>,
    /// What goes out at the end of the round, with its tags.
    transmit: Vec<Frame>,
}

impl Trunk {
    pub(super) fn new(queue: Box<dyn Port>, umem: &Arc<Umem>) -> Self {
        let (ports, umem) = (vec![NOBODY; usize::from(NUMBER) + 1], Arc::clone(umem));
        Self { queue, umem, ports, traffic: Vec::new(), transmit: Vec::new() }
    }

    /// The slot is the port's.
    pub(super) fn attach(&mut self, id: PortId, slot: FlowSlot) {
        self.detach(id);
        if let Some(port) = self.ports.get_mut(usize::from(slot.0)) {
            *port = id;
        }
        if self.traffic.len() <= id.index() {
            self.traffic.resize(id.index() + 1, PortTraffic::default());
        }
    }

    /// The port has no slot any more.
    pub(super) fn detach(&mut self, id: PortId) {
        self.ports.iter_mut().filter(|port| **port == id).for_each(|port| *port = NOBODY);
    }

    /// Appends what came, without tags, and says in `in_ports` for each frame which port it came in on.
    pub(super) fn receive(
        &mut self,
        frames: &mut Vec<Frame>,
        limit: usize,
        in_ports: &mut Vec<PortId>,
    ) -> Result<(), PortError> {
        let first = frames.len();
        let received = self.queue.receive(frames, limit);
        in_ports.clear();
        let (mut port, mut is_first) = (NOBODY, true);
        for frame in &mut frames[first..] {
            if is_first {
                port = self.take_tag(frame);
            }
            if let Some(traffic) = self.traffic.get_mut(port.index()) {
                traffic.received += u64::from(is_first);
                traffic.received_bytes += frame.len() as u64;
            }
            is_first = !frame.has_more();
            in_ports.push(port);
        }
        received
    }

    /// Takes the tag off a packet's first frame. What has none is nobody's.
    #[inline]
    fn take_tag(&self, frame: &mut Frame) -> PortId {
        let bytes = self.umem.bytes_mut(frame);
        let Some(head) = bytes.first_chunk_mut::<{ ADDRESSES + TAG as usize }>() else { return NOBODY };
        if head[ADDRESSES..ADDRESSES + 2] != SERVICE_TAG {
            return NOBODY;
        }
        let slot = u16::from_be_bytes([head[ADDRESSES + 2], head[ADDRESSES + 3]]) & NUMBER;
        head.copy_within(..ADDRESSES, usize::from(TAG));
        frame.shorten_front(TAG);
        self.ports[usize::from(slot)]
    }

    /// Queues a packet's first frame for the port that has the slot.
    #[inline]
    pub(super) fn put(&mut self, slot: FlowSlot, mut frame: Frame) {
        let (len, is_last) = (frame.len(), !frame.has_more());
        self.count_sent(slot, u64::from(is_last), len);
        // Every packet begins behind a headroom that is longer than a tag.
        if frame.extend_front(TAG) {
            let bytes = self.umem.bytes_mut(&mut frame);
            if let Some(head) = bytes.first_chunk_mut::<{ ADDRESSES + TAG as usize }>() {
                head.copy_within(usize::from(TAG).., 0);
                head[ADDRESSES..ADDRESSES + 2].copy_from_slice(&SERVICE_TAG);
                head[ADDRESSES + 2..].copy_from_slice(&slot.0.to_be_bytes());
            }
        }
        self.transmit.push(frame);
    }

    /// Queues the other frames of the packet whose first one was put.
    pub(super) fn put_rest(&mut self, slot: FlowSlot, frames: impl Iterator<Item = Frame>) {
        for frame in frames {
            self.count_sent(slot, u64::from(!frame.has_more()), frame.len());
            self.transmit.push(frame);
        }
    }

    fn count_sent(&mut self, slot: FlowSlot, packets: u64, bytes: usize) {
        let port = self.ports.get(usize::from(slot.0)).copied().unwrap_or(NOBODY);
        if let Some(traffic) = self.traffic.get_mut(port.index()) {
            traffic.sent += packets;
            traffic.sent_bytes += bytes as u64;
        }
    }

    /// Sends what is queued, and does what the queue needs once per round.
    pub(super) fn flush(&mut self, pool: &mut FramePool, counters: &mut WorkerCounters) -> Result<(), PortError> {
        if self.transmit.is_empty() {
            return self.queue.service(pool);
        }
        let (packets, _) = size(&self.transmit);
        let mut sent = self.queue.send(&mut self.transmit).and_then(|()| self.queue.service(pool));
        if sent.is_ok() && !self.transmit.is_empty() {
            // The kernel has just taken some out of the queue.
            sent = self.queue.send(&mut self.transmit).and_then(|()| self.queue.service(pool));
        }
        let (left, _) = size(&self.transmit);
        counters.sent += packets - left;
        if sent.is_ok() {
            self.drop_queued(DropReason::TxFull, pool, counters);
        }
        sent
    }

    fn drop_queued(&mut self, reason: DropReason, pool: &mut FramePool, counters: &mut WorkerCounters) {
        let mut is_first = true;
        let mut port = NOBODY;
        for mut frame in std::mem::take(&mut self.transmit) {
            if is_first {
                port = self.take_tag(&mut frame);
            }
            if let Some(traffic) = self.traffic.get_mut(port.index()) {
                traffic.sent -= u64::from(!frame.has_more()).min(traffic.sent);
                traffic.sent_bytes -= (frame.len() as u64).min(traffic.sent_bytes);
            }
            is_first = !frame.has_more();
            counters.drop_frame(&frame, reason);
            pool.give(frame);
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.queue.is_waiting()
    }

    pub(super) fn descriptor(&self) -> Option<RawFd> {
        self.queue.descriptor()
    }

    /// What went through each port that is or was attached.
    pub(super) fn traffic(&self) -> impl Iterator<Item = (PortId, PortTraffic)> {
        let ids = (0..).map(PortId);
        ids.zip(self.traffic.iter().copied()).filter(|(_, traffic)| *traffic != PortTraffic::default())
    }

    /// Ends the queue; what is still to be sent is dropped.
    pub(super) fn close(&mut self, pool: &mut FramePool, counters: &mut WorkerCounters) {
        self.drop_queued(DropReason::PortDown, pool, counters);
        self.queue.close(pool);
    }
}
